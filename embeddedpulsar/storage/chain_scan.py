"""Reading a segment's frames one after another without believing anything but the frames.

Used where the tail word and the index cannot be trusted: recovery, the auditor, readers that met damage. The
index of the ledger is derived on the way. The one that is there is only asked, behind damage, which of the
frames found are where they were written (frame_runs.py).
"""

from __future__ import annotations

import os
import struct
from typing import Final, NamedTuple
from zlib import crc32

from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.entry_view import METADATA
from embeddedpulsar.format.frame import (
    HEADER,
    HEADER_SIZE,
    MAGIC,
    METADATA_SIZE,
    MIN_FRAME_SIZE,
    TRAILER,
    TRAILER_SIZE,
    FrameHeader,
    next_frame,
    read_header,
    verify_trailer,
)
from embeddedpulsar.format.index_slot import MAX_COUNT, SLOT, SLOT_SIZE, SLOTS_OFFSET, pack_slot
from embeddedpulsar.format.segment_header import FIRST_FRAME_OFFSET
from embeddedpulsar.platform import disk
from embeddedpulsar.storage import log_window
from embeddedpulsar.storage.filenames import index_path, parse_ledger
from embeddedpulsar.storage.frame_runs import Run, best_runs
from embeddedpulsar.storage.log_window import LogWindow

_ANY_ENTRY: Final = 1 << 62
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
        self.last_known = _ANY_ENTRY

    def run(self) -> None:
        """Accept all that can be accepted."""
        reason = self.take_chain()
        for run in self._runs_behind() if self.pos < self.end else ():
            self.record_hole(self.pos, run.start, run.first - 1, reason)
            self.pos, self.crc = run.start, self._read(run.start)[0].prev_crc
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
            self._take_window()
            if self.pos >= self.end:
                break
            # Longer than the window, or something is wrong with it: looked at more closely.
            try:
                header, key_hash = self._read(self.pos)
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
        buf, at = self.log.at(self.pos, min(log_window.WINDOW, self.end - self.pos))
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
            length, own, prev, body_crc, magic, _, _, flags, found, ms, count, metadata, _ = unpack(buf, at)
            end = at + length
            if (
                prev != crc
                or found != entry_id
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
        self.pos, self.crc, self.entry_id = at + shift, crc, entry_id - 1
        self.publish_ms, self.messages = publish_ms, messages
        self.frames += self.entry_id - first

    def _read(self, pos: int) -> tuple[FrameHeader, int]:
        """Header and key hash of the frame at `pos`, its checksums verified."""
        buf, at = self._frame_at(pos)
        header = read_header(buf, at, min(at + self.end - pos, len(buf)))
        body = memoryview(buf)[at + HEADER_SIZE : at + header.length - TRAILER_SIZE]
        if crc32(body) != header.body_crc:
            raise CorruptionError(reason=f"body checksum mismatch in entry {header.entry_id}", offset=pos)
        return header, METADATA.unpack_from(buf, at + HEADER_SIZE)[2]

    def _frame_at(self, pos: int) -> tuple[bytes, int]:
        """A buffer that holds the frame at `pos`, if one is there, and the offset of the frame in it."""
        buf, at = self.log.at(pos, MIN_FRAME_SIZE)
        length = int.from_bytes(buf[at : at + 4], "little")
        if MIN_FRAME_SIZE <= length <= self.end - pos and at + length > len(buf):
            buf, at = self.log.at(pos, length)
        return buf, at

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
        buf, at = self._frame_at(pos)
        try:
            verify_trailer(buf, at, header)
        except CorruptionError:
            self.bad_trailers.append((pos + header.length - TRAILER_SIZE, header.length))

    def _runs_behind(self) -> list[Run]:
        """The runs of frames behind the damage at `pos` that belong to this log."""
        here = Run(0, self.pos, 0, self.entry_id, 0, self.publish_ms)
        slots = _index_slots(self.log.path)
        found: list[Run] = []
        pos = self.pos + self._distance(self.pos, self.crc, self.entry_id)
        while (pos := self._next_header(pos)) >= 0:
            run, crc = self._run_at(pos, slots)
            if run is None:
                pos += 8
                continue
            if run.last <= self.last_known:
                found.append(run)
            pos = run.end
            if run.indexed:  # where it was written: the header behind it tells how far the damage goes
                pos += self._distance(pos, crc, run.last, 0)
        return best_runs(here, found)

    def _run_at(self, pos: int, slots: bytes) -> tuple[Run | None, int]:
        """The longest run of frames from `pos` on, if there is a whole one, and its last checksum."""
        start, first, last, ms, indexed = pos, -1, -1, 0, 0
        first_ms, crc = 0, 0
        while pos < self.end:
            try:
                header, _ = self._read(pos)
            except CorruptionError:
                break
            place = _place(slots, header)
            if place not in (0, pos):
                break  # this very frame was written elsewhere
            if first < 0:
                first, first_ms = header.entry_id, header.publish_time
            elif header.prev_crc != crc or header.entry_id != last + 1 or header.publish_time < ms:
                break
            last, ms, crc = header.entry_id, header.publish_time, header.crc
            indexed += place == pos
            pos += header.length
        return (Run(start, pos, first, last, first_ms, ms, indexed) if first >= 0 else None), crc

    def _distance(self, pos: int, crc: int, entry_id: int, least: int = 8) -> int:
        """How far to step from a damaged frame: over all of it if its header is intact, never into it."""
        try:
            buf, at = self._frame_at(pos)
            header = read_header(buf, at, min(at + self.end - pos, len(buf)))
        except CorruptionError:
            return least
        return header.length if header.prev_crc == crc and header.entry_id == entry_id + 1 else least

    def record_hole(self, offset: int, end_offset: int, last_entry_id: int, reason: str) -> None:
        """Note the lost entries, with empty slots that keep the index sorted."""
        first = self.entry_id + 1
        delta = min(self.publish_ms - self.base_ms, _U32)
        empty = pack_slot(offset, delta, self.messages & _U32, 0, 0, 0, 0)
        self.slots += empty * (last_entry_id - self.entry_id)
        self.entry_id = last_entry_id
        self.holes.append(Hole(offset, end_offset, first, last_entry_id, reason))

    def _next_header(self, pos: int) -> int:
        """The next offset at or behind `pos` with a frame header; -1 for none."""
        while pos + MIN_FRAME_SIZE <= self.end:
            data = self.log.next_data(pos)
            if data < 0:
                return -1
            pos = max(pos, data & ~7)
            buf, at = self.log.at(pos, min(log_window.WINDOW, self.end - pos))
            found = next_frame(buf, at, min(len(buf), at + self.end - pos), at + self.end - pos)
            if found >= 0:
                return pos + found - at
            # Headers across the end of this window are seen by the next.
            pos = (pos + len(buf) - at - HEADER_SIZE + 8) & ~7
        return -1


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

    Raises:
        FileNotFoundError: no such file.
    """
    log = LogWindow(path)
    try:
        scanner = Scanner(log, log.size if end is None else end, chain_seed, base_publish_ms)
        scanner.pos = start
        scanner.entry_id = first_entry_id - 1
        if end is not None and last_entry_id >= 0:
            scanner.last_known = last_entry_id
        if is_chain_only:
            scanner.take_chain()
        else:
            scanner.run()
        if end is not None and last_entry_id > scanner.entry_id:
            scanner.record_hole(scanner.pos, end, last_entry_id, scanner.stop_reason or "file was cut")
        return scanner.result()
    finally:
        log.close()


def _index_slots(log: str) -> bytes:
    """The slots of the index beside a log, as they are; empty if there is none."""
    directory, name = os.path.split(log)
    ledger = parse_ledger(name)
    try:
        fd = disk.DISK.open_file(index_path(directory, ledger or 0), os.O_RDONLY)
    except OSError:
        return b""
    try:
        return disk.DISK.pread(fd, os.fstat(fd).st_size, 0)[SLOTS_OFFSET:]
    finally:
        os.close(fd)


def _place(slots: bytes, header: FrameHeader) -> int:
    """Where the index says this very frame lies; 0 if it does not know it."""
    at = header.entry_id * SLOT_SIZE
    if at + SLOT_SIZE > len(slots):
        return 0
    slot = SLOT.unpack_from(slots, at)
    return int(slot[0]) << 3 if slot[6] == header.crc else 0
