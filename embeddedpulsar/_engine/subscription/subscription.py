"""A subscription: the consumers that share a topic's messages, and the position they have reached.

The class of a consumer's attachment, by the type of its subscription and the kind of its topic.

What a subscription of a non-persistent topic missed: all that was sent before it, or without consumers.

The state of a subscription as one process has opened it, also after it was deleted and made again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import cache, partial

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.control import SubscriptionWord, TopicWord
from embeddedpulsar._engine.log.journal_file import COMPACT_BYTES
from embeddedpulsar._engine.platform import disk, nofollow, package_log, threads, timing
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.platform.lease import Holder
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar._engine.platform.timing import Clock, SchedulerLike
from embeddedpulsar._engine.subscription.attachment.attachment import Attachment
from embeddedpulsar._engine.subscription.attachment.chunk_keeper import DEFAULT_CHUNKS, ChunkOptions
from embeddedpulsar._engine.subscription.attachment.membership import (
    Admission,
    AttachRequest,
    Membership,
    detach_lost,
    names_of,
)
from embeddedpulsar._engine.subscription.dispatch.dispatch_rules import Asked
from embeddedpulsar._engine.subscription.dispatch.dispatchers import CLAIM_DISPATCHERS, dispatcher_for
from embeddedpulsar._engine.subscription.liveness_monitor import (
    KeepAlives,
    LivenessMonitor,
    WatchRing,
    detach_at_last,
    detach_surely,
)
from embeddedpulsar._engine.subscription.log_queries import (
    PendingTransaction,
    SubscriptionStatistics,
    acknowledged_in,
    ledgers_of,
    messages_left,
    news_for,
    pending_transactions,
    seek_commands,
    statistics_of,
)
from embeddedpulsar._engine.subscription.shared_state import SharedState
from embeddedpulsar._engine.subscription.state.dispatch_state import Consumer
from embeddedpulsar._engine.subscription.state.replica import SubscriptionState
from embeddedpulsar._engine.subscription.subscription_files import (
    Outcomes,
    StateOptions,
    SubscriptionGone,
    damage_reporter,
    nothing_decided,
)
from embeddedpulsar.damage import DamageHook
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import (
    BrokerMetadataError,
    ConsumerAssignError,
    ConsumerBusy,
    CorruptionError,
    PulsarException,
    SubscriptionNotFound,
)
from embeddedpulsar.message_id import Position
from embeddedpulsar.policies import KeySharedPolicy
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.settings import BrokerSettings

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.subscription.attachment.active_attachment import CompactedSource
    from embeddedpulsar._engine.subscription.operator_commands import OperatorCommands
    from embeddedpulsar._engine.subscription.subscription_files import SubscriptionControl


@cache
def attachment_kind(is_claiming: bool, is_volatile: bool) -> Callable[..., Attachment]:
    """Return the class of the attachment of a consumer. May import it, so not to be called under a lock.

    Args:
        is_claiming: whether consumers of the type claim entries: Shared and Key_Shared.
        is_volatile: whether the topic is non-persistent.
    """
    # Imported on first use: most processes have consumers of one kind.
    kind: Callable[..., Attachment]
    if is_volatile:
        with late_imports():
            from embeddedpulsar._engine.subscription.attachment.volatile_attachment import (
                VolatileActiveAttachment,
                VolatileSharedAttachment,
            )
        kind = VolatileSharedAttachment if is_claiming else VolatileActiveAttachment
    elif is_claiming:
        with late_imports():
            from embeddedpulsar._engine.subscription.attachment.shared_attachment import SharedAttachment
        kind = SharedAttachment
    else:
        with late_imports():
            from embeddedpulsar._engine.subscription.attachment.active_attachment import ActiveAttachment
        kind = ActiveAttachment
    return kind


def skip_missed(state: SubscriptionState, shared: SharedState, log: Log) -> None:
    """Put a subscription without consumers behind everything that was sent. Inside a transaction."""
    last = log.last_position()
    if not len(state.consumers) and last is not None and state.exists and last > state.mark_delete:
        shared.commit(seek_commands(log, last, inclusive=False))


def note_birth(control: SubscriptionControl, log: Log, now_ms: int) -> None:
    """Note when a subscription is made, and how many messages were sent before."""
    control.words[SubscriptionWord.MADE_MS] = now_ms
    control.words[SubscriptionWord.SENT_BEFORE] = log.survey().appended().messages


class SubscriptionLives:
    """Opens the state in a directory, and another when a subscription of that name has a new directory.

    Role: a subscription that ended takes its directory along; consumers that were attached to it keep its
    state, which says so. Invariants: `current` is never a state whose directory was removed.
    Callers: any thread.

    Attributes:
        name: of the subscription; empty to take the one that is stored.
        topic_directory: two above its own.
    """

    def __init__(
        self,
        directory: str,
        options: StateOptions,
        log_end: Callable[[], Position | None],
        prepare: Callable[[SharedState], object],
    ) -> None:
        self.name = options.name
        self.topic_directory: Final = os.path.dirname(os.path.dirname(directory))
        self._directory: Final = directory
        self._options: Final = options
        self._log_end: Final = log_end
        self._prepare: Final = prepare
        self._lock: Final = threads.RLock()  # guards everything below
        self._current: SharedState | None = None
        self._ended: list[SharedState] = []

    @property
    def current(self) -> SharedState | None:
        shared = self._current
        if shared is None or not shared.control.is_removed:
            return shared
        try:
            self._lock.acquire()
            if self._current is shared:
                self._current = None
                self._ended.append(shared)
            return self._current
        finally:
            self._lock.release()

    def find(self) -> SharedState | None:
        """The state, opened if there is a directory. The subscription may be deleted nevertheless."""
        shared = self.current
        if shared is None and os.path.isdir(self._directory):
            with contextlib.suppress(FileNotFoundError):  # not any more
                shared = self._open()
        return shared

    def existing(self) -> SharedState:
        """The state, opened if need be."""
        shared = self.find()
        if shared is None:
            raise SubscriptionNotFound(f"there is no subscription {self.name!r}; create it by subscribing")
        return shared

    def make(self) -> SharedState:
        """The state, in a directory that is made if need be."""
        while (shared := self.current) is None:
            is_fresh = False
            try:
                with contextlib.suppress(FileExistsError):
                    disk.DISK.mkdir(self._directory)
                    is_fresh = True
            except FileNotFoundError:  # the first subscription of the topic; or the topic is gone, too
                with contextlib.suppress(FileExistsError):
                    disk.DISK.mkdir(os.path.dirname(self._directory))
                continue
            # Not there any more if a process that deletes a subscription of this name took the new directory.
            with contextlib.suppress(FileNotFoundError):
                return self._open(is_fresh)
        return shared

    def _open(self, is_fresh: bool = False) -> SharedState:
        try:
            timing.enter(self._lock, f"the opening of subscription {self.name!r}")
            if self._current is None:
                shared = SharedState.open(self._directory, self._options, self._log_end, is_fresh=is_fresh)
                self._prepare(shared)
                try:
                    # A name that was given is compared with that of a subscription, if there is one.
                    if shared.exists or not self.name:
                        self._check_name(shared.transact(lambda state: state.name if state.exists else ""))
                except BaseException:
                    shared.close()
                    raise
                self._current = shared
            return self._current
        finally:
            self._lock.release()

    def _check_name(self, stored: str) -> None:
        """Check the name: two names may have the same directory."""
        if stored and self.name not in ("", stored):
            raise CorruptionError(
                path=self._directory,
                reason=f"this directory belongs to subscription {stored!r}, not {self.name!r}",
                remedy="use another name for the new subscription",
            )
        self.name = self.name or stored

    def pop_current(self) -> SharedState | None:
        """Return what is open, for the caller to close; close all that ended before."""
        shared, self._current = self._current, None
        ended, self._ended = self._ended, []
        for former in ended:
            former.close()
        return shared


class Subscription:
    """One subscription of one topic, as this process has it.

    Role: the face of everything in this package; topics hand these out. Opening one that does not exist makes
    no file: `create` does.
    Durable: what a method changed is, when it returns, at the level given to `open`.
    Callers: any thread. In a forked child it is closed.
    """

    def __init__(
        self,
        directory: str,
        log: Log,
        mailbox: Mailbox,
        settings: BrokerSettings,
        options: StateOptions,
    ) -> None:
        self.directory: Final = directory
        self._log: Final = log
        self._mailbox: Final = mailbox
        self._settings: Final = settings
        self._options: Final = options
        self._lives: Final = SubscriptionLives(directory, options, log.last_position, self._prepare)
        self._attached: dict[int, str] = {}
        """The consumers that were attached through this object, and some that have left: their threads."""
        self._own_scheduler: SchedulerLike | None = None
        self._admission: Admission | None = None
        self._keep_alives: Final = KeepAlives(settings.keepAliveIntervalSeconds, options.clock)
        scheduler = options.scheduler
        self._liveness_monitor: Final = LivenessMonitor(
            mailbox, scheduler, self._keep_alives, self.detach_dead
        )

    @classmethod
    def open(
        cls,
        directory: str,
        name: str = "",
        *,
        managed_ledger: Log,
        mailbox: Mailbox,
        peers: Peers,
        clock: Clock,
        settings: BrokerSettings,
        scheduler: SchedulerLike | None = None,
        durability: str | None = None,
        compact_bytes: int = COMPACT_BYTES,
        damage: DamageHook | None = None,
        admission: Admission | None = None,
        outcomes: Outcomes = nothing_decided,
    ) -> Subscription:
        """A subscription whose files are opened by its first use, and recovered if they are of another boot.

        Args:
            directory: of the subscription; need not exist.
            name: of the subscription; empty to take the one that is stored there.
            managed_ledger: the topic's log.
            mailbox, peers: how this process waits, and wakes others.
            clock: stamps commands.
            settings: limits.
            scheduler: runs the flushes of level "interval"; one of its own if None.
            durability: "process", "interval" or "flush", for acknowledgements too; default that of the log.
            compact_bytes: length at which a journal is replaced by a snapshot; for tests and tuning.
            damage: called with what cannot be read, outside all locks; it is logged if None.
            admission: says how many consumers there may be; those of the settings if None.
            outcomes: of transactions; asked for those that acknowledged something here and have not ended.
        """
        ledger_options, hook = managed_ledger.options, damage or package_log.damage
        options = StateOptions(
            name=name,
            peers=peers,
            clock=clock,
            scheduler=scheduler or clock.scheduler(),
            durability=durability or ledger_options.durability,
            interval_s=ledger_options.interval_ms / 1000,
            lock_timeout_s=ledger_options.lock_timeout_s,
            boot=ledger_options.boot_id,
            compact_bytes=compact_bytes,
            report=damage_reporter(managed_ledger, name, hook),
            log=managed_ledger,
            check_in_place=managed_ledger.check_in_place,
            outcomes=outcomes,
        )
        subscription = cls(directory, managed_ledger, mailbox, settings, options)
        subscription._admission = admission
        if scheduler is None:
            subscription._own_scheduler = options.scheduler
        return subscription

    def _prepare(self, shared: SharedState) -> None:
        watch_ring = WatchRing(shared, self._mailbox.uuid, self._options.peers, self._keep_alives)
        self._liveness_monitor.watch_ring = watch_ring
        shared.on_members = self._liveness_monitor.watch_neighbours
        shared.on_passed = self._log.trimming.suggest

    @property
    def name(self) -> str:
        return self._lives.name

    @property
    def _shared(self) -> SharedState | None:
        return self._lives.current

    # -- existence ---------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether there is such a subscription. Reads one word once its directory was seen.

        Raises:
            CorruptionError, StorageError, LockTimeout: see `SharedState.open`; or it has another name.
        """
        shared = self._lives.find()
        return shared is not None and shared.exists

    @property
    def is_damaged(self) -> bool:
        """Whether its files lead to no state and nothing says its name. It is kept: the process that
        subscribes by name gets it. Opens nothing."""
        shared = self._shared
        return shared is not None and shared.is_damaged

    @property
    def is_gone(self) -> bool:
        """Whether it was deleted, or never opened. Opens nothing."""
        shared = self._lives.current
        return shared is None or not shared.exists

    def create(self, initial: Position) -> bool:
        """Make the subscription unless it exists, in whatever process.

        Args:
            initial: its mark-delete position: entries after it are delivered. `BEFORE_FIRST` for all entries
                there are, `Log.last_position` for none of them.

        Returns:
            Whether this call made it.
        """
        is_made: bool | None = None
        while is_made is None:
            with contextlib.suppress(SubscriptionGone):  # meanwhile: it gets another directory
                is_made = nofollow.within(
                    self._lives.topic_directory, lambda: self._create(self._lives.make(), initial)
                )
        self._log.trimming.note_retreat()
        return is_made

    def _create(self, shared: SharedState, initial: Position) -> bool:
        def body(state: SubscriptionState) -> bool:
            if state.exists:
                return False
            if self._log.is_volatile:
                note_birth(shared.control, self._log, self._options.clock.wall_ms())
            shared.create(self._birth(shared, initial))
            return True

        return shared.transact(body)

    def _birth(self, shared: SharedState, initial: Position) -> record.Create:
        """The command that makes the subscription. Under its lock."""
        return record.Create(self._lives.name, shared.control.words[SubscriptionWord.EPOCH] + 1, *initial)

    def delete(self, force: bool = False) -> None:
        """Remove the subscription. Its acknowledgements are gone when this returns, at every level.

        Args:
            force: whether or not consumers are attached; theirs then fail with AlreadyClosed.

        Raises:
            BrokerMetadataError: consumers are attached (living ones; the dead are detached first).
        """
        shared = self._existing()

        def body(state: SubscriptionState) -> None:
            if not state.exists:
                return
            self._detach_dead(shared, state)
            if len(state.consumers) and not force:
                names = names_of(state.consumers)
                raise BrokerMetadataError(f"{self.name!r} has consumers: {names}; close them first")
            shared.remove()

        shared.transact(body)

    def unsubscribe(self, attachment: Attachment) -> None:
        """Remove the subscription in the name of its only consumer.

        Raises:
            BrokerMetadataError: other consumers are attached as well.
        """
        shared = self._existing()

        def body(state: SubscriptionState) -> None:
            self._detach_dead(shared, state)
            others = names_of(state.consumers, but=attachment.consumer_id)
            if others:
                text = "unsubscribe() is for the only consumer of a subscription"
                raise BrokerMetadataError(f"{text}; {others} of {self.name!r} must be closed first")
            if state.exists:
                shared.remove()

        shared.transact(body)

    def clear_away(self) -> bool:
        """Remove the files of a subscription that does not exist; see `SharedState.clear_away`."""
        shared = self._lives.find()
        return shared is None or shared.clear_away()

    def _existing(self) -> SharedState:
        return self._lives.existing()

    # -- consumers ---------------------------------------------------------------------------------

    def attach(
        self,
        consumer_name: str,
        consumer_type: int = ConsumerType.Exclusive,
        client_uuid: bytes | None = None,
        priority: int = 0,
        *,
        receiver_queue_size: int = 1000,
        key_shared: KeySharedPolicy | None = None,
        topic: str = "",
        partition: int = -1,
        several_topics: bool = False,
        chunks: ChunkOptions = DEFAULT_CHUNKS,
        compacted: CompactedSource | None = None,
        initial: Position | None = None,
        keep: Callable[[Attachment], object] = lambda attachment: None,
    ) -> Attachment:
        """Attach a consumer. Consumers whose process died, or is silent for too long, are detached first.

        Args:
            consumer_name: for statistics, and to order consumers by.
            consumer_type: must be that of the consumers attached already.
            client_uuid: the lease of the consumer's process; default this process's own.
            priority: priority level, 0 being the best.
            receiver_queue_size: messages it is ready to take at once.
            key_shared: how keys are divided on Key_Shared; default AUTO_SPLIT, in order.
            topic, partition: of the subscription, for the choice of the active consumer on Failover.
            several_topics: whether the consumer consumes other topics too.
            chunks: what becomes of chunked messages whose last part does not come.
            compacted: what an active consumer reads in the place of the log; None for the log.
            initial: makes the subscription, if there is none, with this mark-delete position: by the commit
                that attaches the consumer. Not of a non-persistent topic.
            keep: called with the attachment as the last step. A caller that is interrupted before the call
                returns detaches what was kept.

        Raises:
            SubscriptionNotFound: there is no such subscription, or it was deleted meanwhile.
            ConsumerBusy: the consumers that are attached do not admit this one.
            ConsumerAssignError: the keys cannot be divided with this one.
        """
        request = Asked(self._settings, key_shared, topic, partition, several_topics)
        rules, admission = dispatcher_for(consumer_type).rules(request), self._admission
        max_consumers = (
            self._settings.maxConsumersPerSubscription if admission is None else admission.most_consumers()
        )
        uuid = client_uuid or self._mailbox.uuid
        wanted = AttachRequest(
            consumer_name, consumer_type, uuid, priority, receiver_queue_size, rules, max_consumers
        )
        is_claiming = consumer_type in CLAIM_DISPATCHERS
        if compacted is not None:  # of a kind that `attachment_kind` imports: not under the lock
            from embeddedpulsar._engine.subscription.attachment.active_attachment import note_first
        kind = attachment_kind(is_claiming, self._log.is_volatile)

        # Under the lock. Three cases: the subscription is there; it is made here; it was deleted meanwhile.
        def join(state: SubscriptionState, shared: SharedState, membership: Membership) -> Attachment:
            birth: record.Create | None = None
            if not state.exists:
                if initial is None or shared.control.is_removed:
                    raise SubscriptionNotFound(f"there is no subscription {self.name!r}; it was deleted")
                birth = self._birth(shared, initial)
            if self._log.is_volatile:
                self._detach_dead(shared, state)
                skip_missed(state, shared, self._log)
            if compacted is not None:
                start = state.mark_delete if birth is None else Position(birth.ledger_id, birth.entry_id)
                note_first(shared.directory, start, membership.facts)
            consumer = membership.join(state, birth)
            rest = (chunks,) if is_claiming else (shared.state, chunks, compacted)
            return kind(self._log, shared, membership, consumer, *rest)

        if initial is None:
            return self._attach(self._existing(), wanted, join, keep)
        attach = lambda: self._attach(self._lives.make(), wanted, join, keep, is_new=True)  # noqa: E731
        return nofollow.within(self._lives.topic_directory, attach)

    def _attach(
        self,
        shared: SharedState,
        wanted: AttachRequest,
        join: Callable[[SubscriptionState, SharedState, Membership], Attachment],
        keep: Callable[[Attachment], object],
        *,
        is_new: bool = False,
    ) -> Attachment:
        trim_point = self._log.words[TopicWord.TRIM]
        own, admission = self._mailbox.uuid, self._admission
        settings, alive = self._settings, self._keep_alives
        membership = Membership(
            wanted, own, self._log, shared, self._options, settings, alive, self._attached
        )
        self._liveness_monitor.show_alive()
        try:
            attach = partial(shared.transact, lambda state: join(state, shared, membership))
            attach = attach if admission is None else partial(admission.admit, attach)
            attachment = self._keep_alives.patiently(attach, self.detach_dead)
            if is_new:
                self._hold_ledgers(shared, trim_point)
            self._liveness_monitor.begin(attachment)
            attachment.prepare()
            keep(attachment)
            return attachment
        except BaseException as error:
            if isinstance(error, (ConsumerBusy, ConsumerAssignError)):
                self._name_holders(error, shared)
            # The caller never gets this consumer (Ctrl-C, for example), so only this method can detach it.
            if membership.tried:
                call_later, uuid = self._options.scheduler.call_later, wanted.client_uuid
                detach_surely(shared, self._log, membership.tried, call_later, uuid)
            raise

    def _hold_ledgers(self, shared: SharedState, trim_point: int) -> None:
        """Have the log keep what a subscription needs that was just made, and tell it of ledgers that went
        meanwhile."""
        self._log.trimming.note_retreat()
        if self._log.words[TopicWord.TRIM] != trim_point:
            facts = ledgers_of(self._log)

            def mend(state: SubscriptionState) -> None:
                news = news_for(state, facts) if state.exists else []
                if news:
                    shared.commit(news)

            shared.transact(mend)

    def _name_holders(self, error: ConsumerBusy | ConsumerAssignError, shared: SharedState) -> None:
        """Add to the error where the attached consumers are: outside of the lock, because the system is
        asked."""
        with contextlib.suppress(PulsarException, OSError):  # the error itself is what matters
            consumers = shared.transact(lambda state: state.consumers.all())
            threads = self._attached
            holders = [
                Holder(consumer.name, consumer.client_uuid, threads.get(consumer.consumer_id, ""))
                for consumer in consumers
            ]
            if holders:
                error.args = (f"{error.args[0]}; attached: {self._options.peers.described(holders)}",)

    def _detach_dead(self, shared: SharedState, state: SubscriptionState, with_silent: bool = True) -> None:
        keep_alives = self._keep_alives if with_silent else None
        detach_lost(state, shared, self._log, self._options.peers, keep_alives)

    def detach_dead(self, with_silent: bool = True) -> None:
        """Detach the consumers of processes that died, or were silent for ``keepAliveIntervalSeconds``. When
        a death is reported, the latter come later: others wait for the messages of the dead one."""
        shared = self._existing()
        self._liveness_monitor.show_alive()
        shared.transact(lambda state: self._detach_dead(shared, state, with_silent))

    def consumers(self) -> list[Consumer]:
        """The attached consumers whose process lives, the longest attached first."""
        self.detach_dead()
        return self._existing().transact(lambda state: state.consumers.all())

    # -- position ----------------------------------------------------------------------------------

    @property
    def mark_delete(self) -> Position:
        """Everything up to and including this position is acknowledged. Lock-free, and never ahead of the
        truth: ledgers before it may be trimmed."""
        return self._existing().control.mark_delete

    def seek(self, position: Position, inclusive: bool) -> None:
        """Put all consumers at ``position``, or behind it; see `Attachment.seek`. Needs no consumer."""
        shared = self._existing()
        commands = seek_commands(self._log, position, inclusive)
        shared.transact(lambda state: shared.commit(commands) if state.exists else None)
        self._log.trimming.note_retreat()

    # -- transactions ------------------------------------------------------------------------------

    def pending_transactions(self) -> tuple[PendingTransaction, ...]:
        """The open transactions that acknowledged something here; those that ended are settled by this."""
        return self._existing().transact(pending_transactions)

    def end_transaction(self, transaction: record.TransactionId, outcome: int) -> bool:
        """Have the subscription follow the end of a transaction; see `SharedState.end_transaction`. False,
        too, if there is no subscription."""
        shared = self._lives.find()
        return shared is not None and shared.end_transaction(transaction, outcome)

    def settle_transactions(self) -> None:
        """Have the subscription follow the ends of those that acknowledged something here, as far as this
        process knows of them. Without any, one look at a dict."""
        shared = self._shared
        if shared is not None and shared.has_pending_transactions:
            shared.transact(lambda state: None)  # settles what has ended, before anything else

    def operator_commands(self) -> OperatorCommands:
        """Acknowledging and giving back without being a consumer. Raises SubscriptionNotFound."""
        with late_imports():
            from embeddedpulsar._engine.subscription.operator_commands import OperatorCommands
        own, clock = self._mailbox.uuid, self._options.clock
        return OperatorCommands(self._existing(), self._log, own, clock)

    def backlog(self) -> int:
        return messages_left(self._log, self._existing().transact(acknowledged_in))

    def statistics(self) -> SubscriptionStatistics:
        self.detach_dead()
        shared = self._existing()
        statistics = shared.transact(lambda state: statistics_of(state, shared.divergences))
        return statistics._replace(backlog=self.backlog())

    # -- the end -----------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make every change of this subscription so far survive a power loss."""
        self._existing().sync()

    def close(self) -> None:
        """Detach the consumers attached through this object, flush what level "interval" owes, and give files
        and maps back. Idempotent."""
        shared = self._lives.pop_current()
        self._liveness_monitor.end()
        try:
            if shared is not None:
                with contextlib.closing(shared):
                    if self._attached and not shared.is_foreign:
                        # Of this process: in a new life of the subscription, others have those ids.
                        detach_at_last(shared, self._log, self._attached, self._mailbox.uuid)
        finally:
            if self._own_scheduler is not None:
                self._own_scheduler.close()

    def __repr__(self) -> str:
        state = "not open" if self._shared is None else "exists" if self.exists() else "does not exist"
        return f"<Subscription {self.name!r} {state}>"
