"""The subscription as a pure state machine: the same commands in the same order give the same state anywhere.

Nothing here reads a clock, a file, a lock, a random number or a process id; commands carry every fact.
Each process that uses the subscription keeps a replica and feeds it the commands of the journal, whose
order the subscription's lock decides. Exclusive needs what is here. The other types add commands (claims,
redeliveries) and the structures those fill (pending ranges, redelivery counts, a replay queue) beside
`acks`; the rules that choose between consumers are dispatchers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final
from zlib import crc32

from embeddedpulsar.format import subscription_record as record
from embeddedpulsar.format.acknowledgement import FORM_BITMAP, FORM_RANGE, Ack
from embeddedpulsar.managed_ledger.position import BEFORE_FIRST, Position
from embeddedpulsar.subscription.ack_bitmaps import AckBitmaps
from embeddedpulsar.subscription.consumer_registry import Consumer, ConsumerRegistry

# Effects of a command: what whoever applied it has to make known outside. Flags, to be combined.
NONE: Final = 0
STALE: Final = 1  # dropped: its consumer left, or was put back since
MARK_DELETE: Final = 2  # the mark-delete position moved
REWOUND: Final = 4  # what consumers have read ahead is void: they look here before they read on
MEMBERS: Final = 8  # consumers came or left

_SUMMARY: Final = struct.Struct("<QqQQIIB")


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

    __slots__ = (
        "acks",
        "commands",
        "consumers",
        "digest",
        "epoch",
        "exists",
        "name",
        "stale",
    )

    def __init__(self) -> None:
        self.exists = False
        self.name = ""
        self.epoch = 0
        self.acks = AckBitmaps(BEFORE_FIRST)
        self.consumers = ConsumerRegistry()
        self.commands = 0
        self.digest = 0
        self.stale = 0

    @property
    def mark_delete(self) -> Position:
        """Everything up to and including this position is acknowledged, and the entry after it is not."""
        return self.acks.mark_delete

    def apply(self, command: record.Command) -> int:
        """Take over one command of the journal and return its effects (flags of this module)."""
        if not self.exists and type(command) is not record.Create:
            return NONE
        before = self.acks.mark_delete
        handler: Callable[[SubscriptionState, Any], int] = _HANDLERS[type(command)]
        effects = handler(self, command)
        if self.acks.mark_delete != before:
            effects |= MARK_DELETE
        self.commands += 1
        self._mix()
        return effects

    def _mix(self) -> None:
        acks = self.acks
        newest = acks.ledger(acks.newest_ledger)
        floor, top = (newest.floor, max(newest.floor, newest.top)) if newest is not None else (0, 0)
        ledger_id, entry_id = acks.mark_delete
        members = len(self.consumers)
        summary = _SUMMARY.pack(ledger_id, entry_id, self.epoch, self.stale, floor, top, members & 0xFF)
        self.digest = crc32(summary, self.digest)

    def _create(self, command: record.Create) -> int:
        self.exists = True
        self.name = command.name
        self.epoch = command.epoch
        self.acks.reset(Position(command.ledger_id, command.entry_id))
        return REWOUND | MARK_DELETE

    def _attach(self, command: record.Attach) -> int:
        self.epoch += 1
        self.consumers.add(
            Consumer(
                command.consumer_id,
                command.name,
                command.consumer_type,
                command.priority_level,
                command.client_uuid,
                command.attached_ms,
                self.epoch,
            )
        )
        return REWOUND | MEMBERS

    def _detach(self, command: record.Detach) -> int:
        if not self.consumers.remove(command.consumer_id):
            return NONE
        self.epoch += 1
        return REWOUND | MEMBERS

    def _ledgers(self, command: record.Ledgers) -> int:
        self.acks.learn_ledgers(command.listed)
        return NONE

    def _ack(self, command: Ack) -> int:
        if not self.consumers.is_current(command.consumer_id, command.epoch):
            self.stale += 1
            return STALE
        acks = self.acks
        for group in command.groups:
            ledger = acks.ledger(group.ledger_id)
            if ledger is None:
                continue  # acknowledged long ago, or no ledger of this topic
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
        acks.settle()
        return NONE

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
                self.acks.settle()
        return NONE

    def _seek(self, command: record.Seek) -> int:
        self.acks.reset(Position(command.ledger_id, command.entry_id))
        self.epoch += 1
        self.consumers.raise_epochs(self.epoch)
        return REWOUND

    def _clamp(self, command: record.Clamp) -> int:
        self.acks.clamp(Position(command.ledger_id, command.entry_id))
        return NONE

    def _checkpoint(self, command: record.Checkpoint) -> int:
        return NONE  # whoever keeps the replica compares, before it gets here


_HANDLERS: Final[dict[type, Callable[[SubscriptionState, Any], int]]] = {
    record.Create: SubscriptionState._create,
    record.Attach: SubscriptionState._attach,
    record.Detach: SubscriptionState._detach,
    record.Ledgers: SubscriptionState._ledgers,
    Ack: SubscriptionState._ack,
    record.AckCumulative: SubscriptionState._ack_cumulative,
    record.Seek: SubscriptionState._seek,
    record.Clamp: SubscriptionState._clamp,
    record.Checkpoint: SubscriptionState._checkpoint,
}
