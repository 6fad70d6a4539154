"""How much of a topic a subscription still has to acknowledge, in messages."""

from __future__ import annotations

from typing import NamedTuple

from embeddedpulsar.managed_ledger.log import Log
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.subscription.state.state_machine import SubscriptionState


class Acknowledged(NamedTuple):
    """A copy of what a state says about entries beyond its mark-delete position."""

    mark_delete: Position
    runs: list[tuple[int, int, int]]
    indexes: int


def acknowledged_in(state: SubscriptionState) -> Acknowledged:
    """Taken under the lock, so that the counting can be done without it."""
    indexes = sum(acked.bit_count() for *_, acked in state.acks.partials())
    return Acknowledged(state.mark_delete, list(state.acks.runs()), indexes)


def messages_left(log: Log, acknowledged: Acknowledged) -> int:
    """Messages that are stored and not acknowledged: exact, from the index, without reading entries.

    Costs two look-ups per run of acknowledged entries, and none in ledgers whose entries hold one message
    each.
    """
    plain = {segment.ledger_id for segment in log.segments() if segment.entries == segment.messages}
    plain.intersection_update(ledger_id for ledger_id, *_ in acknowledged.runs)
    if plain:  # unless batches make up for entries without messages
        chunks = log.chunks()
        plain = {ledger_id for ledger_id in plain if not chunks.are_in(ledger_id)}
    left = log.messages_after(acknowledged.mark_delete) - acknowledged.indexes
    for ledger_id, first, last in acknowledged.runs:
        if ledger_id in plain:
            left -= last - first + 1
        else:
            left -= log.messages_between(Position(ledger_id, first - 1), Position(ledger_id, last))
    return max(0, left)
