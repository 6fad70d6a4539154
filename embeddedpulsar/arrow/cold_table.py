"""Rows of offloaded ledgers, taken from their table of messages without fetching the log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from embeddedpulsar.arrow import schema as names
from embeddedpulsar.cold.fetching import MESSAGES, refusal
from embeddedpulsar.cold.location import LocationError, location_of
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.storage.cold_ledger import offloaded_ledger

if TYPE_CHECKING:
    from embeddedpulsar.arrow.plan import EntryRange
    from embeddedpulsar.storage.cold_ledger import ColdLedger


class ColdTable:
    """The table of messages of the ledger of a range. Only the columns that are asked for, and the row groups
    that the range covers, are read; checksums of pages are verified.

    Args:
        planned: what is to be read.
        note: of its ledger, which has such a table.
    """

    def __init__(self, planned: EntryRange, note: ColdLedger) -> None:
        self._planned: Final = planned
        self._note: Final = note

    def batches(self, columns: tuple[str, ...], rows: int) -> Iterator[Any]:
        """The messages of the range, in batches of at most so many rows.

        Raises:
            ColdReadError: the table cannot be read.
        """
        note, schema = self._note, names.arrow_schema(columns)
        table = note.object_named(MESSAGES)
        assert table is not None
        wanted = columns
        if not self._is_whole:
            wanted = tuple(dict.fromkeys((*columns, names.ENTRY_ID, names.BATCH_INDEX)))
        try:
            with location_of(note.location).open(table.name) as opened:
                file = pq.ParquetFile(opened, page_checksum_verification=True)
                groups = [group for group in range(file.num_row_groups) if self._covers(file.metadata, group)]
                for batch in file.iter_batches(rows, row_groups=groups, columns=list(wanted)):
                    kept = batch if self._is_whole else batch.filter(self._mask(batch))
                    if kept.num_rows:
                        yield pa.RecordBatch.from_arrays(
                            [kept.column(name) for name in columns], schema=schema
                        )
        except (LocationError, InvalidConfiguration, OSError, pa.ArrowException) as error:
            raise refusal(note, str(error).strip()) from error

    @property
    def _is_whole(self) -> bool:
        planned = self._planned
        is_cut = planned.first_entry or planned.skip or planned.keep
        return not is_cut and planned.end_entry >= self._note.entries

    def _covers(self, metadata: Any, group: int) -> bool:
        """Whether a row group may have rows of the range, by the statistics of its entries."""
        at = metadata.schema.names.index(names.ENTRY_ID)
        found = metadata.row_group(group).column(at).statistics
        if found is None or not found.has_min_max:
            return True
        planned = self._planned
        return bool(found.max >= planned.first_entry and found.min < planned.end_entry)

    def _mask(self, batch: Any) -> Any:
        planned, entries = self._planned, batch.column(names.ENTRY_ID)
        mask = pc.and_(pc.greater_equal(entries, planned.first_entry), pc.less(entries, planned.end_entry))
        if planned.skip or planned.keep:
            indexes = pc.max_element_wise(batch.column(names.BATCH_INDEX), 0)
            for is_out, entry, limit in (
                (pc.less, planned.first_entry, planned.skip),
                (pc.greater_equal, planned.end_entry - 1, planned.keep),
            ):
                if limit:
                    cut = pc.and_(pc.equal(entries, entry), is_out(indexes, limit))
                    mask = pc.and_not(mask, cut)
        return mask


def cold_table(planned: EntryRange) -> ColdTable | None:
    """The table of a range whose log is not here; None if the log is here, or there is no table."""
    if os.path.exists(planned.path):
        return None
    note = offloaded_ledger(os.path.dirname(planned.path), planned.ledger_id)
    return ColdTable(planned, note) if note is not None and note.rows >= 0 else None
