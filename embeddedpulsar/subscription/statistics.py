"""The figures of a subscription."""

from __future__ import annotations

from typing import NamedTuple

from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.subscription.state.consumer_registry import Consumer
from embeddedpulsar.subscription.state.state_machine import SubscriptionState


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
