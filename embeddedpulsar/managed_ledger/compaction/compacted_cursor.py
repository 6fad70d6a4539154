"""A place in a topic that is read compacted: in its compacted ledger, and then in its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from embeddedpulsar._engine.format.compacted import Block
from embeddedpulsar._engine.format.entry import EntryView
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.managed_ledger.compaction.compacted_ledger import CompactedLedger
from embeddedpulsar.managed_ledger.compaction.compaction_record import CompactedLedgers
from embeddedpulsar.managed_ledger.log import Log
from embeddedpulsar.managed_ledger.position import Position


class CompactedCursor:
    """The `Cursor` of those that read compacted.

    Role: up to the horizon it gives what compaction left, behind it the log; each entry once, in the order of
    ids. Invariants: a cursor that has begun a compacted ledger reads it to its end, also when it is replaced
    meanwhile, because its map stays. In the log it reads on, however often the topic is compacted: only so it
    sees that keys were removed. If the log lost what comes next to trimming, it goes on in the compacted
    ledger, behind the entry it read last.
    Callers: one thread at a time.
    """

    __slots__ = ("_block", "_horizon", "_ledger", "_ledgers", "_log", "_number", "_raw", "_row", "_wanted")

    def __init__(self, ledgers: CompactedLedgers, log: Log, position: Position, *, inclusive: bool) -> None:
        self._ledgers: Final = ledgers
        self._log: Final = log
        self._raw: Final = log.cursor(position, inclusive=inclusive)
        self._ledger: CompactedLedger | None = None
        self._block: Block | None = None
        self._number = self._row = 0
        self.seek(position if inclusive else position.next())

    @property
    def position(self) -> Position:
        """The entry that is read next, if it is there: at the latest behind the horizon."""
        block = self._block
        if self._ledger is None:
            return self._raw.position
        if block is not None and self._row < block.rows:
            return max(self._wanted, Position(block.ids.ledgers[self._row], block.ids.entries[self._row]))
        if self._number < len(self._ledger.places):
            return max(self._wanted, Position(*self._ledger.places[self._number].first))
        return self._horizon.next()

    @property
    def is_compacted(self) -> bool:
        """Whether it is still before the horizon."""
        return self._ledger is not None

    def is_at(self, tail: int) -> bool:
        """See `Cursor`."""
        return self._ledger is None and self._raw.is_at(tail)

    def seek(self, position: Position) -> None:
        """See `Cursor`."""
        self._leave()
        self._raw.seek(position)
        self._enter(position)

    def _enter(self, position: Position) -> None:
        """Go on in the compacted ledger if it reaches ``position``."""
        ledger = None
        if self._ledgers.horizon >= position:
            ledger = self._ledgers.open()
        if ledger is not None and ledger.horizon >= position:
            self._wanted = position
            self._ledger, self._horizon = ledger, ledger.horizon
            self._number = ledger.number_at(position)
        elif ledger is not None:
            ledger.close()

    def _leave(self) -> None:
        ledger, self._ledger, self._block = self._ledger, None, None
        self._row = 0
        if ledger is not None:
            ledger.close()

    def read(self, max_entries: int, max_messages: int, max_bytes: int) -> list[EntryView]:
        """See `Cursor`. About 2 us per entry of the compacted ledger."""
        while True:
            while self._ledger is not None:
                block = self._next_block()
                if block is not None:
                    found = self._read_block(block, max_entries, max_messages, max_bytes)
                    if found:
                        return found
            expected = self._raw.position
            views = self._raw.read(max_entries, max_messages, max_bytes)
            reached = views[0].ledger_id if views else self._raw.position.ledger_id
            if not self._has_lost(expected, reached):
                return views
            self._enter(expected)
            if self._ledger is None:  # what is lost was not compacted
                return views

    def _has_lost(self, expected: Position, ledger_id: int) -> bool:
        """Whether entries were trimmed between where the log was read last and the ledger it came to now."""
        if ledger_id <= expected.ledger_id:
            return False
        if expected.ledger_id >= self._log.trimming.first_retained:
            return False
        # Its own ledger was read to the end if what follows it says so.
        return self._log.ended_before(ledger_id) != expected.previous()

    def _next_block(self) -> Block | None:
        """The block that is read; None, and on to the log, behind the last one."""
        ledger, block = self._ledger, self._block
        assert ledger is not None
        while block is None or self._row >= block.rows:
            if self._number >= len(ledger.places):
                self._leave()
                self._raw.seek(max(self._horizon.next(), self._wanted))
                return None
            self._row = 0
            try:
                block = self._block = ledger.block(self._number)
            except CorruptionError as e:
                place = Position(*ledger.places[self._number].first)
                self._ledgers.report_block(e, place, self._horizon)
                self._number += 1
                continue
            self._number += 1
            self._skip_to(block)
        return block

    def _skip_to(self, block: Block) -> None:
        ids, wanted = block.ids, self._wanted
        if (ids.ledgers[0], ids.entries[0]) < wanted:
            row = 0
            while row < block.rows and (ids.ledgers[row], ids.entries[row]) < wanted:
                row += 1
            self._row = row

    def _read_block(
        self, block: Block, max_entries: int, max_messages: int, max_bytes: int
    ) -> list[EntryView]:
        found: list[EntryView] = []
        for view, row in block.entries(self._row):
            found.append(view)
            self._row = row
            max_entries -= 1
            max_messages -= view.count
            max_bytes -= view.offsets[-1] - view.offsets[0]
            if max_entries <= 0 or max_messages <= 0 or max_bytes <= 0:
                break
        if found:
            self._wanted = Position(found[-1].ledger_id, found[-1].entry_id + 1)
        return found

    def take_block(self) -> Block | None:
        """The whole of the next block, if the cursor stands before the horizon, at its begin."""
        if self._ledger is None or (self._block is not None and 0 < self._row < self._block.rows):
            return None
        block = self._next_block()
        if block is None or self._row:
            return None
        self._row = block.rows
        self._wanted = Position(block.ids.ledgers[-1], block.ids.entries[-1] + 1)
        return block

    def read_spans(self, ledger_id: int, spans: Sequence[tuple[int, int]], max_bytes: int) -> list[EntryView]:
        """See `Cursor`: always of the log."""
        return self._raw.read_spans(ledger_id, spans, max_bytes)
