"""Entries a consumer was assigned and has still to read from the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from embeddedpulsar.format.entry import EntryView
from embeddedpulsar.subscription.state.state_machine import SubscriptionState


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
    for ledger_id, first, last in assigned.behind(at):
        states = dispatch.pending.ledger(ledger_id)
        acks = state.acks.ledger(ledger_id)
        partial = acks.partial if acks is not None else {}
        runs = [] if states is None else list(states.runs(assigned.code, first, last))
        for start, end in runs:
            assert states is not None
            skip = start - states.base
            counts = None if states.counts is None else states.counts[skip : skip + end - start + 1]
            messages = end - start + 1
            if states.messages is not None:
                messages = sum(states.messages[skip : skip + messages])
            indexes = {}
            if partial and acks is not None:
                indexes = {one: acks.indexes(one) for one in partial if start <= one <= end}
            found.append(FetchedRange(ledger_id, start, end, at + start - first, messages, counts, indexes))
            left -= messages
        if left <= 0:
            break
        at += last - first + 1
    return found
