"""Reading a segment's frames one after another without believing anything but the frames.

Used where the tail word and the index cannot be trusted: recovery, the auditor, readers that met damage. The
index of the ledger is derived on the way. The one that is there is only asked, behind damage, which of the
frames found are where they were written (run_search.py).
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

from embeddedpulsar._engine.format.frame import (
    HEADER,
    HEADER_SIZE,
    MAGIC,
    METADATA_SIZE,
    MIN_FRAME_SIZE,
    TRAILER,
    TRAILER_SIZE,
    FrameHeader,
    verify_trailer,
)
from embeddedpulsar._engine.format.segment_header import FIRST_FRAME_OFFSET, MAX_COUNT, SLOT, pack_slot
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.storage.recovery import log_window
from embeddedpulsar.storage.recovery.log_window import LogWindow
from embeddedpulsar.storage.recovery.run_search import ANY_ENTRY, Edge, Run, RunSearch

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
        except CorruptionError:
            self.bad_trailers.append((pos + header.length - TRAILER_SIZE, header.length))

    def _runs_behind(self) -> list[Run]:
        """The runs of frames behind the damage at `pos` that belong to this log."""
        search = RunSearch(self.log, self.end, self.last_known, is_end_known=self.is_end_known)
        return search.behind(Edge(self.pos, self.entry_id, self.crc), self.publish_ms)

    def record_hole(self, offset: int, end_offset: int, last_entry_id: int, reason: str) -> None:
        """Note the lost entries, with empty slots that keep the index sorted."""
        first = self.entry_id + 1
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
        scanner.is_end_known = end is not None and end <= log.size
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
