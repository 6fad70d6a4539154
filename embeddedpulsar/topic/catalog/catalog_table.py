"""What the records of the catalog say: tenants, namespaces and topics by name."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.format import catalog_record
from embeddedpulsar._engine.format.catalog_record import (
    TopicEntry,
    decode_topic,
    entries_of,
    name_of,
    pack_slot,
    partitions_of,
)
from embeddedpulsar._engine.format.journal_record import RECORD_SIZE, JournalRecord
from embeddedpulsar.exceptions import CorruptionError, UnsupportedFormatVersion
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic_name import PARTITION_SUFFIX

if TYPE_CHECKING:
    from embeddedpulsar.topic.catalog.topic_index import TopicIndex

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
        recent = self._recent.get(name)
        if recent is not None:
            return recent.slot, None if recent.packed is None else self._entry(recent.packed)
        slot = 0 if self.index is None else self.index.find(name)
        return slot, self.index.entry(slot) if slot and self.index is not None else None

    def _entry(self, packed: bytes) -> TopicEntry:
        known = self._decoded
        if known is None or known[0] is not packed:
            known = self._decoded = packed, decode_topic(packed)
        return known[1]

    def items(self, prefix: str, start: str = "") -> Iterator[tuple[str, int, int]]:
        """(name, number of partitions, slot) of the topics whose names begin with ``prefix``, sorted, from
        ``start`` on."""
        old = iter(()) if self.index is None else self.index.items(prefix, start)
        waiting = next(old, None)
        names = self._names()
        first = bisect_left(names, max(prefix, start))
        for name in takewhile(lambda name: name.startswith(prefix), islice(names, first, None)):
            while waiting is not None and waiting[0] < name:
                yield waiting
                waiting = next(old, None)
            if waiting is not None and waiting[0] == name:
                waiting = next(old, None)
            recent = self._recent[name]
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
        recent = [decode_topic(one.packed) for one in self._recent.values() if one.packed is not None]
        found = {entry.directory for entry in old if entry.name not in self._recent}
        return found | {entry.directory for entry in recent if entry.is_made}

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
        found = {entry.name: entry.incarnation for entry in old}
        return found | {name: ended.incarnation for name, ended in self._ended.items()}

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
            packed = islice(entries_of(record.payload), 1 if record.type == catalog_record.TOPIC else None)
            names = [self._put(one, start + place, end) for place, one in packed]
            return [] if record.type == catalog_record.TOPIC_MADE else names
        if record.type == catalog_record.TOPIC_DELETED:
            name, incarnation = catalog_record.decode_topic_deleted(record.payload)
            known = self.find(name)
            if known is None or known.incarnation != incarnation:
                return []
            ends = (known, *self.with_logs(known))
            return [one.name for one in ends if self._end(one.name, end)]
        if record.type not in _OF_NAMES:
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
        self._recent[name] = _Recent(end, pack_slot(offset, packed), packed)
        return name

    def _end(self, name: str, at: int) -> bool:
        slot, entry = self._find(name)
        if entry is None:
            return False
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
        return [found for name in names if (found := self.find(name)) is not None]

    def rest_on(self, index: TopicIndex) -> None:
        """Let ``index``, which covers more than the present one, hold what it covers."""
        end = index.header.end
        self._recent = {name: one for name, one in self._recent.items() if one.at > end}
        self._sorted = []
        self._ended = {name: one for name, one in self._ended.items() if one.at > end}
        self.close()
        self.index = index

    def merged(self) -> tuple[array[int], array[int], array[int]]:
        """Slots of all topics, slots of the deleted ones and their lives, each sorted by name."""
        topics = ((name, self._recent[name].slot) for name in self._names())
        ended = ((name, one.slot, one.lives) for name, one in sorted(self._ended.items()))
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
