"""Seek where several consumers are attached: the subscription is moved under all of them."""

from __future__ import annotations

import pytest

from embeddedpulsar import ConsumerType, MessageId
from tests.conformance.conftest import Topic, numbers
from tests.conformance.pool import acknowledge_all, take, take_turns

SINGLY = [ConsumerType.Shared, ConsumerType.KeyShared]


def subscribe(topic, kind, **options):
    """Two consumers, with small queues."""
    return [topic.consumer(consumer_type=kind, receiver_queue_size=5, **options) for _ in range(2)]


def send(topic, count):
    """Messages of many keys."""
    with topic.producer() as producer:
        return [producer.send(b"hello-%d" % i, partition_key=str(i)) for i in range(count)]


def all_of(consumers):
    """The numbers of what all of them get, sorted."""
    return sorted(number for messages in take_turns(consumers) for number in numbers(messages))


@pytest.mark.parametrize("kind", SINGLY)
@pytest.mark.parametrize("asking", [0, 1])
def test_back_to_the_first(topic, kind, asking):
    """Everything comes again, to whichever consumer, with count 0; what others had fetched is dropped."""
    consumers = subscribe(topic, kind)
    send(topic, 30)
    taken = take_turns(consumers, 7)
    for consumer, messages in zip(consumers, taken, strict=True):
        acknowledge_all(consumer, messages[:3])
    consumers[asking].seek(MessageId.earliest)
    again = take_turns(consumers)
    assert sorted(numbers(again[0] + again[1])) == list(range(30))
    assert {message.redelivery_count() for message in again[0] + again[1]} == {0}


@pytest.mark.in_memory
@pytest.mark.parametrize("kind", SINGLY)
def test_forward_to_the_end(topic, kind):
    """With latest, both wait for new messages."""
    consumers = subscribe(topic, kind)
    send(topic, 30)
    take_turns(consumers, 3)
    consumers[0].seek(MessageId.latest)
    assert all_of(consumers) == []
    send(topic, 4)
    assert all_of(consumers) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", SINGLY)
@pytest.mark.parametrize("inclusive", [False, True])
def test_to_a_message(topic, kind, inclusive):
    """What stands behind it comes; with start_message_id_inclusive it comes too."""
    consumers = subscribe(topic, kind, start_message_id_inclusive=inclusive)
    ids = send(topic, 30)
    take_turns(consumers)
    consumers[0].seek(ids[20])
    assert all_of(consumers) == list(range(20 if inclusive else 21, 30))


def test_to_a_time(time):
    """The first message published then or later, and what follows."""
    topic = Topic(time.client)
    consumers = subscribe(topic, ConsumerType.Shared)
    with topic.producer() as producer:
        for number in range(10):
            producer.send(b"hello-%d" % number)
            time.pass_ms(10)
    take_turns(consumers)
    consumers[0].seek(time.now_ms() - 50)
    assert all_of(consumers) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("kind", SINGLY)
def test_late_acknowledgements_are_void(topic, kind):
    """A message received before the seek and acknowledged after it comes all the same."""
    consumers = subscribe(topic, kind)
    send(topic, 10)
    taken = take_turns(consumers)
    consumers[0].seek(MessageId.earliest)
    for consumer, messages in zip(consumers, taken, strict=True):
        acknowledge_all(consumer, messages)
        consumer.close()
    with topic.consumer(consumer_type=kind) as consumer:
        left = numbers(take(consumer))
    # Acknowledged by the consumer that moved the subscription, and so knows: these count.
    assert set(numbers(taken[1])) <= set(left)


@pytest.mark.parametrize("kind", SINGLY)
def test_a_pending_nack_is_void(time, kind):
    """What was given back before a seek does not come a second time after it."""
    topic = Topic(time.client)
    consumers = subscribe(topic, kind, negative_ack_redelivery_delay_ms=1000)
    send(topic, 4)
    for consumer, messages in zip(consumers, take_turns(consumers), strict=True):
        for message in messages:
            consumer.negative_acknowledge(message)
    consumers[0].seek(MessageId.earliest)
    assert all_of(consumers) == [0, 1, 2, 3]
    time.pass_ms(2000)
    assert all_of(consumers) == []


def test_within_a_batch(topic):
    """The batch index is respected by the consumer that gets the batch, if it asked."""
    topic.publish_batch(6)
    consumer = topic.consumer(consumer_type=ConsumerType.Shared)
    ids = [message.message_id() for message in take(consumer)]
    consumer.seek(ids[3])
    assert numbers(take(consumer)) == [4, 5]


def test_a_standby_may_seek(topic):
    """Seek moves the subscription, whoever asks: also a Failover consumer that is not active."""
    active, standby = (
        topic.consumer(consumer_type=ConsumerType.Failover, consumer_name=name) for name in "ab"
    )
    topic.publish(5)
    acknowledge_all(active, take(active))
    standby.seek(MessageId.earliest)
    assert take(standby) == []
    assert numbers(take(active)) == [0, 1, 2, 3, 4]
