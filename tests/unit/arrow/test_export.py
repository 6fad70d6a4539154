"""Topics as plain files: Parquet, JSON lines and CSV."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from embeddedpulsar import Client
from embeddedpulsar.arrow import arrow_schema, export, read_topic
from embeddedpulsar.arrow.datasets import FORMATS, write_export
from embeddedpulsar.arrow.schema import TOPIC as TOPIC_COLUMN
from embeddedpulsar.arrow.schema import UnreadableMessage
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.schema import (
    BooleanSchema,
    DoubleSchema,
    InstantSchema,
    Int32Schema,
    Int64Schema,
    JsonSchema,
    LocalDateSchema,
    StringSchema,
)
from tests.conformance.offloading import TOPIC, Site


def test_every_format_has_all_rows(tmp_path: Path) -> None:
    """In a folder for the topic and the day; a second export adds files, and offloaded ledgers are in it."""
    site = Site(tmp_path)
    site.publish(25)
    assert site.offload() == ""
    site.publish(5)
    whole = read_topic(site.root, TOPIC)
    told: list[int] = []
    report = export(site.root, TOPIC, tmp_path / "parquet", on_progress=told.append)
    assert report.rows == 30 == told[-1]
    (path,) = report.files
    assert "/topic=persistent%3A%2F%2Fpublic%2Fdefault%2Ftopic/date=20" in path
    assert ds.dataset(tmp_path / "parquet", format="parquet").to_table().to_pylist() == whole.to_pylist()
    assert export(site.root, TOPIC, tmp_path / "parquet").files[0].endswith("part-00001.parquet")
    (path,) = export(site.root, TOPIC, tmp_path / "jsonl", ["value", "__key"], file_format="jsonl").files
    rows = [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]
    assert len(rows) == 30 and rows[1] == {"value": "1", "__key": "k1"}
    (path,) = export(site.root, TOPIC, tmp_path / "csv", file_format="csv").files
    with open(path, encoding="utf-8", newline="") as file:
        assert [row["value"] for row in csv.DictReader(file)] == [row["value"] for row in rows]
    site.close()


def test_texts_that_are_none_are_refused(tmp_path: Path) -> None:
    """With the format that takes them; no file is left under its name."""
    site = Site(tmp_path)
    with site.client.create_producer(TOPIC) as producer:
        producer.send(b"\xff\xfe")
    with pytest.raises(InvalidConfiguration, match="export it as parquet"):
        export(site.root, TOPIC, tmp_path / "out", file_format="jsonl")
    assert not list((tmp_path / "out").rglob("*.jsonl"))
    with pytest.raises(InvalidConfiguration, match="file_format is parquet, jsonl, csv"):
        export(site.root, TOPIC, tmp_path / "out", file_format="orc")
    assert export(site.root, TOPIC, tmp_path / "out").rows == 1
    site.close()


class Goods(TypedDict):
    """What a shop sells."""

    name: str
    prices: list[float]
    size: dict[str, int]


def test_decoded_records(tmp_path: Path) -> None:
    """Fields are columns: with their types in Parquet, as objects in JSON lines, as JSON texts in CSV."""
    with Client(tmp_path / "store") as client:
        producer = client.create_producer("shop", schema=JsonSchema(Goods))
        for number in range(3):
            producer.send({"name": f"für {number}", "prices": [1.5, 2.0], "size": {"x": number}})

    def exported(file_format: str, columns: list[str] | None, **options: Any) -> str:
        target = tmp_path / f"{file_format}-{len(os.listdir(tmp_path))}"
        report = export(tmp_path / "store", "shop", target, columns, file_format=file_format, **options)
        assert report.rows == 3
        return report.files[0]

    whole = read_topic(tmp_path / "store", "shop", decode=True)
    table = pq.read_table(exported("parquet", None, decode=True), partitioning=None)
    assert table.to_pylist() == whole.to_pylist() and table.schema.field("prices").type == pa.list_(
        pa.float64()
    )
    names = ["name", "prices", "size", "__key"]
    lines = Path(exported("jsonl", names, decode=True)).read_text("utf-8").splitlines()
    assert json.loads(lines[2]) == {"name": "für 2", "prices": [1.5, 2.0], "size": {"x": 2}, "__key": None}
    with open(exported("csv", names, decode=True), encoding="utf-8", newline="") as file:
        row = list(csv.DictReader(file))[1]
    assert (row["name"], row["prices"], row["size"]) == ("für 1", "[1.5, 2.0]", '{"x": 1}')
    first = Path(exported("jsonl", ["value"])).read_text("utf-8").splitlines()[0]
    assert json.loads(json.loads(first)["value"])["name"] == "für 0"


@pytest.mark.parametrize(
    ("schema", "values", "texts"),
    [
        (StringSchema(), ["a", "ž", None], ["a", "ž", None]),
        (Int64Schema(), [1, -(2**63), None], [1, -(2**63), None]),
        (DoubleSchema(), [0.5, 1e300, -0.0], [0.5, 1e300, -0.0]),
        (BooleanSchema(), [True, False, None], [True, False, None]),
        (LocalDateSchema(), [date(2026, 5, 4), None], ["2026-05-04", None]),
        (InstantSchema(), [datetime(2026, 5, 4, 1, 2, 3, 4, UTC)], ["2026-05-04T01:02:03.000004+00:00"]),
    ],
    ids=lambda each: type(each).__name__ if hasattr(each, "encode") and not isinstance(each, str) else None,
)
def test_decoded_single_values(tmp_path: Path, schema: Any, values: list, texts: list) -> None:
    """In the column of payloads, with the type of the schema."""
    with Client(tmp_path / "store") as client:
        producer = client.create_producer("one", schema=schema)
        for value in values:
            producer.send(value)
    (path,) = export(tmp_path / "store", "one", tmp_path / "out", ["value"], decode=True).files
    assert pq.read_table(path, partitioning=None).column("value").to_pylist() == values
    (path,) = export(
        tmp_path / "store", "one", tmp_path / "out", ["value", "__entryId"], file_format="jsonl", decode=True
    ).files
    assert [json.loads(line)["value"] for line in Path(path).read_text("utf-8").splitlines()] == texts


def test_payloads_that_are_no_single_value(tmp_path: Path) -> None:
    """An error that names the message, null, or left out."""
    with Client(tmp_path / "store") as client:
        client.create_producer("one", schema=Int32Schema()).send(7)
        client.create_producer("one").send(b"seven")
    root, out = tmp_path / "store", tmp_path / "out"
    with pytest.raises(UnreadableMessage, match=r"the payload of message \d+:1:-1 is malformed"):
        export(root, "one", out, decode=True)
    assert not [path for path in out.rglob("*") if path.is_file()]
    for mode, expected in (("PERMISSIVE", [7, None]), ("DROPMALFORMED", [7])):
        (path,) = export(root, "one", out, ["value"], decode=True, mode=mode).files
        assert pq.read_table(path, partitioning=None).column("value").to_pylist() == expected


def batch_of(*rows: tuple[str, int, bytes]) -> pa.RecordBatch:
    """Rows of topic, day of January 2026, and value."""
    published = [datetime(2026, 1, day, tzinfo=UTC) for _, day, _ in rows]
    columns = {TOPIC_COLUMN: [row[0] for row in rows], "__publishTime": published}
    schema = arrow_schema((TOPIC_COLUMN, "__publishTime", "value"))
    return pa.RecordBatch.from_pydict(columns | {"value": [row[2] for row in rows]}, schema=schema)


def test_two_exports_at_the_same_time(tmp_path: Path) -> None:
    """Each has files of its own, and what is not finished is hidden from those that read the folder."""
    inner: list[str] = []

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch_of(("t", 1, b"outer"))
        (hidden,) = (path for path in tmp_path.rglob("*") if path.is_file())
        assert hidden.name.startswith("_")
        inner.extend(
            write_export(iter([batch_of(("t", 1, b"inner"))]), ("value",), str(tmp_path), "jsonl", int).files
        )
        yield batch_of(("t", 1, b"outer"))

    (outer,) = write_export(batches(), ("value",), str(tmp_path), "jsonl", int).files
    assert Path(outer).read_text() == 2 * '{"value": "outer"}\n'
    assert Path(inner[0]).read_text() == '{"value": "inner"}\n'


@pytest.mark.parametrize("file_format", FORMATS)
def test_an_export_that_fails_leaves_nothing(tmp_path: Path, file_format: str) -> None:
    """Neither files nor unfinished ones."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch_of(("t", 1, b"1"), ("t", 2, b"2"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_export(batches(), ("value",), str(tmp_path), file_format, int)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_many_days_need_one_descriptor(tmp_path: Path) -> None:
    """One file is open at a time."""
    before, most = len(os.listdir("/proc/self/fd")), 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for day in range(1, 29):
            yield batch_of(("t", day, b"1"), ("t", day + 1, b"2"))
            most = max(most, len(os.listdir("/proc/self/fd")))

    report = write_export(batches(), ("value",), str(tmp_path), "jsonl", int)
    assert (len(report.files), report.rows) == (29, 56) and most <= before + 2
    assert Path(report.files[1]).read_text() == '{"value": "2"}\n{"value": "1"}\n'
