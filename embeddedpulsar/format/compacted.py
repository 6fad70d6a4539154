"""Compacted ledgers: the newest message of each key, in blocks of rows (docs/format/compacted.md).

A row is a message with the id, the time and the producer that it has in the log. The columns of a block are
those of an entry; what an entry says once for all its messages, the block says for each row.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final
from zlib import crc32

from embeddedpulsar.exceptions import CorruptionError, UnsupportedFormatVersion
from embeddedpulsar.format.columns import PADDING
from embeddedpulsar.format.frame import (
    HEADER_SIZE,
    KIND_ENTRY,
    TRAILER_SIZE,
    pack_trailer,
    seal,
)
from embeddedpulsar.format.headers import FORMAT_VERSION
from embeddedpulsar.format.packed_map import pack_map
from embeddedpulsar.records import NamedTuple

COMPACTED_HEADER: Final = struct.Struct(
    "<"
    "4s"  # 0  magic
    "H"  # 4  version
    "H"  # 6  reserved, 0
    "I"  # 8  blocks: how many there are
    "I"  # 12 crc: crc32 of bytes [16,64), seeded with the crc32 of bytes [0,12)
    "Q"  # 16 incarnation: of the topic
    "Q"  # 24 horizon_ledger: the last entry that was looked at
    "q"  # 32 horizon_entry
    "Q"  # 40 messages: rows of all blocks; an encrypted entry counts as one
    "Q"  # 48 index_offset: where the block index begins, behind the last block
    "I"  # 56 index_crc: crc32 of the block index
    "I"  # 60 reserved, 0
)
COMPACTED_HEADER_SIZE: Final = 4 + 2 + 2 + 4 + 4 + 8 + 8 + 8 + 8 + 8 + 4 + 4
MAGIC: Final = b"EPCL"
BLOCK: Final = struct.Struct(
    "<"
    "I"  # 0  length: whole block, a multiple of 8
    "I"  # 4  crc: crc32 of bytes [8,length)
    "I"  # 8  rows
    "I"  # 12 fields_length: bytes of the packed map, without its padding
    "I"  # 16 frame_length: bytes of the frame with the columns
    "I"  # 20 reserved, 0
)
BLOCK_INDEX: Final = struct.Struct(
    "<"
    "Q"  # 0  first_ledger: of the first row
    "Q"  # 8  first_entry
    "Q"  # 16 publish_time: of the first row, ms since the epoch
    "Q"  # 24 offset: of the block
)
MOST_FIELDS: Final = 64 << 20
_FRONT: Final = struct.Struct("<4sHHI")


class CompactedHeader(NamedTuple):
    """The header of a compacted ledger, checked."""

    blocks: int
    incarnation: int
    horizon: tuple[int, int]
    messages: int
    index_offset: int
    index_crc: int


class BlockPlace(NamedTuple):
    """Where a block lies, and the message it begins with."""

    first: tuple[int, int]
    publish_time: int
    offset: int


class RowIds(NamedTuple):
    """What the rows of a block have besides their columns, each as long as there are rows.

    Attributes:
        ledgers, entries: ids of the entries.
        times: publish times, in ms.
        indexes: batch indexes; 0 for a message outside a batch.
        sizes: messages of the batch; 0 for a message outside a batch.
        heads: which of the heads of the block holds.
    """

    ledgers: Sequence[int]
    entries: Sequence[int]
    times: Sequence[int]
    indexes: Sequence[int]
    sizes: Sequence[int]
    heads: Sequence[int]


Head = tuple[str, int, int]
"""Producer name, epoch of the producer, schema version."""


def pack_compacted_header(header: CompactedHeader) -> bytes:
    """The first 64 bytes of a compacted ledger.

    Example:
        >>> header = CompactedHeader(1, 2, (3, 4), 5, 64, 7)
        >>> parse_compacted_header(pack_compacted_header(header)) == header
        True
    """
    front = _FRONT.pack(MAGIC, FORMAT_VERSION, 0, header.blocks)
    rest = struct.pack(
        "<QQqQQII",
        header.incarnation,
        *header.horizon,
        header.messages,
        header.index_offset,
        header.index_crc,
        0,
    )
    return front + struct.pack("<I", crc32(rest, crc32(front))) + rest


def parse_compacted_header(data: bytes | memoryview) -> CompactedHeader:
    """Read and check the header.

    Raises:
        CorruptionError: it is damaged, cut short, or of another kind of file.
        UnsupportedFormatVersion: a newer release wrote it.
    """
    if len(data) < COMPACTED_HEADER_SIZE:
        raise CorruptionError(reason=f"a compacted ledger of {len(data)} bytes", offset=0)
    fields = COMPACTED_HEADER.unpack_from(data)
    magic, version, _, blocks, crc, incarnation, ledger, entry, messages, offset, index_crc, _ = fields
    if magic != MAGIC or crc32(data[16:COMPACTED_HEADER_SIZE], crc32(data[:12])) != crc:
        raise CorruptionError(reason="the header of the compacted ledger is damaged", offset=0)
    if version != FORMAT_VERSION:
        raise UnsupportedFormatVersion(
            reason=f"a compacted ledger of format version {version}; this release reads {FORMAT_VERSION}",
            remedy="upgrade embeddedpulsar",
        )
    return CompactedHeader(blocks, incarnation, (ledger, entry), messages, offset, index_crc)


def pack_block_index(places: Sequence[BlockPlace]) -> bytes:
    """The block index, as it lies behind the last block."""
    return b"".join(BLOCK_INDEX.pack(*one.first, one.publish_time, one.offset) for one in places)


def parse_block_index(data: bytes | memoryview, header: CompactedHeader) -> list[BlockPlace]:
    """The places of all blocks of a whole file.

    Raises:
        CorruptionError: the index is damaged or cut short.
    """
    start = header.index_offset
    packed = bytes(data[start : start + BLOCK_INDEX.size * header.blocks])
    if len(packed) != BLOCK_INDEX.size * header.blocks or crc32(packed) != header.index_crc:
        raise CorruptionError(reason="the block index of the compacted ledger is damaged", offset=start)
    return [
        BlockPlace((ledger, entry), time, offset)
        for ledger, entry, time, offset in BLOCK_INDEX.iter_unpack(packed)
    ]


def pack_block(
    ids: RowIds, heads: Sequence[Head], chunks: Mapping[int, tuple[int, int]], frame: bytes
) -> bytes:
    """A block.

    Args:
        ids: of the rows.
        heads: those that rows name.
        chunks: the first entries of rows that were chunked messages, by row.
        frame: the columns of the rows, or an encrypted entry, as a frame.
    """
    rows = len(ids.ledgers)
    fields = pack_map(
        {"heads": [list(one) for one in heads]}
        | ({"chunks": [[row, *first] for row, first in chunks.items()]} if chunks else {})
    )
    narrow = struct.pack(f"<{3 * rows}i", *ids.indexes, *ids.sizes, *ids.heads)
    body = b"".join(
        (
            struct.pack(f"<{3 * rows}q", *ids.ledgers, *ids.entries, *ids.times),
            narrow,
            PADDING[-len(narrow) & 7],
            fields,
            PADDING[-len(fields) & 7],
            frame,
        )
    )
    front = struct.pack("<IIII", rows, len(fields), len(frame), 0)
    crc = crc32(body, crc32(front))
    return struct.pack("<II", BLOCK.size + len(body), crc) + front + body


def frame_of(
    parts: Sequence[bytes | memoryview], fields: tuple[int, int, int, int], entry_id: int, publish_ms: int
) -> bytes:
    """A frame outside a chain.

    Args:
        parts: metadata and columns, or a ciphertext; together a multiple of 8 bytes.
        fields: codec, flags, number of messages and metadata length.
        entry_id, publish_ms: of an entry that is kept as it is.
    """
    codec, flags, count, metadata_length = fields
    crc, length = 0, HEADER_SIZE + TRAILER_SIZE
    for part in parts:
        crc, length = crc32(part, crc), length + len(part)
    header, _ = seal(length, 0, crc, KIND_ENTRY, codec, flags, entry_id, publish_ms, count, metadata_length)
    return b"".join((header, *parts, pack_trailer(length)))
