"""A topic as a DataFrame whose offloaded ledgers Spark reads itself, as Parquet."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from embeddedpulsar._engine.cold.fetching import MESSAGES
from embeddedpulsar._engine.cold.location import hadoop_uri
from embeddedpulsar._engine.log.cold_ledger import OFFLOADED, cold_ledgers
from embeddedpulsar._engine.store.store_root import root_of
from embeddedpulsar.arrow.plan import listed_segments, topic_directory, topic_partitions
from embeddedpulsar.arrow.schema import SCHEMA_VERSION, check_columns
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.spark.column_types import struct_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from embeddedpulsar.topic_name import TopicName


def table(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """See `embeddedpulsar.spark.table`."""
    root, names = root_of(path), check_columns(columns)
    if SCHEMA_VERSION in names or {"decode", "valueschema"} & {name.lower() for name in options}:
        raise InvalidConfiguration(
            "a table of offloaded messages has payloads and no schema versions; decode them with "
            'spark.read.format("embeddedpulsar")'
        )
    cold: list[str] = []
    starts: dict[str, str] = {}
    logs = topic_partitions(root, topic)
    for log in logs:
        uris, start = cold_part(root, log)
        if uris:
            cold += uris
            starts[log.full] = start
    reader = spark.read.format("embeddedpulsar").options(
        **{name: str(value) for name, value in options.items()},
        path=root,
        topics=",".join(log.full for log in logs) or topic,
        columns=",".join(names),
    )
    if starts:
        reader = reader.option("startingOffsets", json.dumps(starts))
    tail = reader.load()
    if not cold:
        return tail
    # With a schema Spark needs to look into no file before the query runs.
    return spark.read.schema(struct_type(names)).parquet(*cold).select(*names).unionByName(tail)


def cold_part(root: str, log: TopicName) -> tuple[list[str], str]:
    """The tables of the oldest ledgers of a log, as long as each has one; and the position behind them."""
    notes = {note.ledger_id: note for note in cold_ledgers(topic_directory(root, log))}
    found: list[str] = []
    end = ""
    for info in listed_segments(root, log):
        note = notes.get(info.ledger_id)
        if info.entries and (note is None or note.state != OFFLOADED or note.rows < 0):
            return found, f"{info.ledger_id}:0"
        messages = None if note is None else note.object_named(MESSAGES)
        if note is not None and messages is not None:
            found.append(hadoop_uri(note.location, messages.name))
        end = f"{info.ledger_id}:{info.entries}"
    return found, end
