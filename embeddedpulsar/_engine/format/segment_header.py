"""Header page of a segment `<ledger>.log` (docs/format/segment.md).

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
from functools import lru_cache
from zlib import crc32

from embeddedpulsar._engine.format.frame import (
    BYTE_ORDER_MARK,
    CHECKSUM_CRC32,
    FORMAT_VERSION,
    REVISED_VERSION,
    is_header,
    refuse,
)
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Final

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

Buffer = bytes | bytearray | memoryview


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
