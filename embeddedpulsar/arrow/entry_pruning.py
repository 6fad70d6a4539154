"""Which entries of a range can have messages with given keys or event times, found without reading them."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from embeddedpulsar._engine.format.frame import (
    CODEC_NONE,
    FLAG_CHUNK,
    FLAG_EVENT_TIMES,
    FLAG_KEYS,
    FLAG_ORDERING_KEYS,
    FLAG_PROPERTIES,
    FLAG_TXN,
    HEADER_SIZE,
    TRAILER_SIZE,
)
from embeddedpulsar._engine.format.key_hash import sticky_key_hash
from embeddedpulsar._engine.format.segment_header import SLOT_SIZE, slot_offset
from embeddedpulsar._engine.log.segment import Segment
from embeddedpulsar.arrow.cold_table import cold_table
from embeddedpulsar.arrow.plan import EntryRange, part_of
from embeddedpulsar.exceptions import StorageError
from embeddedpulsar.records import NamedTuple

_GAP_BYTES: Final = 64 << 10
"""Fewer bytes between two entries are read with them: to map a range costs as much."""
_VARIABLE: Final = (FLAG_KEYS, FLAG_ORDERING_KEYS, FLAG_PROPERTIES)
"""The columns between the value column and that of event times."""
_INT: Final = struct.Struct("<i").unpack_from
# Words of 32 bits of a slot, and of a frame.
_SLOT_WORDS, _SLOT_HASH, _SLOT_CRC = SLOT_SIZE // 4, 3, 5
_LENGTH, _CRC, _CODEC, _FLAGS, _ENTRY_ID, _COUNT, _METADATA_LENGTH, _HASH = 0, 1, 4, 5, 6, 10, 11, 15


@dataclass(frozen=True, slots=True)
class Wanted:
    """What messages must have.

    Attributes:
        keys: one of these; None for any key or none.
        start_ms, end_ms: an event time in [start_ms, end_ms); None for any or none, or for an open side.
    """

    keys: frozenset[bytes] | None = None
    start_ms: int | None = None
    end_ms: int | None = None

    @property
    def is_timed(self) -> bool:
        """Whether messages must have an event time."""
        return self.start_ms is not None or self.end_ms is not None

    @property
    def times(self) -> tuple[int, int]:
        """The first event time, and the first one that is too late."""
        return (
            1 if self.start_ms is None else max(self.start_ms, 1),
            1 << 63 if self.end_ms is None else self.end_ms,
        )


ANYTHING: Final = Wanted()


def with_wanted(planned: EntryRange, wanted: Wanted) -> list[EntryRange]:
    """The parts of a range that can have messages that are wanted, in order.

    An entry is left out if it has no keys; if it is one message without an ordering key, whose hash in the
    index is another one; if its columns are neither compressed nor encrypted, and these keys or event times
    are not in them; or if it has no event times. Of an offloaded ledger, the statistics of its table say it.
    The range stays whole where index and frames disagree.
    """
    keys = wanted.keys
    if keys is not None and b"" in keys:
        wanted = replace(wanted, keys=None)
    if wanted == ANYTHING:
        return [planned]
    try:
        if not os.path.exists(planned.path):
            return _of_table(planned, wanted)
        segment = Segment.open(os.path.dirname(planned.path), planned.ledger_id)
        found = _entries(segment, planned)
        kept = [] if found is None else _kept(segment.data, found, wanted)
    except (OSError, StorageError, IndexError):  # the read reports damage
        return [planned]
    return [planned] if found is None else list(_runs(planned, found, kept))


def _of_table(planned: EntryRange, wanted: Wanted) -> list[EntryRange]:
    table = cold_table(planned)
    if table is None:
        return [planned]
    first, end = wanted.times
    spans = table.spans(wanted.keys, (first, end - 1) if wanted.is_timed else None)
    parts = [part_of(planned, *span) for span in spans]
    return [part for part in parts if part is not None]


class _Entries(NamedTuple):
    """Entries of a range: where their frames are, and a column for each word that is needed of them."""

    log: Any
    starts: Any
    ends: Any
    codecs: Any
    flags: Any
    counts: Any
    hashes: Any
    columns: Any

    def has(self, flags: int) -> Any:
        """Which entries have one of the flags."""
        return pc.not_equal(pc.bit_wise_and(self.flags, pa.scalar(flags, pa.uint32())), 0)

    def take(self, rows: Any) -> _Entries:
        """Some of the entries."""
        return _Entries(self.log, *(column.take(rows) for column in self[1:]))


def _entries(segment: Segment, planned: EntryRange) -> _Entries | None:
    """The entries of a range by its index; None if the frames say something else."""
    raw = bytes(segment.index.data[slot_offset(planned.first_entry) : slot_offset(planned.end_entry)])
    count = planned.end_entry - planned.first_entry
    if len(raw) != SLOT_SIZE * count or planned.end_offset > len(segment.view):
        return None
    slots, log = _words(raw), _words(segment.view[: planned.end_offset])
    each = _counting(count, 0, _SLOT_WORDS)
    starts = pc.multiply(slots.take(each).cast(pa.int64()), 8)
    frames = pc.divide(starts, 4)

    def of_frame(word: int) -> Any:
        return log.slice(word).take(frames)

    ends = pc.add(starts, of_frame(_LENGTH).cast(pa.int64()))
    wanted_ends = pa.concat_arrays([starts.slice(1), pa.array([planned.end_offset], pa.int64())])
    hashes = of_frame(_HASH)
    for one, other in (
        (ends, wanted_ends),
        (of_frame(_CRC), slots.slice(_SLOT_CRC).take(each)),
        (hashes, slots.slice(_SLOT_HASH).take(each)),
        (of_frame(_ENTRY_ID), _counting(count, planned.first_entry).cast(pa.uint32())),
    ):
        if not one.equals(other):
            return None
    if starts[0].as_py() != planned.first_offset:
        return None
    metadata = pc.bit_wise_and(of_frame(_METADATA_LENGTH), pa.scalar(0xFFFF, pa.uint32()))
    return _Entries(
        log,
        starts,
        ends,
        pc.shift_right(of_frame(_CODEC), pa.scalar(24, pa.uint32())),
        of_frame(_FLAGS),
        of_frame(_COUNT),
        hashes,
        pc.add(pc.add(starts, HEADER_SIZE), metadata.cast(pa.int64())),
    )


def _words(data: Any) -> Any:
    buffer = pa.py_buffer(data)
    return pa.Array.from_buffers(pa.uint32(), buffer.size // 4, [None, buffer])


def _kept(data: Any, found: _Entries, wanted: Wanted) -> list[int]:
    """The numbers of the entries that can have what is wanted."""
    is_special, is_one = found.has(FLAG_CHUNK | FLAG_TXN), pc.equal(found.counts, 1)
    is_clear = pc.and_not(pc.equal(found.codecs, CODEC_NONE), is_special)
    may = pc.greater(found.starts, 0)
    looked_at = pc.invert(may)
    if wanted.keys is not None:
        hashes = pa.array([sticky_key_hash(key) for key in wanted.keys], pa.uint32())
        is_hashed = pc.and_not(is_one, found.has(FLAG_ORDERING_KEYS))
        may_match = pc.or_(pc.invert(is_hashed), pc.is_in(found.hashes, hashes))
        may = pc.and_(found.has(FLAG_KEYS), may_match)
        looked_at = pc.and_not(is_clear, is_hashed)
    if wanted.is_timed:
        may = pc.and_(may, found.has(FLAG_EVENT_TIMES))
        looked_at = pc.or_(looked_at, pc.and_not(is_clear, is_one))
        rows = pc.indices_nonzero(pc.and_(pc.and_(may, is_clear), is_one))
        first, end = wanted.times
        times = _single_times(found.take(rows))
        is_out = pc.or_(pc.less(times, first), pc.greater_equal(times, pa.scalar(min(end, (1 << 63) - 1))))
        may = pc.and_not(may, pc.is_in(_counting(len(may)), rows.filter(is_out).cast(pa.int64())))
    kept = pc.indices_nonzero(pc.or_(may, is_special))
    entries, looks = found.take(kept), looked_at.take(kept).to_pylist()
    columns = (kept, entries.columns, entries.ends, entries.counts, entries.flags)
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return [
        number
        for look, (number, at, end, count, flags) in zip(looks, rows, strict=True)
        if not look or _has_wanted(data, at, end, count, flags, wanted)
    ]


def _counting(count: int, first: int = 0, step: int = 1) -> Any:
    return pc.cumulative_sum(pa.repeat(pa.scalar(step, pa.int64()), count), start=first - step)


def _single_times(found: _Entries) -> Any:
    """The event times of entries of one message, whose columns are in the clear."""
    at = found.columns
    for flag in (0, *_VARIABLE):
        length = found.log.slice(1).take(pc.divide(at, 4)).cast(pa.int64())
        width = pc.multiply(pc.divide(pc.add(length, 15), 8), 8)  # two offsets, the bytes, padding
        at = pc.add(at, pc.if_else(found.has(flag), width, 0) if flag else width)
    low, high = (found.log.slice(word).take(pc.divide(at, 4)).cast(pa.int64()) for word in (0, 1))
    return pc.bit_wise_or(pc.shift_left(high, 32), low)


def _has_wanted(data: Any, at: int, end: int, count: int, flags: int, wanted: Wanted) -> bool:
    """Whether an entry, whose columns begin at `at` in the clear, can have what is wanted."""
    width = (4 * (count + 1) + 7) & ~7
    limit = end - TRAILER_SIZE
    try:
        for flag in (0, *_VARIABLE):
            if flag & flags or not flag:
                first = at + width
                last = first + _INT(data, first - width + 4 * count)[0]
                if not at < first <= last <= limit:
                    return True  # it is damaged: the read finds that out
                if flag == FLAG_KEYS and wanted.keys is not None:
                    if not any(data.find(key, first, last) >= 0 for key in wanted.keys):
                        return False
                at = (last + 7) & ~7
        if not wanted.is_timed:
            return True
        first_ms, end_ms = wanted.times
        return any(first_ms <= time < end_ms for time in struct.unpack_from(f"<{count}q", data, at))
    except struct.error:
        return True


def _runs(planned: EntryRange, found: _Entries, kept: list[int]) -> Iterator[EntryRange]:
    """The kept entries as ranges, with what lies between two of them where that is little."""
    rows = pa.array(kept, pa.int64())
    starts, ends = found.starts.take(rows).to_pylist(), found.ends.take(rows).to_pylist()
    count = len(found.starts)
    begin = 0
    for number, row in enumerate(kept):
        if number + 1 < len(kept) and starts[number + 1] - ends[number] < _GAP_BYTES:
            continue
        yield replace(
            planned,
            first_entry=planned.first_entry + kept[begin],
            end_entry=planned.first_entry + row + 1,
            first_offset=starts[begin],
            end_offset=ends[number],
            skip=0 if kept[begin] else planned.skip,
            keep=planned.keep if row == count - 1 else 0,
        )
        begin = number + 1
