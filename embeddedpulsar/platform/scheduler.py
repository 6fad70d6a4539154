"""Timers: one daemon thread that sleeps until the next one is due.

The thread starts with the first timer and sleeps without a timeout when there is none, so an idle client
costs nothing. Timers that fall due together run together. `ManualScheduler` is the same for tests: nothing
runs until `ManualScheduler.run_due` says so.
"""

from __future__ import annotations

import heapq
import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

from embeddedpulsar.exceptions import DescriptorLimitError
from embeddedpulsar.platform import descriptors, fork
from embeddedpulsar.platform.clock import Clock

_COMPACT_FROM = 64  # cancelled timers are swept from a heap of this size on, when they are the larger half


class Timer:
    """One call to come. Thread-safe."""

    __slots__ = ("_owner", "due", "function")

    def __init__(self, owner: _Timers, due: float, function: Callable[[], object]) -> None:
        self._owner = owner
        self.due = due
        self.function: Callable[[], object] | None = function

    def cancel(self) -> None:
        """Do not run it, unless it runs already. Idempotent; drops the reference to the function."""
        if self.function is not None:
            self.function = None
            self._owner.note_cancelled()

    @property
    def is_pending(self) -> bool:
        """Neither run nor cancelled yet."""
        return self.function is not None


class SchedulerLike(Protocol):
    """What the code above needs of either scheduler."""

    def call_later(self, delay_s: float, function: Callable[[], object]) -> Timer: ...
    def close(self) -> None: ...


class _Timers:
    """A heap of timers, without thread or lock: the caller has the lock."""

    __slots__ = ("_cancelled", "_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._cancelled = 0

    def __len__(self) -> int:
        return sum(timer.is_pending for _, _, timer in self._heap)

    def add(self, due: float, function: Callable[[], object]) -> Timer:
        timer = Timer(self, due, function)
        if self._cancelled > _COMPACT_FROM and 2 * self._cancelled > len(self._heap):
            self._heap = [item for item in self._heap if item[2].is_pending]
            heapq.heapify(self._heap)
            self._cancelled = 0
        heapq.heappush(self._heap, (due, next(self._order), timer))
        return timer

    def note_cancelled(self) -> None:
        self._cancelled += 1  # an estimate, only read to decide when to sweep

    def next_due(self) -> float | None:
        heap = self._heap
        while heap and not heap[0][2].is_pending:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def take_due(self, now: float) -> list[Callable[[], object]]:
        due = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            timer = heapq.heappop(heap)[2]
            function, timer.function = timer.function, None
            if function is not None:
                due.append(function)
        return due


class Scheduler:
    """Runs functions later, on one thread of its own.

    Thread-safe. Functions run one after the other, holding no lock; they should be short, and one that raises
    is logged (logger ``embeddedpulsar``) and hurts nobody else. After a fork the child has no timers and
    starts its own thread with its first one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reset()
        fork.register(self)

    def _reset(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._timers = _Timers()
        self._thread: threading.Thread | None = None
        self._sleeps_until = 0.0
        self._closed = False

    def call_later(self, delay_s: float, function: Callable[[], object]) -> Timer:
        """Call ``function()`` once, ``delay_s`` seconds from now (never early; a negative delay means at
        once).

        Raises:
            RuntimeError: the scheduler is closed.
        """
        due = self._clock.monotonic() + max(0.0, delay_s)
        with self._changed:
            if self._closed:
                raise RuntimeError("the scheduler is closed")
            timer = self._timers.add(due, function)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="embeddedpulsar-timers", daemon=True)
                self._thread.start()
            elif due < self._sleeps_until:
                self._changed.notify()
        return timer

    def close(self) -> None:
        """Drop what is pending and end the thread; waits for a function that runs. Idempotent."""
        with self._changed:
            self._closed = True
            self._timers = _Timers()
            thread = self._thread
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @property
    def pending(self) -> int:
        """Timers neither run nor cancelled."""
        with self._changed:
            return len(self._timers)

    def after_fork_in_child(self) -> None:
        closed = self._closed
        self._reset()
        self._closed = closed

    def _run(self) -> None:
        while True:
            with self._changed:
                due = self._wait()
            if due is None:
                return
            for function in due:
                call_logged(function)

    def _wait(self) -> list[Callable[[], object]] | None:
        """Sleep until something is due and take it; None once closed. Called with the condition held."""
        while not self._closed:
            now = self._clock.monotonic()
            due = self._timers.take_due(now)
            if due:
                self._sleeps_until = 0.0
                return due
            first = self._timers.next_due()
            self._sleeps_until = float("inf") if first is None else first
            self._changed.wait(None if first is None else min(first - now, threading.TIMEOUT_MAX))
        return None


class ManualScheduler:
    """A scheduler for tests: timers fall due on ``clock`` and run in the thread that calls `run_due`.

    >>> from embeddedpulsar.platform.clock import ManualClock
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
        self._timers = _Timers()
        self._closed = False

    def call_later(self, delay_s: float, function: Callable[[], object]) -> Timer:
        """As `Scheduler.call_later`."""
        if self._closed:
            raise RuntimeError("the scheduler is closed")
        return self._timers.add(self._clock.monotonic() + max(0.0, delay_s), function)

    def run_due(self) -> int:
        """Run what is due, including what those functions make due at once, and return how many ran.

        Exceptions are not logged but come out: a test wants to see them.
        """
        count = 0
        while due := self._timers.take_due(self._clock.monotonic()):
            for function in due:
                function()
                count += 1
        return count

    @property
    def pending(self) -> int:
        """Timers neither run nor cancelled."""
        return len(self._timers)

    def next_due(self) -> float | None:
        """When, on the monotonic clock, the next timer falls due."""
        return self._timers.next_due()

    def close(self) -> None:
        self._closed = True
        self._timers = _Timers()


def call_logged(function: Callable[[], object]) -> None:
    """Call ``function()``; an exception goes to the log of the package instead of ending the thread."""
    try:
        function()
    except Exception as error:  # noqa: BLE001 - logged
        try:
            logging = descriptors.opening("cannot import logging", _logging)
        except DescriptorLimitError:  # likely what failed; the thread must go on all the same
            if sys.stderr is not None:
                sys.stderr.write(f"a timer failed: {function!r}: {error!r}\n")
            return
        logging.getLogger("embeddedpulsar").exception("a timer failed: %r", function)


def _logging() -> Any:
    import logging

    return logging
