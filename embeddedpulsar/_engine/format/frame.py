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
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
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
