"""One store, processes in containers: boot ids and clocks of their own, and who is alive all the same."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar._engine.log.log_check import check_topic
from tests.multiprocess.children import Child, say
from tests.multiprocess.namespaces import other_boot_id, other_pids, other_time
from tests.multiprocess.workers import Worker, keep_alive, send, subscribe

TYPES = ["Exclusive", "Failover", "Shared", "KeyShared"]


def topic_directory(root: Path) -> str:
    """Of the only topic."""
    (directory,) = (root / "topics").iterdir()
    return str(directory)


def send_from_there(root: str, first: str, last: str) -> None:
    """Subscribe elsewhere, send numbers, and stay until the end of standard input."""
    with pulsar.Client(root) as client:
        client.subscribe("jobs", "other", pulsar.ConsumerType.Shared)
        send(client, *range(int(first), int(last)))
        say("sent")
        input()


@pytest.mark.parametrize("kind", TYPES)
def test_a_living_consumer_goes_on_when_another_boot_id_comes(tmp_path: Path, kind: str):
    """The newcomer takes the words of its living neighbours for those of this boot, and clears nothing."""
    store = tmp_path / "store"
    elsewhere = other_boot_id(tmp_path)
    with pulsar.Client(store) as client, Worker(store, kind) as here:
        send(client, 0)
        assert here.ack() == ("0", 0)
        with Child(send_from_there, store, 1, 20, within=elsewhere) as there:
            assert there.read() == "sent"
            assert [here.ack() for _ in range(1, 20)] == [(str(number), 0) for number in range(1, 20)]
            client.create_producer("jobs").send(b"20")
            assert here.ack() == ("20", 0)
        consumer = client.subscribe("jobs", "late", initial_position=pulsar.InitialPosition.Earliest)
        assert [consumer.receive(5000).data() for _ in range(21)] == [b"%d" % n for n in range(21)]
    assert check_topic(topic_directory(store)).problems == []


def test_neighbours_share_one_subscription(tmp_path: Path):
    """Consumers of three boot ids divide the messages of one subscription; none comes twice."""
    store = tmp_path / "store"
    with (
        pulsar.Client(store) as client,
        Worker(store, "Shared", "here", 1) as here,
        Worker(store, "Shared", "there", 1, within=other_boot_id(tmp_path)) as there,
        Worker(store, "Shared", "beyond", 1, within=other_boot_id(tmp_path)) as beyond,
    ):
        send(client, *range(60))
        got = [worker.ack() for _ in range(20) for worker in (here, there, beyond)]
        assert sorted(got) == sorted((str(number), 0) for number in range(60))


def drained(client: pulsar.Client, kind: str) -> set[str]:
    """What is left on the subscription."""
    consumer, found = subscribe(client, kind), set()
    while True:
        try:
            found.add(consumer.receive(300).data().decode())
        except pulsar.Timeout:
            consumer.close()
            return found


def test_two_exclusive_consumers_never_meet(tmp_path: Path):
    """The lease of the one that is there counts in every container, whether it runs or is stopped."""
    store = tmp_path / "store"
    with Worker(store, "Exclusive", within=other_boot_id(tmp_path)) as there:
        with pulsar.Client(store) as client:
            with pytest.raises(pulsar.ConsumerBusy):
                subscribe(client, "Exclusive")
            os.kill(there.process.pid, signal.SIGSTOP)
            with pytest.raises(pulsar.ConsumerBusy):
                subscribe(client, "Exclusive")
            os.kill(there.process.pid, signal.SIGCONT)
            there.kill()
            there.join()
            send(client, "m")
            assert subscribe(client, "Exclusive").receive(5000).data() == b"m"


def test_the_boot_of_the_first_is_that_of_all_until_the_last_has_left(tmp_path: Path):
    """One that was the last to come keeps the boot of the others when they go, and the next joins it."""
    store = tmp_path / "store"
    first = Worker(store, "Shared", "first", within=other_boot_id(tmp_path))
    with first, Worker(store, "Shared", "second", within=other_boot_id(tmp_path)) as second:
        with pulsar.Client(store) as client:
            send(client, "a")
        first.kill()
        first.join()
        with pulsar.Client(store) as client:
            assert second.ack()[0] == "a"
            send(client, "b")
            assert second.ack()[0] == "b"
        second.kill()
        second.join()
    with pulsar.Client(store) as client:  # the last has left: the words are derived again
        send(client, "c")
        assert drained(client, "Shared") == {"c"}
    assert check_topic(topic_directory(store)).problems == []


@pytest.mark.parametrize("offset_s", [1_000_000, 100])
def test_clocks_of_another_time_namespace(tmp_path: Path, offset_s: int):
    """A consumer whose monotonic clock is far ahead, or behind that of others, is neither thrown out nor
    throws others out: there is one Exclusive consumer at any time."""
    store = tmp_path / "store"
    store.mkdir()
    keep_alive(store, 1)
    with Worker(store, "Exclusive", within=other_time(offset_s)) as there:
        with pulsar.Client(store) as client:
            for _ in range(3):
                with pytest.raises(pulsar.ConsumerBusy):
                    subscribe(client, "Exclusive")
                time.sleep(0.5)
            send(client, 1)
            assert there.ack() == ("1", 0)
            os.kill(there.process.pid, signal.SIGSTOP)
            time.sleep(1.5)
    with (
        Worker(store, "Shared", "here") as here,
        Worker(store, "Shared", "there", within=other_time(offset_s)),
    ):
        with pulsar.Client(store) as client:
            time.sleep(2.5)
            subscription = client._core.store.use_topic("jobs").topic.subscription("work", create=False)
            assert len(subscription.consumers()) == 2
            send(client, 2)
        here.tell("ack")


def test_an_exclusive_consumer_in_another_pid_namespace(tmp_path: Path):
    """Nobody asks for pids: its lease says that it lives, and that it died."""
    store = tmp_path / "store"
    with Worker(store, "Exclusive", within=other_pids()) as there:
        with pulsar.Client(store) as client:
            with pytest.raises(pulsar.ConsumerBusy):
                subscribe(client, "Exclusive")
            there.kill()
            there.join()
            deadline = time.monotonic() + 10
            while True:
                try:
                    subscribe(client, "Exclusive")
                    break
                except pulsar.ConsumerBusy:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)  # unshare dies first, and then what it runs
