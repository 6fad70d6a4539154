"""Sizes, times and counts of a log by its indexes, for those that only look."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.format.segment_header import FIRST_FRAME_OFFSET
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.storage.log_view import LogView
from embeddedpulsar.storage.segment_chain import ClosedLedger

_ATTEMPTS: Final = 100
_WORTH_A_LOOK_UP: Final = 200
"""Entries whose slots are read in the time in which two of them are looked up singly."""


class LedgerFigures(NamedTuple):
    """What one retained ledger holds.

    Attributes:
        base_publish_ms: nothing in it was published before that.
    """

    ledger_id: int
    entries: int
    messages: int
    size: int
    base_publish_ms: int


class Appended(NamedTuple):
    """What was ever appended; after a recovery of the control words, what was retained then, and since."""

    entries: int
    messages: int
    size: int


class LogSurvey:
    """Role: answers from the chain of ledgers and the indexes; no entry is read. Sizes are those of frames.

    Callers: any thread; takes no lock, unless an index is damaged and derived again.
    """

    def __init__(self, view: LogView) -> None:
        self._view: Final = view

    def ledgers(self) -> list[LedgerFigures]:
        """The retained ledgers, oldest first."""
        view, chain = self._view, self._view.chain()
        found = [
            LedgerFigures(
                one.ledger_id,
                one.last_entry_id + 1,
                one.messages,
                max(0, one.end_offset - FIRST_FRAME_OFFSET),
                one.base_publish_ms,
            )
            for one in chain.closed
        ]
        if chain.tail_ledger:
            last, end = view.extent(chain.tail_ledger)
            messages = _or_zero(view.messages_through, chain.tail_ledger, last)
            size = max(0, end - FIRST_FRAME_OFFSET)
            tail = LedgerFigures(chain.tail_ledger, last + 1, messages, size, chain.tail_base_publish_ms)
            found.append(tail)
        return found

    def closed(self) -> tuple[ClosedLedger, ...]:
        """The retained ledgers that another one follows, oldest first."""
        return self._view.chain().closed

    def appended(self) -> Appended:
        """What was ever appended, of one moment."""
        words = self._view.words
        closed = words[TopicWord.TOTAL_ENTRIES], words[TopicWord.TOTAL_MESSAGES], words[TopicWord.TOTAL_BYTES]
        for _ in range(_ATTEMPTS):
            ledgers = self.ledgers()
            tail = ledgers[-1] if ledgers else LedgerFigures(0, 0, 0, 0, 0)
            before, closed = (
                closed,
                (
                    words[TopicWord.TOTAL_ENTRIES],
                    words[TopicWord.TOTAL_MESSAGES],
                    words[TopicWord.TOTAL_BYTES],
                ),
            )
            if before == closed and words[TopicWord.TAIL] >> 32 == tail.ledger_id:
                break
        entries, messages, size = closed
        return Appended(entries + tail.entries, messages + tail.messages, size + tail.size)

    def bytes_after(self, position: Position) -> int:
        """Bytes of the retained entries behind ``position``, up to the tail."""
        view, chain = self._view, self._view.chain()
        ends = {one.ledger_id: one.end_offset for one in chain.closed if one.ledger_id >= position.ledger_id}
        if chain.tail_ledger >= position.ledger_id and chain.tail_ledger:
            ends[chain.tail_ledger] = view.end_of(chain.tail_ledger)
        found = sum(max(0, end - FIRST_FRAME_OFFSET) for end in ends.values())
        if position.ledger_id in ends and position.entry_id >= 0:
            end = ends[position.ledger_id]
            last, _ = view.extent(position.ledger_id)
            start = end
            if position.entry_id < last:
                start = _or_zero(view.offset_of, position.ledger_id, position.entry_id + 1)
            found -= max(0, min(start, end) - FIRST_FRAME_OFFSET)
        return found

    def last_before_bytes(self, most: int) -> Position | None:
        """The first entry behind which there are at most ``most`` bytes; None if there are as few in all."""
        view = self._view
        for one in reversed(self.ledgers()):
            if one.size > most:
                end = FIRST_FRAME_OFFSET + one.size

                def end_of(entry_id: int, end: int = end, one: LedgerFigures = one) -> int:
                    is_last = entry_id + 1 >= one.entries
                    return end if is_last else view.offset_of(one.ledger_id, entry_id + 1)

                entry_id = bisect_left(range(one.entries), end - most, key=end_of)
                return Position(one.ledger_id, entry_id)
            most -= one.size
        return None

    def messages_in(self, ledger_id: int, runs: Sequence[tuple[int, int]]) -> int | None:
        """Messages in runs of entries of one ledger, given by first and last, ascending; there is one.

        Returns:
            None if looking up each run costs less, or the index does not say.
        """
        start, stop = runs[0][0], runs[-1][1] + 1
        if stop - start >= _WORTH_A_LOOK_UP * len(runs):
            return None
        try:
            columns = self._view.slots(ledger_id, start, stop)
        except (FileNotFoundError, CorruptionError):
            return None
        through = [columns.messages[0] - columns.counts[0], *columns.messages]
        return sum(through[last + 1 - start] - through[first - start] for first, last in runs)

    def entries_after(self, position: Position) -> int:
        """Retained entries behind ``position``."""
        found = 0
        for one in self.ledgers():
            if one.ledger_id > position.ledger_id:
                found += one.entries
            elif one.ledger_id == position.ledger_id:
                found += max(0, one.entries - position.entry_id - 1)
        return found

    def published_after(self, position: Position) -> int:
        """Publish time of the first retained entry behind ``position``, in ms; 0 if there is none."""
        view = self._view
        for one in self.ledgers():
            entry_id = position.entry_id + 1 if one.ledger_id == position.ledger_id else 0
            if one.ledger_id >= position.ledger_id and 0 <= entry_id < one.entries:
                try:
                    return one.base_publish_ms + view.slot(one.ledger_id, entry_id).publish_delta_ms
                except (FileNotFoundError, CorruptionError):
                    return max(0, one.base_publish_ms)  # lost or trimmed meanwhile
        return 0

    def complete_since(self) -> int:
        """Everything that was published at this time or later, in ms, is retained; 0 if everything is."""
        for one in self.ledgers():
            try:
                return one.base_publish_ms if self._view.trimmed_before(one.ledger_id) else 0
            except (FileNotFoundError, CorruptionError):
                continue
        return 0

    def nth_message(self, number: int) -> tuple[Position, int] | None:
        """The entry with the retained message of that number, counted from 0, and its index there; None if
        there are not as many."""
        view = self._view
        for one in self.ledgers():
            if number < one.messages:

                def through(entry_id: int, ledger_id: int = one.ledger_id) -> int:
                    return view.messages_through(ledger_id, entry_id)

                entry_id = bisect_left(range(one.entries), number + 1, key=through)
                return Position(one.ledger_id, entry_id), number - through(entry_id - 1)
            number -= one.messages
        return None


def _or_zero(ask: Callable[[int, int], int], ledger_id: int, entry_id: int) -> int:
    """What a view answers; 0 if the ledger was lost or trimmed meanwhile."""
    try:
        return ask(ledger_id, entry_id)
    except (FileNotFoundError, CorruptionError):
        return 0
