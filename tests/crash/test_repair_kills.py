"""A repair that is killed at any of its steps can be made again, and nothing that holds a message is lost."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from embeddedpulsar import Client, InitialPosition
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.store.care.store_repair import repair_store
from embeddedpulsar.testing import assert_clean
from tests.children import die_at
from tests.storms.store_corruption import believe
from tests.support.store_copies import copy_store

POINTS = [name for name in failpoints.names() if name.startswith("repair:")]
SENT = [b"message %d" % number for number in range(60)]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with damage of every kind that a repair has a step for."""
    root = tmp_path_factory.mktemp("original") / "store"
    root.mkdir()
    limits = "managedLedgerMaxSizePerLedgerMbytes=1\nmanagedLedgerMaxEntriesPerLedger=20\n"
    # The second topic has no subscription: without retention, housekeeping trims its first two ledgers when a
    # process opens it, possibly before that process has subscribed.
    kept = "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n"
    (root / "broker.conf").write_text(limits + kept)
    with Client(root) as client:
        consumer = client.subscribe("one", "sub")
        for topic in ("one", "two"):
            producer = client.create_producer(topic)
            for payload in SENT:
                producer.send(payload)
        consumer.acknowledge(consumer.receive(1000))
    return root


def damaged(original: Path, root: Path) -> None:
    """A copy, damaged."""
    copy_store(original, root)
    for path in [*root.rglob("ctl"), root / "store.ctl"]:
        believe(str(path))
    (root / "catalog.0.tmp").touch()
    (root / "catalog").unlink()  # nothing says the name of the second topic any more
    one, two = sorted(root.glob("topics/*"), key=lambda path: path.name[-3:])
    for path, at, count in (
        (root / "store.meta", 20, 1),
        (two / "topic.meta", 20, 1),
        (sorted(one.glob("*.log"))[0], 0, 1024),
        (sorted(one.glob("*.idx"))[1], 4096 + 30, 1),
        (sorted(one.glob("*.idx"))[-1], 4096 + 30, 1),
        (next(one.glob("subscriptions/*/journal.*")), 80, 1),
    ):
        data = bytearray(path.read_bytes())
        data[at : at + count] = os.urandom(count) if count > 1 else bytes((data[at] ^ 1,))
        path.write_bytes(data)


def received(root: Path, topic: str) -> list[bytes]:
    """All that a new subscription gets."""
    with Client(root) as client:
        consumer = client.subscribe(topic, "new", initial_position=InitialPosition.Earliest)
        found = []
        while (message := consumer.receive_nowait()) is not None:
            found.append(message.data())
    return found


@pytest.mark.parametrize("point", POINTS)
def test_killed_at(original: Path, tmp_path: Path, point: str):
    """At each step, the first and the second time it comes there; the next repair does what is left."""
    for nth in (1, 2):
        root = tmp_path / f"store-{nth}"
        damaged(original, root)
        is_killed = die_at(point, partial(repair_store, str(root)), nth)
        assert is_killed or nth > 1
        report = repair_store(str(root))
        assert report.left == ()
        assert_clean(root)
        assert received(root, "one") == SENT
        topics = [topic.name for topic in assert_clean(root).of_topics if "one" not in topic.name]
        assert len(topics) == 1
        assert received(root, topics[0]) == SENT
        shutil.rmtree(root)


def test_every_step_is_covered():
    """Those of the repair, declared by its modules."""
    assert len(POINTS) == 8
