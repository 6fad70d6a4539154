"""Compacted ledgers on disk: written whole, then read by the processes that map them."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final
from zlib import crc32

from embeddedpulsar._engine.format.compacted import (
    BLOCK,
    COMPACTED_HEADER_SIZE,
    Block,
    BlockPlace,
    CompactedHeader,
    Head,
    RowIds,
    frame_of,
    pack_block,
    pack_block_index,
    pack_compacted_header,
    parse_block_index,
    parse_compacted_header,
)
from embeddedpulsar._engine.format.entry import EntryContent, EntryView, ProducerPrefix, encode
from embeddedpulsar._engine.format.entry_decoder import SealedView
from embeddedpulsar._engine.format.frame import FLAG_BATCHED, MAX_FRAME_SIZE
from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar.damage import COMPACT_AGAIN
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.managed_ledger.position import BEFORE_FIRST, Position

failpoints.declare("compaction:block_written", "compaction:written", "compaction:synced")

MOST_ROWS: Final = 1000
"""Of a block."""
_MOST_BYTES: Final = 256 << 10
_LARGEST: Final = MAX_FRAME_SIZE - (64 << 20)
"""Bytes of a value: the frame also holds the other fields of the message."""
_NO_PREFIX: Final = ProducerPrefix("")


class CompactedLedger:
    """A complete compacted ledger, mapped.

    Invariants: the file never changes; it stays readable when its name is removed. Blocks are copied out of
    the map and verified. Callers: any thread.

    Args:
        path: of the file.
        incarnation: which life of the topic it must be of; None for any.

    Attributes:
        path: of the file.
        horizon: the last entry that was looked at; the log follows behind it.
        messages: how many it holds.
        size: bytes of the file.

    Raises:
        FileNotFoundError: there is no such file.
        CorruptionError: header or index are damaged, or it is another topic's.
    """

    def __init__(self, path: str, incarnation: int | None) -> None:
        self.path: Final = path
        try:
            self._file: Final = MappedFile.open(path, writable=False)
            self._file.rest()
            self._header: Final = parse_compacted_header(bytes(self._file.view[:COMPACTED_HEADER_SIZE]))
            self.places: Final = parse_block_index(self._file.view, self._header)
            if incarnation not in (None, self._header.incarnation):
                raise CorruptionError(reason=f"it is of life {self._header.incarnation} of its topic")
        except CorruptionError as e:
            raise CorruptionError(path=path, offset=e.offset, reason=e.reason, remedy=COMPACT_AGAIN) from None
        self._firsts: Final = [one.first for one in self.places]
        self.horizon: Final = Position(*self._header.horizon)
        self.messages: Final = self._header.messages
        self.size: Final = self._file.size

    def block(self, number: int) -> Block:
        """Read a block.

        Raises:
            CorruptionError: it is damaged.
        """
        offset, view = self.places[number].offset, self._file.view
        try:
            (length,) = memoryview(view[offset : offset + 4]).cast("I")
            if not BLOCK.size <= length <= self._header.index_offset - offset:
                raise CorruptionError(reason=f"a block of {length} bytes")
            found = Block(bytes(view[offset : offset + length]))
        except CorruptionError as e:
            e.offset = offset
            raise e.at(self.path) from None
        self._file.not_needed(0, offset)
        return found

    def number_at(self, position: Position) -> int:
        """The number of the block that may hold the first row at or behind ``position``."""
        return max(0, bisect_right(self._firsts, position) - 1)

    def find_by_publish_time(self, publish_ms: int) -> Position | None:
        """The first entry published at ``publish_ms`` or later; None if there is none."""
        times = [one.publish_time for one in self.places]
        number = max(0, bisect_right(times, publish_ms - 1) - 1)
        for at in range(number, len(self.places)):
            ids = self.block(at).ids
            for row, time in enumerate(ids.times):
                if time >= publish_ms:
                    return Position(ids.ledgers[row], ids.entries[row])
        return None

    def close(self) -> None:
        self._file.close()


class CompactedWriter:
    """Writes a compacted ledger: rows in the order of their ids, then `finish`.

    Invariants: the file has no valid header before `finish`, and is on the disk when that returns. The
    memory is that of one block. Callers: one thread.
    """

    def __init__(self, path: str, incarnation: int) -> None:
        self.messages = 0
        self._path: Final = path
        self._incarnation: Final = incarnation
        self._fd: Final = disk.DISK.create_exclusive(path)
        self._end = COMPACTED_HEADER_SIZE
        self._places: list[BlockPlace] = []
        self._begin()

    def _begin(self) -> None:
        self._values: list[bytes] = []
        self._keys: list[str | None] = []
        self._ordering_keys: list[str | None] = []
        self._properties: list[dict[str, str] | None] = []
        self._event_times: list[int] = []
        self._deliver_at: list[int] = []
        self._nulls: list[bool] = []
        self._sequence_ids: list[int] = []
        self._ids = RowIds([], [], [], [], [], [])
        self._heads: dict[Head, int] = {}
        self._chunks: dict[int, tuple[int, int]] = {}
        self._codec = self._bytes = 0
        self._last = (0, 0)

    def add(self, view: EntryView, index: int, key: str | None) -> None:
        """Add one message of an entry. About 2 us.

        Raises:
            CorruptionError: the message is too large for a compacted ledger.
        """
        offsets = view.offsets
        value = view.payload[offsets[index] : offsets[index + 1]]
        if len(value) > _LARGEST:
            raise CorruptionError(
                reason=f"the message {view.ledger_id}:{view.entry_id} has {len(value)} bytes; a topic with "
                f"messages of more than {_LARGEST} cannot be compacted"
            )
        is_full = len(self._values) >= MOST_ROWS or self._bytes + len(value) > _MOST_BYTES
        if is_full and self._last != (view.ledger_id, view.entry_id):  # an entry is in one block
            self.flush()
        self._last = (view.ledger_id, view.entry_id)
        row = len(self._values)
        self._values.append(value)
        self._bytes += len(value)
        self._keys.append(key)
        ordering_keys, event_times, deliver_at = view.ordering_keys(), view.event_times(), view.deliver_at()
        self._ordering_keys.append(None if ordering_keys is None else ordering_keys[index])
        self._properties.append(view.properties(index))
        self._event_times.append(0 if event_times is None else event_times[index])
        self._deliver_at.append(0 if deliver_at is None else deliver_at[index])
        self._nulls.append(view.null(index))
        self._sequence_ids.append(view.sequence_ids()[index])
        head = (view.producer_name, view.producer_epoch, view.schema_version)
        number = self._heads.setdefault(head, len(self._heads))
        is_batched = view.flags & FLAG_BATCHED
        fields = (
            view.ledger_id, view.entry_id, view.publish_time, index, view.count if is_batched else 0, number,
        )  # fmt: skip
        for column, field in zip(self._ids, fields, strict=True):
            column.append(field)  # type: ignore[attr-defined]  # lists, while it is written
        first_chunk = getattr(view, "first_chunk", None)
        if first_chunk is not None:
            self._chunks[row] = first_chunk
        self._codec = view.codec or self._codec

    def add_sealed(self, view: EntryView) -> None:
        """Add an encrypted entry as it is."""
        assert isinstance(view, SealedView)
        self.flush()
        size = len(view.clear) + len(view.payload)
        parts = (view.clear, view.payload, bytes(-size & 7))
        fields = (view.codec, view.flags, view.count, len(view._metadata))
        ids = RowIds([view.ledger_id], [view.entry_id], [view.publish_time], [0], [view.count], [0])
        frame = frame_of(parts, fields, view.entry_id, view.publish_time)
        self.copy(ids, pack_block(ids, [("", 0, -1)], {}, frame))

    def copy(self, ids: RowIds, packed: bytes) -> None:
        """Add a block that is complete."""
        self.flush()
        first = (ids.ledgers[0], ids.entries[0])
        self._places.append(BlockPlace(first, ids.times[0], self._end))
        disk.DISK.pwrite_all(self._fd, [packed], self._end)
        self._end += len(packed)
        self.messages += len(ids.ledgers)
        failpoints.hit("compaction:block_written")

    def flush(self) -> None:
        """Write the rows that were added."""
        if not self._values:
            return
        content = EntryContent(
            self._values,
            keys=[key or None for key in self._keys],
            ordering_keys=self._ordering_keys,
            properties=self._properties,
            event_times=self._event_times,
            deliver_at=self._deliver_at,
            null_values=self._nulls,
            sequence_ids=self._sequence_ids,
        )
        entry = encode(content, _NO_PREFIX, self._codec)
        fields = (entry.codec, entry.flags, entry.count, entry.metadata_length)
        ids, heads, chunks = self._ids, list(self._heads), self._chunks
        self._begin()
        self.copy(ids, pack_block(ids, heads, chunks, frame_of(entry.parts, fields, 0, 0)))

    def finish(self, horizon: Position) -> None:
        """Write index and header, and flush everything to the disk."""
        self.flush()
        index = pack_block_index(self._places)
        header = CompactedHeader(
            len(self._places), self._incarnation, horizon, self.messages, self._end, crc32(index)
        )
        disk.DISK.pwrite_all(self._fd, [index], self._end)
        disk.DISK.pwrite_all(self._fd, [pack_compacted_header(header)], 0)
        failpoints.hit("compaction:written")
        disk.DISK.fsync(self._fd, self._path)
        failpoints.hit("compaction:synced")

    def close(self) -> None:
        os.close(self._fd)


def rows_of(ledger: CompactedLedger | None) -> Iterator[Block]:
    """All blocks, in order; none without a ledger.

    Raises:
        CorruptionError: one is damaged.
    """
    if ledger is not None:
        for number in range(len(ledger.places)):
            yield ledger.block(number)


def horizon_of(ledger: CompactedLedger | None) -> Position:
    """Up to where a topic is compacted."""
    return BEFORE_FIRST if ledger is None else ledger.horizon
