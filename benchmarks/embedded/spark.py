"""Topics that Spark reads, as record batches and, for comparison, as tuples; writes; and streams."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.contest import READ_ONLY, Contestant
from benchmarks.embedded import prepare
from benchmarks.embedded.cold import shared_store
from benchmarks.peers import parquet, rate_source
from benchmarks.peers.spark_session import CPU, processor_seconds, session
from embeddedpulsar import Admin, Client


class Scan(Contestant):
    """Sum of the payload lengths; `columns` are all produced, whether the sum needs them or not."""

    survives = READ_ONLY
    format = "embeddedpulsar"

    def __init__(
        self, key: str, name: str, messages: int, size: int, columns: str = "value", kind: str = "hot"
    ) -> None:
        super().__init__()
        self.key, self.name = key, name
        self._messages, self._size, self._columns, self._kind = messages, size, columns, kind

    def start(self, place: Path) -> None:
        self._spark = session()
        self._root = shared_store(place, self._messages, self._size, self._kind)
        self.prepare(self._spark)

    def prepare(self, spark: Any) -> None:
        """Register what the session does not find by itself."""

    def frame(self) -> Any:
        """The rows."""
        return (
            self._spark.read.format(self.format)
            .option("path", os.fspath(self._root))
            .option("topic", prepare.TOPIC)
            .option("columns", self._columns)
            .option("minPartitions", "2")
            .load()
        )

    def run(self, operations: int) -> float:
        from pyspark.sql import functions

        begun, used = time.perf_counter(), processor_seconds()
        frame = self.frame()
        ((total,),) = frame.select(functions.sum(functions.length("value"))).collect()
        seconds = time.perf_counter() - begun
        self.notes[CPU] = processor_seconds() - used
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


class Table(Scan):
    """The same through `embeddedpulsar.spark.table`."""

    def prepare(self, spark: Any) -> None:
        from embeddedpulsar.spark import register

        register(spark)

    def frame(self) -> Any:
        from embeddedpulsar.spark import table

        columns = self._columns.split(",")
        return table(self._spark, self._root, prepare.TOPIC, columns, minPartitions=2)


class MapInArrow(Scan):
    """The same tasks, read by a function that `mapInArrow` calls in place of a data source."""

    def prepare(self, spark: Any) -> None:
        import pandas  # noqa: F401 - mapInArrow asks for it

    def frame(self) -> Any:
        from embeddedpulsar.spark.batch_reader import BatchReader
        from embeddedpulsar.spark.options import parse_options

        options = {"path": os.fspath(self._root), "topic": prepare.TOPIC, "minPartitions": "2"}
        reader = BatchReader(parse_options(options), ("value",))
        tasks = list(reader.partitions())

        def read(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from reader.read(tasks[number])

        numbers = self._spark.range(len(tasks), numPartitions=len(tasks))
        return numbers.mapInArrow(read, "value binary")


class Memory(Scan):
    """The same, while the memory of the Python workers is looked at: without the files they map."""

    def run(self, operations: int) -> float:
        seen: list[tuple[float, int]] = []
        is_over = threading.Event()
        watching = threading.Thread(target=_watch, args=(seen, is_over))
        watching.start()
        try:
            begun = time.perf_counter()
            seconds = super().run(operations)
        finally:
            is_over.set()
            watching.join()
        half = begun + seconds / 2
        first = max((size for at, size in seen if at <= half), default=0)
        second = max((size for at, size in seen if at > half), default=0)
        self.notes["MiB of a worker at most"] = max(first, second) / 1024
        self.notes["MiB more in the second half"] = (second - first) / 1024
        return seconds


def _watch(seen: list[tuple[float, int]], is_over: threading.Event) -> None:
    """Note the KiB of the largest worker, again and again."""
    while not is_over.wait(0.05):
        largest = 0
        for status in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                if b"pyspark.daemon" in (status.parent / "cmdline").read_bytes():
                    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
                    largest = max(largest, int(fields.get("RssAnon", "0 kB").split()[0]))
        seen.append((time.perf_counter(), largest))


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
        begun, used = time.perf_counter(), processor_seconds()
        (
            self._rows.write.format("embeddedpulsar")
            .mode("append")
            .option("path", os.fspath(root))
            .option("topic", prepare.TOPIC)
            .option("deliveryGuarantee", self._guarantee)
            .save()
        )
        seconds = time.perf_counter() - begun
        self.notes[CPU] = processor_seconds() - used
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
        self._client: Any = None

    def start(self, place: Path) -> None:
        self._place, self._round = place, 0
        self._root = place / "store"
        prepare.keep_everything(self._root)
        self._client = Client(self._root)
        self._producer = self._client.create_producer(prepare.TOPIC)
        self._values = [os.urandom(100)] * self._rows

    def run(self, operations: int) -> float:
        # It looks for messages all the time, so it runs only while it is measured.
        self._round += 1
        running = rate_source.query(
            session()
            .readStream.format("embeddedpulsar")
            .option("path", os.fspath(self._root))
            .option("topic", prepare.TOPIC)
            .option("columns", "value,__publishTime")
            .option("startingOffsets", "earliest")
            .load(),
            self._place / str(self._round),
        )
        try:
            return rate_source.median_trigger(
                running, operations, self._rows, lambda: self._producer.send_many(self._values)
            )
        finally:
            running.stop()

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
