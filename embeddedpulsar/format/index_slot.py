"""Index slots: 24 bytes per entry, derivable from the frames and never authoritative (docs/format/index.md).

Slot i of `<ledger>.idx` describes entry i of its ledger. A slot is checked by comparing its `crc` with the
frame it points to; sealed blocks of slots carry a checksum in the index header (index_header.py).
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from embeddedpulsar.exceptions import CorruptionError

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


class IndexSlot(NamedTuple):
    """One decoded slot; `offset` is in bytes, `flags` are the frame's entry flags shifted down by 16."""

    offset: int
    publish_delta_ms: int
    messages: int
    key_hash: int
    flags: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    crc: int


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
