"""Which entries of a range can have messages with given keys: by hashes, and by the keys in the clear."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from embeddedpulsar.arrow.plan import EntryRange
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.frame import (
    CODEC_NONE,
    FLAG_CHUNK,
    FLAG_KEYS,
    FLAG_ORDERING_KEYS,
    FLAG_TXN,
    HEADER_SIZE,
    TRAILER_SIZE,
)
from embeddedpulsar.format.index import SLOT_SIZE, slot_offset
from embeddedpulsar.format.key_hash import sticky_key_hash
from embeddedpulsar.storage.segment import Segment

_GAP_BYTES: Final = 64 << 10
"""Fewer bytes between two entries are read with them: to map a range costs as much."""
_OFFSET: Final = struct.Struct("<i").unpack_from
# Words of 32 bits of a slot, and of a frame.
_SLOT_WORDS, _SLOT_HASH, _SLOT_CRC = SLOT_SIZE // 4, 3, 5
_LENGTH, _CRC, _CODEC, _FLAGS, _ENTRY_ID, _COUNT, _METADATA_LENGTH, _HASH = 0, 1, 4, 5, 6, 10, 11, 15


class _Entries(NamedTuple):
    """Entries of a range: where their frames are, and a column for each word that is needed of them."""

    starts: Any
    ends: Any
    codecs: Any
    flags: Any
    counts: Any
    hashes: Any
    metadata_lengths: Any


def with_keys(planned: EntryRange, keys: frozenset[bytes]) -> list[EntryRange]:
    """The parts of a range that can have messages with one of these keys, in order.

    An entry is left out if it has no keys; if it is one message without an ordering key, whose hash in the
    index is another one; or if its keys are neither compressed nor encrypted, and these are not among them.
    The range stays whole where index and frames disagree, and where its log is not here.
    """
    if b"" in keys or not os.path.exists(planned.path):
        return [planned]
    try:
        segment = Segment.open(os.path.dirname(planned.path), planned.ledger_id)
        found = _entries(segment, planned)
    except (FileNotFoundError, CorruptionError, IndexError):
        return [planned]
    return [planned] if found is None else list(_runs(planned, found, _kept(segment.data, found, keys)))


def _entries(segment: Segment, planned: EntryRange) -> _Entries | None:
    """The entries of a range by its index; None if the frames say something else."""
    raw = bytes(segment.index.data[slot_offset(planned.first_entry) : slot_offset(planned.end_entry)])
    count = planned.end_entry - planned.first_entry
    if len(raw) != SLOT_SIZE * count or planned.end_offset > len(segment.view):
        return None
    slots, log = _words(raw), _words(segment.view[: planned.end_offset])
    each = pa.array(range(0, _SLOT_WORDS * count, _SLOT_WORDS), pa.int64())
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
        (of_frame(_ENTRY_ID), pa.array(range(planned.first_entry, planned.end_entry), pa.uint32())),
    ):
        if not one.equals(other):
            return None
    if starts[0].as_py() != planned.first_offset:
        return None
    return _Entries(
        starts,
        ends,
        pc.shift_right(of_frame(_CODEC), pa.scalar(24, pa.uint32())),
        of_frame(_FLAGS),
        of_frame(_COUNT),
        hashes,
        pc.bit_wise_and(of_frame(_METADATA_LENGTH), pa.scalar(0xFFFF, pa.uint32())),
    )


def _words(data: Any) -> Any:
    buffer = pa.py_buffer(data)
    return pa.Array.from_buffers(pa.uint32(), buffer.size // 4, [None, buffer])


def _kept(data: Any, found: _Entries, keys: frozenset[bytes]) -> list[int]:
    """The numbers of the entries that can have one of the keys."""

    def has(flags: int) -> Any:
        return pc.not_equal(pc.bit_wise_and(found.flags, pa.scalar(flags, pa.uint32())), 0)

    hashes = pa.array([sticky_key_hash(key) for key in keys], pa.uint32())
    is_special, has_keys = has(FLAG_CHUNK | FLAG_TXN), has(FLAG_KEYS)
    is_hashed = pc.and_not(pc.equal(found.counts, 1), has(FLAG_ORDERING_KEYS))
    may_match = pc.or_(pc.invert(is_hashed), pc.is_in(found.hashes, hashes))
    kept = pc.or_(is_special, pc.and_(has_keys, may_match))
    is_clear = pc.and_not(pc.equal(found.codecs, CODEC_NONE), pc.or_(is_special, is_hashed))
    rows = pc.indices_nonzero(kept)
    columns = (is_clear, found.starts, found.ends, found.counts, found.metadata_lengths)
    looked_at = [column.take(rows).to_pylist() for column in columns]
    return [
        row
        for row, clear, start, end, count, length in zip(rows.to_pylist(), *looked_at, strict=True)
        if not clear or _has_key(data, start + HEADER_SIZE + length, end - TRAILER_SIZE, count, keys)
    ]


def _has_key(data: Any, at: int, end: int, count: int, keys: frozenset[bytes]) -> bool:
    """Whether one of the keys is among the bytes of the key column; columns begin at `at`."""
    width = (4 * (count + 1) + 7) & ~7
    try:
        keys_at = at + width + ((_OFFSET(data, at + 4 * count)[0] + 7) & ~7)
        first = keys_at + width
        last = first + _OFFSET(data, keys_at + 4 * count)[0]
    except struct.error:
        return True
    if not at < first <= last <= end:
        return True  # it is damaged: the read finds that out
    return any(data.find(key, first, last) >= 0 for key in keys)


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
