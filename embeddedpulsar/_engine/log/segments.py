"""The budget of mapped segments of this process, over all topics.

The ledgers of a topic in order, and where each of them ends.

Every segment names the ledger before it and where that ended. Walking those links back from the newest
segment gives the log; a segment that no link leads to is a stray of a roll that died. `SegmentSet` follows
them for readers, `walk_segments` reads all of a directory for recovery and checks.
"""

from __future__ import annotations

import os
import weakref
from bisect import bisect_left, bisect_right
from collections import OrderedDict

from embeddedpulsar._engine.filenames import log_path
from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.format.frame import SegmentHeader
from embeddedpulsar._engine.log.segment import Segment, find_segment_header, ledgers_with_cold
from embeddedpulsar._engine.log.topic_control import DirectoryIdentity, is_deleted
from embeddedpulsar._engine.platform import descriptors, disk, fork, mapped_file, threads
from embeddedpulsar.damage import MISSING_SEGMENT, SEGMENT_HEADER, Damage, DamageHook
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing import Final

_DEFAULT_CAPACITY: Final = 32
_FEWEST: Final = 8
_SHARE: Final = 12
"""So many descriptors the process may have for each segment that keeps one."""
_MAPS_EACH: Final = 2


class SegmentHolder(Protocol):
    """Keeps a segment beside the cache and can be asked to let it go: the writer of a topic."""

    def let_go(self, segment: Segment) -> bool:
        """Drop the segment; False if it is in use this moment. Never waits."""


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
            # Maps without descriptors cost address space only, so there may be many more of them.
            self._wanted += segments
            self._with_descriptors = _descriptor_budget()
            wanted = max(_DEFAULT_CAPACITY, self._wanted)
            allowed = self._with_descriptors if wanted <= self._with_descriptors else _map_budget()
            self._capacity = min(max(self._with_descriptors, allowed), wanted)
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
            # A writable map serves readers; a read-only one does not serve a writer.
            segment = self._segments.get(key)
            if segment is not None and (segment.writable or not writable):
                self._segments.move_to_end(key)
                return segment
        finally:
            self._lock.release()
        # Outside the lock: opening may wait for the disk. Two threads may both open it; the second
        # drops its own.
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
        # A look without the lock: a wrong answer costs a map or a read.
        if len(self._segments) < self._capacity or (home, ledger_id) in self._segments:
            return b""
        try:
            fd = disk.DISK.open_file(log_path(home.directory, ledger_id), os.O_RDONLY)
            try:
                data = disk.DISK.pread(fd, size, start)
            finally:
                os.close(fd)
        except OSError:
            return b""
        home.check()  # after it was opened: so it is one of ours
        return data

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
        # The least recently used go first. They are closed by the caller, outside the lock.
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
        # A writer that is inside an append keeps its segment, and the cache has one more for a while.
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

    def drop(self, home: DirectoryIdentity, ledger_id: int | None = None) -> None:
        """Drop one segment of a topic, or all."""
        # Holders are not asked: the owner closes, or what is mapped is about to be replaced.
        dropped: list[object] = []  # closed when this returns, outside our lock
        try:
            self._lock.acquire()
            keys = [key for key in self._segments if key[0] == home and ledger_id in (None, key[1])]
            dropped += [self._remove(key) for key in keys]
        finally:
            self._lock.release()

    def drop_below(self, home: DirectoryIdentity, ledger_id: int) -> None:
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


class ClosedLedger(NamedTuple):
    """A ledger that another one follows; its ending stands in the header of that one.

    `messages_before` counts from an arbitrary origin: only differences within one `LedgerChain` mean
    anything. `base_publish_ms` is that of the ledger before where the header is gone or unreadable.
    """

    ledger_id: int
    end_offset: int
    last_entry_id: int
    last_crc: int
    messages: int
    messages_before: int
    base_publish_ms: int


class LedgerChain(NamedTuple):
    """A snapshot: the retained closed ledgers, oldest first, and the tail ledger (0: there is none)."""

    closed: tuple[ClosedLedger, ...]
    ids: tuple[int, ...]
    tail_ledger: int
    tail_base_publish_ms: int
    messages_before_tail: int
    first_retained: int

    def find(self, ledger_id: int) -> ClosedLedger | None:
        """The closed ledger of that id; None if it is the tail's, trimmed, or not of this topic."""
        at = bisect_left(self.ids, ledger_id)
        return self.closed[at] if at < len(self.ids) and self.ids[at] == ledger_id else None

    def at_or_after(self, ledger_id: int) -> int:
        """The first ledger of the chain whose id is at least `ledger_id`; 0 if there is none."""
        at = bisect_left(self.ids, ledger_id)
        if at < len(self.ids):
            return self.ids[at]
        return self.tail_ledger if self.tail_ledger >= ledger_id else 0

    def after(self, ledger_id: int) -> int:
        """The first ledger of the chain behind `ledger_id`; 0 if that is the tail's."""
        return self.at_or_after(ledger_id + 1)

    def before(self, ledger_id: int) -> ClosedLedger | None:
        """The last closed ledger before `ledger_id`."""
        at = bisect_left(self.ids, ledger_id)
        return self.closed[at - 1] if at else None

    def floor_by_time(self, publish_ms: int) -> int:
        """The last ledger that begins before `publish_ms`, or the first; 0 if there is none.

        An entry at that time or later is in it or behind it.
        """
        at = bisect_left(self.closed, publish_ms, key=_base)
        if at == len(self.closed) and self.tail_ledger and self.tail_base_publish_ms < publish_ms:
            return self.tail_ledger
        return self.ids[max(at - 1, 0)] if self.ids else self.tail_ledger


def _base(ledger: ClosedLedger) -> int:
    return ledger.base_publish_ms


_EMPTY: Final = LedgerChain((), (), 0, 0, 0, 0)


class SegmentSet:
    """Follows the tail word from ledger to ledger by the headers' links backwards.

    Role: tells readers what comes next and where a closed ledger ends, without looking at frames.
    Invariants: a `LedgerChain` never changes; a newer one is put in its place. A file above the tail's ledger
    does not exist, whatever a listing shows. What is missing at or above the trim point is reported once and
    kept in the chain: its successor still says what was in it.
    Callers: any thread. Nothing is written.
    Cost: one header (some 15 us) per ledger, when first needed; later one per roll.
    """

    def __init__(self, home: DirectoryIdentity, words: memoryview, report: DamageHook) -> None:
        self._home: Final = home
        self._directory: Final = home.directory
        self._words: Final = words
        self._report: Final = report
        self._lock = threads.RLock()  # guards the replacement of _chain
        self._chain = _EMPTY

    def chain(self) -> LedgerChain:
        words = self._words
        chain = self._chain
        # Two loads tell whether anything changed since. The words may change between them: the next
        # call sees it.
        if words[TopicWord.TAIL] >> 32 == chain.tail_ledger and words[TopicWord.TRIM] == chain.first_retained:
            return chain
        try:
            self._lock.acquire()
            self._chain = self._extended(self._chain, words[TopicWord.TAIL] >> 32, words[TopicWord.TRIM])
            if self._chain.first_retained != chain.first_retained:
                # The log was trimmed. The disk space is given back when no process maps the files any more.
                SEGMENTS.drop_below(self._home, self._chain.first_retained)
            return self._chain
        finally:
            self._lock.release()

    def after_fork_in_child(self) -> None:
        self._lock = threads.renewed(self._lock)

    def _extended(self, known: LedgerChain, tail_ledger: int, trim: int) -> LedgerChain:
        # The known part of the chain is kept as it is: what was closed never changes. Only what was
        # trimmed is cut off its front.
        if not tail_ledger:
            return _EMPTY._replace(first_retained=trim)
        if tail_ledger < known.tail_ledger:
            known = _EMPTY  # a recovery found less than we had seen
        newer, tail_base = self._walk(known, tail_ledger, trim)
        kept = known.closed[bisect_left(known.ids, trim) :]
        before = known.closed[-1].messages_before + known.closed[-1].messages if known.closed else 0
        closed = list(kept)
        base = closed[-1].base_publish_ms if closed else 0
        # Oldest first, so that messages are counted on from what is known.
        for ledger in reversed(newer):
            base = max(base, ledger.base_publish_ms)  # keeps the order where a header is unreadable
            closed.append(ledger._replace(messages_before=before, base_publish_ms=base))
            before += ledger.messages
        ids = tuple([ledger.ledger_id for ledger in closed])
        return LedgerChain(tuple(closed), ids, tail_ledger, tail_base, before, trim)

    def _walk(self, known: LedgerChain, tail_ledger: int, trim: int) -> tuple[list[ClosedLedger], int]:
        """The ledgers before the tail's that `known` lacks, newest first, and the tail's base time."""
        last_known = known.ids[-1] if known.ids else 0
        header = self._header(tail_ledger, None, trim)
        tail_base = header.base_publish_ms if header else 0
        ledgers: list[ClosedLedger] = []
        ledger_id = tail_ledger
        # Along the links, until what is known, the trim point or the first ledger. A header that
        # cannot be read has no link: the directory's listing gives the next lower id.
        while True:
            if header is None:  # unreadable: the listing must do for a link
                ledger_id = self._listed_before(ledger_id)
                if ledger_id <= last_known or ledger_id < trim:
                    break
                successor = None
            else:
                successor, ledger_id = header, header.prev_ledger_id
                if not ledger_id or ledger_id <= last_known or ledger_id < trim:
                    break
            header = self._header(ledger_id, successor, trim)
            # Missing below the trim point, which may have moved since the walk began.
            if header is None and ledger_id < self._words[TopicWord.TRIM]:
                break  # trimmed meanwhile
            ledgers.append(self._closed(ledger_id, header, successor))
        return ledgers, tail_base

    def _header(self, ledger_id: int, successor: SegmentHeader | None, trim: int) -> SegmentHeader | None:
        """The header of a ledger, or None if it is gone or damaged; reported unless it was trimmed."""
        path = log_path(self._directory, ledger_id)
        last = successor.prev_last_entry_id if successor else -1
        try:
            found_header = find_segment_header(self._directory, ledger_id)
            if found_header.damage:
                self._report(found_header.report(path))
            return found_header.header
        except FileNotFoundError:
            # Gone and not trimmed is a loss, which is reported once; the successor still says what
            # was in it.
            words = self._words
            if not is_deleted(words) and ledger_id >= min(words[TopicWord.TRIM], words[TopicWord.TAIL] >> 32):
                reason = "the file is gone, although it was not trimmed"
                first = 0 if last >= 0 else -1
                self._report(Damage(path, ledger_id, first, last, 0, 0, reason, MISSING_SEGMENT))
        except CorruptionError as e:
            first = 0 if last >= 0 else -1
            reason = f"{e.reason}; {e.remedy}"
            place = e.path or path  # the note of an offloaded ledger
            self._report(Damage(place, ledger_id, first, last, 0, 0, reason, SEGMENT_HEADER))
        return None

    def _listed_before(self, ledger_id: int) -> int:
        ledgers = ledgers_with_cold(self._directory, descriptors.names_in(self._directory))
        at = bisect_right(ledgers, ledger_id - 1)
        return ledgers[at - 1] if at else 0

    def _closed(
        self, ledger_id: int, header: SegmentHeader | None, successor: SegmentHeader | None
    ) -> ClosedLedger:
        base = header.base_publish_ms if header else -1
        # The usual case: the next header says where this ledger ends, and nothing of it is read.
        if successor is not None:
            return ClosedLedger(
                ledger_id,
                successor.prev_end_offset,
                successor.prev_last_entry_id,
                successor.prev_last_crc,
                successor.prev_messages,
                0,
                base,
            )
        if header is None:
            return ClosedLedger(ledger_id, 0, -1, 0, 0, 0, base)
        # The header that said where this ledger ends is lost: as after a reboot, its frames have to tell.
        with descriptors.late_imports():
            from embeddedpulsar._engine.log.chain_scan import scan_log
        scan = scan_log(
            log_path(self._directory, ledger_id),
            chain_seed=header.chain_seed,
            base_publish_ms=header.base_publish_ms,
        )
        return ClosedLedger(
            ledger_id, scan.end_offset, scan.last_entry_id, scan.last_crc, scan.messages, 0, base
        )


class Link(NamedTuple):
    """One ledger of the log. Its ending is what the next ledger says; all four -1 if there is none."""

    header: SegmentHeader
    end_offset: int = -1
    last_entry_id: int = -1
    last_crc: int = -1
    messages: int = -1

    @property
    def is_closed(self) -> bool:
        """Whether the next ledger says where this one ends."""
        return self.end_offset >= 0


class SegmentChain(NamedTuple):
    """The log, oldest ledger first, and what is beside it."""

    links: list[Link]
    strays: list[int]
    damaged: list[Damage]
    highest_ledger_id: int


def walk_segments(
    directory: str, trim: int, *, without: frozenset[int] = frozenset(), limit: int | None = None
) -> SegmentChain:
    """Read the headers of all segments in `directory` and link them.

    Args:
        directory: the topic's.
        trim: first ledger that is retained, as far as known; 0 if not.
        without: ledgers to treat as strays, whatever their headers say.
        limit: the tail's ledger, if it is known; files above it do not exist.

    Raises:
        OSError: a header cannot be read, which says nothing of what is in the file.
        UnsupportedFormatVersion: a newer release wrote a segment.
    """
    listed = ledgers_with_cold(directory, descriptors.names_in(directory))
    # With a limit, ids above the tail's are rolls under way.
    ledgers = [ledger for ledger in listed if limit is None or ledger <= limit]
    headers, damaged = _read_headers(directory, [ledger for ledger in ledgers if ledger not in without])
    links: list[Link] = []
    # From the newest backwards. What no link leads to and lies above the oldest is a stray; what lies
    # below was trimmed.
    link = Link(headers[max(headers)]) if headers else None
    while link is not None:
        links.append(link)
        link = _link_before(directory, link.header, headers, trim, damaged)
    links.reverse()
    visited = {link.header.ledger_id for link in links}
    lowest = links[0].header.ledger_id if links else 0
    strays = [ledger for ledger in ledgers if ledger not in visited and ledger > lowest]
    strays = [ledger for ledger in strays if ledger in headers or ledger in without]
    return SegmentChain(links, strays, damaged, max(ledgers, default=0))


def _read_headers(directory: str, ledgers: list[int]) -> tuple[dict[int, SegmentHeader], list[Damage]]:
    headers: dict[int, SegmentHeader] = {}
    damaged: list[Damage] = []
    for ledger in ledgers:
        path = log_path(directory, ledger)
        try:
            found_header = find_segment_header(directory, ledger)
        except FileNotFoundError:
            continue  # trimmed since the directory was listed
        except CorruptionError as e:
            reason = f"{e.reason}; {e.remedy}"
            damaged.append(Damage(e.path or path, ledger, -1, -1, 0, 0, reason, SEGMENT_HEADER))
        else:
            headers[ledger] = found_header.header
            if found_header.damage:
                damaged.append(found_header.report(path))
    return headers, damaged


def _link_before(
    directory: str,
    header: SegmentHeader,
    headers: dict[int, SegmentHeader],
    trim: int,
    damaged: list[Damage],
) -> Link | None:
    """The ledger before that of `header`; None if that was the first one, or those before it are trimmed."""
    previous = header.prev_ledger_id
    # A loop in the links would never end.
    if previous >= header.ledger_id:
        raise CorruptionError(
            path=log_path(directory, header.ledger_id),
            reason=f"ledger {header.ledger_id} claims to follow ledger {previous}; ids rise",
        )
    # The successor has the ending of this ledger.
    if previous in headers:
        return Link(
            headers[previous],
            header.prev_end_offset,
            header.prev_last_entry_id,
            header.prev_last_crc,
            header.prev_messages,
        )
    older = [ledger for ledger in headers if ledger < previous]
    # Missing and not trimmed is damage, reported once. Without a trim point it counts only if an
    # older file is there: else all before may be trimmed.
    if previous >= trim > 0 or (previous and older and not trim):
        path = log_path(directory, previous)
        if not any(report.ledger_id == previous for report in damaged):
            damaged.append(
                Damage(
                    path,
                    previous,
                    0 if header.prev_last_entry_id >= 0 else -1,
                    header.prev_last_entry_id,
                    0,
                    0,
                    "the file is gone, although it was not trimmed",
                    MISSING_SEGMENT,
                )
            )
    # Over the gap: the next older ledger, whose ending nothing says.
    return Link(headers[max(older)]) if older else None
