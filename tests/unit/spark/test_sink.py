"""Writes without Spark: what becomes of rows, of attempts that fail, and of batches that come again."""

from __future__ import annotations

import errno
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from pyspark.sql.types import BinaryType, StructField, StructType

from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition
from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar.arrow import read_topic
from embeddedpulsar.exceptions import (
    InvalidConfiguration,
    MessageTooBig,
    ProducerBusy,
    StorageFullError,
    TopicTerminated,
)
from embeddedpulsar.spark import finish_commits, sink_commit, sink_writer
from embeddedpulsar.spark.sink_place import PENDING, sinks_of
from embeddedpulsar.testing import assert_clean
from embeddedpulsar.testing.manual_clock import ManualClock
from tests.children import die_at
from tests.conformance.chunks import log_of
from tests.support.disks.faulty_disk import FaultyDisk
from tests.support.sinks import batch_of, schema_of, source, staged, write

assert sink_commit, sink_writer  # imported: they declare the steps
POINTS = sorted(name for name in failpoints.names() if name.startswith("sink:"))


def rows_of(root: Path, topic: str, *columns: str) -> list[Any]:
    """The rows of a topic, in order; values alone unless columns are named."""
    table = read_topic(root, topic, columns or ("value",))
    return table.to_pylist() if columns else table.column("value").to_pylist()


def left(root: Path) -> list[str]:
    """The files that sinks have, without locks and without what they remember."""
    found = [path.name for path in (root / "sinks").rglob("*") if path.is_file()]
    return sorted(name for name in found if name not in ("lock", "done"))


def test_columns_become_fields_of_messages(tmp_path: Path):
    """Readers and consumers see the rows as messages that any producer sent."""
    time = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    rows = {
        "value": [b"one", None],
        "__key": [b"k", None],
        "__orderingKey": [None, b"o"],
        "__eventTime": [time, None],
        "__messageProperties": [[("a", "1")], []],
    }
    write(tmp_path, rows, topic="t", producerName="sink")
    columns = ("value", "__key", "__orderingKey", "__eventTime", "__messageProperties", "__producerName")
    found = rows_of(tmp_path, "t", *columns)
    assert [row["__producerName"] for row in found] == ["sink", "sink"]
    assert [{name: row[name] for name in rows} for row in found] == batch_of(rows).to_pylist()
    with Client(tmp_path) as client:
        consumer = client.subscribe("t", "s", initial_position=InitialPosition.Earliest)
        first, second = consumer.receive(1000), consumer.receive(1000)
        assert (first.data(), first.partition_key(), first.properties()) == (b"one", "k", {"a": "1"})
        assert (second.ordering_key(), second.data()) == ("o", b"")
    assert left(tmp_path) == []
    assert_clean(tmp_path)


def test_many_topics_and_partitions(tmp_path: Path):
    """A row goes where column __topic says, and there to the partition where a producer would send it."""
    with Admin(tmp_path) as admin, Client(tmp_path) as client:
        admin.topics().create_partitioned_topic("p", 3)
        client.create_producer("p").send_many([b"x"] * 50, partition_keys=[f"k{i}" for i in range(50)])
    expected = {row["__key"]: row["__partition"] for row in rows_of(tmp_path, "p", "__key", "__partition")}
    names = ["p" if i % 2 else "plain" for i in range(100)]
    write(
        tmp_path,
        {
            "value": [b"%d" % i for i in range(100)],
            "__key": [b"k%d" % (i // 2) for i in range(100)],
            "__topic": names,
        },
        {"value": [b"last"], "__key": [None], "__topic": ["p"]},
    )
    found = rows_of(tmp_path, "p", "value", "__key", "__partition")
    assert len(found) == 101
    assert {row["__key"]: row["__partition"] for row in found if row["__key"]} == expected
    assert rows_of(tmp_path, "plain") == [b"%d" % i for i in range(0, 100, 2)]
    assert_clean(tmp_path)


def test_delayed_rows(tmp_path: Path):
    """A row with __deliverAt is delivered then, the others at once."""
    later = datetime(2100, 1, 1, tzinfo=UTC)
    write(
        tmp_path,
        {"value": [b"later", b"now"], "__key": [b"k", None], "__deliverAt": [later, None]},
        topic="t",
    )
    assert sorted(rows_of(tmp_path, "t")) == [b"later", b"now"]
    with Client(tmp_path) as client:
        consumer = client.subscribe("t", "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        assert consumer.receive(1000).data() == b"now"
        with pytest.raises(Exception, match=r"(?i)time"):
            consumer.receive(10)


def test_large_rows(tmp_path: Path):
    """Entries are cut to what the store takes; a row that is too large is refused by its task."""
    (tmp_path / "broker.conf").write_text("maxMessageSize=65536\n")
    write(tmp_path, {"value": [b"x" * 30_000] * 9}, topic="t")
    assert [len(value) for value in rows_of(tmp_path, "t")] == [30_000] * 9
    with pytest.raises(MessageTooBig, match=r"a row for .*default/t has 70"):
        write(tmp_path, {"value": [b"y" * 70_000]}, topic="t")
    assert len(rows_of(tmp_path, "t")) == 9
    assert left(tmp_path) == []


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_topic_that_takes_less_than_the_store(tmp_path: Path, guarantee: str):
    """Entries are as large as its own limit allows; a row that is larger is refused by its task."""
    with Admin(tmp_path) as admin:
        admin.topics().create_partitioned_topic("small", 2)
        admin.topics().set_max_message_size("small", 1000)
    write(tmp_path, {"value": [b"x" * 100] * 50}, topic="small", deliveryGuarantee=guarantee)
    assert len(rows_of(tmp_path, "small", "value")) == 50
    with pytest.raises(MessageTooBig, match=r"small has 2008 .* maxMessageSize is 1000"):
        write(tmp_path, {"value": [b"x", b"x" * 2000]}, topic="small", deliveryGuarantee=guarantee)
    assert left(tmp_path) == []
    assert len(rows_of(tmp_path, "small", "value")) == (50 if guarantee == "exactly-once" else 51)


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("is_delayed", [False, True])
def test_rows_of_nearly_the_largest_size(tmp_path: Path, guarantee: str, is_delayed: bool):
    """A row is published, or refused by its task: never decided upon and refused by the topic afterwards."""
    with Admin(tmp_path) as admin:
        admin.topics().create_non_partitioned_topic("small")
        admin.topics().set_max_message_size("small", 1000)
    options = {"topic": "small", "deliveryGuarantee": guarantee}
    times = [datetime(2100, 1, 1, tzinfo=UTC)] if is_delayed else [None]
    is_stored = []
    for size in range(936, 1001, 8):
        try:
            write(tmp_path, {"value": [b"x" * size], "__deliverAt": times}, **options)
            reason = ""
        except MessageTooBig as error:
            reason = str(error)
        assert not reason or "a row for" in reason
        is_stored.append(not reason)
        assert len(rows_of(tmp_path, "small")) == sum(is_stored)
    assert sorted(is_stored, reverse=True) == is_stored
    assert set(is_stored) == {True, False}
    with Client(tmp_path) as client:
        consumer = client.subscribe(
            "small", "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest
        )
        count = sum(1 for _ in iter(consumer.receive_nowait, None))
        assert count == (0 if is_delayed else sum(is_stored))
    assert left(tmp_path) == []
    assert_clean(tmp_path)


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_entries_of_nearly_the_largest_size(tmp_path: Path, guarantee: str):
    """Several rows that fit a topic but for the name of the producer are divided, and are all published."""
    with Admin(tmp_path) as admin:
        admin.topics().create_non_partitioned_topic("small")
        admin.topics().set_max_message_size("small", 1000)
    for size in range(472, 497, 4):
        rows = {"value": [b"x" * size] * 2}
        write(tmp_path, rows, topic="small", deliveryGuarantee=guarantee, producerName="a-long-name")
    assert len(rows_of(tmp_path, "small")) == 2 * 7
    assert left(tmp_path) == []
    assert_clean(tmp_path)


def test_a_batch_is_stored_once(tmp_path: Path):
    """By producer and number: what comes again, with other rows too, is not stored; the next number is."""
    options = {"topic": "t", "producerName": "sink"}
    write(tmp_path, {"value": [b"a"]}, batchId="1", **options)
    write(tmp_path, {"value": [b"again"]}, batchId="1", **options)
    write(tmp_path, {"value": [b"b"]}, batchId="2", **options)
    write(tmp_path, {"value": [b"old"]}, batchId="1", **options)
    assert rows_of(tmp_path, "t") == [b"a", b"b"]
    write(tmp_path, {"value": [b"unnumbered"]}, **options)
    assert rows_of(tmp_path, "t")[2:] == [b"unnumbered"]


def test_losing_attempts_and_aborted_jobs_leave_nothing(tmp_path: Path):
    """What the commit does not name is not stored, and is removed with it."""
    batch = batch_of({"value": [b"x"]})
    writer = source(tmp_path, topic="t").writer(schema_of(batch), False)
    staged(writer, [{"value": [b"loser"]}])
    writer.commit([*staged(writer, [{"value": [b"winner"]}]), None])
    assert rows_of(tmp_path, "t") == [b"winner"]
    writer = source(tmp_path, topic="t").writer(schema_of(batch), False)
    writer.abort([*staged(writer, [{"value": [b"aborted"]}]), None])
    assert rows_of(tmp_path, "t") == [b"winner"]
    assert left(tmp_path) == []


@pytest.mark.parametrize("deduplicates", [False, True], ids=["plain", "deduplicated"])
@pytest.mark.parametrize("point", [*POINTS, "append:tail_stored", "document:written", "document:replaced"])
def test_killed_at(tmp_path: Path, point: str, deduplicates: bool):
    """A commit of two topics that is killed at any step is done whole when the batch comes again, or nothing
    is left of it; the batch that comes again has other rows, which tell the two."""
    if deduplicates:
        (tmp_path / "broker.conf").write_text("brokerDeduplicationEnabled=true\n")
    tasks = [
        {
            "value": [b"%d-%d" % (task, i) for i in range(20)],
            "__topic": ["t" if i % 2 else "u" for i in range(20)],
        }
        for task in range(3)
    ]
    again = [
        {name: [b"again" if name == "value" else one for one in rows] for name, rows in task.items()}
        for task in tasks
    ]
    options = {"producerName": "sink"}
    write(tmp_path, {"value": [b"first"], "__topic": ["t"]}, batchId="0", **options)
    nth = 2 if point in ("sink:publishing", "append:tail_stored", "sink:staged") else 1
    assert die_at(point, lambda: write(tmp_path, *tasks, batchId="1", **options), nth)
    write(tmp_path, *again, batchId="1", **options)
    write(tmp_path, {"value": [b"last"], "__topic": ["t"]}, batchId="2", **options)
    found = {topic: rows_of(tmp_path, topic) for topic in "tu"}
    assert (found["t"][0], found["t"][-1]) == (b"first", b"last")
    middle = {"t": found["t"][1:-1], "u": found["u"]}
    first_run = {
        "t": [b"%d-%d" % (n, i) for n in range(3) for i in range(1, 20, 2)],
        "u": [b"%d-%d" % (n, i) for n in range(3) for i in range(0, 20, 2)],
    }
    second_run = {name: [b"again"] * 30 for name in "tu"}
    assert middle in (first_run, second_run)
    assert left(tmp_path) == []
    assert not list((tmp_path / "topics").rglob("pins/*.*"))
    assert_clean(tmp_path)


def test_a_commit_of_a_dead_job_is_finished_by_others(tmp_path: Path):
    """By the next commit to the store, or by a call."""
    assert die_at("sink:publishing", lambda: write(tmp_path, {"value": [b"a"] * 3}, topic="t"))
    assert die_at("sink:pending", lambda: write(tmp_path, {"value": [b"b"] * 3}, topic="t"))
    assert rows_of(tmp_path, "t") == [b"a"] * 3
    assert finish_commits(tmp_path) == 3
    assert finish_commits(tmp_path) == 0
    assert rows_of(tmp_path, "t") == [b"a"] * 3 + [b"b"] * 3
    assert left(tmp_path) == []


@pytest.mark.parametrize("rows", [0, 3, 1_000_000], ids=["none", "few", "many"])
def test_a_task_that_fails(tmp_path: Path, rows: int):
    """Whenever it does, and however often, it leaves nothing; another attempt stores its rows once."""
    batch = batch_of({"value": [b"x"] * rows})
    writer = source(tmp_path, topic="t").writer(schema_of(batch), False)

    def failing() -> Any:
        yield batch
        raise RuntimeError("a row that the query cannot compute")

    for _ in range(3):
        with pytest.raises(RuntimeError, match="cannot compute"):
            writer.write(failing())
        assert left(tmp_path) == []
    staged(writer, [{"value": [b"lost on the way"]}])  # it ended, and the driver does not know
    writer.commit([writer.write(iter([batch_of({"value": [b"y"]})]))])
    assert rows_of(tmp_path, "t") == [b"y"]
    assert left(tmp_path) == []


def test_upkeep_finishes_a_commit_of_a_dead_job(tmp_path: Path):
    """A consumer gets the rest of the batch without any other write; not while a process commits."""
    assert die_at("sink:publishing", lambda: write(tmp_path, {"value": [b"a"] * 3}, topic="t"))
    (place,) = sinks_of(str(tmp_path))
    with ManualClock() as clock, Client(tmp_path) as client:
        consumer = client.subscribe("t", "s", initial_position=InitialPosition.Earliest)

        place.locked(lambda: clock.advance(60))
        assert left(tmp_path) != []
        clock.advance(60)
        assert [consumer.receive(1000).data() for _ in range(3)] == [b"a"] * 3
    assert left(tmp_path) == []
    assert_clean(tmp_path)


def test_a_damaged_commit_stops_no_other(tmp_path: Path):
    """Its sink alone waits for a repair."""
    assert die_at("sink:pending", lambda: write(tmp_path, {"value": [b"a"]}, topic="t", producerName="p"))
    (place,) = sinks_of(str(tmp_path))
    Path(place.file(PENDING)).write_bytes(b"damaged")
    write(tmp_path, {"value": [b"b"]}, topic="t")
    assert rows_of(tmp_path, "t") == [b"b"]


def test_trimming_waits_for_a_commit_that_was_begun(tmp_path: Path):
    """What was published of it tells how far it came, also if everybody has read it."""
    with Client(tmp_path) as client, Admin(tmp_path) as admin:
        consumer = client.subscribe("t", "s", ack_group_time_ms=0)
        task = {"value": [b"%d" % i for i in range(4)]}
        tasks = [task] * 3
        assert die_at(
            "sink:publishing", lambda: write(tmp_path, *tasks, topic="t", producerName="p", batchId="1"), 3
        )
        for _ in range(8):
            consumer.acknowledge(consumer.receive(1000))
        log_of(client, "t").roll()
        client.create_producer("t").send(b"x")
        admin.topics().trim_topic("t")
        assert [kept.reason for kept in admin.why_kept("t").ledgers] == ["pinned", "open"]
        write(tmp_path, {"value": [b"again"]}, topic="t", producerName="p", batchId="1")
        assert [consumer.receive(1000).data() for _ in range(5)] == [b"x", b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("is_staging", [True, False], ids=["staging", "publishing"])
def test_a_full_disk(tmp_path: Path, is_staging: bool):
    """While rows are staged, nothing is stored; while they are published, the next commit stores the rest."""
    options = {"topic": "t", "producerName": "p"}
    write(tmp_path, {"value": [b"first"]}, batchId="1", **options)

    def full(call: str, _: str) -> None:
        if call == "pwrite_all" and is_staging != bool(list(tmp_path.glob("sinks/*/pending"))):
            raise OSError(errno.ENOSPC, "no room")

    with disk.use(FaultyDisk()) as faulty:
        assert isinstance(faulty, FaultyDisk)
        faulty.on_call = full
        with pytest.raises(StorageFullError):
            write(tmp_path, *[{"value": [b"x" * 700_000] * 3}] * 2, batchId="2", **options)
    assert rows_of(tmp_path, "t") == [b"first"]
    write(tmp_path, {"value": [b"again"]}, batchId="2", **options)
    assert rows_of(tmp_path, "t")[1:] == ([b"again"] if is_staging else [b"x" * 700_000] * 6)
    assert left(tmp_path) == []
    assert_clean(tmp_path)


def test_a_topic_is_deleted_in_the_middle_of_a_commit(tmp_path: Path):
    """The rest of the commit makes it again, and stores all rows: none is in the new topic."""
    tasks = [{"value": [b"%d" % i for i in range(4)]}] * 3
    options = {"topic": "t", "producerName": "p", "batchId": "1"}
    assert die_at("sink:publishing", lambda: write(tmp_path, *tasks, **options), 3)
    with Admin(tmp_path) as admin:
        admin.topics().delete("t", force=True)
    assert finish_commits(tmp_path) == 12
    assert rows_of(tmp_path, "t") == [b"0", b"1", b"2", b"3"] * 3
    assert_clean(tmp_path)


def test_a_topic_that_takes_nothing(tmp_path: Path):
    """Is refused before anything is stored in another one."""
    with Admin(tmp_path) as admin, Client(tmp_path) as client:
        client.create_producer("u").send(b"x")
        admin.topics().terminate_topic("u")
    with pytest.raises(TopicTerminated):
        write(tmp_path, {"value": [b"a", b"b"], "__topic": ["t", "u"]})
    assert rows_of(tmp_path, "t") == []
    assert finish_commits(tmp_path) == 0


def test_the_producer_is_in_use(tmp_path: Path):
    """Two that publish under one name are refused, before anything is stored."""
    with Client(tmp_path) as client:
        other = client.create_producer("t", "sink")
        with pytest.raises(ProducerBusy):
            write(tmp_path, {"value": [b"x"]}, topic="t", producerName="sink", batchId="1")
        other.close()
    write(tmp_path, {"value": [b"y"]}, topic="t", producerName="sink", batchId="1")
    assert rows_of(tmp_path, "t") == [b"y"]


def test_at_least_once_needs_no_commit(tmp_path: Path):
    """Each task publishes its rows itself."""
    batch = batch_of({"value": [b"x"], "__key": [b"k"]})
    writer = source(tmp_path, topic="t", deliveryGuarantee="at-least-once").writer(schema_of(batch), False)
    messages = staged(writer, [{"value": [b"a", b"b"], "__key": [b"k", None]}])
    assert rows_of(tmp_path, "t") == [b"a", b"b"]
    writer.commit(messages)
    assert rows_of(tmp_path, "t") == [b"a", b"b"]
    assert not (tmp_path / "sinks").exists()


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ({"value": [b"x"]}, {}, "option topic, or a column __topic"),
        ({"value": [b"x"], "price": [b"x"]}, {"topic": "t"}, "column 'price' has no place in a message"),
        ({"__key": [b"x"]}, {"topic": "t"}, "needs a column value"),
        ({"value": [b"x"], "__eventTime": [b"x"]}, {"topic": "t", "batchId": "1"}, "batchId numbers"),
        ({"value": [b"x"]}, {"topic": "t", "failOnDataLoss": "true"}, "no option failondataloss"),
        ({"value": [b"x"]}, {"topic": "t", "compressionType": "x"}, "'x' is none of NONE"),
    ],
)
def test_what_is_refused(tmp_path: Path, columns: Any, options: dict[str, str], text: str):
    """Before a task runs, with the remedy."""
    schema = StructType([StructField(name, BinaryType()) for name in columns])
    for make in (source(tmp_path, **options).writer, source(tmp_path, **options).streamWriter):
        with pytest.raises(InvalidConfiguration, match=text):
            make(schema, False)


def test_overwriting_is_refused(tmp_path: Path):
    """A topic is a log: neither mode overwrite nor output mode complete replaces what it holds."""
    made = source(tmp_path, topic="t")
    schema = schema_of(batch_of({"value": [b"x"]}))
    for make in (made.writer, made.streamWriter):
        with pytest.raises(InvalidConfiguration, match=r'append.*outputMode\("append"\)'):
            make(schema, True)
