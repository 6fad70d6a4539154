"""Summaries in the journal. One of hundreds of consumers, asleep most of the time, takes over the last one
instead of applying all commands since it was awake."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.packed_map import pack_map, unpack_map
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.subscription.state.delayed_delivery_tracker import DelayedDeliveryTracker
from embeddedpulsar.subscription.state.dispatch_state import DispatchState
from embeddedpulsar.subscription.state.resting_counts import RestingCounts
from embeddedpulsar.subscription.state.snapshot import (
    DISTORTIONS,
    pack_ledgers,
    unpack_ledgers,
)
from embeddedpulsar.subscription.state.state_machine import SubscriptionState

LEAST_CONSUMERS: Final = 16
"""With fewer of them none is far behind."""
_MOST_PENDING: Final = 1024
_MOST_DELAYED: Final = 64
_MOST_COUNTS: Final = 64
_MOST_BYTES: Final = 1 << 20


def is_worth_it(state: SubscriptionState) -> bool:
    """Whether a summary is made of such a state: many consumers, and little besides."""
    dispatch = state.dispatch
    ledger_id, entry_id = state.mark_delete
    return (
        len(dispatch.assigned_by_consumer) >= LEAST_CONSUMERS
        and dispatch.read.ledger_id == ledger_id
        and dispatch.read.entry_id - entry_id <= _MOST_PENDING
        and len(dispatch.delayed) <= _MOST_DELAYED
        and len(dispatch.counts) <= _MOST_COUNTS
    )


def pack_summary(state: SubscriptionState) -> bytes:
    """Everything but the consumers and the division of keys among them, which `epoch` stands for."""
    fields = {
        "epoch": state.epoch,
        "commands": state.commands,
        "digest": state.digest,
        "stale": state.stale,
        "ledgers": pack_ledgers(state.acks),
        "counts": state.dispatch.counts.pack(),
        "dispatch": _pack_dispatch(state),
    }
    return pack_map(fields)


def adopt_summary(state: SubscriptionState, content: bytes) -> bool:
    """Take over the state of a summary.

    Returns:
        False, and nothing is changed, if consumers came or left, or were moved, between the two.

    Raises:
        CorruptionError: this is no summary. The state may be distorted then.
    """
    fields: dict[str, Any] = unpack_map(content, _MOST_BYTES)
    try:
        if not state.exists or fields["epoch"] != state.epoch or fields["commands"] < state.commands:
            return False
        state.acks = unpack_ledgers(fields["ledgers"], state.acks)
        _unpack_dispatch(state.dispatch, fields["dispatch"])
        state.dispatch.counts = RestingCounts.unpack(fields["counts"])
        state.commands = fields["commands"]
        state.digest = fields["digest"]
        state.stale = fields["stale"]
    except DISTORTIONS as e:
        raise CorruptionError(reason=f"the summary lacks or distorts {e or type(e).__name__}") from e
    return True


def _pack_dispatch(state: SubscriptionState) -> list[Any]:
    dispatch = state.dispatch
    floors = {ledger_id: ledger.floor for ledger_id, ledger in state.acks.ledgers()}
    assigned = dispatch.assigned_by_consumer.values()
    return [
        list(dispatch.read),
        dispatch.pending.pack(floors),
        dispatch.delayed.pack(),
        [[consumer_id, *position] for consumer_id, position in dispatch.joined.items()],
        dispatch.is_blocked,
        bytes([one.code for one in assigned]),
        [one.start for one in assigned],
        [one.end for one in assigned],
        [one.messages for one in assigned],
        [one.code for one in assigned if one.is_blocked],
        [[one.code, [list(each) for each in one.ranges]] for one in assigned if one.ranges],
    ]


def _unpack_dispatch(dispatch: DispatchState, packed: Sequence[Any]) -> None:
    read, pending, delayed, joined, dispatch.is_blocked, codes, *columns, blocked, ranges = packed
    assigned = list(dispatch.assigned_by_consumer.values())
    if codes != bytes([one.code for one in assigned]):
        raise ValueError("other consumers")
    dispatch.read = Position(*read)
    dispatch.pending.unpack(pending)
    dispatch.delayed = DelayedDeliveryTracker.unpack(delayed)
    dispatch.joined = {consumer_id: Position(*position) for consumer_id, *position in joined}
    behind = dict(ranges)
    for one, start, end, messages in zip(assigned, *columns, strict=True):
        one.start, one.end, one.messages = start, end, messages
        one.is_blocked = one.code in blocked
        one.ranges = deque([tuple(each) for each in behind.get(one.code, ())])
    dispatch.has_blocked = dispatch.is_blocked or bool(blocked)
