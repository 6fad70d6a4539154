"""The budget of mapped segments of this process, over all topics."""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from typing import Final, Protocol

from embeddedpulsar._engine.platform import descriptors, disk, fork, mapped_file, threads
from embeddedpulsar.storage.filenames import log_path
from embeddedpulsar.storage.segment import Segment
from embeddedpulsar.storage.topic_control import DirectoryIdentity

_DEFAULT_CAPACITY: Final = 32
_FEWEST: Final = 8
_SHARE: Final = 12
"""So many descriptors the process may have for each segment that keeps one."""
_MAPS_EACH: Final = 2


class SegmentHolder(Protocol):
    """Keeps a segment beside the cache and can be asked to let it go: the writer of a topic."""

    def let_go(self, segment: Segment) -> bool:
        """Drop the segment; False if it is in use this moment. Never waits."""
        ...


class SegmentCache:
    """Least recently used segments go first. A segment costs its size of address space, two of the maps the
    system allows, and one descriptor if it is written. When the descriptors that segments may have are taken,
    further ones keep none.

    Role: hands the same mapping to writer and readers of a process, and is the only one to keep it: cursors
    refer to it weakly and ask again. So what is dropped is closed, unless it is being read this moment.
    Invariants: one entry per ledger of a topic's `DirectoryIdentity`, so that nothing of a store that was
    removed serves another one at its path; a writable mapping replaces a read-only one.
    Callers: any thread. Nothing here is shared between processes.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self._wanted = 0
        self._capacity = min(_descriptor_budget(), _DEFAULT_CAPACITY) if capacity is None else capacity
        self._with_descriptors = self._capacity
        self._lock = threads.RLock()  # guards _segments and _holders
        self._segments: OrderedDict[tuple[DirectoryIdentity, int], Segment] = OrderedDict()
        self._holders: dict[tuple[DirectoryIdentity, int], weakref.ref[SegmentHolder]] = {}

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def is_crowded(self) -> bool:
        """Whether the next segment is to be mapped without a descriptor."""
        return len(self._segments) >= self._with_descriptors

    def allow(self, segments: int) -> None:
        """A topic was opened (or closed, if negative) that may keep so many segments mapped.

        Together they get what they want as long as it takes no more than a third of the maps this process may
        have, or, where each needs descriptors, a quarter of those it may have open.
        """
        try:
            self._lock.acquire()
            self._wanted += segments
            self._with_descriptors = _descriptor_budget()
            wanted = max(_DEFAULT_CAPACITY, self._wanted)
            most = self._with_descriptors if wanted <= self._with_descriptors else _map_budget()
            self._capacity = min(max(self._with_descriptors, most), wanted)
        finally:
            self._lock.release()

    def get(self, home: DirectoryIdentity, ledger_id: int, *, writable: bool = False) -> Segment:
        """The mapped segment of a ledger.

        Raises:
            FileNotFoundError: trimmed, or lost.
            CorruptionError: its header is damaged.
            StoreGoneError: the path leads to the files of another topic by now.
        """
        key = (home, ledger_id)
        try:
            self._lock.acquire()
            segment = self._segments.get(key)
            if segment is not None and (segment.writable or not writable):
                self._segments.move_to_end(key)
                return segment
        finally:
            self._lock.release()
        opened = Segment.open(home.directory, ledger_id, writable=writable, lean=self.is_crowded)
        home.check()  # after it was opened: so it is one of ours
        opened.home = home
        dropped: list[tuple[Segment, SegmentHolder | None]] = []
        try:
            self._lock.acquire()
            segment = self._segments.get(key)
            if segment is not None and (segment.writable or not writable):
                return segment  # another thread was faster, perhaps the one that writes
            self._keep(key, opened, dropped)
        finally:
            self._lock.release()
        self._tell_holders(dropped)
        return opened

    def read_unmapped(self, home: DirectoryIdentity, ledger_id: int, start: int, size: int) -> bytes:
        """Bytes of a segment, read from its file if mapping it would unmap another one: 6 us instead of 40.

        Returns:
            The bytes, not verified; none if the segment is mapped, if there is room to map it, or if its file
            cannot be read: then `get` returns it, or raises the error.

        Raises:
            StoreGoneError: the path leads to the files of another topic by now.
        """
        if len(self._segments) < self._capacity or (home, ledger_id) in self._segments:
            return b""
        try:
            fd = disk.DISK.open_file(log_path(home.directory, ledger_id), os.O_RDONLY)
            try:
                found = disk.DISK.pread(fd, size, start)
            finally:
                os.close(fd)
        except OSError:
            return b""
        home.check()  # after it was opened: so it is one of ours
        return found

    def put(self, home: DirectoryIdentity, segment: Segment, holder: SegmentHolder | None = None) -> None:
        """Keep `segment`; `holder` is asked to let it go before it is dropped."""
        segment.home = home
        key = (home, segment.ledger_id)
        dropped: list[tuple[Segment, SegmentHolder | None]] = []
        try:
            self._lock.acquire()
            self._keep(key, segment, dropped)
            if holder is not None:
                self._holders[key] = weakref.ref(holder)
        finally:
            self._lock.release()
        self._tell_holders(dropped)

    def _keep(
        self,
        key: tuple[DirectoryIdentity, int],
        segment: Segment,
        dropped: list[tuple[Segment, SegmentHolder | None]],
    ) -> None:
        self._segments.pop(key, None)
        while len(self._segments) >= max(1, self._capacity):
            dropped.append(self._remove(next(iter(self._segments))))
        self._segments[key] = segment

    def drop_all(self) -> None:
        """Keep only what is read or written this moment: there are no descriptors left."""
        dropped: list[tuple[Segment, SegmentHolder | None]] = []
        try:
            self._lock.acquire()
            dropped += [self._remove(key) for key in list(self._segments)]
        finally:
            self._lock.release()
        self._tell_holders(dropped)

    def _tell_holders(self, dropped: list[tuple[Segment, SegmentHolder | None]]) -> None:
        """Close files and take a writer's lock outside our lock. A holder that is busy keeps its segment, and
        is asked again when another caller needs room."""
        for segment, holder in dropped:
            if holder is None or holder.let_go(segment):
                continue
            key = (segment.home, segment.ledger_id)
            try:
                self._lock.acquire()
                if key not in self._segments:
                    self._segments[key] = segment
                    self._holders[key] = weakref.ref(holder)
            finally:
                self._lock.release()

    def _remove(self, key: tuple[DirectoryIdentity, int]) -> tuple[Segment, SegmentHolder | None]:
        segment = self._segments.pop(key)
        reference = self._holders.pop(key, None)
        return segment, reference() if reference is not None else None

    def forget(self, home: DirectoryIdentity, ledger_id: int | None = None) -> None:
        """Drop one segment of a topic, or all."""
        dropped: list[object] = []  # closed when this returns, outside our lock
        try:
            self._lock.acquire()
            keys = [key for key in self._segments if key[0] == home and ledger_id in (None, key[1])]
            dropped += [self._remove(key) for key in keys]
        finally:
            self._lock.release()

    def forget_below(self, home: DirectoryIdentity, ledger_id: int) -> None:
        """Drop the segments of a topic whose ledgers come before `ledger_id`: they were trimmed.

        A writer that has appended to one and appends no more is asked to let it go as well: it would keep the
        disk space of the ledger for as long as it is open.
        """
        dropped: list[tuple[Segment, SegmentHolder | None]] = []
        try:
            self._lock.acquire()
            keys = [key for key in self._segments if key[0] == home and key[1] < ledger_id]
            dropped += [self._remove(key) for key in keys]
        finally:
            self._lock.release()
        self._tell_holders(dropped)

    def after_fork_in_child(self) -> None:
        """Renew the lock: it may be held by a thread that does not exist here. The maps remain valid."""
        self._lock = threads.renewed(self._lock)


def _descriptor_budget() -> int:
    return max(_FEWEST, descriptors.limit() // _SHARE)


def _map_budget() -> int:
    """How many segments may be mapped without descriptors; 0 where that is not possible."""
    return mapped_file.map_limit() // _MAPS_EACH // 3 if mapped_file.is_available() else 0


SEGMENTS: Final = SegmentCache()
fork.register(SEGMENTS)
descriptors.SLEEPERS.on_shortage(SEGMENTS.drop_all)
