"""Timers: one daemon thread that sleeps until the next one is due.

The thread starts with the first timer and sleeps without a timeout when there is none, so an idle client
costs nothing. Timers that fall due together run together.

Work that must not wait for a lock: tried now, and soon again while the lock is held elsewhere.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty
from typing import TYPE_CHECKING, Any, Final, Protocol

from embeddedpulsar._engine.platform import deadline, descriptors, fork, threads
from embeddedpulsar._engine.platform.natives import SimpleQueue, system
from embeddedpulsar.exceptions import DescriptorLimitError, LockTimeout

if TYPE_CHECKING:
    from embeddedpulsar._engine.platform.clock import Clock


_COMPACT_FROM = 64  # cancelled timers are swept from a heap of this size on, when they are the larger half
_AFTER_FAILURE_S = 0.1
_MOST_LATER = 1000  # timers that wait for the thread to wake: some of them were cancelled long ago


class Beat:
    """Calls functions every ``interval_s`` seconds, one after the other.

    Role: the subscriptions of thousands of topics have to show that this process runs. With a timer for each
    the timer thread would run most of the time. Invariants: at most one timer is current, and there is one
    while there are functions. The first call of a function may come sooner than after an interval; one that
    raises does not keep the others from being called.
    Callers: any thread, and signal handlers: no lock is taken.
    """

    __slots__ = ("_call", "_call_later", "_current", "_functions", "_interval_s", "_timer")

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], object]], Timer],
        interval_s: float,
        call: Callable[[Callable[[], object]], object],
    ) -> None:
        self._call_later: Final = call_later
        self._interval_s: Final = interval_s
        self._call: Final = call
        self._functions: dict[Callable[[], object], None] = {}
        self._current: object = None  # stands for the current timer
        self._timer: Timer | None = None

    def add(self, function: Callable[[], object]) -> None:
        """Call ``function()`` at every beat from now on; once, however often it joined."""
        self._functions[function] = None
        if self._current is None:
            self._start_timer()

    def remove(self, function: Callable[[], object]) -> None:
        # No lock, so every order of two threads has to be right: the timer is given up first, and the
        # functions are looked at again after it. One that was added between finds no timer, or starts
        # the next.
        self._functions.pop(function, None)
        if self._functions or self._current is None:
            return
        self._current, timer = None, self._timer
        if timer is not None:
            timer.cancel()
        if self._functions and self._current is None:  # another thread joined, and saw the timer
            self._start_timer()

    def _start_timer(self) -> None:
        token = self._current = object()
        # Stored before the timer exists: a timer that is due at once finds its token.
        try:
            self._timer = self._call_later(self._interval_s, partial(self._on_timer, token))
        except BaseException:
            self._current = None
            raise

    def _on_timer(self, token: object) -> None:
        if token is not self._current:
            return  # of two threads that armed it at once, one had its timer replaced
        self._current = None  # first: a function that joins from here on arms it, or is in the list
        functions = list(self._functions)
        if functions and self._current is None:
            self._start_timer()
        for function in functions:
            self._call(function)


class Timer:
    """One call to come. Thread-safe."""

    __slots__ = ("_owner", "due", "function")

    def __init__(self, owner: Timers, due: float, function: Callable[[], object]) -> None:
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
        return self.function is not None


def is_idle(timer: Timer | None) -> bool:
    """Whether nothing will run any more: there is no timer, or it ran, runs or was cancelled.

    A function that is due at once may run before the thread that armed the timer has stored it, for as long
    as that thread is stopped. What is stored then has run already, and must not count as one to come.

    >>> is_idle(None), is_idle(Timer(Timers(), 0.0, print))
    (True, False)
    """
    return timer is None or timer.function is None


class SchedulerClosed(RuntimeError):
    """The scheduler is closed, and calls nothing later."""


class SchedulerLike(Protocol):
    """The methods that the layers above need of either scheduler."""

    def call_later(self, delay_s: float, function: Callable[[], object]) -> Timer: ...
    def beat(self, interval_s: float) -> Beat: ...
    def trigger(self, function: Callable[[], object]) -> Callable[[], object]: ...
    def close(self) -> None: ...


class Timers:
    """A heap of timers for one thread. Other threads only cancel, which touches a counter."""

    __slots__ = ("_cancelled", "_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._cancelled = 0

    def __len__(self) -> int:
        return sum(timer.is_pending for _, _, timer in self._heap)

    def push(self, timer: Timer) -> None:
        # Most timers are timeouts that are cancelled. Without this the heap would keep them until
        # they are due.
        if self._cancelled > _COMPACT_FROM and 2 * self._cancelled > len(self._heap):
            self._heap = [item for item in self._heap if item[2].is_pending]
            heapq.heapify(self._heap)
            self._cancelled = 0
        heapq.heappush(self._heap, (timer.due, next(self._order), timer))

    def note_cancelled(self) -> None:
        self._cancelled += 1  # an estimate, only read to decide when to sweep

    def next_due(self) -> float | None:
        # Cancelled timers at the top are dropped here, so that the thread does not wake for them.
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

    Thread-safe, and safe in signal handlers and finalizers: a caller takes no lock. A timer that is due
    before the thread wakes by itself goes into a queue, which is one call into C that also wakes the thread;
    an interrupt comes before it or after it. One that is due later waits in a list, and wakes no thread. The
    heap belongs to the thread alone.

    Functions run one after the other, holding no lock; they should be short, and wait for no lock: with
    ``patience_s`` 0 they run with a `deadline` that is over, and a lock that is held elsewhere raises
    `LockTimeout` in them (`BackgroundWork` tries again). One that raises, whatever it
    raises, is logged (logger ``embeddedpulsar``), and the thread continues. After a fork the child has no
    timers and starts its own thread with its first one.
    """

    def __init__(self, clock: Clock, patience_s: float = 0.0) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._reset()
        fork.register(self)

    def _reset(self) -> None:
        self._incoming: SimpleQueue[Timer | None] = SimpleQueue()
        self._later: deque[Timer] = deque()
        self._wakes_at = math.inf  # when the thread wakes by itself; it looks into `_later` after storing it
        self._timers = Timers()
        self._beats: dict[float, Beat] = {}
        self._thread = threads.LoneThread(self._run, "timers")
        self._closed = False

    def call_later(self, delay_s: float, function: Callable[[], object]) -> Timer:
        """Call ``function()`` once, ``delay_s`` seconds from now (never early; a negative delay means at
        once).

        Raises:
            SchedulerClosed: it is closed.
            RuntimeError: the system refuses the thread. Nothing is scheduled, and the next call tries to
                start it again.
        """
        if self._closed:
            raise SchedulerClosed("the scheduler is closed")
        # The thread is started first: a timer in a queue that no thread reads would never run.
        timer = Timer(self._timers, self._clock.monotonic() + max(0.0, delay_s), function)
        if not self._thread.is_started:
            self._thread.start()
        if timer.due < self._wakes_at or len(self._later) >= _MOST_LATER:
            self._incoming.put(timer)
        else:
            self._later.append(timer)
            if timer.due < self._wakes_at:  # meanwhile it went to sleep for longer
                self._incoming.put(None)
        return timer

    def trigger(self, function: Callable[[], object]) -> Callable[[], object]:
        """Return a call that has ``function()`` called soon, once, for a finalizer: it is one call into C, in
        which no interrupt is lost. It starts no thread: where none runs, the function waits for one."""
        return partial(self._incoming.put, Timer(self._timers, 0.0, function))

    def beat(self, interval_s: float) -> Beat:
        """An object that calls functions every ``interval_s`` seconds with one timer."""
        return self._beats.setdefault(interval_s, Beat(self.call_later, interval_s, call_logged))

    def close(self) -> None:
        """Drop what is pending and end the thread; waits for a function that runs. Idempotent."""
        self._closed = True
        self._incoming.put(None)
        self._thread.wait_over()
        self._timers, self._incoming, self._later = Timers(), SimpleQueue(), deque()

    @property
    def pending(self) -> int:
        """About how many timers are neither run nor cancelled."""
        return 0 if self._closed else len(self._timers) + self._incoming.qsize() + len(self._later)

    def after_fork_in_child(self) -> None:
        closed = self._closed
        self._reset()
        self._closed = closed

    def _run(self) -> None:
        while not self._closed:
            try:
                self._run_due()
            except BaseException:  # noqa: BLE001 - no memory, say; whatever it is, timers must continue
                system.sleep(_AFTER_FAILURE_S)

    def _run_due(self) -> None:
        """Sleep until a timer is due or comes in; take in what came, and run what is due."""
        # `_wakes_at` is stored before `_later` is looked at. A caller appends to `_later` before it
        # compares again, so one of the two sees the other.
        timers, incoming, later = self._timers, self._incoming, self._later
        first = timers.next_due()
        self._wakes_at = math.inf if first is None else first
        sleep_s = None if first is None else min(first - self._clock.monotonic(), threading.TIMEOUT_MAX)
        # Sleeps in the queue: a timer that is due sooner is one `put`, which wakes this thread.
        if (sleep_s is None or sleep_s > 0) and not later:
            with contextlib.suppress(Empty):
                self._take_in(incoming.get(timeout=sleep_s))
        while incoming.qsize():  # only this thread takes from it
            self._take_in(incoming.get())
        while later:
            timers.push(later.popleft())
        for function in timers.take_due(self._clock.monotonic()):
            # Each function has the deadline of its own, so one that waited leaves the next its
            # patience.
            if not self._closed:
                deadline.within(self._patience_s, call_logged, function)

    def _take_in(self, timer: Timer | None) -> None:
        if timer is not None:
            self._timers.push(timer)


def call_logged(function: Callable[[], object]) -> None:
    """Call ``function()``; an exception goes to the log of the package instead of ending the thread."""
    try:
        function()
    except SchedulerClosed:
        return  # it armed itself again while its owner was closed
    except BaseException as error:  # noqa: BLE001 - logged
        try:
            logging = descriptors.opening("cannot import logging", _logging)
        except DescriptorLimitError:  # likely what failed; the thread must continue
            if sys.stderr is not None:
                sys.stderr.write(f"a timer failed: {function!r}: {error!r}\n")
            return
        logging.getLogger("embeddedpulsar").exception("a timer failed: %r", function)


def _logging() -> Any:
    import logging

    return logging


FIRST_PAUSE_S: Final = 1e-3
LONGEST_PAUSE_S: Final = 0.05
PATIENT_PAUSE_S: Final = 1.0
LONG_S: Final = 1.0
AFTER_FAILURE_S: Final = 1.0

CallLater = Callable[[float, Callable[[], object]], "Timer"]


class Backoff:
    """Pauses between tries: 1 ms, doubling up to 50 ms, and from 0.2 s on a quarter of all pauses so far, up
    to 1 s: hundreds of processes that try more often leave the holder of the lock no CPU.

    >>> backoff = Backoff()
    >>> [backoff.next() for _ in range(8)]
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05]
    >>> [round(backoff.next(), 2) for _ in range(16)][-3:]
    [0.77, 0.97, 1.0]
    >>> backoff.reset()
    >>> backoff.next()
    0.001
    """

    __slots__ = ("_is_reported", "_passed_s", "_progress", "_reached_s", "pause_s")

    def __init__(self) -> None:
        self.pause_s = 0.0
        self._passed_s = self._reached_s = 0.0
        self._progress: object = None
        self._is_reported = False

    def reset(self) -> None:
        """Note that the lock was free."""
        self.pause_s = 0.0
        self._passed_s = self._reached_s = 0.0
        self._progress = None
        self._is_reported = False

    def next(self) -> float:
        """How long to pause now that the lock was held."""
        longest = max(LONGEST_PAUSE_S, min(self._passed_s / 4, PATIENT_PAUSE_S))
        self.pause_s = min(2 * self.pause_s, longest) or FIRST_PAUSE_S
        self._passed_s += self.pause_s
        return self.pause_s

    def is_busy(self, progress: object) -> bool:
        """Whether the lock was held, and passed to another holder since the last `is_long` with its
        ``progress``: then it is not stuck, and worth waiting for a little."""
        return self.pause_s > 0 and progress != self._progress

    def is_long(self, progress: object = None) -> bool:
        """Whether to tell the user: once, when the pauses since the last `reset` come to a second.

        Args:
            progress: what the holders of the lock change, if that is known. A lock that passes from one to
                the next is busy, not stuck: the second begins anew with each change.
        """
        if progress != self._progress:
            self._progress, self._reached_s = progress, self._passed_s
        if self._is_reported or self._passed_s - self._reached_s < LONG_S:
            return False
        self._is_reported = True
        return True


class BackgroundWork:
    """One piece of work of a timer, a wake-up or a death.

    Role: calls ``work()``, which waits for no lock meanwhile (`deadline.try_now`). If a lock is held
    elsewhere (`LockTimeout`), ``work`` is called again by a timer (`Backoff`), until it gets through: so a
    lock that a stopped process holds delays this work and no other. Any other exception goes to the caller
    of `run`. One that strikes a timer goes to the log, and the work is done again after a second.

    Invariants: at most one timer is pending. ``work`` may be called twice at once, by the timer and by
    `run`, and can be repeated after it raised. Callers: any thread, holding no lock that ``work`` takes.
    """

    __slots__ = ("_backoff", "_call_later", "_is_over", "_timer", "_work")

    def __init__(self, call_later: CallLater, work: Callable[[], object]) -> None:
        self._call_later: Final = call_later
        self._work: Final = work
        self._backoff: Backoff | None = None  # made when a lock was held for the first time
        self._timer: Timer | None = None
        self._is_over = False

    def run(self) -> bool:
        """Do the work now.

        Returns:
            False if a lock is held elsewhere: then it is done later.
        """
        if self._is_over:
            return True
        try:
            deadline.try_now(self._work)
        except LockTimeout:
            self._backoff = backoff = self._backoff or Backoff()
            self.after(backoff.next())
            return False
        self._backoff = None
        return True

    def after(self, delay_s: float) -> None:
        """Do the work on a timer, unless one is pending."""
        if is_idle(self._timer) and not self._is_over:
            self._timer = self._call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None  # first: what becomes due from here on starts another
        try:
            self.run()
        except Exception:
            self.after(AFTER_FAILURE_S)
            raise  # to the log

    def cancel(self) -> None:
        """Do the work no more. Idempotent."""
        self._is_over = True
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
