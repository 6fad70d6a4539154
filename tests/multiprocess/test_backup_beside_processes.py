"""Backups while processes publish, acknowledge and trim: each restores to a whole store of one moment."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

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
