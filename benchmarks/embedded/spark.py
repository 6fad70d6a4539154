"""A topic read by Spark, as record batches and, for comparison, as the tuples most Python sources yield."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.contest import READ_ONLY, Contestant
from benchmarks.embedded import prepare
from benchmarks.peers.spark_session import session


class Scan(Contestant):
    """Sum of the payload lengths; `columns` are all produced, whether the sum needs them or not."""

    survives = READ_ONLY
    format = "embeddedpulsar"

    def __init__(self, key: str, name: str, messages: int, size: int, columns: str) -> None:
        super().__init__()
        self.key, self.name = key, name
        self._messages, self._size, self._columns = messages, size, columns

    def start(self, place: Path) -> None:
        self._root = place / "store"
        prepare.fill(self._root, self._messages, self._size)
        self._spark = session()
        self.prepare(self._spark)

    def prepare(self, spark: Any) -> None:
        """Register what the session does not find by itself."""

    def run(self, operations: int) -> float:
        from pyspark.sql import functions

        begun = time.perf_counter()
        frame = (
            self._spark.read.format(self.format)
            .option("path", os.fspath(self._root))
            .option("topic", prepare.TOPIC)
            .option("columns", self._columns)
            .option("minPartitions", "2")
            .load()
        )
        ((total,),) = frame.select(functions.sum(functions.length("value"))).collect()
        seconds = time.perf_counter() - begun
        assert total == operations * self._size, (total, operations)
        return seconds


class TupleScan(Scan):
    """The same topic through a source that yields a tuple for each message."""

    format = "embeddedpulsar_tuples"

    def prepare(self, spark: Any) -> None:
        from embeddedpulsar.spark.batch_reader import BatchReader
        from embeddedpulsar.spark.data_source import DefaultSource, requested_columns
        from embeddedpulsar.spark.options import parse_options

        class TupleReader(BatchReader):
            def read(self, partition: Any) -> Iterator[Any]:
                for batch in super().read(partition):
                    yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

        class TupleSource(DefaultSource):
            @classmethod
            def name(cls) -> str:
                return "embeddedpulsar_tuples"

            def reader(self, schema: Any) -> BatchReader:
                return TupleReader(parse_options(self.options), requested_columns(schema))

        spark.dataSource.register(TupleSource)
