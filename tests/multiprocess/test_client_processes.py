"""The public client between real processes: death, silence and wake-up as a user meets them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from tests.multiprocess.children import Child, say
from tests.storms.lock_holders import LockFiles

EARLIEST = pulsar.InitialPosition.Earliest


def consume(root: str, acknowledge: str) -> None:
    """Receive for ever on the subscription ``work``, saying each payload; acknowledge the first so many."""
    with pulsar.Client(root) as client:
        consumer = client.subscribe("jobs", "work", initial_position=EARLIEST, ack_group_time_ms=0)
        say("attached")
        left = int(acknowledge)
        while True:
            message = consumer.receive()
            if left:
                consumer.acknowledge(message)
                left -= 1
            say(message.data().decode(), message.redelivery_count())


def stop_outside_locks(pid: int, root: Path) -> None:
    """Stop a process where it holds no lock: a lock is never taken from it, and others wait in vain."""
    locks = LockFiles(str(root))
    locks.refresh()
    for _ in range(1000):
        os.kill(pid, signal.SIGSTOP)
        if not locks.held_by(pid):
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.001)
    raise AssertionError


def produce(root: str, count: str) -> None:
    """Send numbers, saying each when it is stored."""
    with pulsar.Client(root) as client:
        producer = client.create_producer("jobs")
        for number in range(int(count)):
            producer.send(b"%d" % number)
            say(number)


def test_receive_wakes_when_another_process_sends(tmp_path: Path):
    """It sleeps without burning CPU until then."""
    with Child(consume, tmp_path, 0) as child, pulsar.Client(tmp_path) as client:
        assert child.read() == "attached"
        producer = client.create_producer("jobs")
        waits = []
        for number in range(20):
            time.sleep(0.01)
            start = time.perf_counter()
            producer.send(b"%d" % number)
            assert child.read() == f"{number} 0"
            waits.append(time.perf_counter() - start)
        assert sorted(waits)[10] < 0.09, "woken by its bell, not by the back-stop"


def test_a_killed_consumer_is_replaced_at_once(tmp_path: Path):
    """Its subscription is free; what it acknowledged does not come again, the rest does."""
    with pulsar.Client(tmp_path) as client:
        producer = client.create_producer("jobs")
        for number in range(5):
            producer.send(b"%d" % number)
        with Child(consume, tmp_path, 2) as child:
            assert child.read() == "attached"
            for number in range(5):
                assert child.read() == f"{number} 0"
            with pytest.raises(pulsar.ConsumerBusy):
                client.subscribe("jobs", "work")
            child.kill()
            child.join()
            start = time.perf_counter()
            consumer = client.subscribe("jobs", "work")
            assert [consumer.receive(5000).data() for _ in range(3)] == [b"2", b"3", b"4"]
            assert time.perf_counter() - start < 2
            with pytest.raises(pulsar.Timeout):
                consumer.receive(100)


def test_a_stopped_consumer_keeps_its_subscription(tmp_path: Path):
    """It may go on at any time, and does."""
    with pulsar.Client(tmp_path) as client, Child(consume, tmp_path, 100) as child:
        assert child.read() == "attached"
        stop_outside_locks(child.process.pid, tmp_path)
        with pytest.raises(pulsar.ConsumerBusy):
            client.subscribe("jobs", "work")
        producer = client.create_producer("jobs")
        for number in range(3):
            producer.send(b"%d" % number)
        os.kill(child.process.pid, signal.SIGCONT)
        assert [child.read() for _ in range(3)] == ["0 0", "1 0", "2 0"]


def test_what_a_killed_producer_was_told_is_stored(tmp_path: Path):
    """Every number it said is there, in order; at most one more that it had no time to say."""
    with Child(produce, tmp_path, 100_000) as child:
        said = [int(child.read()) for _ in range(200)]
        child.kill()
        child.join()
        assert child.process.stdout is not None
        said += [int(line) for line in child.process.stdout.read().split()]
    with pulsar.Client(tmp_path) as client:
        reader = client.create_reader("jobs", pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(int(reader.read_next(5000).data()))
    assert found[: len(said)] == said
    assert len(found) <= len(said) + 1
    assert found == list(range(len(found)))


def test_a_store_is_used_by_processes_that_come_and_go(tmp_path: Path):
    """Each adds its messages to the same topic, and nothing of them stays behind."""
    for _ in range(4):
        with Child(produce, tmp_path, 10) as child:
            assert [child.read() for _ in range(10)] == [str(number) for number in range(10)]
            assert child.join() == 0
    with pulsar.Client(tmp_path) as client:
        reader = client.create_reader("jobs", pulsar.MessageId.earliest)
        found = [int(reader.read_next(5000).data()) for _ in range(40)]
        assert not reader.has_message_available()
        assert found == list(range(10)) * 4
        assert len(os.listdir(tmp_path / "clients")) == 1
    assert os.listdir(tmp_path / "clients") == []
