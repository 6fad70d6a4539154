"""The figures of a subscription, and how much of the topic it still has to acknowledge."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter

from embeddedpulsar._engine.log.log import Log
from embeddedpulsar._engine.log.position import Position
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.subscription.state.consumer_registry import Consumer
from embeddedpulsar.subscription.state.state_machine import SubscriptionState


class Acknowledged(NamedTuple):
    """A copy of what a state says about entries beyond its mark-delete position."""

    mark_delete: Position
    runs: list[tuple[int, int, int]]
    indexes: int


def acknowledged_in(state: SubscriptionState, through: Position | None = None) -> Acknowledged:
    """Taken under the lock, so that the counting can be done without it; of what is behind ``through``,
    nothing."""
    runs, partials = state.acks.runs(), state.acks.partials()
    if through is None:
        return Acknowledged(state.mark_delete, list(runs), sum(acked.bit_count() for *_, acked in partials))
    last = through.entry_id
    clipped = [
        (ledger_id, first, min(end, last) if ledger_id == through.ledger_id else end)
        for ledger_id, first, end in runs
        if (ledger_id, first) <= through
    ]
    indexes = sum(acked.bit_count() for ledger, entry, _, acked in partials if (ledger, entry) <= through)
    return Acknowledged(state.mark_delete, clipped, indexes)


def messages_left(log: Log, acknowledged: Acknowledged, through: Position | None = None) -> int:
    """Messages that are stored, up to ``through`` if it is given, and not acknowledged: exact, from the
    index, without reading entries.

    Costs 0.1 us per entry between the first and the last that is acknowledged out of order, or 20 us per run
    of them, whichever is less; and nothing in ledgers whose entries hold one message each.
    """
    plain = {segment.ledger_id for segment in log.segments() if segment.entries == segment.messages}
    plain.intersection_update(ledger_id for ledger_id, *_ in acknowledged.runs)
    if plain:  # unless batches make up for entries without messages
        chunks = log.chunks()
        plain = {ledger_id for ledger_id in plain if not chunks.are_in(ledger_id)}
    begin = acknowledged.mark_delete
    stored = log.messages_after(begin) if through is None else log.messages_between(begin, through)
    left = stored - acknowledged.indexes
    survey = log.survey()
    for ledger_id, runs in groupby(acknowledged.runs, key=itemgetter(0)):
        entries = [(first, last) for _, first, last in runs]
        if ledger_id in plain:
            left -= sum(last - first + 1 for first, last in entries)
            continue
        found = survey.messages_in(ledger_id, entries)
        if found is None:
            ends = [(Position(ledger_id, first - 1), Position(ledger_id, last)) for first, last in entries]
            found = sum(log.messages_between(after, through) for after, through in ends)
        left -= found
    return max(0, left)


class SubscriptionStatistics(NamedTuple):
    """A snapshot of a subscription.

    Attributes:
        name: of the subscription.
        consumer_type: that of the attached consumers; None without any.
        consumers: the attached consumers, the longest attached first.
        mark_delete: everything up to here is acknowledged.
        epoch: how often consumers came, left or were moved.
        backlog: messages stored and not acknowledged.
        commands: commands applied since the subscription was made.
        stale: acknowledgements that came too late to count.
        divergences: how often this process's replica disagreed with another's.
    """

    name: str
    consumer_type: int | None
    consumers: tuple[Consumer, ...]
    mark_delete: Position
    epoch: int
    backlog: int
    commands: int
    stale: int
    divergences: int


def statistics_of(state: SubscriptionState, divergences: int) -> SubscriptionStatistics:
    """All figures except the backlog, which is counted without the lock. Inside a transaction."""
    consumers = state.consumers
    return SubscriptionStatistics(
        name=state.name,
        consumer_type=consumers.consumer_type,
        consumers=tuple(consumers.all()),
        mark_delete=state.mark_delete,
        epoch=state.epoch,
        backlog=0,
        commands=state.commands,
        stale=state.stale,
        divergences=divergences,
    )
