"""Offloaded ledgers in Spark: by the format, and by Spark's own reader of Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar.spark
from tests.conformance.offloading import TOPIC, Site

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


def rows(frame: Any) -> list[tuple[Any, ...]]:
    """Comparable, in order."""
    return sorted(map(tuple, frame.select("value", "__key", "__publishTime", "__topic").collect()))


def test_cold_and_hot_ledgers_are_one_table(spark: Any, tmp_path: Path) -> None:
    """The same rows as before the ledgers were offloaded, by either way, without fetching a log."""
    site = Site(tmp_path)
    site.publish(35)
    embeddedpulsar.spark.register(spark)
    frame = spark.read.format("embeddedpulsar").option("path", str(site.root)).option("topic", TOPIC).load()
    before = rows(frame)
    assert site.offload() == ""
    assert rows(frame) == before
    table = embeddedpulsar.spark.table(spark, site.root, TOPIC)
    assert rows(table) == before
    assert "parquet" in table._jdf.queryExecution().toString()
    site.publish(15)
    logs = site.logs()
    assert len(logs) == 2
    table = embeddedpulsar.spark.table(spark, site.root, TOPIC)
    assert table.count() == 50
    assert table.where("__key = 'k1'").count() == 17
    narrow = embeddedpulsar.spark.table(spark, site.root, TOPIC, ["__key"])
    assert narrow.columns == ["__key"] and narrow.distinct().count() == 3
    assert site.logs() == logs
    site.roll()
    assert site.offload() == ""
    table = embeddedpulsar.spark.table(spark, site.root, TOPIC)
    assert "parquet" in table._jdf.queryExecution().toString()
    assert table.count() == 50
    site.close()
