"""The two ends of a batch read: planning on the driver, record batches in the workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from embeddedpulsar.arrow.schema import SCHEMA_VERSION
from embeddedpulsar.spark.data_loss import DataLossPolicy
from embeddedpulsar.spark.filters import Pruning, prune
from embeddedpulsar.spark.log_plan import Task, plan_tasks
from embeddedpulsar.spark.options import ReadOptions, key_reader
from embeddedpulsar.spark.read_pins import pin_plan, pinned
from embeddedpulsar.spark.worker_memory import spare_modules

if TYPE_CHECKING:
    import pyarrow as pa

    from embeddedpulsar.arrow.typed_columns import Decoding


ROWS: Final = 16_384
"""Small entries are gathered into batches of about this many rows; fewer cost Spark more."""
LARGE_ENTRY: Final = 4_096
"""Entries of this many messages are worth a batch of their own, which is not copied."""


class LogPartition(InputPartition):
    """What one task reads. `value` is None in the partition Spark makes up when there is nothing to read."""

    value: Task | None


def read_task(
    partition: InputPartition,
    options: ReadOptions,
    columns: tuple[str, ...],
    decoding: Decoding | None = None,
) -> Iterator[pa.RecordBatch]:
    """The record batches of one task, in a worker."""
    from embeddedpulsar.arrow.columns import record_batches
    from embeddedpulsar.arrow.mapped_segment import open_ahead

    typed = None
    if decoding is not None:
        from embeddedpulsar.arrow.typed_columns import TypedColumns

        typed = TypedColumns(decoding, columns)
    names = columns if typed is None else typed.needed
    policy = DataLossPolicy(options.fail_on_data_loss)
    opened = open_ahead(
        partition.value or (),
        key_reader(options.private_keys),
        policy.gone,
        discards=options.discards,
        from_tables=SCHEMA_VERSION not in names,
    )
    spare_modules()
    with pinned(partition.value):
        batches = record_batches(
            opened, names, rows=ROWS, large=LARGE_ENTRY, on_damage=policy.damaged, mode=options.mode
        )
        yield from batches if typed is None else typed.batches(batches)


class BatchReader(DataSourceReader):
    """Reads the topics of `options`.

    Made on the driver, asked there for `partitions` once, then sent to every worker: it holds numbers and
    strings only. The plan freezes what was committed; a DataFrame that is used again reads the same again.
    """

    def __init__(
        self, options: ReadOptions, columns: tuple[str, ...], decoding: Decoding | None = None
    ) -> None:
        self._options = options
        self._columns = columns
        self._decoding = decoding
        self._pruning = Pruning()

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks, from index slots alone."""
        tasks = plan_tasks(self._options, self._pruning)
        if not pin_plan(tasks):
            tasks = plan_tasks(self._options, self._pruning)
            pin_plan(tasks)
        return [LogPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The record batches of one task."""
        return read_task(partition, self._options, self._columns, self._decoding)


class PushdownBatchReader(BatchReader):
    """A `BatchReader` whose plan filters narrow; Spark refuses it unless its setting allows that."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note what the filters say; all of them go back, so that Spark checks every row itself."""
        self._pruning = prune(filters)
        return filters
