"""Planned ranges as record batches, or as one table."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from embeddedpulsar.arrow.columns import ColumnBuilder
from embeddedpulsar.arrow.entry_range import EntryRange
from embeddedpulsar.arrow.mapped_segment import MappedSegment
from embeddedpulsar.arrow.schema import arrow_schema
from embeddedpulsar.arrow.segment_frames import DamageHandler, FrameGroup, frame_groups
from embeddedpulsar.exceptions import CorruptionError

_TABLE_ROWS: Final = 1 << 17
_COUNT, _ENTRY_ID = 10, 8


def record_batches(
    opened: Iterable[tuple[EntryRange, MappedSegment]],
    columns: tuple[str, ...],
    *,
    rows: int,
    large: int,
    on_damage: DamageHandler,
) -> Iterator[Any]:
    """The messages of ranges as record batches of these columns, in order.

    Buffers of large entries are those of the map; they stay valid as long as the batch is referenced, also
    when the segment is trimmed meanwhile.

    Args:
        opened: what to read, as `open_ahead` gives it.
        columns: names out of `schema.ALL_COLUMNS`.
        rows: small entries are gathered into batches of about this many rows.
        large: entries of this many messages or more become batches of their own, without a copy.
        on_damage: called with what is skipped; may raise.

    Raises:
        CryptoError: an entry cannot be decrypted.
        CorruptionError: the file is shorter than what was committed, or a column is malformed.
        NotImplementedError: an entry uses a feature that only consumers understand.
    """
    for planned, segment in opened:
        builder = ColumnBuilder(planned, columns)
        for group in frame_groups(planned, segment, rows=rows, large=large, on_damage=on_damage):
            chunks = _chunks(planned, builder, group)
            arrays = [parts[0] if len(parts) == 1 else pa.concat_arrays(parts) for parts in chunks]
            batch = _cut(planned, group, pa.RecordBatch.from_arrays(arrays, schema=builder.schema))
            if batch.num_rows:
                yield batch


def table(
    opened: Iterable[tuple[EntryRange, MappedSegment]], columns: tuple[str, ...], on_damage: DamageHandler
) -> Any:
    """The messages of ranges as a table; payloads and keys of batches are chunks of the map."""
    # Threads, one for each piece of 16 MiB, gained nothing where that was measured: two cores that share one
    # unit for the checksums, and half of the rest under the GIL.
    found = [arrow_schema(columns).empty_table()]
    for planned, segment in opened:
        builder = ColumnBuilder(planned, columns)
        for group in frame_groups(planned, segment, rows=_TABLE_ROWS, large=sys.maxsize, on_damage=on_damage):
            chunks = _chunks(planned, builder, group)
            arrays = [pa.chunked_array(parts) for parts in chunks]
            found.append(_cut(planned, group, pa.Table.from_arrays(arrays, schema=builder.schema)))
    return pa.concat_tables(found)


def _chunks(planned: EntryRange, builder: ColumnBuilder, group: FrameGroup) -> list[list[Any]]:
    try:
        return builder.chunks(group)
    except CorruptionError as error:
        raise error.at(planned.path) from None


def _cut(planned: EntryRange, group: FrameGroup, whole: Any) -> Any:
    """Without the messages of the first and last entry that are outside of the range."""
    if planned.keep and group.headers[-1][_ENTRY_ID] == planned.end_entry - 1:
        whole = whole.slice(0, group.rows - max(0, group.headers[-1][_COUNT] - planned.keep))
    if planned.skip and group.headers[0][_ENTRY_ID] == planned.first_entry:
        whole = whole.slice(min(planned.skip, group.headers[0][_COUNT]))
    return whole
