"""The sorted index of the catalog, mapped and searched in place: topics are no objects in memory."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from zlib import crc32

from embeddedpulsar._engine.format.catalog_record import (
    INDEX_HEADER_SIZE,
    NO_DIRECTORY,
    TOPIC_HEADER,
    IndexHeader,
    TopicEntry,
    decode_topic,
    is_entry_of,
    name_of,
    pack_index_header,
    parse_index_header,
    slot_offset,
)
from embeddedpulsar._engine.format.document import pack_map, unpack_map
from embeddedpulsar._engine.format.journal_record import record_at
from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Final

_GALLOP: Final = 16
_LENGTH: Final = 12
"""Where in an entry the length of the name is."""
_OFFSET: Final = ((1 << 32) - 1) << 3
_AFTER_ALL: Final = b"\xff"
"""Greater than every byte of UTF-8."""
_MOST_NAMES: Final = 1 << 30


class TopicIndex:
    """Where in the catalog the entry of each topic is, sorted by name, as of some record of it.

    Role: derived from the catalog, and made again when it is missing, damaged or of another catalog. Beside
    the topics it has the last entry of each name whose topics were deleted, with their number.
    Invariants: immutable. The slots were verified as a whole when it was opened; each holds the checksum of
    its entry in the catalog, which is compared whenever the entry is read.
    Callers: any thread; `close` when the others are done.

    Attributes:
        header: which part of the catalog it covers.
        time_ms: of the last record that it covers.
        namespaces: of the store.
        tenants: of the store.
    """

    def __init__(self, header: IndexHeader, time_ms: int, file: MappedFile, log: MappedFile) -> None:
        self.header: Final = header
        self.time_ms: Final = time_ms
        self._file: Final = file
        self._log_file: Final = log
        self._log: Final[Any] = log.slices
        first = INDEX_HEADER_SIZE // 8
        self._slots: Final = file.words[first : first + header.topics]
        self._ended: Final = file.words[first + header.topics : first + header.topics + header.ended]
        # Behind the header: the slots of topics, those of names that ended, how often each did, and the
        # namespaces and tenants.
        lives = INDEX_HEADER_SIZE + 8 * (header.topics + header.ended)
        names = lives + 4 * header.ended
        self._lives: Final = file.view[lives:names].cast("I")
        names_of_store = unpack_map(bytes(file.view[names : header.size]), _MOST_NAMES)
        self.namespaces: Final[list[str]] = names_of_store["namespaces"]
        self.tenants: Final[list[str]] = names_of_store["tenants"]

    @classmethod
    def open(cls, path: str, log_path: str, log_inode: int, chain_seed: int) -> TopicIndex:
        """Map the index at ``path``.

        Args:
            path: of the index.
            log_path: of the catalog.
            log_inode: of the catalog that the caller has open.
            chain_seed: of that catalog.

        Raises:
            FileNotFoundError: there is none.
            StorageError: it is damaged, or of another catalog, or of a newer release.
        """
        file = MappedFile.open(path, writable=False, lean=True)
        log = None
        try:
            header = parse_index_header(bytes(file.view[:INDEX_HEADER_SIZE]))
            # The checksum over everything once, at opening: 8 bytes for each topic.
            if header.size != file.size or crc32(file.view[INDEX_HEADER_SIZE:]) != header.body_crc:
                raise CorruptionError(path=path, reason="the index of the catalog is damaged")
            # The log is mapped up to where the index covers it; entries are read there.
            log = MappedFile.open(log_path, writable=False, size=header.end, lean=True)
            last = record_at(log.view[header.last : header.end])
            # The same log, and the same record at the end of what is covered: a log that was written again,
            # after a repair for example, has another chain.
            if log.inode != log_inode or (header.chain_seed, header.chain_crc) != (chain_seed, last.crc):
                raise CorruptionError(path=path, reason="this is the index of another catalog")
            return cls(header, last.time_ms, file, log)
        except BaseException:
            file.close()
            if log is not None:
                log.close()
            raise

    # -- reading -----------------------------------------------------------------------------------

    def _entry(self, slot: int) -> bytes:
        """The bytes of an entry.

        Raises:
            CorruptionError: the catalog is damaged there.
        """
        at = slot_offset(slot)
        _, _, name_length, directory_length = TOPIC_HEADER.unpack_from(self._log, at)
        # Verified at each reading: the log may be damaged behind the back of the index.
        packed = bytes(self._log[at : at + TOPIC_HEADER.size + name_length + directory_length])
        if not is_entry_of(slot, packed):
            raise CorruptionError(
                path=self._log_file.path,
                offset=at,
                reason="an entry of the catalog is damaged",
                remedy="repair the store (embeddedpulsar repair): it is written again without this entry",
            )
        return packed

    def _unverified_name(self, slot: int) -> bytes:
        log, at = self._log, (slot << 3) & _OFFSET
        begin = at + TOPIC_HEADER.size
        return bytes(log[begin : begin + (log[at + _LENGTH] | log[at + _LENGTH + 1] << 8)])

    def _search(self, slots: memoryview[int], key: bytes, low: int, high: int) -> tuple[int, bool]:
        """Where ``key`` is or belongs in ``slots[low:high]``, and whether it is there.

        The names on the way are not verified, but those on both sides of the place are."""
        at = bisect_left(slots, key, low, high, key=self._unverified_name)
        before = name_of(self._entry(slots[at - 1])) if at > low else b""
        after = name_of(self._entry(slots[at])) if at < high else _AFTER_ALL
        if not before <= key <= after or before == key != b"":
            raise CorruptionError(path=self._log_file.path, reason="entries of the catalog are damaged")
        return at, after == key

    def _find(self, slots: memoryview[int], name: str) -> int | None:
        at, is_there = self._search(slots, name.encode(), 0, len(slots))
        return at if is_there else None

    def find(self, name: str) -> int:
        """The slot of the topic of that name; 0 if there is none."""
        at = self._find(self._slots, name)
        return 0 if at is None else self._slots[at]

    def entry(self, slot: int) -> TopicEntry:
        """The topic of a slot."""
        return decode_topic(self._entry(slot))

    def ended(self, name: str) -> tuple[int, int]:
        """How many topics of that name were deleted, and the slot of the last; (0, 0) for none."""
        at = self._find(self._ended, name)
        return (0, 0) if at is None else (self._lives[at], self._ended[at])

    def all_ended(self) -> Iterator[TopicEntry]:
        """The last deleted topic of each name that has one, sorted by name."""
        return map(self.entry, self._ended)

    def items(self, prefix: str, start: str = "") -> Iterator[tuple[str, int, int]]:
        """(name, number of partitions, slot) of the topics whose names begin with ``prefix``, sorted, from
        ``start`` on."""
        key = prefix.encode()
        count = len(self._slots)
        first, _ = self._search(self._slots, max(key, start.encode()), 0, count)
        end, _ = self._search(self._slots, key + _AFTER_ALL, first, count) if key else (count, False)
        log, read, size = self._log, TOPIC_HEADER.unpack_from, TOPIC_HEADER.size
        for slot in self._slots[first:end]:  # as `_entry`, for a million of them
            at = (slot << 3) & _OFFSET
            _, partitions, length, more = read(log, at)
            entry = bytes(log[at : at + size + length + more])
            if crc32(entry) != slot >> 32:
                self._entry(slot)
            yield entry[size : size + length].decode(), partitions & ~NO_DIRECTORY, slot

    def made(self) -> Iterator[int]:
        """The slots of the topics that have a directory."""
        for slot in self._slots:
            if not TOPIC_HEADER.unpack_from(self._log, slot_offset(slot))[1] & NO_DIRECTORY:
                yield slot

    # -- writing -----------------------------------------------------------------------------------

    def merged(self, changes: Iterable[tuple[str, int]]) -> array[int]:
        """The slots of the topics after ``changes``, which are sorted by name; slot 0 takes a topic away."""
        out: array[int] = array("Q")
        begin = 0
        for name, slot in changes:
            key = name.encode()
            at, is_there = self._next(self._slots, key, begin)
            out.frombytes(self._slots[begin:at].tobytes())
            begin = at + is_there
            if slot:
                out.append(slot)
        out.frombytes(self._slots[begin:].tobytes())
        return out

    def merged_ended(self, changes: Iterable[tuple[str, int, int]]) -> tuple[array[int], array[int]]:
        """Slots and lives of the deleted topics after ``changes``: (name, slot, lives), sorted by name."""
        slots: array[int] = array("Q")
        lives: array[int] = array("I")
        begin = 0
        for name, slot, number in changes:
            at, is_there = self._next(self._ended, name.encode(), begin)
            slots.frombytes(self._ended[begin:at].tobytes())
            lives.frombytes(self._lives[begin:at].tobytes())
            begin = at + is_there
            slots.append(slot)
            lives.append(number)
        slots.frombytes(self._ended[begin:].tobytes())
        lives.frombytes(self._lives[begin:].tobytes())
        return slots, lives

    def _next(self, slots: memoryview[int], key: bytes, begin: int) -> tuple[int, bool]:
        """Where ``key`` is or belongs, not before ``begin``, and whether it is there. Near places are found
        in few steps."""
        low, step = begin, _GALLOP
        while low + step < len(slots) and self._unverified_name(slots[low + step]) < key:
            low, step = low + step, 2 * step
        return self._search(slots, key, low, min(len(slots), low + step + 1))

    @staticmethod
    def write(
        path: str,
        *,
        covers: tuple[int, int, int, int],
        topics: array[int],
        ended: array[int],
        lives: array[int],
        names: dict[str, list[str]],
    ) -> None:
        """Replace the index at ``path``, durably.

        Args:
            covers: chain seed of the catalog, crc, beginning and end of the last record covered.
        """
        packed = pack_map(names)
        body = b"".join((topics.tobytes(), ended.tobytes(), lives.tobytes(), packed))
        seed, crc, last, end = covers
        header = IndexHeader(seed, crc, last, end, len(topics), len(ended), len(packed), crc32(body))
        disk.DISK.atomic_write(path, pack_index_header(header) + body, durable=True)

    def close(self) -> None:
        """Unmap. Idempotent. No other method may be at work, or be called later."""
        for view in (self._slots, self._ended, self._lives):
            view.release()
        self._file.close()
        self._log_file.close()
