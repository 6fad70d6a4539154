"""A topic grows, and goes, while consumers and producers of other processes use it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar as pulsar
from tests.multiprocess.children import Child, say
from tests.support.clients import store_of

EARLIEST = pulsar.InitialPosition.Earliest
TYPES = {kind.name: kind for kind in pulsar.ConsumerType}


def consume(root: str, name: str, kind: str) -> None:
    """Say what comes, and from which partition; at last, how it ended."""
    with pulsar.Client(root) as client:
        consumer = client.subscribe(
            "jobs", "work", TYPES[kind], consumer_name=name, initial_position=EARLIEST, receiver_queue_size=10
        )
        say("attached")
        try:
            for message in consumer:
                consumer.acknowledge(message)
                say(message.data().decode(), message.message_id().partition())
            say("ended without a message")
        except pulsar.PulsarException as error:
            say(str(error))


def produce(root: str, name: str) -> None:
    """Send numbers until the topic is gone; say each when it is stored, and at last how it ended."""
    with pulsar.Client(root) as client:
        producer = client.create_producer("jobs", name)
        say("attached")
        number = 0
        while True:
            try:
                producer.send(f"{name}-{number}".encode())
            except pulsar.PulsarException as error:
                say(str(error))
                return
            say(f"{name}-{number}")
            number += 1
            time.sleep(0.001)


@pytest.mark.parametrize("kind", ["Shared", "KeyShared", "Failover"])
def test_consumers_of_other_processes_miss_nothing(tmp_path: Path, kind: str):
    """From two partitions to three and five, while messages come: each is received, and none twice (but what
    changes hands on Failover)."""
    with pulsar.Client(tmp_path) as client:
        store_of(client).topics.create_partitioned("jobs", 2)
        with Child(consume, tmp_path, "a", kind) as a, Child(consume, tmp_path, "b", kind) as b:
            assert a.read() == b.read() == "attached"
            sent = []
            for partitions in (2, 3, 5):
                if partitions > 2:
                    store_of(client).grow_partitions("jobs", partitions)
                for index in range(partitions):  # at once: before the consumers have noticed
                    with client.create_producer(f"jobs-partition-{index}") as producer:
                        for i in range(10):
                            sent.append(f"{partitions}-{index}-{i} {index}")
                            producer.send(sent[-1].split()[0].encode(), partition_key=f"k{i}")
            # On Failover each gets its own partitions, so how many come to whom is known when all are joined.
            core: Any = client.subscribe("jobs", "look", pulsar.ConsumerType.Shared)._core
            assert len(core.children) == 5
            received = received_by(client, [a, b], len(sent))
    # Who takes a partition over from another consumer gets again what is not acknowledged yet.
    once = list(set(received)) if kind == "Failover" else received
    assert sorted(once) == sorted(sent)


def received_by(client: pulsar.Client, children: list[Child], count: int) -> list[str]:
    """What the children say until the subscription has nothing left; ends them."""
    store = store_of(client)
    names = store.topics.names()
    while sum(store.use_topic(name).topic.subscription("work").backlog() for name in names):
        time.sleep(0.05)  # the time limit of the test is the limit
    lines = []
    for child in children:
        child.process.terminate()
        output, _ = child.process.communicate(timeout=30)
        lines += output.splitlines()
    return lines


def test_everybody_is_told_that_a_topic_is_gone(tmp_path: Path):
    """Producers and consumers of other processes, by errors that say so."""
    with pulsar.Admin(tmp_path) as admin:
        admin.topics().create_partitioned_topic("jobs", 3)
        with (
            Child(consume, tmp_path, "a", "Shared") as consumer,
            Child(produce, tmp_path, "till") as producer,
        ):
            assert consumer.read() == producer.read() == "attached"
            for child in (consumer, producer):
                for _ in range(20):
                    child.read()
            with pytest.raises(pulsar.BrokerMetadataError, match="in use by"):
                admin.topics().delete_partitioned_topic("jobs")
            admin.topics().delete_partitioned_topic("jobs", force=True)
            assert "deleted" in last_line(producer)
            assert last_line(consumer) == "ended without a message"  # iterating ends where receive() raises
            assert consumer.join() == producer.join() == 0
        assert admin.topics().get_list() == []
        assert list((tmp_path / "topics").iterdir()) == []


def last_line(child: Child) -> str:
    """What a child says at its end."""
    assert child.process.stdout is not None
    return child.process.stdout.read().splitlines()[-1]
