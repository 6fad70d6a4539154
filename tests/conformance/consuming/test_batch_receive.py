"""batch_receive: as many messages as the policy says."""

from __future__ import annotations

import time

import pytest

from embeddedpulsar import AlreadyClosed, ConsumerBatchReceivePolicy
from tests.conformance.conftest import numbers


def test_a_number_of_messages(topic):
    """A batch is complete at max_num_message, and never larger."""
    topic.publish(25)
    consumer = topic.consumer(batch_receive_policy=ConsumerBatchReceivePolicy(10, -1, 100))
    assert numbers(consumer.batch_receive()) == list(range(10))
    assert numbers(consumer.batch_receive()) == list(range(10, 20))
    assert numbers(consumer.batch_receive()) == list(range(20, 25))
    assert consumer.batch_receive() == []


def test_a_number_of_bytes(topic):
    """A batch never exceeds max_num_bytes, but its first message is always taken."""
    with topic.producer() as producer:
        for size in (400, 400, 300, 2000, 10):
            producer.send(b"x" * size)
    consumer = topic.consumer(batch_receive_policy=ConsumerBatchReceivePolicy(-1, 1000, 50))
    sizes = [[len(message.data()) for message in consumer.batch_receive()] for _ in range(4)]
    assert sizes == [[400, 400], [300], [2000], [10]]


def test_the_timeout(topic):
    """After timeout_ms whatever came is returned, also nothing."""
    consumer = topic.consumer(batch_receive_policy=ConsumerBatchReceivePolicy(100, -1, 50))
    begun = time.monotonic()
    assert consumer.batch_receive() == []
    assert time.monotonic() - begun >= 0.05
    topic.publish(2)
    assert numbers(consumer.batch_receive()) == [0, 1]


def test_the_default_policy(topic):
    """Without a policy: up to 10 MiB, after 100 ms."""
    topic.publish(30)
    assert numbers(topic.consumer().batch_receive()) == list(range(30))


def test_no_timeout_waits_for_a_limit(topic):
    """With timeout_ms <= 0 a batch ends at a limit only; the queue size bounds it."""
    topic.publish(8)
    policy = ConsumerBatchReceivePolicy(100, -1, -1)
    consumer = topic.consumer(batch_receive_policy=policy, receiver_queue_size=4)
    assert numbers(consumer.batch_receive()) == [0, 1, 2, 3]
    assert numbers(consumer.batch_receive()) == [4, 5, 6, 7]


@pytest.mark.in_memory
def test_single_and_batch_receive_mix(topic):
    """Both take from the same queue, in order."""
    topic.publish(6)
    consumer = topic.consumer(batch_receive_policy=ConsumerBatchReceivePolicy(2, -1, 50))
    assert numbers([consumer.receive()]) == [0]
    assert numbers(consumer.batch_receive()) == [1, 2]
    assert numbers([consumer.receive()]) == [3]


def test_closed(topic):
    """A closed consumer raises AlreadyClosed."""
    consumer = topic.consumer()
    consumer.close()
    with pytest.raises(AlreadyClosed):
        consumer.batch_receive()
