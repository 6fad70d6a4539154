"""Timers that run when the test says so."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING

from embeddedpulsar.platform import threads
from embeddedpulsar.platform.scheduler import Beat, Timer, Timers

if TYPE_CHECKING:
    from embeddedpulsar.platform.clock import Clock


class ManualScheduler:
    """A scheduler without a thread: timers fall due on ``clock`` and run in the thread that calls `run_due`.

    Any thread may set and cancel timers.

    >>> from embeddedpulsar.testing import ManualClock
    >>> clock = ManualClock()
    >>> scheduler = ManualScheduler(clock)
    >>> timer = scheduler.call_later(2.0, lambda: print("due"))
    >>> clock.advance(1.9); scheduler.run_due()
    0
    >>> clock.advance(0.1); scheduler.run_due()
    due
    1
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threads.RLock()
        self._timers = Timers()
        self._beats: dict[float, Beat] = {}
        self.is_closed = False

    def beat(self, interval_s: float) -> Beat:
        """As `Scheduler.beat`; what a function raises comes out."""
        return self._beats.setdefault(interval_s, Beat(self.call_later, interval_s, operator.call))

    def call_later(self, delay_s: float, function: Callable[[], object]) -> Timer:
        """As `Scheduler.call_later`."""
        if self.is_closed:
            raise RuntimeError("the scheduler is closed")
        due = round(self._clock.monotonic() + max(0.0, delay_s), 6)  # a time at which the clock can stand
        timer = Timer(self._timers, due, function)
        try:
            self._lock.acquire()
            self._timers.push(timer)
        finally:
            self._lock.release()
        return timer

    def run_due(self) -> int:
        """Run what is due, including what those functions make due at once, and return how many ran.

        Exceptions are not logged but come out: a test wants to see them.
        """
        count = 0
        while due := self._take_due():
            for function in due:
                function()
                count += 1
        return count

    def _take_due(self) -> list[Callable[[], object]]:
        try:
            self._lock.acquire()
            return self._timers.take_due(self._clock.monotonic())
        finally:
            self._lock.release()

    @property
    def pending(self) -> int:
        """Timers neither run nor cancelled."""
        return len(self._timers)

    def next_due(self) -> float | None:
        """When, on the monotonic clock, the next timer falls due."""
        try:
            self._lock.acquire()
            return self._timers.next_due()
        finally:
            self._lock.release()

    def close(self) -> None:
        """Drop what is pending. Idempotent."""
        self.is_closed = True
        self._timers = Timers()
