"""One directory of topics, shared by any number of processes; in each process, one `Store` per directory.

`StoreRegistry` finds the stores that this process has open, by the identity of their directory. Policies
of a topic or a namespace, which override ``broker.conf``, are changed here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from functools import partial

from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.log.log_opening import (
    DURABILITIES,
    PROCESS,
    LedgerOptions,
    ledger_options,
    temporary_options,
)
from embeddedpulsar._engine.log.topic_control import gone
from embeddedpulsar._engine.platform import descriptors, fork, nofollow, threads, timing
from embeddedpulsar._engine.platform.access import Refusal
from embeddedpulsar._engine.platform.filesystem import DirectoryLease
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.package_log import DamageChannel
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar._engine.platform.timing import Clock
from embeddedpulsar._engine.store import store_root
from embeddedpulsar._engine.store.inactive_topics import InactiveTopics
from embeddedpulsar._engine.store.open_topics import OpenTopics, TopicUse
from embeddedpulsar._engine.store.policies.admitting import DEDUPLICATION
from embeddedpulsar._engine.store.policies.keeping import LETTERS
from embeddedpulsar._engine.store.policies.policy import TopicPolicy, Value
from embeddedpulsar._engine.store.policies.policy_documents import PolicyWatch, ValueOf
from embeddedpulsar._engine.store.policies.resource_groups import GroupWords
from embeddedpulsar._engine.store.store_session import StoreSession
from embeddedpulsar._engine.store.store_transactions import StoreTransactions
from embeddedpulsar._engine.store.topic import Topic
from embeddedpulsar._engine.store.topic_list import TopicList
from embeddedpulsar.damage import DamageHook
from embeddedpulsar.exceptions import AccessDeniedError, AlreadyClosed, StoreGoneError, TopicNotFound
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.store.schema_registry import SchemaRegistry
    from embeddedpulsar._engine.store.transaction_folding import Folder
    from embeddedpulsar._engine.txn.transaction_log import TransactionLog


def is_namespace(name: str) -> bool:
    """Whether a text names ``tenant/namespace`` and no topic.

    Example:
        >>> is_namespace("public/default"), is_namespace("orders"), is_namespace("persistent://a/b/c")
        (True, False, False)
    """
    return "://" not in name and name.count("/") == 1


def change_policy(
    session: StoreSession,
    name: str,
    policy: TopicPolicy[Value],
    value: Value | None,
    *,
    check: Callable[[ValueOf], object] | None = None,
    durable: bool,
) -> list[TopicEntry]:
    """Note a policy of a topic or namespace, and ring all processes; None takes it away.

    Args:
        session: of the store.
        name: of the topic or namespace.
        policy: which policy.
        value: its value from now on.
        check: called under the lock of the change with a function that returns what holds for ``name`` by
            then; it raises if ``value`` does not fit that.
        durable: whether the change has to survive a power loss.

    Returns:
        The topics and partitions that are to be changed at once, and that were opened before.

    Raises:
        TopicNotFound: there is no such topic or namespace.
        InvalidConfiguration: the value makes no sense.
        StorageError: the document is damaged, or cannot be written.
    """
    if policy.resolve is not None and value is not None:
        value = policy.resolve(value, session.root)
    changes = {policy.key: None if value is None else policy.pack(value)}
    name, catalog = existing(session, name), session.catalog
    known = None if is_namespace(name) else catalog.find(name)
    if not is_namespace(name) and (known is None or not known.is_made):
        # A topic or partition that was never opened has no directory yet.
        session.topics.entry_to_open(TopicName.parse(name), create=False)
    try:
        catalog.lock.acquire()
        documents = session.policies
        change = documents.change_namespace if is_namespace(name) else documents.change_topic

        def record_owner(has_policy: bool) -> None:
            if policy.owners and has_policy == (value is not None):
                exists = partial(_exists, session)
                documents.note_owner(policy.owners, name, has_policy, exists, durable=durable)

        # Under the lock, as another process may have changed since what the value has to fit.
        if check is not None:
            check(lambda beside: documents.value(beside, name))

        def write() -> None:
            if policy.amend is not None and value is not None:
                changes[policy.key] = policy.amend(session, changes[policy.key])
            record_owner(True)
            change(name, changes, durable=durable)
            record_owner(False)  # a process that dies in between leaves a name too many

        session.control.change_policies(write)
    finally:
        catalog.lock.release()
    session.peers.ring_all()
    if policy.apply is None:
        return []
    entries = catalog.topics(name) if is_namespace(name) else _entries_of(session, name)
    return [entry for entry in entries if entry.is_made and not entry.partitions]


def apply_policy(
    session: StoreSession,
    policy: TopicPolicy[Value],
    entries: Iterable[TopicEntry],
    use_topic: Callable[[TopicEntry], TopicUse],
) -> None:
    """Change topics at once, if the policy acts at once."""
    if policy.apply is None:
        return
    for entry in entries:
        use = use_topic(entry)
        try:
            policy.apply(use.topic, session.policies.value(policy, use.topic.name, use.topic.directory))
        finally:
            use.release()


def note_letters(session: StoreSession, name: str) -> None:
    """Note, durably, that letters go to a topic; to be called before the first of them is stored there.

    Raises:
        TopicNotFound: there is no such topic.
        StorageError: the document is damaged, or cannot be written.
    """
    if not session.policies.own(LETTERS, existing(session, name)):
        change_policy(session, name, LETTERS, True, durable=True)


def existing(session: StoreSession, name: str) -> str:
    """The name of a namespace, or the full name of a topic, that exists.

    Raises:
        TopicNotFound: there is no such topic or namespace.
    """
    if is_namespace(name):
        if not session.catalog.has_namespace(name):
            raise TopicNotFound(f"there is no namespace {name} in {session.root}")
        return name
    parsed = TopicName.parse(name)
    if not session.topics.has(name):
        raise TopicNotFound(f"{parsed.full}: no such topic in {session.root}")
    return parsed.full


def _exists(session: StoreSession, name: str) -> bool:
    if is_namespace(name):
        return session.catalog.has_namespace(name)
    return session.catalog.find(name) is not None


def _entries_of(session: StoreSession, name: str) -> list[TopicEntry]:
    """The topic itself, or those partitions of it that were opened before."""
    entry = session.catalog.find(name)
    return [] if entry is None else session.catalog.with_logs(entry)


StoreKey = tuple[int, int, bool]
"""Device and inode of the directory, and whether the store is open read-only."""


class StoreRegistry:
    """The open stores, and the lock under which they are opened and closed.

    Role: makes `Store.open` return one instance per directory, however its path is spelled.
    Invariants: a key stays in use as long as its store holds the directory open, so it
    cannot come to mean another one. A fork waits for openings that are under way: a half-made doorbell must
    not be inherited, for its lease would be too.
    """

    def __init__(self) -> None:
        self.lock = threads.RLock()
        self.stores: dict[StoreKey, Store] = {}
        self.in_memory: dict[str, Store] = {}
        """Those in memory that have a name, by URL; in a forked child also those that it inherited."""
        fork.register(self)
        fork.at_exit(self.close_all)

    def add(self, key: StoreKey, store: Store) -> None:
        """Note a store that was opened. Under the lock."""
        self.stores[key] = store
        if store_root.is_named(store.memory_url):
            self.in_memory[store.memory_url] = store
            store_root.ROOTS[store.memory_url] = store.root

    def discard(self, key: StoreKey, store: Store) -> None:
        """Forget a store that this process has not open any more. Under the lock, or in a forked child."""
        if self.stores.get(key) is store:  # not one that came into its place
            del self.stores[key]

    def forget_name(self, store: Store) -> None:
        """Let the name of a store in memory be that of the next one. Under the lock."""
        if self.in_memory.get(store.memory_url) is store:
            del self.in_memory[store.memory_url]
            del store_root.ROOTS[store.memory_url]

    def close_all(self) -> None:
        """Close what was forgotten, at the end of the process: no doorbell and no memory must stay behind."""
        for store in list(self.stores.values()):
            while not store.closed:
                store.release()

    def before_fork(self) -> None:
        self.lock.acquire()

    def after_fork_in_parent(self) -> None:
        self.lock.release()

    def after_fork_in_child(self) -> None:
        self.lock = threads.RLock()


REGISTRY = StoreRegistry()


class Store:
    """The topics of one directory, as this process uses them.

    Role: the entry point for clients. `open` returns one instance for a directory, however it is spelled, and
    counts; the last `release` closes everything. After a fork the child's copy is stale: `revive`, which all
    other methods call, makes it usable there, with a doorbell, lease and client number of its own.
    Invariants: at most one open instance per (device, inode) and process. Whatever the instance opened is
    closed by the last `release`: no descriptor, thread or FIFO stays.
    Callers: any thread. Lock order: the registry's, then that of `OpenTopics`, then the file locks of
    docs/concurrency.md.

    Attributes:
        root: absolute path of the directory.
        durability: default level of the ledgers: that of the first `open` in this process.
        memory_url: the URL of a store in memory that this process made; empty for a directory.
        is_temporary: whether it is in memory. Nothing is flushed, and the last process that has it open
            removes it.
        damage: tells the application what is found damaged.
        unrecovered: names of topics that were looked at in a store that is open read-only, and whose control
            words are not true: after a reboot, or in a copy. What they show was found in their segments.
    """

    def __init__(
        self, root: str, durability: str, clock: Clock, options: LedgerOptions | None, memory_url: str
    ) -> None:
        self.root = root
        self.is_temporary: Final = store_root.is_temporary(root)
        self.durability = PROCESS if self.is_temporary else durability
        self.clock = clock
        self.memory_url = memory_url
        self._requested_options = options
        self._interval_ms, self._references = 1000, 0
        self._refusal: Refusal | None = None
        self.unrecovered: Final[set[str]] = set()
        self._topics = OpenTopics()
        self.damage: Final = DamageChannel()
        self._session: StoreSession | None = None
        self._inactive: InactiveTopics
        self._folder: Folder | None = None
        self._inherited: StoreSession | None = None  # of the parent of this forked process
        fork.register(self)

    @classmethod
    def open(
        cls,
        root: str | os.PathLike[str],
        *,
        durability: str = PROCESS,
        interval_ms: int = 1000,
        allow_network_fs: bool = False,
        clock: Clock | None = None,
        options: LedgerOptions | None = None,
        on_damage: DamageHook | None = None,
        read_only: bool | None = False,
    ) -> Store:
        """Open the store in ``root``, creating directory (mode 0700) and store as needed.

        Args:
            root: a directory; or ``memory://`` for a new store in memory, or ``memory://name`` for the one of
                that name of this process. A new one may be given settings, ``memory://?name=value&...``.
            durability: "process", "interval" or "flush" (see `LedgerOptions`).
            interval_ms: time between syncs at level "interval"; that of the first `open` in this process.
            allow_network_fs: accept a network file system. Only one machine may ever open such a store.
            clock: for tests; default is `_engine.platform.timing.CLOCK`.
            options: sizes of segments and the like; by default from ``broker.conf``. For tests and tuning.
            on_damage: a listener for `damage`; the caller removes it before `release`.
            read_only: look at the store, and write nothing of it; None: if this process may not write. Such a
                store is another instance than one that is open for writing.

        Raises:
            AccessDeniedError: the directory belongs to another user, who does not let this one read it.
            ForeignFileError: the directory holds something else, or others may write to it.
            CorruptionError: it is a store whose root files are damaged.
            UnsupportedFormatVersion: a newer release made it.
            NetworkFilesystemError: locks and maps are not shared on that file system.
            InvalidConfiguration: ``broker.conf`` is wrong, or asks for something that is not built.
            ValueError: this process has the store open with another clock, or a store in memory of that name
                with other settings.
        """
        if durability not in DURABILITIES:
            raise ValueError(f"durability is one of {', '.join(DURABILITIES)}, not {durability!r}")
        path = os.fspath(root)
        memory_url = store_root.split_settings(path)[0] if store_root.is_memory(path) else ""
        clock = clock or timing.CLOCK
        with timing.translated:  # it may be removed while it is opened
            try:
                REGISTRY.lock.acquire()
                new: Store | None = None
                store = cls._of_name(memory_url, path) if memory_url else None
                if store is None:
                    what = f"cannot open the store {path}"
                    path, lease, refusal = descriptors.named(
                        what, store_root.lease_root, path, allow_network_fs, read_only
                    )
                    store = REGISTRY.stores.get(_key(lease, refusal))
                    if store is not None and store._is_in_place():
                        lease.close()
                    else:
                        new = cls(path, durability, clock, options, memory_url)
                        new._interval_ms, new._refusal = interval_ms, refusal
                        # Before its threads begin, which may find damage at once.
                        if on_damage is not None:
                            new.damage.add(on_damage)
                        store = new._begun(lease, allow_network_fs, read_only)
                if store.clock is not clock:
                    raise ValueError(f"{path} is open with another clock: close its clients first")
                store._references += 1
                if on_damage is not None and store is not new:
                    store.damage.add(on_damage)
            finally:
                REGISTRY.lock.release()
        store.damage.hand_on()
        return store

    @classmethod
    def _of_name(cls, url: str, path: str) -> Store | None:
        """The store in memory of that name which this process has open, or inherited. Under the lock."""
        store = REGISTRY.in_memory.get(url)
        if store is None:
            return None
        try:
            store.revive()
        except (AlreadyClosed, StoreGoneError):  # of a parent that has ended
            REGISTRY.forget_name(store)
            return None
        settings = store_root.split_settings(path)[1]
        if settings and not store._current().has_settings(settings):
            raise ValueError(f"{url} is open with other settings; leave them out to share the store")
        return store

    def _begun(self, lease: DirectoryLease, allow_network_fs: bool, read_only: bool | None) -> Store:
        """This store, open; or the one that looks at the directory, if a file may not be written."""
        try:
            self._begin(lease)
        except AccessDeniedError as e:
            if read_only is not None or self._refusal is not None or self.memory_url:
                raise
            _, lease = store_root.lease_to_look(self.root, allow_network_fs, e)
            self._refusal = Refusal.after(self.root, e)
            known = REGISTRY.stores.get(_key(lease, self._refusal))
            if known is not None and known._is_in_place():
                lease.close()
                return known
            self._begin(lease)
        return self

    def _begin(self, lease: DirectoryLease, inherited: StoreSession | None = None) -> None:
        if inherited is not None and not inherited.control.is_in_place():
            lease.close()
            raise gone(self.root)
        what = f"cannot open the store {self.root}"
        if self._refusal is None:
            session = descriptors.named(what, StoreSession.open, self.root, lease, self.clock, self.damage)
        else:
            with descriptors.late_imports():
                from embeddedpulsar._engine.store.store_session import open_to_look
            of_store = self.root, lease, self.clock, self.damage, self._refusal
            session = descriptors.named(what, open_to_look, *of_store)
        session.topics = TopicList(session, self.clock, durable=self.durability != PROCESS)
        self._inactive = InactiveTopics(session, self._topics.in_use, partial(self._use, session), self.clock)
        self._topics.on_policies = self._inactive.renew
        requested, transactions = self._requested_options, session.transactions
        transactions.durability = requested.durability if requested else self.durability
        transactions.interval_s = self._interval_ms / 1000
        transactions.on_ended = self._topics.settle_transactions
        self._folder, transactions.fold = None, partial(self._fold, session)
        PolicyWatch(session.control.words, session.mailbox, session.chores, self._topics.look_at_policies)
        self._session = session
        REGISTRY.add(_key(lease, self._refusal), self)
        if self._refusal is None:
            self._inactive.renew()
        else:
            self._topics.on_policies = int  # nothing is due here

    def _fold(self, session: StoreSession, log: TransactionLog, done: list[str]) -> bool:
        if self._folder is None:
            self._folder = self.make_folder(session)
        return self._folder.fold(log, done)

    def make_folder(self, session: StoreSession) -> Folder:
        """What lets the transaction log forget outcomes."""
        with descriptors.late_imports():
            from embeddedpulsar._engine.store.transaction_folding import Folder
        return Folder(session, partial(self._use, session), self.clock)

    def release(self, reference: list[Store] | None = None) -> None:
        """Undo one `open`; the last one closes topics, catalog, locks and doorbell, in this order of need.

        Args:
            reference: a list with the store, which is emptied. With an empty list nothing is undone: the call
                that emptied it was interrupted afterwards.

        Raises: AlreadyClosed: it was released as often as it was opened.
        """
        try:
            REGISTRY.lock.acquire()
            if reference is not None:
                if not reference:
                    return
                reference.clear()
            if self._references <= 0:
                raise AlreadyClosed(f"the store {self.root} is closed")
            self._references -= 1
            if self._references:
                return
            if self.memory_url:
                REGISTRY.forget_name(self)
            session, self._session = self._session, None
            if session is None:  # in a forked child that never used it
                self._topics.take_all()
                return
            self._inactive.close()  # it opens topics
            session.transactions.fold = lambda log, done: False
            if self._folder is not None:
                self._folder.close()  # so does this
            topics = self._topics.take_all()
            REGISTRY.discard(_key(session.lease, self._refusal), self)
            with contextlib.ExitStack() as closing:  # runs from the last to the first, whatever fails
                # 3. The directory itself, last: it is what others take for "still in use".
                closing.callback(session.lease.close)
                if self.is_temporary and self._refusal is None:
                    closing.callback(store_root.remove_in_memory, self.root, session.lease)
                # 2. Doorbell, catalog, words and locks.
                closing.callback(session.close)
                # 1. Topics: dirty ledgers are synced. Consumers were detached by their owners before.
                for topic in topics:
                    closing.callback(topic.close)
        finally:
            REGISTRY.lock.release()

    # -- topics ------------------------------------------------------------------------------------

    @property
    def topics(self) -> TopicList:
        """Which topics there are; makes topics without opening them."""
        return self._present().topics

    def partitions_of(self, name: str) -> int:
        """As `TopicList.resolve`; does not ask the catalog about an open topic."""
        if self._topics.has(TopicName.parse(name).full):
            return 0
        return self.topics.resolve(name, create=self._refusal is None)

    def has_open(self, name: str) -> bool:
        """Whether this process has a topic open that was not deleted. ``name`` is any that leads to it."""
        return self._topics.has(TopicName.parse(name).full)

    def use_topic(self, name: str, create: bool = True, *, to_look: bool = False) -> TopicUse:
        """A hold on the topic of that name, opened once per process; made if need be and allowed. It stays
        open until the hold is released; later it may be closed, and opened again.

        Args:
            name: short or full; see `TopicName.parse`.
            create: make the topic if there is none and ``allowAutoTopicCreation`` is on.
            to_look: nothing is changed: so do not make it durable, or trim it.

        Raises:
            InvalidTopicName: the text is not a topic name.
            TopicNotFound: no such topic, partition or namespace, and it may not be made.
            NotAllowedError: it is partitioned (open its partitions instead), or of a kind that is off.
            StorageError: its files cannot be used, or the process may not open as many.
            ReadOnlyStoreError: the store is open read-only, and not ``to_look``.
        """
        session = self._current()
        if self._refusal is not None:
            if not (to_look and session.topics.was_used(name)):  # it raises if there is no such topic
                raise self._refusal.error()
            return self._use(session, name)
        if to_look:
            return self._use(session, name, create)
        return self._use(session, name, create).begin()

    def _use(self, session: StoreSession, name: str, create: bool = False) -> TopicUse:
        parsed = TopicName.parse(name)

        def open_topic() -> Topic:
            session.check_in_place()  # of a topic that is open, its place is that of the store too
            try:
                return self._open_topic(session, session.topics.entry_to_open(parsed, create=create))
            finally:
                self.damage.hand_on()

        return self._topics.use(parsed.full, open_topic)

    def _open_topic(self, session: StoreSession, entry: TopicEntry) -> Topic:
        return nofollow.within(session.directories.path(entry), self._open_within, session, entry)

    def _open_within(self, session: StoreSession, entry: TopicEntry) -> Topic:
        topic = Topic.open(
            session.directories.ensure(entry),
            entry,
            session=session,
            options=self._options(session),
            clock=self.clock,
            make_room=self._topics.close_idle,
        )
        if self._refusal is not None:
            self._note_whether_derived(topic)
        elif topic.is_deleted:
            with descriptors.late_imports():
                from embeddedpulsar._engine.store.topic_deletion import take_mark_back
            take_mark_back(session, entry, topic)
        return topic

    def _note_whether_derived(self, topic: Topic) -> None:
        if topic.ledger.is_derived:
            self.unrecovered.add(topic.name)
        else:
            self.unrecovered.discard(topic.name)

    def grow_partitions(self, name: str, partitions: int) -> None:
        """Give a partitioned topic more partitions, and notify all processes. See `TopicList.grow`."""
        session, parsed = self._present(), TopicName.parse(name)
        first = parsed.of_partition(0).full
        subscriptions: list[str] = []
        if session.catalog.find(first) is not None:  # it was opened before
            use = self.use_topic(first, create=False)
            try:
                subscriptions = use.topic.subscriptions()
            finally:
                use.release()
        session.topics.grow(parsed, partitions, subscriptions, lambda entry: self._open_topic(session, entry))
        session.peers.ring_all()

    def delete_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a topic that is not partitioned, with its subscriptions and messages; with ``force`` also
        while producers or consumers are attached. Their next call says that the topic was deleted, as do
        those of readers, which are never in the way.

        Raises:
            TopicNotFound: no such topic.
            NotAllowedError: it is partitioned, or a partition.
            BrokerMetadataError: producers or consumers are attached, and not ``force``.
        """
        self._delete(self.topics.plain_entry(TopicName.parse(name)), force)

    def delete_partitioned_topic(self, name: str, *, force: bool = False) -> None:
        """As `delete_topic`, a partitioned topic with all partitions."""
        self._delete(self.topics.partitioned_entry(TopicName.parse(name)), force)

    def _delete(self, entry: TopicEntry, force: bool) -> None:
        with descriptors.late_imports():
            from embeddedpulsar._engine.store.topic_deletion import check_unless, delete
        session = self._present()
        use_topic = partial(self._use, session)
        delete(session, use_topic, entry, self.clock.wall_ms(), check_unless(force))

    def trim_topic(self, name: str) -> int:
        """See `Topic.trim_now`; raises TopicNotFound if there is no such topic."""
        use = self.use_topic(name, create=False)
        try:
            return use.topic.trim_now()
        finally:
            use.release()

    def set_policy(
        self,
        name: str,
        policy: TopicPolicy[Value],
        value: Value | None,
        check: Callable[[ValueOf], object] | None = None,
    ) -> None:
        """Set a policy of a topic or a ``tenant/namespace``, which open topics of all processes follow; None:
        as what is above it says. ``check`` and the errors are those of `change_policy`."""
        session, durable = self._present(), self.durability != PROCESS
        entries = change_policy(session, name, policy, value, check=check, durable=durable)
        self._topics.look_at_policies()
        apply_policy(session, policy, entries, lambda entry: self.use_topic(entry.name, create=False))

    def own_policy(self, name: str, policy: TopicPolicy[Value]) -> Value | None:
        """What was set for a topic or namespace by `set_policy`; None for nothing."""
        return self._present().policies.own(policy, existing(self._present(), name))

    def policy(self, name: str, policy: TopicPolicy[Value]) -> Value:
        """What holds for a topic or namespace, set there or not."""
        return self._current().policies.value(policy, existing(self._current(), name))

    def drop_duplicates(self, topic: str) -> None:
        """Have a persistent topic drop duplicates from now on, whatever is set for it and its namespace: for
        producers that publish again what they may have published before. Other topics have no log in which a
        second copy could be found."""
        if TopicName.parse(topic).is_persistent and not self.policy(topic, DEDUPLICATION):
            self.set_policy(topic, DEDUPLICATION, True)

    def note_letters(self, name: str) -> None:
        """Note that letters are about to be stored in a topic; see the function of that name."""
        note_letters(self._current(), name)

    # -- what it is made of ------------------------------------------------------------------------

    @property
    def store_id(self) -> bytes:
        """The id of the store, 16 bytes; its copies have it, too."""
        return self._current().meta.store_id

    @property
    def is_read_only(self) -> bool:
        """Whether nothing of the store is written by this instance."""
        return self._refusal is not None

    @property
    def read_only_reason(self) -> str:
        """Why nothing is written; empty if it may be."""
        return "" if self._refusal is None else self._refusal.reason

    def check_writable(self) -> None:
        """Refuse to change a store that is open read-only.

        Raises:
            ReadOnlyStoreError: it is.
        """
        if self._refusal is not None:
            raise self._refusal.error()

    @property
    def schemas(self) -> SchemaRegistry:
        """The schemas of the topics."""
        with descriptors.late_imports():
            from embeddedpulsar._engine.store.schema_registry import SchemaRegistry
        return SchemaRegistry(self._present(), self.clock, durable=self.durability != PROCESS)

    @property
    def settings(self) -> BrokerSettings:
        """The settings of ``broker.conf`` when the store was opened."""
        return self._current().settings

    @property
    def group_words(self) -> GroupWords:
        """What resource groups used."""
        return self._current().group_words

    @property
    def transactions(self) -> StoreTransactions:
        """The transactions of the store."""
        return self._current().transactions

    @property
    def mailbox(self) -> Mailbox:
        """The doorbell of this process."""
        return self._current().mailbox

    @property
    def peers(self) -> Peers:
        """The doorbells of the other processes."""
        return self._current().peers

    @property
    def closed(self) -> bool:
        """Whether the last `release` was called."""
        return self._references <= 0

    def soon(self, work: Callable[[], object]) -> None:
        """Call ``work()`` on the thread of housekeeping; see `Scheduler.call_later`. Takes no lock."""
        self._current().chores.call_later(0.0, work)

    def _options(self, session: StoreSession) -> LedgerOptions:
        if self._requested_options is not None:
            options = self._requested_options._replace(boot=session.boot)
        else:
            options = ledger_options(session.settings, self.durability, self._interval_ms, session.boot)
            if self.is_temporary:
                options = temporary_options(options, store_root.room_in_memory(self.root))
        return options if self._refusal is None else options._replace(refusal=self._refusal)

    def revive(self) -> Store:
        """In a forked child: open the store anew. Does nothing elsewhere. Every other method calls it.

        Raises:
            AlreadyClosed: the store is closed.
            StoreGoneError: the store was removed meanwhile, such as one in memory that the parent closed.
        """
        if self._session is not None:
            return self
        try:
            REGISTRY.lock.acquire()
            if self._session is None:
                if self._references <= 0:
                    raise AlreadyClosed(f"the store {self.root} is closed")
                to_look = self._refusal is not None
                lease = DirectoryLease.open(self.root) if to_look else store_root.shared_lease(self.root)
                self._begin(lease, self._inherited)
        finally:
            REGISTRY.lock.release()
        return self

    def _is_in_place(self) -> bool:
        """Whether the directory still is the store that was opened; it may have been emptied."""
        session = self._session
        return session is not None and session.control.is_in_place()

    def _present(self) -> StoreSession:
        """`_current`, for what finds files by their names; `StoreGoneError` if the store is gone."""
        session = self._current()
        session.check_in_place()
        return session

    def _current(self) -> StoreSession:
        session = self._session or self.revive()._session
        if session is None:
            raise AlreadyClosed(f"the store {self.root} is closed")
        return session

    def after_fork_in_child(self) -> None:
        """Forget what belongs to the parent, without touching it."""
        session, self._session = self._session, None
        self._inherited = session or self._inherited
        self._topics.after_fork_in_child()
        if session is not None:
            REGISTRY.discard(_key(session.lease, self._refusal), self)
            session.abandon()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "stale" if self._session is None else "open"
        return f"<Store {self.root} {state} topics={len(self._topics)}>"


def _key(lease: DirectoryLease, refusal: Refusal | None) -> StoreKey:
    return *lease.key, refusal is not None
