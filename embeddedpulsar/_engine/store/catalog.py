"""The catalog: which tenants, namespaces and topics exist. Listing and look-up never open a topic.

What the records of the catalog say: tenants, namespaces and topics by name.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, takewhile

from embeddedpulsar._engine.format import catalog_record
from embeddedpulsar._engine.format.catalog_record import (
    TopicEntry,
    decode_topic,
    entries_of,
    name_of,
    pack_slot,
    partitions_of,
)
from embeddedpulsar._engine.format.control import KIND_STORE
from embeddedpulsar._engine.format.journal_record import (
    FIRST_RECORD_OFFSET,
    JOURNAL_HEADER_SIZE,
    RECORD_SIZE,
    JournalHeader,
    JournalRecord,
    damage_behind,
    pack_journal_header,
    pack_record,
    parse_journal_header,
    surviving_records,
)
from embeddedpulsar._engine.log.journal_file import write_records
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, fork, threads
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.damage import CATALOG, INDEX, Damage, DamageHook
from embeddedpulsar.exceptions import (
    CorruptionError,
    ForeignFileError,
    StorageError,
    StorageFullError,
    UnsupportedFormatVersion,
)
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, TypeVar
from embeddedpulsar.topic_name import NON_PERSISTENT, PARTITION_SUFFIX, PERSISTENT

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.store.topic_index import TopicIndex


BUILT_IN_NAMESPACES: Final = ("public/default", "public/functions", "pulsar/system")

_OF_TOPICS: Final = (catalog_record.TOPIC, catalog_record.TOPICS, catalog_record.TOPIC_MADE)
_OF_NAMES: Final = (
    catalog_record.NAMESPACE,
    catalog_record.NAMESPACE_DELETED,
    catalog_record.TENANT,
    catalog_record.TENANT_DELETED,
)


class _Recent(NamedTuple):
    """What a topic is since the index was made: its slot and packed entry; 0 and None if it was deleted."""

    at: int  # where in the catalog its record ends
    slot: int
    packed: bytes | None


class _Ended(NamedTuple):
    """How many topics of a name were deleted, and the last of them."""

    at: int
    lives: int
    slot: int
    incarnation: int


class CatalogTable:
    """Namespaces, tenants, and topics and deleted topics by name, sorted.

    Role: the topics are in the mapped index, and those that changed since in memory. `rest_on` lets a newer
    index hold what it covers.
    Callers: one thread at a time; the catalog holds its mutex.

    Attributes:
        index: None while there is none.
        namespaces, tenants: in order of creation, the built-in ones first.
    """

    def __init__(self) -> None:
        self.namespaces: dict[str, None] = dict.fromkeys(BUILT_IN_NAMESPACES)
        self.tenants: dict[str, None] = dict.fromkeys(map(_tenant_of, BUILT_IN_NAMESPACES))
        self.index: TopicIndex | None = None
        self._recent: dict[str, _Recent] = {}
        self._sorted: list[str] = []  # its names; empty when there are others since
        self._ended: dict[str, _Ended] = {}
        self._decoded: tuple[bytes, TopicEntry] | None = None  # the last one: an opening asks several times

    @property
    def changes(self) -> int:
        """How many names changed since the index was made."""
        return len(self._recent)

    @property
    def size(self) -> int:
        """How many topics there are, about: those since the index count although they are changed or gone."""
        return len(self._recent) + (0 if self.index is None else self.index.header.topics)

    def find(self, name: str) -> TopicEntry | None:
        """The topic of that name."""
        return self._find(name)[1]

    def _find(self, name: str) -> tuple[int, TopicEntry | None]:
        # A name in memory says all: what the index has of it is older.
        recent = self._recent.get(name)
        if recent is not None:
            return recent.slot, None if recent.packed is None else self._entry(recent.packed)
        slot = 0 if self.index is None else self.index.find(name)
        return slot, self.index.entry(slot) if slot and self.index is not None else None

    def _entry(self, packed: bytes) -> TopicEntry:
        known = self._decoded
        # By identity, since an entry that changed has other bytes.
        if known is None or known[0] is not packed:
            known = self._decoded = packed, decode_topic(packed)
        return known[1]

    def items(self, prefix: str, start: str = "") -> Iterator[tuple[str, int, int]]:
        """(name, number of partitions, slot) of the topics whose names begin with ``prefix``, sorted, from
        ``start`` on."""
        # Two sorted lists are merged; of a name that is in both, the one in memory counts.
        old = iter(()) if self.index is None else self.index.items(prefix, start)
        waiting = next(old, None)
        names = self._names()
        first = bisect_left(names, max(prefix, start))
        for name in takewhile(lambda name: name.startswith(prefix), islice(names, first, None)):
            while waiting is not None and waiting[0] < name:
                yield waiting
                waiting = next(old, None)
            # The index has an older state of the name.
            if waiting is not None and waiting[0] == name:
                waiting = next(old, None)
            recent = self._recent[name]
            # A deleted topic is in memory without an entry, and is not listed.
            if recent.packed is not None:
                yield name, partitions_of(recent.packed), recent.slot
        if waiting is not None:
            yield waiting
            yield from old

    def _names(self) -> list[str]:
        """Those in memory, sorted: not before they are asked for, which an opening does not."""
        if not self._sorted:
            self._sorted = sorted(self._recent)
        return self._sorted

    def entries(self, prefix: str) -> Iterator[TopicEntry]:
        """The topics whose names begin with ``prefix``, sorted by name."""
        for name, _, slot in self.items(prefix):
            recent = self._recent.get(name)
            if recent is not None and recent.packed is not None:
                yield decode_topic(recent.packed)
            elif self.index is not None:
                yield self.index.entry(slot)

    def made_directories(self) -> set[str]:
        """The directories of the topics that have one."""
        index = self.index
        old = () if index is None else (index.entry(slot) for slot in index.made())
        recent = [
            decode_topic(change.packed) for change in self._recent.values() if change.packed is not None
        ]
        directories = {entry.directory for entry in old if entry.name not in self._recent}
        return directories | {entry.directory for entry in recent if entry.is_made}

    def ended(self, name: str) -> tuple[int, int]:
        """How many topics of that name were deleted, and the incarnation of the last; (0, 0) for none."""
        recent = self._ended.get(name)
        if recent is not None:
            return recent.lives, recent.incarnation
        lives, slot = (0, 0) if self.index is None else self.index.ended(name)
        return (lives, self.index.entry(slot).incarnation) if slot and self.index is not None else (0, 0)

    def ended_lives(self) -> dict[str, int]:
        """The incarnation that was deleted last, by the name of the topic."""
        old = iter(()) if self.index is None else self.index.all_ended()
        incarnations = {entry.name: entry.incarnation for entry in old}
        return incarnations | {name: ended.incarnation for name, ended in self._ended.items()}

    # -- changing ----------------------------------------------------------------------------------

    def apply(self, record: JournalRecord, at: int) -> list[str]:
        """Apply the record that begins at ``at``.

        Returns:
            The names of the topics that changed.

        Raises:
            CorruptionError: the record is malformed.
            UnsupportedFormatVersion: a newer release wrote it.
        """
        start, end = at + RECORD_SIZE, at + record.length
        if record.type in _OF_TOPICS:
            # A record of one topic has one entry; one of several has as many as were made at once.
            packed = islice(entries_of(record.payload), 1 if record.type == catalog_record.TOPIC else None)
            names = [self._put(entry, start + place, end) for place, entry in packed]
            # A topic that is opened for the first time is not a change to those that follow the list.
            return [] if record.type == catalog_record.TOPIC_MADE else names
        if record.type == catalog_record.TOPIC_DELETED:
            name, incarnation = catalog_record.decode_topic_deleted(record.payload)
            known = self.find(name)
            # Another topic of the name by now: the deletion was of a life before.
            if known is None or known.incarnation != incarnation:
                return []
            # The record names the topic; its partitions end with it.
            ends = (known, *self.with_logs(known))
            return [ended.name for ended in ends if self._end(ended.name, end)]
        if record.type not in _OF_NAMES:
            # Skipped records could delete or make topics: a newer release may have written any.
            raise UnsupportedFormatVersion(
                reason=f"the catalog has a record of type {record.type}, unknown to this release",
                remedy="upgrade embeddedpulsar",
            )
        self._apply_name(record.type, catalog_record.decode_namespace(record.payload))
        return []

    def _apply_name(self, kind: int, name: str) -> None:
        if kind == catalog_record.NAMESPACE:
            self.namespaces[name] = None
            self.tenants[_tenant_of(name)] = None
        elif kind == catalog_record.NAMESPACE_DELETED:
            self.namespaces.pop(name, None)
        elif kind == catalog_record.TENANT:
            self.tenants[name] = None
        else:
            self.tenants.pop(name, None)

    def _put(self, packed: bytes, offset: int, end: int) -> str:
        try:
            name = name_of(packed).decode()
        except UnicodeDecodeError as e:
            raise CorruptionError(reason="a name in the catalog is not UTF-8") from e
        if name not in self._recent:
            self._sorted = []
        # The slot has the place in the log, for the next index, and the bytes for those that ask before.
        self._recent[name] = _Recent(end, pack_slot(offset, packed), packed)
        return name

    def _end(self, name: str, at: int) -> bool:
        slot, entry = self._find(name)
        if entry is None:
            return False
        # The number of lives gives the next topic of the name a directory of its own.
        self._ended[name] = _Ended(at, self.ended(name)[0] + 1, slot, entry.incarnation)
        if name not in self._recent:
            self._sorted = []
        self._recent[name] = _Recent(at, 0, None)
        return True

    def with_logs(self, entry: TopicEntry) -> list[TopicEntry]:
        """The topic itself; of a partitioned one, those of its partitions that were ever opened."""
        if not entry.partitions:
            return [entry]
        names = (f"{entry.name}{PARTITION_SUFFIX}{index}" for index in range(entry.partitions))
        return [opened for name in names if (opened := self.find(name)) is not None]

    def rest_on(self, index: TopicIndex) -> None:
        """Let ``index``, which covers more than the present one, hold what it covers."""
        # What the index covers leaves memory; what came after it stays.
        end = index.header.end
        self._recent = {name: change for name, change in self._recent.items() if change.at > end}
        self._sorted = []
        self._ended = {name: change for name, change in self._ended.items() if change.at > end}
        # The old index goes: nothing of this process refers to it, since slots are resolved under the mutex.
        self.close()
        self.index = index

    def merged(self) -> tuple[array[int], array[int], array[int]]:
        """Slots of all topics, slots of the deleted ones and their lives, each sorted by name."""
        topics = ((name, self._recent[name].slot) for name in self._names())
        ended = ((name, change.slot, change.lives) for name, change in sorted(self._ended.items()))
        if self.index is not None:
            return self.index.merged(topics), *self.index.merged_ended(ended)
        slots = array("Q", (slot for _, slot in topics if slot))
        known = list(ended)
        return slots, array("Q", (slot for _, slot, _ in known)), array("I", (lives for _, _, lives in known))

    def close(self) -> None:
        """Unmap the index. Idempotent."""
        index, self.index = self.index, None
        if index is not None:
            index.close()


def _tenant_of(namespace: str) -> str:
    return namespace.partition("/")[0]


Answer = TypeVar("Answer")
INDEX_SUFFIX: Final = ".index"
INDEX_AFTER: Final = 4096
"""The index is made anew when so many topics changed: some 40 us of work for each, and 30 ms at opening."""
_REPAIR: Final = "repair the store (embeddedpulsar repair): the catalog is written again from the topics"
_REMEDY: Final = "repair the store: embeddedpulsar repair; and check that no topic or namespace is missing"
_SMALLEST_ENTRY: Final = 16  # no topic takes fewer bytes of the log
_DAMAGED_SUFFIX: Final = ".damaged.tmp"

failpoints.declare("catalog:record_written", "catalog:record_synced", "catalog_renewal:damaged_kept")
failpoints.declare("catalog_index:log_synced", "catalog_index:replaced")


class Catalog:
    """A journal of one generation without a commit word, followed by every process.

    Role: one per process and store. A look-up first follows the log: one ``fstat`` when nothing is new. The
    topics are in a sorted index beside the log, which is mapped; records since the index are in memory.
    Invariants: the log ends where the chain of checksums ends; there is no word that says so. A record a
    writer left half written does not continue the chain, and the next writer overwrites it; what may remain
    of it behind a shorter record does not continue the chain either. What is damaged is stepped over, and
    never overwritten: records behind it are read, and new ones are appended behind it.
    Durable: a record, once `append_topic` returned, if it was asked for. Otherwise a power loss may take
    the last seconds of records; the topics' own ``topic.meta`` brings those back (`TopicDirectories.heal`).
    Callers: any thread. Appends hold `lock` (an outer lock: never under a topic's or subscription's).

    Args:
        path: of the log.
        lock: of the catalog.
        is_read_only: nothing is appended.
        with_index: use the index, if there is one.
        index_after: the index is made anew when so many topics changed.
        report: told what is damaged; called under any lock.

    Attributes:
        is_damaged: whether records were lost, as far as was read.
    """

    def __init__(
        self,
        path: str,
        lock: FileLock,
        *,
        is_read_only: bool = False,
        with_index: bool = True,
        index_after: int = INDEX_AFTER,
        report: DamageHook = lambda damage: None,
    ) -> None:
        self.path = path
        self._report: Final = report
        self.is_damaged = False
        self._index_path: Final = path + INDEX_SUFFIX
        self.lock = lock
        self._mutex = threads.RLock()  # guards everything below
        self._fd = disk.DISK.open_file(path, os.O_RDONLY if is_read_only else os.O_RDWR)
        # No word says where the log ends: it is read from the start, or from the end of the index.
        self._last = self._end = FIRST_RECORD_OFFSET
        self._time_ms = 0  # of the last record
        self._flushing = threads.RLock()  # one flush at a time; taken before the mutex, never under it
        self._is_flush_failed = False
        self._searched = (0, 0)  # end of the chain and size of the file in which nothing continues it
        self._is_read_only = is_read_only
        self._index_after = index_after
        self._index_due = index_after
        self._table = CatalogTable()
        self._watchers: list[dict[str, None]] = []  # names of topics that changed; see `watch`
        self.version = 0  # rises with every record read: watchers of the list compare it
        try:
            self._seed = self._crc = self._read_header().chain_seed
            self._flushed = self._end, self._crc, self._time_ms  # all up to there, as far as is known
            # A small log has none, or takes no longer itself.
            if with_index and os.fstat(self._fd).st_size > _SMALLEST_ENTRY * index_after:
                self._adopt_index()
        except BaseException:
            os.close(self._fd)
            raise
        # A forked child reads the log through a descriptor of its own.
        fork.register(self)

    @staticmethod
    def create(path: str, records: Iterable[tuple[int, bytes, int]] = ()) -> None:
        """Write the catalog anew, durably, with these records. Under the catalog lock, while no process has
        the one before open.

        Args:
            path: of the log.
            records: type, payload and time of each.
        """
        # Before the log: an index of the old log beside a new one would be refused by its seed, but not if
        # this process died in between and another log had the same.
        Catalog.remove_index(path)
        crc = int.from_bytes(os.urandom(4), "little")
        header = JournalHeader(generation=1, chain_seed=crc, snapshot_crc=0, owner_kind=KIND_STORE)
        parts = [pack_journal_header(header)]
        for kind, payload, time_ms in records:
            record, crc = pack_record(kind, payload, crc, time_ms)
            parts.append(record)
        disk.DISK.atomic_write(path, b"".join(parts), durable=True)

    @staticmethod
    def renew(path: str) -> None:
        """Write the catalog anew without what is damaged in it, which is kept beside it. As `create`."""
        data = disk.DISK.read_file(path)
        # 1. What is there, under another name. A crash leaves a copy, and the next opening begins again.
        disk.DISK.atomic_write(f"{path}{_DAMAGED_SUFFIX}", data, durable=True)
        failpoints.hit("catalog_renewal:damaged_kept")
        # 2. All that can be read, in one chain.
        seed = parse_journal_header(data).chain_seed
        survivors = surviving_records(data[FIRST_RECORD_OFFSET:], seed, 0)
        Catalog.create(path, ((record.type, record.payload, record.time_ms) for _, record, _ in survivors))

    @staticmethod
    def remove_index(path: str) -> None:
        """Remove the index of the catalog at ``path``, which another takes the place of, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            disk.DISK.unlink(path + INDEX_SUFFIX)

    def _read_header(self) -> JournalHeader:
        try:
            header = parse_journal_header(disk.DISK.pread(self._fd, JOURNAL_HEADER_SIZE, 0))
        except (CorruptionError, ForeignFileError) as e:
            raise type(e)(path=self.path, offset=e.offset, reason=e.reason, remedy=_REPAIR) from None
        except UnsupportedFormatVersion as e:
            raise e.at(self.path) from None
        if header.owner_kind != KIND_STORE:
            raise CorruptionError(path=self.path, offset=20, reason="this journal is not a catalog")
        return header

    # -- reading -----------------------------------------------------------------------------------

    def find(self, name: str) -> TopicEntry | None:
        """The topic of that full name."""
        try:
            self._mutex.acquire()
            # Under the mutex, one `fstat` when nothing is new.
            self.catch_up()
            return self._table.find(name)
        finally:
            self._mutex.release()

    def topics(self, namespace: str | None = None) -> list[TopicEntry]:
        """All topics, or those of ``tenant/namespace``, sorted by name."""
        return self._ask(lambda table: list(chain.from_iterable(map(table.entries, _prefixes(namespace)))))

    def listed(self, prefix: str) -> list[tuple[str, int]]:
        """Name and number of partitions of each topic whose full name begins with ``prefix``, sorted.

        Neither are other topics looked at, nor entries decoded."""
        return self._ask(lambda table: [(name, partitions) for name, partitions, _ in table.items(prefix)])

    def names_from(self, prefix: str, start: str, most: int) -> list[str]:
        """The next ``most`` full names that begin with ``prefix``, from ``start`` on."""
        return self._ask(lambda table: [name for name, *_ in islice(table.items(prefix, start), most)])

    def listed_in(self, namespace: str | None) -> list[tuple[str, int]]:
        """As `listed`, of a namespace; of the whole store for None."""
        return list(chain.from_iterable(map(self.listed, _prefixes(namespace))))

    def _ask(self, question: Callable[[CatalogTable], Answer]) -> Answer:
        try:
            self._mutex.acquire()
            self.catch_up()
            return question(self._table)
        finally:
            self._mutex.release()

    def watch(self) -> dict[str, None]:
        """Collect the names of topics that are made, grow or are deleted from now on, for `take_changes`.

        Without it, who follows the list would have to compare all of it after every change."""
        changed: dict[str, None] = {}
        # First what is there, so that only what comes later is collected.
        try:
            self._mutex.acquire()
            self.catch_up()
            self._watchers.append(changed)
        finally:
            self._mutex.release()
        return changed

    def take_changes(self, changed: dict[str, None]) -> list[str]:
        """The names collected since the last call, each once."""
        try:
            self._mutex.acquire()
            self.catch_up()
            names = list(changed)
            changed.clear()
        finally:
            self._mutex.release()
        return names

    def unwatch(self, changed: dict[str, None]) -> None:
        """Collect no more. Idempotent."""
        try:
            self._mutex.acquire()
            self._watchers = [watcher for watcher in self._watchers if watcher is not changed]
        finally:
            self._mutex.release()

    def namespaces(self) -> list[str]:
        """All namespaces, the built-in ones first."""
        self.catch_up()
        return list(self._table.namespaces)

    def has_namespace(self, name: str) -> bool:
        """Whether ``tenant/namespace`` exists."""
        self.catch_up()
        return name in self._table.namespaces

    def tenants(self) -> list[str]:
        """All tenants, the built-in ones first."""
        self.catch_up()
        return list(self._table.tenants)

    def catch_up(self) -> None:
        """Apply what other processes appended."""
        try:
            self._mutex.acquire()
            size, begin = os.fstat(self._fd).st_size, self._end
            # Less than a record: the mark behind the last one. Shorter is no error: a writer was killed while
            # it wrote a record over what another one had left half written.
            if size - begin < RECORD_SIZE:
                return
            data = disk.DISK.pread(self._fd, size - begin, begin)
            # As far as the chain of checksums goes. What does not continue it is a record that is being
            # written, or the rest of one: it is looked at again the next time. If a record follows all the
            # same, it is damage; that is searched for once, since it takes a look at all that is there.
            is_searched = self._searched == (begin, size)
            for at, record, reason in surviving_records(
                data, self._crc, self._time_ms, is_searched=is_searched
            ):
                if reason:
                    # Pages are read at different moments: what is missing may have been written since, over
                    # the rest of a longer record. Then all of it is read by the next look-up.
                    gap = data[self._end - begin : at]
                    if disk.DISK.pread(self._fd, len(gap), self._end) != gap:
                        return
                    self._note_damage(reason, begin + at)
                self._apply(record, begin + at)
                self._last, self._end = begin + at, begin + at + record.length
                self._crc, self._time_ms = record.crc, record.time_ms
            self._searched = self._end, size
            # Another process has made a new index, or this one would keep all changes in memory; twice, so
            # that it is not looked for by every process at the moment it is due.
            if self._table.changes >= 2 * self._index_due:
                self._adopt_index()  # made by another process
        finally:
            self._mutex.release()

    def _note_damage(self, reason: str, following: int) -> None:
        self.is_damaged = True
        done = f"they are stepped over, and reading continues at offset {following}"
        self._report(
            Damage(
                self.path,
                offset=self._end,
                end_offset=following,
                reason=f"records are lost: {reason}",
                kind=CATALOG,
                done=done,
                remedy=_REMEDY,
            )
        )

    def leave_damage(self) -> None:
        """Let the next record be appended behind what is damaged at the end. The rest of a record that its
        writer did not finish is no damage, and is overwritten. Under `lock`."""
        try:
            self._mutex.acquire()
            self.catch_up()
            # No process is writing, since the lock is held: what is there stays so.
            behind = os.fstat(self._fd).st_size - self._end
            if behind < RECORD_SIZE:
                return
            reason = damage_behind(disk.DISK.pread(self._fd, behind, self._end), 0, self._end)
            if reason:
                following = self._end + behind + (-behind & 7)
                self._note_damage(reason, following)
                # The next record continues the chain from the last one that was read, which tells readers
                # that its writer knew of the damage.
                self._end = following
        finally:
            self._mutex.release()

    def _apply(self, record: JournalRecord, at: int) -> None:
        try:
            names = self._table.apply(record, at)
        except (CorruptionError, UnsupportedFormatVersion) as e:
            raise e.at(self.path) from None
        # Each watcher gets the names, not the entries: what the topic is when it is looked at counts.
        for changed in self._watchers:
            changed.update(dict.fromkeys(names))
        self.version += 1

    def with_logs(self, entry: TopicEntry) -> list[TopicEntry]:
        """The topic itself; of a partitioned one, those of its partitions that were ever opened."""
        return self._ask(lambda table: table.with_logs(entry))

    def made_directories(self) -> set[str]:
        """The directories of the topics that have one."""
        return self._ask(lambda table: table.made_directories())

    @property
    def size(self) -> int:
        """How many topics there are, about, of those that were read."""
        return self._table.size

    def ended(self, name: str) -> tuple[int, int]:
        """How many topics of that name were deleted, and the incarnation of the last; (0, 0) for none."""
        return self._ask(lambda table: table.ended(name))

    def ended_lives(self) -> dict[str, int]:
        """The incarnation that was deleted last, by the name of the topic."""
        return self._ask(lambda table: table.ended_lives())

    # -- the index ---------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Where the last record ends that was read."""
        return self._end

    @property
    def has_index(self) -> bool:
        """Whether there is an index that is of use."""
        return self._table.index is not None

    @property
    def is_index_due(self) -> bool:
        """Whether so many topics changed since the index that it should be made anew."""
        # A cheap guess first: the bytes that are not read yet are at most so many topics.
        possible_changes = self._table.changes + (os.fstat(self._fd).st_size - self._end) // _SMALLEST_ENTRY
        is_possible = not self._is_read_only and possible_changes >= self._index_due  # else nothing is read
        return is_possible and self._ask(lambda table: table.changes >= self._index_due)

    def save_index(self) -> None:
        """Make the index anew. Under `lock`."""
        try:
            # 1. The log: an index of records that a power loss took would be of no use. Nothing is appended
            # meanwhile, since the lock is held.
            self.sync()
            if failpoints.ACTIVE:
                failpoints.hit("catalog_index:log_synced")
            self._replace_index()
        except StorageFullError:
            self._index_due = self._table.changes + self._index_after  # the log has it all; later again

    def _replace_index(self) -> None:
        try:
            self._mutex.acquire()
            self.catch_up()
            topics, ended, lives = self._table.merged()
            # 2. The index, as a whole. Until then the old one holds, with more records after it.
            covers = self._seed, self._crc, self._last, self._end
            names = {"namespaces": list(self._table.namespaces), "tenants": list(self._table.tenants)}
            with descriptors.late_imports():
                from embeddedpulsar._engine.store.topic_index import TopicIndex
            TopicIndex.write(
                self._index_path, covers=covers, topics=topics, ended=ended, lives=lives, names=names
            )
            if failpoints.ACTIVE:
                failpoints.hit("catalog_index:replaced")
            self._adopt_index()
        finally:
            self._mutex.release()

    def _adopt_index(self) -> None:
        """Let the index in place hold what it covers; at first, begin behind what it covers."""
        if not os.path.exists(self._index_path):
            return
        with descriptors.late_imports():
            from embeddedpulsar._engine.store.topic_index import TopicIndex
        try:
            index = TopicIndex.open(self._index_path, self.path, os.fstat(self._fd).st_ino, self._seed)
        except (FileNotFoundError, StorageError) as e:
            # None that is of use: the log says the same.
            if isinstance(e, CorruptionError):
                done = "the catalog is read without it, and it is made again when many topics changed"
                self._report(Damage(self._index_path, reason=e.reason, kind=INDEX, done=done))
            return
        is_first, present = self._end == FIRST_RECORD_OFFSET, self._table.index
        if not is_first and index.header.end > self._end:
            index.close()  # of records that are not read yet
            return
        if present is not None and index.header.end <= present.header.end:
            index.close()
            self._index_due = self._table.changes + self._index_after
            return
        self._table.rest_on(index)
        self._index_due = self._index_after
        if is_first:
            self._crc, self._last, self._end = index.header.chain_crc, index.header.last, index.header.end
            self._time_ms = index.time_ms
            self._flushed = self._end, self._crc, self._time_ms  # the log is flushed before its index is made
            self._table.namespaces = dict.fromkeys(index.namespaces)
            self._table.tenants = dict.fromkeys(index.tenants)

    # -- writing -----------------------------------------------------------------------------------

    def append_topic(self, entry: TopicEntry, now_ms: int, *, durable: bool) -> None:
        """Add a topic. Under `lock`, after `catch_up`."""
        if entry.is_made and "/" not in entry.directory:
            self._append(catalog_record.TOPIC, catalog_record.encode_topic(entry), now_ms, durable)
        else:
            self.append_topics([entry], now_ms, durable=durable)

    def append_topics(self, entries: Sequence[TopicEntry], now_ms: int, *, durable: bool) -> None:
        """Add topics, in one record, which must not be too large. Under `lock`, after `catch_up`."""
        self._append(catalog_record.TOPICS, catalog_record.encode_topics(entries), now_ms, durable)

    def append_topic_made(self, entry: TopicEntry, now_ms: int, *, durable: bool) -> None:
        """Note that a topic has its directory. Under `lock`, after `catch_up`."""
        self._append(catalog_record.TOPIC_MADE, catalog_record.encode_topics([entry]), now_ms, durable)

    def append_topic_deleted(self, entry: TopicEntry, now_ms: int, *, durable: bool) -> None:
        """Remove a topic, with all its partitions. Under `lock`, after `catch_up`."""
        payload = catalog_record.encode_topic_deleted(entry.name, entry.incarnation)
        self._append(catalog_record.TOPIC_DELETED, payload, now_ms, durable)

    def append_namespace(self, name: str, now_ms: int, *, durable: bool) -> None:
        """Add a namespace. Under `lock`, after `catch_up`."""
        self._append(catalog_record.NAMESPACE, catalog_record.encode_namespace(name), now_ms, durable)

    def append_namespace_deleted(self, name: str, now_ms: int) -> None:
        """Remove a namespace, durably. Under `lock`, after `catch_up`."""
        self._append(catalog_record.NAMESPACE_DELETED, catalog_record.encode_namespace(name), now_ms, True)

    def append_tenant(self, name: str, now_ms: int, *, durable: bool) -> None:
        """Add a tenant. Under `lock`, after `catch_up`."""
        self._append(catalog_record.TENANT, catalog_record.encode_namespace(name), now_ms, durable)

    def append_tenant_deleted(self, name: str, now_ms: int) -> None:
        """Remove a tenant, durably. Under `lock`, after `catch_up`."""
        self._append(catalog_record.TENANT_DELETED, catalog_record.encode_namespace(name), now_ms, True)

    def _append(self, kind: int, payload: bytes, now_ms: int, durable: bool) -> None:
        try:
            self._mutex.acquire()
            self.leave_damage()
            # 1. The record, in one write. Torn, it does not continue the chain and is as if it were not
            # there.
            write_records(self._fd, self._end, self._crc, [(kind, payload)], now_ms)
        finally:
            self._mutex.release()
        if failpoints.ACTIVE:
            failpoints.hit("catalog:record_written")
        # 2. From here on all processes see it; flush it if it must survive a power loss.
        if durable:
            self.sync()
        if failpoints.ACTIVE:
            failpoints.hit("catalog:record_synced")
        if self.is_index_due:
            self.save_index()

    def sync(self) -> None:
        """Make all records so far survive a power loss. Also without the lock.

        Raises:
            OSError: the flush failed. What the disk has is unknown; the next call writes the records again.
            CorruptionError: they cannot be read any more since then.
        """
        try:
            self._flushing.acquire()
            try:
                self._mutex.acquire()
                self.catch_up()
                end, crc, time_ms = self._end, self._crc, self._time_ms
            finally:
                self._mutex.release()
            try:
                # The kernel takes the pages of a flush that failed for clean: the next flush would leave them
                # out, and succeed. Written again they are part of it. A journal with generations leaves such
                # a file instead.
                if self._is_flush_failed:
                    self._write_again(end, crc)
                disk.DISK.fdatasync(self._fd, self.path)
            except OSError:
                self._is_flush_failed = True
                raise
            self._is_flush_failed, self._flushed = False, (end, crc, time_ms)
        finally:
            self._flushing.release()

    def _write_again(self, end: int, crc: int) -> None:
        begin, last, time_ms = self._flushed
        data = disk.DISK.pread(self._fd, end - begin, begin)
        # Some file systems drop the pages: then what is read is what the disk has, without the records.
        for _, record, _ in surviving_records(data, last, time_ms):
            last = record.crc
        if last != crc:
            reason = "records were lost in a flush that failed"
            raise CorruptionError(path=self.path, offset=begin, reason=reason, remedy=_REPAIR)
        disk.DISK.pwrite_all(self._fd, [data], begin)

    def close(self) -> None:
        """Give the descriptor back. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        try:
            self._mutex.acquire()
            self._table.close()
        finally:
            self._mutex.release()

    def after_fork_in_child(self) -> None:
        """Close the inherited descriptor; the child's store opens a catalog of its own."""
        self._mutex, self._flushing = threads.RLock(), threads.RLock()
        self.close()


def _prefixes(namespace: str | None) -> tuple[str, ...]:
    """What the full names of the topics of ``tenant/namespace`` begin with, sorted."""
    if namespace is None:
        return ("",)
    return f"{NON_PERSISTENT}://{namespace}/", f"{PERSISTENT}://{namespace}/"
