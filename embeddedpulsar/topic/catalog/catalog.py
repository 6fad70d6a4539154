"""The catalog: which tenants, namespaces and topics exist. Listing and look-up never open a topic."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, UnsupportedFormatVersion
from embeddedpulsar.format import catalog_record
from embeddedpulsar.format.catalog_record import TopicEntry
from embeddedpulsar.format.control import KIND_STORE
from embeddedpulsar.format.journal_record import (
    FIRST_RECORD_OFFSET,
    JOURNAL_HEADER_SIZE,
    JournalHeader,
    JournalRecord,
    pack_journal_header,
    pack_record,
    parse_journal_header,
    read_record,
)
from embeddedpulsar.platform import disk, failpoints, fork, threads
from embeddedpulsar.platform.file_lock import FileLock
from embeddedpulsar.topic_name import PARTITION_SUFFIX

BUILT_IN_NAMESPACES: Final = ("public/default", "public/functions", "pulsar/system")

_OF_NAMES: Final = (
    catalog_record.NAMESPACE,
    catalog_record.NAMESPACE_DELETED,
    catalog_record.TENANT,
    catalog_record.TENANT_DELETED,
)

failpoints.declare("catalog:record_written", "catalog:record_synced")


class Catalog:
    """An append-only log of chained records, followed by every process.

    Role: one per process and store. A look-up first follows the log: one ``fstat`` when nothing is new.
    Invariants: the log ends where the chain of checksums ends; there is no word that says so. A record a
    writer left half written does not continue the chain, and the next writer overwrites it; what may remain
    of it behind a shorter record does not continue the chain either.
    Durable: a record, once `append_topic` returned, if it was asked for. Otherwise a power loss may take
    the last seconds of records; the topics' own ``topic.meta`` brings those back (`topic.healing`).
    Callers: any thread. Appends hold `lock` (an outer lock: never under a topic's or subscription's).
    """

    def __init__(self, path: str, lock: FileLock, *, is_read_only: bool = False) -> None:
        self.path = path
        self.lock = lock
        self._mutex = threads.RLock()  # guards everything below
        self._fd = disk.DISK.open_file(path, os.O_RDONLY if is_read_only else os.O_RDWR)
        self._end = FIRST_RECORD_OFFSET
        self._topics: dict[str, TopicEntry] = {}
        self._ended: dict[str, tuple[int, int]] = {}  # lives of a name that are over, the last incarnation
        self._namespaces: dict[str, None] = dict.fromkeys(BUILT_IN_NAMESPACES)
        self._watchers: list[dict[str, None]] = []  # names of topics that changed; see `watch`
        self._tenants: dict[str, None] = dict.fromkeys(map(_tenant_of, BUILT_IN_NAMESPACES))
        self.version = 0
        """Rises with every record read: watchers of the list compare it."""
        try:
            self._crc = self._read_header().chain_seed
        except BaseException:
            os.close(self._fd)
            raise
        fork.register(self)

    @staticmethod
    def create(path: str) -> None:
        """Write an empty catalog, durably. Under the catalog lock."""
        seed = int.from_bytes(os.urandom(4), "little")
        header = JournalHeader(generation=1, chain_seed=seed, snapshot_crc=0, owner_kind=KIND_STORE)
        disk.DISK.atomic_write(path, pack_journal_header(header), durable=True)

    def _read_header(self) -> JournalHeader:
        try:
            header = parse_journal_header(disk.DISK.pread(self._fd, JOURNAL_HEADER_SIZE, 0))
        except (CorruptionError, ForeignFileError, UnsupportedFormatVersion) as e:
            raise e.at(self.path) from None
        if header.owner_kind != KIND_STORE:
            raise CorruptionError(path=self.path, offset=20, reason="this journal is not a catalog")
        return header

    # -- reading -----------------------------------------------------------------------------------

    def find(self, name: str) -> TopicEntry | None:
        """The topic of that full name."""
        self.follow()
        return self._topics.get(name)

    def topics(self, namespace: str | None = None) -> list[TopicEntry]:
        """All topics, or those of ``tenant/namespace``, in order of creation."""
        self.follow()
        found = list(self._topics.values())
        if namespace is None:
            return found
        prefix = f"{namespace}/"
        return [entry for entry in found if entry.name.partition("://")[2].startswith(prefix)]

    def watch(self) -> dict[str, None]:
        """Collect the names of topics that are made, grow or are deleted from now on, for `take_changes`.

        Without it, who follows the list would have to compare all of it after every change."""
        changed: dict[str, None] = {}
        try:
            self._mutex.acquire()
            self.follow()
            self._watchers.append(changed)
        finally:
            self._mutex.release()
        return changed

    def take_changes(self, changed: dict[str, None]) -> list[str]:
        """The names collected since the last call, each once."""
        try:
            self._mutex.acquire()
            self.follow()
            names = list(changed)
            changed.clear()
        finally:
            self._mutex.release()
        return names

    def unwatch(self, changed: dict[str, None]) -> None:
        """Collect no more. Idempotent."""
        try:
            self._mutex.acquire()
            self._watchers = [one for one in self._watchers if one is not changed]
        finally:
            self._mutex.release()

    def namespaces(self) -> list[str]:
        """All namespaces, the built-in ones first."""
        self.follow()
        return list(self._namespaces)

    def has_namespace(self, name: str) -> bool:
        """Whether ``tenant/namespace`` exists."""
        self.follow()
        return name in self._namespaces

    def tenants(self) -> list[str]:
        """All tenants, the built-in ones first."""
        self.follow()
        return list(self._tenants)

    def follow(self) -> None:
        """Apply what other processes appended."""
        try:
            self._mutex.acquire()
            size = os.fstat(self._fd).st_size
            if size <= self._end:
                return
            data = disk.DISK.pread(self._fd, size - self._end, self._end)
            for record in _chain(data, self._crc):
                self._apply(record)
                self._end += record.length
                self._crc = record.crc
        finally:
            self._mutex.release()

    def _apply(self, record: JournalRecord) -> None:
        try:
            if record.type == catalog_record.TOPIC:
                entry = catalog_record.decode_topic(record.payload)
                self._topics[entry.name] = entry
                self._note(entry.name)
            elif record.type == catalog_record.TOPIC_DELETED:
                name, incarnation = catalog_record.decode_topic_deleted(record.payload)
                known = self._topics.get(name)
                if known is not None and known.incarnation == incarnation:
                    for entry in (known, *self._with_logs(known)):
                        self._end_life(entry)
            elif record.type in _OF_NAMES:
                self._apply_name(record.type, catalog_record.decode_namespace(record.payload))
            else:
                raise UnsupportedFormatVersion(
                    reason=f"the catalog has a record of type {record.type}, unknown to this release",
                    remedy="upgrade embeddedpulsar",
                )
        except (CorruptionError, UnsupportedFormatVersion) as e:
            raise e.at(self.path) from None
        self.version += 1

    def _note(self, name: str) -> None:
        for changed in self._watchers:
            changed[name] = None

    def _apply_name(self, kind: int, name: str) -> None:
        if kind == catalog_record.NAMESPACE:
            self._namespaces[name] = None
            self._tenants[_tenant_of(name)] = None
        elif kind == catalog_record.NAMESPACE_DELETED:
            self._namespaces.pop(name, None)
        elif kind == catalog_record.TENANT:
            self._tenants[name] = None
        else:
            self._tenants.pop(name, None)

    def _end_life(self, entry: TopicEntry) -> None:
        if self._topics.pop(entry.name, None) is not None:
            self._note(entry.name)
            lives, _ = self._ended.get(entry.name, (0, 0))
            self._ended[entry.name] = (lives + 1, entry.incarnation)

    def with_logs(self, entry: TopicEntry) -> list[TopicEntry]:
        """The topic itself; of a partitioned one, those of its partitions that were ever opened."""
        self.follow()
        return self._with_logs(entry)

    def _with_logs(self, entry: TopicEntry) -> list[TopicEntry]:
        if not entry.partitions:
            return [entry]
        names = (f"{entry.name}{PARTITION_SUFFIX}{index}" for index in range(entry.partitions))
        return [self._topics[name] for name in names if name in self._topics]

    def ended(self, name: str) -> tuple[int, int]:
        """How many topics of that name were deleted, and the incarnation of the last; (0, 0) for none."""
        self.follow()
        return self._ended.get(name, (0, 0))

    def ended_lives(self) -> dict[str, int]:
        """The incarnation that was deleted last, by the name of the topic."""
        self.follow()
        return {name: incarnation for name, (_, incarnation) in self._ended.items()}

    # -- writing -----------------------------------------------------------------------------------

    def append_topic(self, entry: TopicEntry, now_ms: int, *, durable: bool) -> None:
        """Add a topic. Under `lock`, after `follow`."""
        self._append(catalog_record.TOPIC, catalog_record.encode_topic(entry), now_ms, durable)

    def append_topic_deleted(self, entry: TopicEntry, now_ms: int, *, durable: bool) -> None:
        """Remove a topic, with all its partitions. Under `lock`, after `follow`."""
        payload = catalog_record.encode_topic_deleted(entry.name, entry.incarnation)
        self._append(catalog_record.TOPIC_DELETED, payload, now_ms, durable)

    def append_namespace(self, name: str, now_ms: int, *, durable: bool) -> None:
        """Add a namespace. Under `lock`, after `follow`."""
        self._append(catalog_record.NAMESPACE, catalog_record.encode_namespace(name), now_ms, durable)

    def append_namespace_deleted(self, name: str, now_ms: int) -> None:
        """Remove a namespace, durably. Under `lock`, after `follow`."""
        self._append(catalog_record.NAMESPACE_DELETED, catalog_record.encode_namespace(name), now_ms, True)

    def append_tenant(self, name: str, now_ms: int, *, durable: bool) -> None:
        """Add a tenant. Under `lock`, after `follow`."""
        self._append(catalog_record.TENANT, catalog_record.encode_namespace(name), now_ms, durable)

    def append_tenant_deleted(self, name: str, now_ms: int) -> None:
        """Remove a tenant, durably. Under `lock`, after `follow`."""
        self._append(catalog_record.TENANT_DELETED, catalog_record.encode_namespace(name), now_ms, True)

    def _append(self, kind: int, payload: bytes, now_ms: int, durable: bool) -> None:
        try:
            self._mutex.acquire()
            self.follow()
            # 1. The record, in one write. Torn, it does not continue the chain and is as if it were not
            # there.
            record, _ = pack_record(kind, payload, self._crc, now_ms)
            disk.DISK.pwrite_all(self._fd, [record], self._end)
            if failpoints.ACTIVE:
                failpoints.hit("catalog:record_written")
            # 2. From here on all processes see it; flush it if it must survive a power loss.
            if durable:
                disk.DISK.fdatasync(self._fd, self.path)
            if failpoints.ACTIVE:
                failpoints.hit("catalog:record_synced")
            self.follow()
        finally:
            self._mutex.release()

    def sync(self) -> None:
        """Make all records so far survive a power loss."""
        disk.DISK.fdatasync(self._fd, self.path)

    def close(self) -> None:
        """Give the descriptor back. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def after_fork_in_child(self) -> None:
        """Close the inherited descriptor; the child's store opens a catalog of its own."""
        self._mutex = threads.RLock()
        self.close()


def _chain(data: bytes, crc: int) -> Iterator[JournalRecord]:
    """The records of ``data`` as far as the chain continues from ``crc``."""
    position = 0
    while position < len(data):
        try:
            record = read_record(data, position, len(data), crc)
        except CorruptionError:
            return  # the end, or what a writer that died left behind it
        yield record
        position += record.length
        crc = record.crc


def _tenant_of(namespace: str) -> str:
    return namespace.partition("/")[0]
