"""Who is active on Exclusive and Failover."""

from __future__ import annotations

import pytest

from embeddedpulsar._engine.format.entry import sticky_key_hash
from embeddedpulsar._engine.format.subscription_record import FLAG_RING, FLAG_SEVERAL_TOPICS, ConsumerRules
from embeddedpulsar._engine.subscription.dispatch.dispatchers import (
    ACTIVE_DISPATCHERS,
    SharedDispatcher,
    chosen_on_ring,
    dispatcher_for,
)
from embeddedpulsar._engine.subscription.state.dispatch_state import Consumer, ConsumerRegistry, DispatchState
from embeddedpulsar.enums import ConsumerType

EXCLUSIVE = ACTIVE_DISPATCHERS[ConsumerType.Exclusive]
FAILOVER = ACTIVE_DISPATCHERS[ConsumerType.Failover]


def registry(*consumers: tuple[str, int], **rules: int) -> ConsumerRegistry:
    """Consumers as (name, priority), the longest attached first; ids from 1."""
    found = ConsumerRegistry()
    for consumer_id, (name, priority) in enumerate(consumers, 1):
        given = ConsumerRules(**rules)
        found.add(Consumer(consumer_id, name, ConsumerType.Failover, priority, bytes(16), 0, 1, 4, given))
    return found


def test_nobody_is_active_without_consumers():
    """Of either type."""
    assert (EXCLUSIVE.active(registry()), FAILOVER.active(registry())) == (0, 0)


def test_the_only_one_is_active():
    """Exclusive: a second one is refused, by name."""
    there = registry(("first", 0))
    assert EXCLUSIVE.active(there) == 1
    second = registry(("second", 0)).all()[0]
    assert "'first' of this very process holds the subscription that 'second' wants" in EXCLUSIVE.refusal(
        there, second, DispatchState()
    )
    assert not EXCLUSIVE.refusal(registry(), second, DispatchState())
    assert not FAILOVER.refusal(there, second, DispatchState())


def test_the_longest_attached_is_active():
    """On one topic, among those of the best level."""
    assert FAILOVER.active(registry(("b", 0), ("a", 0))) == 1
    assert FAILOVER.active(registry(("b", 2), ("a", 1), ("c", 1))) == 2


@pytest.mark.parametrize(("partition", "active"), [(0, 2), (1, 4), (2, 1), (3, 2), (4, 4)])
def test_partitions_are_shared_by_name(partition: int, active: int):
    """Sorted by name, then id; the number of the partition chooses. A worse level takes no part."""
    there = registry(("c", 0), ("a", 0), ("0", 1), ("a", 0), partition=partition)
    assert FAILOVER.active(there) == active


@pytest.mark.parametrize(("topic", "active"), [(1, 2), (2, 2), (3, 2), (4, 1)])
@pytest.mark.parametrize("flag", [FLAG_SEVERAL_TOPICS, FLAG_RING])
def test_topics_are_shared_on_the_ring(topic: int, active: int, flag: int):
    """The worked example: con-1 and con-2; topics 1 to 4 go to con-2, con-2, con-2, con-1."""
    topic_hash = sticky_key_hash(f"persistent://public/default/topic-{topic}")
    there = registry(("con-1", 0), ("con-2", 0), topic_hash=topic_hash, flags=flag)
    assert FAILOVER.active(there) == active
    worse = registry(("con-1", 0), ("con-2", 1), topic_hash=topic_hash, flags=flag)
    assert FAILOVER.active(worse) == 1


def test_several_topics_do_not_share_partitions_on_the_ring():
    """The number of a partition chooses, unless the setting asks for the ring."""
    there = registry(("b", 0), ("a", 0), partition=0, flags=FLAG_SEVERAL_TOPICS)
    assert FAILOVER.active(there) == 2


def test_behind_the_last_point_comes_the_first():
    """A ring. It does not depend on the order of the names."""
    names = ("con-1", "con-2", "con-3")
    last = max(sticky_key_hash(f"{name}{point}") for name in names for point in range(100))
    first = min(sticky_key_hash(f"{name}{point}") for name in names for point in range(100))
    assert chosen_on_ring(names, last + 1) == chosen_on_ring(names, first) == chosen_on_ring(names, 0)
    assert names[chosen_on_ring(names, 5)] == names[::-1][chosen_on_ring(names[::-1], 5)]


def test_each_type_has_its_rules():
    """And Shared refuses nobody."""
    assert dispatcher_for(ConsumerType.Failover) is FAILOVER
    shared = dispatcher_for(ConsumerType.Shared)
    assert isinstance(shared, SharedDispatcher)
    assert not shared.refusal(registry(("a", 0)), registry(("b", 0)).all()[0], DispatchState())
