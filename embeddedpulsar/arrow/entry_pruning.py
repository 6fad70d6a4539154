"""What is known of rows without reading entries.

Which entries of a range can have messages with given keys or event times. The rows of offloaded ledgers,
taken from their table of messages without fetching the log.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from embeddedpulsar.arrow import schema as names
from embeddedpulsar.arrow.engine import (
    CODEC_NONE,
    FLAG_CHUNK,
    FLAG_EVENT_TIMES,
    FLAG_KEY_BYTES,
    FLAG_KEYS,
    FLAG_ORDERING_KEYS,
    FLAG_PROPERTIES,
    HEADER_SIZE,
    SLOT_SIZE,
    TRAILER_SIZE,
    EntryRange,
    Segment,
    message_table,
    part_of,
    sticky_key_hash,
)
from embeddedpulsar.exceptions import StorageError
from embeddedpulsar.records import NamedTuple

if TYPE_CHECKING:
    from embeddedpulsar.arrow.engine import MessageTable


class ColdTable:
    """The table of messages of the ledger of a range. Its bytes are compared with what was stored, as a
    whole, before they are parsed; only the columns that are asked for, and the row groups that the range
    covers, are decoded.

    Args:
        planned: what is to be read.
        table: of its ledger.
    """

    def __init__(self, planned: EntryRange, table: MessageTable) -> None:
        self._planned: Final = planned
        self._table: Final = table

    def batches(self, columns: tuple[str, ...], rows: int) -> Iterator[Any]:
        """The messages of the range, in batches of at most so many rows.

        Raises:
            ColdReadError: the table cannot be read.
        """
        schema, wanted = names.arrow_schema(columns), columns
        # To cut a range that begins or ends within the ledger takes the places of its messages.
        if not self._is_whole:
            wanted = tuple(dict.fromkeys((*columns, names.ENTRY_ID, names.BATCH_INDEX)))
        # The bytes were compared with what was stored. The checksums of pages find what happens to them
        # between that and the decoding.
        with self._table.opened(pa.ArrowException) as opened:
            file = pq.ParquetFile(opened, page_checksum_verification=True)
            # Row groups outside of the range are not even decompressed.
            groups = [group for group in range(file.num_row_groups) if self._covers(file.metadata, group)]
            for batch in file.iter_batches(rows, row_groups=groups, columns=list(wanted)):
                kept = batch if self._is_whole else batch.filter(self._mask(batch))
                if kept.num_rows:
                    yield pa.RecordBatch.from_arrays([kept.column(name) for name in columns], schema=schema)

    def spans(self, keys: frozenset[bytes] | None, times: tuple[int, int] | None) -> list[tuple[int, int]]:
        """Which entries can have one of these keys, and an event time in these limits, by the statistics of
        row groups: from the first of each pair up to, not including, the second.

        Args:
            keys: None for any key or none.
            times: the first and the last, in ms; None for any or none.

        Raises:
            ColdReadError: the table cannot be read.
        """
        pairs: list[tuple[int, int]] = []
        with self._table.opened(pa.ArrowException) as opened:
            # Only the end of the file is parsed here: statistics, no rows.
            metadata = pq.ParquetFile(opened).metadata
        # Row groups are in the order of entries. What statistics do not rule out stays: pruning may read too
        # much and never too little.
        for group in range(metadata.num_row_groups):
            column = _statistics(metadata, group, names.ENTRY_ID)
            has_key = keys is None or any(_may_have(metadata, group, names.KEY, key, key) for key in keys)
            # The column has microseconds. A message has whole milliseconds, so the last one of the limits
            # reaches up to 999 microseconds further.
            has_time = times is None or _may_have(
                metadata, group, names.EVENT_TIME, 1000 * times[0], 1000 * times[1] + 999
            )
            if has_key and has_time:
                first, last = (
                    (column.min_raw, column.max_raw) if column is not None else (0, self._table.entries - 1)
                )
                # A group may begin within the entry with which the one before ends, so neighbours overlap or
                # touch.
                if pairs and first <= pairs[-1][1]:
                    first = pairs.pop()[0]
                pairs.append((first, last + 1))
        return pairs

    @property
    def _is_whole(self) -> bool:
        planned = self._planned
        is_cut = planned.first_entry or planned.skip or planned.keep
        return not is_cut and planned.end_entry >= self._table.entries

    def _covers(self, metadata: Any, group: int) -> bool:
        """Whether a row group may have rows of the range, by the statistics of its entries."""
        entry_ids = _statistics(metadata, group, names.ENTRY_ID)
        planned = self._planned
        return entry_ids is None or bool(
            entry_ids.max >= planned.first_entry and entry_ids.min < planned.end_entry
        )

    def _mask(self, batch: Any) -> Any:
        planned, entries = self._planned, batch.column(names.ENTRY_ID)
        mask = pc.and_(pc.greater_equal(entries, planned.first_entry), pc.less(entries, planned.end_entry))
        if planned.skip or planned.keep:
            # A message that is no batch has the batch index -1, and is the first of its entry for `skip` and
            # `keep`.
            indexes = pc.max_element_wise(batch.column(names.BATCH_INDEX), 0)
            # `skip` cuts the start of the first entry and `keep` the end of the last; both may be one entry.
            for is_out, entry, limit in (
                (pc.less, planned.first_entry, planned.skip),
                (pc.greater_equal, planned.end_entry - 1, planned.keep),
            ):
                if limit:
                    cut = pc.and_(pc.equal(entries, entry), is_out(indexes, limit))
                    mask = pc.and_not(mask, cut)
        return mask


def _statistics(metadata: Any, group: int, name: str) -> Any:
    """The statistics of a column in a row group; None if they have no limits."""
    limits = metadata.row_group(group).column(metadata.schema.names.index(name)).statistics
    return limits if limits is not None and limits.has_min_max else None


def _may_have(metadata: Any, group: int, name: str, low: Any, high: Any) -> bool:
    """Whether a row group can have a value of at least `low` and at most `high` in a column."""
    limits = metadata.row_group(group).column(metadata.schema.names.index(name)).statistics
    if limits is None:
        return True
    if not limits.has_min_max:  # all are null, or the values are long
        return not (limits.has_null_count and limits.null_count == metadata.row_group(group).num_rows)
    return bool(limits.min_raw <= high and limits.max_raw >= low)


def cold_table(planned: EntryRange) -> ColdTable | None:
    """The table of a range whose log is not here; None if the log is here, or there is no table."""
    # A ledger may be offloaded and here at once: what is here needs no fetching.
    if os.path.exists(planned.path):
        return None
    table = message_table(planned.directory, planned.ledger_id)
    return None if table is None else ColdTable(planned, table)


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
    # A search for no bytes finds them in every entry: the empty key rules nothing out.
    keys = wanted.keys
    if keys is not None and b"" in keys:
        wanted = replace(wanted, keys=None)
    if wanted == ANYTHING:
        return [planned]
    try:
        # An offloaded ledger has no log here, and its index says nothing of keys.
        if not os.path.exists(planned.path):
            return _of_table(planned, wanted)
        segment = planned.segment()
        entries = _entries(segment, planned)
        # IndexError is Arrow's for a slot that leads out of the segment.
        kept = [] if entries is None else _kept(segment.data, entries, wanted)
    except (OSError, StorageError, IndexError):  # the read reports damage
        return [planned]
    return [planned] if entries is None else list(_runs(planned, entries, kept))


def _of_table(planned: EntryRange, wanted: Wanted) -> list[EntryRange]:
    table = cold_table(planned)
    if table is None:
        return [planned]
    # `times` excludes its end, and the statistics of Parquet include theirs.
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

    def select(self, rows: Any) -> _Entries:
        """Some of the entries."""
        return _Entries(self.log, *(column.take(rows) for column in self[1:]))


def _entries(segment: Segment, planned: EntryRange) -> _Entries | None:
    """The entries of a range by its index; None if the frames say something else."""
    # Neither the index nor the frames are read entry by entry: both become arrays of 32-bit words, and the
    # words of all entries that are wanted are taken together, in C.
    raw = segment.index.packed_slots(planned.first_entry, planned.end_entry)
    count = planned.end_entry - planned.first_entry
    # The index is shorter than what was committed, or the segment is: the read finds out which.
    if len(raw) != SLOT_SIZE * count or planned.end_offset > len(segment.view):
        return None
    slots, log = _words(raw), _words(segment.view[: planned.end_offset])
    each = _counting(count, 0, _SLOT_WORDS)
    # A slot begins with the offset of its frame divided by 8 (docs/format/index.md).
    starts = pc.multiply(slots.take(each).cast(pa.int64()), 8)
    frames = pc.divide(starts, 4)

    def of_frame(word: int) -> Any:
        return log.slice(word).take(frames)

    ends = pc.add(starts, of_frame(_LENGTH).cast(pa.int64()))
    wanted_ends = pa.concat_arrays([starts.slice(1), pa.array([planned.end_offset], pa.int64())])
    # The index promises nothing, so it is believed only where the frames say the same: each ends where the
    # next begins, and has the checksum, the hash of the key and the number that its slot has. The bodies are
    # not checked: the read does that, and what is left out is not read.
    hashes = of_frame(_HASH)
    for actual, expected in (
        (ends, wanted_ends),
        (of_frame(_CRC), slots.slice(_SLOT_CRC).take(each)),
        (hashes, slots.slice(_SLOT_HASH).take(each)),
        (of_frame(_ENTRY_ID), _counting(count, planned.first_entry).cast(pa.uint32())),
    ):
        if not actual.equals(expected):
            return None
    # The first slot leads to where the plan begins.
    if starts[0].as_py() != planned.first_offset:
        return None
    # The metadata length is the lower half of its word; the upper half is reserved.
    metadata = pc.bit_wise_and(of_frame(_METADATA_LENGTH), pa.scalar(0xFFFF, pa.uint32()))
    return _Entries(
        log,
        starts,
        ends,
        # The codec is the last byte of its word, behind magic and kind.
        pc.shift_right(of_frame(_CODEC), pa.scalar(24, pa.uint32())),
        of_frame(_FLAGS),
        of_frame(_COUNT),
        hashes,
        pc.add(pc.add(starts, HEADER_SIZE), metadata.cast(pa.int64())),
    )


def _words(data: Any) -> Any:
    buffer = pa.py_buffer(data)
    return pa.Array.from_buffers(pa.uint32(), buffer.size // 4, [None, buffer])


def _kept(data: Any, entries: _Entries, wanted: Wanted) -> list[int]:
    """The numbers of the entries that can have what is wanted."""
    # Chunks are kept: of a chunked message only the last part has a key, and the earlier ones are read with
    # it.
    is_special, is_one = entries.has(FLAG_CHUNK), pc.equal(entries.counts, 1)
    is_clear = pc.and_not(pc.equal(entries.codecs, CODEC_NONE), is_special)
    # All entries may match and none is looked at, until something is demanded.
    may = pc.greater(entries.starts, 0)
    looked_at = pc.invert(may)
    if wanted.keys is not None:
        hashes = pa.array([sticky_key_hash(key) for key in wanted.keys], pa.uint32())
        # The hash in the index is that of the first message's ordering key, or else key. Only for a single
        # message without an ordering key does it decide about the key; for all others it says nothing. Nor
        # for a key of bytes: the hash is theirs, and rows have their Base64.
        is_hashed = pc.and_not(is_one, entries.has(FLAG_ORDERING_KEYS | FLAG_KEY_BYTES))
        may_match = pc.or_(pc.invert(is_hashed), pc.is_in(entries.hashes, hashes))
        may = pc.and_(entries.has(FLAG_KEYS), may_match)
        # Entries of several messages, or with ordering keys, are searched for the bytes of a key, if they are
        # in the clear.
        looked_at = pc.and_not(is_clear, is_hashed)
    if wanted.is_timed:
        may = pc.and_(may, entries.has(FLAG_EVENT_TIMES))
        # The times of entries of several messages are looked at one by one.
        looked_at = pc.or_(looked_at, pc.and_not(is_clear, is_one))
        # Those of single messages are at a known place of their entry, so all of them are compared in C.
        rows = pc.indices_nonzero(pc.and_(pc.and_(may, is_clear), is_one))
        first, end = wanted.times
        times = _single_times(entries.select(rows))
        is_out = pc.or_(pc.less(times, first), pc.greater_equal(times, pa.scalar(min(end, (1 << 63) - 1))))
        may = pc.and_not(may, pc.is_in(_counting(len(may)), rows.filter(is_out).cast(pa.int64())))
    # What is special is kept whatever else was found.
    kept = pc.indices_nonzero(pc.or_(may, is_special))
    kept_entries, looks = entries.select(kept), looked_at.take(kept).to_pylist()
    columns = (kept, kept_entries.columns, kept_entries.ends, kept_entries.counts, kept_entries.flags)
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return [
        number
        for look, (number, at, end, count, flags) in zip(looks, rows, strict=True)
        # The one step of Python for each entry, and for those alone about which the index does not decide.
        if not look or _has_wanted(data, at, end, count, flags, wanted)
    ]


def _counting(count: int, first: int = 0, step: int = 1) -> Any:
    return pc.cumulative_sum(pa.repeat(pa.scalar(step, pa.int64()), count), start=first - step)


def _single_times(entries: _Entries) -> Any:
    """The event times of entries of one message, whose columns are in the clear."""
    # Past the value column and those of keys, ordering keys and properties, as far as an entry has them: the
    # second offset of each is the length of its one item.
    at = entries.columns
    for flag in (0, *_VARIABLE):
        length = entries.log.slice(1).take(pc.divide(at, 4)).cast(pa.int64())
        width = pc.multiply(pc.divide(pc.add(length, 15), 8), 8)  # two offsets, the bytes, padding
        at = pc.add(at, pc.if_else(entries.has(flag), width, 0) if flag else width)
    # Words are unsigned and 32 bits wide; a time is two of them, the lower one first.
    low, high = (entries.log.slice(word).take(pc.divide(at, 4)).cast(pa.int64()) for word in (0, 1))
    return pc.bit_wise_or(pc.shift_left(high, 32), low)


def _has_wanted(data: Any, at: int, end: int, count: int, flags: int, wanted: Wanted) -> bool:
    """Whether an entry, whose columns begin at `at` in the clear, can have what is wanted."""
    # A variable column of `count` items begins with `count` + 1 offsets, padded to 8 bytes; the last of them
    # is the size of the bytes behind.
    width = (4 * (count + 1) + 7) & ~7
    limit = end - TRAILER_SIZE
    try:
        for flag in (0, *_VARIABLE):
            if flag & flags or not flag:
                first = at + width
                last = first + _INT(data, first - width + 4 * count)[0]
                if not at < first <= last <= limit:
                    return True  # it is damaged: the read finds that out
                # The bytes of a key may be those of two neighbours, or part of a longer one: that keeps an
                # entry in vain.
                if flag == FLAG_KEYS and wanted.keys is not None:
                    if not any(data.find(key, first, last) >= 0 for key in wanted.keys):
                        return False
                at = (last + 7) & ~7
        if not wanted.is_timed:
            return True
        first_ms, end_ms = wanted.times
        # No event time is 0, which is before every first one.
        return any(first_ms <= time < end_ms for time in struct.unpack_from(f"<{count}q", data, at))
    except struct.error:
        return True


def _runs(planned: EntryRange, entries: _Entries, kept: list[int]) -> Iterator[EntryRange]:
    """The kept entries as ranges, with what lies between two of them where that is little."""
    rows = pa.array(kept, pa.int64())
    starts, ends = entries.starts.take(rows).to_pylist(), entries.ends.take(rows).to_pylist()
    count = len(entries.starts)
    begin = 0
    for number, row in enumerate(kept):
        # A gap of few bytes is read and not skipped.
        if number + 1 < len(kept) and starts[number + 1] - ends[number] < _GAP_BYTES:
            continue
        yield replace(
            planned,
            first_entry=planned.first_entry + kept[begin],
            end_entry=planned.first_entry + row + 1,
            first_offset=starts[begin],
            end_offset=ends[number],
            # The cuts of the range hold for its first and its last entry, if these are kept.
            skip=0 if kept[begin] else planned.skip,
            keep=planned.keep if row == count - 1 else 0,
        )
        begin = number + 1
