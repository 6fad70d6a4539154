"""Access modes on partitioned topics: each partition is claimed, and all or none."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from embeddedpulsar import (
    Admin,
    Interrupted,
    ProducerAccessMode,
    ProducerBusy,
    ProducerFenced,
    Result,
    TopicNotFound,
)
from tests.conformance.partitioned import PartitionedTopic, hello
from tests.conformance.robustness.test_interrupts import seconds_until_interrupted

SHARED, EXCLUSIVE = ProducerAccessMode.Shared, ProducerAccessMode.Exclusive
WAIT, FENCING = ProducerAccessMode.WaitForExclusive, ProducerAccessMode.ExclusiveWithFencing


@pytest.fixture
def topic(client):
    """A topic of three partitions."""
    return PartitionedTopic(client, 3)


def test_exclusive_has_all_partitions(topic):
    """Nobody else gets any, and nobody who fails leaves anything."""
    with topic.producer(access_mode=EXCLUSIVE) as producer:
        held = topic.names()
        assert held == [[producer.producer_name()]] * 3
        with pytest.raises(ProducerFenced):
            topic.producer(access_mode=EXCLUSIVE)
        with pytest.raises(ProducerBusy):
            topic.producer()
        with pytest.raises(ProducerBusy):
            topic.client.create_producer("topic-partition-2")
        assert topic.names() == held
    topic.producer().close()


def test_all_or_none(topic):
    """Where one partition is not to be had, those before it are given back."""
    with topic.client.create_producer("topic-partition-2") as other:
        with pytest.raises(ProducerFenced):
            topic.producer(access_mode=EXCLUSIVE)
        assert topic.names() == [[], [], [other.producer_name()]]
    topic.producer(access_mode=EXCLUSIVE).close()


def test_fencing_takes_all_partitions(topic):
    """The one before is fenced out of each."""
    before = topic.producer()
    with topic.producer(access_mode=FENCING) as producer:
        assert topic.names() == [[producer.producer_name()]] * 3
        for key in ("key-1", "order-12345", "user:42"):  # partitions 0, 1, 2
            with pytest.raises(ProducerFenced):
                before.send(b"x", partition_key=key)
        producer.send(b"x")
    before.close()


def test_waiting_for_all_partitions(topic):
    """WaitForExclusive is granted when the last partition is free."""
    first = topic.producer(access_mode=EXCLUSIVE)
    made: list[Any] = []
    waiter = threading.Thread(target=lambda: made.append(topic.producer(access_mode=WAIT)))
    waiter.start()
    first.close()
    waiter.join(10)
    assert topic.names() == [[made[0].producer_name()]] * 3
    made[0].send(b"x")
    made[0].close()


def test_an_interrupted_wait_leaves_nothing(topic):
    """Ctrl-C while the last partition is waited for gives the others back."""
    with topic.client.create_producer("topic-partition-2") as other:
        assert seconds_until_interrupted(lambda: topic.producer(access_mode=WAIT)) < 0.25
        assert topic.names() == [[], [], [other.producer_name()]]
    assert issubclass(Interrupted, KeyboardInterrupt)
    topic.producer(access_mode=EXCLUSIVE).close()


class TestLazyStart:
    """``lazy_start_partitioned_producers``: a partition is attached when its first message comes."""

    def test_partitions_are_attached_one_by_one(self, topic):
        """The one where messages go first at once, the others when they are needed."""
        with topic.producer(lazy_start_partitioned_producers=True) as producer:
            assert sorted(map(len, topic.names())) == [0, 0, 1]
            first = producer.send(b"x").partition()
            assert sorted(map(len, topic.names())) == [0, 0, 1]
            assert producer.send(b"x").partition() == (first + 1) % 3
            assert sorted(map(len, topic.names())) == [0, 1, 1]
            producer.send(b"x")
            assert topic.names() == [[producer.producer_name()]] * 3
        assert topic.names() == [[]] * 3

    def test_batches(self, topic):
        """A batch that begins on a new partition attaches it."""
        sent = []
        with topic.batching(lazy_start_partitioned_producers=True, batching_max_messages=2) as producer:
            for i in range(12):
                producer.send_async(hello(i), lambda result, message_id: sent.append(message_id.partition()))
        assert sent == [(sent[0] + i // 2) % 3 for i in range(12)]

    def test_only_shared_producers_are_lazy(self, topic):
        """Exclusive ones claim all partitions at once."""
        with topic.producer(lazy_start_partitioned_producers=True, access_mode=EXCLUSIVE) as producer:
            assert topic.names() == [[producer.producer_name()]] * 3

    def test_a_partition_that_cannot_be_attached(self, topic):
        """Its messages fail, raised or told to callbacks; others do not; and when it is free they work."""
        results = []
        router = {"message_router": lambda message, partitions: int(message.partition_key())}
        with topic.producer(lazy_start_partitioned_producers=True, **router) as producer:
            with topic.client.create_producer("topic-partition-1", access_mode=EXCLUSIVE):
                with pytest.raises(ProducerBusy):
                    producer.send(b"x", partition_key="1")
                producer.send_async(
                    b"x", lambda result, message_id: results.append(result), partition_key="1"
                )
                producer.send_async(b"x", None, partition_key="1")
                producer.send(b"x", partition_key="2")
                with pytest.raises(ProducerBusy):
                    producer.flush()
            assert results == [Result.ProducerBusy]
            assert producer.send(b"x", partition_key="1").partition() == 1

    def test_a_deleted_topic_is_not_made_again(self, topic, store_path):
        """Not by attaching one more partition; nor does its producer meet the next topic of the name."""
        with topic.producer(lazy_start_partitioned_producers=True) as producer:
            attached = producer.send(b"x").partition()
            with Admin(store_path) as admin:
                admin.topics().delete_partitioned_topic("topic", force=True)
                for _ in range(3):
                    with pytest.raises(TopicNotFound):
                        producer.send(b"x")
                assert admin.topics().get_list() == []
                topic.client._core.partition_watch.report_changes()
                admin.topics().create_partitioned_topic("topic", 3)
                for _ in range(3):
                    with pytest.raises(TopicNotFound):
                        producer.send(b"x")
        assert topic.names() == [[], [], []]
        assert topic.messages(attached) == []
