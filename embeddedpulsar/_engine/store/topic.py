"""A topic: its log, its producers and its subscriptions.

The compaction of a topic, as long as the topic has nothing to do with it.

The offloading of a topic, as long as the topic has nothing to do with it; and the record of it.

A part of a topic that is imported and made when the topic has to do with it: most have not.

The producers of a topic, as long as this process has nothing to do with them.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from embeddedpulsar._engine import EXTENSIONS
from embeddedpulsar._engine.filenames import (
    compaction_lock_path,
    compaction_path,
    offload_lock_path,
    offload_path,
)
from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.format.document import KIND_OFFLOAD, decode_document, encode_document
from embeddedpulsar._engine.log.log_opening import PROCESS, LedgerOptions
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger, open_volatile_ledger, volatile_options
from embeddedpulsar._engine.log.topic_control import is_deleted
from embeddedpulsar._engine.platform import disk, package_log, threads, timing
from embeddedpulsar._engine.platform.descriptors import late_imports, within_limit
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar._engine.platform.timing import Clock, SchedulerLike
from embeddedpulsar._engine.store.housekeeping import TopicTrimming, UpkeptParts
from embeddedpulsar._engine.store.policies.admitting import DEDUPLICATION, MAX_PRODUCERS
from embeddedpulsar._engine.store.policies.keeping import (
    COMPACTION_THRESHOLD,
    KEEP_UNTIL_SUBSCRIBED,
    OFFLOAD_RULES,
    RETENTION,
    OffloadRules,
    rules_of,
)
from embeddedpulsar._engine.store.policies.policy_documents import HeldPolicies, ValueOf
from embeddedpulsar._engine.store.root_layout import OFFLOADED as OFFLOADED_NOTES
from embeddedpulsar._engine.store.root_layout import in_root
from embeddedpulsar._engine.store.store_transactions import TopicOutcomes
from embeddedpulsar._engine.store.topic_subscriptions import (
    SubscriptionKey,
    SubscriptionOpening,
    TopicSubscriptions,
)
from embeddedpulsar._engine.store.upkeep import BacklogQuotas, Check, upkeep_of
from embeddedpulsar.damage import TOPIC_FILES, Damage, DamageHook
from embeddedpulsar.enums import ProducerAccessMode
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    CorruptionError,
    ForeignFileError,
    LockTimeout,
    NotAllowedError,
    UnsupportedFormatVersion,
)
from embeddedpulsar.message_id import Position
from embeddedpulsar.records import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.topic_name import NON_PERSISTENT, TopicName

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.cold.cold_ledger import ColdLedger
    from embeddedpulsar._engine.log.log import Cursor, Log
    from embeddedpulsar._engine.store.producers import ProducerRegistration, Producers
    from embeddedpulsar._engine.store.store_session import StoreSession
    from embeddedpulsar._engine.store.topic_compaction import (
        ExclusiveWork,
        LongRunningProcessStatus,
        TopicCompaction,
    )
    from embeddedpulsar._engine.store.topic_view import TopicView
    from embeddedpulsar._engine.subscription.subscription import Subscription


class HasParts(Protocol):
    """What such a part needs of a `Topic`."""

    @property
    def directory(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def ledger(self) -> Log: ...
    @property
    def policies(self) -> HeldPolicies: ...
    @property
    def view(self) -> TopicView: ...


class PartLike(Protocol):
    """A part that works in the background; see `ExclusiveWork`."""

    def start_if_due(self) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


Part = TypeVar("Part", bound=PartLike)


class LatePart(ABC, Generic[Part]):
    """Answers for the part as long as it is not made, by the names in the directory of the topic. A
    `Check` of the upkeep. Callers: any thread.

    Args:
        topic: that it is a part of.
        clock: of the store.
        every_s: the time between two looks whether something is due.
    """

    follows_traffic = False
    undone = ""

    def __init__(self, topic: HasParts, clock: Clock, every_s: float) -> None:
        self.every_s = every_s
        self._topic: Final = topic
        self._clock: Final = clock
        self._made: Final[dict[None, Part]] = {}  # one at most; of threads that make it at once, one wins

    @abstractmethod
    def _make(self) -> Part:
        """Import and make it."""

    @abstractmethod
    def is_wanted(self) -> bool:
        """Whether something may become due by itself."""

    def get(self) -> Part:
        """The part. Errors are those of `_make`."""
        return self._made[None] if self._made else self._made.setdefault(None, self._make())

    def run_due(self, done: list[str]) -> bool:
        """Begin what is due. Always False: it goes on in the background, which logs it."""
        self.get().start_if_due()
        return False

    def close(self) -> None:
        """See `ExclusiveWork.close`."""
        for part in self._made.values():
            part.close()

    def abandon(self) -> None:
        """See `ExclusiveWork.abandon`."""
        for part in self._made.values():
            part.abandon()


class LateCompaction(LatePart["TopicCompaction"]):
    """Answers for a topic that was never compacted and has no threshold; hands on to `TopicCompaction`
    otherwise.

    Args:
        topic: what is compacted.
        settings, clock: as of `TopicCompaction`.
    """

    undone = "the topic is not compacted"

    def __init__(self, topic: HasParts, settings: BrokerSettings, clock: Clock) -> None:
        super().__init__(topic, clock, float(settings.brokerServiceCompactionMonitorIntervalInSeconds))
        self._settings: Final = settings

    @property
    def exists(self) -> bool:
        """Whether the topic was compacted, or a compaction was begun, ever."""
        directory = self._topic.directory
        return os.path.exists(compaction_path(directory)) or os.path.exists(compaction_lock_path(directory))

    def is_wanted(self) -> bool:
        return self._threshold() > 0

    def _threshold(self) -> int:
        return self._topic.policies.value(COMPACTION_THRESHOLD)

    def _make(self) -> TopicCompaction:
        with late_imports():
            from embeddedpulsar._engine.log.compacted_ledger import CompactedLedgers
            from embeddedpulsar._engine.store.topic_compaction import TopicCompaction
        topic = self._topic
        ledgers = CompactedLedgers(
            topic.directory, topic.incarnation, lambda damage: topic.view.report(damage)
        )
        return TopicCompaction(ledgers, topic.ledger, self._threshold, self._settings, self._clock)

    def cursor(self, position: Position, *, inclusive: bool) -> Cursor:
        """As `Log.cursor`, in what compaction left of the log."""
        with late_imports():
            from embeddedpulsar._engine.log.compacted_ledger import CompactedCursor
        return CompactedCursor(self.get().ledgers, self._topic.ledger, position, inclusive=inclusive)

    def find_by_publish_time(self, publish_ms: int) -> Position:
        """As `Log.find_by_publish_time`, in what compaction left of the log."""
        position = self.get().ledgers.find_by_publish_time(publish_ms)
        return self._topic.ledger.find_by_publish_time(publish_ms) if position is None else position

    def marks(self, is_forced: bool) -> Sequence[Position]:
        """See `TopicCompaction.marks`."""
        if not self.exists and not self.is_wanted():
            return []
        return self.get().marks(is_forced=is_forced)


_EVERY_S: Final = 60.0
_SETTLE_S: Final = 0.2


class OffloadRecord(NamedTuple):
    """How the offloading of a topic went. Times in ms since the epoch, 0 for never.

    Attributes:
        ledger_id: the last ledger that was offloaded; 0 for none.
        succeeded_ms: when.
        failed_ms: when it failed last.
        error: why; empty if what was tried since succeeded.
        ended_ms: when an offloading that a call asked for last ended without an error, which may have found
            nothing to move.
    """

    ledger_id: int = 0
    succeeded_ms: int = 0
    failed_ms: int = 0
    error: str = ""
    ended_ms: int = 0

    def write(self, directory: str) -> None:
        """Replace the record of a topic."""
        data = encode_document(KIND_OFFLOAD, self._asdict())
        disk.DISK.atomic_write(offload_path(directory), data, durable=False)


def read_offload_record(directory: str, report: DamageHook | None = None) -> OffloadRecord:
    """The record of a topic; one of zeros if there is none, or it is damaged: nothing depends on it.

    Args:
        directory: of the topic.
        report: called with a record that is damaged.
    """
    try:
        fields = decode_document(disk.DISK.read_file(offload_path(directory)), KIND_OFFLOAD)
        return OffloadRecord(**{name: fields[name] for name in OffloadRecord._fields if name in fields})
    except UnsupportedFormatVersion as e:
        raise e.at(offload_path(directory)) from None
    except (FileNotFoundError, TypeError):
        return OffloadRecord()
    except (CorruptionError, ForeignFileError) as e:
        if report is not None:
            report(
                Damage(
                    offload_path(directory),
                    offset=e.offset or 0,
                    reason=e.reason,
                    kind=TOPIC_FILES,
                    done="how the last offloading ended is unknown",
                    remedy="nothing needs to be done: the next offloading writes it again",
                )
            )
        return OffloadRecord()


def _rules(value_of: ValueOf) -> OffloadRules:
    return rules_of([value_of(policy) for policy in OFFLOAD_RULES])


class Offloading(PartLike, Protocol):
    """The part of `offload.TopicOffload` that is used here and above."""

    @property
    def work(self) -> ExclusiveWork: ...
    def status(self) -> LongRunningProcessStatus: ...
    def due_before(self, ledger_id: int) -> int: ...
    def start(self, before: int, on_end: Callable[[], object] = int) -> None: ...
    def adopt(self, moved: Mapping[str, str]) -> int: ...


class LateOffload(LatePart[Offloading]):
    """Answers for a topic of which nothing was ever offloaded and no policy asks for it; hands on to
    `TopicOffload` otherwise.

    Args:
        topic: what is offloaded.
        root: of the store.
        clock: as of `TopicOffload`.
    """

    follows_traffic = True
    undone = "no ledger is offloaded"

    def __init__(self, topic: HasParts, root: str, clock: Clock) -> None:
        super().__init__(topic, clock, _EVERY_S)
        self._leftovers: Final = in_root(root, OFFLOADED_NOTES)

    @property
    def exists(self) -> bool:
        """Whether an offloading was ever begun."""
        directory = self._topic.directory
        return os.path.exists(offload_lock_path(directory)) or os.path.exists(offload_path(directory))

    def is_wanted(self) -> bool:
        return self._is_in_files and (self.rules().is_automatic or self.exists)

    @property
    def _is_in_files(self) -> bool:
        return isinstance(self._topic.ledger, ManagedLedger) and not self._topic.ledger.is_volatile

    def rules(self) -> OffloadRules:
        """What the policies say."""
        return self._topic.policies.once(_rules)

    def ledgers(self) -> dict[int, ColdLedger]:
        """The offloaded ledgers, by their ids."""
        if not self.exists:
            return {}
        with late_imports():
            from embeddedpulsar._engine.cold.cold_ledger import OFFLOADED, cold_ledgers

        notes = cold_ledgers(self._topic.directory)
        return {note.ledger_id: note for note in notes if note.state == OFFLOADED}

    def record(self) -> OffloadRecord:
        """How it went last."""
        return read_offload_record(self._topic.directory)

    def outcome(self) -> tuple[dict[int, ColdLedger], OffloadRecord]:
        """`ledgers` and `record`, of a topic that most likely never offloaded anything."""
        return (self.ledgers(), self.record()) if self.exists else ({}, OffloadRecord())

    def _make(self) -> Offloading:
        """As of `LatePart`.

        Raises:
            NotAllowedError: the topic is not stored in files.
        """
        topic = self._topic
        if not self._is_in_files:
            raise NotAllowedError(f"{topic.ledger.name} is kept in memory, and cannot be offloaded")
        name = TopicName.parse(topic.ledger.name)
        folder = f"{name.namespace_name}/{os.path.basename(topic.directory)}/{topic.incarnation:016x}"
        offloading: Offloading = EXTENSIONS.offloading(
            topic.directory, name.partition, folder, self._leftovers, topic.ledger, self.rules, self._clock
        )
        return offloading


class LateProducers:
    """Imports and makes `Producers`, the memory of their sequence ids, and the journal of both when it
    is first asked for them. A process that only receives needs none. Callers: any thread.

    Args:
        topic: whose producers they are.
        clock: of the store.
        on_progress: as of `SequenceMemory`.
        settings, mailbox, peers, scheduler: of the store.
    """

    def __init__(
        self,
        topic: HasParts,
        clock: Clock,
        on_progress: Callable[[int], object],
        *,
        settings: BrokerSettings,
        mailbox: Mailbox,
        peers: Peers,
        scheduler: SchedulerLike,
    ) -> None:
        self._topic: Final = topic
        self._settings: Final = settings
        self._mailbox: Final = mailbox
        self._peers: Final = peers
        self._scheduler: Final = scheduler
        self._clock: Final = clock
        self._on_progress: Final = on_progress
        # One at most; of threads that make it at once, one wins.
        self._made: Final[dict[None, Producers]] = {}
        topic.ledger.trimming.snapshot_before = self._save_before_trim
        topic.ledger.lock.close_others = self._close_descriptors

    @property
    def existed(self) -> bool:
        """Whether the topic ever had a producer. Reads one word."""
        return self._topic.ledger.words[TopicWord.JOURNAL] & 0xFFFFFFFF != 0

    def get(self) -> Producers:
        """The producers. Errors are those of `late_imports`."""
        return self._made[None] if self._made else self._made.setdefault(None, self._make())

    def _make(self) -> Producers:
        with late_imports():
            from embeddedpulsar._engine.store.producers import Producers, SequenceMemory
            from embeddedpulsar._engine.store.topic_journal import TopicJournal
        topic, options = self._topic, self._topic.ledger.options
        log = topic.ledger
        journal = TopicJournal(
            topic.directory,
            log.words,
            log.lock,
            self._peers,
            self._clock,
            lambda damage: topic.view.report(damage),
            lock_timeout_s=options.lock_timeout_s,
            own=self._mailbox.uuid,
        )
        memory = SequenceMemory(journal, log, self._settings, options.boot_id, self._on_progress)
        max_producers = partial(topic.policies.values, (MAX_PRODUCERS,))
        return Producers(
            journal, memory, self._mailbox, self._clock, self._scheduler, max_producers=max_producers
        )

    def _save_before_trim(self, ledger_id: int, lock_timeout_s: float | None) -> int:
        # Also if there seem to be none: only the journal knows whether its word survived a reboot.
        return self.get().memory.save_before_trim(ledger_id, lock_timeout_s)

    def _close_descriptors(self) -> None:
        for producers in self._made.values():
            producers.journal.close_descriptor()

    def close(self) -> None:
        """Give the journal's descriptor back. Idempotent."""
        for producers in self._made.values():
            producers.close()


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
        self._relative = ""
        self._entry, self._session, self._clock, self._make_room = entry, session, clock, make_room
        self._lock = threads.RLock()  # guards _is_durable
        self.group_words: Final = session.group_words
        source, words, settings = session.policies, session.control.words, session.settings
        self.policies: Final = HeldPolicies(source, words, (self.name, directory), clock.monotonic)
        ledger.call_on_look(self.policies.call_listeners)
        opening = SubscriptionOpening(
            session, ledger, self.policies, clock, options.durability, self._check_open
        )
        self._subscriptions: Final = TopicSubscriptions(
            self.name, directory, ledger, opening, self.policies.values, session.catalog.lock
        )
        # One at most; of threads that make it at once, one wins.
        self._view: Final[dict[None, TopicView]] = {}
        self.compaction: Final = LateCompaction(self, settings, clock)
        self.offload: Final = LateOffload(self, session.root, clock)
        kept = partial(self.policies.values, (RETENTION, KEEP_UNTIL_SUBSCRIBED))
        # What was aborted is needed by no subscription.
        marks = lambda: list(map(ledger.past_aborted, self._subscriptions.mark_deletes()))  # noqa: E731
        confirmed = lambda: list(map(ledger.past_aborted, self.view.mark_deletes()))  # noqa: E731
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
        parts = UpkeptParts(ledger, self.policies, self._subscriptions, lambda: self.view, clock, settings)
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

    @property
    def relative_directory(self) -> str:
        """Its directory below that of all topics."""
        if not self._relative:  # each transaction asks
            self._relative = self._session.directories.relative(self._entry)
        return self._relative

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
        # Above the level "process", the directory of the topic survives a power loss before its first entry
        # has to.
        if durability not in (None, PROCESS) and not self.ledger.is_volatile:
            self.ensure_durable()
        # Before a name is used up: a topic beyond its quota takes no producer.
        self.quotas.check_producer()
        full_name = name or self._session.next_producer_name()
        deduplicate, max_producers = self.policies.values((DEDUPLICATION, MAX_PRODUCERS))
        # Attaching opens the journal of the topic; at the limit of descriptors idle topics are closed, and it
        # is tried again.
        return within_limit(
            lambda: self._producers.get().attach(
                full_name,
                named=bool(name),
                access_mode=access_mode,
                deduplicate=deduplicate and not self.ledger.is_volatile,
                max_producers=max_producers,
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
        text = "%s: %d entries read to find out which sequence ids are stored"
        package_log.info(text, self.name, entries, topic=self.name)

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

    def use_to_attach(
        self, name: str, initial: Position | None = None, *, durable: bool = True
    ) -> tuple[Subscription, Position | None]:
        """As `use_subscription`, for a consumer that is about to attach.

        Returns:
            The subscription, and what `Subscription.attach` is given as ``initial``: where it starts if it is
            to be made, else None.
        """
        self._check_open()
        key = SubscriptionKey(name, durable)
        return within_limit(
            lambda: self._subscriptions.use_to_attach(key, initial),
            self._close_all_idle,
            f"cannot open the subscription {name!r} of {self.name}",
        )

    def end_use(self, subscription: Subscription, name: str, *, durable: bool = True) -> None:
        """Undo one `use_subscription` or `use_to_attach`. A deleted subscription is closed when it has no
        users, and one that is not durable is deleted when its last consumer has left."""
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

    def settle_transactions(self) -> None:
        """Have the log, and the subscriptions that are open here, follow transactions that ended elsewhere.
        Waits a moment for their locks; what is left is done by the next that gets one."""
        timing.call_logged(partial(_attempt, self.ledger.settle_transactions, _SETTLE_S))
        for subscription in self._subscriptions:
            timing.call_logged(partial(_attempt, timing.within, _SETTLE_S, subscription.settle_transactions))

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
            for view in list(self._view.values()):
                closing.callback(view.close)

    @property
    def view(self) -> TopicView:
        """What an onlooker sees of producers and subscriptions, made by the first look."""
        view = self._view.get(None)
        if view is None:
            with late_imports():
                from embeddedpulsar._engine.store.topic_view import TopicView
            view = self._view.setdefault(None, TopicView(self.directory, self.ledger, self._session))
        return view

    def abandon(self) -> None:
        """Forget what the parent opened, in a forked child."""
        self.closed = True
        self._lock = threads.renewed(self._lock)
        self._subscriptions.abandon()
        self._upkeep.abandon()
        self.compaction.abandon()
        self.offload.abandon()


def _attempt(call: Callable[..., object], *arguments: object) -> None:
    # The next process in the lock follows the ends; nothing does in what is closed meanwhile.
    with contextlib.suppress(LockTimeout, AlreadyClosed):
        call(*arguments)


def _open_log(
    directory: str, entry: TopicEntry, session: StoreSession, options: LedgerOptions, clock: Clock
) -> ManagedLedger:
    """The log of a topic: a managed ledger that is kept, or the ring of a non-persistent topic."""
    open_ledger: Callable[..., ManagedLedger] = ManagedLedger.open
    if entry.name.startswith(NON_PERSISTENT):
        open_ledger = open_volatile_ledger
        options = volatile_options(options, session.settings.nonPersistentTopicRingSizeInMB << 20)
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
        raise_format=session.raise_format,
        outcomes=TopicOutcomes(session.transactions, directory),
    )
