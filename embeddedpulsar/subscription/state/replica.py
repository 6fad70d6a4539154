"""This process's copy of a subscription's state, as the journal keeps it in step."""

from __future__ import annotations

from embeddedpulsar.format import subscription_record as record
from embeddedpulsar.subscription.state.snapshot import checkpoint_of, decode_snapshot, encode_snapshot
from embeddedpulsar.subscription.state.state_machine import (
    CLAIMABLE,
    MEMBERS,
    NONE,
    UNBLOCKED,
    SubscriptionState,
)
from embeddedpulsar.subscription.state.summary import adopt_summary


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
        """Take over a snapshot, or nothing (see `storage.journal.replica.Replica`)."""
        self.state = SubscriptionState() if snapshot is None else decode_snapshot(snapshot)
        self.effects |= MEMBERS | CLAIMABLE | UNBLOCKED
        self.has_diverged = False

    def replay(self, kind: int, payload: bytes, time_ms: int) -> None:
        """Apply a command others committed."""
        self.apply(record.decode(kind, payload))

    def leap(self, kind: int, payload: bytes) -> bool:
        """Take over a summary (see `storage.journal.replica.Replica`)."""
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
