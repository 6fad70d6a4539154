"""Writes of pairs and of single values, without Spark: consumers read equal objects."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from embeddedpulsar import Admin, Client, InitialPosition
from embeddedpulsar.arrow import read_topic
from embeddedpulsar.enums import KeyValueEncodingType
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.schema import (
    AvroSchema,
    BooleanSchema,
    DateSchema,
    DoubleSchema,
    FloatSchema,
    InstantSchema,
    Int8Schema,
    Int16Schema,
    Int32Schema,
    Int64Schema,
    Integer,
    JsonSchema,
    KeyValue,
    KeyValueSchema,
    LocalDateSchema,
    LocalDateTimeSchema,
    LocalTimeSchema,
    Record,
    Schema,
    String,
    StringSchema,
    TimeSchema,
    TimestampSchema,
)
from embeddedpulsar.testing import assert_clean
from tests.support.sinks import source

INLINE, SEPARATED = KeyValueEncodingType.INLINE, KeyValueEncodingType.SEPARATED
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
UTC_US = pa.timestamp("us", "UTC")


class Table(Record):
    """A key."""

    number = Integer(required=True)


class Order(Record):
    """A value."""

    item = String(required=True)
    count = Integer()


def register(root: Path, topic: str, schema: Schema[Any], partitions: int = 0) -> None:
    """Make a topic with a schema."""
    with Admin(root) as admin:
        if partitions:
            admin.topics().create_partitioned_topic(topic, partitions)
        else:
            admin.topics().create_non_partitioned_topic(topic)
        admin.schemas().create_schema(topic, schema.schema_info())


def write(root: Path, columns: dict[str, Any], topic: str = "t", **options: str) -> None:
    """``df.write`` by one task, in batches of two rows."""
    batch = pa.record_batch(columns)
    writer = source(root, topic=topic, **options).writer(from_arrow_schema(batch.schema), False)
    parts = [batch.slice(start, 2) for start in range(0, len(batch), 2)]
    writer.commit([pickle.loads(pickle.dumps(writer)).write(iter(parts))])


def received(root: Path, schema: Schema[Any], count: int, topic: str = "t") -> list[Any]:
    """What a consumer with the schema reads: values and keys."""
    with Client(root) as client:
        consumer = client.subscribe(topic, "s", schema=schema, initial_position=InitialPosition.Earliest)
        messages = [consumer.receive(1000) for _ in range(count)]
        is_apart = isinstance(schema, KeyValueSchema) and schema.encoding() == SEPARATED
        return [
            (None if one.has_null_value() and not is_apart else one.value(), one.partition_key())
            for one in messages
        ]


KEYS = pa.struct({"number": pa.int32()})
VALUES = pa.struct({"item": pa.string(), "count": pa.int32()})
PAIRS = [
    {"key": {"number": 1}, "value": {"item": "tea", "count": 2}},
    {"key": None, "value": {"item": "soup", "count": None}},
    {"key": {"number": 3}, "value": None},
]
OBJECTS = [
    KeyValue(Table(number=1), Order(item="tea", count=2)),
    KeyValue(None, Order(item="soup", count=None)),
    KeyValue(Table(number=3), None),
]


@pytest.mark.parametrize("make", [JsonSchema, AvroSchema])
@pytest.mark.parametrize("encoding", [INLINE, SEPARATED])
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_pairs_of_records(tmp_path: Path, make: Any, encoding: KeyValueEncodingType, guarantee: str):
    """A struct of a key and a value is the message that a producer makes of the pair, on its partition."""
    schema = KeyValueSchema(make(Table), make(Order), encoding)
    kind = pa.struct({"value": VALUES, "key": KEYS})
    for topic in ("spark", "producer"):
        register(tmp_path, topic, schema, partitions=2)
    write(tmp_path, {"value": pa.array(PAIRS, kind)}, "spark", deliveryGuarantee=guarantee)
    with Client(tmp_path) as client:
        producer = client.create_producer("producer", schema=schema)
        for one in OBJECTS:
            producer.send(one)
    columns = ["__key", "__schemaVersion", "__partition"]
    both = [read_topic(tmp_path, topic, columns).to_pylist() for topic in ("spark", "producer")]
    keyed = [sorted((row for row in rows if row["__key"]), key=str) for rows in both]
    assert keyed[0] == keyed[1]
    assert len(keyed[0]) == (2 if encoding == SEPARATED else 0)
    found = [value for value, _ in received(tmp_path, schema, 3, "spark")]
    assert sorted(map(str, found)) == sorted(map(str, OBJECTS))
    assert_clean(tmp_path)


def test_what_typed_reading_gives_is_written_back(tmp_path: Path):
    """Stored together: columns `key` and `value`; apart: fields of the value, and the key in ``__key``."""
    for topic, encoding in (("inline", INLINE), ("apart", SEPARATED)):
        schema = KeyValueSchema(StringSchema(), JsonSchema(Order), encoding)
        objects = [KeyValue(f"k{n}", Order(item="tea", count=n)) for n in range(3)]
        for name in (topic, f"{topic}-2"):
            register(tmp_path, name, schema)
        with Client(tmp_path) as client:
            producer = client.create_producer(topic, schema=schema)
            for one in objects:
                producer.send(one)
        names = ["key", "value"] if encoding == INLINE else ["item", "count"]
        table = read_topic(tmp_path, topic, [*names, "__key"], decode=True).combine_chunks()
        fields = [table.column(name).combine_chunks() for name in names]
        columns = {"value": pa.StructArray.from_arrays(fields, names)}
        if encoding == SEPARATED:
            columns["__key"] = table.column("__key").combine_chunks()
        write(tmp_path, columns, f"{topic}-2")
        assert [value for value, _ in received(tmp_path, schema, 3, f"{topic}-2")] == objects
    assert_clean(tmp_path)


@pytest.mark.parametrize("encoding", [INLINE, SEPARATED])
def test_pairs_of_single_values(tmp_path: Path, encoding: KeyValueEncodingType):
    """Numbers and texts as parts, and parts that are encoded already; a null pair is a null value."""
    schema = KeyValueSchema(Int32Schema(), StringSchema(), encoding)
    register(tmp_path, "t", schema)
    kind = pa.struct({"key": pa.int64(), "value": pa.string()})
    write(tmp_path, {"value": pa.array([{"key": 7, "value": "tea"}, None, {"key": 8, "value": None}], kind)})
    coded = pa.struct({"key": pa.binary(), "value": pa.binary()})
    write(tmp_path, {"value": pa.array([{"key": bytes(3) + b"*", "value": b"soup"}], coded)})
    found = [value for value, _ in received(tmp_path, schema, 4)]
    assert found == [KeyValue(7, "tea"), None, KeyValue(8, None), KeyValue(42, "soup")]
    if encoding == SEPARATED:
        keys = read_topic(tmp_path, "t", ["__key"]).column(0).to_pylist()
        assert keys == [b"AAAABw==", None, b"AAAACA==", b"AAAAKg=="]


SINGLES = [
    (BooleanSchema(), pa.bool_(), [True, False]),
    (Int8Schema(), pa.int8(), [-128, 127]),
    (Int16Schema(), pa.int16(), [-1, 300]),
    (Int32Schema(), pa.int64(), [-1, 1 << 30]),
    (Int64Schema(), pa.int32(), [-1, 1 << 30]),
    (FloatSchema(), pa.float64(), [0.5, -2.0]),
    (DoubleSchema(), pa.float32(), [0.5, -2.0]),
    (StringSchema(), pa.string(), ["tea", "Käse"]),
    (DateSchema(), UTC_US, [MOMENT, MOMENT]),
    (TimestampSchema(), pa.timestamp("us", "Europe/Berlin"), [MOMENT, MOMENT]),
    (InstantSchema(), UTC_US, [MOMENT, MOMENT]),
    (LocalDateSchema(), pa.date32(), [date(2026, 1, 2), date(1960, 1, 1)]),
    (LocalDateTimeSchema(), pa.timestamp("us"), [datetime(2026, 1, 2, 3, 4, 5, 6), datetime(1960, 1, 1)]),
    (TimeSchema(), pa.time64("us"), [time(1, 2, 3), time(23, 59, 59, 999000)]),
    (LocalTimeSchema(), pa.time64("us"), [time(1, 2, 3, 4), time(0)]),
]


@pytest.mark.parametrize(("schema", "kind", "values"), SINGLES, ids=lambda one: str(one)[:20])
def test_single_values(tmp_path: Path, schema: Schema[Any], kind: Any, values: list[Any]):
    """Are cast to the type of the schema and encoded by it, also with a key; a null is a null value."""
    register(tmp_path, "t", schema)
    write(tmp_path, {"value": pa.array([*values, None], kind), "__key": pa.array(["a", None, "c"])})
    found = received(tmp_path, schema, 3)
    assert found == list(zip([*values, None], ["a", "", "c"], strict=True))
    assert_clean(tmp_path)


def test_values_that_do_not_fit(tmp_path: Path):
    """Are refused with the topic and the remedy, and nothing is stored."""
    register(tmp_path, "int", Int8Schema())
    register(tmp_path, "local", LocalDateTimeSchema())
    register(tmp_path, "json", JsonSchema(Order))
    register(tmp_path, "pair", KeyValueSchema(StringSchema(), Int8Schema()))
    register(tmp_path, "apart", KeyValueSchema(StringSchema(), Int8Schema(), SEPARATED))
    pair = pa.struct({"key": pa.string(), "value": pa.int32()})
    for topic, values, error, text in (
        ("int", pa.array([300]), ValueError, "a value does not fit the schema of .*/int: .*300"),
        ("int", pa.array([1.5]), ValueError, "does not fit"),
        ("int", pa.array([True]), InvalidConfiguration, "values of type bool .* is of type INT8; register"),
        ("new", pa.array([1]), InvalidConfiguration, "schema of .*/new, which has none; register one"),
        ("json", pa.array([1]), InvalidConfiguration, "is of type JSON"),
        ("local", pa.array([MOMENT], UTC_US), InvalidConfiguration, "is of type LOCAL_DATE_TIME"),
        ("pair", pa.array([1]), InvalidConfiguration, "is of type KEY_VALUE"),
        ("pair", pa.array([{"k": 1}]), InvalidConfiguration, "have the fields key and value, not k"),
        (
            "pair",
            pa.array([{"key": "k", "value": 300}], pair),
            ValueError,
            "the value of persistent://public/default/pair",
        ),
        ("apart", pa.array([{"key": "", "value": 1}], pair), ValueError, "a key is encoded to no bytes"),
    ):
        with pytest.raises(error, match=text):
            write(tmp_path, {"value": values}, topic)
    with pytest.raises(ValueError, match="is not Base64"):
        write(tmp_path, {"value": pa.array([1]), "__key": pa.array(["k!"])}, "apart")
    for topic in ("int", "local", "json", "pair", "apart"):
        assert read_topic(tmp_path, topic).num_rows == 0
