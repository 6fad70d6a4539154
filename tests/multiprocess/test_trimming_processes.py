"""Processes that publish, consume and trim one topic, and die while they do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.testing.trial_store import check_store
from tests.multiprocess.children import Child, say

EARLIEST = pulsar.InitialPosition.Earliest
PER_LEDGER = 100
SETTINGS = f"managedLedgerMaxEntriesPerLedger={PER_LEDGER}\nretentionCheckIntervalInSeconds=1\n"
MESSAGES = 30_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "broker.conf").write_text(SETTINGS, "utf-8")
    return tmp_path


def ledgers(root: Path) -> int:
    """Segments there are."""
    return len(list(root.glob("topics/*/*.log")))


def soon(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Whether it comes true."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def publish(root: str, count: str) -> None:
    """Send so many messages, never far ahead of who reads them."""
    with pulsar.Client(root) as client, client.create_producer("t") as producer:
        say("ready")
        for number in range(int(count)):
            producer.send(b"%08d" % number + bytes(500))
            if number % 1000 == 999:
                input()
        say("done")


def consume(root: str, count: str) -> None:
    """Receive and acknowledge so many messages, all of them in order."""
    with pulsar.Client(root) as client:
        consumer = client.subscribe("t", "s", initial_position=EARLIEST)
        say("ready")
        for number in range(int(count)):
            message = consumer.receive(20_000)
            assert int(message.data()[:8]) == number
            consumer.acknowledge(message)
            if number % 1000 == 999:
                say("thousand")
        consumer.close()
        say("done")
        input()


def test_disk_usage_is_bounded(root: Path) -> None:
    """A producer and a consumer, 300 ledgers in a second: only a part of them ever exists, in the end one."""
    with Child(consume, root, MESSAGES) as consumer:
        assert consumer.read() == "ready"
        with Child(publish, root, MESSAGES) as producer:
            assert producer.read() == "ready"
            for _ in range(MESSAGES // 1000):
                assert consumer.read() == "thousand"
                # Busy with others, the machine runs housekeeping late: then the producer waits for it.
                assert soon(lambda: ledgers(root) < MESSAGES // PER_LEDGER // 2)
                producer.tell("go on")
            assert producer.read() == "done"
            assert producer.join() == 0
        assert consumer.read() == "done"
        assert soon(lambda: ledgers(root) <= 2)
        consumer.tell("end")
        assert consumer.join() == 0
    assert not check_store(str(root)).problems


def roll_and_die(root: str, point: str, nth: str) -> None:
    """Publish without a subscription, and die where housekeeping stands then."""
    failpoints.set(point, "kill", nth=int(nth))
    with pulsar.Client(root) as client, client.create_producer("t") as producer:
        for number in range(PER_LEDGER * 10 + 1):
            producer.send(b"%d" % number)
        time.sleep(20)


@pytest.mark.parametrize(
    ("point", "nth"), [("trim:point_stored", 1), ("trim:unlinked", 1), ("trim:unlinked", 5)]
)
def test_who_trims_and_dies_is_followed_by_another(root: Path, point: str, nth: int) -> None:
    """Whatever is left of it goes with the next; the topic is whole all the time."""
    with Child(roll_and_die, root, point, nth) as victim:
        assert victim.join() == -9
    assert {problem.kind for problem in check_store(str(root)).problems} == {"leftover"}  # its lease
    with pulsar.Client(root) as client:
        before = ledgers(root)
        with client.create_reader("t", pulsar.MessageId.earliest) as reader:
            values = [int(message.data()) for message in reader]
        assert values == list(range(values[0], values[-1] + 1))
        producer = client.create_producer("t")
        for number in range(PER_LEDGER + 1):
            producer.send(b"%d" % number)
        assert before >= 1
        assert soon(lambda: ledgers(root) == 1)
    assert not list(root.glob("topics/*/*.idx"))[1:]
    assert not check_store(str(root)).problems


def test_a_stopped_housekeeper_holds_up_nobody(root: Path) -> None:
    """While somebody stays in the housekeeping lock nothing is trimmed, and everything else goes on."""
    with pulsar.Client(root) as client:
        lock = FileLock(str(root / "housekeeping.lock"))
        try:
            lock.acquire()
            producer = client.create_producer("t")
            for number in range(PER_LEDGER * 3 + 1):
                producer.send(b"%d" % number)
            time.sleep(0.3)
            assert ledgers(root) == 4
        finally:
            lock.release()
        lock.close()
        assert soon(lambda: ledgers(root) == 1)


def test_a_forked_child_leaves_the_housekeeping_of_its_parent_alone(root: Path) -> None:
    """What was due in the parent is done there; what the child causes, the child does."""
    with pulsar.Client(root) as client:
        producer = client.create_producer("t")
        for number in range(PER_LEDGER * 3 + 1):
            producer.send(b"%d" % number)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for number in range(PER_LEDGER * 3):
                    producer.send(b"child %d" % number)
                status = 0 if soon(lambda: ledgers(root) == 1) else 2
                client.close()
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert soon(lambda: ledgers(root) == 1)
        with client.create_reader("t", pulsar.MessageId.earliest) as reader:
            assert [message.data() for message in reader]


def test_who_watches_sleeps(root: Path) -> None:
    """A topic that is looked at every second costs no processor time worth the name."""
    with pulsar.Client(root) as client:
        consumer = client.subscribe("t", "s", initial_position=EARLIEST)
        with client.create_producer("t") as producer:
            for number in range(PER_LEDGER * 3):
                producer.send(b"%d" % number)
        assert consumer.receive(1000)
        time.sleep(0.5)
        begun = time.process_time()
        time.sleep(3)
        assert time.process_time() - begun < 0.03
        assert ledgers(root) == 3
