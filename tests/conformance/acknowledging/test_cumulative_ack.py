"""Cumulative acknowledgement: this message and everything before it."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import numbers, receive_all


@pytest.mark.parametrize("by_id", [False, True])
def test_everything_up_to_the_message(topic, by_id):
    """By message or by id, only what comes behind is delivered again."""
    topic.publish(10)
    with topic.consumer() as consumer:
        message = receive_all(consumer)[6]
        consumer.acknowledge_cumulative(message.message_id() if by_id else message)
    assert numbers(receive_all(topic.consumer())) == [7, 8, 9]


def test_it_never_goes_back(topic):
    """A lower cumulative acknowledgement after a higher one changes nothing."""
    topic.publish(5)
    with topic.consumer() as consumer:
        messages = receive_all(consumer)
        consumer.acknowledge_cumulative(messages[3])
        consumer.acknowledge_cumulative(messages[1])
    assert numbers(receive_all(topic.consumer())) == [4]


def test_the_last_message_of_a_batch(topic):
    """The last message of a batch covers all of it."""
    topic.publish_batch(3)
    topic.publish(1)
    with topic.consumer() as consumer:
        consumer.acknowledge_cumulative(receive_all(consumer)[2])
    assert numbers(receive_all(topic.consumer())) == [0]


def test_the_middle_of_a_batch(topic):
    """Without batch index acknowledgement, everything before the batch is acknowledged, the batch is not."""
    topic.publish(2)
    topic.publish_batch(3)
    with topic.consumer() as consumer:
        consumer.acknowledge_cumulative(receive_all(consumer)[3])
    assert numbers(receive_all(topic.consumer())) == [0, 1, 2]


@pytest.mark.in_memory
def test_the_rest_of_the_batch_completes_it(topic):
    """Messages of the batch up to the cumulative one count: acknowledging the others finishes the entry."""
    topic.publish_batch(3)
    with topic.consumer() as consumer:
        messages = receive_all(consumer)
        consumer.acknowledge_cumulative(messages[1])
        consumer.acknowledge(messages[2])
    assert receive_all(topic.consumer()) == []


def test_together_with_single_acknowledgements(topic):
    """Single acknowledgements behind the cumulative one are kept."""
    topic.publish(6)
    with topic.consumer() as consumer:
        messages = receive_all(consumer)
        consumer.acknowledge(messages[4])
        consumer.acknowledge_cumulative(messages[2])
    assert numbers(receive_all(topic.consumer())) == [3, 5]
