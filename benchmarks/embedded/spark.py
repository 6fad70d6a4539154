"""Topics that Spark reads, as record batches and, for comparison, as tuples; writes; and streams."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.contest import READ_ONLY, Contestant
from benchmarks.embedded import prepare
from benchmarks.peers import parquet, rate_source
from benchmarks.peers.spark_session import session
from embeddedpulsar import Admin, Client


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


class Write(Contestant):
    """``df.write`` of a cached DataFrame into a topic of a new store.

    Args:
        key, name: of the contestant.
        messages, size: of the DataFrame.
        guarantee: option ``deliveryGuarantee``.
    """

    def __init__(self, key: str, name: str, messages: int, size: int, guarantee: str) -> None:
        super().__init__()
        self.key, self.name = key, name
        self._messages, self._size, self._guarantee = messages, size, guarantee

    def start(self, place: Path) -> None:
        self._place = place
        self._rows = parquet.cached_rows(self._messages, self._size)

    def run(self, operations: int) -> float:
        root = self._place / "store"
        prepare.keep_everything(root)
        begun = time.perf_counter()
        (
            self._rows.write.format("embeddedpulsar")
            .mode("append")
            .option("path", os.fspath(root))
            .option("topic", prepare.TOPIC)
            .option("deliveryGuarantee", self._guarantee)
            .save()
        )
        seconds = time.perf_counter() - begun
        with Admin(root) as admin:
            assert admin.topics().get_stats(prepare.TOPIC).msg_in_counter == operations
        shutil.rmtree(root)
        return seconds


class Trigger(Contestant):
    """The median time of a micro-batch of messages that were published just before, without a sink.

    Args:
        rows: of a batch.
    """

    key = "embeddedpulsar"
    name = "embeddedpulsar"

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows
        self._query: Any = None
        self._client: Any = None

    def start(self, place: Path) -> None:
        self._root = place / "store"
        prepare.keep_everything(self._root)
        self._client = Client(self._root)
        self._producer = self._client.create_producer(prepare.TOPIC)
        self._values = [os.urandom(100)] * self._rows
        self._query = rate_source.query(
            session()
            .readStream.format("embeddedpulsar")
            .option("path", os.fspath(self._root))
            .option("topic", prepare.TOPIC)
            .option("columns", "value,__publishTime")
            .option("startingOffsets", "earliest")
            .load(),
            place,
        )

    def run(self, operations: int) -> float:
        return rate_source.median_trigger(
            self._query, operations, self._rows, lambda: self._producer.send_many(self._values)
        )

    def stop(self) -> None:
        for one, close in ((self._query, "stop"), (self._client, "close")):
            if one is not None:
                getattr(one, close)()
