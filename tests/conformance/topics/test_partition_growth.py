"""A topic grows while consumers and readers of it are open: they miss nothing."""

from __future__ import annotations

import threading

import pytest

from embeddedpulsar import (
    AlreadyClosed,
    Client,
    ConsumerBusy,
    ConsumerType,
    InitialPosition,
    MessageId,
    NotAllowedError,
)
from tests.conformance.manual_time import ManualTime
from tests.support.clients import present, store_of, texts

BASE = "persistent://public/default/orders"


def publish(client: Client, count: int, partitions: range) -> None:
    """Send ``0-0``, ``0-1`` and so on to each partition."""
    for index in partitions:
        with client.create_producer(f"orders-partition-{index}") as producer:
            for i in range(count):
                producer.send(f"{index}-{i}".encode())


def test_a_consumer_finds_new_partitions_within_a_second(time: ManualTime):
    """And gets them from their first message on, whatever its initial position was."""
    store = store_of(time.client)
    store.topics.create_partitioned("orders", 2)
    consumer = time.client.subscribe("orders", "sub", initial_position=InitialPosition.Latest)
    store.grow_partitions("orders", 4)
    publish(time.client, 2, range(4))
    time.pass_ms(1000)
    assert len(time.client.get_topic_partitions("orders")) == 4
    messages = present(consumer)
    assert texts(messages) == ["0-0", "0-1", "1-0", "1-1", "2-0", "2-1", "3-0", "3-1"]
    for message in messages:
        consumer.acknowledge(message)
    consumer.close()
    assert present(time.client.subscribe("orders", "sub")) == []


def test_a_reader_finds_them_too(time: ManualTime):
    """Even one that wanted only what is new, because it is."""
    store_of(time.client).topics.create_partitioned("orders", 3)
    reader = time.client.create_reader("orders", MessageId.latest)
    store_of(time.client).grow_partitions("orders", 5)
    publish(time.client, 2, range(3, 5))
    time.pass_ms(1000)
    assert texts(list(reader)) == ["3-0", "3-1", "4-0", "4-1"]


def test_a_waiting_consumer_is_rung(client):
    """It need not wait for the second to pass."""
    store_of(client).topics.create_partitioned("orders", 1)
    consumer = client.subscribe("orders", "sub")
    received: list[bytes] = []
    waiting = threading.Thread(target=lambda: received.append(consumer.receive(10_000).data()))
    waiting.start()
    store_of(client).grow_partitions("orders", 2)
    publish(client, 1, range(1, 2))
    waiting.join()
    assert received == [b"1-0"]


def test_subscriptions_without_consumers_grow_too(client):
    """What is published to a new partition is not lost to a subscription nobody is attached to."""
    store_of(client).topics.create_partitioned("orders", 2)
    client.subscribe("orders", "sub").close()
    client.subscribe("orders", "passing", ConsumerType.Shared).unsubscribe()
    store_of(client).grow_partitions("orders", 4)
    publish(client, 1, range(4))
    consumer = client.subscribe("orders", "sub", initial_position=InitialPosition.Latest)
    assert texts(present(consumer)) == ["0-0", "1-0", "2-0", "3-0"]
    assert store_of(client).use_topic("orders-partition-3").topic.subscriptions() == ["sub"]


def test_a_closed_consumer_does_not_grow(time: ManualTime):
    """Nothing is attached behind its back."""
    store = store_of(time.client)
    store.topics.create_partitioned("orders", 1)
    consumer = time.client.subscribe("orders", "sub", ConsumerType.Shared)
    consumer.close()
    store.grow_partitions("orders", 2)
    time.pass_ms(2000)
    assert len(consumer._core.children) == 1
    with pytest.raises(AlreadyClosed):
        consumer.receive(10)


def test_who_cannot_join_a_new_partition_tries_again(time: ManualTime, caplog: pytest.LogCaptureFixture):
    """Once a second, and says so."""
    store = store_of(time.client)
    store.topics.create_partitioned("orders", 1)
    consumer = time.client.subscribe("orders", "sub")
    store.grow_partitions("orders", 2)
    held = time.client.subscribe("orders-partition-1", "sub")
    time.pass_ms(1000)
    assert len(consumer._core.children) == 1 and ConsumerBusy.__name__ in caplog.text
    held.close()
    time.pass_ms(1000)
    assert len(consumer._core.children) == 2


def test_all_that_is_done_to_a_consumer_reaches_new_partitions(time: ManualTime):
    """Seek, redelivery, unsubscribe."""
    store = store_of(time.client)
    store.topics.create_partitioned("orders", 1)
    consumer = time.client.subscribe("orders", "sub", initial_position=InitialPosition.Earliest)
    store.grow_partitions("orders", 2)
    time.pass_ms(1000)
    publish(time.client, 1, range(2))
    assert texts(present(consumer)) == ["0-0", "1-0"]
    consumer.redeliver_unacknowledged_messages()
    assert texts(present(consumer)) == ["0-0", "1-0"]
    consumer.seek(MessageId.earliest)
    assert texts(present(consumer)) == ["0-0", "1-0"]
    consumer.unsubscribe()
    assert [store.use_topic(name).topic.subscriptions() for name in store.topics.names()] == [[], []]


def test_a_topic_shrinks_never(client):
    """Messages would be lost."""
    store_of(client).topics.create_partitioned("orders", 3)
    with pytest.raises(NotAllowedError, match="only grows"):
        store_of(client).grow_partitions("orders", 2)


def test_an_idle_consumer_sleeps(time: ManualTime):
    """A look is one question of the catalog's size; nobody is opened, nothing is read."""
    store = store_of(time.client)
    store.topics.create_partitioned("orders", 2)
    consumer = time.client.subscribe("orders", "sub")
    time.pass_ms(1000)
    asked: list[str] = []
    topics = store.topics
    topics.partitions = asked.append
    try:
        time.pass_ms(60_000)
    finally:
        del topics.partitions
    assert asked == []
    assert present(consumer) == []
