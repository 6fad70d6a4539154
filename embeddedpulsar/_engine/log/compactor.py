"""Compacting a topic: one pass finds the newest message of each key, a second one copies these."""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator, Sequence
from hashlib import blake2b

from embeddedpulsar._engine.format.compacted import Block, only_key
from embeddedpulsar._engine.format.entry import EntryView
from embeddedpulsar._engine.format.frame import CODEC_ENCRYPTED, FLAG_CHUNK, FLAG_KEY_ABSENT
from embeddedpulsar._engine.log.compacted_ledger import (
    MOST_ROWS,
    CompactedLedger,
    CompactedWriter,
    horizon_of,
    rows_of,
)
from embeddedpulsar._engine.log.position import Position
from embeddedpulsar._engine.platform import disk
from embeddedpulsar.exceptions import CorruptionError, StorageError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.log.log import Cursor, Log

_INDEX_BITS: Final = 24
_INDEXES: Final = (1 << _INDEX_BITS) - 1
_LONG_KEY: Final = 40
"""Characters of a key that is kept as it is; a digest stands for a longer one."""
_DIGEST_BYTES: Final = 16
_ENTRIES: Final = 1000
_MESSAGES: Final = 100_000
_BYTES: Final = 1 << 20
_FAR: Final = 2000
"""Entries without a survivor over which the second pass jumps rather than reads."""


class Compacted(NamedTuple):
    """What a compaction made.

    Attributes:
        horizon: the last entry it looked at.
        messages: how many it kept.
        removed: how many it left out.
    """

    horizon: Position
    messages: int
    removed: int


class Progress(NamedTuple):
    """How far a compaction is: entries and rows read so far in both passes, of about so many."""

    done: int
    total: int


class Compaction:
    """One compaction of a topic, up to the entry that is the last when it begins.

    Role: reads the compacted ledger that holds and the log behind it, and writes the next compacted ledger.
    `steps` does both passes piece by piece. Takes no lock; the caller holds that for compactions, and keeps
    the log from being trimmed behind the old horizon. Memory: a dictionary entry for each key, and 8 bytes
    for each survivor; nothing per message. A key of more than 40 characters counts by a digest of 16 bytes.
    Callers: one thread.

    Args:
        log: of the topic.
        before: the compacted ledger that holds; None for the first compaction.
        path: of the new one; must not exist.
        incarnation: which life of the topic this is.
        keeps_keyless: whether messages without a key are kept.
    """

    def __init__(
        self, log: Log, before: CompactedLedger | None, path: str, incarnation: int, *, keeps_keyless: bool
    ) -> None:
        self._log: Final = log
        self._before: Final = before
        self._path: Final = path
        self._incarnation: Final = incarnation
        self._keeps_keyless: Final = keeps_keyless
        self._chunks: Final = log.chunks()
        self._start: Final = horizon_of(before)
        self._latest: dict[str | bytes, int] = {}
        self._bases: dict[int, int] = {}
        self._ledger_id = -1
        self._entry_id = self._base = 0
        self._seen = self._done = 0
        self._has_sealed = False
        self._survivors: array[int] = array("Q")
        self._at = self._found = 0
        # Fixed when it begins: what is appended during the passes stays in the log behind the
        # horizon, and so does what waits for a transaction. The cursor leaves out what was aborted.
        last = log.max_read_position() or self._start
        self._horizon: Final = max(last, self._start)
        new = 0
        if self._horizon > self._start:
            new = log.survey().entries_after(self._start)
        # Both passes go through everything once. Entries without a survivor may be jumped over, so it
        # is an upper bound.
        self._total: Final = 2 * ((0 if before is None else before.messages) + new)
        self.result: Compacted | None = None
        """What was made, once `steps` has ended."""

    @property
    def is_needed(self) -> bool:
        """Whether anything was appended since the last compaction."""
        return self._horizon > self._start

    def steps(self) -> Generator[Progress, None, None]:
        """Compact. Each step takes some milliseconds; the new file is complete, and flushed, at the end.

        Raises:
            StorageError: something cannot be read or written, or a survivor was trimmed meanwhile. No file is
                left.
            ImportError: a codec is not installed here.
        """
        # First pass: for each key the number of its newest message. Then only the numbers are kept,
        # sorted, so the second pass compares each entry with the next number and needs no dictionary.
        yield from self._find()
        self._latest.pop("", None)  # an empty key is none
        self._survivors = array("Q", sorted(self._latest.values()))
        self._latest = {}
        writer = CompactedWriter(self._path, self._incarnation)
        is_complete = False
        try:
            # A survivor that was not met was trimmed between the passes. A file that lacks it must
            # not hold.
            yield from self._copy(writer)
            if self._found != len(self._survivors):
                lost = len(self._survivors) - self._found
                raise CorruptionError(
                    path=self._path,
                    reason=f"{lost} messages were removed from the log while it was compacted",
                    remedy="compact the topic again",
                )
            writer.finish(self._horizon)
            self.result = Compacted(self._horizon, writer.messages, max(0, self._seen - writer.messages))
            is_complete = True
        # Also for a caller that gives the generator up half way. The file has no header then, and no
        # document names it.
        finally:
            writer.close()
            if not is_complete:
                with contextlib.suppress(FileNotFoundError):
                    disk.DISK.unlink(self._path)

    def _progress(self, more: int) -> Progress:
        self._done += more
        return Progress(self._done, max(self._done, self._total))

    # -- numbers -------------------------------------------------------------------------------------------

    def _number(self, ledger_id: int, entry_id: int) -> int:
        """A number for an entry that rises with its position, and leaves room for batch indexes. Ledgers are
        numbered on from each other when the first pass meets them, so that few bits do."""
        # Runs of one ledger ask no dictionary. What the first pass numbered stays in `_bases`, so the
        # second gives the same numbers.
        if ledger_id != self._ledger_id:
            base = self._bases.get(ledger_id)
            if base is None:
                base = self._bases[ledger_id] = self._base + self._entry_id + 1
            self._ledger_id, self._base = ledger_id, base
        self._entry_id = entry_id
        return (self._base + entry_id) << _INDEX_BITS

    def _place(self, number: int) -> Position:
        """The entry of a number of the first pass."""
        ledgers, bases = list(self._bases), list(self._bases.values())
        at = bisect_right(bases, number >> _INDEX_BITS) - 1
        return Position(ledgers[at], (number >> _INDEX_BITS) - bases[at])

    # -- the first pass ------------------------------------------------------------------------------------

    def _find(self) -> Iterator[Progress]:
        for block in rows_of(self._before):
            self._find_in_block(block)
            yield self._progress(block.rows)
        for views in self._read(self._log.cursor(self._start, inclusive=False)):
            for view in views:
                self._find_in_entry(view)
            yield self._progress(len(views))

    def _read(self, cursor: Cursor) -> Iterator[list[EntryView]]:
        """The entries of the log up to the horizon."""
        horizon = self._horizon
        # Entries behind the horizon that a read brought along are dropped, not kept for the next
        # compaction.
        while cursor.position <= horizon and (views := cursor.read(_ENTRIES, _MESSAGES, _BYTES)):
            if (views[-1].ledger_id, views[-1].entry_id) > horizon:
                views = [view for view in views if (view.ledger_id, view.entry_id) <= horizon]
            if views:
                yield views

    def _find_in_block(self, block: Block) -> None:
        # A later row of a key replaces an earlier one. Rows of keys with a null are not in the file
        # any more, so each has a value.
        self._seen += block.rows
        self._has_sealed |= block.is_sealed
        keys, latest, ids = None if block.is_sealed else block.content.keys(), self._latest, block.ids
        for row in range(block.rows):
            number = self._number(ids.ledgers[row], ids.entries[row])
            key = None if keys is None else keys[row]
            if key:
                latest[key if len(key) <= _LONG_KEY else _digest(key)] = number | ids.indexes[row]

    def _find_in_entry(self, view: EntryView) -> None:
        count = view.count
        number = self._number(view.ledger_id, view.entry_id)
        # Keys of an encrypted entry cannot be read, so it is kept whole. Its parts in chunks could
        # not be joined without a key.
        if view.codec == CODEC_ENCRYPTED:
            self._seen += 1
            if view.flags & FLAG_CHUNK:
                raise StorageError(
                    reason=f"the message {view.ledger_id}:{view.entry_id} is chunked and encrypted",
                    remedy="a topic with such messages cannot be compacted",
                )
            self._has_sealed = True
            return
        # A part that is not the last, or a message that is damaged: neither counts as the newest of
        # its key.
        if view.flags & FLAG_CHUNK and (not count or self._chunks.try_whole(view) is None):
            return
        self._seen += count
        latest = self._latest
        # The usual case, without a list. A message without a value removes its key, as in Pulsar.
        if count == 1:
            key = only_key(view)
            if key:
                if len(key) > _LONG_KEY:
                    self._set_newest(_digest(key), number, view.offsets[0] < view.offsets[1])
                elif view.offsets[0] < view.offsets[1]:
                    latest[key] = number
                else:
                    latest.pop(key, None)
            return
        # The number has 24 bits for the place in the batch.
        if count > _INDEXES:
            raise StorageError(
                reason=f"the entry {view.ledger_id}:{view.entry_id} has {count} messages",
                remedy=f"a topic with batches of more than {_INDEXES} messages cannot be compacted",
            )
        keys = view.keys()
        if keys is None:
            return
        offsets = view.offsets
        # All keys are there and all values too (offsets that differ): then one `update` does what the
        # loop below does, and later messages of a key win because they come later.
        is_plain = not view.flags & FLAG_KEY_ABSENT and len(set(offsets)) == len(offsets)
        if is_plain and max(map(len, keys)) <= _LONG_KEY:  # type: ignore[arg-type]  # all are there
            latest.update(zip(keys, range(number, number + count), strict=True))  # type: ignore[arg-type]
            return
        for index, key in enumerate(keys):
            if key:
                short = key if len(key) <= _LONG_KEY else _digest(key)
                self._set_newest(short, number | index, offsets[index] < offsets[index + 1])

    def _set_newest(self, key: str | bytes, number: int, has_value: bool) -> None:
        if has_value:
            self._latest[key] = number
        else:
            self._latest.pop(key, None)

    # -- the second pass -----------------------------------------------------------------------------------

    def _copy(self, writer: CompactedWriter) -> Iterator[Progress]:
        for block in rows_of(self._before):
            self._copy_block(writer, block)
            yield self._progress(block.rows)
        cursor = self._log.cursor(self._start, inclusive=False)
        keeps_others = self._keeps_keyless or self._has_sealed
        # Entries without any key, and encrypted ones, may lie anywhere: then nothing is jumped over.
        for views in self._read(cursor):
            for view in views:
                self._copy_entry(writer, view)
            if not keeps_others and not self._jump(cursor):
                break
            yield self._progress(len(views))

    def _jump(self, cursor: Cursor) -> bool:
        """Stand at the next survivor if it is far; False if there is none."""
        # Reading on costs less than finding a place in the index, up to some thousand entries.
        if self._at >= len(self._survivors):
            return False
        place, position = self._place(self._survivors[self._at]), cursor.position
        if place.ledger_id > position.ledger_id or place.entry_id > position.entry_id + _FAR:
            cursor.seek(place)
        return True

    def _copy_block(self, writer: CompactedWriter, block: Block) -> None:
        if block.is_sealed:
            writer.add_sealed(block.content)
            return
        keys, ids = block.content.keys(), block.ids
        # A block that is at least half full and of which every row stays is copied as it is, without
        # decoding. Small blocks are decoded and joined, or each compaction would add one.
        if 2 * block.rows >= MOST_ROWS and self._is_kept_whole(block):
            writer.copy(ids, block.data)
            return
        start = 0
        for view, end in block.entries(0):
            # Rows keep their batch index, by which a message id of the log still names them.
            number = self._number(view.ledger_id, view.entry_id)
            chosen = self._chosen(number, number | _INDEXES)
            for row in range(start, end):
                key = None if keys is None else keys[row]
                if number | ids.indexes[row] in chosen or (self._keeps_keyless and not key):
                    writer.add(view, ids.indexes[row], key)
            start = end

    def _is_kept_whole(self, block: Block) -> bool:
        """Whether every row of a block is a survivor; then these are taken."""
        # `_chosen` has moved on; if rows are missing it is put back, and the block is gone through
        # row by row.
        ids, at = block.ids, self._at
        first, last = (self._number(ids.ledgers[row], ids.entries[row]) | ids.indexes[row] for row in (0, -1))
        if len(self._chosen(first, last)) == block.rows:
            return True
        self._found -= self._at - at
        self._at = at
        return False

    def _chosen(self, first: int, last: int) -> Sequence[int]:
        """The survivors from one number to another."""
        # The pass goes forward, so the search begins where the last one ended.
        survivors, start = self._survivors, self._at
        if start < len(survivors) and survivors[start] < first:
            start = bisect_left(survivors, first, start)
        end = start
        if start < len(survivors) and survivors[start] <= last:
            end = bisect_right(survivors, last, start)
        self._at = end
        self._found += end - start
        return survivors[start:end]

    def _copy_entry(self, writer: CompactedWriter, view: EntryView) -> None:
        # Always kept: it was not read in the first pass.
        if view.codec == CODEC_ENCRYPTED:
            writer.add_sealed(view)
            return
        # A part that is not the last has no message; an entry of a ledger that the first pass did not
        # meet has no survivor.
        if not view.count or view.ledger_id not in self._bases:
            return
        number = self._number(view.ledger_id, view.entry_id)
        # The survivors among the messages of this entry, by the range of their numbers.
        chosen = self._chosen(number, number | _INDEXES)
        if not chosen and not self._keeps_keyless:
            return
        keys = [only_key(view)] if view.count == 1 else view.keys()
        # It was whole in the first pass. Parts that were trimmed since make it a message that is
        # lost, which `steps` reports.
        if view.flags & FLAG_CHUNK:
            whole = self._chunks.try_whole(view)
            if whole is None:
                self._found -= len(chosen)
                return
            view = whole
        # Messages without a key are kept in any number, so each message is looked at; else the
        # survivors alone.
        if self._keeps_keyless:
            kept = {survivor & _INDEXES for survivor in chosen}
            for index in range(view.count):
                key = None if keys is None else keys[index]
                if not key or index in kept:
                    writer.add(view, index, key)
            return
        assert keys is not None
        for survivor in chosen:
            index = survivor & _INDEXES
            writer.add(view, index, keys[index])


def _digest(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=_DIGEST_BYTES).digest()
