"""Fields of payloads as columns: versions, formats, modes, and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client
from embeddedpulsar.enums import SchemaCompatibilityStrategy
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.schema import (
    Array,
    AvroSchema,
    Double,
    Integer,
    JsonSchema,
    KeyValue,
    KeyValueEncodingType,
    KeyValueSchema,
    Long,
    Map,
    Record,
    String,
    StringSchema,
)
from tests.conformance.offloading import Site
from tests.support.key_files import key_files

pa = pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

import pyarrow.dataset as ds  # noqa: E402

from embeddedpulsar.arrow import dataset, read_topic, scan_topic  # noqa: E402


class Line(Record):
    """A line of an order."""

    item = String(required=True)
    count = Integer(default=1)


class Order(Record):
    """The first version."""

    table = Integer(required=True)
    lines = Array(Line())


class PricedOrder(Record):
    """The second version: two fields more."""

    table = Integer(required=True)
    lines = Array(Line())
    price = Double(required_default=True)
    guests = Integer(required=True, default=2, required_default=True)


FIRST = {"table": 1, "lines": [{"item": "tea", "count": 2}], "price": None, "guests": 2}
SECOND = {"table": 2, "lines": None, "price": 4.5, "guests": 3}


def send_orders(root: Path, make: Any, topic: str = "orders") -> None:
    """An order of each version."""
    with Client(root) as client:
        with client.create_producer(topic, schema=make(Order)) as producer:
            producer.send(Order(table=1, lines=[Line(item="tea", count=2)]), partition_key="a")
        with client.create_producer(topic, schema=make(PricedOrder)) as producer:
            producer.send(PricedOrder(table=2, lines=None, price=4.5, guests=3))


def send_bytes(root: Path, *payloads: bytes | None, topic: str = "orders") -> None:
    """Payloads of a producer without a schema."""
    with Client(root) as client, client.create_producer(topic) as producer:
        for payload in payloads:
            producer.send(payload)


@pytest.mark.parametrize("make", [JsonSchema, AvroSchema])
def test_versions_are_merged(tmp_path, make):
    """Rows of an older version have the defaults of the newest, in both formats."""
    send_orders(tmp_path, make)
    found = read_topic(tmp_path, "orders", decode=True)
    assert found.column_names[:5] == ["table", "lines", "price", "guests", "__key"]
    assert "value" not in found.column_names
    assert found.select(list(FIRST)).to_pylist() == [FIRST, SECOND]
    assert found.column("__key").to_pylist() == [b"a", None]
    assert found.schema.field("table").type == pa.int32()
    few = read_topic(tmp_path, "orders", ["__schemaVersion", "price", "value"], decode=True)
    assert few.column_names == ["__schemaVersion", "price", "value"]
    assert few.column("__schemaVersion").to_pylist() == [0, 1]
    assert few.column("price").to_pylist() == [None, 4.5]
    (batch,) = scan_topic(tmp_path, "orders", ["guests"], decode=True)
    assert batch.to_pylist() == [{"guests": 2}, {"guests": 3}]


def test_values_of_pairs(tmp_path):
    """With the key in the key of the message: columns of the value, and the key as the message has it."""
    pairs = KeyValueSchema(StringSchema(), JsonSchema(Order), KeyValueEncodingType.SEPARATED)
    with Client(tmp_path) as client, client.create_producer("orders", schema=pairs) as producer:
        producer.send(KeyValue("bar", Order(table=7)))
        producer.send(KeyValue("bar", None))
    found = read_topic(tmp_path, "orders", ["table", "__key"], decode=True)
    assert found.to_pylist() == [{"table": 7, "__key": b"YmFy"}, {"table": None, "__key": b"YmFy"}]
    assert read_topic(tmp_path, "orders", ["__key"]).column("__key").to_pylist() == [b"YmFy", b"YmFy"]
    assert dataset(tmp_path, "orders").count_rows(filter=ds.field("__key") == b"YmFy") == 2


@pytest.mark.parametrize("make", [JsonSchema, AvroSchema])
def test_malformed_payloads(tmp_path, caplog, make):
    """An error that names the message, a column of their own, or rows less; null values are rows of nulls."""
    send_orders(tmp_path, make)
    bad = [b"{", b"", b'{"table":1} {"table":2}', b"[]", b'{"table":"x"}', b"null", b"\xff" * 9]
    send_bytes(tmp_path, bad[0], None, *bad[1:])
    with pytest.raises(
        ValueError, match=r"orders: the payload of message \d+:2:-1 is malformed: .*PERMISSIVE"
    ):
        read_topic(tmp_path, "orders", decode=True)
    found = read_topic(tmp_path, "orders", ["table", "guests", "__corrupt"], decode=True, mode="permissive")
    assert found.column("table").to_pylist() == [1, 2] + 8 * [None]
    assert found.column("__corrupt").to_pylist() == [None, None, bad[0], None, *bad[1:]]
    kept = read_topic(tmp_path, "orders", ["table", "guests"], decode=True, mode="DROPMALFORMED")
    assert kept.to_pylist() == [
        {"table": 1, "guests": 2},
        {"table": 2, "guests": 3},
        {"table": None, "guests": None},
    ]
    assert "left out 7 malformed messages" in caplog.text


@pytest.mark.parametrize("make", [JsonSchema, AvroSchema])
def test_rows_never_move(tmp_path, make):
    """Payloads that are two records, or half of one, do not shift their neighbours."""
    send_orders(tmp_path, make)
    schema = make(Order)
    one, two = schema.encode(Order(table=7)), schema.encode(Order(table=8))
    send_bytes(tmp_path, one + two, one[:2], one[2:], two)
    found = read_topic(tmp_path, "orders", ["table", "__corrupt"], decode=True, mode="PERMISSIVE")
    if make is JsonSchema:
        assert found.column("table").to_pylist() == [1, 2, None, None, None, 8]
    else:  # without a version, they are read as the newest one
        assert found.column("table").to_pylist()[:2] == [1, 2]
        assert found.column("__corrupt").to_pylist()[2] == one + two


def test_types_of_fields(tmp_path):
    """Logical types, maps, enumerations and nested records, the same from JSON and from Avro."""
    definition = {
        "type": "record",
        "name": "Reading",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
            {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
            {"name": "tags", "type": {"type": "map", "values": "long"}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["HOT", "COLD"]}},
            {"name": "before", "type": ["null", "Kind"]},
            {"name": "size", "type": ["int", "long", "null"]},
        ],
    }
    row = {"at": 1000, "day": 1, "clock": 5, "tags": {"a": 1}, "kind": "HOT", "before": "COLD", "size": 3}
    time, day = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(1970, 1, 2, tzinfo=UTC).date()
    wanted = row | {"at": time, "day": day, "tags": [("a", 1)]}
    with Client(tmp_path) as client:
        with client.create_producer("avro", schema=AvroSchema(None, definition)) as producer:
            producer.send(
                row | {"at": time, "day": day, "clock": datetime.min.replace(microsecond=5000).time()}
            )
    send_bytes(tmp_path, json.dumps(row, indent=1).encode(), topic="json")
    assert read_topic(tmp_path, "avro", list(row), decode=True).to_pylist() == [wanted]
    text = json.dumps(definition)
    assert read_topic(tmp_path, "json", list(row), decode=True, value_schema=text).to_pylist() == [wanted]
    # A field whose type is defined by another field is read without it.
    assert read_topic(tmp_path, "avro", ["before"], decode=True).to_pylist() == [{"before": "COLD"}]
    at = read_topic(tmp_path, "json", ["at", "size"], decode=True, value_schema=text)
    assert at.to_pylist() == [{"at": time, "size": 3}]


def test_decimals(tmp_path):
    """Decimals of Avro are decimals."""
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
    definition = {"type": "record", "name": "Price", "fields": [{"name": "price", "type": kind}]}
    with Client(tmp_path) as client:
        with client.create_producer("prices", schema=AvroSchema(None, definition)) as producer:
            producer.send({"price": Decimal("12.50")})
    assert read_topic(tmp_path, "prices", ["price"], decode=True).to_pylist() == [{"price": Decimal("12.50")}]


def test_a_type_of_its_own_for_json(tmp_path):
    """The newest definition decides: numbers become wider, fields that it lacks are left out."""

    class Narrow(Record):
        number = Integer(required=True)
        old = String()

    class Wide(Record):
        number = Long(required=True)
        labels = Map(String())

    with Client(tmp_path) as client:
        with client.create_producer("n", schema=JsonSchema(Narrow)) as producer:
            producer.send(Narrow(number=1, old="x"))
        strategy = SchemaCompatibilityStrategy.ALWAYS_COMPATIBLE
        with Admin(tmp_path) as admin:
            admin.topics().set_schema_compatibility_strategy("n", strategy)
        with client.create_producer("n", schema=JsonSchema(Wide)) as producer:
            producer.send(Wide(number=1 << 40, labels={"a": "b"}))
    found = read_topic(tmp_path, "n", ["number", "labels"], decode=True)
    assert found.to_pylist() == [
        {"number": 1, "labels": None},
        {"number": 1 << 40, "labels": [("a", "b")]},
    ]


def test_what_is_refused(tmp_path):
    """Topics without a schema, schemas without fields, unknown columns and modes."""
    send_bytes(tmp_path, b"{}", topic="raw")
    with Client(tmp_path) as client:
        client.create_producer("texts", schema=StringSchema()).send("a")
    send_orders(tmp_path, JsonSchema)
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    reserved = {"type": "record", "name": "R", "fields": [{"name": "__key", "type": "int"}]}
    for topic, more, text in (
        ("raw", {}, "there is no schema to decode by"),
        ("texts", {}, "type STRING"),
        ("orders", {"columns": ["tables"]}, "no column 'tables'; there are table, lines"),
        ("orders", {"columns": ["__corrupt"]}, "mode PERMISSIVE alone"),
        ("orders", {"columns": []}, "at least one"),
        ("orders", {"mode": "LAX"}, "mode is FAILFAST"),
        ("orders", {"value_schema": "{"}, "not a definition"),
        ("orders", {"value_schema": '"int"'}, "only records have fields"),
        ("orders", {"value_schema": json.dumps(node)}, "'next' cannot be a column: .*contains itself"),
        ("orders", {"value_schema": json.dumps(reserved)}, "name of a column of messages"),
    ):
        with pytest.raises(InvalidConfiguration, match=text):
            read_topic(tmp_path, topic, **{"columns": None, "decode": True} | more)


def test_many_versions_in_one_batch(tmp_path):
    """Rows of several versions, nulls and malformed payloads keep their order."""
    wanted: list[int | None] = []
    with Client(tmp_path) as client:
        old = client.create_producer("orders", schema=AvroSchema(Order))
        new = client.create_producer("orders", schema=AvroSchema(PricedOrder))
        plain = client.create_producer("orders")
        for number in range(40):
            if number % 4 < 2:
                old.send(Order(table=number))
                wanted.append(number)
            elif number % 4 == 2:
                new.send(PricedOrder(table=number))
                wanted.append(number)
            else:
                plain.send(None if number % 8 == 3 else b"")
                wanted.append(None)
    found = read_topic(tmp_path, "orders", ["table"], decode=True, mode="PERMISSIVE")
    assert found.column("table").to_pylist() == wanted


def test_offloaded_encrypted_and_chunked(tmp_path):
    """Payloads are decoded wherever they lie, and however they are stored."""
    site = Site(tmp_path, managedLedgerMaxEntriesPerLedger=4)
    keys = key_files(tmp_path, "ec")
    try:
        client = site.client
        with client.create_producer("orders", schema=AvroSchema(Order)) as producer:
            for number in range(10):
                producer.send(Order(table=number))
        assert site.offload("orders") == ""
        assert sorted(site.cold.rglob("*.parquet"))
        with client.create_producer(
            "orders", schema=AvroSchema(PricedOrder), encryption_key="ec", crypto_key_reader=keys
        ) as producer:
            producer.send(PricedOrder(table=10))
        with client.create_producer(
            "orders", schema=AvroSchema(PricedOrder), chunking_enabled=True
        ) as producer:
            lines = [Line(item="x" * 100) for _ in range(60_000)]
            producer.send(PricedOrder(table=11, lines=lines))
        found = read_topic(site.root, "orders", ["table", "lines"], decode=True, crypto_key_reader=keys)
        assert found.column("table").to_pylist() == list(range(12))
        assert len(found.column("lines")[11]) == 60_000
    finally:
        site.close()


def test_schema_versions_filter_a_dataset(tmp_path):
    """The version of the schema is a column like any other."""
    send_orders(tmp_path, JsonSchema)
    found = dataset(tmp_path, "orders", ["__key", "__schemaVersion"])
    assert found.to_table(["__key"], filter=ds.field("__schemaVersion") == 0).to_pylist() == [{"__key": b"a"}]


@pytest.mark.parametrize("make", [JsonSchema, AvroSchema])
def test_fields_of_a_dataset(tmp_path, make, monkeypatch):
    """Filters on fields and on columns of messages; what needs no fields decodes nothing."""
    send_orders(tmp_path, make)
    send_bytes(tmp_path, b"\xff", topic="orders")
    orders = dataset(tmp_path, "orders", decode=True, mode="PERMISSIVE")
    assert orders.schema.equals(read_topic(tmp_path, "orders", decode=True, mode="PERMISSIVE").schema)
    whole = orders.to_table()
    for condition in (
        ds.field("table") == 1,
        (ds.field("table") > 0) & (ds.field("__key") == b"a"),
        ds.field("__corrupt").is_valid(),
    ):
        assert orders.to_table(filter=condition).equals(whole.filter(condition))
    strict = dataset(tmp_path, "orders", ["table", "__key"], decode=True)
    assert strict.to_table(["__key"]).num_rows == 3
    with pytest.raises(ValueError, match="malformed"):
        strict.to_table(["table"])
    assert dataset(tmp_path, "orders", decode=True, mode="DROPMALFORMED").count_rows() == 2
    polars = pytest.importorskip("polars", reason="Polars is not installed")
    frame = orders.lazy_frame().filter((polars.col("table") >= 1) & (polars.col("__key") == b"a"))
    assert frame.select("table").collect().height == 1
