"""Planning of Spark reads: every message in exactly one task, from the entry index alone."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from embeddedpulsar import Admin, Client, TopicNotFound
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.spark.log_plan import DataLossError, Pruning, Task, plan_tasks, selected_logs
from embeddedpulsar.spark.options import parse_options
from tests.support.log_files import BASE_MS as BASE
from tests.support.log_files import write_topic


def plan(root: Path, pruning: Pruning | None = None, **options: str) -> list[Task]:
    """The tasks of a read of topic t."""
    named = {} if {"topics", "topicsPattern"} & options.keys() else {"topic": "t"}
    return plan_tasks(parse_options({"path": str(root)} | named | options), pruning or Pruning())


def entries(tasks: list[Task]) -> list[tuple[str, int, int]]:
    """(topic, ledger, entry) of all entries, task by task."""
    return [
        (piece.topic, piece.ledger_id, entry)
        for task in tasks
        for piece in task
        for entry in range(piece.first_entry, piece.end_entry)
    ]


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    most=st.sampled_from(["1", "200", "1000", "64m"]),
    least=st.sampled_from(["0", "1", "3", "50"]),
)
def test_tasks_tile_the_topic(tmp_path_factory, sizes, most, least):
    """However it is cut: every entry once, in order, and byte ranges that meet."""
    root = tmp_path_factory.mktemp("store")
    log = write_topic(root, "t", sizes)
    tasks = plan(root, maxPartitionBytes=most, minPartitions=least)
    assert entries(tasks) == [(log.name.full, ledger, entry) for ledger, entry, *_ in log.written]
    offsets = {(ledger, entry): (at, at + length) for ledger, entry, _ms, at, length in log.written}
    for task in tasks:
        for piece in task:
            assert piece.first_offset == offsets[piece.ledger_id, piece.first_entry][0]
            assert piece.end_offset == offsets[piece.ledger_id, piece.end_entry - 1][1]


def test_tasks_have_the_size_that_was_asked_for(tmp_path):
    """Large segments are cut in equal parts, small ones put together."""
    write_topic(tmp_path, "t", [10] * 100, per_ledger=50)
    total = sum(piece.size for task in plan(tmp_path) for piece in task)
    assert len(plan(tmp_path)) == 1
    for least in (2, 5, 10):
        tasks = plan(tmp_path, minPartitions=str(least))
        assert least <= len(tasks) <= least + 2
        assert max(sum(piece.size for piece in task) for task in tasks) <= 1.5 * total / least


def test_a_task_holds_one_log_and_can_be_sent(tmp_path):
    """Two topics are two tasks at least, and a task is plain data."""
    write_topic(tmp_path, "t", [3])
    write_topic(tmp_path, "u", [3], first_ledger=8)
    tasks = plan(tmp_path, topics="t,u")
    assert [{piece.topic for piece in task} for task in tasks] == [
        {"persistent://public/default/t"},
        {"persistent://public/default/u"},
    ]
    assert pickle.loads(pickle.dumps(tasks)) == tasks


@pytest.mark.parametrize("broken", ["lost", "zeros", "garbage"])
def test_the_index_is_never_believed_alone(tmp_path, broken):
    """With a lost or wrong index the plan is the same, from the frames."""
    log = write_topic(tmp_path, "t", [3] * 20, per_ledger=20)
    good = plan(tmp_path, minPartitions="4")
    pruned = plan(tmp_path, Pruning(BASE + 7, BASE + 9))
    path = log.index_path(7)
    if broken == "lost":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[4096:] = bytes(len(content) - 4096) if broken == "zeros" else b"\x5a" * (len(content) - 4096)
        path.write_bytes(content)
    assert plan(tmp_path, minPartitions="4") == good
    assert plan(tmp_path, Pruning(BASE + 7, BASE + 9)) == pruned
    assert [entry for _topic, _ledger, entry in entries(pruned)] == [7, 8]


@given(start=st.integers(-2, 33), end=st.integers(-2, 33))
def test_pruning_by_time_is_exact(tmp_path_factory, start, end):
    """Entries published in [start, end) are planned, no others: against a filter over all of them."""
    root = tmp_path_factory.mktemp("store")
    log = write_topic(root, "t", [2] * 30, per_ledger=7)
    tasks = plan(root, Pruning(BASE + start, BASE + end))
    wanted = [(ledger, entry) for ledger, entry, ms, *_ in log.written if BASE + start <= ms < BASE + end]
    assert [(ledger, entry) for _topic, ledger, entry in entries(tasks)] == wanted


def test_offsets_and_times_by_topic(tmp_path):
    """Each topic begins and ends where its own entry in the JSON says, the others at their ends."""
    write_topic(tmp_path, "t", [1] * 4)
    write_topic(tmp_path, "u", [1] * 4, first_ledger=8)
    tasks = plan(
        tmp_path,
        topics="t,u",
        startingOffsets='{"t": "7:1"}',
        endingTime=f'{{"u": {BASE + 2}}}',
    )
    assert [(topic[-1], entry) for topic, _ledger, entry in entries(tasks)] == [
        ("t", 1),
        ("t", 2),
        ("t", 3),
        ("u", 0),
        ("u", 1),
    ]


def test_a_start_that_was_trimmed_is_data_loss(tmp_path, caplog):
    """An explicit start before the log is an error, or a warning; "earliest" never is."""
    log = write_topic(tmp_path, "t", [1] * 10)
    log.finish(trim=9)
    with pytest.raises(DataLossError, match=r"\[EMBEDDEDPULSAR_DATA_LOSS\].*begins at 9:0"):
        plan(tmp_path, startingOffsets="7:2")
    tasks = plan(tmp_path, startingOffsets="7:2", failOnDataLoss="false")
    assert len(entries(tasks)) == 5
    assert "was trimmed" in caplog.text
    assert len(entries(plan(tmp_path, startingOffsets="earliest"))) == 5


def test_a_start_behind_the_end_is_an_error(tmp_path):
    """A log that ends before the start was reset, or is another: never silently nothing."""
    write_topic(tmp_path, "t", [1] * 3)
    assert plan(tmp_path, startingOffsets="7:3") == []
    for start in ("7:4", "9:0"):
        with pytest.raises(InvalidConfiguration, match="behind the end"):
            plan(tmp_path, startingOffsets=start, failOnDataLoss="false")


@pytest.mark.parametrize(
    ("start", "end", "kind"),
    [
        ("9:1", "7:2", "Offsets"),
        ("7:3", "7:2", "Offsets"),
        ("7:2:1", "7:2:0", "Offsets"),
        ('{"t": "9:0"}', "7:0", "Offsets"),
        ("1001", "1000", "Time"),
    ],
)
def test_a_start_behind_its_end_is_an_error(tmp_path, start, end, kind):
    """Both ends were mistyped or mixed up, if they are of one kind; a range of nothing is none."""
    write_topic(tmp_path, "t", [2] * 10)
    with pytest.raises(InvalidConfiguration, match=f"starting{kind} .* lies behind ending{kind} "):
        plan(tmp_path, **{f"starting{kind}": start, f"ending{kind}": end})
    assert plan(tmp_path, **{f"starting{kind}": end, f"ending{kind}": end}) == []


def test_a_directory_that_is_a_file(tmp_path):
    """It is no store, as with any other path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(TopicNotFound, match="not the directory of a store"):
        plan(tmp_path / "file")
    with pytest.raises(TopicNotFound, match="not the directory of a store"):
        plan(tmp_path / "file", topicsPattern="t")


def test_a_topic_that_does_not_exist(tmp_path):
    """The error names it, the store by its whole path, and where names are listed."""
    write_topic(tmp_path, "t", [1])
    with pytest.raises(TopicNotFound, match=rf"default/ordrs is not in {tmp_path};.*topics list"):
        plan(tmp_path, topic="ordrs")


def test_offsets_for_a_topic_that_is_not_read(tmp_path):
    """A mistyped topic in the JSON is an error, and so is an id for a whole partitioned topic."""
    write_topic(tmp_path, "t-partition-0", [1])
    with pytest.raises(InvalidConfiguration, match="which is not read"):
        plan(tmp_path, startingOffsets='{"x": "earliest"}')
    with pytest.raises(InvalidConfiguration, match="t-partition-0"):
        plan(tmp_path, startingOffsets='{"t": "7:0"}')
    assert len(entries(plan(tmp_path, startingOffsets='{"t": "earliest"}'))) == 1
    assert plan(tmp_path, startingOffsets='{"t-partition-0": "7:1"}') == []


def test_topics_by_pattern(tmp_path):
    """A pattern selects by full name; partitions come with their topic."""
    write_topic(tmp_path, "orders-eu", [1])
    write_topic(tmp_path, "orders-us-partition-0", [1], first_ledger=8)
    write_topic(tmp_path, "orders-us-partition-1", [1], first_ledger=9)
    write_topic(tmp_path, "other", [1], first_ledger=10)
    options = parse_options({"path": str(tmp_path), "topicsPattern": "orders-.*"})
    assert [name.local for name in selected_logs(options)] == [
        "orders-eu",
        "orders-us-partition-0",
        "orders-us-partition-1",
    ]
    with pytest.raises(TopicNotFound, match="no topic of"):
        plan(tmp_path, topicsPattern="nothing")
    with pytest.raises(TopicNotFound, match="not the directory of a store"):
        plan(tmp_path / "absent", topicsPattern=".*")


def test_a_partitioned_topic_is_its_partitions(tmp_path):
    """By its name and by a pattern: those that were ever used, each in tasks of its own."""
    with Admin(tmp_path) as admin, Client(tmp_path) as client:
        admin.topics().create_partitioned_topic("t", 4)
        for index in (0, 3):
            with client.create_producer(f"t-partition-{index}") as producer:
                producer.send(b"")
    assert [topic.rpartition("/")[2] for topic, _, _ in entries(plan(tmp_path))] == [
        "t-partition-0",
        "t-partition-3",
    ]
    assert entries(plan(tmp_path, topicsPattern="t")) == entries(plan(tmp_path))
    assert plan(tmp_path, Pruning(partitions=frozenset({3}))) == plan(tmp_path)[1:]
