"""What reads keep from being trimmed, and for how long."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from embeddedpulsar import Admin, Client
from embeddedpulsar._engine.filenames import ledgers_of
from embeddedpulsar.spark.data_source import DefaultSource
from embeddedpulsar.spark.log_plan import plan_tasks
from embeddedpulsar.testing import assert_clean
from tests.conformance.chunks import log_of
from tests.support.sinks import write

ALL = ReadAllAvailable()


def source(root: Path, **options: str) -> DefaultSource:
    """The format, for topic t."""
    return DefaultSource({"path": str(root), "topic": "t"} | options)


def ledgers(root: Path) -> int:
    """How many ledgers the topic has."""
    return len(ledgers_of(os.listdir(next(root.glob("topics/*")))))


def next_ledger(client: Client, value: bytes) -> None:
    """A message in a ledger of its own, the last one."""
    log_of(client, "t").roll()
    client.create_producer("t").send(value)


def age(root: Path) -> None:
    """Let the lease of every pin be over."""
    for path in root.glob("topics/*/pins/*"):
        os.utime(path, (0, 0))


def test_a_query_keeps_what_it_has_not_read(tmp_path: Path):
    """However long it takes; each commit gives up what is before, and the end of the query all of it."""
    with Client(tmp_path) as client, Admin(tmp_path) as admin:
        client.create_producer("t").send(b"0")
        made = source(tmp_path, startingOffsets="earliest")
        reader = made.streamReader(made.schema())
        start = reader.initialOffset()
        for number in range(1, 4):
            next_ledger(client, b"%d" % number)
        age(tmp_path)
        admin.topics().trim_topic("t")
        assert [kept.reason for kept in admin.why_kept("t").ledgers] == ["pinned", "pinned", "pinned", "open"]
        end = reader.latestOffset(start, ALL)
        assert len(reader.partitions(start, end)) == 1
        reader.commit(end)
        age(tmp_path)
        admin.topics().trim_topic("t")
        assert ledgers(tmp_path) == 1
        next_ledger(client, b"4")
        age(tmp_path)
        admin.topics().trim_topic("t")
        assert ledgers(tmp_path) == 2
        reader.stop()
        age(tmp_path)
        admin.topics().trim_topic("t")
        assert ledgers(tmp_path) == 1
        assert not list(tmp_path.glob("topics/*/pins/*"))


def test_a_topic_that_appears_is_kept_from_its_beginning(tmp_path: Path):
    """The query reads it from its first message."""
    with Client(tmp_path) as client, Admin(tmp_path) as admin:
        made = source(tmp_path, startingOffsets="latest", waitingForNonExistedTopic="true")
        reader = made.streamReader(made.schema())
        start = reader.initialOffset()
        client.create_producer("t").send(b"0")
        end = reader.latestOffset(start, ALL)
        next_ledger(client, b"1")
        age(tmp_path)
        admin.topics().trim_topic("t")
        assert len(reader.partitions(start, end)) == 1
        assert ledgers(tmp_path) == 2
        reader.stop()


def test_a_query_with_a_subscription_pins_nothing(tmp_path: Path):
    """The subscription keeps what is needed."""
    with Client(tmp_path) as client:
        client.create_producer("t").send(b"0")
        made = source(tmp_path, startingOffsets="earliest", subscription="s")
        reader = made.streamReader(made.schema())
        reader.latestOffset(reader.initialOffset(), ALL)
        assert not list(tmp_path.glob("topics/*/pins"))
        reader.stop()


def test_a_batch_read_keeps_what_it_is_about_to_read(tmp_path: Path):
    """From the plan to its tasks for the time of a lease, and while a task runs."""
    with Client(tmp_path) as client, Admin(tmp_path) as admin:
        client.create_producer("t").send(b"0")
        for number in range(1, 4):
            next_ledger(client, b"%d" % number)
        made = source(tmp_path, maxPartitionBytes="1")
        reader = made.reader(made.schema())
        parts = reader.partitions()
        admin.topics().trim_topic("t")
        assert ledgers(tmp_path) == len(parts) == 4
        rows = reader.read(parts[2])
        assert next(rows).column("value").to_pylist() == [b"2"]
        age(tmp_path)
        admin.topics().trim_topic("t")
        assert ledgers(tmp_path) == 2
        rows.close()
        age(tmp_path)
        admin.topics().trim_topic("t")
        assert ledgers(tmp_path) == 1


def test_a_backup_and_a_check_take_no_notice(tmp_path: Path):
    """Pins belong to the store that is used, not to its copy."""
    root = tmp_path / "store"
    write(root, {"value": [b"x"]}, topic="t", producerName="p", batchId="1")
    with Admin(root) as admin:
        made = source(root)
        made.reader(made.schema()).partitions()
        assert list(root.glob("topics/*/pins/*"))
        assert admin.check().is_clean
        admin.backup(tmp_path / "backup")
    Admin.restore(tmp_path / "backup", tmp_path / "copy")
    assert not list((tmp_path / "copy").glob("topics/*/pins"))
    with Admin(root) as admin:
        admin.topics().delete("t", force=True)
    for path in (root, tmp_path / "copy"):
        assert_clean(path)


def test_a_plan_of_what_is_trimmed_meanwhile_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What went between the listing and the pin is not in the plan."""
    from embeddedpulsar.spark import batch_reader

    with Client(tmp_path) as client, Admin(tmp_path) as admin:
        client.create_producer("t").send(b"0")
        next_ledger(client, b"1")
        plans = []

        def plan(*arguments: Any) -> Any:
            plans.append(plan_tasks(*arguments))
            if len(plans) == 1:
                admin.topics().trim_topic("t")
            return plans[-1]

        monkeypatch.setattr(batch_reader, "plan_tasks", plan)
        made = source(tmp_path)
        (part,) = made.reader(made.schema()).partitions()
        assert [len(tasks[0]) for tasks in plans] == [2, 1]
        assert [one.ledger_id for one in part.value] == [plans[0][0][1].ledger_id]
