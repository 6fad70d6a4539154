"""Looking behind damage for frames that belong to the log, and for nothing else that looks like frames.

A frame names neither its ledger nor its place, and a payload may hold a copy of a segment: where the header
that encloses it is damaged, its frames verify, chain, and may fit by number and time. So a run of frames is
taken only if something outside of it says that it stands where a frame was written:

1. the index has one of its frames at this place with this checksum, or
2. it ends where the ledger is known to end: no payload ends there, a trailer follows it, or
3. its first frame names, as the one before it, the one frame that is lost: by what is left of its header, or
4. the trailers of the lost frames lead back to where the damage begins, or
5. (where the end is not known) there is nothing behind it, not even the trailer of what might enclose it.

What 3 and 4 say of a run behind holds for the one before it, too. What is not taken is lost, and reported.
"""

from __future__ import annotations

import os
from typing import Final
from zlib import crc32

from embeddedpulsar._engine.format.frame import (
    HEADER_SIZE,
    MIN_FRAME_SIZE,
    TRAILER,
    TRAILER_SIZE,
    FrameHeader,
    next_frame,
)
from embeddedpulsar._engine.format.segment_header import SLOT, SLOT_SIZE, SLOTS_OFFSET
from embeddedpulsar._engine.platform import disk
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.storage.filenames import index_path, parse_ledger
from embeddedpulsar.storage.recovery import log_window
from embeddedpulsar.storage.recovery.log_window import LogWindow

ANY_ENTRY: Final = 1 << 62
_MOST_TRAILERS: Final = 64
"""Lost frames that trailers are followed over: damage that is longer destroys trailers as well."""
_MOST_EDGES: Final = 64
"""Edges a run is compared with, the nearest ones."""
_MOST_COMPARED: Final = 2_000
"""Beyond so many runs each is taken if it fits behind the one before: comparing all pairs takes too long."""
_BY_INDEX: Final = 1 << 32
"""A frame that the index has at this very place, with this checksum, outweighs any number it has not."""


class Run(NamedTuple):
    """Frames [start, end) that verify and chain, entries `first` to `last`.

    `indexed` counts those that the index knows at their place. A run alone does not show whether it is
    where it was written: pages may have changed places, and payloads may hold copies of segments. `proof` is
    1 where the bytes around it say so (run_search.py), as good as one frame that the index knows.
    """

    start: int
    end: int
    first: int
    last: int
    first_ms: int
    last_ms: int
    indexed: int = 0
    proof: int = 0

    @property
    def weight(self) -> int:
        """How much evidence there is for it."""
        return (self.indexed + self.proof) * _BY_INDEX + self.last - self.first + 1

    def may_follow(self, before: Run) -> bool:
        """Whether this run can lie behind `before`, with a hole between that holds the missing entries."""
        lost = self.first - before.last - 1
        return (
            lost >= 1 and self.start - before.end >= lost * MIN_FRAME_SIZE and self.first_ms >= before.last_ms
        )


def best_runs(behind: Run, found: list[Run]) -> list[Run]:
    """The heaviest sequence of runs that can follow each other behind `behind`; `found` is in order of place.

    Example:
        >>> start = Run(0, 4096, -1, -1, 0, 0)
        >>> moved, real = Run(8192, 9000, 50, 54, 5, 5), Run(9000, 20000, 20, 60, 5, 9)
        >>> best_runs(start, [moved, real]) == [real]
        True
    """
    if len(found) > _MOST_COMPARED:
        return _fitting(behind, found)
    weights = [0] * len(found)
    previous = [-1] * len(found)
    best = -1
    for i, run in enumerate(found):
        if run.may_follow(behind):
            weights[i] = run.weight
        for j in range(i):
            if weights[j] and weights[j] + run.weight > weights[i] and run.may_follow(found[j]):
                weights[i] = weights[j] + run.weight
                previous[i] = j
        if weights[i] and (best < 0 or weights[i] > weights[best]):
            best = i
    chosen: list[Run] = []
    while best >= 0:
        chosen.append(found[best])
        best = previous[best]
    chosen.reverse()
    return chosen


def _fitting(behind: Run, found: list[Run]) -> list[Run]:
    chosen: list[Run] = []
    for run in found:
        if run.may_follow(behind):
            chosen.append(run)
            behind = run
    return chosen


class Edge(NamedTuple):
    """A place between two frames of the log: `entry_id` and `crc` are those of the frame before it."""

    pos: int
    entry_id: int
    crc: int


class _Found(NamedTuple):
    run: Run
    prev_crc: int
    edges: list[Edge]
    """Where its end is, and the ends of damaged frames with intact headers that follow."""


class RunSearch:
    """One search behind one place of damage.

    Role: gives the scan of a log the runs to continue with.
    Invariants: nothing is believed of a run but what its frames and the bytes around it say; the body of a
    frame at a known place whose header is intact is never searched.
    """

    def __init__(self, log: LogWindow, end: int, last_known: int, *, is_end_known: bool) -> None:
        self._log: Final = log
        self._end: Final = end
        self._last_known: Final = last_known
        self._is_end_known: Final = is_end_known
        self._slots: Final = _index_slots(log.path)

    def behind(self, damage: Edge, publish_ms: int) -> list[Run]:
        """The runs to continue with, in order, behind the damage that begins at an edge."""
        known = self._edges(damage)
        candidates: list[_Found] = []
        pos = known[-1].pos if len(known) > 1 else damage.pos + 8
        while (pos := self._next_header(pos)) >= 0:
            found = self._found_at(pos)
            if found is None:
                pos += 8
                continue
            pos = found.run.end
            if found.run.last > self._last_known:
                continue
            edge = self._edge_before(known, found)
            if edge is not None:  # so whatever lies between is inside of damaged frames
                candidates = [one for one in candidates if one.run.end <= edge.pos or one.run.indexed]
            if edge is not None or self._stands_alone(found.run):
                found = found._replace(run=found.run._replace(proof=1))
                known = (known + found.edges)[-_MOST_EDGES:]
                pos = found.edges[-1].pos
            candidates.append(found)
        here = Run(0, damage.pos, 0, damage.entry_id, 0, publish_ms)
        return best_runs(here, self._proven(candidates))

    def _proven(self, candidates: list[_Found]) -> list[Run]:
        """The runs with evidence for them, which may be the proven run behind them."""
        taken: list[Run] = []
        following: list[_Found] = []
        for one in reversed(candidates):
            if not one.run.proof and any(self._edge_before(one.edges, other) for other in following):
                one = one._replace(run=one.run._replace(proof=1))
            if one.run.proof:
                taken.append(one.run)
                following = [one, *following[:3]]
        taken.reverse()
        return taken

    def _found_at(self, start: int) -> _Found | None:
        """The longest run of frames from `start` on, if there is a whole one."""
        pos, header = start, None
        indexed = 0
        first: FrameHeader | None = None
        while pos < self._end:
            try:
                found, _ = self._log.read_frame(pos, self._end)
            except CorruptionError:
                break
            place = _place(self._slots, found)
            if place not in (0, pos):
                break  # the index has this frame at another place
            if header is None:
                first = found
            elif (
                found.prev_crc != header.crc
                or found.entry_id != header.entry_id + 1
                or found.publish_time < header.publish_time
            ):
                break
            header = found
            indexed += place == pos
            pos += found.length
        if first is None or header is None:
            return None
        run = Run(
            start, pos, first.entry_id, header.entry_id, first.publish_time, header.publish_time, indexed
        )
        return _Found(run, first.prev_crc, self._edges(Edge(pos, header.entry_id, header.crc)))

    def _edges(self, edge: Edge) -> list[Edge]:
        """`edge`, and the ends of the damaged frames behind it whose headers are intact and chain."""
        found = [edge]
        while edge.pos < self._end:
            try:
                header = self._log.header_at(edge.pos, self._end)
            except CorruptionError:
                break
            if header.prev_crc != edge.crc or header.entry_id != edge.entry_id + 1:
                break
            if len(found) > 1 and self._is_whole(edge.pos):
                break  # a run begins here
            edge = Edge(edge.pos + header.length, header.entry_id, header.crc)
            found.append(edge)
        return found

    def _is_whole(self, pos: int) -> bool:
        try:
            self._log.read_frame(pos, self._end)
        except CorruptionError:
            return False
        return True

    def _stands_alone(self, run: Run) -> bool:
        """Whether the index or the run's end proves it."""
        if run.indexed:
            return True
        if self._is_end_known:
            return run.end == self._end
        return self._log.is_empty_behind(run.end, self._end)

    def _edge_before(self, edges: list[Edge], found: _Found) -> Edge | None:
        """The edge that the run follows, with a few damaged frames between; None if nothing says so."""
        run = found.run
        for edge in reversed(edges):
            lost = run.first - edge.entry_id - 1
            if edge.pos > run.start or lost < 0:
                continue
            if lost == 0:
                if edge.pos == run.start and edge.crc == found.prev_crc:
                    return edge
            elif (lost == 1 and self._names(edge.pos, run.start, found.prev_crc)) or self._leads_back(
                run.start, edge.pos, lost
            ):
                return edge
        return None

    def _names(self, pos: int, end: int, crc: int) -> bool:
        """Whether `crc` is that of a frame [pos, end): by its checksum field, or by all the others."""
        buf, at = self._log.at(pos, HEADER_SIZE)
        header = buf[at : at + HEADER_SIZE]
        if len(header) < HEADER_SIZE or end - pos < MIN_FRAME_SIZE:
            return False
        return int.from_bytes(header[4:8], "little") == crc or crc32(header[8:], end - pos) == crc

    def _leads_back(self, pos: int, start: int, frames: int) -> bool:
        """Whether the trailers of so many frames lead from `pos` back to `start`."""
        if frames > _MOST_TRAILERS:
            return False
        for _ in range(frames):
            if pos - MIN_FRAME_SIZE < start:
                return False
            buf, at = self._log.at(pos - TRAILER_SIZE, TRAILER_SIZE)
            zero, length = TRAILER.unpack_from(buf, at)
            if zero or length & 7 or not MIN_FRAME_SIZE <= length <= pos - start:
                return False
            pos -= length
        return pos == start

    def _next_header(self, pos: int) -> int:
        """The next offset at or behind `pos` with a frame header; -1 for none."""
        while pos + MIN_FRAME_SIZE <= self._end:
            data = self._log.next_data(pos)
            if data < 0:
                return -1
            pos = max(pos, data & ~7)
            buf, at = self._log.at(pos, min(log_window.WINDOW, self._end - pos))
            found = next_frame(buf, at, min(len(buf), at + self._end - pos), at + self._end - pos)
            if found >= 0:
                return pos + found - at
            # Headers across the end of this window are seen by the next.
            pos = (pos + len(buf) - at - HEADER_SIZE + 8) & ~7
        return -1


def _index_slots(log: str) -> bytes:
    """The slots of the index beside a log, as they are; empty if there is none."""
    directory, name = os.path.split(log)
    ledger = parse_ledger(name)
    try:
        return disk.DISK.read_file(index_path(directory, ledger or 0))[SLOTS_OFFSET:]
    except FileNotFoundError:
        return b""


def _place(slots: bytes, header: FrameHeader) -> int:
    """Where the index says this very frame lies; 0 if it does not know it."""
    at = header.entry_id * SLOT_SIZE
    if at + SLOT_SIZE > len(slots):
        return 0
    slot = SLOT.unpack_from(slots, at)
    return int(slot[0]) << 3 if slot[6] == header.crc else 0
