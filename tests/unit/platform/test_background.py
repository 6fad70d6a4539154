"""Background work: tried now, and again soon while a lock is held elsewhere."""

from __future__ import annotations

import pytest

from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.platform.timing import BackgroundWork, Backoff
from embeddedpulsar.exceptions import LockTimeout
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler


class Site:
    """Work on a lock that somebody may hold, and the timers it runs on."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scheduler = ManualScheduler(self.clock)
        self.is_held = False
        self.fail: Exception | None = None
        self.done = 0
        self.tries: list[float] = []
        self.work = BackgroundWork(self.scheduler.call_later, self.try_it)

    def try_it(self) -> None:
        self.tries.append(round(self.clock.monotonic() - self.begun, 6))
        assert timing.left(30.0) == 0.0, "it would wait"
        if self.fail is not None:
            raise self.fail
        if self.is_held:
            raise LockTimeout("held")
        self.done += 1

    begun = ManualClock().monotonic()

    def pass_s(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while (due := self.scheduler.next_due()) is not None and due <= end:
            self.clock.advance(max(due - self.clock.monotonic(), 0))
            self.scheduler.run_due()
        self.clock.advance(max(end - self.clock.monotonic(), 0))


def test_a_free_lock_needs_no_timer():
    """The work is done by the caller, who waits for nothing."""
    site = Site()
    assert site.work.run()
    assert (site.done, site.scheduler.pending) == (1, 0)


def test_a_held_lock_is_tried_again_until_it_is_free():
    """After 1, 2, 4 ms and so on, at most 50, and within 50 ms of its release."""
    site = Site()
    site.is_held = True
    assert not site.work.run()
    site.pass_s(1.0)
    assert site.tries[:8] == [0, 0.001, 0.003, 0.007, 0.015, 0.031, 0.063, 0.113]
    assert site.scheduler.pending == 1
    site.is_held = False
    site.pass_s(0.05)
    assert (site.done, site.scheduler.pending) == (1, 0)


def test_one_timer_however_often_it_is_asked_for():
    """A stopped process does not make others busy."""
    site = Site()
    site.is_held = True
    for _ in range(100):
        site.work.run()
    assert site.scheduler.pending == 1


def test_it_begins_with_short_pauses_again():
    """What was held long ago says nothing of today."""
    site = Site()
    site.is_held = True
    site.work.run()
    site.pass_s(0.5)
    site.is_held = False
    site.pass_s(0.05)
    site.is_held, site.tries = True, []
    begun = site.clock.monotonic() - site.begun
    site.work.run()
    site.pass_s(0.0011)
    assert [round(at - begun, 6) for at in site.tries] == [0, 0.001]


def test_other_failures_end_it():
    """They are the caller's, or the log's."""
    site = Site()
    site.fail = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        site.work.run()
    assert site.scheduler.pending == 0


def test_what_is_cancelled_is_done_no_more():
    """Neither by its timer nor when asked."""
    site = Site()
    site.is_held = True
    site.work.run()
    site.work.cancel()
    site.is_held = False
    site.pass_s(1.0)
    assert site.work.run()
    site.work.after(0)
    assert (site.done, site.scheduler.pending) == (0, 0)


def test_a_long_wait_is_told_once():
    """After a second of pauses, and again after the next success."""
    backoff = Backoff()

    def told() -> list[int]:
        found = []
        for count in range(100):
            backoff.next()
            if backoff.is_long():
                found.append(count)
        return found

    first = told()
    assert len(first) == 1
    backoff.reset()
    assert told() == first


def test_a_busy_lock_is_not_told():
    """While others take the lock and give it back; a second after the last of them it is stuck."""
    backoff = Backoff()
    passed_s = 0.0
    for commits in range(100):
        passed_s += backoff.next()
        assert not backoff.is_long(commits)
    assert passed_s > 10
    pauses = 0.0
    while not backoff.is_long(99):
        pauses += backoff.next()
    assert pauses < 2.1


def test_what_fails_in_a_timer_is_done_again():
    """Its error goes to the log, and a second later it is tried anew."""
    site = Site()
    site.is_held = True
    site.work.run()
    site.is_held, site.fail = False, OSError(5, "planned")
    with pytest.raises(OSError, match="planned"):
        site.pass_s(0.5)
    site.fail = None
    site.pass_s(1.0)
    assert site.done == 1
    assert site.scheduler.pending == 0
