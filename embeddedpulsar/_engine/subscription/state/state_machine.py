"""The subscription as a pure state machine: the same commands in the same order give the same state anywhere.

Nothing here reads a clock, a file, a lock, a random number or a process id; commands carry every fact.
Each process that uses the subscription keeps a replica and feeds it the commands of the journal, whose
order the subscription's lock decides. Exclusive and Failover need `acks` and `consumers`; Shared and
Key_Shared also what `dispatch` keeps. The rules that choose between consumers are dispatchers.

How many messages of a subscription expired, and when.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.acknowledgement import FORM_BITMAP, FORM_RANGE, Ack
from embeddedpulsar._engine.format.subscription_record import CONSUMER_TYPES
from embeddedpulsar._engine.log.position import BEFORE_FIRST, Position
from embeddedpulsar._engine.subscription.state.dispatch_state import Consumer, ConsumerRegistry, DispatchState
from embeddedpulsar._engine.subscription.state.entry_states import DELAYED, WAITING
from embeddedpulsar._engine.subscription.state.ledger_acks import AckBitmaps
from embeddedpulsar.records import NamedTuple

_WINDOW_MS: Final = 60_000
_MOST_LATELY: Final = 60
"""Expiries that have a time of their own; what comes beyond counts with the last of them."""


class ExpiredCounts(NamedTuple):
    """The counts of all expiries so far, and of those of the last minute singly.

    Attributes:
        total: messages since the subscription was made.
        last_ms: when messages expired last; 0 for never.
        lately: time and messages of the expiries in the minute before that.
    """

    total: int = 0
    last_ms: int = 0
    lately: tuple[tuple[int, int], ...] = ()

    def plus(self, messages: int, time_ms: int) -> ExpiredCounts:
        """The counts with one more expiry."""
        lately = [one for one in self.lately if one[0] > time_ms - _WINDOW_MS]
        if len(lately) >= _MOST_LATELY:
            at_ms, before = lately.pop()
            lately.append((at_ms, before + messages))
        else:
            lately.append((time_ms, messages))
        return ExpiredCounts(self.total + messages, time_ms, tuple(lately))

    def a_second(self, now_ms: int) -> float:
        """Messages a second, of the last minute.

        >>> ExpiredCounts().plus(120, 1_000).a_second(60_999)
        2.0
        """
        found = sum(messages for at_ms, messages in self.lately if at_ms > now_ms - _WINDOW_MS)
        return found * 1000 / _WINDOW_MS

    def pack(self) -> list[Any]:
        return [self.total, self.last_ms, [list(one) for one in self.lately]]

    @classmethod
    def unpack(cls, packed: Sequence[Any]) -> ExpiredCounts:
        """What `pack` packed.

        Raises:
            TypeError, ValueError: it is something else.
        """
        total, last_ms, lately = packed
        found = cls(total, last_ms, tuple((at_ms, messages) for at_ms, messages in lately))
        numbers = [total, last_ms, *(number for one in found.lately for number in one)]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(f"counts of expired messages {packed!r}")
        return found


NOTHING_EXPIRED: Final = ExpiredCounts()


# Effects of a command: what its caller has to make known to other processes. Flags, to be combined.
NONE: Final = 0
STALE: Final = 1  # dropped: its consumer left, or was put back since
MARK_DELETE: Final = 2  # the mark-delete position moved
REWOUND: Final = 4  # what consumers have read ahead is void: they look here before they read on
MEMBERS: Final = 8  # consumers came or left
UNBLOCKED: Final = 32  # consumers that held too much may have entries again
CLAIMABLE: Final = 16  # entries came back, or may be had now, that could not be had before

_SUMMARY: Final = struct.Struct("<QqQQIIBQqQQQQI")
_HANDLERS: Final = record.RECORDS.handlers


class SubscriptionState:
    """One replica. Not thread-safe: applied under the subscription's lock by the replica's owner.

    Invariants: `epoch` only rises; so does the mark-delete position, but for `Seek` and `Clamp`. An
    acknowledgement counts only under the epoch its consumer has now, so one that comes late, after a seek
    or another's takeover, changes nothing. `digest` is mixed after every command from a summary of the
    state.

    >>> state = SubscriptionState()
    >>> state.apply(record.Create("s", 1, 7, -1)) & REWOUND != 0
    True
    >>> state.mark_delete
    Position(ledger_id=7, entry_id=-1)
    """

    def __init__(self) -> None:
        self.exists = False
        self.name = ""
        self.epoch = 0
        self.acks = AckBitmaps(BEFORE_FIRST)
        self.consumers = ConsumerRegistry()
        self.dispatch = DispatchState()
        self.commands = 0
        self.digest = 0
        self.stale = 0
        self.last_active_ms = 0
        """When a consumer last came or left, or it was made; 0 if that is unknown. Not part of what replicas
        compare: it is the time of a record."""
        self.expired = NOTHING_EXPIRED
        """Not part of what replicas compare either."""

    @property
    def mark_delete(self) -> Position:
        """Everything up to and including this position is acknowledged, and the entry after it is not."""
        return self.acks.mark_delete

    def apply(self, command: record.Command) -> int:
        """Take over one command of the journal and return its effects (flags of this module)."""
        if not self.exists and type(command) is not record.Create:
            return NONE
        before = self.acks.mark_delete
        effects: int = _HANDLERS[type(command)](self, command)
        if self.acks.mark_delete != before:
            effects |= MARK_DELETE
            if self.dispatch.counts:
                self.dispatch.counts.drop_before(self.acks.mark_delete.next())
            if self.dispatch.assigned_by_consumer and self.dispatch.advance(self.acks.mark_delete, self.acks):
                effects |= CLAIMABLE
        self.commands += 1
        self._mix()
        return effects

    def _mix(self) -> None:
        acks, dispatch = self.acks, self.dispatch
        newest = acks.newest
        floor, top = newest.floor, newest.top
        pending = dispatch.pending
        delayed = len(dispatch.delayed)
        summary = _SUMMARY.pack(
            *acks.mark_delete,
            self.epoch,
            self.stale,
            floor,
            top if top > floor else floor,
            len(self.consumers) & 0xFF,
            *(dispatch.read if dispatch.assigned_by_consumer else BEFORE_FIRST),
            pending.totals[WAITING],
            pending.totals[DELAYED],
            delayed,
            max(dispatch.delayed.next_due() or 0, 0) if delayed else 0,
            pending.take_moves(),
        )
        self.digest = crc32(summary, self.digest)

    def _create(self, command: record.Create) -> int:
        self.exists = True
        self.name = command.name
        self.epoch = command.epoch
        self.acks.reset(Position(command.ledger_id, command.entry_id))
        return REWOUND | MARK_DELETE

    def _attach(self, command: record.Attach) -> int:
        self.epoch += 1
        consumer = Consumer(*command[:-1], self.epoch, self.consumers.free_code(), command.rules)
        self.consumers.add(consumer)
        if CONSUMER_TYPES[consumer.consumer_type]:
            self.dispatch.join(consumer, self.mark_delete)
        return REWOUND | MEMBERS

    def _detach(self, command: record.Detach) -> int:
        if not self.consumers.remove(command.consumer_id):
            return NONE
        self.epoch += 1
        if not self.dispatch.assigned_by_consumer:
            return REWOUND | MEMBERS
        self.dispatch.remove_consumer(command.consumer_id, command.reason, command.handed, self.mark_delete)
        self._unblock()
        return REWOUND | MEMBERS | CLAIMABLE

    def _ledgers(self, command: record.Ledgers) -> int:
        self.acks.learn_ledgers(command.listed)
        return NONE

    def _ack(self, command: Ack) -> int:
        if not self.consumers.is_current(command.consumer_id, command.epoch):
            self.stale += 1
            return STALE
        acks, dispatch = self.acks, self.dispatch
        is_shared, is_free = bool(dispatch.assigned_by_consumer), False
        held_back = len(dispatch.pending.waiting_keys)
        for group in command.groups:
            ledger = acks.ledger(group.ledger_id)
            if ledger is None:
                continue  # acknowledged long ago, or no ledger of this topic
            if is_shared and dispatch.pending.acknowledge(group):
                is_free = True
            if group.form == FORM_RANGE:
                ledger.add_range(group.first, group.last)
            elif group.form == FORM_BITMAP:
                ledger.add_bits(group.first, group.data)
            else:
                ledger.add_list(group.first, group.last, group.entries())
        for ledger_id, entry_id, size, indexes in command.batches:
            ledger = acks.ledger(ledger_id)
            if ledger is not None:
                ledger.add_indexes(entry_id, size, indexes)
                if is_shared and ledger.is_acked(entry_id):
                    is_free |= dispatch.pending.acknowledge_range(ledger_id, entry_id, entry_id)
        acks.advance_mark_delete()
        if not is_shared:
            return NONE
        is_free |= dispatch.admit(acks.mark_delete, acks)
        # More can be read, because the entries that were held back are acknowledged.
        is_free |= len(dispatch.pending.waiting_keys) < held_back
        if self._unblock():
            return CLAIMABLE | UNBLOCKED
        return CLAIMABLE if is_free else NONE

    def _unblock(self) -> bool:
        """Consumers hold less than before. True if some of them may have entries again."""
        return self.dispatch.has_blocked and self.dispatch.check_limits(self.consumers.limits)

    def _assign(self, command: record.Assign) -> int:
        self.dispatch.assign(command, self.acks)
        if self.dispatch.may_block(self.consumers.least_limit):
            self.dispatch.check_limits(self.consumers.limits)
        return NONE

    def _redeliver(self, command: record.Redeliver) -> int:
        if not self.consumers.is_current(command.consumer_id, command.epoch):
            self.stale += 1
            return STALE
        self.dispatch.redeliver(command)
        self._unblock()
        return CLAIMABLE

    def _limits(self, command: record.Limits) -> int:
        self.epoch += 1  # a replica must not leap over this command with a summary, which has no consumers
        self.consumers.limit(command.max_unacked)
        dispatch = self.dispatch
        if not dispatch.assigned_by_consumer:
            return REWOUND
        had_blocked, dispatch.is_blocked = dispatch.has_blocked, False
        dispatch.most_unacked = command.max_unacked_in_all
        for assigned in dispatch.assigned_by_consumer.values():
            assigned.is_blocked = False
        dispatch.check_limits(self.consumers.limits)
        return REWOUND | CLAIMABLE | UNBLOCKED if had_blocked else REWOUND

    def _ack_cumulative(self, command: record.AckCumulative) -> int:
        if not self.consumers.is_current(command.consumer_id, command.epoch):
            self.stale += 1
            return STALE
        position = Position(command.ledger_id, command.entry_id)
        size, index = command.batch_size, command.batch_index
        if not 0 <= index < size - 1:
            self.acks.acknowledge_through(position)
        elif self.acks.acknowledge_through(position.previous()):
            ledger = self.acks.ledger(position.ledger_id)
            if ledger is not None:
                ledger.add_indexes(position.entry_id, size, (2 << index) - 1)
                self.acks.advance_mark_delete()
        return NONE

    def _seek(self, command: record.Seek) -> int:
        self.acks.reset(Position(command.ledger_id, command.entry_id))
        self.epoch += 1
        self.consumers.raise_epochs(self.epoch)
        self.dispatch.seek(self.mark_delete)
        return REWOUND | CLAIMABLE if self.dispatch.assigned_by_consumer else REWOUND

    def _clamp(self, command: record.Clamp) -> int:
        self.acks.clamp(Position(command.ledger_id, command.entry_id))
        self.dispatch.clamp(self.mark_delete)
        return NONE

    def _expired(self, command: record.Expired) -> int:
        self.expired = self.expired.plus(*command)
        return NONE

    def _checkpoint(self, command: record.Checkpoint) -> int:
        return NONE  # the replica has compared

    def _summary(self, command: record.Summary) -> int:
        return NONE  # it repeats what is known here

    def _open_range(self, command: record.OpenRange) -> int:
        return NONE  # what the consumer takes comes as assignments


_HANDLERS.update(
    {
        record.Create: SubscriptionState._create,
        record.Attach: SubscriptionState._attach,
        record.Detach: SubscriptionState._detach,
        record.Ledgers: SubscriptionState._ledgers,
        Ack: SubscriptionState._ack,
        record.AckCumulative: SubscriptionState._ack_cumulative,
        record.Seek: SubscriptionState._seek,
        record.Clamp: SubscriptionState._clamp,
        record.Checkpoint: SubscriptionState._checkpoint,
        record.Assign: SubscriptionState._assign,
        record.Redeliver: SubscriptionState._redeliver,
        record.Summary: SubscriptionState._summary,
        record.Limits: SubscriptionState._limits,
        record.Expired: SubscriptionState._expired,
        record.OpenRange: SubscriptionState._open_range,
    }
)
