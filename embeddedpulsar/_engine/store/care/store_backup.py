"""Copies a store into a directory of backups, while processes use it; and makes a store of a backup, in a
directory of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from embeddedpulsar._engine import EXTENSIONS, filenames
from embeddedpulsar._engine.format import catalog_record
from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.format.control import (
    CONTROL_SIZE,
    KIND_STORE,
    KIND_TOPIC,
    ControlHeader,
    StoreWord,
    pack_control_header,
)
from embeddedpulsar._engine.format.journal_record import JournalHeader, pack_journal_header, pack_record
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, filesystem, nofollow
from embeddedpulsar._engine.platform.filesystem import DirectoryLease
from embeddedpulsar._engine.store import root_layout, store_root
from embeddedpulsar._engine.store.care.backup_target import (
    OBJECTS,
    BackupTarget,
    FileRecord,
    Manifest,
    read_manifest,
)
from embeddedpulsar._engine.store.care.store_check import CareProgress, ProgressMeter
from embeddedpulsar._engine.store.care.store_cut import StoreCut, TopicCut, TransactionMoment
from embeddedpulsar._engine.store.catalog import BUILT_IN_NAMESPACES, Catalog
from embeddedpulsar._engine.store.root_layout import remove_tree, write_meta
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, NotAllowedError, TopicNotFound
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.store import Store


_NOTHING: Final[Any] = None  # in place of a lock, for a catalog to which nothing is appended
_PERSISTENT: Final = "persistent://"
_IN_RECORD: Final = 1000


class BackupReport(NamedTuple):
    """What a backup holds.

    Attributes:
        path: the directory of the backup.
        created_ms: when it began, in ms since 1970.
        topics: topics and partitions.
        files: files of the store.
        size: bytes of them.
        copied: bytes that were copied now; the rest was there from the backup before.
    """

    path: str
    created_ms: int
    topics: int
    files: int
    size: int
    copied: int


def backup_store(
    store: Store,
    target: str,
    topics: Iterable[str] | None,
    on_progress: Callable[[CareProgress], object] | None = None,
) -> BackupReport:
    """See `Admin.backup`. Names are full ones."""
    root, target = store.root, nofollow.canonical(target)
    # A backup inside of the store would copy itself; a store inside of the backup would be taken for its
    # objects.
    _refuse_inside(root, target)
    meta = store_root.read_meta(root)
    assert meta is not None
    # The time before the first byte is read: everything that the backup has was there at some moment behind
    # it.
    created_ms = store.clock.wall_ms()
    meter = ProgressMeter("copying", on_progress)
    place = BackupTarget(target, meter)
    try:
        store_id = meta.store_id.hex()
        # Objects are used again by path, so those of another store would be taken for files of this one.
        if place.before is not None and place.before.store_id != store_id:
            raise NotAllowedError(f"{target} holds backups of another store; choose another directory")
        with contextlib.ExitStack() as closing:
            # Read-only: a backup takes no lock that a producer waits for, and changes nothing of the store.
            catalog = Catalog(_in(root, root_layout.CATALOG), _NOTHING, is_read_only=True)
            closing.callback(catalog.close)
            chosen = _ChosenTopics(store, catalog, topics, place)
            shared = [make(root, place) for make in EXTENSIONS.shared_records]
            # Of a store that no process has used since the machine went down, opening recovers the words.
            store.transactions.existing()
            transactions = TransactionMoment(root)
            closing.callback(transactions.close)
            # The cut decides the order in which topics are copied, and which are copied again because they
            # moved meanwhile: what an acknowledgement or a message refers to is in the backup, too.
            kept = StoreCut(
                root,
                list_topics=chosen.entries,
                open_cut=chosen.open,
                drop=chosen.drop,
                shared=shared,
                transactions=transactions,
                meter=meter,
            ).take_all()
            # Which commits that were begun are in the backup depends on the topics that are in it.
            directories = {entry.name: chosen.directory_of(entry) for entry in kept if entry.is_made}
            for records in shared:
                records.finish(directories)
            # The catalog is written anew, with the topics that were kept: that of the store may have others
            # by now.
            place.take_bytes(root_layout.CATALOG, _catalog_of(catalog, kept, created_ms))
            for name, data in transactions.files().items():
                place.take_bytes(name, data)
        # The settings, namespaces' policies and the description of the store, each read in one piece.
        _take_root(root, place)
        # The numbers last: they are at least those of everything that was copied.
        ledger_id, client_number = _next_numbers(root)
        manifest = Manifest(store_id, created_ms, ledger_id, client_number, len(kept), dict(place.records))
        # The backup is this one from here on; before, the one before is untouched.
        place.publish(manifest)
    except Exception:
        # What was copied and is in no manifest is removed. After a kill, the next backup does it.
        with contextlib.suppress(OSError):
            place.discard()
        raise
    finally:
        place.close()
    return BackupReport(target, created_ms, len(kept), len(manifest.files), manifest.size, place.copied)


def _refuse_inside(root: str, target: str) -> None:
    if os.path.commonpath((root, target)) in (root, target):
        raise NotAllowedError(f"the backup of {root} cannot be in {target}: one lies in the other")


def _in(root: str, name: str) -> str:
    return root_layout.in_root(root, name)


class _ChosenTopics:
    """The topics of a backup, for `StoreCut`. One thread.

    Args:
        store: the store.
        catalog: its catalog.
        topics: full names; None for all topics.
        place: takes the files.
    """

    def __init__(
        self, store: Store, catalog: Catalog, topics: Iterable[str] | None, place: BackupTarget
    ) -> None:
        self._store: Final = store
        self._catalog: Final = catalog
        self._topics: Final = None if topics is None else list(topics)
        self._place: Final = place

    def entries(self, is_first: bool) -> list[TopicEntry]:
        """The topics that exist, with all their partitions, each once.

        Raises:
            TopicNotFound: in the first call, one does not exist; later it was deleted meanwhile.
            NotAllowedError: one is not persistent.
        """
        if self._topics is None:
            return [entry for entry in self._catalog.topics() if entry.name.startswith(_PERSISTENT)]
        chosen: dict[str, TopicEntry] = {}
        for name in self._topics:
            parsed = TopicName.parse(name)
            # The name of a partition stands for its topic: a partition alone could not be restored beside the
            # others.
            entry = self._catalog.find(parsed.base) if parsed.partition >= 0 else None
            entry = entry or self._catalog.find(parsed.full)
            if entry is None and is_first:
                raise TopicNotFound(f"{name}: no such topic in {self._store.root}")
            # Deleted while the backup goes on: it is left out, like a topic that was never there.
            if entry is None:
                continue
            if not entry.name.startswith(_PERSISTENT):
                raise NotAllowedError(
                    f"{name} is not persistent: nothing of it is stored that could be copied"
                )
            for log_entry in (entry, *self._catalog.with_logs(entry)):
                chosen[log_entry.name] = log_entry
        return list(chosen.values())

    def directory_of(self, entry: TopicEntry) -> str:
        """The directory of a topic."""
        return os.path.join(_in(self._store.root, root_layout.TOPICS), entry.below_topics())

    def open(self, entry: TopicEntry) -> TopicCut:
        """The files of a topic."""

        def open_topic() -> None:
            # Opening the topic recovers its files if the machine went down meanwhile; what is copied then is
            # what a process would see.
            use = self._store.use_topic(entry.name, create=False, to_look=True)
            try:
                use.topic.producers()
                use.topic.subscriptions()
            finally:
                use.release()

        return TopicCut(self._store.root, self.directory_of(entry), self._place, open_topic)

    def drop(self, entry: TopicEntry) -> None:
        """Forget what was taken of a topic."""
        self._place.drop(f"{root_layout.TOPICS}/{entry.below_topics()}")


def _catalog_of(catalog: Catalog, entries: list[TopicEntry], now_ms: int) -> bytes:
    """A catalog with these topics, and with all namespaces and tenants."""
    # A random seed of the chain, as for every new journal, so that no record of another one fits.
    crc = int.from_bytes(os.urandom(4), "little")
    parts = [pack_journal_header(JournalHeader(1, crc, 0, KIND_STORE))]
    for kind, payload in _records(catalog, entries):
        record, crc = pack_record(kind, payload, crc, now_ms)
        parts.append(record)
    return b"".join(parts)


def _records(catalog: Catalog, entries: list[TopicEntry]) -> Iterator[tuple[int, bytes]]:
    # A namespace may be deleted after the list of topics was taken: it is there as long as they are.
    of_topics = dict.fromkeys(TopicName.parse(entry.name).namespace_name for entry in entries)
    namespaces = list(dict.fromkeys([*catalog.namespaces(), *of_topics]))
    tenants = list(dict.fromkeys([*catalog.tenants(), *(name.partition("/")[0] for name in namespaces)]))
    for tenant in tenants:
        yield catalog_record.TENANT, catalog_record.encode_namespace(tenant)
    for namespace in namespaces:
        yield catalog_record.NAMESPACE, catalog_record.encode_namespace(namespace)
    for namespace in set(BUILT_IN_NAMESPACES) - set(namespaces):
        yield catalog_record.NAMESPACE_DELETED, catalog_record.encode_namespace(namespace)
    for tenant in {name.partition("/")[0] for name in BUILT_IN_NAMESPACES} - set(tenants):
        yield catalog_record.TENANT_DELETED, catalog_record.encode_namespace(tenant)
    for first in range(0, len(entries), _IN_RECORD):
        yield catalog_record.TOPICS, catalog_record.encode_topics(entries[first : first + _IN_RECORD])


def _take_root(root: str, place: BackupTarget) -> None:
    """Take the documents of the store as a whole."""
    for name in (root_layout.META, root_layout.SETTINGS):
        with contextlib.suppress(FileNotFoundError):
            place.take_bytes(name, disk.DISK.read_file(_in(root, name)))
    tenants = _in(root, root_layout.TENANTS)
    for name in descriptors.names_in(tenants) if os.path.isdir(tenants) else ():
        if not name.endswith(".tmp"):
            with contextlib.suppress(FileNotFoundError):
                data = disk.DISK.read_file(os.path.join(tenants, name))
                place.take_bytes(f"{root_layout.TENANTS}/{name}", data)


def _next_numbers(root: str) -> tuple[int, int]:
    """The next ledger id and client number."""
    data = disk.DISK.read_file(_in(root, root_layout.CONTROL))

    def word(number: int) -> int:
        return int.from_bytes(data[8 * number : 8 * number + 8], "little")

    return word(StoreWord.NEXT_LEDGER_ID), word(StoreWord.NEXT_CLIENT_NUMBER)


_CHUNK: Final = 1 << 20
_BUILDING: Final = ".restoring"
_ROOM: Final = 1 << 16
"""Ledger ids that the store may have given out since the backup; they do not come twice."""

failpoints.declare("restore:copied", "restore:described", "restore:renamed")


class RestoreReport(NamedTuple):
    """What was restored.

    Attributes:
        path: the directory of the new store.
        created_ms: when the backup was begun, in ms since 1970.
        topics: topics and partitions.
        files: files of the store.
        size: bytes of them.
    """

    path: str
    created_ms: int
    topics: int
    files: int
    size: int


def restore_store(
    source: str, target: str, on_progress: Callable[[CareProgress], object] | None = None
) -> RestoreReport:
    """See `Admin.restore`."""
    source, target = nofollow.canonical(source), nofollow.canonical(target)
    manifest = read_manifest(source)
    if manifest is None:
        raise ForeignFileError(
            path=source, reason="there is no backup", remedy="name a directory as given to backup"
        )
    # Never over anything that is there: what was to be replaced would be gone before the copy is whole.
    if os.path.lexists(target) and (not os.path.isdir(target) or os.listdir(target)):
        raise NotAllowedError(f"{target} is there, and not an empty directory; choose another one")
    # Built under another name beside the target, so that a store appears whole or not at all.
    building = target + _BUILDING
    filesystem.make_directories(os.path.dirname(target))
    origin = DirectoryLease.open(source)
    lease = _begin(building)
    try:
        # A backup that goes on at the same time changes objects that are being copied.
        if not origin.try_shared():
            raise NotAllowedError(f"a backup is being made in {source}; wait for its end")
        meter = ProgressMeter("restoring", on_progress)
        # Empty directories are in no manifest.
        for name in root_layout.DIRECTORIES:
            filesystem.make_directories(root_layout.in_root(building, name), mode=None)
        for record in manifest.files.values():
            _copy(source, building, record, meter)
        failpoints.hit("restore:copied")
        # What a backup does not hold is derived once all files are there.
        _describe(building, manifest, meter)
        failpoints.hit("restore:described")
        # All bytes and all names are on the disk before the store gets its name: a power loss after it must
        # not leave a store with holes.
        listings = list(nofollow.tree(building))
        disk.DISK.flush_files(
            [os.path.join(listing.path, name) for listing in listings for name in listing.files]
        )
        for listing in listings:
            disk.DISK.fsync_dir(listing.path)
        # From here on there is a store. A kill before leaves the directory under its other name, which the
        # next restore removes.
        disk.DISK.replace(building, target)
        failpoints.hit("restore:renamed")
        disk.DISK.fsync_dir(os.path.dirname(target))
    except BaseException:
        remove_tree(building)
        raise
    finally:
        lease.close()
        origin.close()
    return RestoreReport(target, manifest.created_ms, manifest.topics, len(manifest.files), manifest.size)


def _begin(building: str) -> DirectoryLease:
    """An empty directory to build in, which no other process uses; what a killed one left goes."""
    if os.path.isdir(building):
        lease = DirectoryLease.open(building)
        try:
            if not lease.try_exclusive():
                raise NotAllowedError(f"another process restores into {building}; wait for its end")
            remove_tree(building)
        finally:
            lease.close()
    filesystem.make_directories(building)
    filesystem.overwrite_in_place(building)
    lease = DirectoryLease.open(building)
    if not lease.try_exclusive():
        lease.close()
        raise NotAllowedError(f"another process restores into {building}; wait for its end")
    return lease


def _copy(source: str, building: str, record: FileRecord, meter: ProgressMeter) -> None:
    """Copy a file, verifying its checksum."""
    path = os.path.normpath(os.path.join(building, record.path))
    # The manifest is a file like others: a path in it must not lead out of the store that is built.
    if not path.startswith(building + os.sep):
        raise CorruptionError(path=source, reason=f"the manifest names {record.path}, outside of the store")
    filesystem.make_directories(os.path.dirname(path), mode=None)
    fd = disk.DISK.create_exclusive(path)
    try:
        crc = _copy_bytes(os.path.join(source, OBJECTS, *record.object.split("/")), fd, record, meter)
        if crc != record.crc:
            raise CorruptionError(
                path=os.path.join(source, OBJECTS, record.object),
                reason=f"the copy of {record.path} is damaged: its checksum is wrong",
                remedy="restore from another backup",
            )
        # A file that was longer than its bytes, as a segment is before it is full, gets its length back; the
        # rest reads as zeros.
        disk.DISK.truncate_new(fd, record.size)
    finally:
        os.close(fd)


def _copy_bytes(origin: str, fd: int, record: FileRecord, meter: ProgressMeter) -> int:
    crc = at = 0
    if not record.length:
        return crc
    try:
        reading = disk.DISK.open_file(origin, os.O_RDONLY)
    except FileNotFoundError:
        raise CorruptionError(path=origin, reason=f"the copy of {record.path} is missing") from None
    try:
        while at < record.length:
            data = disk.DISK.pread(reading, min(_CHUNK, record.length - at), at)
            if not data:
                # A shorter object has another checksum, which is compared below.
                break
            crc = crc32(data, crc)
            disk.DISK.pwrite_all(fd, [data], at)
            at += len(data)
            meter.read(len(data))
    finally:
        os.close(reading)
    return crc


def _describe(building: str, manifest: Manifest, meter: ProgressMeter) -> None:
    """Write what a backup does not hold: directories and descriptions of topics, the numbers of the store."""
    path = root_layout.in_root(building, root_layout.CATALOG)
    with contextlib.closing(Catalog(path, _NOTHING, is_read_only=True)) as catalog:
        entries = catalog.topics()
    for number, entry in enumerate(entries):
        meter.topic(number + 1, len(entries))
        if not entry.is_made:
            continue  # its directory is made when it is first opened
        directory = os.path.join(root_layout.in_root(building, root_layout.TOPICS), entry.below_topics())
        filesystem.make_directories(directory, mode=None)
        names = descriptors.names_in(directory)
        # A description may be in the backup; it is the better one.
        if filenames.TOPIC_META not in names:
            write_meta(directory, entry, durable=False)
        # Words of no boot: the first process that opens the topic derives them from its files.
        if filenames.SUBSCRIPTIONS in names or filenames.ledgers_of(names) or _has_journal(names):
            _write_words(filenames.control_path(directory), KIND_TOPIC, entry.incarnation, {})
    numbers = {
        # With room above what was copied: no id of a ledger may be given out a second time.
        StoreWord.NEXT_LEDGER_ID: manifest.next_ledger_id + _ROOM,
        StoreWord.NEXT_CLIENT_NUMBER: manifest.next_client_number,
    }
    _write_words(root_layout.in_root(building, root_layout.CONTROL), KIND_STORE, 0, numbers)


def _has_journal(names: list[str]) -> bool:
    return any(filenames.parse_generation(name) is not None for name in names)


def _write_words(path: str, kind: int, incarnation: int, numbers: dict[int, int]) -> None:
    """Write control words of no boot: the next process that opens them derives them from the other files."""
    words = bytearray(CONTROL_SIZE)
    header = pack_control_header(ControlHeader(kind, bytes(16), 0, 0, incarnation))
    words[: len(header)] = header
    for word, number in numbers.items():
        words[8 * word : 8 * word + 8] = number.to_bytes(8, "little")
    disk.DISK.atomic_write(path, bytes(words), durable=False)
