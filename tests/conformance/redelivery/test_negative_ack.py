"""Negative acknowledgement and acknowledgement timeout: messages come back after their delay."""

from __future__ import annotations

import time

import pytest

from embeddedpulsar import AlreadyClosed, Timeout
from tests.conformance.conftest import numbers, receive_all


@pytest.mark.in_memory
@pytest.mark.parametrize("by_id", [False, True])
def test_the_same_messages_come_again_in_order(topic, by_id):
    """On an Exclusive subscription ten nacked messages come again, in order, with count 0."""
    topic.publish(10)
    consumer = topic.consumer(negative_ack_redelivery_delay_ms=200)
    begun = time.monotonic()
    for message in receive_all(consumer, wait_ms=1):
        consumer.negative_acknowledge(message.message_id() if by_id else message)
    again = [consumer.receive(5000) for _ in range(10)]
    assert time.monotonic() - begun >= 0.2
    assert numbers(again) == list(range(10))
    assert {message.redelivery_count() for message in again} == {0}
    for message in again:
        consumer.acknowledge(message)
    with pytest.raises(Timeout):
        consumer.receive(500)


def test_everything_unacknowledged_comes_again(topic):
    """One nack rewinds the subscription: order would be lost otherwise. What is acknowledged stays so."""
    topic.publish(5)
    consumer = topic.consumer(negative_ack_redelivery_delay_ms=100)
    messages = receive_all(consumer)
    consumer.acknowledge(messages[1])
    consumer.negative_acknowledge(messages[3])
    assert numbers([consumer.receive(5000) for _ in range(4)]) == [0, 2, 3, 4]


def test_an_acknowledgement_takes_it_back(topic):
    """A message acknowledged after its nack does not come again, nor anything else for its sake."""
    topic.publish(3)
    consumer = topic.consumer(negative_ack_redelivery_delay_ms=100)
    messages = receive_all(consumer)
    consumer.negative_acknowledge(messages[1])
    consumer.acknowledge(messages[1])
    with pytest.raises(Timeout):
        consumer.receive(400)


@pytest.mark.parametrize("batching", [False, True])
def test_an_acknowledgement_that_was_written_takes_it_back_too(topic, batching):
    """Also when the acknowledgement was written long before the delay has passed."""
    if batching:
        topic.publish_batch(3)
    else:
        topic.publish(3)
    consumer = topic.consumer(negative_ack_redelivery_delay_ms=300, ack_group_time_ms=10)
    messages = receive_all(consumer)
    consumer.negative_acknowledge(messages[1])
    for message in messages if batching else messages[1:2]:
        consumer.acknowledge(message)
    with pytest.raises(Timeout):
        consumer.receive(600)


def test_acknowledgements_before_the_nack_stay(topic):
    """What was acknowledged before a nack does not come again with it."""
    topic.publish(4)
    consumer = topic.consumer(negative_ack_redelivery_delay_ms=100)
    messages = receive_all(consumer)
    consumer.acknowledge(messages[0])
    consumer.negative_acknowledge(messages[1])
    consumer.acknowledge(messages[2])
    assert numbers([consumer.receive(5000), consumer.receive(5000)]) == [1, 3]
    consumer.acknowledge(messages[3])
    consumer.acknowledge(messages[1])
    with pytest.raises(Timeout):
        consumer.receive(200)


def test_a_closed_consumer_ignores_it(topic):
    """As in Pulsar, negative_acknowledge on a closed consumer is silent."""
    topic.publish(1)
    consumer = topic.consumer()
    message = consumer.receive()
    consumer.close()
    consumer.negative_acknowledge(message)
    with pytest.raises(AlreadyClosed):
        consumer.acknowledge(message)


def test_wrong_types_are_refused(topic):
    """Only messages and ids can be acknowledged or given back."""
    consumer = topic.consumer()
    for method in (consumer.acknowledge, consumer.acknowledge_cumulative, consumer.negative_acknowledge):
        with pytest.raises(TypeError, match="expected a Message or a MessageId"):
            method(5)


@pytest.mark.slow
def test_ack_timeout(topic):
    """What is not acknowledged within unacked_messages_timeout_ms comes again."""
    topic.publish(3)
    consumer = topic.consumer(unacked_messages_timeout_ms=10_000)
    messages = receive_all(consumer)
    consumer.acknowledge(messages[1])
    begun = time.monotonic()
    again = [consumer.receive(13_000), consumer.receive(1000)]
    assert 9 <= time.monotonic() - begun <= 12
    assert numbers(again) == [0, 2]
