"""Topics with transactions through a real Spark session, whose planner and workers are other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from embeddedpulsar import Client
from embeddedpulsar.testing import assert_clean
from tests.spark.test_stream_read import Query

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def test_batches_and_streams(spark: Any, tmp_path: Path) -> None:
    """They have what committed, of partitions too; a query that runs again has what committed meanwhile."""
    (tmp_path / "store").mkdir()
    # The first transaction begins a ledger, and the one before would be trimmed.
    settings = "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n"
    (tmp_path / "store" / "broker.conf").write_text(settings)
    with Client(tmp_path / "store") as client:
        one, two = client.create_producer("t-1"), client.create_producer("t-2", batching_enabled=True)

        def send(prefix: bytes, count: int, **options: Any) -> None:
            for number in range(count):
                one.send(b"%s1-%d" % (prefix, number), **options)
                two.send_async(b"%s2-%d" % (prefix, number), None, **options)
            two.flush()

        send(b"plain", 2)
        with client.transaction() as txn:
            send(b"committed", 3, txn=txn)
        aborted, opened = client.new_transaction(), client.new_transaction()
        send(b"aborted", 3, txn=aborted)
        aborted.abort()
        send(b"open", 2, txn=opened)
        send(b"behind", 2)
        frame = (
            spark.read.format("embeddedpulsar")
            .option("path", str(tmp_path / "store"))
            .option("topicsPattern", "t-.*")
            .option("minPartitions", "4")
        )
        before = {
            b"%s%d-%d" % (name, topic, n)
            for name, count in ((b"plain", 2), (b"committed", 3))
            for topic in (1, 2)
            for n in range(count)
        }
        rows = frame.load().select("value")
        assert {bytes(row["value"]) for row in rows.collect()} == before and rows.count() == 10
        assert frame.option("isolation", "read_uncommitted").load().count() == 24
        query = Query(spark, tmp_path, topicsPattern="t-.*", maxOffsetsPerTrigger="4")
        assert sum(query.run()) == 10 and query.rows() == sorted(before)
        opened.commit()
        assert sum(query.run()) == 8
        after = {
            b"%s%d-%d" % (name, topic, n)
            for name in (b"open", b"behind")
            for topic in (1, 2)
            for n in range(2)
        }
        assert query.rows() == sorted(before | after)
    assert_clean(tmp_path / "store")
