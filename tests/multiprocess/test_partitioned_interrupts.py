"""Ctrl-C at any instruction of a producer of partitions."""

from __future__ import annotations

import gc
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from tests.multiprocess.children import Child, say
from tests.multiprocess.test_log_interrupts import Budget
from tests.multiprocess.test_partitioned_producers import store_of, stored


class Storm:
    """Calls something again and again, and interrupts it at a random instruction."""

    def __init__(self) -> None:
        self.rng = random.Random(11)
        self.budget = Budget()
        self.interrupts = 0

    def over(self, action: Callable[[], object], longest_s: float) -> None:
        """Repeat an action until it is interrupted."""
        try:
            try:
                self.budget.left = 1000  # one that hits a finalizer is lost
                signal.setitimer(signal.ITIMER_REAL, self.rng.uniform(1e-6, longest_s), 0.1)
                while True:
                    action()
            except KeyboardInterrupt:
                self.interrupts += 1
        finally:
            self.budget.left = 0
            signal.setitimer(signal.ITIMER_REAL, 0)


def send_in_a_storm(root: str, wanted: str, batching: str) -> None:
    """Send numbers under interrupts, by key and in turn; say those whose send returned."""
    storm = Storm()
    with pulsar.Client(root) as client:
        producer = client.create_producer(
            "jobs",
            batching_enabled=batching == "True",
            batching_max_messages=10,
        )
        number = 0
        returned: list[int] = []

        def send() -> None:
            nonlocal number
            number += 1
            key = f"key-{number % 5}" if number % 3 == 0 else None
            if number % 50 == 0:
                producer.send(b"%d" % number, partition_key=key)
            else:
                producer.send_async(b"%d" % number, None, partition_key=key)
            returned.append(number)

        for _ in range(6):
            send()  # the first message of each partition makes its first segment
        while storm.interrupts < int(wanted):
            storm.over(send, 3e-3)
        producer.flush()
        producer.close()
        say(storm.interrupts)
        for start in range(0, len(returned), 1000):
            say(*returned[start : start + 1000])
    say("end")


@pytest.mark.parametrize("batching", [False, True])
def test_an_interrupt_storm_over_sends(tmp_path: Path, batching: bool):
    """What a send took is stored once, in order on its partition; what was interrupted, at most once."""
    with pulsar.Client(tmp_path) as client:
        store_of(client).topics.create_partitioned("jobs", 3)
        with Child(send_in_a_storm, tmp_path, 400, batching) as child:
            assert int(child.read()) >= 400
            returned: set[int] = set()
            while (line := child.read()) != "end":
                returned.update(map(int, line.split()))
            assert child.join() == 0
        found = [list(map(int, stored(client, index))) for index in range(3)]
        everything = [number for numbers in found for number in numbers]
        assert len(everything) == len(set(everything))
        assert len(returned) > 100
        assert returned <= set(everything)
        assert all(numbers == sorted(numbers) for numbers in found)


def attach_in_a_storm(root: str, wanted: str) -> None:
    """Make and close a producer under interrupts; at the end make it once more in peace."""
    storm = Storm()
    with pulsar.Client(root) as client:

        def attach() -> None:
            try:
                client.create_producer("jobs", "till").close()
            except pulsar.ProducerBusy:
                gc.collect()  # one that was interrupted is still in the traceback of that

        while storm.interrupts < int(wanted):
            storm.over(attach, 2e-3)
        gc.collect()
        client.create_producer("jobs").close()  # whatever was dropped is cleaned up by such a call
        with client.create_producer("jobs", "till") as producer:
            say(producer.producer_name(), producer.send(b"x").partition())
    say("end")


def test_an_interrupt_storm_over_attaching(tmp_path: Path):
    """A name is not left behind on any partition."""
    with pulsar.Client(tmp_path) as client:
        store_of(client).topics.create_partitioned("jobs", 3)
        with Child(attach_in_a_storm, tmp_path, 150) as child:
            assert child.read().split()[0] == "till"
            assert child.read() == "end"
            assert child.join() == 0
