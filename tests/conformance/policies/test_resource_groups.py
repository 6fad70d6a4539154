"""Resource groups: rates that several topics keep together, and what they used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import (
    Admin,
    ConsumerType,
    InitialPosition,
    MessageId,
    NotAllowedError,
    Producer,
    TopicNotFound,
)
from embeddedpulsar._engine.format.control import RESOURCE_GROUPS
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.store import store
from embeddedpulsar._engine.store.policies import policy_documents
from embeddedpulsar._engine.store.policies.resource_groups import GROUPS, HELD_GROUP
from embeddedpulsar.exceptions import CorruptionError, InvalidConfiguration
from embeddedpulsar.policy_values import DispatchRate, PublishRate, ResourceGroup
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import die_at, in_child
from tests.conformance.manual_time import ManualTime

MODULES = (store,)
STEPS = [name for name in failpoints.names() if name.startswith("policies:")]
SPACE = "public/default"


@pytest.fixture
def admin(store_url: Path | str, time: ManualTime) -> Iterator[Admin]:
    with Admin(store_url) as made:
        made.topics().create_non_partitioned_topics(["orders", "bills"])
        made.resource_groups().create_resource_group("shop", ResourceGroup(10, -1, 4, -1))
        yield made


def publish(time: ManualTime, topic: str, count: int) -> Producer[Any]:
    """Publish without waiting; the producer is closed at the end of the block."""
    producer = time.client.create_producer(topic, batching_enabled=False)
    for number in range(count):
        producer.send_async(b"%d" % number, None)
    time.pass_ms(0)
    return producer


def stored(admin: Admin, *topics: str) -> list[int]:
    return [admin.topics().get_stats(topic).msg_in_counter for topic in topics]


def test_topics_publish_at_the_rate_together(admin: Admin, time: ManualTime):
    """In the order in which they come; others are not concerned."""
    for topic in ("orders", "bills"):
        admin.topics().set_resource_group(topic, "shop")
    with publish(time, "orders", 8), publish(time, "bills", 8), publish(time, "other", 30):
        assert stored(admin, "orders", "bills", "other") == [8, 2, 30]
        for seconds in range(1, 4):
            time.pass_ms(1000)
            assert sum(stored(admin, "orders", "bills")) == min(16, 10 + 10 * seconds)
    usage = admin.resource_groups().get_usage("shop")
    assert usage.published_messages == 16 and usage.publish_rate_limited_times > 0
    assert usage.published_bytes >= 16
    assert (usage.dispatched_messages, usage.dispatch_rate_limited_times) == (0, 0)
    assert usage.json()["publishedMessages"] == 16


def test_topics_deliver_at_the_rate_together(admin: Admin, time: ManualTime):
    """Consumers of whatever type, and readers; as often as a message is delivered."""
    admin.namespaces().set_namespace_resource_group(SPACE, "shop")
    admin.resource_groups().update_resource_group("shop", ResourceGroup(0))
    for topic in ("orders", "bills"):
        with publish(time, topic, 6):
            pass
    first = time.client.subscribe(
        "orders",
        "kitchen",
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        receiver_queue_size=1,
    )
    second = time.client.create_reader("bills", MessageId.earliest, receiver_queue_size=1)
    found = []
    for _ in range(6):
        for message in (first.receive_nowait(), second.read_nowait()):
            found += [] if message is None else [message.topic_name()]
    assert len(found) == 4
    time.pass_ms(1000)
    for _ in range(6):
        for message in (first.receive_nowait(), second.read_nowait()):
            found += [] if message is None else [message.topic_name()]
    assert len(found) == 8
    usage = admin.resource_groups().get_usage("shop")
    assert 8 <= usage.dispatched_messages <= 12 and usage.dispatch_rate_limited_times > 0
    assert usage.published_messages == 0  # it was not limited


def test_the_nearest_level_and_other_rates(admin: Admin, time: ManualTime):
    """The group of the topic counts, not that of its namespace; the lowest rate decides; a partition is in
    the group of its topic."""
    groups, topics = admin.resource_groups(), admin.topics()
    groups.create_resource_group("small", ResourceGroup(3))
    admin.namespaces().set_namespace_resource_group(SPACE, "shop")
    topics.set_resource_group("orders", "small")
    assert topics.get_resource_group("bills") is None
    assert topics.get_resource_group("bills", applied=True) == "shop"
    assert topics.get_resource_group("orders", applied=True) == "small"
    topics.set_publish_rate("bills", PublishRate(2))
    topics.create_partitioned_topic("flights", 2)
    with publish(time, "orders", 9), publish(time, "bills", 9), publish(time, "flights-partition-1", 20):
        assert stored(admin, "orders", "bills", "flights-partition-1") == [3, 2, 8]
        topics.remove_resource_group("orders")
        topics.set_resource_group("flights", "small")
        time.wait_for_flusher()
        time.pass_ms(1000)
        assert stored(admin, "bills", "flights-partition-1") == [4, 11]
        assert stored(admin, "orders") == [9]
        for _ in range(8):
            time.pass_ms(1000)


def test_changes_hold_at_once(admin: Admin, time: ManualTime):
    """A producer that waits goes on when its group has another rate, or when it leaves the group. Limits that
    are not given stay."""
    groups, topics = admin.resource_groups(), admin.topics()
    topics.set_resource_group("orders", "shop")
    with publish(time, "orders", 100) as producer:
        assert stored(admin, "orders") == [10]
        groups.update_resource_group("shop", ResourceGroup(publish_rate_in_msgs=50))
        assert groups.get_resource_group("shop") == ResourceGroup(50, -1, 4, -1)
        time.wait_for_flusher()
        time.pass_ms(500)
        assert 25 <= stored(admin, "orders")[0] <= 60
        topics.remove_resource_group("orders")
        producer.flush()
        assert stored(admin, "orders") == [100]


def test_a_group_in_use_stays(admin: Admin, store_url: Path | str):
    """As in Pulsar. Topics and namespaces that are gone are no users."""
    groups, topics = admin.resource_groups(), admin.topics()
    admin.namespaces().create_namespace("acme/sales")
    admin.namespaces().set_namespace_resource_group("acme/sales", "shop")
    topics.set_resource_group("bills", "shop")
    for user, leave in (
        ("acme/sales", lambda: admin.namespaces().delete_namespace("acme/sales")),
        ("persistent://public/default/bills", lambda: topics.delete("bills")),
    ):
        with pytest.raises(NotAllowedError, match=f"'shop' is in use by {user}"):
            groups.delete_resource_group("shop")
        leave()
    topics.create_non_partitioned_topic("bills")
    assert topics.get_resource_group("bills") is None
    groups.delete_resource_group("shop")
    assert groups.get_resource_groups() == []
    groups.create_resource_group("again", ResourceGroup(1))
    assert groups.get_usage("again").published_messages == 0


def test_many_users(admin: Admin, monkeypatch: pytest.MonkeyPatch):
    """Beyond some number all topics and namespaces are asked."""
    monkeypatch.setattr(policy_documents, "MOST_OWNERS", 2)
    names = [f"t{number}" for number in range(4)]
    admin.topics().create_non_partitioned_topics(names)
    for name in names:
        admin.topics().set_resource_group(name, "shop")
    for name in names:
        with pytest.raises(NotAllowedError, match="in use by"):
            admin.resource_groups().delete_resource_group("shop")
        admin.topics().remove_resource_group(name)
    admin.resource_groups().delete_resource_group("shop")


def test_what_makes_no_sense(admin: Admin):
    """It is refused with what to do, and nothing changes."""
    groups = admin.resource_groups()
    for call, error, text in (
        (lambda: groups.create_resource_group("shop", ResourceGroup(1)), NotAllowedError, "already"),
        (lambda: groups.create_resource_group("a/b", ResourceGroup(1)), InvalidConfiguration, "no name"),
        (lambda: groups.create_resource_group("x", ResourceGroup(-2)), InvalidConfiguration, "from -1"),
        (lambda: groups.create_resource_group("x", PublishRate(1)), InvalidConfiguration, "ResourceGroup"),
        (
            lambda: groups.update_resource_group("shp", ResourceGroup(1)),
            InvalidConfiguration,
            "did you mean shop",
        ),
        (lambda: groups.delete_resource_group("zzz"), InvalidConfiguration, "Admin.resource_groups"),
        (lambda: groups.get_resource_group("zzz"), InvalidConfiguration, "no resource group 'zzz'"),
        (lambda: groups.get_usage("zzz"), InvalidConfiguration, "no resource group 'zzz'"),
        (lambda: admin.topics().set_resource_group("orders", "zzz"), InvalidConfiguration, "'zzz'"),
        (lambda: admin.topics().set_resource_group("orders", 5), InvalidConfiguration, "is a str"),
        (lambda: admin.topics().set_resource_group("nowhere", "shop"), TopicNotFound, "no such topic"),
    ):
        with pytest.raises(error, match=text):
            call()
    assert groups.get_resource_groups() == ["shop"]
    assert groups.get_resource_group("shop") == ResourceGroup(10, -1, 4, -1)


def test_there_are_as_many_as_there_is_room_for(admin: Admin):
    """A slot that is free again is used again."""
    groups = admin.resource_groups()
    for number in range(1, RESOURCE_GROUPS):
        groups.create_resource_group(f"g{number}", ResourceGroup())
    with pytest.raises(NotAllowedError, match="there are 80 resource groups"):
        groups.create_resource_group("more", ResourceGroup())
    groups.delete_resource_group("g7")
    groups.create_resource_group("more", ResourceGroup())


@pytest.mark.parametrize(
    "form", [5, {"a": {"slot": 99}}, {"a": {"slot": "x"}}, {"a": {"publishRateInMsgs": "x"}}]
)
def test_documents_that_are_none(form: object):
    """They are reported as damage."""
    with pytest.raises(CorruptionError):
        GROUPS.unpack(form)
    assert HELD_GROUP.default(None, ()) is None  # type: ignore[arg-type]


def test_other_processes(tmp_path: Path):
    """See the group, and change it."""
    with Admin(tmp_path) as admin:
        admin.resource_groups().create_resource_group("shop", ResourceGroup(10))
        admin.namespaces().set_namespace_resource_group(SPACE, "shop")

        def look() -> object:
            with Admin(tmp_path) as other:
                other.resource_groups().update_resource_group("shop", ResourceGroup(dispatch_rate_in_bytes=7))
                return other.namespaces().get_namespace_resource_group(SPACE)

        assert in_child(look) == "shop"
        assert admin.resource_groups().get_resource_group("shop") == ResourceGroup(10, -1, -1, 7)
    assert_clean(tmp_path)


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_change(tmp_path: Path, step: str):
    """It is made or not made, and can be made again."""
    Admin(tmp_path).close()

    def create() -> None:
        with Admin(tmp_path) as other:
            other.resource_groups().create_resource_group("shop", ResourceGroup(10))

    assert die_at(step, create)
    with Admin(tmp_path) as admin:
        groups = admin.resource_groups()
        if not groups.get_resource_groups():
            groups.create_resource_group("shop", ResourceGroup(10))
        admin.topics().create_non_partitioned_topic("orders")
        admin.topics().set_resource_group("orders", "shop")
        assert groups.get_resource_group("shop") == ResourceGroup(10)
    assert_clean(tmp_path)


def test_dispatch_rates_of_both(admin: Admin, time: ManualTime):
    """The group and the subscription; tokens that the other one lacks come back."""
    admin.topics().set_resource_group("orders", "shop")
    admin.topics().set_subscription_dispatch_rate("orders", DispatchRate(2))
    with publish(time, "orders", 9):
        pass
    consumer = time.client.subscribe("orders", "kitchen", initial_position=InitialPosition.Earliest)
    for seconds in range(1, 4):
        found = [consumer.receive_nowait() for _ in range(9)]
        assert len([one for one in found if one is not None]) == 2
        time.pass_ms(1000)
        assert admin.resource_groups().get_usage("shop").dispatched_messages == 2 * seconds
