"""The subscription as a pure state machine: the same commands in the same order give the same state anywhere.

Nothing here reads a clock, a file, a lock, a random number or a process id; commands carry every fact.
Each process that uses the subscription keeps a replica and feeds it the commands of the journal, whose
order the subscription's lock decides. Exclusive and Failover need `acks` and `consumers`; Shared and
Key_Shared also what `dispatch` keeps. The rules that choose between consumers are dispatchers.

A process keeps one replica, and leaps over commands by summaries: one of hundreds of consumers, asleep most
of the time, takes over the last summary in the journal instead of applying all commands since it was awake.

A subscription's state as a document (docs/format/subscription.md): what a new generation of the
journal starts from. The same state always gives the same bytes, which makes their checksum a test of
replicas.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from zlib import crc32

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.acknowledgement import (
    FORM_BITMAP,
    FORM_RANGE,
    MAX_BATCH_SIZE,
    MAX_ENTRY_ID,
    Ack,
    group_entries,
)
from embeddedpulsar._engine.format.document import (
    KIND_SUBSCRIPTION_SNAPSHOT,
    decode_document,
    encode_document,
    pack_map,
    unpack_map,
)
from embeddedpulsar._engine.format.frame import FORMAT_VERSION
from embeddedpulsar._engine.format.subscription_record import CONSUMER_TYPES, Checkpoint, ConsumerRules
from embeddedpulsar._engine.subscription.state.dispatch_state import (
    Consumer,
    ConsumerRegistry,
    DispatchState,
    RestingCounts,
)
from embeddedpulsar._engine.subscription.state.entry_states import DELAYED, WAITING
from embeddedpulsar._engine.subscription.state.ledger_acks import OPEN, AckBitmaps, LedgerAcks
from embeddedpulsar._engine.subscription.state.pending_acks import PendingAcks, TransactionAcks
from embeddedpulsar._engine.subscription.state.pending_entries import DelayedDeliveryTracker
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from typing import Any, Final

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
        lately = [expiry for expiry in self.lately if expiry[0] > time_ms - _WINDOW_MS]
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
        expired = sum(messages for at_ms, messages in self.lately if at_ms > now_ms - _WINDOW_MS)
        return expired * 1000 / _WINDOW_MS

    def pack(self) -> list[Any]:
        return [self.total, self.last_ms, [list(expiry) for expiry in self.lately]]

    @classmethod
    def unpack(cls, packed: Sequence[Any]) -> ExpiredCounts:
        """What `pack` packed.

        Raises:
            TypeError, ValueError: it is something else.
        """
        total, last_ms, lately = packed
        counts = cls(total, last_ms, tuple((at_ms, messages) for at_ms, messages in lately))
        numbers = [total, last_ms, *(number for expiry in counts.lately for number in expiry)]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(f"counts of expired messages {packed!r}")
        return counts


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
        self.pending_acks = PendingAcks()
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

    def last_touched(self) -> Position:
        """The highest position of which anything is acknowledged, be it in an open transaction. A hint
        without the lock of the subscription."""
        return max(self.acks.last_touched(), self.pending_acks.last_touched)

    def apply(self, command: record.Command) -> int:
        """Take over one command of the journal and return its effects (flags of this module)."""
        if not self.exists and type(command) is not record.Create:
            return NONE
        before = self.acks.mark_delete
        effects: int = _HANDLERS[type(command)](self, command)
        if self.acks.mark_delete != before:
            effects |= MARK_DELETE
            if self.pending_acks.transactions:
                self.pending_acks.drop_through(self.acks.mark_delete)
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
        if self.pending_acks.transactions:
            self.pending_acks.drop_unknown(self.acks)
        return NONE

    def _ack(self, command: Ack, is_committed: bool = False) -> int:
        if not is_committed and not self.consumers.is_current(command.consumer_id, command.epoch):
            self.stale += 1
            return STALE
        acks, dispatch = self.acks, self.dispatch
        is_shared, is_free = bool(dispatch.assigned_by_consumer), False
        held_back = len(dispatch.pending.waiting_keys) if is_shared else 0
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
        if command.batches and self.pending_acks.transactions:
            # Of some of these batches, what is left may be pending: then no consumer gets anything of them.
            is_free |= self._hold([(ledger_id, [entry_id]) for ledger_id, entry_id, *_ in command.batches])
        acks.advance_mark_delete()
        if not is_shared:
            return NONE
        if dispatch.joined:
            is_free |= dispatch.admit(acks.mark_delete, acks)
        # More can be read, because the entries that were held back are acknowledged.
        is_free |= held_back > 0 and len(dispatch.pending.waiting_keys) < held_back
        if dispatch.has_blocked and self._unblock():
            return CLAIMABLE | UNBLOCKED
        return CLAIMABLE if is_free else NONE

    def _unblock(self) -> bool:
        """Consumers hold less than before. True if some of them may have entries again."""
        return self.dispatch.has_blocked and self.dispatch.check_limits(self.consumers.limits)

    def _assign(self, command: record.Assign) -> int:
        self.dispatch.assign(
            command, self.acks, self.pending_acks if self.pending_acks.transactions else None
        )
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

    def _ack_cumulative(self, command: record.AckCumulative, is_committed: bool = False) -> int:
        if not self.consumers.is_current(command.consumer_id, command.epoch) and not is_committed:
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
        self.pending_acks.clear()
        self.epoch += 1
        self.consumers.raise_epochs(self.epoch)
        self.dispatch.seek(self.mark_delete)
        return REWOUND | CLAIMABLE if self.dispatch.assigned_by_consumer else REWOUND

    def _clamp(self, command: record.Clamp) -> int:
        self.acks.clamp(Position(command.ledger_id, command.entry_id))
        if self.pending_acks.transactions:
            self.pending_acks.drop_unknown(self.acks, Position(command.ledger_id, command.entry_id))
        self.dispatch.clamp(self.mark_delete)
        return NONE

    # -- transactions ------------------------------------------------------------------------------

    def _transaction_ack(self, command: record.TransactionAck) -> int:
        ack = command.ack
        if not self.consumers.is_current(ack.consumer_id, ack.epoch):
            self.stale += 1
            return STALE
        dispatch = self.dispatch
        added = self.pending_acks.add(command, self.acks)
        self._mix_transaction(command.transaction)
        if not dispatch.assigned_by_consumer:
            return NONE
        held_back = len(dispatch.pending.waiting_keys)
        if command.through is None and not ack.batches:  # whole entries, of which nothing is acknowledged
            is_free = False
            for ledger_id, entries in added:
                is_free |= dispatch.pending.hold(ledger_id, entries)
        else:
            is_free = self._hold(added)
        is_free |= held_back > 0 and len(dispatch.pending.waiting_keys) < held_back
        # The consumers hold less, as after an acknowledgement without a transaction.
        if dispatch.has_blocked and self._unblock():
            return CLAIMABLE | UNBLOCKED
        return CLAIMABLE if is_free else NONE

    def _hold(self, entries_by_ledger: Sequence[tuple[int, Sequence[int]]]) -> bool:
        """Take those of the entries of which no message is left. True if that frees a key."""
        acks, pending_acks, is_free = self.acks, self.pending_acks, False
        for ledger_id, entries in entries_by_ledger:
            held = [entry for entry in entries if pending_acks.holds(Position(ledger_id, entry), acks)]
            is_free |= self.dispatch.pending.hold(
                ledger_id, [entry for entry in held if not acks.is_acked(Position(ledger_id, entry))]
            )
        return is_free

    def _transaction_end(self, command: record.TransactionEnd) -> int:
        ended = self.pending_acks.end(command.transaction, command.outcome, command.time_ms)
        if ended is None:
            return NONE
        self._mix_transaction(command.transaction)
        if command.outcome == record.COMMITTED:
            return self._commit(ended)
        return self._abort(ended)

    def _transaction_commits(self, command: record.TransactionCommits) -> int:
        """As one `TransactionEnd` after the other; what they acknowledged is acknowledged at once."""
        pending_acks, time_ms, effects = self.pending_acks, command.time_ms, NONE
        entries: list[tuple[int, int]] = []
        for transaction in command.transactions:
            ended = pending_acks.end(transaction, record.COMMITTED, time_ms)
            if ended is None:
                continue
            if ended.batches or ended.through is not None:
                effects |= self._commit(ended)
            else:
                entries += [(ledger_id, entry) for ledger_id, own in ended.entries.items() for entry in own]
        self.digest = crc32(repr(command.transactions).encode(), self.digest)
        return effects | self._ack(Ack(0, 0, group_entries(entries), ()), is_committed=True)

    def _commit(self, ended: TransactionAcks) -> int:
        """Acknowledge what was pending, whether its consumers are attached or not."""
        single = ended.single
        if single is not None and not self.dispatch.assigned_by_consumer:
            ledger_id, entry = single
            ledger = self.acks.ledger(ledger_id)
            if ledger is not None:  # as in `_ack`
                ledger.add_range(entry, entry)
            self.acks.advance_mark_delete()
            return NONE
        effects = self._ack(ended.individual(), True)
        if ended.through is None:
            return effects
        if ended.instead.groups or ended.instead.batches:
            return effects | self._ack(ended.instead, is_committed=True)
        return effects | self._ack_cumulative(record.AckCumulative(0, 0, *ended.through), is_committed=True)

    def _abort(self, ended: TransactionAcks) -> int:
        """Give back what was pending. A consumer that acknowledged cumulatively has all of it, and asks for
        it if it wants it again; individual acknowledgements are delivered again at once."""
        acks, dispatch, is_shared = self.acks, self.dispatch, bool(self.dispatch.assigned_by_consumer)
        # An active consumer does not count deliveries; with none, the next ones may.
        is_counted = is_shared or not len(self.consumers)
        has_returned = False
        # What was acknowledged since stays away, and so does a batch whose other messages are pending.
        for ledger_id, entries in ended.positions():
            returned = [
                entry
                for entry in entries
                if not acks.is_acked(Position(ledger_id, entry))
                and not self.pending_acks.holds(Position(ledger_id, entry), acks)
            ]
            if returned:
                has_returned = True
                dispatch.take_back(ledger_id, returned, is_counted=is_counted)
        if is_shared:
            if ended.through is not None:  # of a consumer of another type, that was attached before
                dispatch.let_go(self.pending_acks, acks)
            self._unblock()
        elif has_returned and not is_counted:
            self.pending_acks.rewinds += 1
        return CLAIMABLE

    def rewinds_with(self, command: record.TransactionEnd) -> bool:
        """Whether an active consumer has to look where it reads on when this is committed."""
        is_active = len(self.consumers) and not self.dispatch.assigned_by_consumer
        return bool(
            is_active
            and command.outcome == record.ABORTED
            and command.transaction in self.pending_acks.transactions
        )

    def _mix_transaction(self, transaction: record.TransactionId) -> None:
        """Mix what a transaction has pending now into the digest: no entry need change its state by it."""
        # The text of a list of numbers.
        pending = self.pending_acks.transactions.get(transaction)
        if pending is None:
            text = b"[%d, %d]" % transaction
        elif pending.through is None and not pending.batches:
            text = b"[%d, %d, %d, 0, None]" % (*transaction, sum(map(len, pending.entries.values())))
        else:
            text = repr([*transaction, *pending.numbers()]).encode()
        self.digest = crc32(text, self.digest)

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
        record.TransactionCommits: SubscriptionState._transaction_commits,
        record.Limits: SubscriptionState._limits,
        record.Expired: SubscriptionState._expired,
        record.OpenRange: SubscriptionState._open_range,
        record.TransactionAck: SubscriptionState._transaction_ack,
        record.TransactionEnd: SubscriptionState._transaction_end,
    }
)


T = TypeVar("T")
DISTORTIONS: Final = (KeyError, TypeError, ValueError, IndexError, OverflowError)
"""The errors that reading a state from a malformed document may raise."""


def encode_snapshot(state: SubscriptionState) -> bytes:
    """The whole state.

    Raises:
        ValueError: larger than a document may be (64 MiB, some hundred thousand partly acknowledged ledgers).
    """
    dispatch = state.dispatch
    counts = dispatch.counts.pack() if dispatch.counts else None
    packed = dispatch.pack(state.acks) if dispatch.assigned_by_consumer else None
    expired = state.expired.pack() if state.expired.total else None
    transactions = state.pending_acks.pack() if state.pending_acks.is_used else None
    return _document(state, packed, counts, transactions, state.last_active_ms, expired)


def _document(
    state: SubscriptionState,
    dispatch: list[Any] | None,
    counts: Any,
    transactions: list[Any] | None,
    last_active_ms: int = 0,
    expired: list[Any] | None = None,
) -> bytes:
    # Optional fields are left out when they are empty: a state that does not use them has the same
    # bytes, and the same checksum, as in a release that did not know them.
    optional = {} if counts is None else {"counts": counts}
    if expired is not None:
        optional["expired"] = expired
    if last_active_ms:
        optional["last_active_ms"] = last_active_ms
    if transactions is not None:
        optional["transactions"] = transactions
    # A release that does not know transactions must not read what is pending: it would deliver it.
    version = record.SNAPSHOT_VERSION if state.pending_acks.transactions else FORMAT_VERSION
    return encode_document(
        KIND_SUBSCRIPTION_SNAPSHOT,
        {
            "exists": state.exists,
            "name": state.name,
            "epoch": state.epoch,
            "commands": state.commands,
            "digest": state.digest,
            "stale": state.stale,
            "consumers": [_pack_consumer(consumer) for consumer in state.consumers.all()],
            "dispatch": dispatch,
            "ledgers": pack_ledgers(state.acks),
            **optional,
        },
        version,
    )


def decode_snapshot(data: bytes) -> SubscriptionState:
    """The state `encode_snapshot` wrote.

    Raises:
        CorruptionError, ForeignFileError, UnsupportedFormatVersion: this is no such document.
    """
    fields = decode_document(data, KIND_SUBSCRIPTION_SNAPSHOT, record.SNAPSHOT_VERSION)
    state = SubscriptionState()
    try:
        # Types are checked where a wrong one would show only much later; the rest raises as soon as
        # it is used.
        state.exists = _typed(bool, fields["exists"])
        state.name = _typed(str, fields["name"])
        state.epoch = _typed(int, fields["epoch"])
        state.commands = _typed(int, fields["commands"])
        state.digest = _typed(int, fields["digest"])
        state.stale = _typed(int, fields["stale"])
        for consumer in fields["consumers"]:
            state.consumers.add(_consumer(*consumer))
        state.acks = unpack_ledgers(fields["ledgers"])
        # None stands for a subscription without consumers that share its entries.
        if fields["dispatch"] is not None:
            state.dispatch.unpack(fields["dispatch"])
        state.dispatch.counts = RestingCounts.unpack(fields.get("counts", ()))
        state.last_active_ms = _typed(int, fields.get("last_active_ms", 0))
        state.expired = ExpiredCounts.unpack(fields.get("expired", NOTHING_EXPIRED))
        if "transactions" in fields:
            state.pending_acks = PendingAcks.unpack(fields["transactions"])
    except DISTORTIONS as e:
        raise CorruptionError(reason=f"the snapshot lacks or distorts {e or type(e).__name__}") from e
    return state


def _typed(kind: type[T], value: object) -> T:
    if type(value) is not kind:
        raise TypeError(f"{value!r} where {kind.__name__} belongs")
    return value


def checkpoint_of(state: SubscriptionState) -> Checkpoint:
    """A checksum that all replicas must agree on after the same commands.

    Taken under the lock, so it does not read the single entries: `digest` stands for them, which every
    change of an entry is mixed into.
    """
    dispatch = state.dispatch
    outline = dispatch.outline() if dispatch.assigned_by_consumer else None
    counts = len(dispatch.counts) or None
    transactions = state.pending_acks.outline() if state.pending_acks.is_used else None
    # The outline has the lengths of the long columns in place of their elements.
    return Checkpoint(state.commands, state.digest, crc32(_document(state, outline, counts, transactions)))


def pack_ledgers(acks: AckBitmaps) -> list[Any]:
    """All acknowledgements, packed."""
    return [_pack_ledger(ledger_id, acks_of_ledger) for ledger_id, acks_of_ledger in acks.ledgers()]


def unpack_ledgers(packed: Sequence[Sequence[Any]], before: AckBitmaps | None = None) -> AckBitmaps:
    """The acknowledgements that `pack_ledgers` packed.

    Args:
        packed: the result of `pack_ledgers`.
        before: the same subscription at an earlier time, which is used up: bitmaps are long.
    """
    ledgers = []
    for ledger_id, *fields in packed:
        # The bitmap is filled anew and not made anew: what lies below its floor means nothing and may
        # stay.
        acks = None if before is None else before.ledger(ledger_id)
        ledgers.append(_unpack_ledger(acks or LedgerAcks(), ledger_id, *fields))
    return AckBitmaps.of(ledgers)


def _pack_ledger(ledger_id: int, acks: LedgerAcks) -> list[Any]:
    # ``bit_length`` counts one bit more than the batch has messages, so this is their number in whole
    # bytes.
    partial = [
        [entry, whole.bit_length() - 1, acks.indexes(entry).to_bytes((whole.bit_length() + 6) >> 3, "little")]
        for entry, whole in sorted(acks.partial.items())
    ]
    return [ledger_id, acks.entries, acks.floor, acks.window(), partial]


def _unpack_ledger(
    acks: LedgerAcks,
    ledger_id: int,
    entries: int,
    floor: int,
    window: bytes,
    partial: list[tuple[int, int, bytes]],
) -> tuple[int, LedgerAcks]:
    # Checked before anything is allocated: the numbers decide how long the bitmap becomes.
    if not (0 <= floor <= MAX_ENTRY_ID + 1 and OPEN <= entries <= MAX_ENTRY_ID + 1 and ledger_id >= 0):
        raise ValueError(f"ledger {ledger_id} with {entries} entries acknowledged below {floor}")
    acks.entries = entries
    acks.restore(floor, window)
    acks.partial.clear()
    for entry, size, indexes in partial:
        if not (0 <= entry <= MAX_ENTRY_ID and 0 < size <= MAX_BATCH_SIZE):
            raise ValueError(f"batch {entry} of {size} messages")
        acks.add_indexes(entry, size, int.from_bytes(indexes, "little"))
    return ledger_id, acks


def _pack_consumer(consumer: Consumer) -> list[Any]:
    *fields, rules = consumer
    return [*fields, [*rules[:-1], [list(slots) for slots in rules.ranges]]]


def _consumer(
    consumer_id: int,
    name: str,
    consumer_type: int,
    priority: int,
    uuid: bytes,
    attached_ms: int,
    epoch: int,
    code: int,
    rules: list[Any],
) -> Consumer:
    if len(_typed(bytes, uuid)) != 16:
        raise ValueError(f"the uuid of consumer {name!r}")
    _typed(str, name)
    if consumer_type not in CONSUMER_TYPES:
        raise ValueError(f"the type {consumer_type!r} of consumer {name!r}")
    *numbers, ranges = rules
    # They index slots and go into records, so nothing but integers may pass.
    for number in (consumer_id, consumer_type, priority, attached_ms, epoch, code, *numbers):
        _typed(int, number)
    own_rules = ConsumerRules._make([*numbers, tuple((_typed(int, a), _typed(int, b)) for a, b in ranges)])
    return Consumer(consumer_id, name, consumer_type, priority, uuid, attached_ms, epoch, code, own_rules)


HOUSEKEEPER: Final = "__housekeeping"
"""The name of the consumer that attaches for a moment to acknowledge what has expired."""
# What counts as use of a subscription, so that it does not end for lack of it. The consumer that only
# lets messages expire must not keep it alive.
_ACTIVITIES: Final = frozenset((record.CREATE, record.ATTACH, record.DETACH))

LEAST_CONSUMERS: Final = 16
"""With fewer of them none is far behind."""
# Beyond these numbers a summary costs more than the commands that it stands for.
_MOST_PENDING: Final = 1024
_MOST_DELAYED: Final = 64
_MOST_COUNTS: Final = 64
_MOST_BYTES: Final = 1 << 20


def is_worth_it(state: SubscriptionState) -> bool:
    """Whether a summary is made of such a state: many consumers, and little besides."""
    dispatch = state.dispatch
    if len(dispatch.assigned_by_consumer) < LEAST_CONSUMERS:
        return False
    ledger_id, entry_id = state.mark_delete
    return (
        dispatch.read.ledger_id == ledger_id
        and dispatch.read.entry_id - entry_id <= _MOST_PENDING
        and len(dispatch.delayed) <= _MOST_DELAYED
        and len(dispatch.counts) <= _MOST_COUNTS
        # A process of a release that does not know transactions must not leap over what is pending.
        and not state.pending_acks.transactions
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
    if state.pending_acks.is_used:
        fields["transactions"] = state.pending_acks.pack()
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
        # A summary has no consumers. It fits only a state of the same epoch, which rises whenever
        # they come, leave or are moved; an older summary would lead back.
        if not state.exists or fields["epoch"] != state.epoch or fields["commands"] < state.commands:
            return False
        state.acks = unpack_ledgers(fields["ledgers"], state.acks)
        _unpack_dispatch(state.dispatch, fields["dispatch"])
        state.dispatch.counts = RestingCounts.unpack(fields["counts"])
        state.expired = ExpiredCounts.unpack(fields.get("expired", NOTHING_EXPIRED))
        transactions = fields.get("transactions")
        state.pending_acks = PendingAcks() if transactions is None else PendingAcks.unpack(transactions)
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
        bytes([entries.code for entries in assigned]),
        [entries.start for entries in assigned],
        [entries.end for entries in assigned],
        [entries.messages for entries in assigned],
        [entries.code for entries in assigned if entries.is_blocked],
        [
            [entries.code, [list(each) for each in entries.ranges]]
            for entries in assigned
            if entries.start < entries.end
        ],
    ]


def _unpack_dispatch(dispatch: DispatchState, packed: Sequence[Any]) -> None:
    read, pending, delayed, joined, dispatch.is_blocked, codes, *columns, blocked, ranges = packed
    assigned = list(dispatch.assigned_by_consumer.values())
    # Equal epochs mean equal consumers, in the same order: anything else is damage.
    if codes != bytes([entries.code for entries in assigned]):
        raise ValueError("other consumers")
    dispatch.read = Position(*read)
    dispatch.pending.unpack(pending)
    dispatch.delayed = DelayedDeliveryTracker.unpack(delayed)
    dispatch.joined = {consumer_id: Position(*position) for consumer_id, *position in joined}
    # Only consumers that have entries left are listed: most of hundreds have none.
    behind = dict(ranges)
    for entries, start, end, messages in zip(assigned, *columns, strict=True):
        entries.start, entries.end, entries.messages = start, end, messages
        entries.is_blocked = entries.code in blocked
        entries.hold([(ledger_id, first, last) for ledger_id, first, last in behind.get(entries.code, ())])
    dispatch.has_blocked = dispatch.is_blocked or bool(blocked)


class SubscriptionReplica:
    """The state of a subscription as its journal gives it, with the effects of what was applied.

    Role: between `Journal` and `SubscriptionState`. Callers: the holder of the subscription's lock.

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
        """Take over a snapshot, or nothing (see `_engine.log.journal_file.Replica`)."""
        state = self.state
        if snapshot is not None:
            self.state = decode_snapshot(snapshot)
        elif state.exists or state.commands or state.last_active_ms:  # else nothing was ever applied to it
            self.state = SubscriptionState()
        # A snapshot replaces commands whose effects are not known, so everything may have happened.
        self.effects |= MEMBERS | CLAIMABLE | UNBLOCKED
        self.has_diverged = False

    def replay(self, kind: int, payload: bytes, time_ms: int) -> None:
        """Apply a command others committed."""
        command = record.decode(kind, payload)
        # Before the command is applied: afterwards a consumer that leaves has no name any more.
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
            if type(command) is record.Checkpoint:
                self.apply(command)
            else:
                self.effects |= self.state.apply(command)

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
        """Take over a summary (see `_engine.log.journal_file.Replica`)."""
        return kind == record.SUMMARY and adopt_summary(self.state, payload)

    def apply(self, command: record.Command) -> None:
        # Compared before it is applied, as it was made before: each applied command changes the
        # digest.
        if isinstance(command, record.Checkpoint) and command != checkpoint_of(self.state):
            self.has_diverged = True
        self.effects |= self.state.apply(command)

    def snapshot(self) -> bytes:
        return encode_snapshot(self.state)

    def take_effects(self) -> int:
        """Return the collected effects, and forget them."""
        effects, self.effects = self.effects, NONE
        return effects
