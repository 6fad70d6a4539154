"""Policies of delivery, by topic, namespace and broker: delays, and what may be held unacknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from embeddedpulsar import Admin, ConsumerType, InitialPosition
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.policy_values import DelayedDeliveryPolicies
from tests.conformance.manual_time import ManualTime
from tests.conformance.pool import take, take_turns, write_settings

SPACE = "public/default"
SHARED, KEY_SHARED = ConsumerType.Shared, ConsumerType.KeyShared


@pytest.fixture
def time(store_path: Path, store_url: Path | str) -> Iterator[ManualTime]:
    """A store where messages may be early, and its clock."""
    write_settings(store_path, isDelayedDeliveryDeliverAtTimeStrict=False)
    made = ManualTime(store_url)
    yield made
    made.close()


@pytest.fixture
def admin(time: ManualTime) -> Iterator[Admin]:
    """Beside its client."""
    with Admin(time.url) as made:
        made.topics().create_non_partitioned_topic("orders")
        yield made


def subscribe(time: ManualTime, name: str = "kitchen", kind: ConsumerType = SHARED):
    return time.client.subscribe("orders", name, kind, initial_position=InitialPosition.Earliest)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_delays_are_switched_off_and_on(time: ManualTime, admin: Admin, kind: ConsumerType):
    """For messages that wait, with consumers that are attached; the topic decides before its namespace."""
    producer, consumer = time.client.create_producer("orders"), subscribe(time, kind=kind)
    producer.send(b"1", deliver_after=timedelta(seconds=60))
    assert take(consumer) == []
    admin.namespaces().set_delayed_delivery_messages(SPACE, DelayedDeliveryPolicies(False))
    assert [one.data() for one in take(consumer)] == [b"1"]
    producer.send(b"2", deliver_after=timedelta(seconds=60))
    assert [one.data() for one in take(consumer)] == [b"2"]
    admin.topics().set_delayed_delivery_policy("orders", DelayedDeliveryPolicies(True))
    producer.send(b"3", deliver_after=timedelta(seconds=60))
    assert take(consumer) == []
    time.pass_ms(60_000)
    assert [one.data() for one in take(consumer)] == [b"3"]
    admin.topics().remove_delayed_delivery_policy("orders")
    producer.send(b"4", deliver_after=timedelta(seconds=60))
    assert [one.data() for one in take(consumer)] == [b"4"]
    assert admin.topics().get_delayed_delivery_policy("orders") is None


def test_how_early_a_message_may_be(time: ManualTime, admin: Admin):
    """By the tick, where ``broker.conf`` does not ask for precision."""
    producer, consumer = time.client.create_producer("orders"), subscribe(time)
    admin.topics().set_delayed_delivery_policy("orders", DelayedDeliveryPolicies(True, 5000))
    producer.send(b"1", deliver_after=timedelta(seconds=60))
    time.pass_ms(54_000)
    assert take(consumer) == []
    time.pass_ms(1_000)
    assert len(take(consumer)) == 1


@pytest.mark.parametrize(
    "wrong", [DelayedDeliveryPolicies(tick_time=0), DelayedDeliveryPolicies(tick_time=-1)]
)
def test_a_delay_that_makes_no_sense(admin: Admin, wrong: DelayedDeliveryPolicies):
    """It is refused."""
    with pytest.raises(InvalidConfiguration):
        admin.topics().set_delayed_delivery_policy("orders", wrong)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_what_a_consumer_may_hold(time: ManualTime, admin: Admin, kind: ConsumerType):
    """By topic, namespace and broker; consumers that are attached follow, and 0 lifts the limit."""
    with time.client.create_producer("orders") as producer:
        for number in range(100):
            producer.send(b"x", partition_key=str(number))
    namespaces, topics = admin.namespaces(), admin.topics()
    namespaces.set_max_unacked_messages_per_consumer(SPACE, 10)
    consumer = subscribe(time, "one", kind)
    taken = take(consumer)
    assert len(taken) == 10
    topics.set_max_unacked_messages_on_consumer("orders", 20)
    assert topics.get_max_unacked_messages_on_consumer("orders", applied=True) == 20
    time.pass_ms(0)
    taken += take(consumer)
    assert len(taken) == 20
    assert len(take(subscribe(time, "two", kind))) == 20
    topics.remove_max_unacked_messages_on_consumer("orders")
    time.pass_ms(0)
    for message in taken[:14]:
        consumer.acknowledge(message)
    time.pass_ms(1000)
    assert topics.get_stats("orders").subscriptions["one"].consumers[0].blocked_consumer_on_unacked_msgs
    assert take(consumer) == []  # it holds 6, more than half of 10
    consumer.acknowledge(taken[14])
    time.pass_ms(1000)
    taken += take(consumer)
    assert len(taken) == 25
    topics.set_max_unacked_messages_on_consumer("orders", 0)
    time.pass_ms(0)
    taken += take(consumer)
    assert len({one.message_id() for one in taken}) == 100
    with pytest.raises(InvalidConfiguration):
        topics.set_max_unacked_messages_on_consumer("orders", -1)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_what_a_subscription_may_hold(time: ManualTime, admin: Admin, kind: ConsumerType):
    """All its consumers together, those that are attached and those that come."""
    with time.client.create_producer("orders") as producer:
        for number in range(100):
            producer.send(b"x", partition_key=str(number))
    admin.namespaces().set_max_unacked_messages_per_subscription(SPACE, 30)
    consumers = [subscribe(time, kind=kind) for _ in range(2)]
    assert sum(len(take(one)) for one in consumers) == 30
    admin.topics().set_max_unacked_messages_on_subscription("orders", 50)
    time.pass_ms(0)
    assert sum(len(each) for each in take_turns(consumers)) == 20
    for one in consumers:
        one.close()
    assert len(take(subscribe(time, kind=kind))) == 50
    assert admin.namespaces().get_max_unacked_messages_per_subscription(SPACE) == 30


def test_limits_outlive_the_process(time: ManualTime, admin: Admin):
    """They are in the journal of the subscription, and in its snapshot."""
    with time.client.create_producer("orders") as producer:
        for _ in range(100):
            producer.send(b"x")
    consumer = subscribe(time)
    admin.topics().set_max_unacked_messages_on_consumer("orders", 7)
    time.pass_ms(0)
    assert len(take(consumer)) == 7
    time.reopen()
    assert len(take(subscribe(time))) == 7
