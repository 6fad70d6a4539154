"""A topic: its log, its producers and its subscriptions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.log.log import Log
from embeddedpulsar._engine.log.log_opening import PROCESS, LedgerOptions
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.log.position import Position
from embeddedpulsar._engine.log.topic_control import is_deleted
from embeddedpulsar._engine.platform import package_log, threads
from embeddedpulsar._engine.platform.clock import Clock
from embeddedpulsar._engine.platform.descriptors import late_import
from embeddedpulsar.enums import ProducerAccessMode
from embeddedpulsar.exceptions import AlreadyClosed
from embeddedpulsar.topic.backlog_quotas import BacklogQuotas
from embeddedpulsar.topic.housekeeping import TopicTrimming, UpkeptParts
from embeddedpulsar.topic.late_compaction import LateCompaction
from embeddedpulsar.topic.late_offload import LateOffload
from embeddedpulsar.topic.late_producers import LateProducers
from embeddedpulsar.topic.open_topics import within_limit
from embeddedpulsar.topic.policies.admitting import DEDUPLICATION, MAX_PRODUCERS
from embeddedpulsar.topic.policies.held_policies import HeldPolicies
from embeddedpulsar.topic.policies.keeping import KEEP_UNTIL_SUBSCRIBED, RETENTION
from embeddedpulsar.topic.subscription_opening import SubscriptionOpening
from embeddedpulsar.topic.topic_subscriptions import SubscriptionKey, TopicSubscriptions
from embeddedpulsar.topic.topic_view import TopicView
from embeddedpulsar.topic.upkeep import Check, upkeep_of
from embeddedpulsar.topic_name import NON_PERSISTENT

if TYPE_CHECKING:
    from embeddedpulsar._engine.subscription.subscription import Subscription
    from embeddedpulsar.topic.producers.producers import ProducerRegistration
    from embeddedpulsar.topic.store_session import StoreSession


class Topic:
    """One topic as this process uses it: made, cached and closed by `Store`.

    Role: where the log, the producers and the subscriptions of a topic are found. It decides nothing about
    messages.
    Invariants: one instance per process and topic, so one `Log` and one `Subscription` per name.
    Callers: any thread. The instance of a forked child's parent is closed in the child.

    Attributes:
        name: the full name.
        incarnation: which life of the topic this is: deleted and made again, it differs.
        ledger: the log.
        compaction, offload: what is compacted of it, and what is in an offload location.
        policies: the values that hold now.
        quotas: hold producers back while the backlog is too large; `group_words`: of resource groups.
        view: what an onlooker sees of producers and subscriptions.
    """

    def __init__(
        self,
        directory: str,
        entry: TopicEntry,
        session: StoreSession,
        ledger: Log,
        options: LedgerOptions,
        clock: Clock,
        make_room: Callable[[], object] = int,
    ) -> None:
        self.directory: Final = directory
        self.name: Final = entry.name
        self.incarnation: Final = entry.incarnation
        self.ledger: Final = ledger
        self.closed = self._is_durable = self._is_in_use = False
        self._entry, self._session, self._clock, self._make_room = entry, session, clock, make_room
        self._lock = threads.RLock()  # guards _is_durable
        self.group_words: Final = session.group_words
        source, words, settings = session.policies, session.control.words, session.settings
        self.policies: Final = HeldPolicies(source, words, (self.name, directory), clock.monotonic)
        ledger.call_on_look(self.policies.look)
        opening = SubscriptionOpening(
            session, ledger, self.policies, clock, options.durability, self._check_open
        )
        self._subscriptions: Final = TopicSubscriptions(
            self.name, directory, ledger, opening, self.policies.values, session.catalog.lock
        )
        self.view: Final = TopicView(directory, ledger, session)
        self.compaction: Final = LateCompaction(self, settings, clock)
        self.offload: Final = LateOffload(self, session.root, clock)
        kept = partial(self.policies.values, (RETENTION, KEEP_UNTIL_SUBSCRIBED))
        marks, confirmed = self._subscriptions.mark_deletes, self.view.mark_deletes
        holds = self.compaction.marks
        every_s, self._durability = settings.retentionCheckIntervalInSeconds, options.durability
        self._trimming: Final = TopicTrimming(ledger, kept, marks, confirmed, holds, clock, every_s)
        self._producers: Final = LateProducers(
            self,
            clock,
            self._note_progress,
            settings=settings,
            mailbox=session.mailbox,
            peers=session.peers,
            scheduler=session.scheduler,
        )
        parts = UpkeptParts(ledger, self.policies, self._subscriptions, self.view, clock, settings)
        self.quotas: Final = BacklogQuotas(parts)
        own: list[Check] = [self.quotas, self.compaction, self.offload]
        self._upkeep: Final = upkeep_of(parts, self._trimming, own, session.housekeeping)
        ledger.trimming.suggest = self._upkeep.suggest
        ledger.trimming.relieve = session.housekeeping.relieve_disk

    @classmethod
    def open(
        cls,
        directory: str,
        entry: TopicEntry,
        *,
        session: StoreSession,
        options: LedgerOptions,
        clock: Clock,
        make_room: Callable[[], object] = int,
    ) -> Topic:
        """Open the topic in ``directory``, for those who look at it. Others call `begin_use`.

        Args:
            make_room: closes other topics without users, when descriptors run out.

        Raises:
            StorageError: its files cannot be used.
        """
        ledger = _open_log(directory, entry, session, options, clock)
        try:
            return cls(directory, entry, session, ledger, ledger.options, clock, make_room)
        except BaseException:
            ledger.close()
            raise

    def begin_use(self) -> None:
        """Note the use, and do once what the first user of a topic owes it: make it durable, and suggest it
        to housekeeping."""
        self.ledger.words[TopicWord.SEEN_ACTIVE_MS] = self._clock.wall_ms()
        if not self._is_in_use:
            if self._durability != PROCESS:
                self.ensure_durable()
            self._upkeep.begin()
            self._is_in_use = True

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Topic {self.name} {state} subscriptions={len(self._subscriptions)}>"

    # -- producers ---------------------------------------------------------------------------------

    def attach_producer(
        self,
        name: str | None = None,
        *,
        access_mode: ProducerAccessMode = ProducerAccessMode.Shared,
        durability: str | None = None,
        timeout_s: float | None = None,
        check_wanted: Callable[[], object] = int,
        keep: Callable[[ProducerRegistration], object] = id,
    ) -> ProducerRegistration:
        """Register a producer.

        Args:
            name: unique among the living producers of the topic; None or empty for a made one,
                ``standalone-<client>-<n>``.
            access_mode: how it shares the topic; `WaitForExclusive` waits its turn.
            durability: the level it appends with. Above "process", the topic itself is made durable first.
            timeout_s: how long to wait for exclusive access; None for ever.
            check_wanted, keep: see `Producers.attach`.

        Raises:
            ProducerBusy: a living producer has the name, or the topic, or there are too many.
            ProducerBlockedQuotaExceededError: the backlog is beyond its quota; see `BacklogQuotas`.
            ProducerFenced: exclusive access is not to be had, or was taken away while waiting.
            Timeout: not granted within ``timeout_s``.
            TopicTerminated: nothing can be appended any more.
            AlreadyClosed: the topic was closed with its store.
            DescriptorLimitError: the process may open no more files; the producer is not registered.
        """
        self._check_open()
        if durability not in (None, PROCESS) and not self.ledger.is_volatile:
            self.ensure_durable()
        self.quotas.check_producer()
        full_name = name or self._session.next_producer_name()
        deduplicate, most = self.policies.values((DEDUPLICATION, MAX_PRODUCERS))
        return within_limit(
            lambda: self._producers.get().attach(
                full_name,
                named=bool(name),
                access_mode=access_mode,
                deduplicate=deduplicate and not self.ledger.is_volatile,
                most=most,
                timeout_s=timeout_s,
                check_wanted=check_wanted,
                keep=keep,
            ),
            self._close_all_idle,
            f"cannot attach the producer {full_name!r} to {self.name}",
        )

    def detach_producer(self, registration: ProducerRegistration, highest: int | None = None) -> None:
        """Take a producer out. Does nothing if it is out already, or was registered before a fork.

        Within a second or so: when a stopped process holds the topic's lock, it is taken out later.

        Args:
            highest: the sequence id it stored last, for deduplication; None if that is not known.
        """
        if not self.closed:
            self._producers.get().detach(registration, highest)

    def remember_producer(self, registration: ProducerRegistration, highest: int, *, durable: bool) -> None:
        """Note the highest sequence id a connected producer stored: the next producer that takes its name
        after its death reads the log from here. The producer must not append meanwhile."""
        if not self.closed:
            self._producers.get().memory.remember(registration.name, highest, durable=durable)

    def highest_remembered(self, name: str) -> int:
        """The highest sequence id that is noted of a producer's name; -1 for none."""
        return self._producers.get().memory.highest_now(name)

    @property
    def had_producers(self) -> bool:
        """Whether there ever was a producer: otherwise a change of deduplication concerns nothing."""
        return self._producers.existed

    def set_deduplication(self, is_on: bool) -> None:
        """Drop duplicates from now on, or no longer. The producers there are notice with their next message;
        the next one that comes does as the policies say."""
        self._check_open()
        self._producers.get().memory.switch(is_on)

    def check_producer(self, registration: ProducerRegistration) -> int | None:
        """Make sure that a producer was not fenced out.

        Returns:
            The highest sequence id known of its name, where the topic drops duplicates; else None.

        Raises:
            ProducerFenced: another producer has the topic now.
            AlreadyClosed: it is not registered any more, or belongs to the parent of this process.
        """
        self._check_open()
        return self._producers.get().check(registration)

    def terminate(self) -> Position:
        """Refuse all messages from now on, for ever; see `Producers.terminate`."""
        self._check_open()
        return self._producers.get().terminate(self.ledger.last_position)

    def producers(self) -> list[str]:
        """Names of the living producers, in order of arrival."""
        self._check_open()
        return self._producers.get().names()

    def _note_progress(self, entries: int) -> None:
        package_log.info("%s: %d entries read to find out which sequence ids are stored", self.name, entries)

    # -- subscriptions -----------------------------------------------------------------------------

    def subscription(
        self, name: str, create: bool = True, initial: Position | None = None, *, durable: bool = True
    ) -> Subscription:
        """The subscription of that name; made if need be and allowed. It stays open with the topic.

        Args:
            name: any text.
            create: make it if there is none and ``allowAutoSubscriptionCreation`` is on.
            initial: where a new one starts: everything up to this position counts as acknowledged. Default:
                the last entry there is.
            durable: whether it outlives its consumers. Durable and other subscriptions of one name are
                independent.

        Raises:
            SubscriptionNotFound: there is none, and it may not be made.
        """
        self._check_open()
        return self._subscriptions.get(SubscriptionKey(name, durable), create, initial)

    def use_subscription(
        self, name: str, create: bool = True, initial: Position | None = None, *, durable: bool = True
    ) -> Subscription:
        """As `subscription`, until the caller says `end_use`; later it may be closed, and opened again."""
        self._check_open()
        key = SubscriptionKey(name, durable)
        return within_limit(
            lambda: self._subscriptions.use(key, create, initial),
            self._close_all_idle,
            f"cannot open the subscription {name!r} of {self.name}",
        )

    def end_use(self, subscription: Subscription, name: str, *, durable: bool = True) -> None:
        """Undo one `use_subscription`. A deleted subscription is closed when it has no users, and one
        that is not durable is deleted when its last consumer has left."""
        if not self.closed:
            self._subscriptions.end_use(subscription, SubscriptionKey(name, durable))

    def create_subscription(self, name: str, initial: Position | None = None) -> bool:
        """Make a subscription whatever ``allowAutoSubscriptionCreation`` says.

        Returns:
            False, and nothing done, if there is one of that name.
        """
        self._check_open()
        return self._subscriptions.create(SubscriptionKey(name, True), initial)

    def subscriptions(self) -> list[str]:
        """Names of the durable subscriptions, sorted. Opens and closes those this process has not open."""
        self._check_open()
        return self._subscriptions.names()

    def consumers(self) -> list[str]:
        """Names of the living consumers of all subscriptions."""
        self._check_open()
        return self._subscriptions.consumers()

    def _close_all_idle(self) -> None:
        self._subscriptions.close_idle()
        self._make_room()

    # -- housekeeping ------------------------------------------------------------------------------

    def trim_now(self, *, ignore_retention: bool = False) -> int:
        """Remove the ledgers that all durable subscriptions have acknowledged and retention does not keep;
        return how many went. Housekeeping does the same with the closed ones by itself, in the background,
        and with the open one when the disk is full.

        Raises:
            StorageError: the position of a subscription is unknown. Nothing was removed.
            StorageFullError: the closed ones went, but there is no room for the successor of the open one.
        """
        self._check_open()
        trimming = self._trimming
        # The closed ones first: on a full disk they make the room that the next ledger takes.
        removed = sum(iter(lambda: trimming.trim(ignore_retention=ignore_retention), 0))
        if trimming.close_acknowledged(ignore_retention=ignore_retention):
            removed += sum(iter(lambda: trimming.trim(ignore_retention=ignore_retention), 0))
        return removed

    # -- the end -----------------------------------------------------------------------------------

    def ensure_durable(self) -> None:
        """Make the topic survive a power loss: its names and its place in the catalog. Cheap after once."""
        try:
            self._lock.acquire()
            if self._is_durable:
                return
            self._session.directories.make_durable(self._entry)
            self._is_durable = True
        finally:
            self._lock.release()

    @property
    def is_deleted(self) -> bool:
        """Whether the topic was deleted, by whatever process, since it was opened. One read of a word."""
        return is_deleted(self.ledger.words)

    def _check_open(self) -> None:
        if self.closed:
            raise AlreadyClosed(
                f"{self.name} was closed with its store, or belongs to the parent of this process"
            )

    def close(self) -> None:
        """Close subscriptions, producers' journal and log, in this order. Idempotent; called by the store."""
        if self.closed:
            return
        self.closed = True
        with contextlib.ExitStack() as closing:
            closing.callback(self.ledger.close)
            closing.callback(self._producers.close)
            closing.callback(self._subscriptions.close)
            closing.callback(self._upkeep.close)
            closing.callback(self.compaction.close)
            closing.callback(self.offload.close)
            closing.callback(self.view.close)

    def abandon(self) -> None:
        """Forget what the parent opened, in a forked child."""
        self.closed = True
        self._lock = threads.renewed(self._lock)
        self._subscriptions.abandon()
        self._upkeep.abandon()
        self.compaction.abandon()
        self.offload.abandon()


def _open_log(
    directory: str, entry: TopicEntry, session: StoreSession, options: LedgerOptions, clock: Clock
) -> ManagedLedger:
    """The log of a topic: a managed ledger that is kept, or the ring of a non-persistent topic."""
    open_ledger: Callable[..., ManagedLedger] = ManagedLedger.open
    if entry.name.startswith(NON_PERSISTENT):
        volatile = late_import("embeddedpulsar._engine.log.volatile_ledger")
        open_ledger = volatile.open_volatile_ledger
        options = volatile.volatile_options(options, session.settings.nonPersistentTopicRingSizeInMB << 20)
    return open_ledger(
        directory,
        name=entry.name,
        incarnation=entry.incarnation,
        store_id=session.meta.store_id,
        allocate_ledger_id=session.ledger_ids.allocate,
        mailbox=session.mailbox,
        peers=session.peers,
        options=options,
        clock=clock,
        scheduler=session.scheduler,
        damage=session.damage.report,
    )
