"""Reading from the log what a consumer was assigned. Hot."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

from embeddedpulsar._engine.format.acknowledgement import FORM_RANGE, AckGroup
from embeddedpulsar._engine.format.entry import EntryView
from embeddedpulsar._engine.log.log import Log
from embeddedpulsar._engine.log.position import Position
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.subscription.dispatch.look_ahead import LookAhead
from embeddedpulsar.subscription.state.state_machine import SubscriptionState

_NO_INDEXES: Final = dict[int, int]()
_NO_CODES: Final = bytearray()
_MANY: Final = 1 << 30
_new: Final[Any] = tuple.__new__


class FetchedRange(NamedTuple):
    """A run of entries, with what the state says of them.

    Attributes:
        ledger_id, first, last: the entries.
        number: of the first one in the consumer's assigned.
        messages: of all of them.
        counts: redeliveries of each, or None for none.
        indexes: acknowledged batch indexes, by entry.
    """

    ledger_id: int
    first: int
    last: int
    number: int
    messages: int
    counts: Sequence[int] | None
    indexes: Mapping[int, int]

    def rest(self, first: int) -> FetchedRange:
        """The same from a later entry on."""
        skip = first - self.first
        counts = None if self.counts is None else self.counts[skip:]
        return self._replace(first=first, number=self.number + skip, counts=counts)

    @property
    def end(self) -> int:
        """The number behind that of the last one."""
        return self.number + self.last - self.first + 1

    def stamp(self, views: Sequence[EntryView]) -> None:
        """Write what the state says into the entries."""
        counts, indexes = self.counts, self.indexes
        if counts is None and not indexes:
            ahead = self.number - self.first + 1
            for view in views:
                view.number = view.entry_id + ahead
            return
        for view in views:
            at = view.entry_id - self.first
            view.number = self.number + at + 1
            if counts is not None:
                view.redelivery_count = counts[at]
            if indexes:
                view.skip = indexes.get(view.entry_id)


def ranges_for(state: SubscriptionState, consumer_id: int, number: int, most: int) -> list[FetchedRange]:
    """What a consumer was assigned from entry ``number`` of its assigned entries on, and still holds; of
    that, as many ranges as make up ``most`` messages."""
    dispatch = state.dispatch
    assigned = dispatch.assigned_by_consumer[consumer_id]
    found: list[FetchedRange] = []
    left = most
    at = max(number, assigned.start)
    known, states, acks, partial = -1, None, None, dict[int, int]()
    code, codes, base = assigned.code, _NO_CODES, 0
    for ledger_id, first, last in assigned.behind(at):
        if ledger_id != known:
            known = ledger_id
            states, acks = dispatch.pending.ledger(ledger_id), state.acks.ledger(ledger_id)
            partial = acks.partial if acks is not None else {}
            is_plain = states is not None and states.counts is states.messages is None and not partial
            codes, base = (states.states, states.base) if states is not None and is_plain else (_NO_CODES, 0)
        # Hot where keys scatter what each consumer gets: one entry, of which nothing is to be said.
        if first == last and base <= first < base + len(codes) and codes[first - base] == code:
            found.append(_new(FetchedRange, (ledger_id, first, first, at, 1, None, _NO_INDEXES)))
            at += 1
            left -= 1
            if left <= 0:
                break
            continue
        for start, end in () if states is None else states.held(code, first, last):
            assert states is not None
            skip = start - states.base
            counts = None if states.counts is None else states.counts[skip : skip + end - start + 1]
            messages = end - start + 1
            if states.messages is not None:
                messages = sum(states.messages[skip : skip + messages])
            indexes = _NO_INDEXES
            if partial and acks is not None:
                indexes = {one: acks.indexes(one) for one in partial if start <= one <= end}
            found.append(FetchedRange(ledger_id, start, end, at + start - first, messages, counts, indexes))
            left -= messages
        if left <= 0:
            break
        at += last - first + 1
    return found


class RangeReader:
    """Reads assigned ranges, from what was read ahead where that is possible.

    Role: between a consumer's ranges and the log; keys scatter the entries of a consumer, so its ranges in
    a ledger are read in one go, and nothing between them. Callers: the consumer's reading thread.

    Attributes:
        missing: entries that are not in the log any more, or damaged; for the owner to take.
    """

    def __init__(self, log: Log, ahead: LookAhead) -> None:
        self._cursor: Final = log.cursor(Position(0, 0), inclusive=True)
        self._ahead: Final = ahead
        self._ranges: deque[FetchedRange] = deque()
        self.missing: list[AckGroup] = []

    def read(
        self, ready: Sequence[FetchedRange], number: int, max_bytes: int
    ) -> tuple[list[EntryView], int, bool]:
        """The entries of ``ready``, about ``max_bytes`` of them.

        Args:
            ready: ranges, of the numbers from ``number`` on.
            number: of the first entry that was not read before.
            max_bytes: of payload.

        Returns:
            The entries, the number of the first one that was not read, and whether anything of ``ready`` is
            left.
        """
        views: list[EntryView] = []
        ranges, size = deque(ready), 0
        self._ranges = ranges
        while ranges and size < max_bytes:
            part = ranges[0]
            found = self._ahead.take(part.ledger_id, part.first, part.last)
            if found is not None:
                ranges.popleft()
                part.stamp(found)
            else:
                try:
                    found = self._read_some(max(max_bytes - size, 1))
                except ImportError:  # packed by a codec that is not installed: what comes before is good
                    if not views:
                        raise
                    break
            views += found
            size += sum([len(one.payload) for one in found])
        if ranges:
            return views, ranges[0].number, True
        return views, ready[-1].end if ready else number, False

    def _read_some(self, max_bytes: int) -> list[EntryView]:
        """The first entries that are not read yet, of the ledger of the first."""
        ranges, ledger_id = self._ranges, self._ranges[0].ledger_id
        parts = list(takewhile(lambda part: part.ledger_id == ledger_id, ranges))
        found = self._cursor.read_spans(ledger_id, [(part.first, part.last) for part in parts], max_bytes)
        if not found:
            return self._read_around_damage(max_bytes)
        at = 0
        for part in parts:
            if part.first == part.last and at < len(found) and part.counts is None and not part.indexes:
                found[at].number = part.number + 1  # as `stamp`
                at += 1
                ranges.popleft()
                continue
            views = found[at : at + part.last - part.first + 1]
            if not views:
                break
            at += len(views)
            part.stamp(views)
            ranges.popleft()
            if views[-1].entry_id < part.last:
                ranges.appendleft(part.rest(views[-1].entry_id + 1))
                break
        return found

    def _read_around_damage(self, max_bytes: int) -> list[EntryView]:
        """The first entries of the first range; what of it the read did not reach is left."""
        part = self._ranges[0]
        ledger_id, first, last = part.ledger_id, part.first, part.last
        if self._cursor.position != (ledger_id, first):
            self._cursor.seek(Position(ledger_id, first))
        span = self._cursor.read(last - first + 1, _MANY, max_bytes)
        found = [one for one in span if one.ledger_id == ledger_id and one.entry_id <= last]
        # What another ledger, or a later entry, was read instead of cannot be read.
        end = found[-1].entry_id + 1 if found and len(found) == len(span) else last + 1
        self.missing += _missing(part, found, end)
        part.stamp(found)
        self._ranges.popleft()
        if end <= last:
            self._ranges.appendleft(part.rest(end))
        return found


def _missing(part: FetchedRange, found: Sequence[EntryView], end: int) -> list[AckGroup]:
    """The entries before ``end`` that could not be read."""
    gaps, expected = [], part.first
    for entry_id in [*(one.entry_id for one in found), end]:
        if entry_id > expected:
            gaps.append(AckGroup(part.ledger_id, expected, entry_id - 1, FORM_RANGE, b""))
        expected = entry_id + 1
    return gaps
