"""Plans of Spark over topics with transactions: nothing that is open or aborted, and nothing that commits
later is passed over."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from embeddedpulsar._engine.format.entry import EntryContent, ProducerPrefix, encode
from embeddedpulsar._engine.log import segment_snapshot
from embeddedpulsar._engine.log.entry_range import messages_in
from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.txn.transaction import Transaction
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.spark import data_source
from embeddedpulsar.spark.batch_reader import LogPartition, read_task
from embeddedpulsar.spark.data_source import StreamPlanner
from embeddedpulsar.spark.log_plan import LogOffset, Offsets, Pruning, Task, plan_tasks
from embeddedpulsar.spark.options import parse_options, parse_stream_options
from tests.support.log_files import BASE_MS, LogFiles
from tests.transaction_site import Process

T = "persistent://public/default/t"
P = ProducerPrefix("p")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """One that has transactions in the store of the test."""
    with Process(tmp_path, boot=timing.boot_id()) as owner:
        yield owner


def write(root: Path, entries: list[tuple[Transaction | None, int]], topic: str = "t", roll: int = 0) -> None:
    """A topic of entries of so many messages each, numbered on, in a transaction or in none."""
    log, number = LogFiles(root, topic), 0
    for i, (transaction, count) in enumerate(entries):
        values = [b"%d" % value for value in range(number, number + count)]
        txn = None if transaction is None else (0, transaction.id)
        log.append(encode(EntryContent(values, number, True, transaction=txn), P), BASE_MS + i)
        number += count
        if roll and (i + 1) % roll == 0:
            log.roll()
    log.finish()


def rows(tasks: list[Task], **options: str) -> list[int]:
    """What workers read of tasks, which travel to them."""
    read = parse_options({"path": "/", "topic": "t"} | options)
    sent = pickle.loads(pickle.dumps([LogPartition(task) for task in tasks]))
    return [
        int(value.as_py())
        for partition in sent
        for batch in read_task(partition, read, ("value",))
        for value in batch.column("value")
    ]


def batch_rows(root: Path, **options: str) -> list[int]:
    """Of a batch read of topic t."""
    named = {} if "topics" in options else {"topic": "t"}
    return rows(plan_tasks(parse_options({"path": str(root)} | named | options), Pruning()))


def planner(root: Path, **options: str) -> StreamPlanner:
    """Of a query of topic t from its beginning."""
    given_options = {"path": str(root), "topic": "t", "startingOffsets": "earliest"}
    return StreamPlanner(parse_stream_options(given_options | options))


def next_batch(made: StreamPlanner, start: Offsets, limited: bool = True) -> tuple[Offsets, list[int]]:
    """Where the next batch ends, and its rows."""
    end = made.latest(start, is_limited=limited)
    return end, rows(made.tasks(start, end)) if end != start else []


def test_a_batch_read(tmp_path: Path, process: Process) -> None:
    """Its tasks, however they are cut, have the rows of what committed."""
    done, gone, opened = process.begun(), process.begun(), process.begun()
    entries = [(None, 2), (gone, 3), (done, 2), (gone, 1), (done, 1), (opened, 1), (None, 1)]
    write(tmp_path, entries, roll=3)
    done.commit()
    gone.abort()
    for size in ("1", "200", "64m"):
        assert batch_rows(tmp_path, maxPartitionBytes=size) == [0, 1, 5, 6, 8]
    assert batch_rows(tmp_path, isolation="read_uncommitted") == list(range(11))
    opened.commit()
    assert batch_rows(tmp_path) == [0, 1, 5, 6, 8, 9, 10]
    with pytest.raises(InvalidConfiguration, match="isolation"):
        batch_rows(tmp_path, isolation="none")


def test_places_that_are_held_back_are_in_the_log(tmp_path: Path, process: Process) -> None:
    """They are no errors; a read that begins behind an open transaction waits for it as all others."""
    opened = process.begun()
    write(tmp_path, [(None, 1), (opened, 1), (None, 2)])
    assert batch_rows(tmp_path, endingOffsets="7:2") == [0]
    assert batch_rows(tmp_path, startingOffsets="7:2") == []
    with pytest.raises(InvalidConfiguration, match="lies behind the end"):
        batch_rows(tmp_path, startingOffsets="7:9")
    made = planner(tmp_path, startingOffsets="7:2")
    start = made.initial()
    assert start[T].text == "7:2" and made.latest(start, is_limited=False) == start
    opened.commit()
    assert next_batch(made, start)[1] == [2, 3]


def test_a_stream_goes_on_when_a_transaction_ends(tmp_path: Path, process: Process) -> None:
    """Its batches end at the first that is open; what commits later is in a later batch, and only there."""
    first, second = process.begun(), process.begun()
    write(tmp_path, [(None, 1), (first, 2), (None, 1), (second, 1), (first, 1), (None, 1)], roll=4)
    made = planner(tmp_path)
    start = made.initial()
    start, found = next_batch(made, start)
    assert (start[T].text, found) == ("7:1", [0])
    assert next_batch(made, start) == (start, [])
    first.commit()
    start, found = next_batch(made, start)
    assert (start[T].text, found) == ("7:3", [1, 2, 3])
    second.abort()
    start, found = next_batch(made, start)
    assert found == [5, 6]
    assert next_batch(made, start) == (start, [])


def test_a_stream_begins_and_ends_where_transactions_are_open(tmp_path: Path, process: Process) -> None:
    """The end of the log is the first open transaction, for a start at the end and for availableNow."""
    opened = process.begun()
    write(tmp_path, [(None, 1), (opened, 2), (None, 1)])
    made = planner(tmp_path, startingOffsets="latest")
    start = made.initial()
    assert start[T].text == "7:1"
    now = planner(tmp_path)
    now.freeze()
    opened.commit()
    assert next_batch(made, start)[1] == [1, 2, 3]
    assert next_batch(now, now.initial())[1] == [0]


def test_a_batch_that_is_planned_again_has_the_same_rows(tmp_path: Path, process: Process) -> None:
    """By another process, which remembers nothing, and after more has ended."""
    gone, opened = process.begun(), process.begun()
    write(tmp_path, [(None, 1), (gone, 1), (None, 1), (opened, 1)], roll=2)
    gone.abort()
    made = planner(tmp_path)
    start = made.initial()
    end = made.latest(start, is_limited=False)
    opened.commit()
    assert rows(made.tasks(start, end)) == rows(planner(tmp_path).tasks(start, end)) == [0, 2]
    middle = {T: LogOffset(3, 7, 1)}
    assert rows(planner(tmp_path).tasks(middle, end)) == [2]


def test_what_is_decided_is_looked_at_once(
    tmp_path: Path, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that is far behind asks for each transaction one time, whatever its limits."""
    gone = process.begun()
    write(tmp_path, [(gone if i % 3 == 0 else None, 1) for i in range(60)], roll=20)
    gone.abort()
    looked = []
    counted = segment_snapshot.transactions_in

    def note(segment: Any, first: int, entries: int, end_offset: int) -> Any:
        looked.append(entries - first)
        return counted(segment, first, entries, end_offset)

    monkeypatch.setattr(segment_snapshot, "transactions_in", note)
    made = planner(tmp_path, maxOffsetsPerTrigger="5")
    start, found, batches = made.initial(), [], 0
    while True:
        end, read = next_batch(made, start)
        if end == start:
            break
        assert len(read) <= 5
        found += read
        start, batches = end, batches + 1
    assert found == [i for i in range(60) if i % 3]
    assert batches == 8 and sum(looked) == 60


@given(
    kinds=st.lists(st.tuples(st.sampled_from("nnccaaxy"), st.integers(1, 4)), max_size=15),
    roll=st.sampled_from([0, 3, 4]),
    limit=st.sampled_from(["1", "3", "100"]),
)
def test_micro_batches_pass_over_nothing(
    tmp_path_factory: Any, kinds: list[tuple[str, int]], roll: int, limit: str
) -> None:
    """Whatever ends between them: in the end every committed message was read once, in order, and at no time
    one that was not decided."""
    root = tmp_path_factory.mktemp("store")
    with Process(root, boot=timing.boot_id()) as process:
        by_kind = {kind: None if kind == "n" else process.begun() for kind in "ncaxy"}
        write(root, [(by_kind[kind], count) for kind, count in kinds], roll=roll)
        numbered, number = [], 0
        for kind, count in kinds:
            numbered += [(kind, value) for value in range(number, number + count)]
            number += count
        made = planner(root, maxOffsetsPerTrigger=limit)
        start, found = made.initial(), []
        ends = [
            lambda: None,
            by_kind["c"].commit,
            by_kind["a"].abort,
            by_kind["x"].commit,
            by_kind["y"].abort,
        ]
        decided = {"n"}
        for kind, end_it in zip("ncaxy", ends, strict=True):
            end_it()
            decided.add(kind)
            while True:
                end, read = next_batch(made, start)
                if end == start:
                    break
                found += read
                start = end
            first = next((i for i, (own, _) in enumerate(numbered) if own not in decided), len(numbered))
            assert found == [value for own, value in numbered[:first] if own in "ncx"]


def test_counts_agree(tmp_path: Path, process: Process) -> None:
    """What limits count is what is read."""
    gone = process.begun()
    write(tmp_path, [(None, 4), (gone, 4), (None, 4), (gone, 2), (gone, 1), (None, 4)])
    gone.abort()
    made = planner(tmp_path, maxOffsetsPerTrigger="6")
    start, sizes = made.initial(), []
    while (end := made.latest(start, is_limited=True)) != start:
        tasks = made.tasks(start, end)
        planned = sum(messages_in(piece) for task in tasks for piece in task)
        assert planned == len(rows(tasks))
        sizes.append(planned)
        start = end
    assert sizes == [6, 6]


def test_a_store_without_transactions_is_asked_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments of the first version have none, whatever the store has."""
    from embeddedpulsar import Client

    with Client(tmp_path / "store") as client:
        client.create_producer("t").send(b"0")
    monkeypatch.setattr(data_source, "transaction_fates", None)
    assert next_batch(planner(tmp_path / "store"), {})[1] == [0]
