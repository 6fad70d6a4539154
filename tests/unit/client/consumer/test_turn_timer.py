"""One timer calls many functions, in slices."""

from __future__ import annotations

import pytest

from embeddedpulsar.client.consumer.topic_group import TurnTimer
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler


class Site:
    """A timer for functions that take a millisecond each."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scheduler = ManualScheduler(self.clock)
        self.armed = 0
        self.called: list[int] = []
        self.refuses = False
        self.timer = TurnTimer(self._call_later, self.clock.monotonic, 0.1)

    def _call_later(self, delay_s: float, function) -> object:
        if self.refuses:
            raise RuntimeError("no thread")
        self.armed += 1
        return self.scheduler.call_later(delay_s, function)

    def call(self, number: int) -> None:
        self.clock.advance(0.001)
        self.called.append(number)

    def ask(self, *numbers: int) -> None:
        for number in numbers:
            self.timer.call_later(0.1, lambda number=number: self.call(number))

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.scheduler.run_due()


def test_many_share_a_timer():
    """Nothing that waits has a timer of its own, and nothing waits without one."""
    site = Site()
    site.ask(*range(50))
    site.pass_time(0.099)
    assert (site.armed, site.called) == (1, [])
    site.pass_time(0.001)
    assert site.called == list(range(50))
    site.pass_time(1.0)
    assert site.armed == 1  # nothing waits: no timer
    site.ask(50)
    site.pass_time(0.1)
    assert site.called[50:] == [50]


def test_a_slice_is_followed_by_a_pause():
    """64 ms of work, then the delay, which is shorter than nine times that."""
    site = Site()
    site.ask(*range(150))
    site.pass_time(0.1)
    assert site.called == list(range(64))
    site.pass_time(0.09)
    assert len(site.called) == 64
    site.pass_time(0.01)
    site.pass_time(0.1)
    assert site.called == list(range(150))


def test_one_that_fails_stops_no_other():
    """The rest is called by the next timer."""
    site = Site()
    site.timer.call_later(0.1, lambda: 1 // 0)
    site.ask(1)
    with pytest.raises(ZeroDivisionError):
        site.pass_time(0.1)
    site.pass_time(0.1)
    assert site.called == [1]


def test_what_one_of_them_asks_for_waits_its_own_delay():
    """It is not called in the same turn."""
    site = Site()
    site.timer.call_later(0.1, lambda: site.ask(7))
    site.pass_time(0.1)
    assert site.called == []
    site.pass_time(0.1)
    assert site.called == [7]


def test_another_delay_has_its_own_timer():
    """A second, say, after a failure."""
    site = Site()
    site.timer.call_later(1.0, lambda: site.call(2))
    site.ask(1)
    site.pass_time(0.1)
    assert site.called == [1]
    site.pass_time(1.0)
    assert site.called == [1, 2]


def test_a_timer_that_is_refused_is_asked_for_again():
    """Without a thread: what waits is called with the next one that asks."""
    site = Site()
    site.refuses = True
    with pytest.raises(RuntimeError):
        site.ask(1)
    site.refuses = False
    site.ask(2)
    site.pass_time(0.1)
    assert site.called == [1, 2]
