"""The messages of a block of a compacted ledger, with what they had in the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.compacted import BLOCK, MOST_FIELDS, Head, RowIds
from embeddedpulsar.format.entry_decoder import decode
from embeddedpulsar.format.entry_view import TWO, EntryView
from embeddedpulsar.format.frame import (
    CODEC_ENCRYPTED,
    FLAG_BATCHED,
    FLAG_KEYS,
    HEADER_SIZE,
    TRAILER_SIZE,
    read_header,
    verify_body,
)
from embeddedpulsar.format.key_hash import sticky_key_hash
from embeddedpulsar.format.packed_map import unpack_map


class Block:
    """A block, decoded. Owns its bytes. Callers: any thread.

    Attributes:
        rows: how many there are.
        ids: of the rows.
        content: the columns of the rows as an entry, or an encrypted entry.
        data: the block as stored.
    """

    __slots__ = ("chunks", "content", "data", "heads", "ids", "rows")

    def __init__(self, data: bytes) -> None:
        length, crc, rows, fields_length, frame_length, _ = BLOCK.unpack_from(data)
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
        header = read_header(data, end, length)
        verify_body(data, end, header)
        body = data[end + HEADER_SIZE : end + header.length - TRAILER_SIZE]
        self.content: EntryView = decode(header, body, self.ids.ledgers[0])

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
        self.flags = FLAG_BATCHED if size else 0
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
        if not size:
            self.count = 1
            self.offsets = offsets[start : start + 2]
            self._rows: Any = start
            return
        self.count = size
        indexes = ids.indexes[start:end]
        self._rows = dict(zip(indexes, range(start, end), strict=True))
        if len(indexes) == size:
            self.offsets = offsets[start : end + 1]
            return
        found, row = [], start
        for index in range(size):
            found.append(offsets[row])
            row += row < end and ids.indexes[row] == index
        found.append(offsets[row])
        self.offsets = found
        kept = sum(1 << index for index in indexes)
        self.skip = self.removed = kept ^ ((1 << size) - 1)

    def _spread(self, column: Sequence[Any] | None, missing: Any) -> list[Any] | None:
        """The values of a column of the block for the messages of the entry."""
        if column is None:
            return None
        rows = self._rows
        if rows.__class__ is int:
            return [column[rows]]
        return [column[rows[i]] if i in rows else missing for i in range(self.count)]

    def _row(self, i: int) -> int | None:
        rows = self._rows
        if rows.__class__ is int:
            return int(rows) + i
        found: int | None = rows.get(i)
        return found

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
        for keys in (self.ordering_keys(), self.keys()):
            if keys is not None and keys[0] is not None:
                return sticky_key_hash(keys[0])
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


def only_key(view: EntryView) -> str | None:
    """The partition key of an entry of one message, without decoding its other columns. 0.5 us."""
    if not view.flags & FLAG_KEYS:
        return None
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
