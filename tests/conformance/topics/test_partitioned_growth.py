"""Partitions that are added while a producer is open."""

from __future__ import annotations

from itertools import chain

import pytest

from embeddedpulsar import Client, HashingScheme, ProducerAccessMode, ProducerFenced
from embeddedpulsar._engine.format.entry import partition_hash
from tests.conformance.manual_time import ManualTime
from tests.conformance.partitioned import PartitionedTopic, hello

JAVA = partition_hash(HashingScheme.JavaStringHash)


@pytest.fixture
def topic(client):
    """A topic of two partitions."""
    return PartitionedTopic(client, 2)


@pytest.mark.parametrize("batching", [False, True])
def test_new_partitions_take_turns(topic, batching):
    """Messages without a key come to all of them, old and new."""
    with topic.producer(batching_enabled=batching) as producer:
        assert {producer.send(b"x").partition() for _ in range(10)} == {0, 1}
        topic.grow(5)
        assert {producer.send(b"x").partition() for _ in range(10)} == {0, 1, 2, 3, 4}
        assert topic.names() == [[producer.producer_name()]] * 5
    assert topic.names() == [[]] * 5


def test_keys_are_divided_anew(topic):
    """From the growth on a key goes to its hash modulo the new number."""
    keys = [f"key-{i}" for i in range(50)]
    with topic.producer() as producer:
        assert [producer.send(b"x", partition_key=key).partition() for key in keys] == [
            JAVA(key) % 2 for key in keys
        ]
        topic.grow(7)
        assert [producer.send(b"x", partition_key=key).partition() for key in keys] == [
            JAVA(key) % 7 for key in keys
        ]


def test_nothing_that_waits_is_lost(topic):
    """Batches that were begun before stay where they are; ids of new partitions come from new batches."""
    producer = topic.batching(batching_max_messages=3)
    for i in range(4):
        producer.send_async(hello(i), None)
    topic.grow(4)
    for i in range(4, 40):
        producer.send_async(hello(i), None)
    producer.close()
    stored = topic.all_numbers()
    assert sorted(chain(*stored)) == list(range(39))
    assert all(len(batch) == 3 for index in range(4) for batch in topic.batches(index))
    assert all(stored)


def test_it_is_noticed_within_a_second(store_url):
    """By whoever grows the topic; here another client, while the time of the producer passes."""
    time = ManualTime(store_url)
    topic = PartitionedTopic(time.client, 2)
    with topic.producer() as producer:
        time.pass_ms(100)
        topic.store.grow_partitions("topic", 4)
        time.pass_ms(1000)
        assert {producer.send(b"x").partition() for _ in range(8)} == {0, 1, 2, 3}
    time.close()


def test_a_closed_producer_does_not_grow(topic):
    """It watches nothing any more."""
    producer = topic.producer()
    producer.close()
    topic.grow(4)
    assert topic.names() == [[]] * 4


def test_an_exclusive_producer_claims_new_partitions_at_their_first_message(topic):
    """Like those it has; if somebody else is there by then, it is fenced from that one alone."""
    with topic.producer(access_mode=ProducerAccessMode.WaitForExclusive) as producer:
        topic.grow(4)
        with topic.client.create_producer("topic-partition-3") as other:
            results = []
            for _ in range(8):
                try:
                    results.append(producer.send(b"x").partition())
                except ProducerFenced:
                    results.append(3)
            assert sorted(results) == [0, 0, 1, 1, 2, 2, 3, 3]
            assert other.is_connected()
        assert {producer.send(b"x").partition() for _ in range(4)} == {0, 1, 2, 3}
        assert topic.names() == [[producer.producer_name()]] * 4


def test_two_clients(store_url, topic):
    """A producer of another client of the process follows as well."""
    with Client(store_url) as other, other.create_producer("topic") as producer:
        topic.store.grow_partitions("topic", 3)
        other._core.partition_watch.report_changes()
        assert {producer.send(b"x").partition() for _ in range(6)} == {0, 1, 2}
