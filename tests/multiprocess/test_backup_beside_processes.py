"""Backups while processes publish, acknowledge and trim: each restores to a whole store of one moment."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition
from embeddedpulsar.testing import assert_clean
from tests.children import ForkedChild

BACKUPS = 6
MOST = 60
SETTINGS = "managedLedgerMaxSizePerLedgerMbytes=1\nmanagedLedgerMaxEntriesPerLedger=100\n"
TOPICS = ("one", "two")


def produce(root: Path, topic: str) -> None:
    """Numbers, each noted in a file when it is stored, until killed."""
    with Client(root) as client:
        producer = client.create_producer(topic)
        noted = os.open(root.parent / f"stored-{topic}", os.O_WRONLY | os.O_CREAT, 0o600)
        for number in range(1_000_000):
            producer.send(b"%d" % number)
            os.pwrite(noted, b"%12d" % number, 0)
            time.sleep(0.002)


def consume(root: Path, topic: str) -> None:
    """Acknowledge, and trim now and then, until killed."""
    with Client(root) as client, Admin(root) as admin:
        consumer = client.subscribe(topic, "sub", ConsumerType.Shared, ack_group_time_ms=5)
        for number in range(1_000_000):
            consumer.acknowledge(consumer.receive())
            if not number % 20:
                admin.topics().trim_topic(topic)


def commit_batches(root: Path) -> None:
    """Batches of a sink, into two topics, each noted when it is begun, until killed."""
    from tests.support.sinks import write

    noted = os.open(root.parent / "begun", os.O_WRONLY | os.O_CREAT, 0o600)
    for number in range(1, 1_000_000):
        os.pwrite(noted, b"%12d" % number, 0)
        rows = {"value": [b"%d" % number] * 4, "__topic": [*TOPICS] * 2}
        write(root, rows, rows, producerName="sink", batchId=str(number))


def left(root: Path, topic: str) -> list[int]:
    """What the subscription gets, before a message that is sent last."""
    with Client(root) as client:
        client.create_producer(topic).send(b"-1")
        consumer = client.subscribe(topic, "sub", ConsumerType.Shared)
        found: list[int] = []
        while -1 not in found:
            found.append(int(consumer.receive(5000).data()))
        return found[:-1]


def stored(root: Path, topic: str) -> list[int]:
    """All messages that a topic still has."""
    with Client(root) as client:
        consumer = client.subscribe(topic, "all", initial_position=InitialPosition.Earliest)
        found = []
        while (message := consumer.receive_nowait()) is not None:
            found.append(int(message.data()))
        return found


def test_backups_beside_producers_consumers_and_trimming(tmp_path: Path):
    """What was stored before the backup is in it, without a gap; no subscription is ahead of its log."""
    root, target = tmp_path / "store", tmp_path / "backup"
    root.mkdir()
    (root / "broker.conf").write_text(SETTINGS)
    with Client(root) as client:
        for topic in TOPICS:
            client.subscribe(topic, "sub", ConsumerType.Shared).close()
    children = [
        ForkedChild(lambda work=work, topic=topic: work(root, topic))  # type: ignore[misc]
        for topic in TOPICS
        for work in (produce, consume)
    ]
    try:
        while not all((tmp_path / f"stored-{topic}").exists() for topic in TOPICS):
            time.sleep(0.01)
        with Admin(root) as admin:
            was_trimmed = False
            for number in range(MOST):
                if number >= BACKUPS and was_trimmed:
                    break
                time.sleep(0.2)
                before = {topic: int((tmp_path / f"stored-{topic}").read_bytes() or 0) for topic in TOPICS}
                admin.backup(target)
                place = tmp_path / f"restored-{number}"
                Admin.restore(target, place)
                report = assert_clean(place)
                assert report.topics == 2
                for topic in TOPICS:
                    found = stored(place, topic)
                    assert found == [*range(found[0], found[-1] + 1)], found
                    assert found[-1] >= before[topic]
                    was_trimmed |= found[0] > 0
                    unacked = left(place, topic)
                    assert set(unacked) <= set(found)
                    assert not unacked or max(unacked) == found[-1]
                assert_clean(place)
                shutil.rmtree(place)
    finally:
        for child in children:
            child.end()
    assert was_trimmed
    with Admin(root) as admin:
        assert not admin.check().damage


def test_backups_beside_a_sink(tmp_path: Path):
    """Each has whole batches only, in both topics; one that comes again after a restore is stored once."""
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from embeddedpulsar.spark import finish_commits
    from tests.support.sinks import write

    root, target = tmp_path / "store", tmp_path / "backup"
    with Client(root) as client:
        for topic in TOPICS:
            client.create_producer(topic).send(b"0")
    child = ForkedChild(lambda: commit_batches(root))
    try:
        for place in (tmp_path / "restored-1", tmp_path / "restored-2"):
            begun = int((tmp_path / "begun").read_bytes() or 0) if (tmp_path / "begun").exists() else 0
            while not (tmp_path / "begun").exists() or int((tmp_path / "begun").read_bytes()) < begun + 5:
                time.sleep(0.01)
            with Admin(root) as admin:
                admin.backup(target)
            Admin.restore(target, place)
            finish_commits(place)
            found = {topic: stored(place, topic) for topic in TOPICS}
            last = found["one"][-1]
            assert last >= begun
            whole = [0, *(number for number in range(1, last + 1) for _ in range(4))]
            assert [found[topic] for topic in TOPICS] == [whole, whole]
            for number in (last, last + 1):
                rows = {"value": [b"-1"], "__topic": ["one"]}
                write(place, rows, producerName="sink", batchId=str(number))
            assert stored(place, "one") == [*found["one"], -1]
            assert_clean(place)
    finally:
        child.end()
