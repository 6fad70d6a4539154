"""Writes through a real Spark session."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Client
from embeddedpulsar.arrow import read_topic
from embeddedpulsar.exceptions import CryptoError
from embeddedpulsar.testing import assert_clean
from tests.conftest import ROOT

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def values(root: Path, topic: str) -> list[Any]:
    """The values of a topic, sorted."""
    return sorted(read_topic(root, topic, ["value"]).column("value").to_pylist())


def test_the_page(spark: Any, tmp_path: Path):
    """The blocks of docs/spark.md run as they stand there."""
    pytest.importorskip("cryptography", reason="the extra `crypto` is not installed")
    from tests.support.key_files import key_pair

    for name, pem in zip(("public.pem", "private.pem"), key_pair("ec"), strict=True):
        (tmp_path / name).write_bytes(pem)
    page = (ROOT / "docs" / "spark.md").read_text().partition("### Writing\n")[2]
    blocks = [
        part.partition("```")[0] for part in page.split("test_sink.py runs this block -->\n```python\n")
    ]
    block = "".join(blocks[1:])
    with Client(tmp_path / "data") as client:
        producer = client.create_producer("orders")
        producer.send_many(
            [b"order %d" % i for i in range(1000)], partition_keys=[f"table-{i % 8}" for i in range(1000)]
        )
    block = block.replace('"./', f'"{tmp_path}/')  # the JVM has another working directory
    exec(compile(block, "docs/spark.md", "exec"), {"spark": spark})
    table = read_topic(tmp_path / "data", "totals", ["value", "__key"])
    totals = {row["__key"]: json.loads(row["value"]) for row in table.to_pylist()}
    assert totals == {b"table-%d" % i: {"count": 125} for i in range(8)}
    assert values(tmp_path / "data", "copies") == sorted(b"order %d" % i for i in range(1000))
    with pytest.raises(CryptoError):
        values(tmp_path / "data", "secrets")
    assert_clean(tmp_path / "data")


def test_a_batch_that_comes_again_and_a_task_that_fails(spark: Any, tmp_path: Path):
    """The checkpoint forgets that a batch was committed; a task fails after it read half of its rows."""
    from pyspark.sql.functions import udf

    root, once = tmp_path / "store", tmp_path / "failed"
    with Client(root) as client:
        client.create_producer("in").send_many([b"%d" % i for i in range(20)])

    def failing(value: bytes) -> bytes:
        if value == b"10" and not once.exists():
            once.touch()
            raise ValueError("the first attempt")
        return value

    def run() -> None:
        read = spark.readStream.format("embeddedpulsar").option("path", str(root)).option("topic", "in")
        rows = read.option("startingOffsets", "earliest").load().select("value")
        query = (
            rows.select(udf(failing, "binary", useArrow=False)("value").alias("value"))
            .writeStream.format("embeddedpulsar")
            .option("path", str(root))
            .option("topic", "out")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        assert query.exception() is None

    with pytest.raises(Exception, match="the first attempt"):
        run()
    assert not list((root / "sinks").rglob("*.rows"))
    run()
    for name in os.listdir(tmp_path / "checkpoint" / "commits"):
        if name.strip(".").startswith("0"):
            os.remove(tmp_path / "checkpoint" / "commits" / name)
    with Client(root) as client:
        client.create_producer("in").send_many([b"later"])
    run()
    assert values(root, "out") == sorted([b"%d" % i for i in range(20)] + [b"later"])
    assert_clean(root)


def test_modes_that_replace_are_refused(spark: Any, tmp_path: Path):
    """By this format, or by Spark before it asks."""
    rows = spark.range(3).selectExpr("cast(id as string) as value")

    def write(mode: str) -> None:
        rows.write.format("embeddedpulsar").option("path", str(tmp_path)).option("topic", "t").mode(
            mode
        ).save()

    with pytest.raises(Exception, match="a topic is a log"):
        write("overwrite")
    for mode in ("ignore", "errorifexists"):
        with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            write(mode)
    write("append")
    assert values(tmp_path, "t") == [b"0", b"1", b"2"]
