"""Shared and Key_Shared over real processes: deaths, stops, and what others do, as a consumer notices it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from tests.children import in_child
from tests.multiprocess.children import Child, say
from tests.multiprocess.workers import Worker, keep_alive, send, subscribe
from tests.support.timing import best_within, median_within

NOT_BY_POLLING_S = 0.09
TYPES = ("Exclusive", "Failover", "Shared", "KeyShared")
COMING_SINGLY = ("Shared", "KeyShared")


def drain(consumer: pulsar.Consumer, timeout_ms: int = 300) -> list[tuple[str, int]]:
    """Everything that comes, acknowledged, until nothing does: payloads and redelivery counts."""
    found = []
    while True:
        try:
            message = consumer.receive(timeout_ms)
        except pulsar.Timeout:
            return found
        consumer.acknowledge(message)
        found.append((message.data().decode(), message.redelivery_count()))


# -- death -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COMING_SINGLY)
def test_messages_of_a_killed_consumer_come_back_at_once(tmp_path: Path, kind: str):
    """Those its application was given count as redelivered, those it had only fetched do not."""
    with pulsar.Client(tmp_path) as client, Worker(tmp_path, kind) as worker:
        send(client, *range(6), key="k")
        assert [worker.take() for _ in range(2)] == [("0", 0), ("1", 0)]
        peer = subscribe(client, kind)
        with pytest.raises(pulsar.Timeout):
            peer.receive(150)
        begun = time.perf_counter()
        worker.kill()
        first = peer.receive(5000)
        took = time.perf_counter() - begun
        assert (first.data(), first.redelivery_count()) == (b"0", 1)
        assert took < 1
        peer.acknowledge(first)
        assert drain(peer) == [("1", 1), ("2", 0), ("3", 0), ("4", 0), ("5", 0)]


@pytest.mark.parametrize("kind", COMING_SINGLY)
@pytest.mark.parametrize("several", [False, True], ids=["one topic", "several topics"])
def test_a_peer_that_never_waits_gets_them_too(tmp_path: Path, kind: str, several: bool):
    """`receive_nowait` alone notices the death: nobody sleeps in this process, and no timer is due."""
    with pulsar.Client(tmp_path) as client, Worker(tmp_path, kind) as worker:
        send(client, *range(6), key="k")
        assert worker.take() == ("0", 0)
        topic = ["jobs", "others"] if several else "jobs"
        peer = client.subscribe(topic, "work", pulsar.ConsumerType[kind])
        assert peer.receive_nowait() is None
        begun = time.perf_counter()
        worker.kill()
        while (first := peer.receive_nowait()) is None:
            assert time.perf_counter() - begun < 2
            time.sleep(0.01)
        assert (first.data(), first.redelivery_count()) == (b"0", 1)


@pytest.mark.parametrize("kind", COMING_SINGLY)
def test_a_waiting_peer_gets_them_within_milliseconds(tmp_path: Path, kind: str):
    """Somebody who sleeps in receive() is woken by the death itself."""
    numbers = count()
    with pulsar.Client(tmp_path) as client:
        subscribe(client, kind).close()

        def kill_and_notice() -> float:
            number = next(numbers)
            with Worker(tmp_path, kind, "holder") as holder:
                send(client, number, key="k")
                assert holder.take() == (str(number), 0)
                with Worker(tmp_path, kind, "peer") as peer:
                    peer.tell("ack")
                    time.sleep(0.15)
                    begun = time.perf_counter()
                    holder.kill()
                    data, redelivered, when = peer.got()
                    assert (data, redelivered) == (str(number), 1)
                    return when - begun

        median_within(NOT_BY_POLLING_S, kill_and_notice)


def test_a_consumer_that_closes_gives_back_without_counting(tmp_path: Path):
    """It left in good order: nothing was tried and failed."""
    with pulsar.Client(tmp_path) as client, Worker(tmp_path, "Shared") as worker:
        send(client, *range(3))
        assert worker.take() == ("0", 0)
        peer = subscribe(client, "Shared")
        worker.tell("close")
        assert worker.read() == "closed"
        assert drain(peer) == [("0", 0), ("1", 0), ("2", 0)]


# -- stops -----------------------------------------------------------------------------------------


def test_a_stopped_consumer_strands_nothing_of_others(tmp_path: Path):
    """Long before it is taken for dead, everything it had not fetched goes to the others at once."""
    keep_alive(tmp_path, 30)
    with pulsar.Client(tmp_path) as client, Worker(tmp_path, "Shared", queue=5) as stopped:
        peer = subscribe(client, "Shared", receiver_queue_size=5)
        send(client, *range(3))
        stopped.take()
        os.kill(stopped.process.pid, signal.SIGSTOP)
        begun = time.perf_counter()
        send(client, *range(3, 200))
        found = {int(data) for data, _ in drain(peer)}
        assert time.perf_counter() - begun < 5
        assert len(found) >= 200 - 5
        assert set(range(10, 200)) <= found
        os.kill(stopped.process.pid, signal.SIGCONT)


def test_keys_of_a_stopped_consumer_wait_and_no_others(tmp_path: Path):
    """On Key_Shared only its own keys wait; they too come to others once it is taken for dead."""
    keep_alive(tmp_path, 2)
    with pulsar.Client(tmp_path) as client, Worker(tmp_path, "KeyShared", queue=5) as stopped:
        peer = subscribe(client, "KeyShared")
        send(client, "probe", key="0")
        for key in range(1, 20):
            send(client, "first", key=str(key))
        stopped.take()
        os.kill(stopped.process.pid, signal.SIGSTOP)
        begun = time.perf_counter()
        for key in range(20):
            send(client, "second", key=str(key))
        own = len(drain(peer, 200))
        assert 0 < own < 40
        assert time.perf_counter() - begun < 1.6
        left = drain(peer, 3000)
        assert own + len(left) == 40
        assert [count for _, count in left if count] == [1], "one was in the hands of the application"
        os.kill(stopped.process.pid, signal.SIGCONT)


@pytest.mark.parametrize("kind", COMING_SINGLY)
def test_a_stopped_consumer_blocks_nobody_for_long_and_comes_back(tmp_path: Path, kind: str):
    """After keepAliveIntervalSeconds all it held comes to the others; when it goes on, it gets new ones."""
    keep_alive(tmp_path, 1)
    with pulsar.Client(tmp_path) as client, Worker(tmp_path, kind) as stopped:
        send(client, *range(4), key="k")
        assert stopped.take() == ("0", 0)
        peer = subscribe(client, kind)
        os.kill(stopped.process.pid, signal.SIGSTOP)
        begun = time.perf_counter()
        found = drain(peer, 3000)
        assert found == [("0", 1), ("1", 0), ("2", 0), ("3", 0)]
        assert time.perf_counter() - begun < 3 + 2.5
        os.kill(stopped.process.pid, signal.SIGCONT)
        stopped.tell("ack-all")  # what it had fetched, then new ones
        time.sleep(0.2)
        peer.close()
        send(client, "new", key="k")
        while (got := stopped.got()[0]) != "new":
            assert got in "123"


# -- what others do --------------------------------------------------------------------------------


def until_noticed(worker: Worker, act: Callable[[], object]) -> float:
    """Seconds from an act of this process to the message it brings a worker that sleeps."""
    worker.tell("take")
    time.sleep(0.15)
    begun = time.perf_counter()
    act()
    return worker.got()[2] - begun


def seek_and_notice(root: Path, kind: str) -> float:
    """How long a seek takes to bring a message to a sleeper in another process."""
    with pulsar.Client(root) as client, Worker(root, kind) as worker:
        send(client, "m", key="k")
        assert worker.ack() == ("m", 0)
        consumer = subscribe(client, kind)
        return until_noticed(worker, lambda: consumer.seek(pulsar.MessageId.earliest))


def give_back_and_notice(root: Path, kind: str, deed: str) -> float:
    """The same for a message that is given back."""
    with pulsar.Client(root) as client:
        consumer = subscribe(client, kind)
        send(client, "m", key="k")
        assert consumer.receive(5000).data() == b"m"

        def give_back() -> None:
            if deed == "redeliver":
                consumer.redeliver_unacknowledged_messages()
            if deed == "close" or kind == "KeyShared":  # where the key goes on belonging to it
                consumer.close()

        with Worker(root, kind) as sleeper:
            return until_noticed(sleeper, give_back)


@pytest.mark.parametrize("kind", COMING_SINGLY)
@pytest.mark.parametrize("deed", ["seek", "redeliver", "close"])
def test_a_sleeper_notices_what_other_processes_do(tmp_path: Path, kind: str, deed: str):
    """A seek, a redelivery and a close wake it, not its back-stop."""
    roots = (tmp_path / str(number) for number in count())

    def measure() -> float:
        root = next(roots)
        return seek_and_notice(root, kind) if deed == "seek" else give_back_and_notice(root, kind, deed)

    median_within(NOT_BY_POLLING_S, measure)


def test_a_sleeping_active_consumer_notices_a_seek(tmp_path: Path):
    """Of a standby in another process."""
    with pulsar.Client(tmp_path) as client, Worker(tmp_path, "Failover") as worker:
        send(client, "m")
        assert worker.ack() == ("m", 0)
        standby = subscribe(client, "Failover")
        assert until_noticed(worker, lambda: standby.seek(pulsar.MessageId.earliest)) < 0.2


# -- interrupts and forks --------------------------------------------------------------------------


def wait_for_a_message(root: str, kind: str) -> None:
    """Sleep in receive() until a signal comes; say what became of it."""
    signal.signal(signal.SIGTERM, lambda *_: exit(7))
    with pulsar.Client(root) as client:
        consumer = subscribe(client, kind)
        say("waiting")
        try:
            consumer.receive()
        except pulsar.Interrupted:
            say("interrupted")


def interrupted_after(root: Path, kind: str, number: signal.Signals) -> float:
    """Seconds from a signal to a child that sleeps in receive() until it says so, or is gone."""
    with Child(wait_for_a_message, root, kind) as child:
        assert child.read() == "waiting"
        time.sleep(0.2)
        begun = time.perf_counter()
        child.process.send_signal(number)
        if number == signal.SIGINT:
            assert child.read() == "interrupted"
            taken_s = time.perf_counter() - begun
            assert child.join() == 0
            return taken_s
        assert child.join() == 7
        return time.perf_counter() - begun


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_receive_promptly(tmp_path: Path, kind: str, number: signal.Signals):
    """Ctrl-C raises, a handler of SIGTERM that exits exits; the consumer is gone in good order."""
    limit_s = 0.25 if number == signal.SIGINT else 0.5  # the latter with the interpreter's end
    best_within(limit_s, lambda: interrupted_after(tmp_path, kind, number))
    with pulsar.Client(tmp_path) as client:
        subscribe(client, "Exclusive")  # nobody is left there


@pytest.mark.parametrize("kind", COMING_SINGLY)
def test_a_fork_leaves_the_consumers_of_its_parent_alone(tmp_path: Path, kind: str):
    """The child's copies are closed; it can subscribe for itself, and its end disturbs nobody."""
    with pulsar.Client(tmp_path) as client:
        consumer = subscribe(client, kind)
        send(client, *range(4), key="k")
        first = consumer.receive(5000)

        def child() -> str:
            refused = 0
            for call in (consumer.receive, lambda: consumer.acknowledge(first), consumer.close):
                try:
                    call()
                except pulsar.AlreadyClosed:
                    refused += 1
            with pulsar.Client(tmp_path) as own:
                mine = subscribe(own, kind, consumer_name="child")
                try:
                    mine.receive(100)
                except pulsar.Timeout:
                    return str(refused)
                return "got something that is the parent's"

        assert in_child(child) == "3"
        consumer.acknowledge(first)
        assert drain(consumer, 100) == [("1", 0), ("2", 0), ("3", 0)]
