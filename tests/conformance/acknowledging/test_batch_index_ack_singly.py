"""Acknowledgement of batch indexes where messages come singly: on Shared and Key_Shared."""

from __future__ import annotations

import pytest

from embeddedpulsar import ConsumerType
from tests.conformance.conftest import Topic, numbers
from tests.conformance.pool import acknowledge_all, take

pytestmark = pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])


def subscribe(topic, kind, **options):
    """A consumer that acknowledges batch indexes."""
    options.setdefault("batch_index_ack_enabled", True)
    return topic.consumer(consumer_type=kind, **options)


def test_only_the_rest_comes_to_the_next_consumer(topic, kind):
    """After 0 and 1 of 5 are acknowledged, whoever gets the batch next gets 2, 3 and 4, counted 0."""
    topic.publish_batch(5)
    with subscribe(topic, kind) as consumer:
        acknowledge_all(consumer, take(consumer)[:2])
    again = take(subscribe(topic, kind))
    assert numbers(again) == [2, 3, 4]
    assert {message.redelivery_count() for message in again} == {0}


def test_the_rest_of_a_closed_consumer_goes_to_another(topic, kind):
    """Also while others are attached."""
    first, second = subscribe(topic, kind), subscribe(topic, kind)
    topic.publish_batch(5)
    holder, other = (first, second) if (messages := take(first)) else (second, first)
    messages = messages or take(second)
    acknowledge_all(holder, messages[1:4])
    holder.close()
    assert numbers(take(other)) == [0, 4]


def test_a_nack_brings_the_rest_with_its_count(time, kind):
    """What comes again after a nack is the rest, with count 1."""
    topic = Topic(time.client)
    consumer = subscribe(topic, kind, negative_ack_redelivery_delay_ms=500)
    topic.publish_batch(4)
    messages = take(consumer)
    acknowledge_all(consumer, [messages[0], messages[2]])
    consumer.negative_acknowledge(messages[1])
    time.pass_ms(600)
    again = take(consumer)
    assert numbers(again) == [1, 3]
    assert {message.redelivery_count() for message in again} == {1}


def test_without_it_the_whole_batch_comes_again(topic, kind):
    """Without batch_index_ack_enabled, a batch of which something is unacknowledged comes again whole."""
    topic.publish_batch(4)
    with subscribe(topic, kind, batch_index_ack_enabled=False) as consumer:
        acknowledge_all(consumer, take(consumer)[:3])
    assert numbers(take(subscribe(topic, kind))) == [0, 1, 2, 3]


def test_the_last_message_completes_the_batch(topic, kind):
    """When each of its messages is acknowledged, by whichever consumers, a batch is done."""
    topic.publish_batch(3)
    with subscribe(topic, kind) as consumer:
        acknowledge_all(consumer, take(consumer)[:1])
    with subscribe(topic, kind) as consumer:
        acknowledge_all(consumer, take(consumer))
    assert take(subscribe(topic, kind)) == []


def test_by_id(topic, kind):
    """Ids that were stored elsewhere acknowledge their message only."""
    topic.publish_batch(3)
    with subscribe(topic, kind) as consumer:
        ids = [message.message_id().serialize() for message in take(consumer)]
    with subscribe(topic, kind) as consumer:
        consumer.acknowledge(type(take(consumer)[0].message_id()).deserialize(ids[1]))
    assert numbers(take(subscribe(topic, kind))) == [0, 2]
