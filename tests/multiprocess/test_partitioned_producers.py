"""Producers in other processes on a topic whose partitions grow under them."""

from __future__ import annotations

import itertools
from itertools import chain
from pathlib import Path

import embeddedpulsar as pulsar
from tests.multiprocess.children import Child, say
from tests.support.clients import store_of


def produce(root: str, batching: str) -> None:
    """Send numbers for ever, saying of each where it is stored."""
    with pulsar.Client(root) as client:
        producer = client.create_producer(
            "jobs", batching_enabled=batching == "True", batching_max_publish_delay_ms=1
        )
        for number in itertools.count():
            payload = f"{producer.producer_name()} {number}".encode()
            say(producer.producer_name(), number, producer.send(payload).partition())


def stored(client: pulsar.Client, partition: int) -> list[str]:
    """The payloads in one partition."""
    with client.create_reader(f"jobs-partition-{partition}", pulsar.MessageId.earliest) as reader:
        return [message.data().decode() for message in reader]


def test_producers_follow_a_topic_that_grows_and_die_in_peace(tmp_path: Path):
    """Each uses the new partitions within seconds; when it is killed all of them are free, and everything it
    was promised is there.
    """
    with pulsar.Client(tmp_path) as client:
        store_of(client).topics.create_partitioned("jobs", 2)
        with Child(produce, tmp_path, False) as one, Child(produce, tmp_path, True) as other:
            promised: dict[int, list[str]] = {0: [], 1: [], 2: [], 3: [], 4: []}
            for child in (one, other):
                for _ in range(10):
                    name, number, partition = child.read().split()
                    promised[int(partition)].append(f"{name} {number}")
            assert [bool(promised[index]) for index in range(5)] == [True, True, False, False, False]
            store_of(client).grow_partitions("jobs", 5)
            for child in (one, other):
                seen: set[str] = set()
                while len(seen) < 5:  # the time limit of the test is the limit
                    name, number, partition = child.read().split()
                    promised[int(partition)].append(f"{name} {number}")
                    seen.add(partition)
            one.kill()
            other.kill()
        for index in range(5):
            found = stored(client, index)
            assert len(found) == len(set(found))
            assert set(promised[index]) <= set(found)
            for name in {line.split()[0] for line in found}:
                mine = [int(line.split()[1]) for line in found if line.split()[0] == name]
                assert mine == sorted(mine)
        assert all(promised.values())
        exclusive = pulsar.ProducerAccessMode.Exclusive
        with client.create_producer("jobs", access_mode=exclusive) as producer:
            assert producer.send(b"x").partition() in range(5)


def test_a_killed_producer_loses_nothing_on_any_partition(tmp_path: Path):
    """What send() returned is read back; among all partitions no number is missing."""
    with pulsar.Client(tmp_path) as client:
        store_of(client).topics.create_partitioned("jobs", 3)
        with Child(produce, tmp_path, True) as child:
            told = [child.read().split() for _ in range(300)]
            child.kill()
        found = {index: stored(client, index) for index in range(3)}
        for name, number, partition in told:
            assert f"{name} {number}" in found[int(partition)]
        numbers = sorted(int(line.split()[1]) for line in chain(*found.values()))
        assert numbers == list(range(len(numbers)))
