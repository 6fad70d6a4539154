"""Batch reads through a real Spark session."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from embeddedpulsar import Admin, Client
from embeddedpulsar._engine.format.columns import EntryFields
from embeddedpulsar._engine.format.entry import EntryContent, ProducerPrefix, encode, encode_pulsar
from embeddedpulsar.arrow import ALL_COLUMNS, read_topic
from tests.support.log_files import BASE_MS, LogFiles, write_topic
from tests.support.pulsar_entries import PulsarEntry, PulsarMessage

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def load(spark: Any, root: Any, topic: str = "t", **options: str) -> Any:
    """A DataFrame of a topic."""
    reader = spark.read.format("embeddedpulsar").option("path", str(root)).option("topic", topic)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


@pytest.fixture
def rich(tmp_path):
    """A topic with keys, ordering keys, properties, event times, nulls and two codecs."""
    log = LogFiles(tmp_path)
    producer = ProducerPrefix("producer")
    for i in range(4):
        content = EntryContent(
            [b"v%d" % i, b""],
            10 * i,
            keys=["key", None],
            ordering_keys=[None, "o"],
            properties=[{"a": "1"}, None],
            event_times=[0, 1_700_000_000_123],
            null_values=[False, True],
        )
        log.append(encode(content, producer, i % 3), BASE_MS + i)
    log.finish()
    return tmp_path


def test_found_without_registration(spark, rich):
    """Spark knows the format because the discovery module is on the path; rows are those of Arrow."""
    frame = load(spark, rich)
    assert tuple(frame.columns) == ALL_COLUMNS
    found = frame.orderBy("__messageId").toArrow()
    assert found.to_pylist() == read_topic(rich, "t").to_pylist()


def test_keys_of_bytes_and_entries_of_pulsar(spark, tmp_path):
    """Rows are those of Arrow, also where a filter on keys is pushed down: their text, not their hash."""
    log, producer = LogFiles(tmp_path), ProducerPrefix("p")
    content = EntryContent(
        [b"own"], batched=False, keys=[b"\xff"], fields=EntryFields(replicated_from="east")
    )
    log.append(encode(content, producer), BASE_MS)
    log.append(encode(EntryContent([b"x" * 200], keys=["text"], null_keys=[False]), producer, 5), BASE_MS)
    batch = PulsarEntry([PulsarMessage(b"a", b"\xff", b"\xfe"), PulsarMessage(b"b", "text")], compression=4)
    log.append(encode_pulsar(batch.encoded()), BASE_MS)
    log.finish()
    frame = load(spark, tmp_path)
    assert frame.orderBy("__messageId").toArrow().to_pylist() == read_topic(tmp_path, "t").to_pylist()
    keyed = frame.where("__key = cast('/w==' as binary)").orderBy("__messageId")
    assert [bytes(row.value) for row in keyed.collect()] == [b"own", b"a"]


def test_values_of_every_column(spark, rich):
    """Bytes, nulls, maps and times arrive as Spark's own types."""
    keyed, unkeyed = load(spark, rich, endingOffsets="7:1").orderBy("__sequenceId").collect()
    assert (bytes(keyed["value"]), unkeyed["value"]) == (b"v0", None)
    assert (bytes(keyed["__key"]), unkeyed["__key"]) == (b"key", None)
    assert (keyed["__messageProperties"], unkeyed["__messageProperties"]) == ({"a": "1"}, {})
    assert keyed["__eventTime"] is None
    assert unkeyed["__eventTime"] == datetime.fromtimestamp(1_700_000_000.123, UTC).replace(tzinfo=None)
    assert (keyed["__partition"], keyed["__sequenceId"], keyed["__producerName"]) == (-1, 0, "producer")
    assert keyed["__topic"] == "persistent://public/default/t"


def test_projection(spark, rich):
    """Option `columns` and a schema of the user both decide what is read."""
    assert load(spark, rich, columns="value,__key").columns == ["value", "__key"]
    frame = spark.read.schema("__key binary, value binary").format("embeddedpulsar")
    frame = frame.option("path", str(rich)).option("topic", "t").load()
    assert frame.columns == ["__key", "value"]
    assert frame.where("__key is not null").count() == 4


def test_partitions_and_groups(spark, tmp_path):
    """Many partitions give the rows of one, and aggregate right."""
    write_topic(tmp_path, "t", [3] * 40, per_ledger=15)
    frame = load(spark, tmp_path, minPartitions="6")
    assert frame.rdd.getNumPartitions() >= 6
    counts = frame.groupBy("value").count().collect()
    assert len(counts) == 40
    assert {row["count"] for row in counts} == {3}


def test_sql_and_several_topics(spark, tmp_path):
    """A view in SQL over a pattern of topics; an empty topic adds nothing."""
    write_topic(tmp_path, "a-1", [2])
    write_topic(tmp_path, "a-2", [3], first_ledger=8)
    write_topic(tmp_path, "a-empty", [], first_ledger=9)
    options = f"path '{tmp_path}', topicsPattern 'a-.*'"
    spark.sql(f"create or replace temporary view v using embeddedpulsar options ({options})")
    rows = spark.sql("select __topic, count(*) n from v group by 1 order by 1").collect()
    assert [(row["__topic"][-3:], row["n"]) for row in rows] == [("a-1", 2), ("a-2", 3)]
    assert load(spark, tmp_path, "a-empty").count() == 0


def test_a_frame_keeps_its_plan(spark, tmp_path):
    """What is published after loading is seen by a new DataFrame, not by the old one."""
    log = write_topic(tmp_path, "t", [2])
    frame = load(spark, tmp_path)
    assert frame.count() == 2
    log.append(encode(EntryContent([b"new"]), ProducerPrefix("p")), BASE_MS + 50)
    log.finish()
    assert frame.count() == 2
    assert load(spark, tmp_path).count() == 3


def test_pushdown_reads_less_and_changes_nothing(spark, tmp_path, request):
    """After `register`, a range of publish time plans only its entries; the answer is that of a full scan."""
    import embeddedpulsar.spark
    from embeddedpulsar.spark.data_source import DefaultSource

    def without_pushdown() -> None:
        spark.conf.unset(embeddedpulsar.spark.PUSHDOWN_SETTING)
        spark.dataSource.register(DefaultSource)

    write_topic(tmp_path, "t", [1] * 200, per_ledger=50)
    low = datetime.fromtimestamp((BASE_MS + 120) / 1000, UTC)
    condition = f"__publishTime >= timestamp '{low.isoformat()}' and __publishTime < timestamp '2000-01-01'"
    wanted = [b"%020d" % number for number in range(120, 200)]
    request.addfinalizer(without_pushdown)
    embeddedpulsar.spark.register(spark)
    pushed = load(spark, tmp_path, maxPartitionBytes="1").where(condition)
    assert sorted(bytes(row["value"]) for row in pushed.collect()) == wanted
    # One task to an entry: the number of tasks is the number of entries that were planned.
    assert pushed.rdd.getNumPartitions() == 80
    log, producer = LogFiles(tmp_path, "keyed", first_ledger=99), ProducerPrefix("p")
    for i in range(12):
        log.append(encode(EntryContent([b"v" * 70_000], i, False, keys=[f"k{i % 3}"]), producer), BASE_MS)
    log.finish()
    keyed = load(spark, tmp_path, "keyed", maxPartitionBytes="1").where("__key = 'k1'")
    assert keyed.rdd.getNumPartitions() == 4


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda spark, root: load(spark, root, nonsense="1").count(), "unknown option nonsense"),
        (lambda spark, root: load(spark, root, "absent").count(), "absent is not in"),
        (
            lambda spark, root: load(spark, root).write.format("embeddedpulsar").mode("append").save(),
            "option path is missing",
        ),
        (
            lambda spark, root: (
                spark.readStream.format("embeddedpulsar")
                .option("path", str(root))
                .option("topic", "absent")
                .load()
                .writeStream.format("noop")
                .start()
                .processAllAvailable()
            ),
            "absent is not in",
        ),
    ],
)
def test_errors_reach_the_user(spark, tmp_path, act, text):
    """What is wrong, or not there, stands in the text of Spark's own exception."""
    write_topic(tmp_path, "t", [1])
    with pytest.raises(Exception) as caught:
        act(spark, tmp_path)
    assert re.search(text, str(caught.value))


@pytest.mark.parametrize("fail", ["true", "false"])
def test_damage(spark, tmp_path, fail):
    """A damaged entry fails the query with a stable code, or is left out."""
    log = write_topic(tmp_path, "t", [2] * 10)
    content = bytearray(log.log_path(9).read_bytes())
    content[log.written[6][3] + 60] ^= 1
    log.log_path(9).write_bytes(content)
    frame = load(spark, tmp_path, failOnDataLoss=fail)
    if fail == "false":
        assert frame.count() == 18
    else:
        with pytest.raises(Exception, match=r"EMBEDDEDPULSAR_DATA_LOSS.*entry 1 of"):
            frame.count()


def test_a_partitioned_topic(spark, tmp_path):
    """All partitions by the name of the topic, each known by its number."""
    with Admin(tmp_path) as admin, Client(tmp_path) as client:
        admin.topics().create_partitioned_topic("t", 3)
        with client.create_producer("t") as producer:
            for _ in range(6):
                producer.send(b"one")
    frame = load(spark, tmp_path)
    counts = frame.groupBy("__partition").count().orderBy("__partition").collect()
    assert [(row["__partition"], row["count"]) for row in counts] == [(0, 2), (1, 2), (2, 2)]
    assert load(spark, tmp_path).where("__partition = 1").count() == 2
