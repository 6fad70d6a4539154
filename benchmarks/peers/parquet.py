"""The same payloads in an uncompressed Parquet file: what a finished, sorted-out file costs to read."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.contest import READ_ONLY, Contestant
from benchmarks.peers.spark_session import CPU, processor_seconds, session


def write(path: Path, messages: int, size: int) -> None:
    """Write `messages` random payloads of `size` bytes as column `value`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    noise = os.urandom(size * 1000)
    batch = pa.record_batch(
        {"value": pa.array([noise[i * size : (i + 1) * size] for i in range(1000)], pa.binary())}
    )
    with pq.ParquetWriter(path, batch.schema, compression="none", use_dictionary=False) as writer:
        for _ in range(messages // 1000):
            writer.write_table(pa.Table.from_batches([batch] * 1))


class ReadTable(Contestant):
    """pyarrow.parquet.read_table."""

    key = "parquet"
    name = "Parquet, pyarrow.parquet.read_table"
    survives = READ_ONLY

    def __init__(self, messages: int, size: int) -> None:
        super().__init__()
        self._messages, self._size = messages, size

    def start(self, place: Path) -> None:
        self._path = place / "values.parquet"
        write(self._path, self._messages, self._size)

    def run(self, operations: int) -> float:
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        begun = time.perf_counter()
        total = pc.sum(pc.binary_length(pq.read_table(self._path).column("value"))).as_py()
        seconds = time.perf_counter() - begun
        assert total == operations * self._size
        return seconds


class SparkScan(ReadTable):
    """spark.read.parquet, and the same sum."""

    name = "Parquet, spark.read.parquet"

    def start(self, place: Path) -> None:
        self._spark: Any = session()
        super().start(place)

    def run(self, operations: int) -> float:
        from pyspark.sql import functions

        begun, used = time.perf_counter(), processor_seconds()
        frame = self._spark.read.parquet(os.fspath(self._path))
        ((total,),) = frame.select(functions.sum(functions.length("value"))).collect()
        seconds = time.perf_counter() - begun
        self.notes[CPU] = processor_seconds() - used
        assert total == operations * self._size
        return seconds


_CACHED: dict[tuple[int, int], Any] = {}


def cached_rows(messages: int, size: int) -> Any:
    """A DataFrame of random payloads in two partitions, in the memory of the session; made once."""
    from pyspark.sql import functions

    frame = _CACHED.get((messages, size))
    if frame is None:
        payloads = session().createDataFrame(
            [(i, os.urandom(size)) for i in range(1000)], "n int, value binary"
        )
        numbers = session().range(messages, numPartitions=2).select((functions.col("id") % 1000).alias("n"))
        frame = numbers.join(functions.broadcast(payloads), "n").select("value").cache()
        assert frame.count() == messages
        _CACHED[messages, size] = frame
    return frame


class SparkWrite(Contestant):
    """df.write.parquet of the same cached DataFrame, uncompressed."""

    key = "parquet"
    name = "Parquet, df.write.parquet"

    def __init__(self, messages: int, size: int) -> None:
        super().__init__()
        self._messages, self._size = messages, size

    def start(self, place: Path) -> None:
        self._path = place / "written"
        self._rows = cached_rows(self._messages, self._size)

    def run(self, operations: int) -> float:
        begun, used = time.perf_counter(), processor_seconds()
        self._rows.write.option("compression", "none").parquet(os.fspath(self._path))
        seconds = time.perf_counter() - begun
        self.notes[CPU] = processor_seconds() - used
        shutil.rmtree(self._path)
        return seconds
