"""Messages that come back: given back by the application, or not acknowledged in time."""

from __future__ import annotations

import pytest

from embeddedpulsar.client.negative_acks_tracker import NegativeAcksTracker
from embeddedpulsar.client.unacked_message_tracker import UnackedMessageTracker
from embeddedpulsar.exceptions import LockTimeout
from embeddedpulsar.platform.clock import ManualClock
from embeddedpulsar.platform.scheduler import ManualScheduler


class World:
    """A clock, timers, and what was asked for again."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scheduler = ManualScheduler(self.clock)
        self.asked: list[list[tuple[int, int]]] = []
        self.everything = False
        self.fail: Exception | None = None

    def redeliver(self, positions: list[tuple[int, int]]) -> bool:
        failure, self.fail = self.fail, None
        if failure is not None:
            raise failure
        self.asked.append(positions)
        return self.everything

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.scheduler.run_due()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def nacks(world) -> NegativeAcksTracker:
    return NegativeAcksTracker(1000, world.redeliver, world.scheduler.call_later, world.clock.monotonic)


def test_nack_waits_for_its_delay(world, nacks):
    """An entry is asked for when its delay has passed, never earlier."""
    nacks.add((7, 0))
    world.pass_time(0.5)
    nacks.add((7, 1))
    world.pass_time(0.499)
    assert world.asked == []
    world.pass_time(0.001)
    assert world.asked == [[(7, 0)]]
    world.pass_time(0.5)
    assert world.asked == [[(7, 0)], [(7, 1)]]
    assert world.scheduler.pending == 0


def test_repeated_nacks_do_not_postpone(world, nacks):
    """A stream of negative acknowledgements closer than the delay holds nothing back."""
    for _ in range(5):
        nacks.add((7, 0))
        world.pass_time(0.25)
    assert world.asked == [[(7, 0)]]


def test_an_acknowledged_nack_is_forgotten(world, nacks):
    """Acknowledging the message takes the negative acknowledgement back."""
    nacks.add((7, 0))
    nacks.discard((7, 0))
    nacks.discard((7, 5))
    world.pass_time(2)
    assert world.asked == []


def test_redelivery_of_everything_settles_all_nacks(world, nacks):
    """Where everything unacknowledged comes again, later negative acknowledgements are served too."""
    world.everything = True
    nacks.add((7, 1))
    nacks.add((7, 0))
    world.pass_time(0.5)
    nacks.add((7, 2))
    world.pass_time(0.5)
    world.pass_time(5)
    assert world.asked == [[(7, 0), (7, 1)]]
    assert len(nacks) == 0


def test_ack_timeout_fires_within_a_tick(world):
    """An entry comes due between the timeout and one second later."""
    tracker = UnackedMessageTracker(10_000, world.redeliver, world.scheduler.call_later)
    tracker.add((7, 0))
    tracker.add((7, 0))
    for _ in range(10):
        world.pass_time(1)
    assert world.asked == []
    world.pass_time(1)
    assert world.asked == [[(7, 0)]]
    assert len(tracker) == 0
    world.pass_time(1)
    assert world.scheduler.pending == 0


def test_ack_timeout_counts_from_each_delivery(world):
    """Entries received later come due later; those acknowledged never do."""
    tracker = UnackedMessageTracker(10_000, world.redeliver, world.scheduler.call_later)
    tracker.add((7, 0))
    tracker.add((7, 1))
    for _ in range(5):
        world.pass_time(1)
    tracker.add((7, 2))
    tracker.discard((7, 1))
    for _ in range(6):
        world.pass_time(1)
    assert world.asked == [[(7, 0)]]
    for _ in range(5):
        world.pass_time(1)
    assert world.asked == [[(7, 0)], [(7, 2)]]


def test_ack_timeout_of_everything(world):
    """Where everything unacknowledged comes again, nothing stays tracked."""
    world.everything = True
    tracker = UnackedMessageTracker(10_000, world.redeliver, world.scheduler.call_later)
    tracker.add((7, 0))
    for _ in range(5):
        world.pass_time(1)
    tracker.add((7, 1))
    for _ in range(20):
        world.pass_time(1)
    assert world.asked == [[(7, 0)]]
    tracker.clear()


def test_a_failed_redelivery_is_tried_again(world, nacks):
    """What could not be asked for is not forgotten, and the failure goes to the log."""
    tracker = UnackedMessageTracker(10_000, world.redeliver, world.scheduler.call_later)
    nacks.add((7, 0))
    world.fail = LockTimeout("held")
    with pytest.raises(LockTimeout):
        world.pass_time(1)
    world.pass_time(1)
    assert world.asked == [[(7, 0)]]
    tracker.add((7, 1))
    for _ in range(10):
        world.pass_time(1)
    world.fail = LockTimeout("held")
    with pytest.raises(LockTimeout):
        world.pass_time(1)
    for _ in range(12):
        world.pass_time(1)
    assert world.asked[1:] == [[(7, 1)]]
