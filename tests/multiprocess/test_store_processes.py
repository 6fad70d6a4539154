"""One store, several real processes: creation races, kills, producers' names, forks."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.entry import ProducerPrefix, encode_single
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar.enums import ProducerAccessMode
from tests.multiprocess.children import Child, say

PREFIX = ProducerPrefix("p", 0)


def make_topics(root: str, count: str) -> None:
    """Child: on a line of input, open the store and make topics; say what it found."""
    input()
    store = Store.open(root)
    found = []
    for number in range(int(count)):
        topic = store.use_topic(f"t{number}").topic
        ledger_id = topic.ledger.append(encode_single(b"x", 0, PREFIX))[0]
        found.append(f"{topic.incarnation}:{ledger_id}")
    say(store._current().meta.store_id.hex(), store._current().client_number, *found)
    store.release()


def test_processes_that_make_one_store_at_once_agree(tmp_path: Path):
    """Four processes race to create directory, store and topics: one identity, one incarnation per topic."""
    root = tmp_path / "store"
    children = [Child(make_topics, root, 10) for _ in range(4)]
    try:
        for child in children:
            child.tell("go")
        answers = [child.read().split() for child in children]
        assert len({answer[0] for answer in answers}) == 1
        assert sorted(answer[1] for answer in answers) == ["0", "1", "2", "3"]
        for topic in range(10):
            assert len({answer[2 + topic].partition(":")[0] for answer in answers}) == 1
        assert all(child.join() == 0 for child in children)
    finally:
        for child in children:
            child.__exit__(None, None, None)
    store = Store.open(root)
    assert len(store.topics.names()) == 10
    for name in store.topics.names():
        ledger = store.use_topic(name).topic.ledger
        assert ledger.messages_after(ledger.first_position()._replace(entry_id=-1)) == 4
    assert os.listdir(root / "clients") == [store.mailbox.uuid.hex()]
    assert os.listdir(root / "staging") == []
    store.release()


def produce_until_killed(root: str, name: str, mode: str) -> None:
    """Child: register a producer, say so, and stay."""
    store = Store.open(root)
    registration = store.use_topic("orders").topic.attach_producer(
        name, access_mode=ProducerAccessMode(int(mode))
    )
    say(registration.name, registration.epoch)
    while True:
        store.mailbox.wait(store.mailbox.generation, None)


def test_the_name_of_a_killed_producer_is_free_at_once(tmp_path: Path):
    """No time-out has to pass: the lease went with the process."""
    store = Store.open(tmp_path / "store")
    topic = store.use_topic("orders").topic
    with Child(produce_until_killed, store.root, "bob", 0) as child:
        assert child.read() == "bob 0"
        assert topic.producers() == ["bob"]
        child.kill()
        child.join()
        before = time.monotonic()
        assert topic.attach_producer("bob").name == "bob"
        assert time.monotonic() - before < 1
    assert store.peers.sweep() == 1
    store.release()


def test_a_waiting_producer_gets_the_topic_when_the_holder_is_killed(tmp_path: Path):
    """WaitForExclusive over the death of the exclusive producer: some milliseconds."""
    store = Store.open(tmp_path / "store")
    topic = store.use_topic("orders").topic
    exclusive, waiting = ProducerAccessMode.Exclusive.value, ProducerAccessMode.WaitForExclusive.value
    with Child(produce_until_killed, store.root, "holder", exclusive) as holder:
        assert holder.read() == "holder 1"
        waiter = Child(produce_until_killed, store.root, "waiter", waiting)
        while not topic._producers.get()._table.waiting:
            time.sleep(0.01)
            topic.producers()
        holder.kill()
        killed = time.monotonic()
        assert waiter.read() == "waiter 2"
        assert time.monotonic() - killed < 2
        waiter.__exit__(None, None, None)
    store.release()


def fork_workers(root: str, workers: str, messages: str) -> None:
    """Child: open a store and a producer, fork workers that publish through what they inherited."""
    store = Store.open(root)
    topic = store.use_topic("orders").topic
    topic.create_subscription("archive")  # nothing is acknowledged, so nothing is trimmed
    topic.attach_producer()
    topic.ledger.append(encode_single(b"parent", 0, PREFIX))
    pids = []
    for worker in range(int(workers)):
        pid = os.fork()
        if pid:
            pids.append(pid)
            continue
        status = 1
        try:
            mine = store.use_topic("orders").topic
            name = mine.attach_producer().name
            for number in range(int(messages)):
                mine.ledger.append(encode_single(f"{worker}-{number}-{name}".encode(), number, PREFIX))
                if number % 50 == 49:
                    mine.ledger.roll()
            store.release()
            status = 0
        finally:
            os._exit(status)
    for number in range(int(messages)):
        topic.ledger.append(encode_single(f"parent-{number}-".encode(), number, PREFIX))
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    say(*statuses)
    store.release()


def test_forked_workers_and_their_parent_share_a_topic(tmp_path: Path):
    """Prefork servers: every child has its own lease, producer name and ledger ids; nothing is lost or
    doubled."""
    root = tmp_path / "store"
    with Child(fork_workers, root, 3, 200) as child:
        assert child.read() == "0 0 0"
        assert child.join() == 0
    store = Store.open(root)
    ledger = store.use_topic("orders").topic.ledger
    cursor = ledger.cursor(ledger.first_position(), inclusive=True)
    payloads: list[bytes] = []
    while views := cursor.read(1000, 1000, 1 << 30):
        payloads += [view.value(0) for view in views]
    assert len(payloads) == len(set(payloads)) == 1 + 4 * 200
    for worker in (b"0", b"1", b"2", b"parent"):
        numbers = [int(p.split(b"-")[1]) for p in payloads if p.startswith(worker + b"-")]
        assert numbers == list(range(200)), "each one's messages in order"
    assert len({p.split(b"-", 2)[2] for p in payloads if b"-" in p}) == 4
    assert os.listdir(root / "clients") == [store.mailbox.uuid.hex()]
    store.release()


def test_killed_processes_leave_nothing_that_stays(tmp_path: Path):
    """Doorbells of killed processes are swept by whoever opens the store next."""
    root = tmp_path / "store"
    Store.open(root).release()
    for _ in range(2):
        with Child(produce_until_killed, root, "", 0) as child:
            child.read()
            child.process.send_signal(signal.SIGKILL)
            child.join()
    assert len(os.listdir(root / "clients")) == 1, "the second one swept the first one's"
    store = Store.open(root)
    assert os.listdir(root / "clients") == [store.mailbox.uuid.hex()]
    assert store.use_topic("orders").topic.producers() == []
    store.release()


def fork_amid_threads(root: str, forks: str) -> None:
    """Child: threads wait, publish, register and make topics; forks go on meanwhile, each of which works
    too."""
    store = Store.open(root)
    stop = threading.Event()

    def waiting() -> None:
        while not stop.is_set():
            store.mailbox.wait(store.mailbox.generation, 0.05)

    def publishing() -> None:
        ledger = store.use_topic("busy").topic.ledger
        while not stop.is_set():
            ledger.append(encode_single(b"x", 0, PREFIX))

    def registering() -> None:
        topic = store.use_topic("busy").topic
        while not stop.is_set():
            topic.detach_producer(topic.attach_producer("parent"))

    def making() -> None:
        # Few, because the child of a process with thousands of open topics is busy giving them up.
        number = 0
        while not stop.is_set():
            store.use_topic(f"t{number % 300}")
            number += 1

    threads = [threading.Thread(target=body) for body in (waiting, waiting, publishing, registering, making)]
    for thread in threads:
        thread.start()
    statuses = []
    for number in range(int(forks)):
        time.sleep(0.002 * (number % 7))
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)  # a deadlock ends as a signal
            status = 1
            try:
                topic = store.use_topic("busy").topic
                topic.ledger.append(encode_single(b"child", 0, PREFIX))
                topic.detach_producer(topic.attach_producer(f"child-{number}"))
                store.use_topic(f"of-child-{number}")
                store.mailbox.wait(store.mailbox.generation, 0.001)
                store.release()
                status = 0
            finally:
                os._exit(status)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    stop.set()
    for thread in threads:
        thread.join()
    say(sum(status == 0 for status in statuses), *[status for status in statuses if status])
    store.release()


def test_forking_amid_busy_threads_deadlocks_nobody(tmp_path: Path):
    """Whatever the other threads of the parent hold at that moment, the child works, and so does the
    parent."""
    root = tmp_path / "store"
    with Child(fork_amid_threads, root, 25) as child:
        assert child.read() == "25"
        assert child.join() == 0
    store = Store.open(root)
    assert sum(name.startswith("persistent://public/default/of-child") for name in store.topics.names()) == 25
    assert os.listdir(root / "clients") == [store.mailbox.uuid.hex()]
    store.release()


@pytest.mark.parametrize("step", ["file_created", "created", "body_done", "word_stored"])
def test_a_producer_that_dies_while_it_registers_blocks_nobody(tmp_path: Path, step: str):
    """SIGKILL at every step of the journal: the name is free, the log of the topic goes on."""
    store = Store.open(tmp_path / "store")
    topic = store.use_topic("orders").topic
    if step not in ("file_created", "created"):
        topic.detach_producer(topic.attach_producer())  # so that there is a journal
    pid = os.fork()
    if pid == 0:
        try:
            failpoints.set(f"journal:{step}", "kill")
            store.use_topic("orders").topic.attach_producer("bob")
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert topic.producers() == []
    assert topic.attach_producer("bob").name == "bob"
    topic.ledger.append(encode_single(b"x", 0, PREFIX))
    store.release()
