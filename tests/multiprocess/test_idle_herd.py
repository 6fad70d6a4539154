"""Many processes that wait for the messages of one subscription: one is woken, and none is left lying."""

from __future__ import annotations

import os
import select
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar import ConsumerType
from embeddedpulsar._engine.log.waiter_slots import UUID_SLOTS
from embeddedpulsar.testing.trial_store import assert_clean

HERD = 12
PATIENCE_S = 20.0
NOTE = struct.Struct("=iiQ")  # what, which member, a number
READY, GOT, WOKEN = range(3)


class Herd:
    """Forked processes with a Shared or Key_Shared consumer each, that tell what they get."""

    def __init__(self, root: Path, kind: ConsumerType, members: int) -> None:
        self._reader, self._writer = os.pipe()
        self.root, self._kind = root, kind
        self.pids: list[int] = []
        for _ in range(members):
            self.add(lambda consumer: consumer.receive())

    def add(self, receive: Callable[[pulsar.Consumer], pulsar.Message]) -> int:
        """One more process; returns its number when it waits."""
        number = len(self.pids)
        pid = os.fork()
        if not pid:
            try:
                self._live(number, receive)
            finally:
                os._exit(1)
        self.pids.append(pid)
        assert self.next() == (READY, number, 0)
        return number

    def _live(self, number: int, receive: Callable[[pulsar.Consumer], pulsar.Message]) -> None:
        client = pulsar.Client(self.root)
        consumer = client.subscribe("topic", "work", self._kind)
        mailbox = client._core.store.mailbox
        signal.signal(signal.SIGUSR1, lambda *_: self._tell(WOKEN, number, mailbox.generation))
        self._tell(READY, number, 0)
        while True:
            message = receive(consumer)
            consumer.acknowledge(message)
            self._tell(GOT, number, int(message.data()))

    def _tell(self, what: int, number: int, value: int) -> None:
        os.write(self._writer, NOTE.pack(what, number, value))

    def next(self, patience_s: float = PATIENCE_S) -> tuple[int, int, int]:
        """What some process tells."""
        assert select.select([self._reader], [], [], patience_s)[0], "no process told anything"
        what, number, value = NOTE.unpack(os.read(self._reader, NOTE.size))
        return what, number, value

    def wakes(self) -> list[int]:
        """How often each process was woken so far."""
        counts = []
        for pid in self.pids:
            os.kill(pid, signal.SIGUSR1)
            counts.append(self.next()[2])
        return counts

    def end(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(self._reader)
        os.close(self._writer)


@pytest.fixture
def herds(tmp_path: Path) -> Iterator[Callable[..., Herd]]:
    """Makes herds, ends them, and audits the store."""
    made: list[Herd] = []

    def make(kind: ConsumerType = ConsumerType.Shared, members: int = HERD) -> Herd:
        made.append(Herd(tmp_path / "store", kind, members))
        settle()
        return made[-1]

    yield make
    for herd in made:
        herd.end()
    with pulsar.Client(tmp_path / "store") as client:
        client.get_topic_partitions("topic")  # the first use of a store clears away what the dead left
    assert_clean(tmp_path / "store")


def settle() -> None:
    """Let everybody fall asleep."""
    time.sleep(0.3)


@pytest.mark.parametrize(("kind", "most"), [(ConsumerType.Shared, 1.2), (ConsumerType.KeyShared, 2.3)])
def test_one_message_wakes_one_process(herds, kind: ConsumerType, most: float):
    """On Key_Shared two: one that assigns it, and the one that has its key. Each message comes once."""
    herd, count = herds(kind), 60
    before = herd.wakes()
    with pulsar.Client(herd.root) as client:
        producer = client.create_producer("topic")
        for number in range(count):
            producer.send(b"%d" % number, partition_key=f"key-{number}")
            assert herd.next()[::2] == (GOT, number)
    woken = [after - earlier for after, earlier in zip(herd.wakes(), before, strict=True)]
    assert sum(woken) <= most * count + HERD, woken


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_a_process_that_is_stopped_keeps_back_one_message_for_a_moment(herds, kind: ConsumerType):
    """It is rung and does not come: others look in turns, and whatever is sent meanwhile goes to others."""
    herd = herds(kind)
    with pulsar.Client(herd.root) as client:
        producer = client.create_producer("topic")
        producer.send(b"0", partition_key="k")
        _, first, _ = herd.next()
        settle()
        os.kill(herd.pids[first], signal.SIGSTOP)
        try:
            begun = time.monotonic()
            expected = set(range(1, 6)) if kind == ConsumerType.Shared else set()
            for number in sorted(expected):
                producer.send(b"%d" % number, partition_key="k")
            found = {herd.next()[2] for _ in expected}
            assert found == expected and time.monotonic() - begun < 5
        finally:
            os.kill(herd.pids[first], signal.SIGCONT)
        producer.send(b"9", partition_key="k")
        assert herd.next()[2] == 9


def test_a_process_that_is_killed_keeps_back_nothing(herds):
    """Between two messages, again and again: the next one comes to another process."""
    herd = herds()
    with pulsar.Client(herd.root) as client:
        producer = client.create_producer("topic")
        for number in range(HERD - 2):
            begun = time.monotonic()
            producer.send(b"%d" % number)
            value = -1
            while value != number:  # what the dead acknowledged a moment before may come again
                _, member, value = herd.next()
            assert time.monotonic() - begun < 5
            os.kill(herd.pids[member], signal.SIGKILL)
            os.waitpid(herd.pids[member], 0)
            herd.pids[member] = os.fork()
            if not herd.pids[member]:
                signal.pause()
                os._exit(0)


def test_a_process_that_does_not_wait_is_not_rung_in_vain(herds):
    """Its application works, or looks now and then: what comes meanwhile goes to others at once."""
    herd = herds(members=3)

    def look_now_and_then(consumer: pulsar.Consumer) -> pulsar.Message:
        while True:
            try:
                return consumer.receive(20)
            except pulsar.Timeout:
                time.sleep(0.05)

    for _ in range(3):
        herd.add(look_now_and_then)
    settle()
    ages = []
    with pulsar.Client(herd.root) as client:
        producer = client.create_producer("topic")
        for number in range(40):
            begun = time.monotonic()
            producer.send(b"%d" % number)
            assert herd.next()[2] == number
            ages.append(time.monotonic() - begun)
            time.sleep(0.007)
    assert sorted(ages)[len(ages) // 2] < 0.02, ages


def test_readers_and_other_subscriptions_are_woken_beside_them(herds):
    """One of each group, and everybody who shares with nobody."""
    herd = herds(members=4)
    with pulsar.Client(herd.root) as client:
        alone = client.subscribe("topic", "alone")
        reader = client.create_reader("topic", pulsar.MessageId.latest)
        producer = client.create_producer("topic")
        for number in range(5):
            producer.send(b"%d" % number)
            assert herd.next()[::2] == (GOT, number)
            message = alone.receive(5000)
            alone.acknowledge(message)
            assert message.data() == reader.read_next(5000).data() == b"%d" % number


def test_there_is_room_for_hundreds():
    """A topic has slots for more processes than a subscription can have consumers."""
    assert UUID_SLOTS >= 250
