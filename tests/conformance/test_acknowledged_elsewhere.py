"""A message that is acknowledged through another consumer of its subscription than its receiver."""

from __future__ import annotations

from typing import Any

import pytest

from embeddedpulsar import ConsumerType
from tests.conformance.conftest import Topic, numbers
from tests.conformance.pool import take

KINDS = [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared]
IN_ORDER = KINDS[:2]
WRITING: list[dict[str, Any]] = [
    {},
    {"ack_group_time_ms": 0},
    {"ack_receipt_enabled": True},
    {"batch_index_ack_enabled": True},
    {"unacked_messages_timeout_ms": 60_000},
]


def received(topic: Topic, kind: ConsumerType, **options: Any) -> tuple[Any, list[Any], Any]:
    """The consumer that receives all messages, these, and another consumer. Of Exclusive, the first is
    closed."""
    first = topic.consumer(consumer_type=kind, consumer_name="1", **options)
    messages = take(first)
    if kind == ConsumerType.Exclusive:
        first.close()
    return first, messages, topic.consumer(consumer_type=kind, consumer_name="2", **options)


def left(topic: Topic, kind: ConsumerType, *consumers: Any) -> list[int]:
    """What comes again when the consumers are closed."""
    for consumer in consumers:
        if consumer.is_connected():
            consumer.close()
    with topic.consumer(consumer_type=kind) as last:
        return sorted(numbers(take(last)))


@pytest.mark.parametrize("by", ["message", "id"])
@pytest.mark.parametrize("writing", WRITING)
@pytest.mark.parametrize("is_batch", [False, True], ids=["single", "batch"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_of_a_batch(topic: Topic, kind: ConsumerType, is_batch: bool, writing: dict[str, Any], by: str):
    """They do not come again, whoever is closed first."""
    (topic.publish_batch if is_batch else topic.publish)(4)
    first, messages, second = received(topic, kind, **writing)
    assert numbers(messages) == [0, 1, 2, 3]
    for message in messages:
        second.acknowledge(message if by == "message" else message.message_id())
    assert not left(topic, kind, first, second)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_some_by_each(topic: Topic, kind: ConsumerType):
    """A batch is acknowledged when all its messages are, by whichever consumer."""
    topic.publish_batch(4)
    first, messages, second = received(topic, kind)
    for consumer, message in zip((first, second, second, first), messages, strict=True):
        consumer.acknowledge(message)
    assert not left(topic, kind, first, second)


@pytest.mark.parametrize("kind", KINDS)
def test_some_of_a_batch(topic: Topic, kind: ConsumerType):
    """With acknowledgements of batch indexes, the others come again."""
    topic.publish_batch(4)
    first, messages, second = received(topic, kind, batch_index_ack_enabled=True)
    for message in messages[1:3]:
        second.acknowledge(message)
    assert left(topic, kind, first, second) == [0, 3]


@pytest.mark.parametrize("is_batch", [False, True], ids=["single", "batch"])
@pytest.mark.parametrize("kind", IN_ORDER)
def test_all_up_to_one(topic: Topic, kind: ConsumerType, is_batch: bool):
    """A cumulative acknowledgement is by position; it does not matter who received the message."""
    (topic.publish_batch if is_batch else topic.publish)(4)
    first, messages, second = received(topic, kind, batch_index_ack_enabled=True)
    second.acknowledge_cumulative(messages[2])
    assert left(topic, kind, first, second) == [3]


@pytest.mark.parametrize("kind", KINDS)
def test_a_chunked_message(topic: Topic, kind: ConsumerType):
    """With all its parts."""
    with topic.producer(chunking_enabled=True, chunk_max_message_size=10) as producer:
        producer.send(b"x" * 35)
    first, (message,), second = received(topic, kind)
    second.acknowledge(message)
    assert not left(topic, kind, first, second)
    use = topic.client._core.store.use_topic("topic")
    assert use.topic.subscription("sub", True).backlog() == 0
    use.release()


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_of_before_it_was_delivered_again(topic: Topic, kind: ConsumerType):
    """The application has two objects of each message of a batch, and acknowledges the old ones."""
    topic.publish_batch(3)
    consumer = topic.consumer(consumer_type=kind)
    messages = take(consumer)
    consumer.redeliver_unacknowledged_messages()
    assert numbers(take(consumer)) == [0, 1, 2]
    for message in messages:
        consumer.acknowledge(message)
    assert not left(topic, kind, consumer)


@pytest.mark.parametrize("kind", KINDS)
def test_repeated_acknowledgements(topic: Topic, kind: ConsumerType):
    """They change nothing: what is sent later is not acknowledged by them."""
    topic.publish_batch(3)
    first, messages, second = received(topic, kind)
    for _ in range(3):
        for message in messages:
            second.acknowledge(message)
    topic.publish(1)
    assert left(topic, kind, first, second) == [0]
