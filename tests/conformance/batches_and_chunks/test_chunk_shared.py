"""Chunked messages on Shared and Key_Shared subscriptions: one consumer gets one, whoever read its parts."""

from __future__ import annotations

from typing import Any

import pytest

from embeddedpulsar import Client, ConsumerType
from tests.conformance.chunks import LIMIT, HalfSent, log_of, payload, subscription_of

pytestmark = pytest.mark.usefixtures("small_entries")


def drained(consumer: Any, acknowledge: bool = True) -> list[bytes]:
    """The payloads that are there."""
    found = []
    while (message := consumer.receive_nowait()) is not None:
        found.append(message.data())
        if acknowledge:
            consumer.acknowledge(message)
    consumer._acks.flush()
    return found


def test_each_message_goes_to_one(topic, store_url):
    """Consumers of two clients share the messages; each comes whole, once."""
    first = topic.consumer(consumer_type=ConsumerType.Shared, receiver_queue_size=2)
    with Client(store_url) as other:
        second = other.subscribe("topic", "sub", ConsumerType.Shared, receiver_queue_size=2)
        producer = topic.producer(chunking_enabled=True)
        values = [payload(2 * LIMIT, seed) for seed in range(10)]
        for value in values:
            producer.send(value)
        found: list[list[bytes]] = [[], []]
        while sum(map(len, found)) < 10:
            for consumer, mine in zip((first, second), found, strict=True):
                message = consumer.receive_nowait()
                if message is not None:
                    mine.append(message.data())
                    consumer.acknowledge(message)
        assert sorted(found[0] + found[1]) == sorted(values)
        assert all(found)
        for consumer in (first, second):
            consumer._acks.flush()
        assert subscription_of(first).mark_delete == log_of(topic.client).last_position()


def test_the_parts_were_passed_by_another(topic):
    """Who gets the last part reads the others, though another consumer passed them."""
    first = topic.consumer(consumer_type=ConsumerType.Shared)
    second = topic.consumer(consumer_type=ConsumerType.Shared)
    slow = HalfSent(topic.producer(chunking_enabled=True), payload(3 * LIMIT)).send(2)
    assert drained(first) == []
    first.close()
    slow.finish()
    assert drained(second) == [payload(3 * LIMIT)]
    assert subscription_of(second).mark_delete == log_of(topic.client).last_position()


@pytest.mark.parametrize("ordering", [False, True])
def test_a_key_keeps_its_order(topic, ordering):
    """A chunked message stands where its last part is: messages of its key come in that order, to one."""
    consumers = [
        topic.consumer(consumer_type=ConsumerType.KeyShared, consumer_name=f"c{i}") for i in range(3)
    ]
    producer = topic.producer(chunking_enabled=True)
    key: dict[str, Any] = {"ordering_key": "k"} if ordering else {"partition_key": "k"}
    options: Any = (None, key.get("partition_key"), key.get("ordering_key"), 0, 0, 0, False)
    producer.send(b"1", **key)
    slow = HalfSent(producer, payload(3 * LIMIT), options).send(2)
    producer.send(b"2", **key)
    slow.finish()
    producer.send(b"3", **key)
    found = [drained(consumer) for consumer in consumers]
    assert sorted(map(len, found)) == [0, 0, 4]
    assert max(found, key=len) == [b"1", b"2", payload(3 * LIMIT), b"3"]


def test_keys_of_others_go_on(topic):
    """Parts in flight hold nobody up."""
    consumers = [
        topic.consumer(consumer_type=ConsumerType.KeyShared, consumer_name=f"c{i}") for i in range(2)
    ]
    producer = topic.producer(chunking_enabled=True)
    HalfSent(producer, payload(3 * LIMIT), (None, "k", None, 0, 0, 0, False)).send(2)
    for i in range(20):
        producer.send(b"%d" % i, partition_key=str(i))
    found = [drained(consumer) for consumer in consumers]
    assert sorted(found[0] + found[1]) == sorted(b"%d" % i for i in range(20))


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_nothing_but_parts(topic, kind):
    """A topic whose end is many parts of an unfinished message: consumers pass them and wait."""
    consumers = [topic.consumer(consumer_type=kind, receiver_queue_size=3) for _ in range(2)]
    slow = HalfSent(topic.producer(chunking_enabled=True), payload(30 * LIMIT))
    for _ in range(slow.left):
        slow.send(1)
        assert [drained(consumer) for consumer in consumers] == [[], []]
    slow.finish()
    found = [drained(consumer) for consumer in consumers]
    assert found[0] + found[1] == [payload(30 * LIMIT)]
    assert subscription_of(consumers[0]).statistics().backlog == 0


def test_limits_count_a_message_once(topic, store_path):
    """Parts are no unacknowledged messages: a full queue is one of messages."""
    consumer = topic.consumer(consumer_type=ConsumerType.Shared, receiver_queue_size=1)
    producer = topic.producer(chunking_enabled=True)
    for seed in range(3):
        producer.send(payload(5 * LIMIT, seed))
    message = consumer.receive(1000)
    state = subscription_of(consumer)._shared.state
    assert state.dispatch.holds(consumer._core.session.attachment.consumer_id) == 1
    consumer.acknowledge(message)
    assert drained(consumer) == [payload(5 * LIMIT, seed) for seed in (1, 2)]
