"""UseSinglePartition: without a key, everything a producer sends goes to one partition."""

from __future__ import annotations

import pytest

from embeddedpulsar import HashingScheme, PartitionsRoutingMode
from embeddedpulsar._engine.format.entry import partition_hash
from tests.conformance.partitioned import PartitionedTopic, hello

SINGLE = PartitionsRoutingMode.UseSinglePartition


@pytest.fixture
def topic(client):
    """A topic of three partitions."""
    return PartitionedTopic(client, 3)


@pytest.mark.parametrize("batching", [False, True])
def test_one_partition_for_life(topic, batching):
    """Whatever happens in between: batches, flushes, growth."""
    sent = []
    producer = topic.producer(message_routing_mode=SINGLE, batching_enabled=batching, batching_max_messages=3)
    for i in range(10):
        producer.send_async(hello(i), lambda result, message_id: sent.append(message_id.partition()))
    producer.flush()
    sent.append(producer.send(b"hello-10").partition())
    topic.grow(5)
    sent.append(producer.send(b"hello-11").partition())
    producer.close()
    assert len(set(sent)) == 1
    assert topic.numbers(sent[0]) == list(range(12))


def test_the_partition_is_random(topic):
    """Of many producers, some choose each."""
    chosen = set()
    for _ in range(60):
        with topic.producer(message_routing_mode=SINGLE) as producer:
            chosen.add(producer.send(b"x").partition())
    assert chosen == {0, 1, 2}


def test_keys_go_by_their_hash(topic):
    """A key takes a message to its own partition, also here."""
    with topic.producer(message_routing_mode=SINGLE) as producer:
        for i in range(20):
            key = f"key-{i}"
            expected = partition_hash(HashingScheme.JavaStringHash)(key) % 3
            assert producer.send(b"x", partition_key=key).partition() == expected


def test_the_ordering_key_does_not_count(topic):
    """It is for consumers."""
    with topic.producer(message_routing_mode=SINGLE) as producer:
        assert len({producer.send(b"x", ordering_key=f"key-{i}").partition() for i in range(20)}) == 1
