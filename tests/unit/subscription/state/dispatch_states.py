"""Shared and Key_Shared states for tests, built by commands that went through the journal's encoding."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.acknowledgement import Ack, group_batches, group_entries
from embeddedpulsar._engine.format.subscription_record import STAY, Assign, FreshRun, Redeliver
from embeddedpulsar._engine.subscription.dispatch.dispatch_rules import Claim, FreshEntry
from embeddedpulsar._engine.subscription.dispatch.dispatchers import CLAIM_DISPATCHERS
from embeddedpulsar._engine.subscription.state.ledger_acks import OPEN
from embeddedpulsar._engine.subscription.state.replica import (
    SubscriptionState,
    decode_snapshot,
    encode_snapshot,
)
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.message_id import Position

LEDGER = 7
NO_LIMIT = 1 << 62


class StateSite:
    """A state, and a second one that lives through a snapshot after each command; both must stay alike."""

    def __init__(self, consumer_type: ConsumerType = ConsumerType.Shared) -> None:
        self.type = consumer_type
        self.state = SubscriptionState()
        self._other = SubscriptionState()
        self.apply(record.Create("s", 1, LEDGER, -1))
        self.apply(record.Ledgers(((LEDGER, OPEN),)))

    @property
    def dispatch(self):
        return self.state.dispatch

    def apply(self, command: record.Command) -> int:
        """Apply a command as a replica would, to both; returns its effects."""
        decoded = record.decode(*record.encode(command))
        assert decoded == command
        effects = self.state.apply(decoded)
        assert self._other.apply(decoded) == effects
        packed = encode_snapshot(self.state)
        assert encode_snapshot(self._other) == packed
        self._other = decode_snapshot(packed)
        assert encode_snapshot(self._other) == packed
        return effects

    def join(self, name: str = "c", priority: int = 0, **rules) -> int:
        """Attach a consumer; returns its id."""
        consumer_id = self.state.epoch + 1
        uuid = consumer_id.to_bytes(16, "little")
        self.apply(
            record.Attach(consumer_id, name, self.type, priority, uuid, 0, record.ConsumerRules(**rules))
        )
        return consumer_id

    def leave(self, consumer_id: int, reason: int = record.DETACH_CLOSED, handed: int = 0) -> int:
        """Detach a consumer."""
        return self.apply(record.Detach(consumer_id, reason, handed))

    def read(
        self,
        first: int,
        last: int,
        messages: Sequence[int] | None = None,
        hashes: Sequence[int] | None = None,
        delayed: Iterable[tuple[int, int]] = (),
        ranges: Iterable[tuple[int, int, int]] = (),
    ) -> int:
        """Entries are read; ``delayed`` as (time, entry), ``ranges`` as (consumer, first, last)."""
        run = FreshRun(
            LEDGER,
            first,
            last,
            None if messages is None else array("I", messages),
            None if hashes is None else array("I", hashes),
        )
        return self.apply(
            Assign(
                Position(LEDGER, last + 1),
                0,
                (run,),
                tuple((time, LEDGER, entry) for time, entry in delayed),
                tuple((one, LEDGER, a, b) for one, a, b in ranges),
                (),
            )
        )

    def assign(self, *ranges: tuple[int, int, int], handed: tuple[tuple[int, int], ...] = ()) -> int:
        """Waiting entries go to consumers: (consumer, first, last)."""
        return self.apply(Assign(STAY, 0, (), (), tuple((one, LEDGER, a, b) for one, a, b in ranges), handed))

    def due(self, time_ms: int) -> int:
        """Delayed entries come due."""
        return self.apply(Assign(STAY, time_ms, (), (), (), ()))

    def ack(self, consumer_id: int, *entries: int) -> int:
        """Entries are acknowledged."""
        groups = group_entries([(LEDGER, entry) for entry in entries])
        return self.apply(Ack(consumer_id, self.epoch_of(consumer_id), groups, ()))

    def ack_indexes(self, consumer_id: int, entry: int, size: int, indexes: int) -> int:
        """Messages of a batch are acknowledged."""
        batches = group_batches({(LEDGER, entry): (indexes, size)})
        return self.apply(Ack(consumer_id, self.epoch_of(consumer_id), (), batches))

    def nack(self, consumer_id: int, *entries: int, handed: int = 0) -> int:
        """Entries, or all, are given back."""
        groups = group_entries([(LEDGER, entry) for entry in entries])
        return self.apply(Redeliver(consumer_id, self.epoch_of(consumer_id), handed, groups))

    def epoch_of(self, consumer_id: int) -> int:
        consumer = self.state.consumers.get(consumer_id)
        return 0 if consumer is None else consumer.epoch

    def owner(self, entry: int) -> int:
        """Id of the consumer that has an entry; its state if nobody has."""
        code = self.dispatch.pending.state(LEDGER, entry)
        owners = {assigned.code: one for one, assigned in self.dispatch.assigned_by_consumer.items()}
        return owners.get(code, code)

    def owners(self, last: int) -> list[int]:
        """Of all entries up to ``last``."""
        return [self.owner(entry) for entry in range(last + 1)]

    def count(self, entry: int) -> int:
        """Redeliveries of an entry."""
        states = self.dispatch.pending.ledger(LEDGER)
        return 0 if states is None else states.redeliveries(entry)

    def claim(
        self,
        consumer_id: int,
        fresh: Sequence[FreshEntry] = (),
        *,
        room: int = 1000,
        granted: dict[int, int] | None = None,
        backlog: int | None = None,
        handed: dict[int, int] | None = None,
        cutoff_ms: int = 0,
    ) -> dict[int, list[tuple[int, int]]]:
        """A consumer claims, and gets its assignment; returns who got which (first, last)."""
        claim = Claim(
            consumer_id,
            room,
            fresh,
            sum(entry.messages for entry in fresh) if backlog is None else backlog,
            dict.fromkeys(self.dispatch.assigned_by_consumer, NO_LIMIT) if granted is None else granted,
            handed or {},
            cutoff_ms,
        )
        command = CLAIM_DISPATCHERS[self.type].assign(self.state.consumers, self.dispatch, claim)
        found: dict[int, list[tuple[int, int]]] = {}
        if command is not None:
            self.apply(command)
            shared = (one for share in command.shares for one in share.ranges())
            for one, _, first, last in (*command.ranges, *shared):
                found.setdefault(one, []).append((first, last))
        return found


def entries(first: int, last: int, hashes: Sequence[int] = (), messages: int = 1) -> list[FreshEntry]:
    """Fresh entries."""
    return [
        FreshEntry(LEDGER, entry, messages, hashes[entry - first] if hashes else 0, 0)
        for entry in range(first, last + 1)
    ]
