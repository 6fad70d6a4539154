"""Header page of a segment `<ledger>.log` (docs/format/segment.md).

Written once, before the ledger becomes visible, and never changed: two identical copies, at bytes 0 and
512, each with its own checksum. It says where the ledger before ended. No reader infers that by scanning,
and bytes behind that end (of a writer that died before publishing them) are never looked at again.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final
from zlib import crc32

from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.headers import BYTE_ORDER_MARK, CHECKSUM_CRC32, FORMAT_VERSION, is_header, refuse
from embeddedpulsar.records import NamedTuple

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
MAGIC: Final = b"EPSG"
SEGMENT_HEADER_SIZE: Final = 4096
FIRST_FRAME_OFFSET: Final = 4096
COPY_OFFSETS: Final = (0, 512)
MAX_LOG_SIZE: Final = 1 << 35
"""Offsets are stored as 32-bit numbers of 8-byte units."""
_COVERED: Final = SEGMENT_HEADER.size - 4
_REMEMBERED: Final = 64
"""Headers as they were decoded: opening a topic reads that of its last segment twice."""
_CRC: Final = struct.Struct("<I")

Buffer = bytes | bytearray | memoryview


class SegmentHeader(NamedTuple):
    """What a segment says about itself and about the ledger before it."""

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


def pack_segment_header(header: SegmentHeader) -> bytes:
    """The 4096-byte header page: both copies."""
    covered = SEGMENT_HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
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
    )[:_COVERED]
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
        covered = buf[offset : offset + _COVERED]
        try:
            refuse(covered, MAGIC, _CRC.unpack_from(buf, offset + _COVERED)[0], "segment")
        except CorruptionError as e:
            damage = e
    raise damage


@lru_cache(_REMEMBERED)
def _parse_copy(copy: bytes) -> SegmentHeader | None:
    fields = SEGMENT_HEADER.unpack(copy)
    _, _, _, checksum_type, ledger_id, created_ms, base_ms, boot_id, store_id = fields[:9]
    incarnation, seed, prev_crc, prev_ledger, prev_end, prev_entry, prev_messages = fields[9:16]
    log_size, capacity, crc = fields[16:]
    if not is_header(copy[:_COVERED], MAGIC, crc) or checksum_type != CHECKSUM_CRC32:
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
    )
