"""A message that is acknowledged through another consumer of its subscription than its receiver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Client, ConsumerType, InitialPosition, MessageId
from tests.conformance.conftest import Topic, numbers
from tests.conformance.manual_time import ManualTime
from tests.conformance.pool import take

KINDS = [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared]
IN_ORDER = KINDS[:2]
SINGLY = KINDS[2:]
FROM_START = {"initial_position": InitialPosition.Earliest}
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


@pytest.mark.parametrize("kind", KINDS[1:])
def test_nothing_is_kept_of_a_batch(topic: Topic, kind: ConsumerType):
    """A consumer whose messages another one acknowledges keeps nothing of them."""
    first = topic.consumer(consumer_type=kind, consumer_name="1")
    second = topic.consumer(consumer_type=kind, consumer_name="2")
    for _ in range(3):
        topic.publish_batch(4)
    messages = take(first) or take(second)
    owner, other = (first, second) if first._acks.open else (second, first)
    for message in messages:
        other.acknowledge(message)
    assert not owner._acks.open
    assert not left(topic, kind, first, second)


@pytest.mark.parametrize("writing", WRITING)
@pytest.mark.parametrize("is_batch", [False, True], ids=["single", "batch"])
@pytest.mark.parametrize("kind", KINDS)
def test_through_another_subscription(
    topic: Topic, kind: ConsumerType, is_batch: bool, writing: dict[str, Any]
):
    """It is acknowledged there, as by its id; not where it was received, whatever is acknowledged after."""
    first = topic.consumer(consumer_type=kind, **writing)
    second = topic.client.subscribe("topic", "other", consumer_type=kind, **FROM_START, **writing)
    (topic.publish_batch if is_batch else topic.publish)(4)
    messages = take(first)
    for message in messages[1:]:
        second.acknowledge(message)
    first.acknowledge(messages[0])
    assert numbers(take(second)) == [0]
    first.redeliver_unacknowledged_messages()
    assert numbers(take(first))[-3:] == [1, 2, 3]
    assert left(topic, kind, first)[-3:] == [1, 2, 3]
    second.close()
    with topic.client.subscribe("topic", "other", consumer_type=kind) as last:
        assert numbers(take(last)) == [0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["itself", "another"])
def test_messages_of_before_a_seek(topic: Topic, kind: ConsumerType, by: str):
    """What was acknowledged before the seek does not count: one that is acknowledged again is one message. A
    consumer that has not noticed the seek acknowledges nothing."""
    topic.publish_batch(3)
    options: dict[str, Any] = {"consumer_type": kind, "batch_index_ack_enabled": True}
    consumer = topic.consumer(consumer_type=kind, consumer_name="1")
    messages = take(consumer)
    for message in messages:
        consumer.acknowledge(message)
    through = consumer
    if by == "another" and kind != ConsumerType.Exclusive:
        through = topic.consumer(consumer_type=kind, consumer_name="2")
    consumer.seek(MessageId.earliest)
    through.acknowledge(messages[0])
    through.close()
    if through is not consumer:
        consumer.close()
    with topic.consumer(**options) as last:
        assert numbers(take(last)) == ([1, 2] if through is consumer else [0, 1, 2])


@pytest.mark.parametrize("kind", SINGLY)
@pytest.mark.parametrize("size", [1, 3])
def test_a_third_consumer_does_not_get_it(topic: Topic, kind: ConsumerType, size: int):
    """What a second consumer acknowledged is written when its receiver closes, or gives its messages back."""
    options: dict[str, Any] = {"consumer_type": kind, "ack_group_time_ms": 60_000}
    first = topic.consumer(consumer_name="1", **options)
    (topic.publish_batch if size > 1 else topic.publish)(size)
    messages = take(first)
    second = topic.consumer(consumer_name="2", **options)
    for message in messages:
        second.acknowledge(message)
    with topic.consumer(consumer_name="3", **options) as third:
        first.redeliver_unacknowledged_messages()
        assert not take(third)
        assert not take(first)
        topic.publish(1)
        given = next(filter(None, map(take, (first, second, third))))
        holder = next(each for each in (first, second, third) if each._acks.origin is given[0]._origin)
        others = [each for each in (first, second, third) if each is not holder]
        others[0].acknowledge(given[0])
        holder.close()
        assert not take(others[1])


@pytest.mark.parametrize("kind", SINGLY)
def test_after_a_negative_acknowledgement(time: ManualTime, kind: ConsumerType):
    """Through another consumer than the one that gave it back, it is written at once, too."""
    topic = Topic(time.client)
    options: dict[str, Any] = {"consumer_type": kind, "ack_group_time_ms": 60_000}
    first = topic.consumer(consumer_name="1", negative_ack_redelivery_delay_ms=100, **options)
    topic.publish_batch(3)
    messages = take(first)
    second = topic.consumer(consumer_name="2", **options)
    third = topic.consumer(consumer_name="3", **options)
    first.negative_acknowledge(messages[0])
    time.pass_ms(200)
    for message in messages:
        second.acknowledge(message)
    assert not take(third)
    assert not take(first)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_two_clients_on_one_store(topic: Topic, store_path: Path, kind: ConsumerType):
    """Their consumers are of one subscription: a batch is acknowledged when all its messages are."""
    with Client(store_path) as client:
        topic.publish_batch(4)
        first, messages, _ = received(topic, kind)
        second = Topic(client).consumer(consumer_type=kind)
        for consumer, message in zip((first, second, second, first), messages, strict=True):
            consumer.acknowledge(message)
        assert not first._acks.open
        second.close()
    assert not left(topic, kind, first, _)
