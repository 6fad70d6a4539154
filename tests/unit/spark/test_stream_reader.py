"""The source of a stream without Spark: what it sends to workers, limits, and its subscription."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from embeddedpulsar import Admin, Client, InitialPosition
from embeddedpulsar.exceptions import ConsumerBusy
from embeddedpulsar.spark.data_source import DefaultSource, StreamReader
from tests.conformance.chunks import log_of

T = "persistent://public/default/t"


def source(root: Path, **options: str) -> StreamReader:
    """The reader of a query of topic t from its beginning."""
    made = DefaultSource({"path": str(root), "topic": "t", "startingOffsets": "earliest"} | options)
    return made.streamReader(made.schema())


def values(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    """The values of a batch, through pickle as between driver and workers."""
    parts = [pickle.loads(pickle.dumps(part)) for part in reader.partitions(start, end)]
    reader = pickle.loads(pickle.dumps(reader))
    tables = [pa.Table.from_batches(reader.read(part)) for part in parts]
    return [value for table in tables for value in table.column("value").to_pylist()]


def backlog(admin: Admin, name: str = "s") -> int:
    return admin.topics().get_stats("t").subscriptions[name].msg_backlog


def test_rows_of_batches(tmp_path):
    """Batches that end within entries have every message once, in order."""
    with Client(tmp_path) as client, client.create_producer("t") as producer:
        sent = [b"%03d" % i for i in range(250)]
        producer.send_many(sent, batching_max_messages=100)
    reader = source(tmp_path, maxOffsetsPerTrigger="70")
    limit = reader.getDefaultReadLimit()
    start, found = reader.initialOffset(), []
    while (end := reader.latestOffset(start, limit)) != start:
        found.append(values(reader, start, end))
        start = end
    assert list(map(len, found)) == [70, 70, 70, 40]
    assert [value for batch in found for value in batch] == sent
    everything = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert everything == start


def test_limits_that_spark_is_given(tmp_path):
    """It knows limits of one kind; with both, the other is applied by the source."""
    assert source(tmp_path).getDefaultReadLimit() == ReadAllAvailable()
    assert source(tmp_path, maxBytesPerTrigger="1k").getDefaultReadLimit() == ReadMaxBytes(1024)
    both = source(tmp_path, maxBytesPerTrigger="1k", maxOffsetsPerTrigger="5")
    assert both.getDefaultReadLimit() == ReadMaxRows(5)


def test_the_subscription_follows(tmp_path):
    """It keeps the backlog from the start on, drains with each commit, and outlives the query."""
    with Admin(tmp_path) as admin, Client(tmp_path) as client:
        producer = client.create_producer("t")
        producer.send_many([b"x"] * 30, batching_max_messages=10)
        reader = source(tmp_path, subscription="s", maxOffsetsPerTrigger="15")
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxRows(15))
        assert backlog(admin) == 30
        (consumer,) = admin.topics().get_stats("t").subscriptions["s"].consumers
        assert consumer.consumer_name == "spark"
        reader.commit(end)
        assert backlog(admin) == 20  # five of the second batch were read, which counts as not read
        last = reader.latestOffset(end, ReadMaxRows(15))
        assert reader.latestOffset(last, ReadMaxRows(15)) == last  # nothing follows, so Spark commits nothing
        assert backlog(admin) == 0
        reader.stop()
        assert not admin.topics().get_stats("t").subscriptions["s"].consumers
        producer.send_many([b"y"] * 4)
        assert backlog(admin) == 4
        log = log_of(client, "t")
        log.roll()
        again = source(tmp_path, subscription="s")
        last = again.latestOffset(end, ReadAllAvailable())
        assert values(again, end, last)[-4:] == [b"y"] * 4
        again.commit(last)
        assert backlog(admin) == 0
        again.stop()


def test_the_subscription_is_moved_meanwhile(tmp_path):
    """By an operator, forwards or back: the query reads what it would have, and its next commit holds."""
    with Admin(tmp_path) as admin, Client(tmp_path) as client:
        producer = client.create_producer("t")
        first = producer.send(b"0")
        reader = source(tmp_path, subscription="s")
        start = end = reader.initialOffset()
        for number, move in enumerate(
            (
                lambda: admin.topics().skip_all_messages("t", "s"),
                lambda: admin.topics().reset_cursor("t", "s", first),
            ),
            1,
        ):
            before, end = end, reader.latestOffset(end, ReadAllAvailable())
            move()
            producer.send_many([b"%d" % number] * 2)
            log_of(client, "t").roll()
            assert values(reader, before, end) == [b"%d" % (number - 1)] * (1 if number == 1 else 2)
            reader.commit(end)
            assert backlog(admin) == 2
        end = reader.latestOffset(end, ReadAllAvailable())
        assert values(reader, start, end) == [b"0", b"1", b"1", b"2", b"2"]
        reader.commit(end)
        assert backlog(admin) == 0
        reader.stop()


def test_a_new_subscription_begins_where_the_query_does(tmp_path):
    """What the query will never read is no backlog."""
    with Admin(tmp_path) as admin, Client(tmp_path) as client:
        client.create_producer("t").send_many([b"x"] * 30)
        reader = source(tmp_path, subscription="s", startingOffsets="latest")
        start = reader.initialOffset()
        assert reader.latestOffset(start, ReadAllAvailable()) == start
        assert backlog(admin) == 0
        reader.stop()


def test_a_subscription_of_another(tmp_path):
    """A query does not take it over: its first commit fails. Once it is free, the commit succeeds."""
    with Admin(tmp_path) as admin, Client(tmp_path) as client:
        client.create_producer("t").send(b"x")
        other = client.subscribe("t", "s", initial_position=InitialPosition.Earliest)
        reader = source(tmp_path, subscription="s")
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        with pytest.raises(ConsumerBusy):
            reader.commit(end)
        other.close()
        reader.commit(end)
        assert backlog(admin) == 0
        reader.stop()


def test_a_subscription_of_a_topic_that_was_made_again(tmp_path):
    """The query attaches to the new topic."""
    with Admin(tmp_path) as admin, Client(tmp_path) as client:
        with client.create_producer("t") as producer:
            producer.send(b"x")
        reader = source(tmp_path, subscription="s", failOnDataLoss="false")
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        reader.commit(end)
        admin.topics().delete("t", force=True)
        with client.create_producer("t") as producer:
            producer.send_many([b"y"] * 2)
        after = reader.latestOffset(end, ReadAllAvailable())
        assert values(reader, end, after) == [b"y"] * 2
        reader.commit(after)
        assert backlog(admin) == 0
        reader.stop()
