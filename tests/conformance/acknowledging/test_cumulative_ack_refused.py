"""Cumulative acknowledgement is refused where messages before may be somebody else's."""

from __future__ import annotations

import pytest

from embeddedpulsar import ConsumerType, CumulativeAcknowledgementNotAllowedError
from tests.conformance.conftest import numbers
from tests.conformance.pool import take


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
@pytest.mark.parametrize("by_id", [False, True])
def test_on_shared_and_key_shared(topic, kind, by_id):
    """Both by message and by id; nothing is acknowledged, and the consumer goes on."""
    consumer = topic.consumer(consumer_type=kind)
    topic.publish(5)
    message = take(consumer)[3]
    with pytest.raises(CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(message.message_id() if by_id else message)
    consumer.acknowledge(message)
    consumer.close()
    assert numbers(take(topic.consumer(consumer_type=kind))) == [0, 1, 2, 4]


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_not_on_the_others(topic, kind):
    """Where one consumer gets everything it is allowed."""
    consumer = topic.consumer(consumer_type=kind)
    topic.publish(5)
    consumer.acknowledge_cumulative(take(consumer)[3])
    consumer.close()
    assert numbers(take(topic.consumer(consumer_type=kind))) == [4]
