"""One process's replica of a subscription, and the summaries by which it leaps over commands.

One of hundreds of consumers, asleep most of the time, takes over the last summary in the journal instead of
applying all commands since it was awake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.document import pack_map, unpack_map
from embeddedpulsar._engine.log.position import Position
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.subscription.state.delayed_delivery_tracker import DelayedDeliveryTracker
from embeddedpulsar.subscription.state.dispatch_state import DispatchState
from embeddedpulsar.subscription.state.expired_counts import NOTHING_EXPIRED, ExpiredCounts
from embeddedpulsar.subscription.state.resting_counts import RestingCounts
from embeddedpulsar.subscription.state.snapshot import (
    DISTORTIONS,
    checkpoint_of,
    decode_snapshot,
    encode_snapshot,
    pack_ledgers,
    unpack_ledgers,
)
from embeddedpulsar.subscription.state.state_machine import (
    CLAIMABLE,
    MEMBERS,
    NONE,
    UNBLOCKED,
    SubscriptionState,
)

HOUSEKEEPER: Final = "__housekeeping"
"""The name of the consumer that attaches for a moment to acknowledge what has expired."""
_ACTIVITIES: Final = frozenset((record.CREATE, record.ATTACH, record.DETACH))

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
    if state.expired.total:
        fields["expired"] = state.expired.pack()
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
        state.expired = ExpiredCounts.unpack(fields.get("expired", NOTHING_EXPIRED))
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
        [[one.code, [list(each) for each in one.ranges]] for one in assigned if one.start < one.end],
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
        one.hold([(ledger_id, first, last) for ledger_id, first, last in behind.get(one.code, ())])
    dispatch.has_blocked = dispatch.is_blocked or bool(blocked)


class SubscriptionReplica:
    """Role: between `Journal` and `SubscriptionState`; collects the effects of what was applied.

    Callers: the holder of the subscription's lock.

    Attributes:
        state: the state; replaced by another object whenever the journal builds it anew.
        effects: flags of everything applied since they were last taken. A snapshot does not say what led to
            it: then they are those of any command that a process has to act on.
        has_diverged: a checkpoint did not agree with this replica.
    """

    __slots__ = ("effects", "has_diverged", "state")

    def __init__(self) -> None:
        self.state = SubscriptionState()
        self.effects = NONE
        self.has_diverged = False

    def reset(self, snapshot: bytes | None) -> None:
        """Take over a snapshot, or nothing (see `_engine.log.journal.replica.Replica`)."""
        self.state = SubscriptionState() if snapshot is None else decode_snapshot(snapshot)
        self.effects |= MEMBERS | CLAIMABLE | UNBLOCKED
        self.has_diverged = False

    def replay(self, kind: int, payload: bytes, time_ms: int) -> None:
        """Apply a command others committed."""
        command = record.decode(kind, payload)
        if kind in _ACTIVITIES:
            self._note_activity(command, time_ms)
        waiting_keys = self.state.dispatch.pending.waiting_keys
        try:
            waiting_keys.is_replay = True
            self.apply(command)
        finally:
            waiting_keys.is_replay = False

    def apply_all(self, commands: Sequence[record.Command], active_ms: int) -> None:
        """Apply own commands, which say at that time that consumers come or leave; 0 if they do not."""
        for command in commands:
            if active_ms:
                self._note_activity(command, active_ms)
            self.apply(command)

    def _note_activity(self, command: record.Command, time_ms: int) -> None:
        """Note that a consumer comes or leaves. Before the command is applied."""
        state = self.state
        is_activity = isinstance(command, record.Create)
        if isinstance(command, record.Detach):
            consumer = state.consumers.get(command.consumer_id)
            is_activity = consumer is not None and consumer.name != HOUSEKEEPER
        elif isinstance(command, record.Attach):
            is_activity = command.name != HOUSEKEEPER
        if is_activity:
            state.last_active_ms = time_ms

    def leap(self, kind: int, payload: bytes) -> bool:
        """Take over a summary (see `_engine.log.journal.replica.Replica`)."""
        return kind == record.SUMMARY and adopt_summary(self.state, payload)

    def apply(self, command: record.Command) -> None:
        if isinstance(command, record.Checkpoint) and command != checkpoint_of(self.state):
            self.has_diverged = True
        self.effects |= self.state.apply(command)

    def snapshot(self) -> bytes:
        return encode_snapshot(self.state)

    def take_effects(self) -> int:
        """Return the collected effects, and forget them."""
        effects, self.effects = self.effects, NONE
        return effects
