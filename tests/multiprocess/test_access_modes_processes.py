"""Access modes between real processes: deaths, stops, Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import threading
import time

import pytest

from embeddedpulsar import (
    AlreadyClosed,
    Client,
    ConsumerBusy,
    ConsumerType,
    ProducerAccessMode,
    ProducerBusy,
    ProducerFenced,
)
from tests.multiprocess.children import Child, say
from tests.support.clients import wait_until

Exclusive = ProducerAccessMode.Exclusive
Waiting = ProducerAccessMode.WaitForExclusive
Fencing = ProducerAccessMode.ExclusiveWithFencing


@pytest.fixture
def client(tmp_path):
    """A client of the store that the children use."""
    made = Client(tmp_path / "store")
    yield made
    made.shutdown()


def hold(root: str, mode: str) -> None:
    """Child: have the topic in some mode, and send when told."""
    with Client(root) as client:
        try:
            producer = client.create_producer("topic", access_mode=ProducerAccessMode[mode])
        except KeyboardInterrupt:
            say("interrupted")
            return
        say("granted", os.getpid())
        while (line := input()) != "end":
            try:
                producer.send(line.encode())
                say("sent")
            except (ProducerFenced, AlreadyClosed) as error:
                say(type(error).__name__)


def waiting_count(client: Client) -> int:
    """How many stand in the queue."""
    topic = client._core.store.use_topic("topic").topic
    topic.producers()
    return len(topic._producers.get()._table.waiting)


@pytest.mark.parametrize("mode", ["Exclusive", "WaitForExclusive", "ExclusiveWithFencing"])
def test_a_killed_holder_frees_the_topic_at_once(client, tmp_path, mode):
    """The kernel gives the lease back; whoever asks next gets the topic."""
    with Child(hold, tmp_path / "store", mode) as child:
        child.read()
        with pytest.raises(ProducerFenced):
            client.create_producer("topic", access_mode=Exclusive)
        child.kill()
        child.join()
        producer = client.create_producer("topic", access_mode=Exclusive)
        assert producer._publisher.prefix.epoch == 2


def consume(root: str) -> None:
    """Child: hold a subscription until it is told to end."""
    with Client(root) as client:
        client.subscribe("topic", "sub", consumer_name="theirs")
        say("subscribed")
        input()


def test_errors_name_the_process_of_the_holder(client, tmp_path):
    """Of a consumer, of a producer with the same name, and of one that has the topic for itself."""
    with Child(consume, tmp_path / "store") as child:
        child.read()
        with pytest.raises(ConsumerBusy) as refused:
            client.subscribe("topic", "sub")
        pattern = r"'theirs' holds .*close it, .*; attached: 'theirs' by process %d \(python.*\)$"
        assert re.search(pattern % child.process.pid, str(refused.value)), refused.value
        with pytest.raises(ConsumerBusy, match=f"different type.* by process {child.process.pid} "):
            client.subscribe("topic", "sub", ConsumerType.Shared)
    with Child(hold, tmp_path / "store", "Exclusive") as child:
        child.read()
        for error, options in (
            (ProducerBusy, {}),
            (ProducerFenced, {"access_mode": Exclusive}),
        ):
            with pytest.raises(error, match=f"close it, .*attached: '.*' by process {child.process.pid} "):
                client.create_producer("topic", **options)
        child.tell("end")
        child.join()


def test_a_kill_promotes_the_first_in_the_queue(client, tmp_path):
    """First come, first served, across processes; a death in the queue leaves no gap in it."""
    root = tmp_path / "store"
    holder = client.create_producer("topic", access_mode=Exclusive)
    with Child(hold, root, "WaitForExclusive") as first:
        wait_until(lambda: waiting_count(client) == 1)
        with Child(hold, root, "WaitForExclusive") as second, Child(hold, root, "WaitForExclusive") as third:
            wait_until(lambda: waiting_count(client) == 3)
            holder.close()
            first.read()
            queue = [second, third]
            pids = {child.process.pid: child for child in queue}
            first.kill()
            found = []
            reader = threading.Thread(target=lambda: found.append(next_granted(queue)))
            reader.start()
            reader.join(30)
            (winner,) = found
            loser = next(child for child in queue if child is not winner)
            winner.kill()
            winner.join()
            assert loser.read().startswith("granted")
            assert len(pids) == 2
            loser.tell("end")
            loser.join()


def next_granted(children):
    """The child that says that it was granted the topic."""
    import select

    streams = {child.process.stdout: child for child in children}
    (ready, *_), _, _ = select.select(list(streams), [], [], 30)
    streams[ready].read()
    return streams[ready]


def test_a_stopped_holder_that_was_fenced_writes_nothing(client, tmp_path):
    """SIGSTOP, another takes the topic, SIGCONT: its next send is refused, wherever it was stopped."""
    with Child(hold, tmp_path / "store", "Exclusive") as child:
        pid = int(child.read().split()[1])
        child.tell("before")
        assert child.read() == "sent"
        os.kill(pid, signal.SIGSTOP)
        child.tell("after")
        with client.create_producer("topic", access_mode=Fencing) as usurper:
            usurper.send(b"mine")
            os.kill(pid, signal.SIGCONT)
            assert child.read() == "ProducerFenced"
        log = client._core.store.use_topic("topic").topic.ledger
        views = log.cursor(log.first_position(), inclusive=True).read(10, 10, 1 << 20)
        assert [view.value(0) for view in views] == [b"before", b"mine"]
        child.tell("end")
        assert child.join() == 0


def test_ctrl_c_leaves_the_queue(client, tmp_path):
    """The next in the queue does not wait for one who gave up."""
    holder = client.create_producer("topic", access_mode=Exclusive)
    with Child(hold, tmp_path / "store", "WaitForExclusive") as child:
        wait_until(lambda: waiting_count(client) == 1)
        child.process.send_signal(signal.SIGINT)
        assert child.read() == "interrupted"
        assert child.join() == 0
    assert waiting_count(client) == 0
    holder.close()
    client.create_producer("topic").close()


def stay_in_the_lock(root: str) -> None:
    """Child: take the lock of the topic and keep it."""
    with Client(root) as client:
        lock = client._core.store.use_topic("topic").topic.ledger.lock
        try:
            lock.acquire()
            say("inside")
            input()
        finally:
            lock.release()


def test_closing_does_not_wait_long_for_a_stopped_process(client, tmp_path):
    """Who leaves is taken out as soon as the lock is free again, and his name with him."""
    producer = client.create_producer("topic", "name")
    with Child(stay_in_the_lock, tmp_path / "store") as child:
        child.read()
        begun = time.monotonic()
        producer.close()
        assert time.monotonic() - begun < 10
        child.tell("go on")
        child.join()
    client.create_producer("topic", "name").send(b"x")
