"""Offsets and batches of streaming reads without Spark: every message in exactly one batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from embeddedpulsar import Admin, Client, TopicNotFound
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.spark.data_source import StreamPlanner
from embeddedpulsar.spark.log_plan import (
    DataLossError,
    LogOffset,
    Offsets,
    Task,
    decode_offsets,
    encode_offsets,
)
from embeddedpulsar.spark.options import parse_stream_options
from tests.conformance.chunks import log_of
from tests.support.log_files import BASE_MS, write_topic

T = "persistent://public/default/t"
U = "persistent://public/default/u"


def planner(root: Path, **options: str) -> StreamPlanner:
    """The planner of a query of topic t that begins at the first message."""
    named = {} if {"topics", "topicsPattern"} & options.keys() else {"topic": "t"}
    starts = {} if {"startingOffsets", "startingTime"} & options.keys() else {"startingOffsets": "earliest"}
    return StreamPlanner(parse_stream_options({"path": str(root)} | named | starts | options))


def messages(tasks: list[Task], sizes: dict[tuple[str, int, int], int]) -> list[tuple[str, int, int, int]]:
    """(topic, ledger, entry, index) of every message of the tasks."""
    found = []
    for piece in (piece for task in tasks for piece in task):
        for entry in range(piece.first_entry, piece.end_entry):
            last = piece.keep if piece.keep and entry == piece.end_entry - 1 else None
            first = piece.skip if entry == piece.first_entry else 0
            indexes = range(sizes[piece.topic, piece.ledger_id, entry])[first:last]
            found += [(piece.topic, piece.ledger_id, entry, index) for index in indexes]
    return found


def batches(made: StreamPlanner, start: Offsets) -> list[tuple[Offsets, list[Task]]]:
    """The batches until nothing is left; offsets go through the text of a checkpoint."""
    found = []
    while True:
        end = made.latest(start, is_limited=True)
        end = decode_offsets(json.loads(json.dumps(encode_offsets(end))))
        if end == start:
            return found
        found.append((end, made.tasks(start, end)))
        start = end


@given(
    sizes=st.lists(st.lists(st.integers(1, 20), max_size=15), min_size=1, max_size=3),
    rows=st.none() | st.integers(1, 60),
    size=st.none() | st.integers(1, 3000),
)
def test_batches_tile_the_topics(tmp_path_factory, sizes, rows, size):
    """With any limits: every message once, in order, and never more rows than allowed."""
    root = tmp_path_factory.mktemp("store")
    counts, lengths = {}, {}
    for number, entries in enumerate(sizes):
        log = write_topic(root, f"t{number}", entries, first_ledger=7 + number)
        for count, (ledger, entry, _ms, _at, length) in zip(entries, log.written, strict=True):
            counts[log.name.full, ledger, entry] = count
            lengths[log.name.full, ledger, entry] = length
    limits = {"maxOffsetsPerTrigger": rows, "maxBytesPerTrigger": size}
    given_limits = {name: str(limit) for name, limit in limits.items() if limit}
    made = planner(root, topicsPattern="t.*", **given_limits)
    found = batches(made, made.initial())
    read = [messages(tasks, counts) for _end, tasks in found]
    for one in read:
        entries_read = {message[:3] for message in one}
        assert one
        assert rows is None or len(one) <= rows
        assert size is None or len(entries_read) == 1 or sum(map(lengths.get, entries_read)) <= size
    together = sorted(message for one in read for message in one)
    assert together == sorted((*place, index) for place, count in counts.items() for index in range(count))


def test_shares_are_proportional_and_none_starves(tmp_path):
    """A long backlog and a short one advance together; a single message gets its turn by its age."""
    write_topic(tmp_path, "t", [1] * 90, per_ledger=30)
    write_topic(tmp_path, "u", [1] * 10, first_ledger=8)
    made = planner(tmp_path, topics="t,u", maxOffsetsPerTrigger="10")
    (first, _tasks), *_ = batches(made, made.initial())
    assert (first[T].text, first[U].text) == ("7:9", "8:1")
    made = planner(tmp_path, topics="t,u", maxOffsetsPerTrigger="1")
    ends = [end for end, _tasks in batches(made, made.initial())]
    assert len(ends) == 100
    assert ends[19][U].text == "10:5"  # entry i of both was published at the same time


def test_where_a_query_begins(tmp_path):
    """At the end by default; at the first message, a position, or a time, for all topics or for one."""
    write_topic(tmp_path, "t", [3] * 12)
    write_topic(tmp_path, "u", [], first_ledger=8)
    begins = {
        "latest": "11:2",
        "earliest": "7:0",
        '{"t": "9:1:2"}': "9:1:2",
        '{"t": "9:4"}': "9:4",
        '{"u": "earliest"}': "11:2",
    }
    for offsets, text in begins.items():
        assert planner(tmp_path, topics="t,u", startingOffsets=offsets).initial()[T].text == text
    assert StreamPlanner(parse_stream_options({"path": str(tmp_path), "topic": "t"})).initial()[T] == (
        LogOffset(3, 11, 2)
    )
    assert planner(tmp_path, startingTime=str(BASE_MS + 6)).initial()[T].text == "9:1"
    assert planner(tmp_path, startingTime=str(BASE_MS + 99)).initial()[T].text == "11:2"
    assert planner(tmp_path, topics="t,u", startingOffsets='{"u": "earliest"}').initial()[U].entry == 0
    for wrong in ("11:3", "12:0", '{"absent": "1:1"}'):
        with pytest.raises(InvalidConfiguration):
            planner(tmp_path, startingOffsets=wrong).initial()
    with pytest.raises(TopicNotFound):
        planner(tmp_path, topic="absent").initial()
    assert planner(tmp_path, topic="absent", waitingForNonExistedTopic="true").initial() == {}
    assert planner(tmp_path, topicsPattern="absent.*").initial() == {}


def test_nothing_new_keeps_the_offsets(tmp_path):
    """Spark compares the text: an idle topic, an empty one and a roll give the same offsets again."""
    with Client(tmp_path) as client:
        producer = client.create_producer("t")
        client.create_producer("u")
        made = planner(tmp_path, topics="t,u")
        start = made.initial()
        assert made.latest(start, is_limited=True) == start
        producer.send_many([b"x"] * 5)
        end = made.latest(start, is_limited=True)
        assert [len(task) for task in made.tasks(start, end)] == [1]
        log_of(client, "t").roll()
        assert made.latest(end, is_limited=True) == end
        log_of(client, "t").trim_before(log_of(client, "t").segments()[-1].ledger_id)
        assert made.latest(end, is_limited=True) == end  # what was trimmed was read before
        producer.send(b"y")
        after = made.latest(end, is_limited=True)
        ((piece,),) = made.tasks(end, after)
        assert (piece.first_entry, piece.end_entry) == (0, 1)
        assert list(encode_offsets(after)) == [T, U]


def test_topics_and_partitions_that_appear(tmp_path):
    """They are read from their first message, whatever the query's start; others stay where they are."""
    with Admin(tmp_path) as admin, Client(tmp_path) as client:
        admin.topics().create_partitioned_topic("t", 2)
        with client.create_producer("t") as producer:
            producer.send_many([b"x"] * 10)
        made = planner(tmp_path, topicsPattern="[tv]", startingOffsets="latest")
        start = made.initial()
        assert made.latest(start, is_limited=True) == start
        admin.topics().update_partitioned_topic("t", 3)
        for topic in (f"{T}-partition-2", "v", "w"):
            with client.create_producer(topic) as producer:
                producer.send_many([b"y"] * 4)
        end = made.latest(start, is_limited=True)
        assert end.keys() - start.keys() == {f"{T}-partition-2", "persistent://public/default/v"}
        pieces = [piece for task in made.tasks(start, end) for piece in task]
        assert {piece.topic for piece in pieces} == end.keys() - start.keys()
        assert {piece.first_entry for piece in pieces} == {0}


def test_a_frozen_target(tmp_path):
    """What is published, and which topics appear, after the target was frozen is in no batch."""
    with Client(tmp_path) as client:
        producer = client.create_producer("t")
        producer.send_many([b"x"] * 7)
        made = planner(tmp_path, topicsPattern=".*", maxOffsetsPerTrigger="3")
        start = made.initial()
        made.freeze()
        target = made.latest(start, is_limited=False)
        producer.send_many([b"y"] * 7)
        client.create_producer("u").send(b"y")
        ends = [end for end, _tasks in batches(made, start)]
        assert ends[-1] == target
        assert len(ends) == 3
        assert planner(tmp_path, topicsPattern=".*").latest(target, is_limited=False) != target


@pytest.mark.parametrize("fail", ["true", "false"])
def test_trimmed_before_it_was_read(tmp_path, fail):
    """An error that names topic and positions, or the rest of the log; also for a batch that was planned."""
    with Client(tmp_path) as client:
        producer = client.create_producer("t")
        log = log_of(client, "t")
        made = planner(tmp_path, failOnDataLoss=fail)
        producer.send(b"first")
        start = made.latest(made.initial(), is_limited=True)
        for _ in range(2):
            producer.send_many([b"x"] * 10)
            log.roll()
        producer.send(b"last")
        end = made.latest(start, is_limited=True)
        log.trim_before(log.segments()[-1].ledger_id)
        if fail == "true":
            for act in (lambda: made.latest(start, is_limited=True), lambda: made.tasks(start, end)):
                with pytest.raises(
                    DataLossError, match=r"DATA_LOSS.*public/default/t: messages from \d+:1 on"
                ):
                    act()
        else:
            assert made.latest(start, is_limited=True) == end
            ((piece,),) = made.tasks(start, end)
            assert piece.ledger_id == end[T].ledger


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_that_was_deleted_and_made_again(tmp_path, fail):
    """It is not mistaken for the old one: an error, or it is read from its first message."""
    with Admin(tmp_path) as admin, Client(tmp_path) as client:
        with client.create_producer("t") as producer:
            producer.send_many([b"x"] * 3)
            producer.send(b"x")
        made = planner(tmp_path, failOnDataLoss=fail)
        start = made.initial()
        end = made.latest(start, is_limited=True)
        admin.topics().delete("t")
        with client.create_producer("t") as producer:
            producer.send(b"new")
        if fail == "true":
            with pytest.raises(
                DataLossError,
                match=r"made again since.*; start the query with a new checkpoint, or set failOnDataLoss",
            ):
                made.latest(end, is_limited=True)
            with pytest.raises(DataLossError, match="was deleted before a batch up to"):
                made.tasks(start, end)
            return
        assert made.tasks(start, end) == []
        after = made.latest(end, is_limited=True)
        assert after[T].incarnation != end[T].incarnation
        ((piece,),) = made.tasks(end, after)
        assert (piece.first_entry, piece.end_entry) == (0, 1)
        admin.topics().delete("t")
        assert made.latest(after, is_limited=True) == {}


def test_offsets_behind_the_end(tmp_path):
    """A store that is older than the checkpoint is always an error."""
    write_topic(tmp_path, "t", [1] * 3)
    made = planner(tmp_path, failOnDataLoss="false")
    for offset in (LogOffset(3, 7, 4), LogOffset(3, 9, 0), LogOffset(3, 7, 3, 1)):
        with pytest.raises(
            InvalidConfiguration, match=r"behind the end .*start the query with a new checkpoint"
        ):
            made.latest({T: offset}, is_limited=True)
    with pytest.raises(InvalidConfiguration, match="behind the end"):
        made.tasks({T: LogOffset(3, 7, 1)}, {T: LogOffset(3, 7, 4)})


@pytest.mark.parametrize(
    "text", ['{"t": "7:5"}', '{"t": {"incarnation": "1", "position": "7:5"}}', '{"t": {"incarnation": 1}}']
)
def test_offsets_of_another_source(text):
    """A checkpoint that something else wrote is refused."""
    with pytest.raises(InvalidConfiguration, match="the checkpoint's offset"):
        decode_offsets(json.loads(text))


@pytest.mark.parametrize(
    ("given_options", "text"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets is for batch reads.*leave it out"),
        ({"endingTime": "5"}, "endingTime is for batch reads"),
        ({"maxOffsetsPerTrigger": "0"}, "would read nothing"),
        ({"maxBytesPerTrigger": "x"}, "maxBytesPerTrigger: 'x' is no size"),
        ({"subscription": ""}, "a subscription has a name"),
        ({"subscription": "s", "predefinedSubscription": "s"}, "given twice"),
        ({"waitingForNonExistedTopic": "1"}, "neither true nor false"),
    ],
)
def test_options_that_are_refused(given_options, text):
    """Ends, empty limits and words that are none."""
    with pytest.raises(InvalidConfiguration, match=text):
        parse_stream_options({"path": "/data", "topic": "t"} | given_options)


@pytest.mark.parametrize("broken", ["lost", "garbage"])
def test_limits_do_not_believe_the_index(tmp_path, broken):
    """With a lost or wrong index the batches are the same, from the frames."""
    log = write_topic(tmp_path, "t", [3] * 20, per_ledger=20)
    made = planner(tmp_path, maxOffsetsPerTrigger="7", maxBytesPerTrigger="1000")
    good = [end for end, _tasks in batches(made, made.initial())]
    path = log.index_path(7)
    if broken == "lost":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[4096:] = b"\x5a" * (len(content) - 4096)
        path.write_bytes(content)
    assert [end for end, _tasks in batches(made, made.initial())] == good
