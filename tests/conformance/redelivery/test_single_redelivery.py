"""Redelivery on Shared and Key_Shared: single entries come again, and deliveries are counted."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from embeddedpulsar import (
    ConsumerType,
    CumulativeAcknowledgementNotAllowedError,
    MultiplierRedeliveryBackoff,
    Timeout,
)
from tests.conformance.conftest import numbers, receive_all


@pytest.fixture(params=[ConsumerType.Shared, ConsumerType.KeyShared], ids=lambda kind: kind.name)
def subscribe(topic, request):
    """Subscribe with one of the types that deliver singly."""
    return lambda **options: topic.consumer(consumer_type=request.param, **options)


@pytest.mark.parametrize("by_id", [False, True])
def test_a_nack_brings_one_message_again_and_counts(topic, subscribe, by_id):
    """Of three messages only the second comes again, with counts 1, 2 and 3."""
    topic.publish(3)
    consumer = subscribe(negative_ack_redelivery_delay_ms=100)
    messages = receive_all(consumer)
    message = messages[1]
    for count in (1, 2, 3):
        consumer.negative_acknowledge(message.message_id() if by_id else message)
        message = consumer.receive(10_000)
        assert (numbers([message]), message.redelivery_count()) == ([1], count)
    with pytest.raises(Timeout):
        consumer.receive(200)


def test_the_delay_grows_with_the_count(topic, subscribe):
    """With a backoff of 100, 200 and 400 ms."""
    topic.publish(1)
    consumer = subscribe(negative_ack_redelivery_backoff=MultiplierRedeliveryBackoff(100, 60_000, 2))
    message = consumer.receive(10_000)
    for delay_s in (0.1, 0.2, 0.4):
        begun = time.monotonic()
        consumer.negative_acknowledge(message)
        message = consumer.receive(10_000)
        assert time.monotonic() - begun >= delay_s - 0.001


def test_what_is_acknowledged_does_not_come_again(topic, subscribe):
    """An acknowledgement after the nack settles the message."""
    topic.publish(2)
    consumer = subscribe(negative_ack_redelivery_delay_ms=100)
    messages = receive_all(consumer)
    for message in messages:
        consumer.negative_acknowledge(message)
    consumer.acknowledge(messages[0])
    assert numbers([consumer.receive(10_000)]) == [1]
    with pytest.raises(Timeout):
        consumer.receive(200)


@pytest.mark.parametrize("index_acks", [False, True])
def test_a_batch_comes_again_whole_or_without_acknowledged_indexes(topic, subscribe, index_acks):
    """What was fetched ahead of it is not delivered in between."""
    topic.publish_batch(5)
    consumer = subscribe(batch_index_ack_enabled=index_acks, negative_ack_redelivery_delay_ms=100)
    messages = [consumer.receive(10_000) for _ in range(3)]
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[2])
    consumer.negative_acknowledge(messages[1])
    expected = [1, 3, 4] if index_acks else [0, 1, 2, 3, 4]
    first: list[Any] = []  # of the old delivery, as long as the delay runs
    again: list[Any] = []
    while len(again) < len(expected):
        message = consumer.receive(10_000)
        (again if message.redelivery_count() else first).append(message)
    assert numbers(first) in ([], [3], [3, 4])
    assert numbers(again) == expected
    assert {message.redelivery_count() for message in again} == {1}
    for message in again:
        consumer.acknowledge(message)
    with pytest.raises(Timeout):
        consumer.receive(200)


def test_everything_a_consumer_holds_comes_again(topic, subscribe):
    """What the application had is counted; what was fetched ahead is not; what is acknowledged stays away."""
    topic.publish(6)
    consumer = subscribe()
    messages = [consumer.receive(10_000) for _ in range(3)]
    consumer.acknowledge(messages[1])
    consumer.redeliver_unacknowledged_messages()
    again = [consumer.receive(10_000) for _ in range(5)]
    assert numbers(again) == [0, 2, 3, 4, 5]
    assert [message.redelivery_count() for message in again[:2]] == [1, 1]
    assert {message.redelivery_count() for message in again[2:]} == {0}


def test_what_is_given_back_goes_to_whoever_is_free(topic):
    """A consumer that closes leaves its messages, and what it gave back, to the other one."""
    topic.publish(4)
    first = topic.consumer(consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=60_000)
    for message in receive_all(first):
        first.negative_acknowledge(message)
    second = topic.consumer(consumer_type=ConsumerType.Shared)
    first.close()
    assert sorted(numbers([second.receive(10_000) for _ in range(4)])) == [0, 1, 2, 3]


def test_cumulative_acknowledgement_is_not_allowed(topic, subscribe):
    """Neither by message nor by id; individual acknowledgement goes on."""
    topic.publish(1)
    consumer = subscribe()
    message = consumer.receive(10_000)
    for target in (message, message.message_id()):
        with pytest.raises(CumulativeAcknowledgementNotAllowedError):
            consumer.acknowledge_cumulative(target)
    consumer.acknowledge(message)


def test_delayed_messages_are_awaited_until_they_are_due(topic, subscribe):
    """A coroutine wakes when the time has come, never before."""
    consumer = subscribe()
    with topic.producer() as producer:
        begun = time.time()
        producer.send(b"hello-0", deliver_at=int(begun * 1000) + 300)

    message = asyncio.run(asyncio.wait_for(consumer.receive_async(), 10))
    assert time.time() - begun >= 0.3
    assert numbers([message]) == [0]


@pytest.mark.slow
def test_the_ack_timeout_brings_what_is_overdue(topic, subscribe):
    """After ten seconds and a tick, counted; what was acknowledged does not come."""
    topic.publish(3)
    consumer = subscribe(unacked_messages_timeout_ms=10_000, ack_timeout_tick_ms=100)
    messages = receive_all(consumer)
    consumer.acknowledge(messages[1])
    begun = time.monotonic()
    again = [consumer.receive(13_000), consumer.receive(1000)]
    assert 9.5 <= time.monotonic() - begun <= 12
    assert numbers(again) == [0, 2]
    assert [message.redelivery_count() for message in again] == [1, 1]
