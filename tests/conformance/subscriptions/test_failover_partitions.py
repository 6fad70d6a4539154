"""Failover on a partitioned topic: sorted by priority and name, the number of the partition chooses."""

from __future__ import annotations

from typing import Any

import pytest

from embeddedpulsar import Client, ConsumerType, InitialPosition
from tests.children import in_child

PARTITIONS = 5


@pytest.fixture(autouse=True)
def partitioned(client: Client) -> None:
    """The topic has five partitions, with one message each."""
    core: Any = client._core
    core.store.topics.create_partitioned("orders", PARTITIONS)
    for index in range(PARTITIONS):
        with client.create_producer(f"orders-partition-{index}") as producer:
            producer.send(b"%d" % index)


def subscribe(client: Client, name: str, **options: Any) -> Any:
    """A Failover consumer of that name."""
    options.setdefault("initial_position", InitialPosition.Earliest)
    return client.subscribe(
        "orders", "sub", ConsumerType.Failover, consumer_name=name, receiver_queue_size=1, **options
    )


def active_on(consumer: Any) -> list[int]:
    """The partitions on which a consumer is the active one."""
    children = list(consumer._core.children.values())
    return [index for index, child in enumerate(children) if child.session.attachment.is_active()]


def test_the_consumers_share_the_partitions(client):
    """By name, whoever came first."""
    second, third = subscribe(client, "b"), subscribe(client, "c")
    assert active_on(second) == [0, 2, 4] and active_on(third) == [1, 3]
    first = subscribe(client, "a")
    assert (active_on(first), active_on(second), active_on(third)) == ([0, 3], [1, 4], [2])
    first.close()
    assert active_on(second) == [0, 2, 4] and active_on(third) == [1, 3]
    third.close()
    assert active_on(second) == [0, 1, 2, 3, 4]


def test_only_the_best_priority_counts(client):
    """Others stand by on all partitions."""
    good, better, best = (
        subscribe(client, "a", priority_level=1),
        subscribe(client, "c", priority_level=0),
        subscribe(client, "b", priority_level=0),
    )
    assert active_on(good) == [] and active_on(best) == [0, 2, 4] and active_on(better) == [1, 3]
    best.close()
    better.close()
    assert active_on(good) == [0, 1, 2, 3, 4]


def test_who_subscribes_to_one_partition_takes_part_there(client):
    """The rule of a partition is the same for all of its consumers."""
    whole = subscribe(client, "b")
    part = client.subscribe("orders-partition-2", "sub", ConsumerType.Failover, consumer_name="a")
    assert part._core.session.attachment.is_active() == (2 % 2 == 0)
    assert active_on(whole) == [0, 1, 3, 4]


def test_across_processes_the_rule_is_the_same(client, store_url):
    """Consumers of two processes get disjoint partitions, and all of them together."""
    consumer = subscribe(client, "a")
    assert active_on(consumer) == [0, 1, 2, 3, 4]

    def other() -> list[int]:
        with Client(store_url) as there:
            second = subscribe(there, "b")
            received = sorted(int(second.receive(5000).data()) for _ in range(2))
            assert active_on(second) == received
            return received

    assert in_child(other) == "[1, 3]"
    assert active_on(consumer) == [0, 1, 2, 3, 4]
    assert sorted(int(consumer.receive(5000).data()) for _ in range(PARTITIONS)) == list(range(PARTITIONS))


def test_a_new_partition_obeys_the_rule(client):
    """Its number counts on."""
    first, second = subscribe(client, "a"), subscribe(client, "b")
    core: Any = client._core
    core.store.grow_partitions("orders", 7)
    core.partition_watch.report_changes()
    assert active_on(first) == [0, 2, 4, 6] and active_on(second) == [1, 3, 5]
