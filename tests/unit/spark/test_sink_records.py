"""Writes of records, without Spark: values encoded by the schema of the topic."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from embeddedpulsar import Admin
from embeddedpulsar._engine.store.schema_info import SchemaInfo
from embeddedpulsar.arrow import read_topic
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.exceptions import BrokerMetadataError, InvalidConfiguration
from embeddedpulsar.spark import finish_commits
from embeddedpulsar.testing import assert_clean
from tests.support.sinks import source, write

TIME = datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC)
DEFINITION = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "tags", "type": ["null", {"type": "map", "values": "int"}]},
        {"name": "data", "type": "bytes"},
        {"name": "more", "type": "int", "default": 7},
        {"name": "gone", "type": ["null", "string"]},
    ],
}
RECORDS = pa.struct(
    {
        "n": pa.int32(),
        "at": pa.timestamp("us", "UTC"),
        "tags": pa.map_(pa.string(), pa.int32()),
        "data": pa.binary(),
    }
)
ROWS = [
    {"n": 1, "at": TIME, "tags": [("a", 1)], "data": b"x"},
    None,
    {"n": 2, "at": None, "tags": None, "data": b""},
]


def write_records(root: Path, topic: str, records: Any, **options: str) -> None:
    """``df.write`` of records in column value, with a key each, by two tasks."""
    keys = pa.array([f"k{number}" for number in range(len(records))])
    batch = pa.record_batch({"value": records, "__key": keys})
    writer = source(root, topic=topic, **options).writer(from_arrow_schema(batch.schema), False)
    parts = (batch.slice(0, 1), batch.slice(1))
    writer.commit([pickle.loads(pickle.dumps(writer)).write(iter([part])) for part in parts])


@pytest.mark.parametrize("kind", [SchemaType.JSON, SchemaType.AVRO])
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_records_are_encoded_by_the_schema_of_the_topic(tmp_path: Path, kind: SchemaType, guarantee: str):
    """Typed columns are what was written, of partitions, too; a null record is a null value."""
    with Admin(tmp_path) as admin:
        admin.topics().create_partitioned_topic("p", 2)
        admin.topics().create_non_partitioned_topic("t")
        for topic in ("t", "p"):
            admin.schemas().create_schema(topic, SchemaInfo(kind, "R", json.dumps(DEFINITION)))
    columns = ["n", "at", "tags", "data", "more", "gone"]
    for topic in ("t", "p"):
        write_records(tmp_path, topic, pa.array(ROWS, RECORDS), deliveryGuarantee=guarantee)
        found = read_topic(tmp_path, topic, [*columns, "__key", "__schemaVersion"], decode=True).to_pylist()
        for number, row in enumerate(sorted(found, key=lambda row: row["__key"])):
            record = ROWS[number] and ROWS[number] | {"more": 7, "gone": None}
            wanted = (record or dict.fromkeys(columns)) | {"__key": b"k%d" % number, "__schemaVersion": 0}
            assert row == wanted
    assert_clean(tmp_path)


def test_records_of_another_shape(tmp_path: Path):
    """What does not fit the schema is refused, with the topic and the field."""
    with Admin(tmp_path) as admin:
        for topic in ("t", "text", "none"):
            admin.topics().create_non_partitioned_topic(topic)
        admin.schemas().create_schema("t", SchemaInfo(SchemaType.AVRO, "R", json.dumps(DEFINITION)))
        admin.schemas().create_schema("text", SchemaInfo(SchemaType.STRING, "S", ""))
    short = pa.struct({"n": pa.int64(), "data": pa.binary()})
    for topic, records, text in (
        ("none", pa.array(ROWS, RECORDS), "schema of .*none, which has none; register one"),
        ("text", pa.array(ROWS, RECORDS), "is of type STRING"),
        ("t", pa.array([{"n": 1}], pa.struct({"n": pa.int64()})), "demands a field 'data'"),
        ("t", pa.array([{"x": 1}], pa.struct({"x": pa.int64()})), "has no field 'x'; it has n, at"),
        ("t", pa.array([{"n": None, "data": b""}], short), "a record does not fit the schema"),
        (
            "t",
            pa.array([{"n": "x", "data": b""}], pa.struct({"n": pa.string(), "data": pa.binary()})),
            "field n",
        ),
    ):
        with pytest.raises((InvalidConfiguration, ValueError), match=text):
            write_records(tmp_path, topic, records)
    assert read_topic(tmp_path, "t").num_rows == 0
    assert not list((tmp_path / "sinks").rglob("*.rows"))


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_where_encryption_is_required(tmp_path: Path, guarantee: str):
    """A write is refused before anything is stored, and the next one finds nothing unfinished."""
    with Admin(tmp_path) as admin:
        admin.topics().create_non_partitioned_topic("t")
        admin.namespaces().set_encryption_required_status("public/default", True)
        with pytest.raises(
            BrokerMetadataError, match="Encryption is required in persistent://public/default/t"
        ):
            write(tmp_path, {"value": [b"x"]}, topic="t", deliveryGuarantee=guarantee)
        assert finish_commits(tmp_path) == 0
        admin.namespaces().remove_encryption_required_status("public/default")
    write(tmp_path, {"value": [b"y"]}, topic="t")
    assert read_topic(tmp_path, "t", ["value"]).to_pylist() == [{"value": b"y"}]
