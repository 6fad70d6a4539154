"""Writes as Spark makes them, without Spark: staged by several tasks, committed by the driver."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType, TimestampType

from embeddedpulsar.spark.data_source import DefaultSource

_ARROW = {
    "__topic": (pa.string(), StringType()),
    "__eventTime": (pa.timestamp("us", "UTC"), TimestampType()),
    "__deliverAt": (pa.timestamp("us", "UTC"), TimestampType()),
    "__messageProperties": (pa.map_(pa.string(), pa.string()), MapType(StringType(), StringType())),
}
_BINARY = (pa.binary(), BinaryType())


def batch_of(columns: Mapping[str, Sequence[Any]]) -> pa.RecordBatch:
    """Rows as Spark hands them to a writer."""
    return pa.record_batch(
        {name: pa.array(list(rows), _ARROW.get(name, _BINARY)[0]) for name, rows in columns.items()}
    )


def source(root: Path, **options: str) -> DefaultSource:
    """The format with options of a write."""
    return DefaultSource({"path": str(root)} | options)


def schema_of(batch: pa.RecordBatch) -> StructType:
    """The schema of rows, in Spark's types."""
    return StructType([StructField(name, _ARROW.get(name, _BINARY)[1]) for name in batch.schema.names])


def staged(writer: Any, tasks: Sequence[Mapping[str, Sequence[Any]]]) -> list[Any]:
    """The commit messages of tasks that had these rows."""
    return [
        pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(writer)).write(iter([batch_of(rows)]))))
        for rows in tasks
    ]


def write(root: Path, *tasks: Mapping[str, Sequence[Any]], **options: str) -> None:
    """``df.write`` of a DataFrame whose partitions are the rows given."""
    writer = source(root, **options).writer(schema_of(batch_of(tasks[0])), False)
    writer.commit(staged(writer, tasks))
