"""The messages of a ledger as a file of Parquet, with the columns of a batch read and the place of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from embeddedpulsar.arrow import schema as names
from embeddedpulsar.arrow.columns import record_batches
from embeddedpulsar.arrow.schema import ALL_COLUMNS, PLACE_COLUMNS, arrow_schema

if TYPE_CHECKING:
    from embeddedpulsar.arrow.mapped_segment import DamageHandler, Source
    from embeddedpulsar.arrow.plan import EntryRange

COLUMNS: Final = (*ALL_COLUMNS, *PLACE_COLUMNS)
_ROWS: Final = 16_384
_LARGE: Final = 65_536
_GROUP_ROWS: Final = 1 << 17
_GROUP_BYTES: Final = 32 << 20
_REPEATED: Final = [names.TOPIC, names.PARTITION, names.PRODUCER_NAME, names.LEDGER_ID]
_WITH_STATISTICS: Final = [
    *(names.KEY, names.TOPIC, names.PUBLISH_TIME, names.EVENT_TIME, names.PARTITION, names.SEQUENCE_ID),
    *(names.LEDGER_ID, names.ENTRY_ID),
]


def write_messages(opened: Iterable[tuple[EntryRange, Source]], out: Any, on_damage: DamageHandler) -> int:
    """Write the messages of a ledger; returns how many there are.

    Raises:
        CorruptionError, CryptoError, NotImplementedError: see `record_batches`.
    """
    rows = 0
    with pq.ParquetWriter(
        out,
        arrow_schema(COLUMNS),
        compression="zstd",
        use_dictionary=_REPEATED,
        write_statistics=_WITH_STATISTICS,
        write_page_checksum=True,
    ) as writer:
        group: list[Any] = []
        size = 0
        for batch in record_batches(opened, COLUMNS, rows=_ROWS, large=_LARGE, on_damage=on_damage):
            rows += batch.num_rows
            group.append(batch)
            size += batch.nbytes
            if size >= _GROUP_BYTES or sum(one.num_rows for one in group) >= _GROUP_ROWS:
                _write(writer, group)
                group, size = [], 0
        if group:
            _write(writer, group)
    return rows


def _write(writer: Any, group: list[Any]) -> None:
    table = pa.Table.from_batches(group)
    writer.write_table(table, row_group_size=max(1, table.num_rows))
