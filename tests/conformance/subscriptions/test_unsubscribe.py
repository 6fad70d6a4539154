"""unsubscribe: the only consumer of a subscription may delete it, and nobody else."""

from __future__ import annotations

import pytest

from embeddedpulsar import AlreadyClosed, BrokerMetadataError, ConsumerType
from tests.conformance.conftest import numbers
from tests.conformance.pool import acknowledge_all, take

TYPES = [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared]


@pytest.mark.parametrize("kind", TYPES)
def test_the_only_consumer_may(topic, kind):
    """The subscription is gone, the consumer closed; whoever subscribes again begins anew."""
    topic.publish(3)
    consumer = topic.consumer(consumer_type=kind)
    acknowledge_all(consumer, take(consumer))
    consumer.unsubscribe()
    with pytest.raises(AlreadyClosed):
        consumer.receive(0)
    with pytest.raises(AlreadyClosed):
        consumer.unsubscribe()
    assert numbers(take(topic.consumer(consumer_type=kind))) == [0, 1, 2]


@pytest.mark.parametrize("kind", TYPES[1:])
def test_one_of_several_may_not(topic, kind):
    """It raises BrokerMetadataError, and all go on; the last one may."""
    first, second = (topic.consumer(consumer_type=kind, consumer_name=name) for name in "ab")
    for consumer in (first, second):
        with pytest.raises(BrokerMetadataError, match="closed first"):
            consumer.unsubscribe()
    topic.publish(4)
    assert sorted(numbers(take(first) + take(second))) == [0, 1, 2, 3]
    first.close()
    second.unsubscribe()


@pytest.mark.in_memory
@pytest.mark.parametrize("kind", TYPES)
def test_other_subscriptions_stay(topic, kind):
    """Only the one is deleted."""
    topic.publish(2)
    with topic.client.subscribe("topic", "other", kind) as other:
        topic.publish(2)
        topic.consumer(consumer_type=kind).unsubscribe()
        assert numbers(take(other)) == [0, 1]


def test_delayed_messages_are_forgotten_with_it(time):
    """A subscription of the same name begins without anything of the old one."""
    from datetime import timedelta

    from embeddedpulsar import InitialPosition

    consumer = time.client.subscribe("topic", "sub", ConsumerType.Shared)
    with time.client.create_producer("topic") as producer:
        producer.send(b"hello-0", deliver_after=timedelta(seconds=10))
        producer.send(b"hello-1")
    assert numbers(take(consumer)) == [1]
    consumer.unsubscribe()
    consumer = time.client.subscribe(
        "topic", "sub", ConsumerType.Shared, initial_position=InitialPosition.Latest
    )
    time.pass_ms(20_000)
    assert take(consumer) == []


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("topics", ["topic", ["topic", "other"]], ids=["one", "two"])
def test_closing_behind_it(topic, kind, topics):
    """Who closes the consumer after unsubscribing gets no error; who does so twice does."""
    consumer = topic.client.subscribe(topics, "sub", kind)
    consumer.unsubscribe()
    consumer.close()
    with pytest.raises(AlreadyClosed):
        consumer.close()
