"""The sorted index of the catalog: where in the log the record of each topic is (docs/format/catalog.md).

index := header, u64 slot[topics], u64 slot[ended], u32 lives[ended], msgpack map of names
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.headers import BYTE_ORDER_MARK, FORMAT_VERSION, is_header, refuse
from embeddedpulsar.records import NamedTuple

INDEX_HEADER: Final = struct.Struct(
    "<"
    "4s"  # 0  magic
    "H"  # 4  version
    "H"  # 6  byte order mark
    "I"  # 8  chain_seed of the catalog
    "I"  # 12 chain_crc: crc of the last record that the index covers
    "Q"  # 16 last: where in the catalog that record begins
    "Q"  # 24 end: where it ends
    "Q"  # 32 topics: number of slots
    "Q"  # 40 ended: number of slots of deleted topics
    "I"  # 48 names_length: bytes of the map of names
    "I"  # 52 body_crc: crc32 of everything behind the header
    "4x"  # 56 zero
    "I"  # 60 crc: crc32 of bytes [0,60)
)
INDEX_HEADER_SIZE: Final = 64
MAGIC: Final = b"EPCI"
_COVERED: Final = INDEX_HEADER_SIZE - 4
_MOST_OFFSET: Final = 1 << 35
_LOW: Final = (1 << 32) - 1

Buffer = bytes | bytearray | memoryview


class IndexHeader(NamedTuple):
    """The decoded header of an index."""

    chain_seed: int
    chain_crc: int
    last: int
    end: int
    topics: int
    ended: int
    names_length: int
    body_crc: int

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return INDEX_HEADER_SIZE + 8 * self.topics + 12 * self.ended + self.names_length


def pack_index_header(header: IndexHeader) -> bytes:
    """The 64-byte header of an index."""
    covered = INDEX_HEADER.pack(MAGIC, FORMAT_VERSION, BYTE_ORDER_MARK, *header, 0)[:_COVERED]
    return covered + struct.pack("<I", crc32(covered))


def parse_index_header(buf: Buffer) -> IndexHeader:
    """Check and decode the header of an index.

    Raises:
        CorruptionError: damaged, cut short, or something else.
        UnsupportedFormatVersion: a newer release, or the other byte order, wrote it.
    """
    if len(buf) < INDEX_HEADER_SIZE:
        raise CorruptionError(reason=f"catalog index of {len(buf)} bytes has no header", offset=0)
    _, _, _, *fields, crc = INDEX_HEADER.unpack_from(buf, 0)
    if not is_header(buf[:_COVERED], MAGIC, crc):
        refuse(buf[:_COVERED], MAGIC, crc, "catalog index")
    return IndexHeader(*fields)


def pack_slot(offset: int, entry: Buffer) -> int:
    """The slot of an entry, which begins at ``offset`` in the catalog.

    Raises:
        ValueError: the offset is no multiple of 8 below 32 GiB.

    Example:
        >>> slot = pack_slot(64, b"entry")
        >>> slot_offset(slot), is_entry_of(slot, b"entry"), is_entry_of(slot, b"other")
        (64, True, False)
    """
    if offset & 7 or not 0 < offset < _MOST_OFFSET:
        raise ValueError(f"no entry of the catalog begins at {offset}")
    return offset >> 3 | crc32(entry) << 32


def slot_offset(slot: int) -> int:
    """Where the entry of a slot begins in the catalog."""
    return (slot & _LOW) << 3


def is_entry_of(slot: int, entry: Buffer) -> bool:
    """Whether these are the bytes for which the slot was made."""
    return crc32(entry) == slot >> 32
