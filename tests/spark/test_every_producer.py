"""Topics as producers of every kind leave them, through a real Spark session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client
from tests.conformance.chunks import HalfSent, log_of, payload
from tests.support.key_files import key_files
from tests.support.mixed_topics import (
    LIMIT,
    TOPIC,
    MixedTopic,
    Row,
    make_store,
    rows_of_messages,
    rows_of_table,
)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def _pushdown(spark: Any) -> Iterator[None]:
    """Filters are pushed down, as `register` has it."""
    import embeddedpulsar.spark
    from embeddedpulsar.spark.data_source import DefaultSource

    embeddedpulsar.spark.register(spark)
    yield
    spark.conf.unset(embeddedpulsar.spark.PUSHDOWN_SETTING)
    spark.dataSource.register(DefaultSource)


def load(spark: Any, root: Path, topic: str = TOPIC, **options: str) -> Any:
    """A DataFrame of a topic."""
    reader = spark.read.format("embeddedpulsar").option("path", str(root)).option("topic", topic)
    return reader.options(**options).load()


def rows(frame: Any) -> list[Row]:
    """Its rows in an order that does not depend on tasks."""
    return sorted(rows_of_table(frame.toArrow()), key=by_place)


def by_place(row: Row) -> tuple[str, bytes]:
    return row["__topic"], row["__messageId"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[Row]]:
    """A partitioned topic of which some is encrypted, the path of the key, and what a Reader gets."""
    directory = tmp_path_factory.mktemp("mixed")
    keys, root = key_files(directory), directory / "store"
    make_store(root)
    with Client(root) as client:
        topic = MixedTopic(client, 5, keys=keys, partitions=3)
        topic.run(25)
        found = rows_of_messages(client, topic.logs(), keys)
    assert max(len(row["value"] or b"") for row in found) > LIMIT
    return root, keys.private_key_path, sorted(found, key=by_place)


@pytest.mark.parametrize("bytes_of_a_task", ["64m", "4000"])
def test_rows_are_messages(spark: Any, mixed: tuple[Path, str, list[Row]], bytes_of_a_task: str):
    """Every column of every row is that of a Reader's message, however the topic is cut into tasks."""
    root, key, wanted = mixed
    frame = load(spark, root, cryptoPrivateKeyPath=key, maxPartitionBytes=bytes_of_a_task)
    assert rows(frame) == wanted


def test_filters_change_nothing(spark: Any, mixed: tuple[Path, str, list[Row]]):
    """Pushed down or not, they give the rows that a filter over all of them gives."""
    root, key, wanted = mixed
    middle = wanted[len(wanted) // 2]["__publishTime"]
    frame = load(spark, root, cryptoPrivateKeyPath=key, minPartitions="4")
    kept: dict[str, Any] = {
        f"__publishTime >= timestamp_millis({middle})": lambda row: row["__publishTime"] >= middle,
        f"__publishTime < timestamp_millis({middle})": lambda row: row["__publishTime"] < middle,
        f"__publishTime = timestamp_millis({middle})": lambda row: row["__publishTime"] == middle,
        "__partition in (0, 2) and value is null": lambda row: (
            row["__partition"] in (0, 2) and row["value"] is None
        ),
        f"length(value) > {LIMIT} and __topic like '%-partition-%'": lambda row: (
            len(row["value"] or b"") > LIMIT
        ),
        "__key = cast('k1' as binary) or __eventTime > timestamp_millis(1)": lambda row: (
            row["__key"] == b"k1" or (row["__eventTime"] or 0) > 1
        ),
        "__messageProperties['p1'] is not null": lambda row: "p1" in row["__messageProperties"],
    }
    for condition, is_kept in kept.items():
        expected = [row for row in wanted if is_kept(row)]
        assert rows(frame.where(condition)) == expected, condition
        assert expected, condition


def test_encrypted_messages(spark: Any, tmp_path: Path):
    """Keys by name; without one an error that names the option, or the rows of the others."""
    root = tmp_path / "store"
    keys = {kind: key_files(tmp_path, kind) for kind in ("rsa", "ec")}
    with Client(root) as client:
        for kind, pair in keys.items():
            with client.create_producer("t", encryption_key=kind, crypto_key_reader=pair) as producer:
                producer.send_many([kind.encode()] * 100)
    paths = {kind: pair.private_key_path for kind, pair in keys.items()}

    def counts(**options: str) -> dict[str, int]:
        frame = load(spark, root, "t", columns="value", **options).groupBy("value").count()
        return {bytes(row["value"]).decode(): row["count"] for row in frame.collect()}

    assert counts(cryptoPrivateKeyPath=json.dumps(paths)) == {"rsa": 100, "ec": 100}
    assert counts(cryptoPrivateKeyPath=paths["ec"], cryptoFailureAction="discard") == {"ec": 100}
    for options in ({}, {"cryptoPrivateKeyPath": paths["ec"]}):
        with pytest.raises(Exception, match=r"entry 0 of .*the option cryptoPrivateKeyPath of Spark"):
            counts(**options)
    with pytest.raises(Exception, match="use FAIL or DISCARD"):
        counts(cryptoFailureAction="CONSUME")
    assert load(spark, root, "t", columns="__publishTime,__producerName").count() == 200


def test_chunked_messages_over_tasks_and_segments(spark: Any, tmp_path: Path):
    """One row each with the whole value, in whichever task; what never came whole is no row."""
    root = tmp_path / "store"
    make_store(root, brokerDeduplicationEnabled="false")
    with Client(root) as client:
        producer = client.create_producer("t", chunking_enabled=True)
        slow = [HalfSent(producer, payload(7 * LIMIT, seed)).send(2) for seed in range(3)]
        producer.send(payload(5 * LIMIT, 3))
        log_of(client, "t").roll()
        for seed in (1, 0):
            slow[seed].finish()
        producer.send(b"small")
        HalfSent(producer, payload(4 * LIMIT, 4)).send(3)  # the end of the log; it has no last part either
        frame = load(spark, root, "t", maxPartitionBytes="2000", columns="value,__sequenceId")
        assert frame.rdd.getNumPartitions() > 15
        found = {row["__sequenceId"]: bytes(row["value"]) for row in frame.collect()}
    whole = {0: payload(7 * LIMIT, 0), 1: payload(7 * LIMIT, 1), 3: payload(5 * LIMIT, 3), 4: b"small"}
    assert found == whole


def test_trimmed_since_the_plan(spark: Any, tmp_path: Path):
    """A DataFrame that was planned before fails with a stable code, or reads the rest; a new one is whole."""
    make_store(tmp_path / "store")
    with Client(tmp_path / "store") as client:
        producer = client.create_producer("t")
        log = log_of(client, "t")
        for _ in range(3):
            producer.send_many([b"x"] * 10)
            log.roll()
        producer.send(b"last")
        strict, lenient = (
            load(spark, tmp_path / "store", "t", failOnDataLoss=fail) for fail in ("true", "false")
        )
        assert strict.count() == lenient.count() == 31
        log.trim_before(log.segments()[-2].ledger_id)
        with pytest.raises(Exception, match=r"EMBEDDEDPULSAR_DATA_LOSS.*ledger \d+ was trimmed after"):
            strict.count()
        assert lenient.count() == 11
        assert load(spark, tmp_path / "store", "t").count() == 11


def test_partitions_that_are_added(spark: Any, tmp_path: Path):
    """They are in the next DataFrame, by the name of the topic and by a pattern."""
    with Admin(tmp_path) as admin, Client(tmp_path) as client:
        admin.topics().create_partitioned_topic("t", 2)
        with client.create_producer("t") as producer:
            producer.send_many([b"x"] * 100, batching_max_messages=10)
        before = load(spark, tmp_path, "t")
        assert before.count() == 100
        admin.topics().update_partitioned_topic("t", 4)
        with client.create_producer("t-partition-3") as producer:
            producer.send_many([b"y"] * 5)
        assert before.count() == 100
        reader = spark.read.format("embeddedpulsar").option("path", str(tmp_path))
        for frame in (load(spark, tmp_path, "t"), reader.option("topicsPattern", "t").load()):
            counts = {
                row["__partition"]: row["count"] for row in frame.groupBy("__partition").count().collect()
            }
            assert counts == {0: 50, 1: 50, 3: 5}
