"""The policy subscribe_rate: how often a consumer may subscribe to a topic."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, MessageId, NotAllowedError
from embeddedpulsar._engine.format.control import SUBSCRIBERS
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.policy_values import SubscribeRate
from tests.children import in_child
from tests.conformance.manual_time import ManualTime
from tests.conformance.pool import write_settings


@pytest.fixture
def admin(store_url: Path | str, time: ManualTime) -> Iterator[Admin]:
    with Admin(store_url) as made:
        made.topics().create_non_partitioned_topic("orders")
        yield made


def attempts(client: Client, count: int, name: str = "cook", topic: str = "orders") -> int:
    """How many of them succeeded."""
    done = 0
    for _ in range(count):
        with contextlib.suppress(NotAllowedError):
            client.subscribe(topic, "kitchen", consumer_name=name).close()
            done += 1
    return done


@pytest.mark.parametrize("level", ["topic", "namespace", "broker"])
def test_as_many_as_the_rate_in_a_period(admin: Admin, time: ManualTime, level: str):
    """Of each consumer, by its name; then one in each part of the period."""
    if level == "topic":
        admin.topics().set_subscribe_rate("orders", SubscribeRate(3, 30))
    elif level == "namespace":
        admin.namespaces().set_subscribe_rate("public/default", SubscribeRate(3))
    else:
        admin.brokers().update_dynamic_configuration("subscribeThrottlingRatePerConsumer", "3")
    assert admin.topics().get_subscribe_rate("orders", applied=True) == SubscribeRate(3, 30)
    assert attempts(time.client, 5) == 3
    with pytest.raises(NotAllowedError, match="Subscribe limited by subscribe rate limit per consumer"):
        time.client.subscribe("orders", "kitchen", consumer_name="cook")
    assert attempts(time.client, 5, "waiter") == 3
    time.pass_ms(9_999)
    assert attempts(time.client, 1) == 0
    time.pass_ms(1)
    assert attempts(time.client, 2) == 1
    time.pass_ms(10 * 60_000)
    assert attempts(time.client, 5) == 3
    time.pass_ms(1)
    assert attempts(time.client, 1) == 0
    for _ in range(5):  # each has a name of its own
        time.client.subscribe("orders", "kitchen").close()
        time.client.create_reader("orders", MessageId.earliest).close()


def test_it_changes_and_goes(admin: Admin, time: ManualTime):
    """At once; 0 and -1 are no limit. Another topic has its own."""
    admin.topics().set_subscribe_rate("orders", SubscribeRate(1, 60))
    assert attempts(time.client, 2) == 1
    assert attempts(time.client, 2, topic="bills") == 2
    admin.topics().set_subscribe_rate("orders", SubscribeRate(2, 1))
    time.pass_ms(1000)
    assert attempts(time.client, 3) == 2
    for rate in (0, -1):
        admin.topics().set_subscribe_rate("orders", SubscribeRate(rate))
        assert attempts(time.client, 5) == 5
    admin.topics().remove_subscribe_rate("orders")
    assert admin.topics().get_subscribe_rate("orders") is None
    assert admin.topics().get_subscribe_rate("orders", applied=True) == SubscribeRate(0, 30)


def test_partitions_count_singly(admin: Admin, time: ManualTime):
    """A consumer of a partitioned topic subscribes once to each of them."""
    admin.topics().create_partitioned_topic("flights", 3)
    admin.topics().set_subscribe_rate("flights", SubscribeRate(2))
    assert attempts(time.client, 3, topic="flights") == 2
    assert admin.topics().get_subscriptions("flights") == ["kitchen"]


def test_more_consumers_than_are_remembered(admin: Admin, time: ManualTime):
    """Those are forgotten that subscribed longest ago."""
    admin.topics().set_subscribe_rate("orders", SubscribeRate(1, 3600))
    for number in range(SUBSCRIBERS + 1):
        time.pass_ms(1)
        assert attempts(time.client, 2, f"c{number}") == 1
    assert attempts(time.client, 1, "c0") == 1
    assert attempts(time.client, 1, f"c{SUBSCRIBERS}") == 0


def test_the_clock_is_set_back(admin: Admin, time: ManualTime):
    """Nobody waits for the old time to come again."""
    admin.topics().set_subscribe_rate("orders", SubscribeRate(1, 30))
    assert attempts(time.client, 2) == 1
    time.clock.set_wall_ms(time.now_ms() - 3_600_000)
    assert attempts(time.client, 2) == 1


def test_what_makes_no_sense(admin: Admin):
    """It is refused."""
    for value in (SubscribeRate(-2), SubscribeRate(1, 0), SubscribeRate(True)):
        with pytest.raises(InvalidConfiguration):
            admin.topics().set_subscribe_rate("orders", value)


def test_other_processes(tmp_path: Path):
    """They count together."""
    write_settings(
        tmp_path, subscribeThrottlingRatePerConsumer=3, subscribeRatePeriodPerConsumerInSecond=3600
    )
    with Client(tmp_path) as client:
        assert attempts(client, 2) == 2

        def work() -> object:
            with Client(tmp_path) as other:
                return attempts(other, 5)

        assert in_child(work) == "1"
        assert attempts(client, 2) == 0
