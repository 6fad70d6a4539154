"""Rows of offloaded ledgers, taken from their table of messages without fetching the log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from embeddedpulsar.arrow import schema as names
from embeddedpulsar.arrow.engine import message_table

if TYPE_CHECKING:
    from embeddedpulsar.arrow.engine import EntryRange, MessageTable


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
