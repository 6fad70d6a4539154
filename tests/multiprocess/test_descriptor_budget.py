"""Many topics under a low limit on open files, and none left at all."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from embeddedpulsar import Client, InitialPosition, MessageId
from embeddedpulsar.exceptions import AlreadyClosed, DescriptorLimitError
from tests.multiprocess.children import Child, say

R = TypeVar("R")


def open_now() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd")) - 1


def limit(most: int) -> None:
    """Let this process open no more files than that."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def use_many_topics(root: str, count: str) -> None:
    """Child: publish to one topic after the other and consume that, then read the first."""
    limit(256)
    counts = []
    with Client(root) as client:
        for number in range(int(count)):
            with (
                client.create_producer(f"t{number}") as producer,
                client.subscribe(f"t{number}", "s") as consumer,
            ):
                producer.send(b"%d" % number)
                consumer.acknowledge(consumer.receive(1000))
            counts.append(open_now())
        first = client.create_reader("t0", MessageId.earliest).read_next(1000).data()
    flat = counts[len(counts) // 3 :]
    say(first.decode(), max(counts), max(flat) - min(flat))


def hold_many_topics(root: str, count: str) -> None:
    """Child: a producer and a consumer on each of many topics, all the time, and traffic on all of them."""
    limit(256)
    topics = range(int(count))
    most, right = 0, 0
    with Client(root) as client:
        producers = [client.create_producer(f"t{number}") for number in topics]
        consumers = [client.subscribe(f"t{number}", "s") for number in topics]
        for turn in range(3):
            for number in topics:
                producers[number].send(b"%d of %d" % (turn, number))
            most = max(most, open_now())
            for number in topics:
                message = consumers[number].receive(1000)
                consumers[number].acknowledge(message)
                right += message.data() == b"%d of %d" % (turn, number)
            most = max(most, open_now())
        left = sum(consumer.receive_nowait() is not None for consumer in consumers)
        for one in (*consumers, *producers):
            one.close()
        closed = open_now()
    say(right, left, most, closed, open_now())


def close_consumers(root: str) -> None:
    """Child: what a closed consumer and a closed reader had open, while their objects live on."""

    def open_others() -> int:
        for number in range(20):  # so many that nothing else stays open for its next user
            client.create_producer(f"other{number}").close()
        return open_now()

    with Client(root) as client:
        before = open_others()
        producer = client.create_producer("t")
        producer.send(b"kept")
        consumer = client.subscribe("t", "s", initial_position=InitialPosition.Earliest)
        consumer.acknowledge(consumer.receive(1000))
        reader = client.create_reader("t", MessageId.earliest)
        message = reader.read_next(1000)
        consumer.close()
        reader.close()
        producer.close()
        more = open_others() - before
        mapped = Path("/proc/self/maps").read_text().count("-t/")
        say(mapped, message.data().decode(), more)


def send_and_receive_everywhere(root: str, name: str, durability: str) -> None:
    """Child: two threads send to 40 topics and two receive from them, all of what two processes send."""
    limit(96)
    topics, turns, failures = 40, 20, []
    with Client(root, durability=durability) as client:
        producers = [client.create_producer(f"t{number}") for number in range(topics)]
        consumers = [
            client.subscribe(f"t{number}", name, initial_position=InitialPosition.Earliest)
            for number in range(topics)
        ]

        def send(first: int) -> None:
            for turn in range(turns):
                for number in range(first, topics, 2):
                    producers[number].send(f"{name} {turn}".encode())

        def receive(first: int) -> None:
            for number in range(first, topics, 2):
                seen: dict[str, int] = {}
                while sum(seen.values()) < 2 * turns:
                    message = consumers[number].receive(30_000)
                    sender, turn = message.data().decode().split()
                    assert int(turn) == seen.get(sender, 0)
                    seen[sender] = int(turn) + 1
                    consumers[number].acknowledge(message)

        def run(action: Callable[[int], None], first: int) -> None:
            try:
                action(first)
            except Exception as e:
                failures.append(repr(e))

        threads = [
            threading.Thread(target=run, args=(action, n)) for action in (send, receive) for n in (0, 1)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        used = open_now()
    say(used, *failures)


class Shortage:
    """Runs things while only a few descriptors can be had."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.refused: list[str] = []

    def attempt(self, name: str, action: Callable[[], R]) -> R:
        """The result, of a second attempt with all descriptors if the first was refused for lack of them."""
        held = []
        try:
            while True:
                held.append(os.dup(2))
        except OSError:
            for _ in range(self.free):
                os.close(held.pop())
        try:
            return action()
        except DescriptorLimitError:
            self.refused.append(name)
        finally:
            for fd in held:
                os.close(fd)
        return action()


def work_without_descriptors(root: str, free: str) -> None:
    """Child: everything a client does, each step with so many descriptors at most, and again if refused."""
    limit(96)
    before = open_now()
    attempt = (shortage := Shortage(int(free))).attempt
    client = attempt("client", lambda: Client(root))
    leases = len(os.listdir(f"{root}/clients"))
    for topic in ("t0", "t1"):
        producer = attempt("producer", lambda topic=topic: client.create_producer(topic, "me"))
        assert client._core.store.use_topic(topic).topic.producers() == ["me"]
        attempt("send", lambda producer=producer: producer.send(b"one"))
        consumer = attempt("subscribe", lambda topic=topic: client.subscribe(topic, "s"))
        reader = attempt("reader", lambda topic=topic: client.create_reader(topic, MessageId.earliest))
        assert attempt("read", lambda reader=reader: reader.read_next(1000)).data() == b"one"
        attempt("send", lambda producer=producer: producer.send(b"two"))
        message = attempt("receive", lambda consumer=consumer: consumer.receive(1000))
        assert message.data() == b"two"
        attempt("acknowledge", lambda consumer=consumer, message=message: consumer.acknowledge(message))
        attempt("seek", lambda consumer=consumer: consumer.seek(MessageId.earliest))
        assert [consumer.receive(1000).data() for _ in range(2)] == [b"one", b"two"]
        assert reader.read_next(1000).data() == b"two" and not reader.has_message_available()
        for one in (consumer, producer, reader):
            try:
                attempt("close", one.close)
            except AlreadyClosed:
                continue  # refused half way, and closed all the same
        client.subscribe(topic, "s").close()
        assert client._core.store.use_topic(topic).topic.producers() == []
    client.close()
    say(leases, open_now() - before, *shortage.refused)


def test_topics_one_after_the_other_keep_nothing_open(tmp_path: Path):
    """300 topics with a producer and a consumer each, closed again: the number of open files stays flat."""
    with Child(use_many_topics, tmp_path / "store", 300, is_fresh=True) as child:
        first, most, growth = child.read().split()
        assert first == "0"
        assert int(most) < 200
        assert int(growth) < 10
        assert child.join() == 0


def test_live_topics_need_fewer_descriptors_than_there_are_topics(tmp_path: Path):
    """300 live producers and 300 live consumers work under a limit of 256, and nothing stays open."""
    with Child(hold_many_topics, tmp_path / "store", 300, is_fresh=True) as child:
        right, left, most, closed, end = map(int, child.read().split())
        assert (right, left) == (900, 0)
        assert most < 200
        assert closed < 100
        assert end < 12
        assert child.join() == 0


@pytest.mark.parametrize("durability", ["process", "interval"])
def test_threads_of_processes_that_share_a_tight_budget(tmp_path: Path, durability: str):
    """What rests while another thread needs it comes back: nothing is lost, doubled or out of order."""
    arguments = (tmp_path / "store",)
    with (
        Child(send_and_receive_everywhere, *arguments, "a", durability, is_fresh=True) as one,
        Child(send_and_receive_everywhere, *arguments, "b", durability, is_fresh=True) as other,
    ):
        for child in (one, other):
            used, *failures = child.read().split(" ", 1)
            assert not failures
            assert int(used) < 90
            assert child.join() == 0


def test_closing_gives_everything_back_at_once(tmp_path: Path):
    """No segment stays mapped for closed objects that are still referred to; their messages stay good."""
    with Child(close_consumers, tmp_path / "store", is_fresh=True) as child:
        assert child.read() == "0 kept 0"
        assert child.join() == 0


@pytest.mark.parametrize("free", [0, 3, 6, 9, 10, 12, 15])
def test_nothing_is_half_done_without_descriptors(tmp_path: Path, free: int):
    """Every step succeeds, or raises DescriptorLimitError and can be done again as if nothing had been."""
    with Child(work_without_descriptors, tmp_path / "store", free, is_fresh=True) as child:
        leases, kept, *refused = child.read().split()
        assert (leases, kept) == ("1", "0")
        assert ("client" in refused) == (free < 9)
        assert "subscribe" not in refused, "locks, journals and segments at rest make room for it"
        assert child.join() == 0
