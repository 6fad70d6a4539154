"""Compacted ledgers: the newest message of each key, in blocks of rows (docs/format/compacted.md).

A row is a message with the id, the time and the producer that it has in the log. The columns of a block are
those of an entry; what an entry says once for all its messages, the block says for each row.

The messages of a block of a compacted ledger, with what they had in the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from zlib import crc32

from embeddedpulsar._engine.format.columns import NO_FIELDS, PADDING, EntryFields, read_fields
from embeddedpulsar._engine.format.document import pack_map, unpack_map
from embeddedpulsar._engine.format.entry import sticky_key_hash
from embeddedpulsar._engine.format.entry_decoder import TWO, EntryView, decode
from embeddedpulsar._engine.format.frame import (
    CODEC_ENCRYPTED,
    FLAG_BATCHED,
    FLAG_KEYS,
    FLAG_REVISED,
    FORMAT_VERSION,
    HEADER_SIZE,
    KIND_ENTRY,
    TRAILER_SIZE,
    pack_trailer,
    read_header,
    seal,
    verify_body,
)
from embeddedpulsar.exceptions import CorruptionError, UnsupportedFormatVersion
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Final

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
    return b"".join(BLOCK_INDEX.pack(*place.first, place.publish_time, place.offset) for place in places)


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
    ids: RowIds,
    heads: Sequence[Head],
    chunks: Mapping[int, tuple[int, int]],
    frame: bytes,
    given: Mapping[int, EntryFields] = MappingProxyType({}),
) -> bytes:
    """A block.

    Args:
        ids: of the rows.
        heads: those that rows name.
        chunks: the first entries of rows that were chunked messages, by row.
        frame: the columns of the rows, or an encrypted entry, as a frame.
        given: the fields of the entries of rows, by row.
    """
    # `Block` reads this back: wide columns, narrow columns, packed map, frame, each padded to 8
    # bytes. What is rare (chunks) stands in the map, which costs nothing where it is left out.
    rows = len(ids.ledgers)
    fields = pack_map(
        {"heads": [list(head) for head in heads]}
        | ({"chunks": [[row, *first] for row, first in chunks.items()]} if chunks else {})
        | ({"fields": [[row, fields.packed()] for row, fields in given.items()]} if given else {})
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
    # The checksum covers all behind itself. The frame has checksums of its own, which a reader of the
    # frame alone verifies with `read_header` and `verify_body`.
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


class Block:
    """A block, decoded. Owns its bytes. Callers: any thread.

    Attributes:
        rows: how many there are.
        ids: of the rows.
        content: the columns of the rows as an entry, or an encrypted entry.
        given: the fields of the entries of rows, by row, as they are stored.
        revised: `FLAG_REVISED` if any row has what that stands for; else 0.
        data: the block as stored.
    """

    __slots__ = ("chunks", "content", "data", "given", "heads", "ids", "revised", "rows")

    def __init__(self, data: bytes) -> None:
        length, crc, rows, fields_length, frame_length, _ = BLOCK.unpack_from(data)
        # Where each part begins follows from the row count alone. The checksum is verified before
        # anything is unpacked, so what follows may trust the numbers.
        wide, narrow = 8 * rows, 4 * rows
        start = BLOCK.size + 3 * wide + 3 * narrow
        start += -start & 7
        end = start + fields_length + (-fields_length & 7)
        if length != len(data) or not rows or end + frame_length != length or crc32(data[8:]) != crc:
            raise CorruptionError(reason=f"a block of {len(data)} bytes is damaged")
        self.data = data
        self.rows = rows
        numbers = memoryview(data)
        at = BLOCK.size
        q = numbers[at : at + 3 * wide].cast("q").tolist()
        at += 3 * wide
        i = numbers[at : at + 3 * narrow].cast("i").tolist()
        n, m = rows, 2 * rows
        self.ids = RowIds(q[:n], q[n:m], q[m:], i[:n], i[n:m], i[m:])
        fields = unpack_map(data[start : start + fields_length], MOST_FIELDS)
        self.heads: list[Head] = [(str(name), int(e), int(v)) for name, e, v in fields["heads"]]
        self.chunks: dict[int, tuple[int, int]] = {row: (a, b) for row, a, b in fields.get("chunks", ())}
        # The columns are a whole frame, so that `decode` serves rows as it serves entries.
        header = read_header(data, end, length)
        verify_body(data, end, header)
        body = data[end + HEADER_SIZE : end + header.length - TRAILER_SIZE]
        self.content: EntryView = decode(header, body, self.ids.ledgers[0])
        self.given: dict[int, Any] = dict(fields.get("fields", ()))
        self.revised = FLAG_REVISED if self.given else self.content.flags & FLAG_REVISED

    @property
    def is_sealed(self) -> bool:
        """Whether it holds one encrypted entry."""
        return self.content.codec == CODEC_ENCRYPTED

    def entries(self, row: int) -> Iterator[tuple[EntryView, int]]:
        """The entries from a row on, each with the row behind it."""
        if self.is_sealed:
            yield self.content, self.rows
            return
        ledgers, entries, sizes = self.ids.ledgers, self.ids.entries, self.ids.sizes
        while row < self.rows:
            end = row + 1
            if sizes[row]:
                ledger_id, entry_id = ledgers[row], entries[row]
                while end < self.rows and entries[end] == entry_id and ledgers[end] == ledger_id:
                    end += 1
            yield CompactedEntry(self, row, end), end
            row = end


class CompactedEntry(EntryView):
    """The messages that compaction left of one entry, with the ids they have in the log.

    `skip` has the batch indexes that were removed; `removed` keeps them when a consumer adds what is
    acknowledged.
    """

    __slots__ = ("_block", "_rows", "first_chunk", "removed")

    def __init__(self, block: Block, start: int, end: int) -> None:
        ids, content = block.ids, block.content
        size = ids.sizes[start]
        self.ledger_id = ids.ledgers[start]
        self.entry_id = ids.entries[start]
        self.publish_time = ids.times[start]
        self.batched = size > 0
        self.flags = FLAG_BATCHED | block.revised if size else block.revised
        self.codec = 0
        self.payload = content.payload
        self.redelivery_count = 0
        self.acked = None
        self.number = 0
        self.skip = None
        self.removed = 0
        self.first_chunk = block.chunks.get(start) if block.chunks else None
        self._metadata = content._metadata
        self._lazy = None
        self._block = block
        offsets = content.offsets
        # A message that was alone in its entry: one row.
        if not size:
            self.count = 1
            self.offsets = offsets[start : start + 2]
            self._rows: Any = start
            return
        self.count = size
        indexes = ids.indexes[start:end]
        self._rows = dict(zip(indexes, range(start, end), strict=True))
        # A batch of which every message survived: its offsets are those of the block.
        if len(indexes) == size:
            self.offsets = offsets[start : end + 1]
            return
        # A batch with gaps. A removed message has no row and no bytes: it begins and ends where the
        # next survivor begins, so its value is empty, and the batch indexes stay those that the log
        # gave.
        batch_offsets, row = [], start
        for index in range(size):
            batch_offsets.append(offsets[row])
            row += row < end and ids.indexes[row] == index
        batch_offsets.append(offsets[row])
        self.offsets = batch_offsets
        kept = sum(1 << index for index in indexes)
        self.skip = self.removed = kept ^ ((1 << size) - 1)

    def _spread(self, column: Sequence[Any] | None, missing: Any) -> list[Any] | None:
        """The values of a column of the block for the messages of the entry."""
        if column is None:
            return None
        rows = self._rows
        # `_rows` is the row of a single message, or rows by batch index. An int costs no dictionary
        # per message.
        if rows.__class__ is int:
            return [column[rows]]
        return [column[rows[i]] if i in rows else missing for i in range(self.count)]

    def _row(self, i: int) -> int | None:
        rows = self._rows
        if rows.__class__ is int:
            return int(rows) + i
        row: int | None = rows.get(i)
        return row

    @property
    def _head(self) -> Head:
        rows = self._rows
        row = rows if rows.__class__ is int else next(iter(rows.values()))
        return self._block.heads[self._block.ids.heads[row]]

    @property
    def first_sequence_id(self) -> int:
        rows, ids = self._rows, self._block.content.sequence_ids()
        index, row = (0, rows) if rows.__class__ is int else next(iter(rows.items()))
        return int(ids[row] - index)

    @property
    def key_hash(self) -> int:
        """31-bit hash of the sticky key of message 0; 0 if it has none."""
        for key in (self.ordering_key(0), self.key(0)):
            if key is not None:
                return sticky_key_hash(key)
        return 0

    @property
    def schema_version(self) -> int:
        """Version of the schema of all messages; -1 for none."""
        return self._head[2]

    @property
    def producer_epoch(self) -> int:
        return self._head[1]

    @property
    def producer_name(self) -> str:
        return self._head[0]

    def keys(self) -> list[str | None] | None:
        """Partition keys, None for a message without; None if no message has one."""
        return self._spread(self._block.content.keys(), None)

    def ordering_keys(self) -> list[str | None] | None:
        """Ordering keys, None for a message without; None if no message has one."""
        return self._spread(self._block.content.ordering_keys(), None)

    def properties(self, i: int) -> dict[str, str]:
        """Properties of message `i`; empty if it has none."""
        row = self._row(i)
        return {} if row is None else self._block.content.properties(row)

    def chunk(self, i: int) -> dict[str, Any]:
        """Empty: a chunked message is stored as a whole."""
        return {}

    def event_times(self) -> list[int] | None:
        """Event times in ms, 0 for none; None if no message has one."""
        return self._spread(self._block.content.event_times(), 0)

    def deliver_at(self) -> list[int] | None:
        """Delivery times in ms, 0 for at once; None if no message has one."""
        return self._spread(self._block.content.deliver_at(), 0)

    def sequence_ids(self) -> Sequence[int]:
        """Sequence ids of all messages; -1 for those that were removed."""
        return self._spread(self._block.content.sequence_ids(), -1) or ()

    def null(self, i: int) -> bool:
        """Whether the value of message `i` is null."""
        row = self._row(i)
        return row is not None and self._block.content.null(row)

    def transaction(self) -> tuple[int, int] | None:
        """None: what is compacted is committed."""
        return None

    def is_key_bytes(self, i: int) -> bool:
        """Whether the partition key of message `i` was given as bytes."""
        row = self._row(i)
        return row is not None and self._block.content.is_key_bytes(row)

    def is_key_null(self, i: int) -> bool:
        """Whether the partition key of message `i` is null."""
        row = self._row(i)
        return row is not None and self._block.content.is_key_null(row)

    def is_ordering_key_bytes(self, i: int) -> bool:
        """Whether the ordering key of message `i` is no UTF-8."""
        row = self._row(i)
        return row is not None and self._block.content.is_ordering_key_bytes(row)

    def entry_fields(self) -> EntryFields:
        """What the entry as a whole has beside its messages."""
        rows = self._rows
        given = self._block.given.get(rows if rows.__class__ is int else next(iter(rows.values())))
        return read_fields(given) if isinstance(given, dict) else NO_FIELDS

    def highest_sequence_id(self) -> int:
        """What deduplication compares."""
        given = self.entry_fields().deduplication_id
        return max(self.sequence_ids()) if given is None else given


def only_key(view: EntryView) -> str | None:
    """The partition key of an entry of one message, without decoding its other columns. 0.5 us."""
    if not view.flags & FLAG_KEYS:
        return None
    # A chunked or compressed entry never comes here: `decode_singles` leaves these to `decode`.
    if view._lazy.__class__ is int:
        # As `decode_singles` leaves it: the body, in which the keys follow the value.
        at = view.offsets[1]
        at += -at & 7
        body = view.payload
        zero, length = TWO.unpack_from(body, at)
        at += 8
        if not zero and 0 <= length <= len(body) - at:
            return body[at : at + length].decode(errors="replace")
    keys = view.keys()
    return None if keys is None else keys[0]
