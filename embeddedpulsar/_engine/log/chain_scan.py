"""Reading a segment's frames one after another without believing anything but the frames.

Used where the tail word and the index cannot be trusted: recovery, the auditor, readers that met damage. The
index of the ledger is derived on the way. The one that is there is only asked, behind damage, which of the
frames found are where they were written.

Reading a log file that cannot be trusted, a piece at a time.

Looking behind damage for frames that belong to the log, and for nothing else that looks like frames.

A frame names neither its ledger nor its place, and a payload may hold a copy of a segment: where the header
that encloses it is damaged, its frames verify, chain, and may fit by number and time. So a run of frames is
taken only if something outside of it says that it stands where a frame was written:

1. the index has one of its frames at this place with this checksum, or
2. it ends where the ledger is known to end: no payload ends there, a trailer follows it, or
3. its first frame names, as the one before it, the one frame that is lost: by what is left of its header, or
4. the trailers of the lost frames lead back to where the damage begins, or
5. (where the end is not known) there is nothing behind it, not even the trailer of what might enclose it.

What 3 and 4 say of a run behind holds for the one before it, too. What is not taken is lost, and reported.

The log of a closed ledger, wherever it is: in the store, or in an offload location, from which it is
fetched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from zlib import crc32

from embeddedpulsar._engine.cold.cold_ledger import offloaded_ledger
from embeddedpulsar._engine.filenames import index_path, parse_ledger
from embeddedpulsar._engine.format.entry_decoder import METADATA
from embeddedpulsar._engine.format.frame import (
    FIRST_FRAME_OFFSET,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    MAX_COUNT,
    METADATA_SIZE,
    MIN_FRAME_SIZE,
    SLOT,
    SLOT_SIZE,
    SLOTS_OFFSET,
    TRAILER,
    TRAILER_SIZE,
    FrameHeader,
    next_frame,
    pack_slot,
    read_header,
    verify_trailer,
)
from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.platform.access import irregular
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final


Opened = TypeVar("Opened")

_ATTEMPTS: Final = 10


def fetch(path: str) -> str:
    """Bring the log of an offloaded ledger back.

    Returns:
        Its path; or that of a copy, which the caller opens and unlinks, where it may not write.

    Raises:
        ColdReadError: the location cannot be read, or has other bytes. Nothing was changed.
        FileNotFoundError: the ledger is not in a location; or it was trimmed meanwhile.
        LockTimeout: another process fetches, or the caller must not wait.
    """
    directory, name = os.path.split(path)
    note = offloaded_ledger(directory, parse_ledger(name) or 0)
    if note is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    # Looked up again here: between the failed opening and now another process may have fetched it or
    # trimmed the ledger.
    with late_imports():
        from embeddedpulsar._engine.cold import fetching
    return fetching.fetch(directory, note)


def map_log(path: str, *, lean: bool = False) -> MappedFile:
    """Map the log of a closed ledger for reading, fetched if it is in a location. Errors as of `fetch`."""
    return with_log(path, lambda place: MappedFile.open(place, writable=False, lean=lean))


def with_log(path: str, open_log: Callable[[str], Opened]) -> Opened:
    """Open the log of a closed ledger by its path, or by that of a copy; fetched if it is in a location.
    Errors as of `fetch`."""
    # Housekeeping may remove a log that was fetched before it is opened here, so the fetch is
    # repeated. The last try raises what stands in the way.
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(FileNotFoundError):
            return open_log(path)
        copy = fetch(path)
        # A copy beside the store has no name any more once it is open: the descriptor keeps it.
        if copy != path:
            try:
                return open_log(copy)
            finally:
                disk.DISK.unlink(copy)
    return open_log(path)


WINDOW: Final = 1 << 20


class LogWindow:
    """Bounded positional reads of a log file; nothing of it is mapped, so no bad sector or hole can kill.

    Attributes:
        size: bytes in the file when it was opened.
    """

    __slots__ = ("_base", "_data", "_fd", "path", "size")

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self._fd = with_log(path, lambda place: disk.DISK.open_file(place, os.O_RDONLY))
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise irregular(path, status.st_mode)
        self.size: Final = status.st_size
        self._base = 0
        self._data = b""

    def at(self, pos: int, size: int) -> tuple[bytes, int]:
        """A buffer that holds bytes [pos, pos+size), as far as the file does, and the offset of pos in it."""
        # One window is kept. The scan goes forward, so a megabyte is read at a time and each byte
        # once.
        start = pos - self._base
        if start < 0 or start + size > len(self._data):
            want = min(max(size, WINDOW), self.size - pos)
            parts = []
            base = pos
            # A short read is continued; an empty one is the end of a file that was cut meanwhile.
            while want > 0:
                try:
                    part = disk.DISK.pread(self._fd, want, pos)
                except OSError as e:
                    e.filename = e.filename or self.path
                    raise
                if not part:
                    break
                parts.append(part)
                pos += len(part)
                want -= len(part)
            self._data = parts[0] if len(parts) == 1 else b"".join(parts)
            self._base = base
            start = 0
        return self._data, start

    def frame_at(self, pos: int, end: int) -> tuple[bytes, int]:
        """A buffer that holds the frame at `pos`, if one is there below `end`, and its offset in it."""
        buf, at = self.at(pos, MIN_FRAME_SIZE)
        # The length is not verified yet: it is believed only as far as the file and ``end`` go.
        length = int.from_bytes(buf[at : at + 4], "little")
        if MIN_FRAME_SIZE <= length <= end - pos and at + length > len(buf):
            buf, at = self.at(pos, length)
        return buf, at

    def header_at(self, pos: int, end: int) -> FrameHeader:
        """The intact header of the frame at `pos`, ending at or before `end`; the body is not looked at."""
        buf, at = self.frame_at(pos, end)
        return read_header(buf, at, min(at + end - pos, len(buf)))

    def read_frame(self, pos: int, end: int) -> tuple[FrameHeader, int]:
        """Header and key hash of the frame at `pos`, both checksums verified."""
        buf, at = self.frame_at(pos, end)
        header = read_header(buf, at, min(at + end - pos, len(buf)))
        body = memoryview(buf)[at + HEADER_SIZE : at + header.length - TRAILER_SIZE]
        if crc32(body) != header.body_crc:
            raise CorruptionError(reason=f"body checksum mismatch in entry {header.entry_id}", offset=pos)
        return header, METADATA.unpack_from(buf, at + HEADER_SIZE)[2]

    def is_empty_behind(self, pos: int, end: int) -> bool:
        """Whether there is nothing but zeros in [pos, end)."""
        # Holes are jumped over by the file system; what is allocated is compared with zeros.
        while pos < end:
            data = self.next_data(pos)
            if data < 0 or data >= end:
                return True
            pos = max(pos, data)
            buf, at = self.at(pos, min(WINDOW, end - pos))
            part = buf[at : at + end - pos]
            if not part:
                return True
            if part.count(0) != len(part):
                return False
            pos += len(part)
        return True

    def next_data(self, pos: int) -> int:
        """The first offset at or behind `pos` that may hold something other than zeros; -1 for none."""
        try:
            return os.lseek(self._fd, pos, os.SEEK_DATA) if pos < self.size else -1
        except OSError:
            return -1  # ENXIO: a hole up to the end
        except AttributeError:
            return pos  # no such call here: read the zeros

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


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
    1 where the bytes around it say so, as good as one frame that the index knows.
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
        # At least one entry is lost (else the chain would go on), each lost one needs room for a
        # frame, and times never go back.
        lost = self.first - before.last - 1
        return (
            lost >= 1 and self.start - before.end >= lost * MIN_FRAME_SIZE and self.first_ms >= before.last_ms
        )


def best_runs(behind: Run, runs: list[Run]) -> list[Run]:
    """The heaviest sequence of runs that can follow each other behind `behind`; `found` is in order of place.

    Example:
        >>> start = Run(0, 4096, -1, -1, 0, 0)
        >>> moved, real = Run(8192, 9000, 50, 54, 5, 5), Run(9000, 20000, 20, 60, 5, 9)
        >>> best_runs(start, [moved, real]) == [real]
        True
    """
    # The heaviest chain by dynamic programming over pairs: weights[i] is that of the best sequence
    # that ends with run i.
    if len(runs) > _MOST_COMPARED:
        return _fitting(behind, runs)
    weights = [0] * len(runs)
    previous = [-1] * len(runs)
    best = -1
    for i, run in enumerate(runs):
        if run.may_follow(behind):
            weights[i] = run.weight
        for j in range(i):
            if weights[j] and weights[j] + run.weight > weights[i] and run.may_follow(runs[j]):
                weights[i] = weights[j] + run.weight
                previous[i] = j
        if weights[i] and (best < 0 or weights[i] > weights[best]):
            best = i
    # Backwards along the links that were noted.
    chosen: list[Run] = []
    while best >= 0:
        chosen.append(runs[best])
        best = previous[best]
    chosen.reverse()
    return chosen


def _fitting(behind: Run, runs: list[Run]) -> list[Run]:
    chosen: list[Run] = []
    for run in runs:
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
        # Frames whose bodies are damaged and whose headers chain say where the next one begins, so
        # their bodies, which may hold copies of segments, are not searched.
        known = self._edges(damage)
        candidates: list[_Found] = []
        pos = known[-1].pos if len(known) > 1 else damage.pos + 8
        while (pos := self._next_header(pos)) >= 0:
            candidate = self._found_at(pos)
            if candidate is None:
                pos += 8
                continue
            pos = candidate.run.end
            # It has more entries than the ledger: not of this ledger.
            if candidate.run.last > self._last_known:
                continue
            # A run that follows a known edge is proven, and everything between was inside of damaged
            # frames.
            edge = self._edge_before(known, candidate)
            if edge is not None:  # so whatever lies between is inside of damaged frames
                candidates = [each for each in candidates if each.run.end <= edge.pos or each.run.indexed]
            if edge is not None or self._stands_alone(candidate.run):
                candidate = candidate._replace(run=candidate.run._replace(proof=1))
                # Its own end is an edge for the runs behind it.
                known = (known + candidate.edges)[-_MOST_EDGES:]
                pos = candidate.edges[-1].pos
            candidates.append(candidate)
        here = Run(0, damage.pos, 0, damage.entry_id, 0, publish_ms)
        return best_runs(here, self._proven(candidates))

    def _proven(self, candidates: list[_Found]) -> list[Run]:
        """The runs with evidence for them, which may be the proven run behind them."""
        taken: list[Run] = []
        following: list[_Found] = []
        # Backwards: a run becomes credible by a proven one behind it that follows its end.
        for candidate in reversed(candidates):
            if not candidate.run.proof and any(
                self._edge_before(candidate.edges, other) for other in following
            ):
                candidate = candidate._replace(run=candidate.run._replace(proof=1))
            if candidate.run.proof:
                taken.append(candidate.run)
                following = [candidate, *following[:3]]
        taken.reverse()
        return taken

    def _found_at(self, start: int) -> _Found | None:
        """The longest run of frames from `start` on, if there is a whole one."""
        pos, header = start, None
        indexed = 0
        first: FrameHeader | None = None
        while pos < self._end:
            try:
                frame, _ = self._log.read_frame(pos, self._end)
            except CorruptionError:
                break
            # 0: the index does not know this frame, which proves nothing. Another place: it is a
            # copy.
            place = _place(self._slots, frame)
            if place not in (0, pos):
                break  # the index has this frame at another place
            if header is None:
                first = frame
            elif (
                frame.prev_crc != header.crc
                or frame.entry_id != header.entry_id + 1
                or frame.publish_time < header.publish_time
            ):
                break
            header = frame
            indexed += place == pos
            pos += frame.length
        if first is None or header is None:
            return None
        run = Run(
            start, pos, first.entry_id, header.entry_id, first.publish_time, header.publish_time, indexed
        )
        return _Found(run, first.prev_crc, self._edges(Edge(pos, header.entry_id, header.crc)))

    def _edges(self, edge: Edge) -> list[Edge]:
        """`edge`, and the ends of the damaged frames behind it whose headers are intact and chain."""
        edges = [edge]
        while edge.pos < self._end:
            try:
                header = self._log.header_at(edge.pos, self._end)
            except CorruptionError:
                break
            if header.prev_crc != edge.crc or header.entry_id != edge.entry_id + 1:
                break
            # A frame that verifies is the first of a run, and no damage.
            if len(edges) > 1 and self._is_whole(edge.pos):
                break  # a run begins here
            edge = Edge(edge.pos + header.length, header.entry_id, header.crc)
            edges.append(edge)
        return edges

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
        # No payload ends where the ledger ends: the trailer of the frame around it would follow.
        if self._is_end_known:
            return run.end == self._end
        return self._log.is_empty_behind(run.end, self._end)

    def _edge_before(self, edges: list[Edge], candidate: _Found) -> Edge | None:
        """The edge that the run follows, with a few damaged frames between; None if nothing says so."""
        run = candidate.run
        # The nearest edge first. Nothing lost: the run must name it. One frame lost: what is left of
        # its header may name it. Several: their trailers have to lead back.
        for edge in reversed(edges):
            lost = run.first - edge.entry_id - 1
            if edge.pos > run.start or lost < 0:
                continue
            if lost == 0:
                if edge.pos == run.start and edge.crc == candidate.prev_crc:
                    return edge
            elif (lost == 1 and self._names(edge.pos, run.start, candidate.prev_crc)) or self._leads_back(
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
        # The field of the checksum may be what is damaged, or anything else; the run behind names the
        # right value.
        return int.from_bytes(header[4:8], "little") == crc or crc32(header[8:], end - pos) == crc

    def _leads_back(self, pos: int, start: int, frames: int) -> bool:
        """Whether the trailers of so many frames lead from `pos` back to `start`."""
        if frames > _MOST_TRAILERS:
            return False
        for _ in range(frames):
            if pos - MIN_FRAME_SIZE < start:
                return False
            # Trailers are at known places if the frame behind is at its place, so a wrong guess fails
            # within a few steps.
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
            # Frames begin at multiples of 8.
            pos = max(pos, data & ~7)
            buf, at = self._log.at(pos, min(WINDOW, self._end - pos))
            offset = next_frame(buf, at, min(len(buf), at + self._end - pos), at + self._end - pos)
            if offset >= 0:
                return pos + offset - at
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
    # The checksum in the slot makes it this very frame; entry numbers alone repeat in copies.
    if at + SLOT_SIZE > len(slots):
        return 0
    slot = SLOT.unpack_from(slots, at)
    return int(slot[0]) << 3 if slot[6] == header.crc else 0


_U32: Final = 0xFFFFFFFF
_KEY_HASH: Final = struct.Struct("<I")
_KEY_HASH_AT: Final = HEADER_SIZE + 12


class Hole(NamedTuple):
    """Bytes between readable frames, and the entries that must have been there."""

    offset: int
    end_offset: int
    first_entry_id: int
    last_entry_id: int
    reason: str


class ChainScan(NamedTuple):
    """What a scan found. `slots` are the index slots of entries 0..last_entry_id, lost ones included."""

    end_offset: int
    last_entry_id: int
    last_crc: int
    messages: int
    last_publish_ms: int
    frames: int
    slots: bytearray
    holes: list[Hole]
    stop_reason: str
    bad_trailers: list[tuple[int, int]]
    """(offset of the trailer, length of the frame) where a frame verifies and its end mark does not."""


class Scanner:
    """One pass over one log. Accepts a frame if it continues the chain, or belongs behind a hole."""

    def __init__(self, log: LogWindow, end: int, chain_seed: int, base_publish_ms: int) -> None:
        self.log = log
        self.end = min(end, log.size)
        self.pos = FIRST_FRAME_OFFSET
        self.crc = chain_seed
        self.base_ms = base_publish_ms
        self.entry_id = -1
        self.messages = 0
        self.publish_ms = base_publish_ms
        self.frames = 0
        self.slots = bytearray()
        self.holes: list[Hole] = []
        self.stop_reason = ""
        self.bad_trailers: list[tuple[int, int]] = []
        self.last_known = ANY_ENTRY
        self.is_end_known = False

    def run(self) -> None:
        """Accept all that can be accepted."""
        reason = self.take_chain()
        # Each run is followed frame by frame again: it may go on beyond what the search looked at.
        for run in self._runs_behind() if self.pos < self.end else ():
            self.record_hole(self.pos, run.start, run.first - 1, reason)
            self.pos, self.crc = run.start, self.log.header_at(run.start, self.end).prev_crc
            reason = self.take_chain()
        self.stop_reason = reason

    def result(self) -> ChainScan:
        """What was found so far."""
        return ChainScan(
            self.pos,
            self.entry_id,
            self.crc,
            self.messages,
            self.publish_ms,
            self.frames,
            self.slots,
            self.holes,
            self.stop_reason,
            self.bad_trailers,
        )

    def take_chain(self) -> str:
        """Accept frames while they chain; the reason why the next one does not."""
        while self.pos < self.end:
            # The fast way first, for whole windows; what it stops at is looked at singly, with a
            # reason for each check that fails.
            self._take_window()
            if self.pos >= self.end:
                break
            # Longer than the window, or something is wrong with it: looked at more closely.
            try:
                header, key_hash = self.log.read_frame(self.pos, self.end)
            except CorruptionError as e:
                return e.reason
            if header.prev_crc != self.crc:
                return f"frame follows {header.prev_crc:#010x}, not {self.crc:#010x}"
            if header.entry_id != self.entry_id + 1:
                return f"entry {header.entry_id} where entry {self.entry_id + 1} belongs"
            if header.publish_time < self.publish_ms:
                return f"publish time {header.publish_time} after {self.publish_ms}"
            self._accept(self.pos, header, key_hash)
        return ""

    def _take_window(self) -> None:
        """Accept the frames of one window in which everything is as it should be. About 3 us each: hot."""
        # State is in locals during the loop and stored once behind it. Everything a cursor checks is
        # checked here, and the trailer; the slot that the writer stored is made again from the frame.
        buf, at = self.log.at(self.pos, min(WINDOW, self.end - self.pos))
        limit = min(len(buf), at + self.end - self.pos)
        shift, base_ms = self.pos - at, self.base_ms
        crc, entry_id, publish_ms = self.crc, self.entry_id + 1, self.publish_ms
        messages, slots, first = self.messages, self.slots, self.entry_id
        unpack, trailer, key_hash, pack = (
            HEADER.unpack_from,
            TRAILER.unpack_from,
            _KEY_HASH.unpack_from,
            SLOT.pack,
        )
        while at + MIN_FRAME_SIZE <= limit:
            length, own, prev, body_crc, magic, _, _, flags, own_id, ms, count, metadata, _ = unpack(buf, at)
            end = at + length
            if (
                prev != crc
                or own_id != entry_id
                or ms < publish_ms
                or magic != MAGIC
                or length & 7
                or not MIN_FRAME_SIZE <= length <= limit - at
                or not METADATA_SIZE <= metadata <= length - HEADER_SIZE - TRAILER_SIZE
                or crc32(buf[at + 8 : at + HEADER_SIZE], length) != own
                or crc32(buf[at + HEADER_SIZE : end - TRAILER_SIZE]) != body_crc
                or trailer(buf, end - TRAILER_SIZE) != (0, length)
            ):
                break
            messages += count
            slots += pack(
                at + shift >> 3,
                min(ms - base_ms, _U32),
                messages & _U32,
                key_hash(buf, at + _KEY_HASH_AT)[0],
                flags >> 16,
                min(count, MAX_COUNT),
                own,
            )
            at, crc, publish_ms = end, own, ms
            entry_id += 1
        # Up to the last frame that was accepted.
        self.pos, self.crc, self.entry_id = at + shift, crc, entry_id - 1
        self.publish_ms, self.messages = publish_ms, messages
        self.frames += self.entry_id - first

    def _accept(self, pos: int, header: FrameHeader, key_hash: int) -> None:
        self._check_trailer(pos, header)
        self.messages += header.message_count
        self.slots += pack_slot(
            pos,
            min(header.publish_time - self.base_ms, _U32),
            self.messages & _U32,
            key_hash,
            header.flags,
            header.message_count,
            header.crc,
        )
        self.entry_id = header.entry_id
        self.publish_ms = header.publish_time
        self.crc = header.crc
        self.pos = pos + header.length
        self.frames += 1

    def _check_trailer(self, pos: int, header: FrameHeader) -> None:
        buf, at = self.log.frame_at(pos, self.end)
        try:
            verify_trailer(buf, at, header)
        # The frame is whole; only its end mark is renewed later, and by recovery alone.
        except CorruptionError:
            self.bad_trailers.append((pos + header.length - TRAILER_SIZE, header.length))

    def _runs_behind(self) -> list[Run]:
        """The runs of frames behind the damage at `pos` that belong to this log."""
        search = RunSearch(self.log, self.end, self.last_known, is_end_known=self.is_end_known)
        return search.behind(Edge(self.pos, self.entry_id, self.crc), self.publish_ms)

    def record_hole(self, offset: int, end_offset: int, last_entry_id: int, reason: str) -> None:
        """Note the lost entries, with empty slots that keep the index sorted."""
        first = self.entry_id + 1
        # Slots of lost entries repeat the values of the entry before: binary searches by time and by
        # count stay right. Their checksum of 0 says that there is no frame.
        delta = min(self.publish_ms - self.base_ms, _U32)
        empty = pack_slot(offset, delta, self.messages & _U32, 0, 0, 0, 0)
        self.slots += empty * (last_entry_id - self.entry_id)
        self.entry_id = last_entry_id
        self.holes.append(Hole(offset, end_offset, first, last_entry_id, reason))


def scan_log(
    path: str,
    *,
    chain_seed: int,
    base_publish_ms: int,
    end: int | None = None,
    last_entry_id: int = -1,
    start: int = FIRST_FRAME_OFFSET,
    first_entry_id: int = 0,
    is_chain_only: bool = False,
) -> ChainScan:
    """Scan the frames of a segment.

    Args:
        path: the log file.
        chain_seed: what the first frame must name as the checksum before it.
        base_publish_ms: of the segment.
        end: where the ledger ends, if that is known; else as far as there are frames.
        last_entry_id: its last entry, where `end` is given; those missing at the end are a hole too.
        start: where to begin, at entry `first_entry_id`.
        is_chain_only: stop at the first frame that does not chain.
    """
    log = LogWindow(path)
    try:
        scanner = Scanner(log, log.size if end is None else end, chain_seed, base_publish_ms)
        scanner.pos = start
        scanner.entry_id = first_entry_id - 1
        # An end beyond the file is a file that was cut: then the end of its bytes proves nothing.
        scanner.is_end_known = end is not None and end <= log.size
        if end is not None and last_entry_id >= 0:
            scanner.last_known = last_entry_id
        if is_chain_only:
            scanner.take_chain()
        else:
            scanner.run()
        # The header of the next ledger knows of more entries than there are frames.
        if end is not None and last_entry_id > scanner.entry_id:
            scanner.record_hole(scanner.pos, end, last_entry_id, scanner.stop_reason or "file was cut")
        return scanner.result()
    finally:
        log.close()
