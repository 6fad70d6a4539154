"""A receiver queue of size 0: a consumer holds what it was asked for, and not one message more."""

from __future__ import annotations

import pytest

from embeddedpulsar import ConsumerType, InvalidConfiguration
from tests.conformance.conftest import numbers
from tests.conformance.pool import take_turns

TYPES = [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared]


@pytest.mark.parametrize("kind", TYPES)
def test_receive(topic, kind):
    """receive() without a timeout works, one message after the other."""
    topic.publish(5)
    consumer = topic.consumer(consumer_type=kind, receiver_queue_size=0)
    assert numbers([consumer.receive() for _ in range(5)]) == list(range(5))
    assert consumer.receive_nowait() is None


@pytest.mark.parametrize("kind", TYPES)
def test_a_timeout_is_refused(topic, kind):
    """As in pulsar-client."""
    consumer = topic.consumer(consumer_type=kind, receiver_queue_size=0)
    with pytest.raises(InvalidConfiguration):
        consumer.receive(100)


def test_nothing_is_kept_from_others(topic):
    """Of two consumers on Shared one stops after each message it takes; the other gets all the rest."""
    lazy = topic.consumer(consumer_type=ConsumerType.Shared, receiver_queue_size=0)
    busy = topic.consumer(consumer_type=ConsumerType.Shared, receiver_queue_size=0)
    topic.publish(20)
    assert numbers([lazy.receive()]) == [0]
    assert numbers(take_turns([busy])[0]) == list(range(1, 20))


@pytest.mark.in_memory
def test_in_turns(topic):
    """Each receive takes the next message of the topic."""
    consumers = [topic.consumer(consumer_type=ConsumerType.Shared, receiver_queue_size=0) for _ in range(3)]
    topic.publish(9)
    assert [numbers(messages) for messages in take_turns(consumers)] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
