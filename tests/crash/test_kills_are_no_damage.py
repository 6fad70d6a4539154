"""What a killed process leaves is not taken for damage by those that go on."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, MessageId
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import in_child

SENT = 7


def use(root: Path) -> None:
    """From the first message of a topic to its end, with rolls, all subscriptions' ways, and deletions."""
    with Client(root) as client, Admin(root) as admin:
        topics = admin.topics()
        with client.create_producer("orders") as producer:
            for number in range(SENT):
                producer.send(b"%d" % number)
        for kind in (ConsumerType.Exclusive, ConsumerType.Shared):
            consumer = client.subscribe("orders", kind.name, kind, ack_group_time_ms=0)
            producer = client.create_producer("orders", "named")
            for _ in range(SENT):
                producer.send(b"x")
                consumer.acknowledge(consumer.receive(5000))
            producer.close()
            consumer.close()
        topics.trim_topic("orders")
        topics.delete_subscription("orders", "Shared")
        client.create_producer("fleeting").send(b"x")
        topics.delete("fleeting", force=True)


def use_and_die(root: Path, point: str, nth: int) -> bool:
    """Whether the child was killed at the point."""
    pid = os.fork()
    if pid == 0:
        try:
            failpoints.set(point, "kill", nth=nth)
            use(root)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def reached(root: Path, nth: int) -> list[str]:
    """The points that `use` comes to so many times; the others need no run of their own."""

    def counted() -> str:
        hits: Counter[str] = Counter()
        for point in failpoints.names():
            failpoints.set(point, lambda point=point: hits.update((point,)), nth=0)
        use(root)
        return " ".join(point for point, count in hits.items() if count >= nth)

    root.mkdir()
    (root / "broker.conf").write_text("managedLedgerMaxEntriesPerLedger=3\n")
    with Client(root) as client:
        client.create_producer("other").close()
        return sorted(in_child(counted).split())


@pytest.mark.parametrize("nth", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_kill_at_any_point(tmp_path: Path, nth: int):
    """Nothing is reported, shown as damaged, or missing of what is used on."""
    killed = []
    for number, point in enumerate(reached(tmp_path / "reached", nth)):
        root = tmp_path / str(number)
        root.mkdir()
        (root / "broker.conf").write_text("managedLedgerMaxEntriesPerLedger=3\n")
        reports: list[str] = []
        with Client(root, on_damage=lambda found, reports=reports: reports.append(str(found))) as client:
            client.create_producer("other").close()
            if not use_and_die(root, point, nth):
                continue
            killed.append(point)
            with Admin(root) as admin:
                for topic in ("orders", "fleeting"):
                    client.create_producer(topic).send(b"on")
                    admin.topics().get_stats(topic)
                    with client.create_reader(topic, MessageId.earliest) as reader:
                        read = [reader.read_next(5000).data()]
                        while reader.has_message_available():
                            read.append(reader.read_next(5000).data())
                    assert read[-1] == b"on", point
                    client.subscribe(topic, "Shared", ConsumerType.Shared).close()
                admin.topics().trim_topic("orders")
        assert reports == [], point
        Client(root).close()  # removes the lease of the child
        assert_clean(root)
    assert len(killed) > 20, killed
