"""Topics as plain files: Parquet, JSON lines and CSV."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from embeddedpulsar.arrow import export, read_topic
from embeddedpulsar.exceptions import InvalidConfiguration
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
