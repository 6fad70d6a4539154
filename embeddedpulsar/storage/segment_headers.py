"""The header of a segment: as it was written or, where both copies are damaged, derived from what is left.

Its fields can be found elsewhere: the first frame names the chain's seed, the index what its times count
from, the file its size, and the log before where that one ends. Where the first frame is damaged, too, and
the index knows none of the next, nothing says that the bytes are of this ledger at all: it is skipped.
"""

from __future__ import annotations

import os
from typing import Final

from embeddedpulsar._engine.format.frame import FrameHeader
from embeddedpulsar._engine.format.segment_header import (
    FIRST_FRAME_OFFSET,
    INDEX_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    SLOT,
    SLOTS_OFFSET,
    SegmentHeader,
    parse_index_header,
    parse_segment_header,
)
from embeddedpulsar._engine.platform import descriptors, disk
from embeddedpulsar.damage import SEGMENT_HEADER, Damage
from embeddedpulsar.exceptions import (
    CorruptionError,
    ForeignFileError,
    UnsupportedFormatVersion,
)
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.storage.cold_ledger import offloaded_ledger
from embeddedpulsar.storage.filenames import index_path, ledgers_of, log_path
from embeddedpulsar.storage.recovery.log_window import LogWindow

_REMEDY: Final = "put a good copy of the file in its place; until then what is in it is skipped"
_DERIVED: Final = "it was derived from the frames; a good copy of the file in its place ends this report"
_NO_ID: Final = bytes(16)
_REMEMBERED: Final = 64
_MOST_ASKED: Final = 64
"""Entries the index is asked for where the first frame is damaged, too."""
_derived: Final[dict[tuple[str, FrameHeader], SegmentHeader]] = {}
"""By path and first frame: deriving reads the ledger before, which never changes again."""


class FoundHeader(NamedTuple):
    """A header; `damage` says what is wrong with the one in the file, if it was derived, else it is empty."""

    header: SegmentHeader
    damage: str = ""

    def report(self, path: str) -> Damage:
        """The damage report of a derived header: nothing is lost by it."""
        return Damage(path, self.header.ledger_id, 0, -1, 0, 0, self.damage, SEGMENT_HEADER)


def read_segment_header(directory: str, ledger_id: int) -> SegmentHeader:
    """The header of a ledger's segment as it was written.

    Raises:
        FileNotFoundError: trimmed, or lost.
        CorruptionError: neither copy is intact, or it is another ledger's.
        UnsupportedFormatVersion: a newer release wrote it.
    """
    path = log_path(directory, ledger_id)
    try:
        page = disk.DISK.read_file(path, SEGMENT_HEADER_SIZE)
    except FileNotFoundError:
        note = offloaded_ledger(directory, ledger_id)
        if note is None:
            raise
        page = note.page()
    return checked_header(page, path, ledger_id)


def checked_header(page: bytes, path: str, ledger_id: int) -> SegmentHeader:
    """The header in the first page of the segment `path`; errors as of `read_segment_header`."""
    try:
        header = parse_segment_header(page)
    except (CorruptionError, ForeignFileError) as e:
        # Under this name it can only be a segment, so what is not one is a damaged one.
        raise CorruptionError(
            path=path, offset=e.offset, reason=e.reason, remedy=e.remedy or _REMEDY
        ) from None
    except UnsupportedFormatVersion as e:
        raise e.at(path) from None
    if header.ledger_id != ledger_id:
        raise CorruptionError(
            path=path,
            reason=f"the header says ledger {header.ledger_id}",
            offset=0,
            remedy="the file was renamed or copied; give it its own name back",
        )
    return header


def find_segment_header(directory: str, ledger_id: int) -> FoundHeader:
    """The header of a ledger's segment, derived if the one in the file is damaged.

    Deriving costs a scan of the ledger before, once per process.

    Raises:
        FileNotFoundError: trimmed, or lost.
        CorruptionError: it cannot be derived either, or it is another ledger's.
        UnsupportedFormatVersion: a newer release wrote it.
    """
    try:
        return FoundHeader(read_segment_header(directory, ledger_id))
    except CorruptionError as e:
        if is_of_another(e):
            raise
        return FoundHeader(_derive(directory, ledger_id, e), f"{e.reason}; {_DERIVED}")


def is_of_another(error: CorruptionError) -> bool:
    """Whether the header is intact, and that of another ledger: then the frames are not those of this one."""
    return error.reason.startswith("the header says")


def is_never_written(path: str) -> bool:
    """Whether there is nothing in a segment: its creator died before it wrote the header."""
    log = LogWindow(path)
    try:
        return log.is_empty_behind(0, log.size)
    finally:
        log.close()


def _derive(directory: str, ledger_id: int, error: CorruptionError) -> SegmentHeader:
    path = log_path(directory, ledger_id)
    found = _witness(directory, ledger_id)
    if found is None:
        reason = f"{error.reason}, and neither its first frame nor its index tells what it was"
        raise CorruptionError(path=path, offset=0, reason=reason, remedy=_REMEDY) from None
    known = _derived.get((path, found.frame))
    if known is not None:
        return known
    header = SegmentHeader(
        ledger_id=ledger_id,
        created_ms=found.base_ms,
        base_publish_ms=found.base_ms,
        boot_id=_NO_ID,
        store_id=_NO_ID,
        topic_incarnation=0,
        chain_seed=found.seed,
        log_size=os.stat(path).st_size,
        index_capacity=found.capacity,
    )
    header = _behind(directory, header)
    if len(_derived) >= _REMEMBERED:
        _derived.clear()
    _derived[path, found.frame] = header
    return header


class _Witness(NamedTuple):
    """A frame that proves which ledger the bytes belong to, and what it and the index tell of the header."""

    frame: FrameHeader
    seed: int
    base_ms: int
    capacity: int


def _witness(directory: str, ledger_id: int) -> _Witness | None:
    """The first frame if it is intact; else one of the next that the index knows at their place."""
    slots, capacity = _index(directory, ledger_id)
    log = LogWindow(log_path(directory, ledger_id))
    try:
        frame = _frame(log, FIRST_FRAME_OFFSET, 0)
        if frame is not None:
            base_ms = frame.publish_time
            if slots:
                _, delta, *_, crc = SLOT.unpack_from(slots)
                base_ms -= delta if crc == frame.crc else 0
            return _Witness(frame, frame.prev_crc, base_ms, capacity)
        for entry, (offset, delta, *_, crc) in enumerate(SLOT.iter_unpack(slots)):
            frame = _frame(log, offset << 3, entry)
            if frame is not None and frame.crc == crc:
                return _Witness(frame, 0, frame.publish_time - delta, capacity)
    finally:
        log.close()
    return None


def _frame(log: LogWindow, pos: int, entry_id: int) -> FrameHeader | None:
    try:
        frame, _ = log.read_frame(pos, log.size)
    except CorruptionError:
        return None
    return frame if frame.entry_id == entry_id else None


def _index(directory: str, ledger_id: int) -> tuple[bytes, int]:
    """The first slots of the index, as they are, and for how many entries it was made (0: unknown)."""
    try:
        data = disk.DISK.read_file(index_path(directory, ledger_id), SLOTS_OFFSET + _MOST_ASKED * SLOT.size)
    except FileNotFoundError:
        return b"", 0
    slots = data[SLOTS_OFFSET:]
    slots = slots[: len(slots) // SLOT.size * SLOT.size]
    try:
        return slots, parse_index_header(data[:INDEX_HEADER_SIZE]).capacity
    except (CorruptionError, ForeignFileError):
        return slots, 0


def _behind(directory: str, header: SegmentHeader) -> SegmentHeader:
    """`header` with what it says of the ledger before: the next lower file, and where its frames end."""
    older = [ledger for ledger in ledgers_of(descriptors.names_in(directory)) if ledger < header.ledger_id]
    if not older:
        return header
    previous = max(older)
    path = log_path(directory, previous)
    header = header._replace(prev_ledger_id=previous)
    try:
        found = read_segment_header(directory, previous)
        seed, base_ms = found.chain_seed, found.base_publish_ms
    except FileNotFoundError:
        return header._replace(prev_ledger_id=0)  # trimmed meanwhile
    except CorruptionError:
        witness = _witness(directory, previous)
        if witness is None:
            return header
        seed, base_ms = witness.seed, witness.base_ms
    late = descriptors.late_import("embeddedpulsar.storage.recovery.chain_scan")
    scan = late.scan_log(path, chain_seed=seed, base_publish_ms=base_ms)
    return header._replace(
        prev_end_offset=scan.end_offset,
        prev_last_entry_id=scan.last_entry_id,
        prev_last_crc=scan.last_crc,
        prev_messages=scan.messages,
    )
