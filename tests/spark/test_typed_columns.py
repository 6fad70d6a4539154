"""Typed columns through a real Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Client
from embeddedpulsar.arrow import read_topic
from embeddedpulsar.schema import AvroSchema, Integer, JsonSchema, Record, String
from tests.conftest import ROOT

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Sale(Record):
    """The first version."""

    item = String(required=True)
    count = Integer(required=True)


class PaidSale(Record):
    """The second version."""

    item = String(required=True)
    count = Integer(required=True)
    card = String(required_default=True)


def send_sales(root: Path, make: Any) -> None:
    """A sale of each version."""
    with Client(root) as client:
        client.create_producer("sales", schema=make(Sale)).send(Sale(item="tea", count=2))
        paid = PaidSale(item="soup", count=1, card="visa")
        client.create_producer("sales", schema=make(PaidSale)).send(paid, partition_key="k")


def test_the_blocks_of_the_page(spark: Any, tmp_path: Path):
    """What the documentation shows of typed columns runs."""
    send_sales(tmp_path / "data", JsonSchema)
    page = (ROOT / "docs" / "spark.md").read_text("utf-8")
    block = page.partition("test_typed_columns.py runs this block -->\n```python\n")[2].partition("```")[0]
    block = block.replace('"./', f'"{tmp_path}/')  # the JVM has another working directory
    exec(compile(block, "docs/spark.md", "exec"), {"spark": spark})
    found = read_topic(tmp_path / "data", "sales", ["item", "count", "card", "__schemaVersion"], decode=True)
    assert [tuple(row.values()) for row in found.to_pylist()[2:]] == [
        ("tea", 3, None, 1),
        ("soup", 2, None, 1),
    ]


def test_avro_in_batches_and_streams(spark: Any, tmp_path: Path):
    """Versions are merged, malformed rows go to their column, and a stream has the same rows."""
    send_sales(tmp_path / "store", AvroSchema)
    with Client(tmp_path / "store") as client:
        client.create_producer("sales").send(b"\x01")
    options = {"path": str(tmp_path / "store"), "topic": "sales", "decode": "true", "mode": "PERMISSIVE"}
    frame = spark.read.format("embeddedpulsar").options(**options).load()
    assert frame.columns[:5] == ["item", "count", "card", "__corrupt", "__key"]
    wanted = [("soup", 1, "visa", None), ("tea", 2, None, None), (None, None, None, b"\x01")]
    assert rows(frame) == wanted
    stream = spark.readStream.format("embeddedpulsar").options(**options, startingOffsets="earliest").load()
    query = (
        stream.writeStream.format("memory")
        .queryName("typed")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    assert rows(spark.table("typed")) == wanted
    with pytest.raises(
        Exception, match=r"persistent://public/default/sales: the payload of message \d+:2:-1"
    ):
        spark.read.format("embeddedpulsar").options(**options | {"mode": "FAILFAST"}).load().collect()


def test_what_a_row_cannot_hold(spark: Any, tmp_path: Path):
    """A text that is not UTF-8, bytes behind a value, a time that no column has: by the mode, by name."""
    with Client(tmp_path / "store") as client:
        with client.create_producer("sales", schema=JsonSchema(Sale)) as producer:
            producer.send(Sale(item="tea", count=2), event_timestamp=1000)
        with client.create_producer("sales") as producer:
            for payload in (b'{"item":"caf\xe9","count":1}', b'{"item":"x","count":1},"y":2'):
                producer.send(payload)
            producer.send(b'{"item":"soup","count":1}', event_timestamp=2**63 - 1)
    options = {"path": str(tmp_path / "store"), "topic": "sales"}

    def read(mode: str, **more: str) -> list[tuple[Any, ...]]:
        frame = spark.read.format("embeddedpulsar").options(**options, mode=mode, **more).load()
        return [tuple(row) for row in frame.selectExpr(*columns, "unix_millis(__eventTime)").collect()]

    columns = ["item", "count"]
    assert read("DROPMALFORMED", decode="true") == [("tea", 2, 1000)]
    assert read("PERMISSIVE", decode="true") == [
        ("tea", 2, 1000),
        (None, None, None),
        (None, None, None),
        ("soup", 1, None),
    ]
    columns = ["value"]
    assert [row[1] for row in read("PERMISSIVE")] == [1000, None, None, None]
    assert [row[1] for row in read("DROPMALFORMED")] == [1000, None, None]
    with pytest.raises(Exception, match=r"sales: message 1:3:-1: its __eventTime of 9223372036854775807 ms"):
        read("FAILFAST")


def rows(frame: Any) -> list[tuple[Any, ...]]:
    """The rows, with bytes for binary values, in order of their items."""
    found = [
        (row["item"], row["count"], row["card"], row["__corrupt"] and bytes(row["__corrupt"]))
        for row in frame.collect()
    ]
    return sorted(found, key=lambda row: row[0] or "~")
