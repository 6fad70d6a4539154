"""What one process holds open of a store: locks, words, catalog, doorbell."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.format.control import StoreWord
from embeddedpulsar._engine.format.frame import require_little_endian
from embeddedpulsar._engine.log.topic_control import gone
from embeddedpulsar._engine.platform import disk, failpoints, filesystem, nofollow
from embeddedpulsar._engine.platform.access import Refusal
from embeddedpulsar._engine.platform.clock import Clock, boot_id
from embeddedpulsar._engine.platform.deadline import LONGEST_S
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.filesystem import DirectoryLease
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar._engine.platform.scheduler import SchedulerLike
from embeddedpulsar.damage import CATALOG, CONTROL, Damage, DamageHook
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.topic import store_root
from embeddedpulsar.topic.catalog import root_layout
from embeddedpulsar.topic.catalog.catalog import Catalog
from embeddedpulsar.topic.catalog.topic_directories import TopicDirectories
from embeddedpulsar.topic.catalog.topic_list import TopicList
from embeddedpulsar.topic.damage_channel import DamageChannel
from embeddedpulsar.topic.housekeeping import Housekeeping
from embeddedpulsar.topic.policies.admitting import AUTO_TOPIC_CREATION
from embeddedpulsar.topic.policies.creation_policy import check_topics
from embeddedpulsar.topic.policies.policy_documents import PolicyDocuments
from embeddedpulsar.topic.policies.resource_groups import GroupWords
from embeddedpulsar.topic.sinks.sink_upkeep import SinkUpkeep
from embeddedpulsar.topic.store_control import LedgerIds, StoreControl
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.policy_values import AutoTopicCreationOverride
    from embeddedpulsar.topic.open_topics import TopicUse

_ROOM_FOR_UNSEEN_IDS: Final = 1 << 16
_MAILBOX_ATTEMPTS: Final = 100
_DEFAULTS: Final = BrokerSettings()
_KNOWN_TEXTS: Final = 16

failpoints.declare(
    "store:locked", "store:directories_made", "store:catalog_made", "store:meta_written", "store:healed"
)


class StoreSession:
    """The open handles of a store in this process.

    Role: made by `open`, replaced as a whole after a fork, closed as a whole.
    Attributes:
        lease: the shared hold on the root directory.
        lock: the store lock, innermost of all: ledger ids, client numbers and resource groups.
        boot: in which boot the control words of the store are true; that of the process that opened it first,
            not always the boot id this process would read.
        client_number: unique among the sessions of the store; part of the producers' automatic names.
        refusal: why nothing may be written; None if it may be.
    """

    refusal: Refusal | None = None

    def __init__(self, root: str, lease: DirectoryLease, lock: FileLock, control: StoreControl) -> None:
        self.root = root
        self.lease = lease
        self.lock = lock
        self.control = control
        self.boot = boot_id()
        self.ledger_ids = LedgerIds(control, lock)
        self.group_words = GroupWords(control.words, lock)
        self.meta: store_root.StoreMeta
        self.settings: BrokerSettings
        self.damage: DamageChannel
        self.policies: PolicyDocuments
        self.catalog: Catalog
        self.directories: TopicDirectories
        self.topics: TopicList
        self.mailbox: Mailbox
        self.peers: Peers
        self.scheduler: SchedulerLike
        self.chores: SchedulerLike
        """Timers of housekeeping alone: it waits a little for locks, and the others must not wait with it."""
        self.housekeeping: Housekeeping
        self.use_topic: Callable[[str], TopicUse]
        """A hold on a topic that exists, to look at it; takes no lock of the store's registry."""
        self.client_number = -1
        self._producer_numbers = itertools.count()

    @classmethod
    def open(cls, root: str, lease: DirectoryLease, clock: Clock, damage: DamageChannel) -> StoreSession:
        """Open the store in the directory ``root``, making it one if it is empty. Takes over ``lease``.

        Raises:
            ForeignFileError, CorruptionError, UnsupportedFormatVersion: what is there is no store for this
            release. InvalidConfiguration: ``broker.conf`` is wrong, or asks for something that is not
            built.
        """
        require_little_endian()
        return nofollow.within_open(root, lease.fd, cls._open, root, lease, clock, damage)

    @classmethod
    def _open(cls, root: str, lease: DirectoryLease, clock: Clock, damage: DamageChannel) -> StoreSession:
        with contextlib.ExitStack() as undo:
            undo.callback(lease.close)
            names = os.listdir(lease.fd)
            filesystem.check_directories(
                root, lease, [name for name in root_layout.ALL_DIRECTORIES if name in names]
            )
            settings = read_settings(root) if root_layout.SETTINGS in names else _DEFAULTS
            meta = store_root.read_meta(root)
            lock = FileLock(root_layout.in_root(root, root_layout.STORE_LOCK))
            undo.callback(lock.close)
            if meta is None:
                meta = _create(root, lock, clock)
            control_path = root_layout.in_root(root, root_layout.CONTROL)
            if root_layout.CONTROL not in names:
                _make_control(control_path, lock)
            control = StoreControl(control_path)
            undo.callback(control.close)
            session = cls(root, lease, lock, control)
            session.meta, session.settings, session.damage = meta, settings, damage
            lock.check_reopened = session.check_in_place
            session.use_policies()
            session._open_catalog(clock)
            undo.callback(session.catalog.close)
            session._tidy_up()
            session.scheduler = clock.scheduler()
            undo.callback(session.scheduler.close)
            session.chores = clock.scheduler(LONGEST_S)
            undo.callback(session.chores.close)
            session.housekeeping = Housekeeping(
                root_layout.in_root(root, root_layout.HOUSEKEEPING_LOCK),
                session,
                settings.retentionCheckIntervalInSeconds,
                clock.monotonic,
            )
            every_s = settings.retentionCheckIntervalInSeconds
            sinks = SinkUpkeep(root, clock, every_s, damage.report)
            sinks.begin(session.housekeeping, root_layout.SINKS in names)
            clients = root_layout.in_root(root, root_layout.CLIENTS)
            session.mailbox = _create_mailbox(clients, control.path)
            undo.callback(session.mailbox.close)
            session.peers = Peers(clients, session.mailbox)
            session._take_number()
            session._sweep()
            undo.pop_all()
        return session

    def _open_catalog(self, clock: Clock) -> None:
        path = root_layout.in_root(self.root, root_layout.CATALOG)
        catalog_lock = FileLock(root_layout.in_root(self.root, root_layout.CATALOG_LOCK))
        catalog_lock.check_reopened = self.check_in_place
        try:
            if self.control.join(self.boot) and os.path.exists(path):
                self.use_catalog(Catalog(path, catalog_lock))
                return
            try:
                catalog_lock.acquire()
                self.boot = self.control.join_or_claim(self.boot)
                if self.control.is_current(self.boot) and os.path.exists(path):
                    self.use_catalog(Catalog(path, catalog_lock))
                else:
                    self._heal(path, catalog_lock, clock)
                self.control.share()
            finally:
                catalog_lock.release()
        except BaseException:
            with contextlib.suppress(AttributeError):
                self.catalog.close()
            catalog_lock.close()
            raise

    def _tidy_up(self) -> None:
        """Do what an opening finds due, unless another process is at the catalog: remove what processes left
        that died while they made or deleted a topic, and spare the next opening what this one had to read."""
        is_due = self.catalog.is_index_due or not self.directories.staging.is_empty
        if is_due and self.catalog.lock.try_acquire():
            try:
                self.directories.clear_staging()
                if self.catalog.is_index_due:
                    self.catalog.save_index()
            finally:
                self.catalog.lock.release()

    def use_policies(self) -> None:
        """Read policies by the settings and the words that were set."""
        words = self.control.words
        self.policies = PolicyDocuments(
            self.root,
            self.settings,
            lambda name: self.catalog.find(name),
            lambda: words[StoreWord.POLICIES],
            self.damage.note,
        )

    def use_catalog(self, catalog: Catalog) -> None:
        """Use this catalog from now on."""
        self.catalog = catalog
        self.directories = TopicDirectories(self.root, catalog, self.damage.note)

    def _heal(self, path: str, catalog_lock: FileLock, clock: Clock) -> None:
        """The first opening in a boot (or of a copy): repair what a power loss may have left.

        Under the catalog lock, and no other process has joined. Two may come here one after the other;
        the second finds nothing to do.
        """
        for name in root_layout.DIRECTORIES:
            filesystem.make_directories(root_layout.in_root(self.root, name), mode=None)
        self.use_catalog(_open_or_replace_catalog(path, catalog_lock, self.damage.note))
        self.directories.heal(clock.wall_ms())
        if failpoints.ACTIVE:
            failpoints.hit("store:healed")
        try:
            self.lock.acquire()
            if not self.control.is_current(self.boot):
                known = self.control.header() is not None and self.control.is_possible()
                # The word was flushed before an id below it was used. Without a believable header it may be
                # zeros: then the files are asked, with room for ids that only journals still mention.
                if self.control.is_damaged:
                    self.damage.note(Damage(self.control.path, reason="its header is damaged", kind=CONTROL))
                lowest = 1 if known else self.directories.highest_ledger_id() + 1
                if not self.control.is_next_id_possible():
                    reason = "the next ledger id was damaged"
                    self.damage.note(Damage(self.control.path, reason=reason, kind=CONTROL))
                elif not known and self.control.header() is not None:
                    reason = "its words are damaged"
                    self.damage.note(Damage(self.control.path, reason=reason, kind=CONTROL))
                self.control.adopt(self.boot, lowest if lowest == 1 else lowest + _ROOM_FOR_UNSEEN_IDS)
        finally:
            self.lock.release()

    def has_settings(self, text: str) -> bool:
        """Whether these are the settings of the store, as the text of a ``broker.conf``."""
        return self.settings == _settings_of(text)

    def check_in_place(self) -> None:
        """Refuse to find files by their names in what is not the store that was opened.

        Raises:
            StoreGoneError: the store was removed, moved or replaced.
        """
        if not self.control.is_in_place():
            raise gone(self.root)

    def check_limit(self, name: TopicName, more: int) -> None:
        """See `check_topics`."""
        check_topics(self.policies, self.catalog, name, more)

    def auto_creation(self, name: TopicName) -> AutoTopicCreationOverride:
        """Whether, and of which kind, a topic of this name is made when it is first used."""
        return self.policies.value(AUTO_TOPIC_CREATION, name.namespace_name)

    def remove_policies(self, namespace: str) -> None:
        """Remove all policies of a namespace, durably. Under the catalog lock."""
        if self.policies.has_document(namespace):
            self.control.change_policies(lambda: self.policies.remove_namespace(namespace))

    def _take_number(self) -> None:
        try:
            self.lock.acquire()
            self.client_number = self.control.next_client_number()
        finally:
            self.lock.release()

    def next_producer_name(self) -> str:
        """A name no other producer of the store has: ``standalone-<client number>-<n>``."""
        return f"standalone-{self.client_number}-{next(self._producer_numbers)}"

    def _sweep(self) -> None:
        """Remove the doorbells of dead processes, unless another process is at it."""
        if not self.peers.has_others():
            return
        lock = FileLock(root_layout.in_root(self.root, root_layout.HOUSEKEEPING_LOCK))
        try:
            if lock.try_acquire():
                self.peers.sweep()
        finally:
            lock.release()
            lock.close()

    def close(self) -> None:
        """Close everything but the lease on the root, doorbell first: from then on peers see this process
        gone."""
        with contextlib.ExitStack() as closing:  # runs from the last to the first, whatever fails
            closing.callback(self.lock.close)
            closing.callback(self.control.close)
            closing.callback(self.catalog.lock.close)
            closing.callback(self.catalog.close)
            closing.callback(self.peers.close)
            closing.callback(self.mailbox.close)
            closing.callback(self.scheduler.close)
            closing.callback(self.chores.close)

    def abandon(self) -> None:
        """Give up the inherited hold on the root in a forked child.

        Doorbell, peers, locks and catalog let go by themselves. The words stay mapped: a log the child
        inherited may still ask for a ledger id, and gets one of the child's own.
        """
        self.lease.close()


def read_settings(root: str) -> BrokerSettings:
    """The settings of a store.

    Raises:
        CorruptionError, InvalidConfiguration: ``broker.conf`` is not what it should be.
    """
    path = root_layout.in_root(root, root_layout.SETTINGS)
    if not os.path.lexists(path):
        return _DEFAULTS
    try:
        settings = _settings_of(disk.DISK.read_file(path).decode("utf-8"))
    except FileNotFoundError:
        return BrokerSettings()
    except UnicodeDecodeError as e:
        raise CorruptionError(path=path, offset=e.start, reason="it is not UTF-8 text") from e
    if settings.unknown:
        import logging  # 5 ms, and seldom needed

        for warning in settings.warnings():
            logging.getLogger("embeddedpulsar").warning("%s: %s", path, warning)
    return settings


@lru_cache(_KNOWN_TEXTS)
def _settings_of(text: str) -> BrokerSettings:
    settings = BrokerSettings.parse(text)
    settings.check_supported()
    return settings


def _create(root: str, lock: FileLock, clock: Clock) -> store_root.StoreMeta:
    """Make the empty directory ``root`` a store. ``store.meta`` comes last: before it, there is no store."""
    try:
        lock.acquire()
        meta = store_root.read_meta(root)
        if meta is not None:
            return meta  # another process was faster
        if failpoints.ACTIVE:
            failpoints.hit("store:locked")
        # 1. The directories.
        for name in root_layout.DIRECTORIES:
            filesystem.make_directories(root_layout.in_root(root, name), mode=None)
        if failpoints.ACTIVE:
            failpoints.hit("store:directories_made")
        # 2. An empty catalog (over one that a creator that died left).
        Catalog.create(root_layout.in_root(root, root_layout.CATALOG))
        if failpoints.ACTIVE:
            failpoints.hit("store:catalog_made")
        # 3. The document that makes it a store, durably with all names so far.
        meta = store_root.write_meta(root, clock.wall_ms())
        if failpoints.ACTIVE:
            failpoints.hit("store:meta_written")
        return meta
    finally:
        lock.release()


def _make_control(path: str, lock: FileLock) -> None:
    """Make the file of the words of the store, if it is missing.

    It gets its name when it has its size and its rights.
    """
    try:
        lock.acquire()
        if not os.path.exists(path):
            StoreControl.make(path)
    finally:
        lock.release()


def _open_or_replace_catalog(path: str, lock: FileLock, report: DamageHook) -> Catalog:
    """The catalog; a new one if a power loss took it. The old bytes are kept, the topics are added by
    `heal`."""
    try:
        return Catalog(path, lock)
    except (FileNotFoundError, CorruptionError, ForeignFileError) as e:
        if os.path.exists(path):
            disk.DISK.replace(path, f"{path}.damaged.tmp")
        reason = "it is missing" if isinstance(e, FileNotFoundError) else e.reason
        report(Damage(path, reason=reason, kind=CATALOG))
    Catalog.create(path)
    return Catalog(path, lock)


def _create_mailbox(clients: str, roll: str) -> Mailbox:
    """Make this process's FIFO, and its directory as often as a cleaner removes it meanwhile.

    The directory alone is made, never those above it: of a store that was removed nothing is made again.

    Raises:
        FileNotFoundError: the store was removed.
    """
    for _ in range(_MAILBOX_ATTEMPTS):
        with contextlib.suppress(FileNotFoundError):
            return Mailbox.create(clients, roll)
        with contextlib.suppress(FileExistsError):
            disk.DISK.mkdir(clients, None)
    return Mailbox.create(clients, roll)
