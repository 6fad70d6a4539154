"""Typed columns of the source, without a Spark session: schemas, projection, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from embeddedpulsar import Admin, Client
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.schema import (
    Array,
    AvroSchema,
    Integer,
    JsonSchema,
    KeyValue,
    KeyValueSchema,
    Map,
    Record,
    String,
)
from embeddedpulsar.spark.data_source import DefaultSource
from tests.unit.spark.test_batch_reader import read


class Line(Record):
    """A line of an order."""

    item = String()


class Order(Record):
    """The first version."""

    table = Integer(required=True)
    lines = Array(Line())
    notes = Map(Integer())


class BigOrder(Record):
    """Another topic has a field more."""

    table = Integer(required=True)
    lines = Array(Line())
    notes = Map(Integer())
    guests = Integer()


def publish(root: Path, topic: str, make: type = JsonSchema) -> None:
    """One order."""
    kind = BigOrder if topic == "big" else Order
    with Client(root) as client:
        client.create_producer(topic, schema=make(kind)).send(
            kind(table=1, lines=[Line(item="tea")], notes={"a": 1}), partition_key="k"
        )


def options(root: Path, **more: str) -> dict[str, str]:
    """Of a read of topic orders."""
    return {"path": str(root), "topic": "orders", "decode": "true"} | more


@pytest.mark.parametrize("make", [JsonSchema, AvroSchema])
def test_types_are_those_that_spark_demands(tmp_path, make):
    """Nested columns arrive with the names and types of Spark, as they are pickled to the workers."""
    publish(tmp_path, "orders", make)
    source = DefaultSource(options(tmp_path, columns="table,lines,notes,__key"))
    assert source.schema().simpleString() == (
        "struct<table:int,lines:array<struct<item:string>>,notes:map<string,int>,__key:binary>"
    )
    found = read(source)
    assert found.to_pylist() == [{"table": 1, "lines": [{"item": "tea"}], "notes": [("a", 1)], "__key": b"k"}]
    for batch in source.reader(source.schema()).read(source.reader(source.schema()).partitions()[0]):
        from pyspark.sql.pandas.types import to_arrow_schema

        assert batch.schema.equals(to_arrow_schema(source.schema(), timezone="UTC"))


@pytest.mark.parametrize("make", [JsonSchema, AvroSchema])
def test_a_schema_of_spark(tmp_path, make):
    """A text as Spark has it goes to Spark, which gives back the columns; types may be wider."""
    publish(tmp_path, "orders", make)
    source = DefaultSource(
        options(tmp_path, valueSchema="table BIGINT", columns="__key,__corrupt", mode="permissive")
    )
    assert source.schema() == "table BIGINT, `__key` binary, `__corrupt` binary"
    schema = StructType(
        [
            StructField("table", LongType()),
            StructField("__key", BinaryType()),
            StructField("__corrupt", BinaryType()),
        ]
    )
    assert read(source, schema).to_pylist() == [{"table": 1, "__key": b"k", "__corrupt": None}]


@pytest.mark.parametrize("kind", ["spark", "avro"])
def test_columns_of_a_schema_that_is_given(tmp_path, kind):
    """`columns` names fields of `valueSchema` and columns of messages, in the order of the result."""
    publish(tmp_path, "orders")
    text = "lines ARRAY<STRUCT<item: STRING>> COMMENT 'a, b', `table` BIGINT"
    if kind == "avro":
        fields = [{"name": "lines", "type": {"type": "array", "items": "string"}}]
        fields.append({"name": "table", "type": "long"})
        text = json.dumps({"type": "record", "name": "R", "fields": fields})
    source = DefaultSource(options(tmp_path, valueSchema=text, columns="__key,table,value"))
    schema = StructType(
        [
            StructField("__key", BinaryType()),
            StructField("table", LongType()),
            StructField("value", BinaryType()),
        ]
    )
    if kind == "spark":
        assert source.schema() == "`__key` binary, `table` BIGINT, `value` binary"
    else:
        assert source.schema() == schema
    (row,) = read(source, schema).to_pylist()
    assert (row["__key"], row["table"], json.loads(row["value"])["table"]) == (b"k", 1, 1)


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("a DECIMAL(10, 2), b MAP<STRING, INT>", "b,a", "b MAP<STRING, INT>, a DECIMAL(10, 2)"),
        ("struct<a: int, b: struct<c: int, d: int>>", "b", "b: struct<c: int, d: int>"),
        ('`a, ``b` INT COMMENT "it\'s", value STRING', "value", "value STRING"),
        ("a INT, b INT", "__key", "a INT, b INT, `__key` binary"),
    ],
)
def test_fields_are_divided_as_spark_divides_them(tmp_path, text, columns, expected):
    """Commas within types, names and comments divide nothing."""
    assert DefaultSource(options(tmp_path, valueSchema=text, columns=columns)).schema() == expected


def test_several_topics(tmp_path):
    """The schema that can read all of them is that of the columns."""
    publish(tmp_path, "orders")
    publish(tmp_path, "big")
    given = options(tmp_path, topicsPattern=".*", columns="table,guests")
    del given["topic"]
    assert read(DefaultSource(given)).to_pylist() == 2 * [{"table": 1, "guests": None}]

    class Other(Record):
        table = String(required=True)

    with Admin(tmp_path) as admin:
        admin.topics().create_non_partitioned_topic("other")
        admin.schemas().create_schema("other", JsonSchema(Other).schema_info())
    with pytest.raises(
        InvalidConfiguration, match="no schema of these topics can read what all of them have"
    ):
        DefaultSource(given).schema()


def test_keys_and_values(tmp_path):
    """Two columns, structs as Spark demands them."""
    schema = KeyValueSchema(AvroSchema(Line), AvroSchema(Order))
    with Client(tmp_path) as client:
        client.create_producer("orders", schema=schema).send(KeyValue(Line(item="tea"), Order(table=1)))
    source = DefaultSource(options(tmp_path, columns="key,value"))
    assert source.schema().simpleString() == (
        "struct<key:struct<item:string>,"
        "value:struct<table:int,lines:array<struct<item:string>>,notes:map<string,int>>>"
    )
    value = {"table": 1, "lines": None, "notes": None}
    assert read(source).to_pylist() == [{"key": {"item": "tea"}, "value": value}]


def test_partitions_share_the_schema_of_their_topic(tmp_path):
    """A partitioned topic, and one of its partitions, are decoded alike."""
    with Admin(tmp_path) as admin:
        admin.topics().create_partitioned_topic("orders", 2)
    publish(tmp_path, "orders")
    assert read(DefaultSource(options(tmp_path, columns="table"))).to_pylist() == [{"table": 1}]
    found = [
        read(
            DefaultSource(options(tmp_path, topic=f"orders-partition-{number}", columns="table"))
        ).to_pylist()
        for number in range(2)
    ]
    assert sorted(found) == [[], [{"table": 1}]]


def test_a_schema_of_the_user_projects(tmp_path):
    """`spark.read.schema` names columns; their types are those of the topic."""
    publish(tmp_path, "orders")
    source = DefaultSource(options(tmp_path))
    assert read(source, StructType([StructField("table", IntegerType())])).to_pylist() == [{"table": 1}]
    for field, text in (
        (StructField("table", StringType()), "table is int by the schema of the topic, not string"),
        (StructField("tables", IntegerType()), "no column 'tables'"),
        (StructField("table", IntegerType(), False), "leave NOT NULL out"),
        (StructField("__key", StringType()), "__key is binary, not string"),
    ):
        with pytest.raises(InvalidConfiguration, match=text):
            source.reader(StructType([field]))


def test_options_that_do_not_fit(tmp_path):
    """Options of typed columns are errors without them, and a topic without a schema names the remedy."""
    with Admin(tmp_path) as admin:
        admin.topics().create_non_partitioned_topic("raw")
    for given, text in (
        ({"mode": "LENIENT", "decode": "false"}, "mode is FAILFAST"),
        ({"valueSchema": "a INT", "decode": "false"}, "set decode to true"),
        ({"decode": "maybe"}, "neither true nor false"),
        ({"mode": "LAX"}, "mode is FAILFAST"),
        ({"topic": "raw"}, "there is no schema to decode by; give one"),
        ({"topic": "raw", "valueSchema": json.dumps("int")}, "only records have fields"),
        ({"valueSchema": "a INT", "columns": "b"}, "no column 'b'; there are a, value"),
        ({"valueSchema": "a INT, a STRING"}, "'a STRING' is no field with a name of its own"),
        ({"valueSchema": "a INT,, b INT"}, "'' is no field"),
    ):
        with pytest.raises(InvalidConfiguration, match=text):
            DefaultSource(options(tmp_path) | given).schema()
