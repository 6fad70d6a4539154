"""Which processes look after which others."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

from embeddedpulsar._engine.subscription.liveness_monitor import WatchRing
from embeddedpulsar._engine.subscription.state.dispatch_state import Consumer, ConsumerRegistry
from embeddedpulsar._engine.subscription.state.replica import SubscriptionState
from tests.unit.subscription.virtual_site import VirtualSite, read


def test_consumers_that_came_before_a_snapshot_are_watched(tmp_path: Path):
    """A process that learns of another's consumer from a snapshot of the journal, and not from the command
    by which it attached, watches that process too: its death gives back what it had within milliseconds."""
    with VirtualSite(tmp_path) as site:
        first, process = site.attach(), site.world.start()
        second = site.attach(process=process)
        site.publish(4)
        assert read(second) == [0, 1]
        shared = process.shared
        shared.transact(lambda _: shared._journal.compact(site.world.clock.wall_ms()))
        received = read(first)
        assert process.uuid in site.process.mailbox.watched
        site.world.kill(process)
        site.process.tell_of_deaths()
        while found := read(first):
            received += found
        assert sorted(received) == [0, 1, 2, 3]


class JoiningUuid(bytes):
    """A lease of which the comparison attaches another consumer, as a thread that comes between may."""

    consumers: ConsumerRegistry

    def __ne__(self, other: object) -> bool:
        self.consumers.add(Consumer(2, "b", 1, 0, bytes(16), 0, epoch=2))
        return super().__ne__(other)

    __hash__ = bytes.__hash__


def test_consumers_may_attach_while_the_beat_looks_for_other_processes():
    """The look takes no lock, so another thread may apply the attachment of a consumer in its midst."""
    state = SubscriptionState()
    own = JoiningUuid(bytes(16))
    own.consumers = state.consumers
    state.consumers.add(Consumer(1, "a", 1, 0, own, 0, epoch=1))
    ring = WatchRing(Mock(state=state), bytes(16), Mock(), Mock())
    assert not ring.has_others()
