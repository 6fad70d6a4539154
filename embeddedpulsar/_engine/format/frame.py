"""Frames: how an entry lies in a segment. Byte table, worked example and reasons: docs/format/frame.md.

A frame is header (48 bytes), metadata, columns, trailer (8 bytes); frames start at multiples of 8 and
follow each other without gaps. Two checksums: `crc` covers the header (and, as its seed, the length) and is
what the next frame repeats as `prev_crc`; `body_crc` covers the bytes between header and trailer. So the
40 bytes whose values are only known under the topic lock are all that has to be checksummed there.

What the headers of all files share: marks, versions, the checksum, and how a file is refused.

Why CRC-32: it is in the standard library, costs about 0.2 us on a small frame and 0.23 us per KiB beyond,
takes any buffer (a memory map too), releases the GIL above 5 KiB, finds every burst of damage of up to 32
bits, and lets 1 of 2**32 random damages through. A faster hash would be a dependency for a gain that only
payloads above 64 KiB could show; segment headers name the checksum type, so one may be added later.

Why seeded: a record's own length has to be read before anything can be checked. Feeding it to the CRC as
the start value binds it without spending bytes or time: two different lengths over the same bytes always
give two different checksums.

Header page of a segment `<ledger>.log` (docs/format/segment.md).

Written once, before the ledger becomes visible, and never changed: two identical copies, at bytes 0 and
512, each with its own checksum. It says where the ledger before ended. No reader infers that by scanning,
and bytes behind that end (of a writer that died before publishing them) are never looked at again.

The index of a segment: header, checksums of blocks, and 24 bytes per entry (docs/format/index.md).

The index is derivable: a header that does not verify means "rebuild", never "lost". Block k holds slots
[1024 k, 1024 (k+1)); once it is full its checksum is put into the array at byte 512. A zero there means
"not sealed", so a checksum that happens to be 0 is stored as 1.

Slot i of `<ledger>.idx` describes entry i of its ledger. A slot is checked by comparing its `crc` with the
frame it points to.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from functools import lru_cache
from zlib import crc32

from embeddedpulsar.exceptions import CorruptionError, UnsupportedFormatVersion
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Final, NoReturn


HEADER: Final = struct.Struct(
    "<"
    "I"  # 0  length: whole frame, header to trailer, a multiple of 8
    "I"  # 4  crc: crc32 of bytes [8,48), seeded with length
    "I"  # 8  prev_crc: crc of the frame before; the segment's chain seed for the first
    "I"  # 12 body_crc: crc32 of bytes [48, length-8) as stored
    "H"  # 16 magic
    "B"  # 18 kind
    "B"  # 19 codec
    "I"  # 20 flags: columns present (low 16), entry flags (high 16)
    "Q"  # 24 entry_id
    "Q"  # 32 publish_time, ms since the epoch
    "I"  # 40 message_count
    "H"  # 44 metadata_length
    "H"  # 46 reserved, 0
)
HEADER_SIZE: Final = 4 + 4 + 4 + 4 + 2 + 1 + 1 + 4 + 8 + 8 + 4 + 2 + 2
TRAILER: Final = struct.Struct("<II")  # zero, then the length again: a frame can be found from its end
TRAILER_SIZE: Final = 4 + 4
MAGIC: Final = 0xEB9A
METADATA_SIZE: Final = 32
"""Metadata before the producer name (see entry.py); no frame has less."""
MIN_FRAME_SIZE: Final = HEADER_SIZE + METADATA_SIZE + TRAILER_SIZE
MAX_FRAME_SIZE: Final = 1 << 30

# Persistent values, never renumber.
KIND_ENTRY: Final = 1
KIND_MARKER: Final = 2
CODEC_NONE: Final = 0
CODEC_LZ4: Final = 1
CODEC_ZLIB: Final = 2
CODEC_ZSTD: Final = 3
CODEC_SNAPPY: Final = 4
CODEC_SNAPPY_RAW: Final = 5
CODEC_ENCRYPTED: Final = 128
CODEC_PULSAR: Final = 129

FLAG_KEYS: Final = 1 << 0
FLAG_ORDERING_KEYS: Final = 1 << 1
FLAG_PROPERTIES: Final = 1 << 2
FLAG_EVENT_TIMES: Final = 1 << 3
FLAG_SEQUENCE_IDS: Final = 1 << 4
FLAG_NULL_VALUES: Final = 1 << 5
FLAG_DELIVER_AT: Final = 1 << 6
FLAG_CHUNKS: Final = 1 << 7
FLAG_TRANSACTION: Final = 1 << 8
FLAG_KEY_ABSENT: Final = 1 << 9
FLAG_ORDERING_KEY_ABSENT: Final = 1 << 10
FLAG_KEY_BYTES: Final = 1 << 11
FLAG_KEY_NULL: Final = 1 << 12
FLAG_ORDERING_KEY_BYTES: Final = 1 << 13
FLAG_FIELDS: Final = 1 << 14
COLUMN_FLAGS: Final = (1 << 15) - 1

FLAG_BATCHED: Final = 1 << 16
FLAG_ENCRYPTED: Final = 1 << 17
FLAG_CHUNK: Final = 1 << 18
FLAG_TXN: Final = 1 << 19
FLAG_DELAYED: Final = 1 << 20
FLAG_REVISED: Final = 1 << 21
NEEDS_REVISION: Final = FLAG_TXN | FLAG_REVISED
"""Flags of entries that stand in a segment of version 2 alone: a release that knows version 1 would misread
them."""

COVERED: Final = struct.Struct("<IIHBBIQQIHH")  # bytes [8,48): what `crc` covers
FRONT: Final = struct.Struct("<II")  # bytes [0,8)

_AROUND: Final = HEADER_SIZE + TRAILER_SIZE
_MAGIC_BYTES: Final = MAGIC.to_bytes(2, "little")

Buffer = bytes | bytearray | memoryview


class FrameHeader(NamedTuple):
    """The 48 bytes before an entry, checked: bounds, magic, length and checksum all held when it was read."""

    length: int
    crc: int
    prev_crc: int
    body_crc: int
    magic: int
    kind: int
    codec: int
    flags: int
    entry_id: int
    publish_time: int
    message_count: int
    metadata_length: int
    reserved: int

    @property
    def batched(self) -> bool:
        """Whether messages carry batch indexes 0..n-1 (clear: one message, batch index -1)."""
        return self.flags & FLAG_BATCHED != 0


def pack_trailer(length: int) -> bytes:
    """The last 8 bytes of a frame of `length` bytes."""
    return TRAILER.pack(0, length)


def seal(
    length: int,
    prev_crc: int,
    body_crc: int,
    kind: int,
    codec: int,
    flags: int,
    entry_id: int,
    publish_ms: int,
    count: int,
    metadata_length: int,
    # Bound as defaults: this runs under the topic lock, once per entry.
    _pack_sealed: Any = COVERED.pack,
    _pack_front: Any = FRONT.pack,
) -> tuple[bytes, int]:
    """Build the 48 header bytes and return them with their `crc`, the next frame's `prev_crc`."""
    covered = _pack_sealed(
        prev_crc, body_crc, MAGIC, kind, codec, flags, entry_id, publish_ms, count, metadata_length, 0
    )
    crc = crc32(covered, length)
    return _pack_front(length, crc) + covered, crc


def read_header(
    buf: Buffer, pos: int, end: int, _unpack: Any = HEADER.unpack_from, _new: Any = tuple.__new__
) -> FrameHeader:
    """Read and check the header at `pos`; the frame must end at or before `end`.

    Raises:
        CorruptionError: out of bounds, no frame there, or a wrong checksum. The body is not looked at
            (`verify_body`), nor is the trailer (`verify_trailer`).
    """
    if pos < 0 or pos & 7 or pos + MIN_FRAME_SIZE > end or end > len(buf):
        raise CorruptionError(reason=f"no room for a frame before {end}", offset=pos)
    fields = _unpack(buf, pos)
    length, crc, _, _, magic, _, _, _, _, _, _, metadata_length, _ = fields
    if (
        magic == MAGIC
        and crc32(buf[pos + 8 : pos + 48], length) == crc
        and MIN_FRAME_SIZE <= length <= end - pos
        and not length & 7
        and METADATA_SIZE <= metadata_length <= length - _AROUND
    ):
        header: FrameHeader = _new(FrameHeader, fields)
        return header
    raise _damaged_header(buf, pos, end, fields)


def _damaged_header(buf: Buffer, pos: int, end: int, fields: tuple[int, ...]) -> CorruptionError:
    length, crc, magic, metadata_length = fields[0], fields[1], fields[4], fields[11]
    if magic != MAGIC:
        reason = f"frame magic is {magic:#06x}, not {MAGIC:#06x}"
    elif crc32(buf[pos + 8 : pos + 48], length) != crc:
        reason = "frame header checksum mismatch"
    elif length & 7 or not MIN_FRAME_SIZE <= length <= end - pos:
        reason = f"frame length {length} does not fit before {end}"
    else:
        reason = f"metadata length {metadata_length} does not fit its frame"
    return CorruptionError(reason=reason, offset=pos)


def verify_body(buf: Buffer, pos: int, header: FrameHeader) -> None:
    """Check the bytes between header and trailer of the frame at `pos` against `body_crc`."""
    if crc32(buf[pos + HEADER_SIZE : pos + header[0] - TRAILER_SIZE]) != header[3]:
        raise CorruptionError(
            reason=f"body checksum mismatch in entry {header[8]} ({header[0]} bytes)", offset=pos
        )


def verify_trailer(buf: Buffer, pos: int, header: FrameHeader) -> None:
    """Check the last 8 bytes of the frame at `pos`. A damaged trailer harms no message: readers skip this."""
    if TRAILER.unpack_from(buf, pos + header[0] - TRAILER_SIZE) != (0, header[0]):
        raise CorruptionError(reason=f"frame trailer of entry {header[8]} is damaged", offset=pos)


def last_frame_start(buf: Buffer, floor: int, end: int) -> int:
    """Where the frame that ends at `end` starts, by its trailer; never before `floor`."""
    if end & 7 or floor < 0 or end - MIN_FRAME_SIZE < floor or end > len(buf):
        raise CorruptionError(reason="no frame ends here", offset=end)
    zero, length = TRAILER.unpack_from(buf, end - TRAILER_SIZE)
    if zero or length & 7 or length < MIN_FRAME_SIZE or end - length < floor:
        raise CorruptionError(reason=f"frame trailer says {length} bytes", offset=end - TRAILER_SIZE)
    return int(end - length)


def next_frame(buf: Buffer, pos: int, end: int, limit: int = -1) -> int:
    """The next offset at or after `pos` whose frame header verifies; -1 if there is none before `end`.

    This is the resync scan after damage. It says only that a header is there, not that it belongs to this
    chain: a payload may hold a copy of a segment. Callers compare entry ids, time and chain.

    Args:
        limit: where the frame must have ended at the latest; `end` if negative. More than `end` where `buf`
            shows only a part of the file: then the header lies before `end`, the rest may not.
    """
    pos = (max(pos, 0) + 7) & ~7
    end = min(end, len(buf))
    limit = end if limit < 0 else limit
    step = 1 << 16
    while pos + HEADER_SIZE <= end:
        # The two magic bytes are found by a C search in a bounded copy; only hits are looked at closely.
        chunk = bytes(buf[pos : min(pos + step + 18, end)])
        at = chunk.find(_MAGIC_BYTES, 16)
        while at >= 0:
            start = pos + at - 16
            if not start & 7 and start < pos + step and start + HEADER_SIZE <= end:
                fields = HEADER.unpack_from(buf, start)
                if _is_header(buf, start, limit, fields):
                    return start
            at = chunk.find(_MAGIC_BYTES, at + 1)
        pos += step
    return -1


def _is_header(buf: Buffer, pos: int, limit: int, fields: tuple[int, ...]) -> bool:
    length, metadata_length = fields[0], fields[11]
    return (
        MIN_FRAME_SIZE <= length <= limit - pos
        and not length & 7
        and METADATA_SIZE <= metadata_length <= length - _AROUND
        and crc32(buf[pos + 8 : pos + 48], length) == fields[1]
    )


def frames(buf: Buffer, pos: int, end: int) -> Iterator[tuple[int, FrameHeader]]:
    """Every frame from `pos` to `end` as (offset, header), bodies unchecked.

    Raises:
        CorruptionError: at the first place where no frame is.
    """
    while pos < end:
        header = read_header(buf, pos, end)
        yield pos, header
        pos += header[0]


BYTE_ORDER_MARK: Final = 0x0102
"""Written little-endian; read as 0x0201 where a file came from, or came to, a big-endian machine."""
FORMAT_VERSION: Final = 1
"""Version of every binary file kind. Raised when an old reader would misread a new file."""
REVISED_VERSION: Final = 2
"""Version of a segment that may hold entries with `NEEDS_REVISION`, and of the store that it is in."""

CHECKSUM_CRC32 = 1
"""`checksum_type` of segment headers. Persistent value, never renumber."""


def require_little_endian() -> None:
    """Refuse machines whose mapped words would not be little-endian.

    Raises:
        UnsupportedFormatVersion: this is a big-endian machine.
    """
    if sys.byteorder != "little":
        raise UnsupportedFormatVersion(
            reason="files are little-endian and mapped as they are",
            remedy="use a little-endian machine, or export the data there",
        )


def is_header(covered: Buffer, magic: bytes, crc: int, newest: int = FORMAT_VERSION) -> bool:
    """Whether a header, up to its checksum, is intact, of this kind, a known version and this byte order.

    Magic, version and mark are the first 8 bytes of every header. Versions up to `newest` are known.
    """
    return (
        covered[:4] == magic
        and FORMAT_VERSION <= int.from_bytes(covered[4:6], "little") <= newest
        and int.from_bytes(covered[6:8], "little") == BYTE_ORDER_MARK
        and crc32(covered) == crc
    )


def refuse(covered: Buffer, magic: bytes, crc: int, kind: str, newest: int = FORMAT_VERSION) -> NoReturn:
    """Raise the error that fits a header for which `is_header` is false.

    A version or byte order is believed only under a right checksum (which has its place in every version and
    is stored in the order of its machine): everything else is damage, and there are ways to live with that.

    Args:
        covered: the header up to its checksum.
        magic: what its first bytes should be.
        crc: the checksum stored behind it.
        kind: what the file should be, for the message.
        newest: the newest version of this kind that is known.
    """
    # A wrong checksum proves damage whatever the version says, and only a right one makes "newer
    # release" a fact.
    own_crc = crc32(covered)
    if covered[:4] == magic:
        version = int.from_bytes(covered[4:6], "little")
        if own_crc == crc and version > newest:
            # A file of a newer release is whole: it must not be repaired, cut or moved away as
            # damage.
            raise UnsupportedFormatVersion(
                reason=f"this {kind} has format version {version}; this release reads up to {newest}",
                remedy="upgrade embeddedpulsar",
            )
        # On a machine of the other byte order the mark and the checksum stand reversed, and both have
        # to.
        if own_crc == int.from_bytes(crc.to_bytes(4, "little"), "big") and covered[6:8] == b"\x01\x02":
            raise UnsupportedFormatVersion(
                reason=f"this {kind} was written on a machine of the other byte order",
                remedy="export it there",
            )
    elif any(covered[:4]):
        # Another magic is another kind of file, or damage of the first bytes. A magic of zeros is
        # what a creator leaves that died before it wrote the header, and gets the plain text below.
        raise CorruptionError(
            reason=f"this is no {kind}, or a damaged one: it starts with {bytes(covered[:4])!r}",
            offset=0,
            remedy="put back the right file if this one is something else",
        )
    raise CorruptionError(reason=f"the header of this {kind} is damaged", offset=0)


SEGMENT_HEADER: Final = struct.Struct(
    "<"
    "4s"  # 0   magic
    "H"  # 4   version
    "H"  # 6   byte order mark
    "B"  # 8   checksum_type
    "7x"  # 9   zero
    "Q"  # 16  ledger_id
    "Q"  # 24  created_ms
    "Q"  # 32  base_publish_ms: what index slots count from
    "16s"  # 40  boot_id of the machine when it was created
    "16s"  # 56  store_id
    "Q"  # 72  topic_incarnation
    "I"  # 80  chain_seed: prev_crc of the first frame
    "I"  # 84  prev_last_crc
    "Q"  # 88  prev_ledger_id, 0 for none
    "Q"  # 96  prev_end_offset
    "q"  # 104 prev_last_entry_id, -1 for none
    "Q"  # 112 prev_messages: messages in the previous ledger
    "Q"  # 120 log_size: bytes this file may grow to
    "I"  # 128 index_capacity: slots of its index
    "I"  # 132 crc: crc32 of bytes [0,132)
)
SEGMENT_MAGIC: Final = b"EPSG"
SEGMENT_HEADER_SIZE: Final = 4096
FIRST_FRAME_OFFSET: Final = 4096
COPY_OFFSETS: Final = (0, 512)
MAX_LOG_SIZE: Final = 1 << 35
"""Offsets are stored as 32-bit numbers of 8-byte units."""
_SEGMENT_COVERED: Final = SEGMENT_HEADER.size - 4
_REMEMBERED: Final = 64
"""Headers as they were decoded: opening a topic reads that of its last segment twice."""
_CRC: Final = struct.Struct("<I")


class SegmentHeader(NamedTuple):
    """What a segment says about itself and about the ledger before it.

    `version` is 1, or `REVISED_VERSION` where entries may have what releases of version 1 would misread.
    """

    ledger_id: int
    created_ms: int
    base_publish_ms: int
    boot_id: bytes
    store_id: bytes
    topic_incarnation: int
    chain_seed: int
    log_size: int
    index_capacity: int
    prev_ledger_id: int = 0
    prev_end_offset: int = 0
    prev_last_entry_id: int = -1
    prev_last_crc: int = 0
    prev_messages: int = 0
    checksum_type: int = CHECKSUM_CRC32
    version: int = FORMAT_VERSION

    @property
    def may_have_transactions(self) -> bool:
        """Whether entries may belong to transactions. A header that was derived knows neither its version nor
        its store."""
        return self.version >= REVISED_VERSION or not any(self.store_id)


def pack_segment_header(header: SegmentHeader) -> bytes:
    """The 4096-byte header page: both copies."""
    covered = SEGMENT_HEADER.pack(
        SEGMENT_MAGIC,
        header.version,
        BYTE_ORDER_MARK,
        header.checksum_type,
        header.ledger_id,
        header.created_ms,
        header.base_publish_ms,
        header.boot_id,
        header.store_id,
        header.topic_incarnation,
        header.chain_seed,
        header.prev_last_crc,
        header.prev_ledger_id,
        header.prev_end_offset,
        header.prev_last_entry_id,
        header.prev_messages,
        header.log_size,
        header.index_capacity,
        0,
    )[:_SEGMENT_COVERED]
    copy = (covered + _CRC.pack(crc32(covered))).ljust(COPY_OFFSETS[1], b"\0")
    return (copy * 2).ljust(SEGMENT_HEADER_SIZE, b"\0")


def parse_segment_header(buf: Buffer) -> SegmentHeader:
    """Check and decode the header page; one intact copy is enough.

    Raises:
        CorruptionError: neither copy is intact, the file is too short, or it is something else.
        UnsupportedFormatVersion: a newer release, or the other byte order, wrote it.
    """
    if len(buf) < SEGMENT_HEADER_SIZE:
        raise CorruptionError(reason=f"segment of {len(buf)} bytes has no header page", offset=0)
    for offset in COPY_OFFSETS:
        header = _parse_copy(bytes(buf[offset : offset + SEGMENT_HEADER.size]))
        if header is not None:
            return header
    # Neither is intact. A newer version says so in both; damage rarely looks the same twice.
    damage = CorruptionError(reason="the header of this segment is damaged", offset=0)
    for offset in COPY_OFFSETS:
        covered = buf[offset : offset + _SEGMENT_COVERED]
        try:
            crc = _CRC.unpack_from(buf, offset + _SEGMENT_COVERED)[0]
            refuse(covered, SEGMENT_MAGIC, crc, "segment", REVISED_VERSION)
        except CorruptionError as e:
            damage = e
    raise damage


@lru_cache(_REMEMBERED)
def _parse_copy(copy: bytes) -> SegmentHeader | None:
    fields = SEGMENT_HEADER.unpack(copy)
    _, version, _, checksum_type, ledger_id, created_ms, base_ms, boot_id, store_id = fields[:9]
    incarnation, seed, prev_crc, prev_ledger, prev_end, prev_entry, prev_messages = fields[9:16]
    log_size, capacity, crc = fields[16:]
    covered = copy[:_SEGMENT_COVERED]
    if not is_header(covered, SEGMENT_MAGIC, crc, REVISED_VERSION) or checksum_type != CHECKSUM_CRC32:
        return None
    if log_size > MAX_LOG_SIZE or prev_end > MAX_LOG_SIZE or prev_end & 7:
        return None
    return SegmentHeader(
        ledger_id,
        created_ms,
        base_ms,
        boot_id,
        store_id,
        incarnation,
        seed,
        log_size,
        capacity,
        prev_ledger,
        prev_end,
        prev_entry,
        prev_crc,
        prev_messages,
        checksum_type,
        version,
    )


SLOT: Final = struct.Struct(
    "<"
    "I"  # 0  offset of the frame in the segment, divided by 8
    "I"  # 4  publish time in ms since the segment's base
    "I"  # 8  messages in the ledger up to and including this entry
    "I"  # 12 key_hash of the frame's metadata
    "H"  # 16 entry flags: bits 16..31 of the frame's flags
    "H"  # 18 message count, 65535 meaning "that many or more"
    "I"  # 20 crc of the frame header
)
SLOT_SIZE: Final = 4 + 4 + 4 + 4 + 2 + 2 + 4
SLOTS_OFFSET: Final = 4096
MAX_COUNT: Final = 0xFFFF
FLAGS_AT: Final = 16
"""Where the low byte of the flags stands in a slot."""

INDEX_HEADER: Final = struct.Struct(
    "<"
    "4s"  # 0  magic
    "H"  # 4  version
    "H"  # 6  byte order mark
    "Q"  # 8  ledger_id
    "I"  # 16 slots_per_block
    "I"  # 20 capacity: slots the file has room for
    "Q"  # 24 created_ms
    "I"  # 32 crc: crc32 of bytes [0,32)
)
INDEX_HEADER_SIZE: Final = 4096
INDEX_MAGIC: Final = b"EPIX"
SLOTS_PER_BLOCK: Final = 1024
BLOCK_CRCS_OFFSET: Final = 512
BLOCK_CRC: Final = struct.Struct("<I")
MAX_BLOCKS: Final = (INDEX_HEADER_SIZE - BLOCK_CRCS_OFFSET) // BLOCK_CRC.size
MAX_CAPACITY: Final = MAX_BLOCKS * SLOTS_PER_BLOCK
BLOCK_SIZE: Final = SLOTS_PER_BLOCK * SLOT_SIZE
_INDEX_COVERED: Final = INDEX_HEADER.size - 4


class IndexHeader(NamedTuple):
    """The decoded header of an index file."""

    ledger_id: int
    capacity: int
    created_ms: int
    slots_per_block: int = SLOTS_PER_BLOCK


def index_file_size(capacity: int) -> int:
    """Bytes of an index file with `capacity` slots, a multiple of 4096."""
    return (SLOTS_OFFSET + capacity * SLOT_SIZE + 4095) & ~4095


def pack_index_header(header: IndexHeader) -> bytes:
    """The 4096-byte header page, with no block sealed.

    Raises:
        ValueError: a capacity the array of block checksums has no room for.
    """
    if not 1 <= header.capacity <= MAX_CAPACITY:
        raise ValueError(f"an index holds 1 to {MAX_CAPACITY} slots, not {header.capacity}")
    covered = INDEX_HEADER.pack(
        INDEX_MAGIC,
        FORMAT_VERSION,
        BYTE_ORDER_MARK,
        header.ledger_id,
        header.slots_per_block,
        header.capacity,
        header.created_ms,
        0,
    )[:_INDEX_COVERED]
    return (covered + BLOCK_CRC.pack(crc32(covered))).ljust(INDEX_HEADER_SIZE, b"\0")


def parse_index_header(buf: Buffer) -> IndexHeader:
    """Check and decode the header page.

    Raises:
        CorruptionError: damaged, cut short, or something else.
        UnsupportedFormatVersion: a newer release, or the other byte order, wrote it.
    """
    if len(buf) < INDEX_HEADER_SIZE:
        raise CorruptionError(reason=f"index file of {len(buf)} bytes has no header page", offset=0)
    _, _, _, ledger_id, per_block, capacity, created_ms, crc = INDEX_HEADER.unpack_from(buf, 0)
    if not is_header(buf[:_INDEX_COVERED], INDEX_MAGIC, crc):
        refuse(buf[:_INDEX_COVERED], INDEX_MAGIC, crc, "index file")
    if per_block != SLOTS_PER_BLOCK or not 1 <= capacity <= MAX_CAPACITY:
        raise CorruptionError(reason=f"an index of {capacity} slots in blocks of {per_block}", offset=16)
    return IndexHeader(ledger_id, capacity, created_ms, per_block)


def block_crc(slots: Buffer) -> int:
    """Checksum of the bytes of one full block; never 0."""
    return crc32(slots) or 1


def block_crc_offset(block: int) -> int:
    """Where the checksum of `block` lies in the file."""
    return BLOCK_CRCS_OFFSET + BLOCK_CRC.size * block


def block_range(block: int) -> tuple[int, int]:
    """First byte of `block` in the file, and the first byte behind it."""
    start = slot_offset(block * SLOTS_PER_BLOCK)
    return start, start + BLOCK_SIZE


def is_block_sealed_and_intact(buf: Buffer, block: int) -> bool:
    """Whether `block` was sealed and still has the bytes it was sealed with."""
    start, end = block_range(block)
    if not 0 <= block < MAX_BLOCKS or end > len(buf):
        return False
    (crc,) = BLOCK_CRC.unpack_from(buf, block_crc_offset(block))
    return bool(crc and crc == block_crc(buf[start:end]))


class IndexSlot(NamedTuple):
    """One decoded slot; `offset` is in bytes, `flags` are the frame's entry flags shifted down by 16."""

    offset: int
    publish_delta_ms: int
    messages: int
    key_hash: int
    flags: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    crc: int


class SlotColumns(NamedTuple):
    """Slots of consecutive entries, by column. `offsets` are divided by 8, `flags` are the low bytes."""

    offsets: list[int]
    messages: list[int]
    key_hashes: list[int]
    flags: bytes
    counts: list[int]


def read_slots(buf: Buffer, first: int, stop: int) -> SlotColumns:
    """Slots `first` to `stop` - 1 of the index file `buf`: 0.1 us each.

    Raises:
        CorruptionError: the file ends before they do, or the messages up to the last are not the sum.
    """
    start, end = slot_offset(first), slot_offset(stop)
    if not 0 <= first < stop or end > len(buf):
        raise CorruptionError(reason=f"index has no slots {first} to {stop - 1}", offset=start)
    raw = bytes(buf[start:end])
    words, halves = memoryview(raw).cast("I"), memoryview(raw).cast("H")
    messages: list[int] = words[2::6].tolist()
    counts: list[int] = halves[9::12].tolist()
    before = SLOT.unpack_from(buf, start - SLOT_SIZE)[2] if first else 0
    if before + sum(counts) != messages[-1]:
        raise CorruptionError(reason=f"slots {first} to {stop - 1} miscount their messages", offset=start)
    return SlotColumns(words[0::6].tolist(), messages, words[3::6].tolist(), raw[FLAGS_AT::SLOT_SIZE], counts)


def slot_offset(entry_id: int) -> int:
    """Where slot `entry_id` starts in the index file.

    Example:
        >>> slot_offset(0), slot_offset(2)
        (4096, 4144)
    """
    return SLOTS_OFFSET + SLOT_SIZE * entry_id


def pack_slot(
    offset: int,
    publish_delta_ms: int,
    messages: int,
    key_hash: int,
    frame_flags: int,
    count: int,
    crc: int,
    _pack: Any = SLOT.pack,
) -> bytes:
    """The 24 bytes for a frame at byte `offset`; `frame_flags` are all 32 bits of the frame's flags."""
    packed: bytes = _pack(
        offset >> 3,
        publish_delta_ms,
        messages,
        key_hash,
        frame_flags >> 16,
        count if count < MAX_COUNT else MAX_COUNT,  # min() would cost more: runs under the lock
        crc,
    )
    return packed


def read_slot(buf: bytes | bytearray | memoryview, i: int) -> IndexSlot:
    """Slot `i` of the index file `buf` (the whole file, header included).

    Raises:
        CorruptionError: the file ends before the slot does.
    """
    at = SLOTS_OFFSET + SLOT_SIZE * i
    if i < 0 or at + SLOT_SIZE > len(buf):
        raise CorruptionError(reason=f"index has no slot {i}", offset=at)
    offset, delta, messages, key_hash, flags, count, crc = SLOT.unpack_from(buf, at)
    return IndexSlot(offset << 3, delta, messages, key_hash, flags, count, crc)
