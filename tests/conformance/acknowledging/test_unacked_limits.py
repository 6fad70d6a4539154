"""Limits of unacknowledged messages: at the limit nothing more is dispatched until half is acknowledged."""

from __future__ import annotations

import contextlib

import pytest

from embeddedpulsar import Client, ConsumerType, InitialPosition
from tests.conformance.conftest import numbers
from tests.conformance.pool import acknowledge_all, take, take_turns, write_settings

SINGLY = [ConsumerType.Shared, ConsumerType.KeyShared]


@contextlib.contextmanager
def limited(store_path, **settings):
    """A client of a store with limits, and a hundred messages of many keys."""
    write_settings(store_path, **settings)
    with Client(store_path) as client:
        with client.create_producer("topic") as producer:
            for number in range(100):
                producer.send(b"hello-%d" % number, partition_key=f"key-{number}")
        yield client


def subscribe(client, kind, size=1000):
    """A consumer that acknowledges at once."""
    return client.subscribe(
        "topic",
        "sub",
        kind,
        receiver_queue_size=size,
        ack_group_time_ms=0,
        initial_position=InitialPosition.Earliest,
    )


@pytest.mark.parametrize("kind", SINGLY)
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_of_a_consumer(store_path, kind, size):
    """With maxUnackedMessagesPerConsumer=10 a consumer gets ten; the next when it has at most five."""
    with limited(store_path, maxUnackedMessagesPerConsumer=10) as client:
        consumer = subscribe(client, kind, size)
        held = take(consumer)
        assert numbers(held) == list(range(10))
        acknowledge_all(consumer, held[:4])
        assert take(consumer) == []
        consumer.acknowledge(held[4])
        assert numbers(take(consumer)) == [10, 11, 12, 13, 14]
        assert take(consumer) == []


@pytest.mark.parametrize("kind", SINGLY)
def test_others_go_on(store_path, kind):
    """A consumer at its limit does not hold up those that are not."""
    with limited(store_path, maxUnackedMessagesPerConsumer=10) as client:
        stuck, busy = subscribe(client, kind), subscribe(client, kind)
        seen = set(numbers(take(stuck)))
        assert len(seen) <= 10
        for _ in range(100):
            messages = take(busy)
            acknowledge_all(busy, messages)
            seen |= set(numbers(messages))
        if kind == ConsumerType.Shared:
            assert seen == set(range(100))
        else:
            assert len(seen) > 10  # the keys of the stuck consumer wait for it


@pytest.mark.parametrize("kind", SINGLY)
def test_of_a_subscription(store_path, kind):
    """With maxUnackedMessagesPerSubscription=20 the consumers together get no more, until they hold ten."""
    with limited(store_path, maxUnackedMessagesPerSubscription=20) as client:
        consumers = [subscribe(client, kind, 1) for _ in range(3)]
        taken = take_turns(consumers)
        assert sum(map(len, taken)) == 20
        held = [(consumer, one) for consumer, some in zip(consumers, taken, strict=True) for one in some]
        for consumer, message in held[:9]:
            consumer.acknowledge(message)
        assert take_turns(consumers) == [[], [], []]
        held[9][0].acknowledge(held[9][1])
        assert sum(map(len, take_turns(consumers))) == 10


@pytest.mark.parametrize("kind", SINGLY)
def test_leaving_frees(store_path, kind):
    """What a consumer held when it left does not count any more."""
    with limited(store_path, maxUnackedMessagesPerSubscription=10) as client:
        first, second = subscribe(client, kind, 1), subscribe(client, kind, 1)
        assert sum(map(len, take_turns([first, second]))) == 10
        first.close()
        assert take(second)


@pytest.mark.parametrize("kind", SINGLY)
def test_without_limits(store_path, kind):
    """0 means any number."""
    with limited(store_path, maxUnackedMessagesPerConsumer=0, maxUnackedMessagesPerSubscription=0) as client:
        assert len(take(subscribe(client, kind))) == 100


def test_exclusive_has_none(store_path):
    """Exclusive and Failover subscriptions have no such limit, as in Pulsar."""
    with limited(
        store_path, maxUnackedMessagesPerConsumer=10, maxUnackedMessagesPerSubscription=10
    ) as client:
        assert len(take(subscribe(client, ConsumerType.Exclusive))) == 100
