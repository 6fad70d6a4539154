"""Messages that come back: given back by the application, or not acknowledged in time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from embeddedpulsar._engine.platform import timing
from embeddedpulsar.client.consumer.due_entries import (
    DueEntries,
    MultiplierRedeliveryBackoff,
    negative_acks,
    unacked_messages,
)
from embeddedpulsar.exceptions import LockTimeout, StorageError
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler


class World:
    """A clock, timers, and what was asked for again."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scheduler = ManualScheduler(self.clock)
        self.asked: list[list[tuple[int, int]]] = []
        self.fail: Exception | None = None
        self.is_held = False
        self.tries = 0
        self.then: Callable[[], object] | None = None

    def redeliver(self, positions: list[tuple[int, int]]) -> None:
        self.tries += 1
        if self.is_held:
            assert timing.left(30.0) <= 0.02, "it would wait for long"
            raise LockTimeout("held")
        failure, self.fail = self.fail, None
        if failure is not None:
            raise failure
        self.asked.append(positions)
        if self.then is not None:
            self.then()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.scheduler.run_due()

    def nacks(self, delay_ms: int = 1000, backoff: MultiplierRedeliveryBackoff | None = None):
        return negative_acks(
            delay_ms, backoff, self.redeliver, self.scheduler.call_later, self.clock.monotonic
        )

    def timeouts(
        self,
        timeout_ms: int = 10_000,
        tick_ms: int = 1000,
        backoff: MultiplierRedeliveryBackoff | None = None,
    ):
        return unacked_messages(
            timeout_ms, tick_ms, backoff, self.redeliver, self.scheduler.call_later, self.clock.monotonic
        )


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def nacks(world) -> DueEntries:
    return world.nacks()


def test_nack_waits_for_its_delay(world, nacks):
    """An entry is asked for when its delay has passed, never earlier."""
    nacks.schedule((7, 0))
    world.pass_time(0.5)
    nacks.schedule((7, 1))
    world.pass_time(0.499)
    assert world.asked == []
    world.pass_time(0.001)
    assert world.asked == [[(7, 0)]]
    world.pass_time(0.5)
    assert world.asked == [[(7, 0)], [(7, 1)]]
    assert world.scheduler.pending == 0


@pytest.mark.parametrize("at", [0.0, 0.0137, 0.0999, 0.1, 0.73456])
@pytest.mark.parametrize("delay_ms", [100, 101, 1000, 60_000])
def test_never_early_and_at_most_a_tick_late(world, at, delay_ms):
    """Whenever it is given back, an entry comes between its delay and a tenth of it, or 100 ms, later."""
    nacks = world.nacks(delay_ms)
    world.clock.advance(at)
    nacks.schedule((7, 0))
    given_back = world.clock.monotonic()
    while not world.asked:
        world.clock.advance(world.scheduler.next_due() - world.clock.monotonic())
        world.scheduler.run_due()
    late_s = world.clock.monotonic() - given_back - delay_ms / 1000
    assert -1e-6 <= late_s <= min(0.1, delay_ms / 10_000) + 1e-6


def test_repeated_nacks_do_not_postpone(world, nacks):
    """A stream of negative acknowledgements closer than the delay holds nothing back."""
    for _ in range(5):
        nacks.schedule((7, 0))
        world.pass_time(0.25)
    assert world.asked == [[(7, 0)]]


def test_an_acknowledged_nack_is_forgotten(world, nacks):
    """What is taken out does not come, and may be given back anew, with a delay of its own."""
    nacks.schedule((7, 0))
    nacks.discard((7, 0))
    nacks.discard((7, 5))
    nacks.discard((8, 0))
    assert (7, 0) not in nacks
    world.pass_time(0.6)
    nacks.schedule((7, 0))
    world.pass_time(0.6)
    assert world.asked == []
    world.pass_time(0.4)
    assert world.asked == [[(7, 0)]]
    assert world.scheduler.pending == 0


def test_clearing_settles_all_nacks(world, nacks):
    """Where everything unacknowledged comes again, later negative acknowledgements are served too."""
    world.then = nacks.clear
    nacks.schedule((7, 1))
    nacks.schedule((7, 0))
    world.pass_time(0.5)
    nacks.schedule((7, 2))
    world.pass_time(0.5)
    world.pass_time(5)
    assert world.asked == [[(7, 0), (7, 1)]]
    assert len(nacks) == 0
    assert world.scheduler.pending == 0


def test_what_is_given_back_while_others_are_asked_for_waits_for_its_own_delay(world, nacks):
    """Also after a clear: nothing given back from then on is lost, and one timer runs."""

    def clear_and_give_back() -> None:
        nacks.clear()
        nacks.schedule((7, 9))
        world.then = None

    world.then = clear_and_give_back
    nacks.schedule((7, 0))
    world.pass_time(1)
    assert world.asked == [[(7, 0)]]
    assert world.scheduler.pending == 1
    world.pass_time(1)
    assert world.asked == [[(7, 0)], [(7, 9)]]
    assert world.scheduler.pending == 0


def test_nacks_with_backoff_follow_the_worked_table(world):
    """By the redelivery count of the entry: 1, 2, 4 ... 32, 60, 60 s."""
    nacks = world.nacks(backoff=MultiplierRedeliveryBackoff(1000, 60_000, 2))
    for count, delay_s in enumerate((1, 2, 4, 8, 16, 32, 60, 60)):
        nacks.schedule((7, 0), count)
        world.pass_time(delay_s - 0.001)
        assert world.asked == []
        world.pass_time(0.001)
        assert world.asked == [[(7, 0)]]
        world.asked.clear()


def test_a_shorter_delay_overtakes_a_longer_one(world):
    """The timer runs for the earliest entry, also if that one came last."""
    nacks = world.nacks(backoff=MultiplierRedeliveryBackoff(1000, 60_000, 2))
    nacks.schedule((7, 0), 5)
    nacks.schedule((7, 1), 0)
    assert world.scheduler.pending == 1
    world.pass_time(1)
    assert world.asked == [[(7, 1)]]
    world.pass_time(31)
    assert world.asked == [[(7, 1)], [(7, 0)]]


def test_a_storm_comes_in_pieces_and_in_order(world, nacks):
    """So many at once are asked for by the ten thousand, and none twice; what is taken out stays away."""
    positions = [(ledger, entry) for ledger in (7, 8, 9) for entry in range(9000)]
    for position in reversed(positions):
        nacks.schedule(position)
    for position in positions[::2]:
        nacks.discard(position)
    for position in positions[:100:2]:
        nacks.schedule(position)
    world.pass_time(1)
    assert [len(asked) for asked in world.asked] == [10_000, 3550]
    assert all(asked == sorted(asked) for asked in world.asked)
    assert sorted(p for asked in world.asked for p in asked) == sorted([*positions[1::2], *positions[:100:2]])
    assert len(nacks) == 0


def test_a_storm_is_small(world, nacks):
    """A negative acknowledgement costs some 100 bytes, and what is taken out gives them back."""
    count = 50_000
    tracemalloc.start()
    for entry in range(count):
        nacks.schedule((7, entry))
    assert tracemalloc.get_traced_memory()[0] / count < 130
    for entry in range(count):
        nacks.discard((7, entry))
        nacks.schedule((8, entry % 10))
    assert tracemalloc.get_traced_memory()[0] / count < 30
    tracemalloc.stop()
    world.pass_time(1)
    assert world.asked == [[(8, entry) for entry in range(10)]]


def test_ack_timeout_fires_within_a_tick(world):
    """An entry comes due between the timeout and one tick later."""
    tracker = world.timeouts()
    world.clock.advance(0.3)
    tracker.schedule((7, 0), 0)
    tracker.schedule((7, 0), 0)
    world.pass_time(10 - 0.001)
    assert world.asked == []
    world.pass_time(0.701)
    assert world.asked == [[(7, 0)]]
    assert len(tracker) == 0
    assert world.scheduler.pending == 0


def test_ack_timeout_has_the_tick_it_is_told(world):
    """A shorter tick is more exact."""
    tracker = world.timeouts(tick_ms=100)
    world.clock.advance(0.03)
    tracker.schedule((7, 0), 0)
    world.pass_time(10)
    assert world.asked == []
    world.pass_time(0.07)
    assert world.asked == [[(7, 0)]]


def test_ack_timeout_with_backoff_follows_the_worked_table(world):
    """The timeout of 10 s and the backoff: 11, 12, 14, 18, 26, 42, 70, 70 s."""
    tracker = world.timeouts(backoff=MultiplierRedeliveryBackoff(1000, 60_000, 2))
    for count, delay_s in enumerate((11, 12, 14, 18, 26, 42, 70, 70)):
        tracker.schedule((7, 0), count)
        world.pass_time(delay_s - 0.001)
        assert world.asked == []
        world.pass_time(0.001)
        assert world.asked == [[(7, 0)]]
        world.asked.clear()


def test_ack_timeout_counts_from_each_delivery(world):
    """Entries received later come due later; those acknowledged never do."""
    tracker = world.timeouts()
    tracker.schedule((7, 0), 0)
    tracker.schedule((7, 1), 0)
    world.pass_time(5)
    tracker.schedule((7, 2), 0)
    tracker.discard((7, 1))
    world.pass_time(5)
    assert world.asked == [[(7, 0)]]
    world.pass_time(5)
    assert world.asked == [[(7, 0)], [(7, 2)]]


def test_a_failed_redelivery_is_tried_again(world, nacks):
    """What could not be asked for is not forgotten, the failure goes to the log, and nothing runs hot."""
    for entry in range(10_001):
        nacks.schedule((7, entry))
    world.fail = StorageError(reason="the disk is gone")
    with pytest.raises(StorageError):
        world.pass_time(1)
    world.pass_time(0.9)
    assert world.asked == []
    assert len(nacks) == 10_001
    world.pass_time(0.1)
    assert sorted(p for asked in world.asked for p in asked) == [(7, entry) for entry in range(10_001)]
    assert world.scheduler.pending == 0


def test_behind_a_held_lock_it_comes_when_that_is_free(world, nacks):
    """The timer waits for no lock for long, tries every 50 ms, and loses none."""
    for entry in range(3):
        nacks.schedule((7, entry))
    world.is_held = True
    world.pass_time(1)
    for _ in range(20):
        world.pass_time(0.05)
    assert 10 < world.tries < 30
    assert world.asked == []
    assert len(nacks) == 3
    world.is_held = False
    world.pass_time(0.05)
    assert world.asked == [[(7, 0), (7, 1), (7, 2)]]
    assert world.scheduler.pending == 0


def test_a_redelivery_waits_a_little_for_its_locks(world, nacks):
    """Also on a timer thread, whose work is to wait for none: the thread that consumes holds them often."""
    left = []
    world.then = lambda: left.append(timing.left(30.0))
    nacks.schedule((7, 0))
    timing.try_now(world.pass_time, 1)
    assert 0 < left[0] <= 0.02


def test_a_part_that_got_through_makes_the_pauses_short_again(world, nacks):
    """A storm behind a lock that is held most of the time does not wait for longer and longer."""
    for entry in range(10_001):
        nacks.schedule((7, entry))
    world.is_held = True
    for _ in range(100):
        world.pass_time(0.05)

    def hold_again() -> None:
        world.is_held = True

    world.is_held, world.then = False, hold_again
    while not world.asked:
        world.pass_time(0.05)
    tries = world.tries
    for _ in range(4):
        world.pass_time(0.001)
    assert world.tries > tries, "it waits for a second"
