"""Timers."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections import deque

import pytest

from embeddedpulsar._engine.platform import threads
from embeddedpulsar._engine.platform.timing import _MOST_LATER, SYSTEM_CLOCK, Scheduler, Timer
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler
from tests.children import in_child
from tests.strikes import at_every_instruction

WAIT_S = 10.0


@pytest.fixture
def scheduler():
    """A real scheduler, closed afterwards."""
    made = Scheduler(SYSTEM_CLOCK)
    yield made
    made.close()


def asleep_until(scheduler: Scheduler, due: float) -> None:
    """Return when the thread is about to sleep until ``due``."""
    end = time.monotonic() + WAIT_S
    while abs(scheduler._wakes_at - due) > 60 or scheduler._incoming.qsize():
        assert time.monotonic() < end
        threading.Event().wait(0.001)


def test_no_thread_without_a_timer(scheduler: Scheduler):
    """A client that needs no timer has no timer thread."""
    assert not scheduler._thread.is_started
    ran: list[threading.Thread] = []
    done = threading.Event()
    scheduler.call_later(0, lambda: (ran.append(threading.current_thread()), done.set()))
    assert done.wait(WAIT_S)
    assert ran[0].daemon
    assert ran[0].name == "embeddedpulsar-timers"


def test_timers_run_in_order_of_their_due_times():
    """Whatever the order in which they were made. The clock stands still until all are."""
    order: list[int] = []
    done = threading.Event()
    clock = ManualClock()
    scheduler = Scheduler(clock)
    scheduler.call_later(0.03, lambda: (order.append(3), done.set()))
    scheduler.call_later(0.01, lambda: order.append(1))
    scheduler.call_later(0.02, lambda: order.append(2))
    clock.advance(1)
    assert done.wait(WAIT_S)
    scheduler.close()
    assert order == [1, 2, 3]


def test_an_earlier_timer_wakes_the_sleeper(scheduler: Scheduler):
    """A timer due before the one slept for does not wait for it."""
    soon = threading.Event()
    scheduler.call_later(3600, lambda: None)
    scheduler.call_later(0.01, soon.set)
    assert soon.wait(WAIT_S)
    assert scheduler.pending == 1


def test_a_timer_that_is_due_later_wakes_nobody(scheduler: Scheduler):
    """The thread takes it in when it wakes: thousands of slow timers cost it nothing."""
    asleep_until(scheduler, scheduler.call_later(3600, lambda: None).due)
    slow = [scheduler.call_later(7200, lambda: None) for _ in range(100)]
    assert len(scheduler._later) == 100
    assert scheduler.pending == 101
    soon = threading.Event()
    scheduler.call_later(0.01, soon.set)
    assert soon.wait(WAIT_S)
    asleep_until(scheduler, slow[0].due - 3600)
    assert not scheduler._later
    assert scheduler.pending == 101


def test_slow_timers_that_were_cancelled_do_not_pile_up(scheduler: Scheduler):
    """After so many of them the thread looks, though none is due."""
    asleep_until(scheduler, scheduler.call_later(3600, lambda: None).due)
    for _ in range(5 * _MOST_LATER):
        scheduler.call_later(7200, lambda: None).cancel()
        assert len(scheduler._later) <= _MOST_LATER


def test_a_thread_that_goes_to_sleep_for_longer_meanwhile_is_woken():
    """It looked for new timers, and found none, just before one was put where it would have looked."""
    scheduler = Scheduler(SYSTEM_CLOCK)
    scheduler._thread.is_started = True  # no thread: the test plays it
    scheduler._wakes_at = 0.0

    class Late(deque[Timer]):
        """The thread goes to sleep for ever, then the timer comes."""

        def append(self, timer: Timer) -> None:
            scheduler._wakes_at = math.inf
            super().append(timer)

    scheduler._later = Late()
    scheduler.call_later(1, lambda: None)
    assert scheduler._incoming.qsize() == 1


def test_cancelled_timers_do_not_run(scheduler: Scheduler):
    """And give their function back at once."""
    ran: list[int] = []
    done = threading.Event()
    timer = scheduler.call_later(0.01, lambda: ran.append(1))
    timer.cancel()
    timer.cancel()
    assert not timer.is_pending
    assert timer.function is None
    scheduler.call_later(0.02, done.set)
    assert done.wait(WAIT_S)
    assert ran == []


def test_a_failing_timer_is_logged_and_hurts_nobody(scheduler: Scheduler, caplog: pytest.LogCaptureFixture):
    """The next timer runs all the same."""
    done = threading.Event()

    def fail() -> None:
        raise ValueError("planned")

    with caplog.at_level(logging.ERROR, "embeddedpulsar"):
        scheduler.call_later(0, fail)
        scheduler.call_later(0.01, done.set)
        assert done.wait(WAIT_S)
    assert "planned" in caplog.text


def test_a_timer_that_raises_what_is_no_exception_ends_nothing(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
):
    """SystemExit and the like, too, are logged, and the thread goes on."""
    done = threading.Event()
    with caplog.at_level(logging.ERROR, "embeddedpulsar"):
        scheduler.call_later(0, lambda: sys.exit("planned"))
        scheduler.call_later(0.01, done.set)
        assert done.wait(WAIT_S)
    assert "planned" in caplog.text


def test_a_thread_that_cannot_be_started_is_tried_again(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
):
    """Too many threads: the call says so and schedules nothing; the next one starts the thread."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    ran: list[int] = []
    done = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threads.system, "start_new_thread", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            scheduler.call_later(0, lambda: ran.append(1))
    scheduler.call_later(0.01, done.set)
    assert done.wait(WAIT_S)
    assert ran == []


def test_a_signal_handler_at_any_instruction(scheduler: Scheduler):
    """A handler that sets and cancels timers, and even starts the thread, waits for nothing its own thread
    holds."""
    for _ in range(3):
        fired: list[int] = []

        def handler(fired: list[int] = fired) -> None:
            scheduler.call_later(3600, lambda: None).cancel()
            scheduler.call_later(0, lambda: fired.append(1))

        strikes = at_every_instruction(lambda: scheduler.call_later(0, lambda: None), handler)
        done = threading.Event()
        scheduler.call_later(0.05, done.set)
        assert done.wait(WAIT_S)
        assert len(fired) == strikes > 20


def test_close_drops_what_is_pending():
    """The thread ends, and no timer can be added."""
    scheduler = Scheduler(SYSTEM_CLOCK)
    ran: list[int] = []
    scheduler.call_later(3600, lambda: ran.append(1))
    scheduler.close()
    scheduler.close()
    assert scheduler._thread.wait_over(0)
    assert scheduler.pending == 0
    with pytest.raises(RuntimeError, match="closed"):
        scheduler.call_later(0, lambda: None)


def test_close_from_a_timer_does_not_deadlock():
    """A timer may close the client it belongs to."""
    scheduler = Scheduler(SYSTEM_CLOCK)
    done = threading.Event()
    scheduler.call_later(0, lambda: (scheduler.close(), done.set()))
    assert done.wait(WAIT_S)


def test_a_timer_may_add_a_timer(scheduler: Scheduler):
    """No lock is held while functions run."""
    done = threading.Event()
    scheduler.call_later(0, lambda: scheduler.call_later(0, done.set))
    assert done.wait(WAIT_S)


def test_the_forked_child_starts_its_own(scheduler: Scheduler):
    """The parent's timers stay the parent's; the child's thread starts with its first timer."""
    scheduler.call_later(3600, lambda: None)

    def child() -> str:
        pending = scheduler.pending
        done = threading.Event()
        scheduler.call_later(0.01, done.set)
        return f"{pending} {done.wait(WAIT_S)}"

    assert in_child(child) == "0 True"
    assert scheduler.pending == 1


def test_many_cancelled_timers_are_swept():
    """A client that arms and disarms timers all day keeps no heap of dead ones."""
    clock = ManualClock()
    scheduler = ManualScheduler(clock)
    for _ in range(1000):
        scheduler.call_later(3600, lambda: None).cancel()
    scheduler.call_later(1, lambda: None)
    assert len(scheduler._timers._heap) < 200
    assert scheduler.pending == 1
