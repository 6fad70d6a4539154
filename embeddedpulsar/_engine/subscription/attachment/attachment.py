"""A consumer attached to its subscription: acknowledging, moving, waiting. Subclasses read.

It acknowledges by commands, under the lock of the subscription.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.acknowledgement import (
    MAX_BATCH_SIZE,
    MAX_ENTRY_ID,
    Ack,
    AckBatch,
    AckGroup,
    group_batches,
    group_entries,
)
from embeddedpulsar._engine.format.control import SubscriptionWord
from embeddedpulsar._engine.format.entry import EntryView
from embeddedpulsar._engine.format.entry_decoder import RawPosition
from embeddedpulsar._engine.log.waiter_slots import EACH
from embeddedpulsar._engine.platform import fork
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.timing import FIRST_PAUSE_S, BackgroundWork
from embeddedpulsar._engine.subscription.ack_ring import AckRing
from embeddedpulsar._engine.subscription.attachment.chunk_keeper import (
    ChunkExpiry,
    ChunkKeeper,
    ChunkOptions,
    ack_around_parts,
    around_parts,
)
from embeddedpulsar._engine.subscription.attachment.membership import Membership
from embeddedpulsar._engine.subscription.liveness_monitor import detach
from embeddedpulsar._engine.subscription.log_queries import (
    acknowledged_in,
    existing,
    ledgers_of,
    messages_left,
    news_for,
    seek_commands,
)
from embeddedpulsar._engine.subscription.shared_state import SharedState
from embeddedpulsar._engine.subscription.state.dispatch_state import Consumer
from embeddedpulsar._engine.subscription.state.replica import STALE, SubscriptionState
from embeddedpulsar._engine.subscription.subscription_files import Freshness
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    ConsumerAssignError,
    ConsumerBusy,
    CumulativeAcknowledgementNotAllowedError,
    LockTimeout,
    PulsarException,
    TransactionConflict,
)
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.records import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.log.log import Log

_new: Final = tuple.__new__  # as a call of the class, without another one
Partial = Mapping[RawPosition, tuple[int, int]]


class Holder(Protocol):
    """The part of an `Attachment` that acknowledging needs."""

    consumer_id: int
    epoch: int

    def read_position(self) -> RawPosition:
        """Entries before this one are known to exist."""

    def note_ack(self, last: Position) -> None:
        """Called before entries up to ``last``, from the read position on, are acknowledged."""

    def before_ack(self, state: SubscriptionState, ledger_id: int) -> list[AckGroup]:
        """Called before an acknowledgement of a ledger is committed, under the subscription's lock. Returns
        what is to be acknowledged with it."""

    def show_acknowledged(self) -> None:
        """Let other processes see that this one runs, and acknowledges now."""


class Acknowledger:
    """Acknowledges for one `Attachment`.

    Role: takes ids that may be made up, late or of parts of messages; issues commands for entries that exist.
    Invariants: the entries of a chunked message are acknowledged in one command, so that a crash cannot leave
    half of them acknowledged.
    """

    def __init__(self, holder: Holder, log: Log, shared: SharedState, chunks: ChunkKeeper) -> None:
        self._holder: Final = holder
        self._log: Final = log
        self._shared: Final = shared
        self._chunks: Final = chunks

    def make_ring(self, epoch: int) -> AckRing | None:
        """Make a file for acknowledgements that are not written yet; None if there is no room for one."""
        shared = self._shared
        try:
            return AckRing.make(shared.directory, self._holder.consumer_id, epoch, shared.control.boot_id)
        except (PulsarException, OSError):
            return None

    def is_plain(self, ledger_id: int, entry_id: int, is_cumulative: bool = False) -> bool:
        """Whether acknowledging this entry alone is complete: it exists, and is no part of a chunked message.
        False if finding that out takes a look at the log."""
        chunks = self._chunks
        try:
            # What was read exists: the comparison spares a look at the log.
            if (ledger_id, entry_id) >= self._holder.read_position() or entry_id > MAX_ENTRY_ID:
                return False
            # Parts of any chunked message may lie before the entry, so there must be none at all.
            if is_cumulative:
                return chunks.is_idle
            if (ledger_id, entry_id) in chunks.delivered:
                return False
            return not chunks.assembler.last_parts.between(ledger_id, entry_id, entry_id)
        except ValueError:
            return False  # closed meanwhile

    def acknowledge(
        self,
        entries: Sequence[RawPosition],
        partial: Partial | None = None,
        *,
        epoch: int | None = None,
        transaction: record.TransactionId | None = None,
    ) -> bool:
        """Acknowledge whole entries, and single messages of batches, in one command.

        About 10 us and 0.1 us per entry. Order does not matter; entries that are acknowledged already, or
        do not exist, are ignored. In a transaction it is all or nothing: the call is refused if anything of
        it is acknowledged or pending. What the caller collected before is to be acknowledged first, and of a
        batch of which something is acknowledged the rest is named by ``partial``.

        Args:
            entries: (ledger, entry) pairs.
            partial: (ledger, entry) -> (bit set of acknowledged batch indexes, messages in the batch).
            epoch: `epoch` when the messages were received; default the present one.
            transaction: in which it is acknowledged; it counts when that commits, and no consumer
                gets the messages until then. None for at once.

        Returns:
            False if nothing was acknowledged because the subscription was moved since.

        Raises:
            AlreadyClosed: the subscription is closed.
            StorageFullError: no room; nothing was acknowledged.
            TransactionConflict: something of it is acknowledged, or pending in a transaction.
        """
        partial = partial or {}
        chunks = self._chunks
        if transaction is not None:
            return self._acknowledge_in(transaction, entries, partial, epoch)
        # The usual case: this consumer holds no chunked message.
        if not chunks.delivered:
            return self._acknowledge(entries, partial, epoch)
        is_valid = self._acknowledge(chunks.with_parts(entries), partial, epoch)
        if is_valid:  # else they stay unacknowledged, and another consumer may acknowledge them
            chunks.settled(entries)
        if chunks.has_many:
            self._shared.transact(lambda state: chunks.drop(state.acks.is_acked))
        return is_valid

    def _acknowledge(self, entries: Sequence[RawPosition], partial: Partial, epoch: int | None) -> bool:
        try:
            groups, batches = group_entries(entries), group_batches(partial)
        except ValueError:  # ids that no ledger can have
            return self._acknowledge(*self._real(entries, partial), epoch)
        highest = max(_end_of(groups), batches[-1][:2] if batches else BEFORE_FIRST)
        # Some entries were not read here and may be made up: those that the log does not have are
        # left out.
        if highest >= self._holder.read_position():
            entries, partial = self._real(entries, partial)
            groups, batches = group_entries(entries), group_batches(partial)
            highest = max(_end_of(groups), batches[-1][:2] if batches else BEFORE_FIRST)
        parts = self._chunks.strange_parts(groups, entries)
        if parts:
            groups = group_entries([*parts, *entries])
        if not groups and not batches:
            return True
        return self._commit_ack(
            [Ack(self._holder.consumer_id, self._holder.epoch if epoch is None else epoch, groups, batches)],
            Position(*highest),
        )

    def _acknowledge_in(
        self,
        transaction: record.TransactionId,
        entries: Sequence[RawPosition],
        partial: Partial,
        epoch: int | None,
    ) -> bool:
        """Acknowledge what exists of the entries in a transaction."""
        try:
            # What was read exists, and waits for no transaction.
            is_read = not partial and entries and max(entries) < self._holder.read_position()
            groups = group_entries(entries) if is_read else ()
        except ValueError:  # ids that no ledger can have
            groups = ()
        batches: tuple[AckBatch, ...] = ()
        if not groups or groups[0].ledger_id < 0:
            entries, partial = self._real(entries, partial)
            groups, batches = group_entries(entries), group_batches(partial)
            if not groups and not batches:
                return True
        chunks = self._chunks
        parts = chunks.strange_parts(groups, entries)
        if chunks.delivered or parts:
            parts = list({*chunks.with_parts(entries), *parts}.difference(entries))
        highest = (groups[-1].ledger_id, groups[-1].last) if groups else BEFORE_FIRST
        if batches:
            highest = max(highest, batches[-1][:2])
        current = self._holder.epoch if epoch is None else epoch
        ack = _new(Ack, (self._holder.consumer_id, current, groups, batches))
        command = _new(record.TransactionAck, (transaction, ack, None))
        is_valid = self._commit_in_transaction(command, _new(Position, highest), entries, parts)
        if is_valid and chunks.delivered:
            chunks.settled(entries)
        return is_valid

    def _real(self, entries: Sequence[RawPosition], partial: Partial) -> tuple[list[RawPosition], Partial]:
        """The entries of these that are in the log: made-up ids must not acknowledge entries to come."""
        batches = {
            entry: (partial[entry][0] & ((1 << partial[entry][1]) - 1), partial[entry][1])
            for entry in existing(self._log, partial)
            if 0 < partial[entry][1] <= MAX_BATCH_SIZE
        }
        return existing(self._log, entries), batches

    def acknowledge_cumulative(
        self,
        ledger_id: int,
        entry_id: int,
        batch_index: int = -1,
        batch_size: int = 0,
        *,
        epoch: int | None = None,
        transaction: record.TransactionId | None = None,
    ) -> bool:
        """Acknowledge everything up to and including a message.

        Args:
            ledger_id, entry_id: its entry; entry -1 acknowledges all earlier ledgers.
            batch_index: index in its batch; -1 for the whole entry.
            batch_size: messages in the batch, if an index is given.
            epoch, transaction: as in `acknowledge`.

        Returns:
            False if nothing was acknowledged because the subscription was moved since.

        Raises:
            TransactionConflict: in a transaction: everything up to there is acknowledged, or another
                transaction has a cumulative acknowledgement pending, or this one has it up to there.
            CumulativeAcknowledgementNotAllowedError: in a transaction, of a type that shares its messages.
        """
        position = Position(ledger_id, entry_id)
        if position >= self._holder.read_position():
            if position > (self._log.max_read_position() or BEFORE_FIRST):
                return True  # a made-up id must not acknowledge the future
        # An index outside of its batch stands for the whole entry.
        index, size = (batch_index, batch_size) if 0 <= batch_index < batch_size else (-1, 0)
        current = self._holder.epoch if epoch is None else epoch
        if transaction is not None:
            through = record.AckedThrough(ledger_id, entry_id, index, size)
            return self._acknowledge_through(transaction, through, current)
        command = record.AckCumulative(self._holder.consumer_id, current, ledger_id, entry_id, index, size)
        if self._chunks.is_idle:
            return self._commit_ack([command], position)
        # Messages that begin before the position and end behind it keep their first parts:
        # acknowledged, these could be trimmed before the message is delivered.
        spared = self._chunks.unfinished(position)
        commands = around_parts(command, spared, ledgers_of(self._log)) if spared else [command]
        is_valid = self._commit_ack(commands, position)
        if is_valid:
            # With an index the entry itself is acknowledged in part only.
            self._chunks.settled_through(position if index < 0 else position.previous())
        return is_valid

    def _acknowledge_through(
        self, transaction: record.TransactionId, through: record.AckedThrough, epoch: int
    ) -> bool:
        """Acknowledge cumulatively in a transaction."""
        chunks, position = self._chunks, Position(through.ledger_id, through.entry_id)
        ack = Ack(self._holder.consumer_id, epoch, (), ())
        spared = [] if chunks.is_idle else chunks.unfinished(position)
        if spared:
            ack = ack_around_parts(ack, through, spared, ledgers_of(self._log))
            if not ack.groups and not ack.batches:
                return True
        is_valid = self._commit_in_transaction(record.TransactionAck(transaction, ack, through), position)
        if is_valid and not chunks.is_idle:
            chunks.settled_through(position if through.batch_index < 0 else position.previous())
        return is_valid

    def _commit_in_transaction(
        self,
        command: record.TransactionAck,
        highest: Position,
        entries: Sequence[RawPosition] = (),
        parts: Collection[RawPosition] = (),
    ) -> bool:
        """Commit what a transaction acknowledges of entries up to ``highest``, if nothing conflicts with it.

        The rules are judged here, under the lock and on the caught-up state, in which nothing is pending of
        transactions that ended; the command says only what every replica takes over.

        Args:
            command: what the caller names.
            highest: no entry of it lies behind.
            entries, parts: its whole entries, and the other parts of those that are chunked messages. Of the
                parts some may have been acknowledged: they expired, or were skipped. That is no conflict.
        """
        log, shared, ack, ledger_id = self._log, self._shared, command.ack, highest.ledger_id
        if log.is_volatile:
            raise TransactionConflict(
                f"{log.name} is non-persistent: transaction {_name(command)} cannot acknowledge its messages"
                ", which are acknowledged when they are delivered; acknowledge without a transaction"
            )
        facts = ledgers_of(log) if ledger_id > shared.state.acks.newest_ledger else None

        def body(state: SubscriptionState) -> bool:
            if not state.exists:
                return False
            news = [] if facts is None else news_for(state, facts)
            if news:
                shared.commit(news)  # what the rules compare with must be known
            if not state.consumers.is_current(ack.consumer_id, ack.epoch):
                return False
            if command.through is not None and state.dispatch.assigned_by_consumer:
                raise CumulativeAcknowledgementNotAllowedError(
                    f"consumers share the messages of subscription {state.name!r}; acknowledge one by one"
                )
            if parts:
                acks = state.acks
                unacked = [position for position in parts if not acks.is_acked(Position(*position))]
                full = command._replace(ack=ack._replace(groups=group_entries(sorted({*unacked, *entries}))))
            else:
                full = command
            refusal = state.pending_acks.refusal(full, state.acks)
            if refusal:
                shared.apply_ends()
                refusal = state.pending_acks.refusal(full, state.acks)
            if refusal:
                raise TransactionConflict(
                    f"transaction {_name(command)} cannot acknowledge in subscription {state.name!r} of "
                    f"{log.name}: {refusal}; nothing of this call was acknowledged, so leave that message "
                    "out, or abort"
                )
            self._holder.show_acknowledged()
            self._holder.note_ack(highest)
            more = self._holder.before_ack(state, ledger_id)
            # Compaction removed these: no consumer gets them, however the transaction ends.
            first = [Ack(ack.consumer_id, ack.epoch, tuple(more), ())] if more else []
            return shared.commit([*first, full]) & STALE == 0

        # Flushed with all that the transaction did, by its commit. What committed meanwhile is followed with
        # one command for several: what conflicts with nothing that is pending does not conflict with it when
        # that is acknowledged. Only a cumulative acknowledgement covers more than it names.
        most_ended = _MOST_ENDED if command.through is None else 0
        return shared.transact(body, is_flushed=False, most_ended=most_ended)

    def _commit_ack(self, commands: Sequence[record.Command], highest: Position) -> bool:
        """Commit acknowledgements of entries up to ``highest``."""
        facts, ledger_id = None, highest.ledger_id
        # Before the lock is taken, because it reads the log; the state without the lock is a hint
        # only, and the command is right without the news.
        if ledger_id > self._shared.state.acks.newest_ledger:
            facts = ledgers_of(self._log)

        def body(state: SubscriptionState) -> bool:
            if not state.exists:
                return False
            self._holder.show_acknowledged()
            self._holder.note_ack(highest)  # under the lock: another thread may have rewound the reader
            news = [] if facts is None else news_for(state, facts)
            more = self._holder.before_ack(state, ledger_id)
            # What the reader stepped over is acknowledged along with it, see `CompactedReader`.
            first = [Ack(self._holder.consumer_id, self._holder.epoch, tuple(more), ())] if more else []
            return self._shared.commit([*news, *first, *commands]) & STALE == 0

        return self._shared.transact(body)

    def acknowledge_unreadable(self, skipped: list[AckGroup]) -> None:
        """Tell the state which ledgers there are now, and acknowledge entries that cannot be read: either
        would hold back the mark-delete position for ever."""
        facts = ledgers_of(self._log)

        def body(state: SubscriptionState) -> None:
            news = news_for(state, facts)
            if news:
                self._shared.commit(news)

        self._shared.transact(body)
        if skipped:
            self._commit_ack(
                [Ack(self._holder.consumer_id, self._holder.epoch, tuple(skipped), ())],
                Position(skipped[-1].ledger_id, skipped[-1].last),
            )


def _name(command: record.TransactionAck) -> str:
    return "({},{})".format(*command.transaction)


def _end_of(groups: Sequence[AckGroup]) -> RawPosition:
    return (groups[-1].ledger_id, groups[-1].last) if groups else BEFORE_FIRST


_EPOCH: Final = SubscriptionWord.EPOCH
_SETTLE_S: Final = 0.02
"""How long the end of a committed transaction may wait to be noted."""
_MOST_ENDED: Final = 8
"""With fewer transactions that have something pending, those that committed may wait for that."""


class Attachment:
    """One consumer of one subscription, as this process has it.

    Role: the broker's side of a consumer. Invariants: nothing is read that was void when the read
    began; an acknowledgement counts only under the epoch in which its entries were read. Durable:
    acknowledgements and moves as the store's durability level says, when the call returns. Callers:
    `read`, `redeliver`, `seek` and `seek_time` one thread at a time (they share the read position); the
    rest any thread. In a forked child every method raises AlreadyClosed, but for `detach`, which does
    nothing.

    Attributes:
        consumer_id: unique for the life of the subscription.
        name: of the consumer.
        delivers_singly: whether single entries come back, and deliveries are counted, as Shared has it.
        epoch: rises when what was read before is void (a seek, from whatever process). A caller that collects
            acknowledgements passes the epoch under which it collected them.
        on_rewound: called when `read` or a redelivery notices, before it continues, that another consumer
            moved the subscription: entries fetched before, and acknowledgements collected for them, are void.
        on_switched: called by `read` when this Failover consumer has stopped being the active one, or the
            active one goes back because a transaction aborted: what was fetched and not given to the
            application is void. Acknowledgements are not.
        on_left: called once, when the consumer has ended.
        chunks: what this consumer knows of chunked messages.
        make_ring, is_plain, acknowledge, acknowledge_cumulative: of its `Acknowledger`.
        words: of the subscription.
        fresh: tells whether what was read may be void. A consumer asks it for each message it gives to the
            application, and calls `catch_up` then.
    """

    delivers_singly: bool = False
    shares_rings: bool = False
    """Whether an append may ring this one alone, which passes that on if it leaves: see `end_wait`."""

    def __init__(
        self,
        log: Log,
        shared: SharedState,
        membership: Membership,
        consumer: Consumer,
        chunks: ChunkOptions,
    ) -> None:
        self.consumer_id = consumer.consumer_id
        self.epoch = consumer.epoch
        self.chunks: Final = ChunkKeeper(log.chunks(), chunks, membership.monotonic)
        self._log: Final = log
        self._shared: Final = shared
        self._acknowledger: Final = Acknowledger(self, log, shared, self.chunks)
        # Bound once: a consumer calls these for each message, without a step between.
        self.make_ring: Final = self._acknowledger.make_ring
        self.is_plain: Final = self._acknowledger.is_plain
        self.acknowledge: Final = self._acknowledger.acknowledge
        self.acknowledge_cumulative: Final = self._acknowledger.acknowledge_cumulative
        self.name: Final = consumer.name
        self.code = consumer.code
        self.on_rewound: Callable[[], object] | None = None
        self.on_switched: Callable[[], object] | None = None
        self.on_left: Callable[[Attachment], object] | None = None
        self._membership: Final = membership
        self.words: Final = shared.control.words
        self.fresh: Final = Freshness(shared.control.epoch)
        # What `_adopt_state` has seen. It becomes `fresh.seen` when the consumer has dropped what is void.
        self._followed = self.fresh.seen
        self._has_left = False
        self._fork_generation: Final = fork.GENERATION
        self._chunk_expiry: Final = ChunkExpiry(
            self.chunks,
            log,
            shared,
            self._acknowledge_chunks,
            lambda: self.is_attached,
            membership,
            chunks.expire_ms,
        )
        # Tries again to leave if another process stayed in the lock.
        self._detaching: Final = BackgroundWork(membership.call_later, self._depart)
        self._transactions_ending: Final = BackgroundWork(membership.call_later, self._follow_ends)

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged; or one a moment older. Lock-free."""
        return self._shared.control.mark_delete

    def end_transaction(self, transaction: record.TransactionId, outcome: int) -> bool:
        """Have the subscription follow the end of a transaction; see `SharedState.end_transaction`."""
        self._check_usable()
        return self._shared.end_transaction(transaction, outcome)

    def follow_end(self, *, is_committed: bool) -> None:
        """A transaction has ended that acknowledged something here. Waits for no lock.

        After an abort messages are to be delivered again, at once if the lock is free. After a commit there
        is nothing to do but to note it; usually the next call that takes the lock has done that by then.
        """
        if is_committed:
            self._transactions_ending.after(_SETTLE_S)
        else:
            self._transactions_ending.run()

    def _follow_ends(self) -> None:
        # What left the subscription, or is closed, leaves it to the next that comes there.
        with contextlib.suppress(AlreadyClosed):
            if self._shared.has_pending_transactions:
                self._shared.transact(lambda state: None)

    def sync(self) -> None:
        """Make every change of the subscription so far survive a power loss."""
        self._shared.sync()

    def drain(self) -> None:
        """Wait for those that have the lock of the subscription now."""
        self._shared.in_lock(int)

    @property
    def directory(self) -> str:
        """That of the subscription."""
        return self._shared.directory

    @property
    def rate_words(self) -> tuple[memoryview, FileLock]:
        """The words of the subscription, and the lock that guards its rate."""
        return self.words, self._shared.lock

    # -- reading -----------------------------------------------------------------------------------

    def read(self, max_messages: int, max_bytes: int) -> list[EntryView]:
        """The next entries for this consumer, at least one if there is any; an empty list if there is none.

        Raises:
            AlreadyClosed: the consumer has left, the subscription was deleted, or the topic closed.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define read()")

    def handed(self, view: EntryView) -> bool:
        """Note that an application gets an entry's first message; False if `catch_up` must come first."""
        return True

    def is_fresh(self) -> bool:
        """Whether nothing happened that may make void what was read. Lock-free."""
        try:
            return bool(self.fresh.epoch[()] == self.fresh.seen)
        except ValueError:
            return True  # closed: nothing is left of it

    def catch_up(self) -> None:
        """Follow the subscription; if what was read is void, call `on_rewound` or `on_switched`."""
        try:
            self._resync()
        except (AlreadyClosed, ConsumerBusy, ConsumerAssignError):
            if self.on_rewound is not None:
                self.on_rewound()  # the consumer has ended; `read` reports it

    def is_active(self) -> bool:
        """Whether entries come to this consumer: of Failover consumers, to one at a time."""
        return True

    def prepare(self) -> None:
        """Open ahead what a consumer that is not active reads first when it becomes active. Errors of
        reading are left to that read. Called before the consumer is used."""

    def _check_usable(self) -> None:
        if self._fork_generation != fork.GENERATION or self._shared.control.closed:
            raise AlreadyClosed(f"the subscription of consumer {self.name!r} is closed")

    def _resync(self) -> None:
        """Follow a change of the subscription. If its position was moved, move too, and report it."""
        self._tell_if_moved(self._shared.transact(self._adopt_state))

    def _tell_if_moved(self, was_moved: bool) -> None:
        """Report the result of `_adopt_state`. Every caller of that must: it returns true once per move."""
        self._tell_moved(was_moved)
        self.fresh.seen = self._followed  # last: until then, no thread may hand out what was read

    def _tell_moved(self, was_moved: bool) -> None:
        if was_moved and self.on_rewound is not None:
            self.on_rewound()

    def _adopt_state(self, state: SubscriptionState) -> bool:
        """Take over the position that the state gives this consumer. True if it moved there."""
        consumer = self._own(state)
        self._followed = self.words[_EPOCH]
        if consumer.epoch == self.epoch:
            return False
        self.epoch = consumer.epoch
        self._go_to(state)
        return True

    def read_position(self) -> RawPosition:
        """See `Holder.read_position`."""
        raise NotImplementedError(f"{type(self).__name__} does not define read_position()")

    @property
    def read_before(self) -> RawPosition:
        """Entries before this one may have been read before the last move; others were not, or count their
        deliveries."""
        return BEFORE_FIRST

    def note_ack(self, last: Position) -> None:
        """See `Holder.note_ack`."""

    def before_ack(self, state: SubscriptionState, ledger_id: int) -> list[AckGroup]:
        """See `Holder.before_ack`."""
        return []

    def _go_to(self, state: SubscriptionState) -> None:
        """Void what was read, and begin where the state says."""
        raise NotImplementedError(f"{type(self).__name__} does not define _go_to()")

    def _own(self, state: SubscriptionState) -> Consumer:
        """This consumer in the state. One that was taken for dead (its process was stopped) joins again."""
        consumer = state.consumers.get(self.consumer_id)
        if consumer is not None:
            self.show_alive()  # the timer may be waiting for the lock that is ours now
            return consumer
        # Three reasons why it is not attached: the subscription is gone, the consumer has left, or
        # its process was taken for dead. Only then it joins again.
        if not state.exists:
            raise AlreadyClosed(
                f"the consumer {self.name!r} lost its subscription, which was deleted; subscribe again"
            )
        if self._has_left:
            raise AlreadyClosed(f"the consumer {self.name!r} was detached; subscribe again")
        consumer = self._membership.rejoin(state, self.consumer_id)
        self.consumer_id, self.code = consumer.consumer_id, consumer.code
        return consumer

    def _complete(
        self, views: list[EntryView], max_bytes: int, *, is_noted: bool
    ) -> tuple[list[EntryView], EntryView | None]:
        """Make messages of entries of chunked ones; see `ChunkKeeper.complete`."""
        completed = self.chunks.complete(views, max_bytes, is_noted=is_noted)
        self._watch_chunks()
        return completed

    def _watch_chunks(self) -> None:
        """Called when parts of chunked messages were read."""
        finished = self.chunks.take_finished()
        if finished:
            try:
                self._acknowledge_chunks(finished)
            except LockTimeout:
                # Kept for the next read, which acknowledges them.
                self.chunks.finished += finished
                raise
        if self.chunks.next_due() is not None:
            self._chunk_expiry.start_timer()

    def _acknowledge_chunks(self, entries: list[RawPosition]) -> None:
        self._acknowledger.acknowledge_unreadable(list(group_entries(entries)))

    def redeliver(self) -> None:
        raise NotImplementedError(f"{type(self).__name__} does not define redeliver()")

    def redeliver_entries(self, entries: Sequence[RawPosition]) -> bool:
        """Have entries delivered again. True if everything this consumer holds will be delivered again."""
        raise NotImplementedError(f"{type(self).__name__} does not define redeliver_entries()")

    # -- moving ------------------------------------------------------------------------------------

    def seek(self, position: Position, inclusive: bool) -> None:
        """Go on at ``position`` (inclusive) or at the entry behind it, for all consumers of the subscription.

        What was acknowledged after it counts no more, and everything before it is acknowledged. Positions
        outside the log are moved to its ends.
        """
        commands = seek_commands(self._log, position, inclusive)

        def body(state: SubscriptionState) -> None:
            self._own(state)
            self._shared.commit(commands)
            self._adopt_state(state)

        self._shared.transact(body)
        self.fresh.seen = self._followed  # the caller drops what it has
        # After the commit and before the caller knows of it: entries from the new position on must
        # not be trimmed by a choice that was made before.
        self._log.trimming.note_retreat()

    def seek_time(self, publish_ms: int) -> None:
        """Go on at the first entry published at ``publish_ms`` (ms since the epoch) or later."""
        self.seek(self._log.find_by_publish_time(publish_ms), inclusive=True)

    # -- waiting and leaving -----------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Changes when the subscription was moved or its consumers changed. Lock-free."""
        try:
            return int(self.words[SubscriptionWord.VERSION])
        except ValueError:
            raise AlreadyClosed(f"the subscription of consumer {self.name!r} is closed") from None

    @property
    def version_word(self) -> tuple[memoryview, int]:
        """Where `version` stands."""
        return self.words, int(SubscriptionWord.VERSION)

    def progress(self) -> int:
        """Changes whenever any process changes the subscription. Lock-free."""
        try:
            return int(self.words[SubscriptionWord.JOURNAL])
        except ValueError:
            return 0  # closed

    def request_wakeup(self, seen_version: int) -> bool:
        """Ask to be rung when `version` changes; False, and nothing asked, if it is not ``seen_version``.

        The mailbox's generation must have been read before.
        """
        shared = self._shared
        try:
            if self.words[SubscriptionWord.VERSION] != seen_version:
                return False
            if shared.wakeups.waiting.is_asleep(self.code, self.consumer_id):
                return True  # still announced: the next process that changes anything rings
            is_published = shared.control.is_published
        except ValueError:
            raise AlreadyClosed(f"the subscription of consumer {self.name!r} is closed") from None
        # The words are those of the last commit, so the lock suffices; else the state is brought up
        # to date first.
        if is_published:
            return shared.in_lock(lambda: self._announce(seen_version))
        return shared.transact(lambda _: self._announce(seen_version))

    def _announce(self, seen_version: int) -> bool:
        """Announce that it sleeps. Under the lock."""
        if self.words[SubscriptionWord.VERSION] != seen_version:
            return False
        waiting = self._shared.wakeups.waiting
        waiting.announce(waiting.code_of(self.code, self.consumer_id))
        return True

    def end_wait(self, is_served: bool) -> None:
        """End the wait of the caller."""

    @property
    def key(self) -> int:
        """Identifies the attachments of which an append rings only one; 0 if it rings none."""
        return EACH

    @property
    def awaits_appends(self) -> bool:
        """Whether it is to be rung when something is appended."""
        return True

    def has_news(self, has_tail_moved: bool, seen_version: int) -> bool:
        """Whether to look although no ring came: it may be lost with its sender. Lock-free."""
        return has_tail_moved or self.version != seen_version

    def has_read_all(self, tail: int) -> bool:
        """Whether it had read everything when the tail of the log was ``tail``; False if that would
        take a look."""
        return False

    def back_stop(self, seconds: float) -> float:
        """How long it sleeps at most: ``seconds`` for a single consumer, longer if several take turns."""
        return seconds

    def due_ms(self) -> int:
        """When the next delayed entry is due, in ms since the epoch; 0 for none. Lock-free."""
        return 0

    @property
    def is_attached(self) -> bool:
        return not self._has_left and not self._shared.control.closed

    def show_alive(self) -> None:
        """Let others see that this process runs."""
        try:
            self._membership.show_alive(self.code, self.consumer_id)
        except ValueError:
            return  # closed meanwhile

    def show_acknowledged(self) -> None:
        """See `Holder.show_acknowledged`."""
        try:
            self._membership.show_acknowledged(self.code, self.consumer_id)
        except ValueError:
            return  # closed meanwhile

    @property
    def identity(self) -> tuple[str, int]:
        """Tells the subscription from all others, and from an earlier one of its name."""
        return self._shared.directory, self._shared.control.identity

    def counts_for(self, other: Attachment, epoch: int) -> bool:
        """Whether a consumer is one of this subscription, and what it acknowledged in ``epoch`` counts as
        far as this process has followed the subscription. Lock-free.

        Args:
            other: of that consumer, in this process.
            epoch: of its acknowledgements.
        """
        consumers = self._shared.state.consumers
        return self.identity == other.identity and consumers.is_current(other.consumer_id, epoch)

    def is_current(self) -> bool:
        """Whether the consumer is attached, and nothing was moved since it last read."""

        def body(state: SubscriptionState) -> bool:
            return state.consumers.is_current(self.consumer_id, self.epoch)

        return self._shared.transact(body)

    def backlog(self) -> int:
        """Messages that are stored and not acknowledged, exactly."""
        return messages_left(self._log, self._shared.transact(acknowledged_in))

    def detach(self) -> None:
        """Leave. What was not acknowledged is delivered to the next consumer. Idempotent.

        Raises:
            LockTimeout: another process stayed in the lock; a timer tries again.
        """
        # First, so that no timer acts for a consumer that leaves.
        self.mark_left()
        try:
            self._depart()
        except LockTimeout:
            self._detaching.after(FIRST_PAUSE_S)
            raise

    def mark_left(self) -> None:
        """Stop looking after the consumer: it has ended, here or in another process. Idempotent."""
        self._has_left = True
        self._chunk_expiry.cancel()
        on_left, self.on_left = self.on_left, None
        if on_left is not None:
            on_left(self)

    def _depart(self) -> None:
        # A child has no part in the consumers of its parent; a closed subscription has detached them.
        if self._fork_generation != fork.GENERATION or self._shared.control.closed:
            return
        detach(self._shared, self._log, (self.consumer_id,))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} id={self.consumer_id} epoch={self.epoch}>"
