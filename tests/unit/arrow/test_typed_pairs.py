"""Keys and values that are stored together, as columns: versions, primitive parts, and what is malformed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.schema import (
    Array,
    AvroSchema,
    Int32Schema,
    Integer,
    JsonSchema,
    KeyValue,
    KeyValueSchema,
    Record,
    String,
    StringSchema,
    TimestampSchema,
)

pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from embeddedpulsar.arrow import dataset, read_topic


class Line(Record):
    """Part of an order; the key has a type of the same name."""

    item = String(required=True)


class Order(Record):
    """The first version of a value."""

    table = Integer(required=True)
    lines = Array(Line())


class BigOrder(Record):
    """The second version."""

    table = Integer(required=True)
    lines = Array(Line())
    guests = Integer(required_default=True)


def send(root: Path, schema: Any, *values: Any, topic: str = "t") -> None:
    """Values of one version."""
    with Client(root) as client, client.create_producer(topic, schema=schema) as producer:
        for value in values:
            producer.send(value)


@pytest.mark.parametrize("make", [JsonSchema, AvroSchema])
def test_records(tmp_path: Path, make: Any):
    """Versions are merged; either part may be missing."""
    first = KeyValueSchema(make(Line), make(Order))
    send(tmp_path, first, KeyValue(Line(item="a"), Order(table=1, lines=[Line(item="tea")])))
    second = KeyValueSchema(make(Line), make(BigOrder))
    send(
        tmp_path,
        second,
        KeyValue(Line(item="b"), BigOrder(table=2, guests=3)),
        KeyValue(Line(item="c"), None),
    )
    send(tmp_path, second, KeyValue(None, BigOrder(table=4)))
    found = read_topic(tmp_path, "t", ["key", "value"], decode=True)
    assert found.to_pylist() == [
        {"key": {"item": "a"}, "value": {"table": 1, "lines": [{"item": "tea"}], "guests": None}},
        {"key": {"item": "b"}, "value": {"table": 2, "lines": None, "guests": 3}},
        {"key": {"item": "c"}, "value": None},
        {"key": None, "value": {"table": 4, "lines": None, "guests": None}},
    ]
    keys = dataset(tmp_path, "t", ["key"], decode=True).to_table()
    assert keys.column("key").to_pylist() == found.column("key").to_pylist()


def test_primitive_parts(tmp_path: Path):
    """Texts, numbers and times; a null value of the message has no parts."""
    time = datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC)
    send(tmp_path, KeyValueSchema(StringSchema(), Int32Schema()), KeyValue("k", -7), topic="n")
    send(tmp_path, KeyValueSchema(Int32Schema(), TimestampSchema()), KeyValue(1, time), topic="m")
    assert read_topic(tmp_path, "n", ["key", "value"], decode=True).to_pylist() == [{"key": "k", "value": -7}]
    assert read_topic(tmp_path, "m", ["value"], decode=True).to_pylist() == [{"value": time}]


def test_malformed_pairs(tmp_path: Path):
    """What is not two parts, or has a part that does not fit."""
    send(tmp_path, KeyValueSchema(StringSchema(), Int32Schema()), KeyValue("k", 7))
    with Client(tmp_path) as client, client.create_producer("t") as producer:
        for payload in (b"\0", b"", b"\0\0\0\1k\0\0\0\1x"):
            producer.send(payload)
    found = read_topic(tmp_path, "t", ["key", "value", "__corrupt"], decode=True, mode="PERMISSIVE")
    assert found.to_pylist() == [
        {"key": "k", "value": 7, "__corrupt": None},
        {"key": None, "value": None, "__corrupt": b"\0"},
        {"key": None, "value": None, "__corrupt": b""},
        {"key": None, "value": None, "__corrupt": b"\0\0\0\1k\0\0\0\1x"},
    ]


def test_parts_that_are_no_columns(tmp_path: Path):
    """A type without a column is refused with its name."""
    inner = KeyValueSchema(StringSchema(), StringSchema())
    info = KeyValueSchema(StringSchema(), inner).schema_info()
    with Admin(tmp_path) as admin:
        admin.topics().create_non_partitioned_topic("t")
        admin.schemas().create_schema("t", info)
    with pytest.raises(InvalidConfiguration, match="the value is of type KEY_VALUE, which is no column"):
        read_topic(tmp_path, "t", decode=True)
