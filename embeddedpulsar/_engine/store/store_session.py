"""What one process holds open of a store: locks, words, catalog, doorbell.

``store.ctl``: the mapped words of a store, counters that only rise, and the ledger ids they give out.

A store of which a process may write nothing, or wants to write nothing: opening it to look at it.

What an opening for writing makes, takes or repairs is left out: the lock files, the doorbell, the number of
the client, the hold on ``store.ctl``, the healing after a reboot, and what processes left that were killed.
Words are mapped for reading, and every lock is one that refuses (`RefusedLock`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from functools import lru_cache, partial

from embeddedpulsar._engine import EXTENSIONS
from embeddedpulsar._engine.filenames import under_construction
from embeddedpulsar._engine.format.control import (
    CONTROL_HEADER_SIZE,
    CONTROL_SIZE,
    KIND_STORE,
    ControlHeader,
    StoreWord,
    are_possible,
    pack_control_header,
    parse_control_header,
)
from embeddedpulsar._engine.format.frame import require_little_endian
from embeddedpulsar._engine.log.topic_control import FIRST_WORD, gone, has_living
from embeddedpulsar._engine.log.trimming import MAX_LEDGER_ID
from embeddedpulsar._engine.platform import (
    disk,
    failpoints,
    filesystem,
    fork,
    lease,
    nofollow,
    package_log,
    threads,
)
from embeddedpulsar._engine.platform.access import Refusal
from embeddedpulsar._engine.platform.file_lock import FileLock, RefusedLock
from embeddedpulsar._engine.platform.filesystem import DirectoryLease
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.mapped_file import MappedFile, MemoryFile
from embeddedpulsar._engine.platform.package_log import DamageChannel
from embeddedpulsar._engine.platform.peers import Peers, onlooker_mailbox
from embeddedpulsar._engine.platform.timing import LONGEST_S, Clock, SchedulerLike, boot_id
from embeddedpulsar._engine.store import root_layout, store_root
from embeddedpulsar._engine.store.catalog import Catalog
from embeddedpulsar._engine.store.housekeeping import Housekeeping, LateChore
from embeddedpulsar._engine.store.policies.admitting import AUTO_TOPIC_CREATION
from embeddedpulsar._engine.store.policies.policy_documents import PolicyDocuments, check_topics
from embeddedpulsar._engine.store.policies.resource_groups import GroupWords
from embeddedpulsar._engine.store.store_transactions import StoreTransactions
from embeddedpulsar._engine.store.topic_directories import TopicDirectories
from embeddedpulsar._engine.store.topic_list import TopicList
from embeddedpulsar.damage import CATALOG, CONTROL, Damage, DamageHook
from embeddedpulsar.exceptions import (
    CorruptionError,
    ForeignFileError,
    StorageFullError,
    UnsupportedFormatVersion,
)
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar.policy_values import AutoTopicCreationOverride


_CLIENT_JUMP: Final = 10_000
"""Client numbers are not flushed one by one; a new boot skips more than the last seconds can have handed
out."""
_BLOCK: Final = 512
"""The unit of ``st_blocks``."""
SMALLEST_BLOCK: Final = 8
LARGEST_BLOCK: Final = 1024
LAST_ID: Final = (1 << 32) - 1

failpoints.declare("policies:changing", "policies:written")


class StoreControl:
    """The words of the store's ctl.

    Invariants: every word only rises, but for those of resource groups. `NEXT_LEDGER_ID` is flushed before an
    id below it is used, so it holds after a reboot too; `NEXT_CLIENT_NUMBER` is not, and jumps ahead then.
    Callers: any thread; everything that writes, under the store lock.
    """

    __slots__ = ("_file", "path", "words")

    def __init__(self, path: str, *, writable: bool = True) -> None:
        self._file = _mapped(path) if writable else _read(path)
        self.path = path
        self.words = self._file.words

    @staticmethod
    def make(path: str) -> None:
        """Make the file, all zeros, where there is none. Under the store lock."""
        building = under_construction(path)
        if os.path.lexists(building):  # of a process that died here
            disk.DISK.unlink(building)
        MappedFile.open(building, writable=True, size=CONTROL_SIZE, create=True).close()
        disk.DISK.replace(building, path)

    @property
    def fd(self) -> int:
        """The descriptor, for flushing."""
        return self._file.fd

    def header(self) -> ControlHeader | None:
        """The identity under which the words were written; None when it cannot be believed."""
        try:
            return parse_control_header(bytes(self._file.view[:CONTROL_HEADER_SIZE]), KIND_STORE)
        except CorruptionError:
            return None
        except UnsupportedFormatVersion as e:
            raise e.at(self.path) from None

    @property
    def is_damaged(self) -> bool:
        """Whether it has a header that does not verify. A new file has none."""
        return self.header() is None and any(self._file.view[:CONTROL_HEADER_SIZE])

    def is_current(self, boot: bytes) -> bool:
        """Whether the store was checked in this boot, in this very file (not a copy of it)."""
        header = self.header()
        return (
            header is not None
            and header.boot_id == boot
            and (header.device, header.inode) == (self._file.device, self._file.inode)
            and self.is_possible()
        )

    def join(self, boot: bytes) -> bool:
        """Vouch for the words, if they were written in the boot ``boot``; see `join_or_claim`.

        Returns:
            Whether this process is a member now. Its hold ends with the process, or with `close`.
        """
        return self.is_current(boot) and lease.try_lock(self.fd, shared=True) and self.is_current(boot)

    def join_or_claim(self, boot: bytes) -> bytes:
        """The boot in which the words are true, found out under the catalog lock.

        Every process that uses the store holds a shared ``flock`` on this file from the moment it has made
        sure that the words are of this boot. So a hold of another process proves that the machine was not
        rebooted since, whatever a container shows as the boot id; and without any, nothing is lost if
        the words are derived again. A process that finds other holds joins; one that finds none has the file
        to itself until it calls `share`.

        Args:
            boot: the boot id that the machine reports.
        """
        header = self.header()
        if not lease.try_lock(self.fd, shared=False) and header is not None:
            return header.boot_id
        return boot

    def share(self) -> None:
        """Let others join: the words are true. Under the catalog lock."""
        lease.try_lock(self.fd, shared=True)

    def is_in_place(self) -> bool:
        """Whether the path still leads to this very file, so to this store. 1.5 us."""
        return self._file.is_current()

    def is_next_id_possible(self) -> bool:
        """Whether the word of the next ledger id can have been stored; else it is damaged."""
        return bool(self.words[StoreWord.NEXT_LEDGER_ID] <= MAX_LEDGER_ID)

    def is_possible(self) -> bool:
        """Whether the words can have been stored, once the store was checked; see `are_possible`."""
        return self.is_next_id_possible() and are_possible(KIND_STORE, self.words)

    def adopt(self, boot: bytes, lowest_ledger_id: int) -> None:
        """Note that the store was checked in this boot; the last step of the check.

        Args:
            boot: the boot.
            lowest_ledger_id: at least this is the next ledger id.
        """
        words = self.words
        next_id = words[StoreWord.NEXT_LEDGER_ID] if self.is_next_id_possible() else 0
        if self.is_damaged or not (self.is_possible() or self.header() is None):
            # Names of producers stay unique with a number that no client had.
            for word in range(FIRST_WORD, len(words)):
                words[word] = 0
            words[StoreWord.NEXT_CLIENT_NUMBER] = int.from_bytes(os.urandom(5), "big") + 1
        words[StoreWord.NEXT_LEDGER_ID] = max(next_id, lowest_ledger_id, 1)
        numbers = words[StoreWord.NEXT_CLIENT_NUMBER]
        if numbers:
            words[StoreWord.NEXT_CLIENT_NUMBER] = (numbers // _CLIENT_JUMP + 1) * _CLIENT_JUMP
        # The file's name too: a file that a power loss takes would give the same ids again.
        self.flush()
        disk.DISK.fsync_dir(os.path.dirname(self.path))
        header = ControlHeader(KIND_STORE, boot, self._file.device, self._file.inode, 0)
        self._file.view[:CONTROL_HEADER_SIZE] = pack_control_header(header)
        self.flush()

    def next_client_number(self) -> int:
        """A number no other client of the store has."""
        number = int(self.words[StoreWord.NEXT_CLIENT_NUMBER])
        self.words[StoreWord.NEXT_CLIENT_NUMBER] = number + 1
        return number

    def change_policies(self, write: Callable[[], object]) -> None:
        """Call ``write()``, which changes what policies hold; open topics of all processes read theirs anew.

        Under the catalog lock. The word is odd meanwhile, and stays so if this process dies.
        """
        words = self.words
        words[StoreWord.POLICIES] |= 1
        try:
            if failpoints.ACTIVE:
                failpoints.hit("policies:changing")
            write()
            if failpoints.ACTIVE:
                failpoints.hit("policies:written")
        finally:
            words[StoreWord.POLICIES] = (words[StoreWord.POLICIES] | 1) + 1

    def flush(self) -> None:
        """Make the words survive a power loss."""
        disk.DISK.fdatasync(self.fd, self.path)

    def close(self) -> None:
        """Unmap. Idempotent."""
        self._file.close()


def _mapped(path: str) -> MappedFile:
    """The file, whole and reserved. It nearly always is: two calls of the system tell, seven make sure."""
    with contextlib.suppress(CorruptionError, FileNotFoundError):  # too short, or not there
        file = MappedFile.open(path, writable=True, size=CONTROL_SIZE)
        if os.fstat(file.fd).st_blocks * _BLOCK >= CONTROL_SIZE:
            return file
        file.close()
    return MappedFile.open(path, writable=True, size=CONTROL_SIZE, create=True)


def _read(path: str) -> MappedFile:
    """The file, for those that only look; zeros if a copy lacks it."""
    with contextlib.suppress(CorruptionError, FileNotFoundError):  # too short, or not there
        return MappedFile.open(path, writable=False, size=CONTROL_SIZE)
    return MemoryFile(path, b"", CONTROL_SIZE)


failpoints.declare("ledger_ids:raised", "ledger_ids:synced")


class LedgerIds:
    """This process's share of the ids.

    Role: a process reserves a block of ids, with one flush, and hands them out from memory. The first block
    is small, because most processes write to few topics; each further one is twice as large, so that
    opening a thousand topics flushes a dozen times.
    Invariants: an id is handed out once in the life of the store: the word in ``store.ctl`` is above it,
    durably, before. Ids a process leaves unused are lost, which is fine: 32 bits last for decades of
    restarts.
    Callers: any thread, with a topic's append lock held; takes the store lock, the innermost of all.
    """

    __slots__ = ("__weakref__", "_block", "_control", "_end", "_lock", "_mutex", "_next")

    def __init__(self, control: StoreControl, lock: FileLock) -> None:
        self._control = control
        self._lock = lock
        self._mutex = threads.RLock()  # guards the three below
        self._next = 0
        self._end = 0
        self._block = SMALLEST_BLOCK
        fork.register(self)

    def allocate(self, above: int) -> int:
        """A new ledger id greater than ``above``, the newest ledger of the topic it is for.

        Raises:
            StorageFullError: all 4 billion ids are used.
            CorruptionError: the word that says which is the next is damaged.
            LockTimeout: the store lock was not free in time.
            OSError: the reservation could not be made durable; no id was used.
        """
        try:
            self._mutex.acquire()
            if not above < self._next < self._end:
                # Another process is ahead on this topic, or the block is used up. What is left of it is
                # dropped: ids must rise within a topic, and keeping several blocks would buy nothing.
                self._reserve(above)
            ledger_id = self._next
            self._next += 1
            return ledger_id
        finally:
            self._mutex.release()

    def _reserve(self, above: int) -> None:
        self._next = self._end = 0
        words = self._control.words
        try:
            self._lock.acquire()
            if not self._control.is_next_id_possible():
                raise CorruptionError(
                    path=self._control.path,
                    offset=8 * StoreWord.NEXT_LEDGER_ID,
                    reason="the next ledger id is damaged",
                    remedy="close the store in every process and remove this file; it is derived again",
                )
            first = max(words[StoreWord.NEXT_LEDGER_ID], above + 1, 1)
            if first + self._block > LAST_ID:
                raise StorageFullError(
                    path=self._control.path,
                    reason="all ledger ids are used",
                    remedy="copy the messages into a new store",
                )
            # 1. Take the block. A crash from here on wastes it.
            words[StoreWord.NEXT_LEDGER_ID] = first + self._block
            if failpoints.ACTIVE:
                failpoints.hit("ledger_ids:raised")
            # 2. Durably, before one of its ids names a file: after a power loss an id must not come twice.
            self._control.flush()
            if failpoints.ACTIVE:
                failpoints.hit("ledger_ids:synced")
        finally:
            self._lock.release()
        # 3. Use it.
        self._next, self._end = first, first + self._block
        self._block = min(2 * self._block, LARGEST_BLOCK)

    def after_fork_in_child(self) -> None:
        """Drop the inherited block: what is left of it is the parent's."""
        self._mutex = threads.RLock()
        self._next = self._end = 0


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
        transactions: the log of transactions, once it is needed, and the outcomes of ids.
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
        self.transactions: StoreTransactions
        self.client_number = -1
        self._producer_numbers = itertools.count()

    def raise_format(self, version: int) -> None:
        """Let releases that do not know ``version`` refuse the store from now on. Takes the store lock, the
        innermost of all; durable when it returns. Costs a comparison once it was done.

        Raises:
            LockTimeout: the store lock was not free in time.
            StorageError, OSError: ``store.meta`` cannot be read or written; nothing changed.
        """
        if self.meta.format >= version:
            return
        try:
            self.lock.acquire()
            self.meta = store_root.raise_format(self.root, version)
        finally:
            self.lock.release()

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
            # Everything that is opened is closed again if a later step fails, in reverse order: a session is
            # whole or does not exist. The order of the steps is that of their needs: what the store is, its
            # settings, its shared words, the catalog, and last what makes this process visible to others.
            undo.callback(lease.close)
            # By the descriptor of the lease and not by the path: the directory may be replaced meanwhile.
            names = os.listdir(lease.fd)
            filesystem.check_directories(
                root, lease, [name for name in root_layout.ALL_DIRECTORIES if name in names]
            )
            settings = read_settings(root) if root_layout.SETTINGS in names else _DEFAULTS
            meta = store_root.read_meta(root)
            lock = FileLock(root_layout.in_root(root, root_layout.STORE_LOCK))
            undo.callback(lock.close)
            # No description yet: this process makes the store, or waits for the one that does.
            if meta is None:
                meta = _create(root, lock, clock)
            control_path = root_layout.in_root(root, root_layout.CONTROL)
            # Before `StoreControl` maps it: a file that is there has its full size and its words.
            if root_layout.CONTROL not in names:
                _make_control(control_path, lock)
            control = StoreControl(control_path)
            undo.callback(control.close)
            session = cls(root, lease, lock, control)
            session.meta, session.settings, session.damage = meta, settings, damage
            # Each time the lock is opened anew, the directory must still be that of the store.
            lock.check_reopened = session.check_in_place
            session.use_policies()
            # From here on the catalog may be rebuilt, which takes seconds after a reboot; policies are read
            # before, since it asks for them.
            session._open_catalog(clock)
            undo.callback(session.catalog.close)
            # Leftovers of processes that died are removed while this one is not yet at work.
            session._tidy_up(clock)
            session.scheduler = clock.scheduler()
            undo.callback(session.scheduler.close)
            # Chores have a scheduler of their own: they may wait long for locks, and timers of messages must
            # not.
            session.chores = clock.scheduler(LONGEST_S)
            undo.callback(session.chores.close)
            session.housekeeping = Housekeeping(
                root_layout.in_root(root, root_layout.HOUSEKEEPING_LOCK),
                session,
                settings.retentionCheckIntervalInSeconds,
                clock.monotonic,
            )
            for name, make in EXTENSIONS.chores.items():
                chore = LateChore(root_layout.in_root(root, name), partial(make, root, clock, damage.report))
                chore.begin(session.housekeeping, settings.retentionCheckIntervalInSeconds, name in names)
            clients = root_layout.in_root(root, root_layout.CLIENTS)
            # The doorbell makes this process known: from here on peers ring it and count on its answers.
            session.mailbox = _create_mailbox(clients, control.path)
            undo.callback(session.mailbox.close)
            session.peers = Peers(clients, session.mailbox)
            session.transactions = StoreTransactions(session, clock, session.housekeeping.look_at)
            if root_layout.TRANSACTIONS in names:
                session.housekeeping.watch(session.transactions)
            # Last, under the store lock: the number is part of the names of producers.
            session._take_number()
            session._sweep()
            # Nothing can fail any more.
            undo.pop_all()
        return session

    def _open_catalog(self, clock: Clock) -> None:
        path = root_layout.in_root(self.root, root_layout.CATALOG)
        catalog_lock = FileLock(root_layout.in_root(self.root, root_layout.CATALOG_LOCK))
        catalog_lock.check_reopened = self.check_in_place
        try:
            if self.control.join(self.boot) and os.path.exists(path):
                self.use_catalog(Catalog(path, catalog_lock, report=self.damage.enqueue))
                return
            try:
                catalog_lock.acquire()
                self.boot = self.control.join_or_claim(self.boot)
                if self.control.is_current(self.boot) and os.path.exists(path):
                    self.use_catalog(Catalog(path, catalog_lock, report=self.damage.enqueue))
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

    def _tidy_up(self, clock: Clock) -> None:
        """Do what an opening finds due, unless another process is at the catalog: remove what processes left
        that died while they made or deleted a topic, add what damage took from the catalog, and spare the
        next opening what this one had to read."""
        # Read now what the first look-up would read: whether something of it is damaged shows by that.
        self.catalog.catch_up()
        is_index_due = self.catalog.is_index_due
        is_due = is_index_due or self.catalog.is_damaged or not self.directories.staging.is_empty
        if is_due and self.catalog.lock.try_acquire():
            try:
                self.directories.clear_staging()
                if self.catalog.is_damaged:
                    with contextlib.suppress(StorageFullError):  # they are added when there is room
                        self.directories.heal(clock.wall_ms())
                        self.directories.heal_namespaces(clock.wall_ms())
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
            self.damage.enqueue,
        )

    def use_catalog(self, catalog: Catalog) -> None:
        """Use this catalog from now on."""
        self.catalog = catalog
        self.directories = TopicDirectories(self.root, catalog, self.damage.enqueue)

    def _heal(self, path: str, catalog_lock: FileLock, clock: Clock) -> None:
        """The first opening in a boot (or of a copy): repair what a power loss may have left.

        Under the catalog lock, and no other process has joined. Two may come here one after the other;
        the second finds nothing to do.
        """
        for name in root_layout.DIRECTORIES:
            filesystem.make_directories(root_layout.in_root(self.root, name), mode=None)
        catalog, is_new = _open_or_replace_catalog(path, catalog_lock, self.damage.enqueue)
        self.use_catalog(catalog)
        self.directories.heal(clock.wall_ms())
        if is_new:
            self.directories.heal_namespaces(clock.wall_ms())
        if failpoints.ACTIVE:
            failpoints.hit("store:healed")
        try:
            self.lock.acquire()
            if not self.control.is_current(self.boot):
                known = self.control.header() is not None and self.control.is_possible()
                # The word was flushed before an id below it was used. Without a believable header it may be
                # zeros: then the files are asked, with room for ids that only journals still mention.
                if self.control.is_damaged:
                    self.damage.enqueue(
                        Damage(self.control.path, reason="its header is damaged", kind=CONTROL)
                    )
                lowest = 1 if known else self.directories.highest_ledger_id() + 1
                if not self.control.is_next_id_possible():
                    reason = "the next ledger id was damaged"
                    self.damage.enqueue(Damage(self.control.path, reason=reason, kind=CONTROL))
                elif not known and self.control.header() is not None:
                    reason = "its words are damaged"
                    self.damage.enqueue(Damage(self.control.path, reason=reason, kind=CONTROL))
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
            if self.transactions.is_in_use:
                closing.callback(self.transactions.close)
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
        for warning in settings.warnings():
            package_log.warning(f"{path}: {warning}")
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
        filesystem.overwrite_in_place(root)
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


def _open_or_replace_catalog(path: str, lock: FileLock, report: DamageHook) -> tuple[Catalog, bool]:
    """The catalog, and whether it is a new one: what damage or a power loss took of it is not in it. The old
    bytes are kept, and the topics are added by `heal`. Under the catalog lock, while no other process has
    the store open."""
    try:
        catalog = Catalog(path, lock, report=report)
    except (FileNotFoundError, CorruptionError, ForeignFileError) as e:
        if os.path.exists(path):
            disk.DISK.replace(path, f"{path}.damaged.tmp")
        reason = "it is missing" if isinstance(e, FileNotFoundError) else e.reason
        report(Damage(path, reason=reason, kind=CATALOG))
        Catalog.create(path)
        return Catalog(path, lock, report=report), True
    try:
        catalog.leave_damage()
        if not catalog.is_damaged:
            return catalog, False
    except BaseException:
        catalog.close()
        raise
    # Processes that have it open step over the damage. Here there is none, so it ends.
    catalog.close()
    with contextlib.suppress(StorageFullError):  # then it is stepped over here, too
        Catalog.renew(path)
    return Catalog(path, lock, report=report), True


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


_REMEDY: Final = (
    "a process that may write has to open the store first, or to repair it: embeddedpulsar repair"
)


def open_to_look(
    root: str, lease: DirectoryLease, clock: Clock, damage: DamageChannel, refusal: Refusal
) -> StoreSession:
    """Open the store in the directory ``root`` to look at it. Takes over ``lease``. Nothing is written.

    Raises:
        ForeignFileError: there is no store.
        CorruptionError, UnsupportedFormatVersion, InvalidConfiguration: see `StoreSession.open`. Of a store
            without a catalog, too: nothing is repaired.
        AccessDeniedError: a file of the root cannot be read.
    """
    require_little_endian()
    with contextlib.ExitStack() as undo:
        undo.callback(lease.close)
        filesystem.check_directories(root, lease, root_layout.ALL_DIRECTORIES)
        settings = read_settings(root)
        meta = store_root.read_meta(root)
        if meta is None:
            remedy = "name the directory of a store; without read_only one is made there"
            raise ForeignFileError(path=root, reason="there is no store here", remedy=remedy)
        control = StoreControl(root_layout.in_root(root, root_layout.CONTROL), writable=False)
        undo.callback(control.close)
        lock = RefusedLock(root_layout.in_root(root, root_layout.STORE_LOCK), refusal.error)
        session = StoreSession(root, lease, lock, control)
        session.refusal = refusal
        session.meta, session.settings, session.damage = meta, settings, damage
        header = control.header()
        if header is not None and has_living(root):
            session.boot = header.boot_id  # of those that have it open, whatever a container shows
        session.use_policies()
        _use_catalog(session, refusal)
        undo.callback(session.catalog.close)
        session.scheduler = clock.scheduler()
        undo.callback(session.scheduler.close)
        session.chores = clock.scheduler(LONGEST_S)
        undo.callback(session.chores.close)
        path = root_layout.in_root(root, root_layout.HOUSEKEEPING_LOCK)
        every_s = settings.retentionCheckIntervalInSeconds
        session.housekeeping = Housekeeping(path, session, every_s, clock.monotonic)  # nothing joins it
        clients = root_layout.in_root(root, root_layout.CLIENTS)
        session.mailbox = onlooker_mailbox(clients, control.path)
        undo.callback(session.mailbox.close)
        session.peers = Peers(clients, session.mailbox)
        session.transactions = StoreTransactions(session, clock)
        undo.pop_all()
    return session


def _use_catalog(session: StoreSession, refusal: Refusal) -> None:
    path = root_layout.in_root(session.root, root_layout.CATALOG)
    lock = RefusedLock(root_layout.in_root(session.root, root_layout.CATALOG_LOCK), refusal.error)
    try:
        session.use_catalog(Catalog(path, lock, is_read_only=True, report=session.damage.enqueue))
    except FileNotFoundError:
        raise CorruptionError(path=path, reason="it is missing", remedy=_REMEDY) from None
