"""Consumers of Exclusive and Failover: who is active, taking over, and late acknowledgements."""

from __future__ import annotations

import pytest

from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.enums import ConsumerType
from tests.unit.subscription.virtual_site import VirtualSite, position, read

FAILOVER = ConsumerType.Failover


def test_who_takes_over_gets_everything_unacknowledged_in_order(site: VirtualSite):
    """A better one joins, and leaves again: the first goes on where it was."""
    first = site.attach(FAILOVER, priority=1)
    site.publish(5)
    assert read(first, room=3) == [0, 1, 2]
    first.acknowledge([position(1)])
    better = site.attach(FAILOVER, site.world.start(), priority=0)
    assert (first.is_active(), better.is_active()) == (False, True)
    assert read(first) == []
    assert (read(better, room=2), read(better, room=1)) == ([0], [2])
    better.detach()
    assert (read(first), read(first)) == ([0], [2, 3, 4])


def test_late_acknowledgements_are_not_delivered_again(site: VirtualSite):
    """Who was active may acknowledge afterwards what it was given; the active one leaves that out, also
    where it has looked already."""
    first = site.attach(FAILOVER, priority=1)
    site.publish(6)
    assert read(first) == [0, 1, 2, 3, 4, 5]
    better = site.attach(FAILOVER, site.world.start(), priority=0)
    assert read(better, room=1) == [0]
    assert first.acknowledge([position(1), position(4)])
    assert read(better) == [2, 3]
    assert read(better) == [5]
    assert first.acknowledge_cumulative(*position(5))
    better.redeliver()
    assert read(better) == []


def test_the_one_that_was_active_is_told(site: VirtualSite):
    """`on_switched` is called once, when it reads next."""
    first = site.attach(FAILOVER, priority=1)
    switched = []
    first.on_switched = lambda: switched.append(1)
    site.attach(FAILOVER, site.world.start(), priority=0)
    assert (read(first), read(first), switched) == ([], [], [1])


def test_a_silent_consumer_waits_until_it_may_come_back(site: VirtualSite):
    """Exclusive: another one came meanwhile. Giving back is nothing to it then."""
    process = site.world.start()
    consumer = site.attach(ConsumerType.Exclusive, process)
    site.publish(2)
    process.is_stopped = True
    site.world.clock.advance(100.0)
    site.process.subscription.detach_dead()
    other = site.attach(ConsumerType.Exclusive)
    consumer.redeliver()
    assert consumer.redeliver_entries([position(0)])
    assert read(consumer) == []
    other.detach()
    assert read(consumer) == [0, 1]


def test_an_interrupted_read_loses_nothing(site: VirtualSite):
    """The interrupt hits behind the reading of entries, while damage among them is acknowledged."""
    consumer = site.attach(ConsumerType.Exclusive)
    entries = site.publish(4)
    consumer.acknowledge([position(2)])
    entries[1].is_damaged = True
    failpoints.set("journal:body_done", "raise:KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        read(consumer)
    found = []
    while more := read(consumer):
        found += more
    assert found == [0, 3]
