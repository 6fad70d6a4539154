"""Streaming reads through a real Spark session."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from embeddedpulsar import Admin, Client
from embeddedpulsar.arrow import read_topic
from embeddedpulsar.spark.data_source import DefaultSource, StreamReader
from embeddedpulsar.testing import assert_clean
from tests.conformance.chunks import log_of
from tests.conftest import ROOT
from tests.support.key_files import key_files

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Query:
    """A query of a topic into Parquet files, which reads what is there and ends."""

    def __init__(self, spark: Any, directory: Path, **options: str) -> None:
        self._spark, self._directory = spark, directory
        self._options = {"path": str(directory / "store"), "startingOffsets": "earliest"} | options

    def run(self) -> list[int]:
        """Run to the end of the topics; returns the rows of each batch."""
        found = self._spark.readStream.format("embeddedpulsar").options(**self._options).load()
        query = (
            found.select("value", "__topic", "__partition")
            .writeStream.format("parquet")
            .option("path", str(self._directory / "out"))
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(300)
            return [progress["numInputRows"] for progress in query.recentProgress]
        finally:
            query.stop()

    def rows(self) -> list[bytes]:
        """The values that were written, sorted."""
        read = self._spark.read.parquet(str(self._directory / "out"))
        return sorted(bytes(row["value"]) for row in read.select("value").collect())


def test_resumes_from_a_checkpoint(spark: Any, tmp_path: Path):
    """Limits hold, a restart goes on where the last run ended, and new topics are read whole."""
    with Client(tmp_path / "store") as client:
        producer = client.create_producer("t-1")
        producer.send_many([b"a%04d" % i for i in range(2500)])
        query = Query(spark, tmp_path, topicsPattern="t-.*", maxOffsetsPerTrigger="1000")
        assert [count for count in query.run() if count] == [1000, 1000, 500]
        producer.send_many([b"b%04d" % i for i in range(10)])
        client.create_producer("t-2").send_many([b"c%04d" % i for i in range(10)])
        assert sum(query.run()) == 20
        assert sum(query.run()) == 0
    wanted = [b"a%04d" % i for i in range(2500)] + [
        b"%c%04d" % (kind, i) for kind in b"bc" for i in range(10)
    ]
    assert query.rows() == wanted


class DyingReader(StreamReader):
    """One whose worker is killed once, when it has given a part of the rows."""

    def __reduce__(self) -> Any:
        return type(self), super().__reduce__()[1]

    def read(self, partition: Any) -> Iterator[Any]:
        marker = Path(self._options.read.path).parent / "killed"
        for batch in super().read(partition):
            yield batch.slice(0, batch.num_rows // 2)
            if not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch.slice(batch.num_rows // 2)


class Dying(DefaultSource):
    """The format with such a reader."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamReader(self, schema: Any) -> StreamReader:
        made = super().streamReader(schema)
        return DyingReader(made._options, made._columns, made._decoding)


@pytest.mark.slow
def test_a_worker_is_killed_while_it_reads(spark: Any, tmp_path: Path):
    """The query fails, and stores nothing of the batch; started again, it stores each row once."""
    root = tmp_path / "store"
    with Client(root) as client:
        client.create_producer("in").send_many([b"%04d" % i for i in range(1000)])
    spark.dataSource.register(Dying)

    def run() -> None:
        rows = spark.readStream.format("dying").option("path", str(root)).option("topic", "in")
        query = (
            rows.option("startingOffsets", "earliest")
            .load()
            .select("value")
            .writeStream.format("embeddedpulsar")
            .options(path=str(root), topic="out", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)

    with pytest.raises(Exception, match="worker exited unexpectedly"):
        run()
    assert (tmp_path / "killed").exists()
    with Admin(root) as admin:
        assert "persistent://public/default/out" not in admin.topics().get_list()
    run()
    assert sorted(read_topic(root, "out", ["value"]).column("value").to_pylist()) == [
        b"%04d" % i for i in range(1000)
    ]
    assert_clean(root)


def test_a_subscription_follows_the_query(spark: Any, tmp_path: Path):
    """Its backlog is what the query has not committed, and it stays when the query ends."""
    with Admin(tmp_path / "store") as admin, Client(tmp_path / "store") as client:
        producer = client.create_producer("t")
        producer.send_many([b"x"] * 30, batching_max_messages=10)
        query = Query(spark, tmp_path, topic="t", subscription="spark", maxBytesPerTrigger="1k")
        assert sum(query.run()) == 30
        stats = admin.topics().get_stats("t").subscriptions["spark"]
        assert stats.msg_backlog == 0
        producer.send_many([b"y"] * 10)
        assert admin.topics().get_stats("t").subscriptions["spark"].msg_backlog == 10
        assert sum(query.run()) == 10
        assert admin.topics().get_stats("t").subscriptions["spark"].msg_backlog == 0


def test_chunked_delayed_and_encrypted_messages(spark: Any, tmp_path: Path):
    """Rows as in a batch read: whole, at once, and in the clear."""
    keys = key_files(tmp_path)
    with Client(tmp_path / "store") as client:
        chunked = client.create_producer("t", chunking_enabled=True)
        chunked.send(b"z" * 12_000_000)
        chunked.send(b"later", deliver_after=timedelta(hours=1))
        secret = client.create_producer("t", encryption_key="k", crypto_key_reader=keys)
        secret.send(b"secret")
    query = Query(spark, tmp_path, topic="t", cryptoPrivateKeyPath=keys.private_key_path)
    assert sum(query.run()) == 3
    assert query.rows() == [b"later", b"secret", b"z" * 12_000_000]


def test_a_trimmed_start_reaches_the_user(spark: Any, tmp_path: Path):
    """The query ends with the stable code, the topic and the positions in the text of Spark's exception."""
    with Client(tmp_path / "store") as client:
        producer = client.create_producer("t")
        producer.send(b"x")
        query = Query(spark, tmp_path, topic="t")
        assert sum(query.run()) == 1
        log = log_of(client, "t")
        producer.send_many([b"y"] * 5)
        log.roll()
        producer.send(b"z")
        log.trim_before(log.segments()[-1].ledger_id)
        with pytest.raises(Exception, match=r"EMBEDDEDPULSAR_DATA_LOSS.*default/t: messages from \d+:1 on"):
            query.run()
        assert sum(Query(spark, tmp_path, topic="t", failOnDataLoss="false").run()) == 1


def test_the_page(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The block of docs/spark.md runs as it stands there."""
    page = (ROOT / "docs" / "spark.md").read_text().partition("### Streams")[2]
    block = page.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    with Admin("./data") as admin, Client("./data") as client:
        with client.create_producer("orders", batching_enabled=True) as producer:
            for number in range(1000):
                producer.send_async(b"order %d" % number, None, partition_key=f"table-{number % 8}")
        block = block.replace('"./', f'"{tmp_path}/')  # the JVM has another working directory
        exec(compile(block, "docs/spark.md", "exec"), {"spark": spark})
        assert admin.topics().get_stats("orders").subscriptions["spark"].msg_backlog == 0
