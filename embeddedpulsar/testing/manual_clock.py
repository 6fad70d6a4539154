"""The clock for tests, and its timers: delays and timeouts of hours are over when the test says so."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from datetime import timedelta

from embeddedpulsar._engine.platform import threads
from embeddedpulsar._engine.platform import timing as clocks
from embeddedpulsar._engine.platform.timing import Beat, Clock, SchedulerClosed, ThreadLike, Timer, Timers
from embeddedpulsar._engine.store.store import REGISTRY


class ManualClock:
    """Time, in microseconds, that passes only when a test calls `advance`.

    Stores that are opened inside ``with ManualClock() as clock:`` use this clock instead of the machine's, in
    this process only. Its timers have no thread: they run inside `advance`, in the order of their times.
    Timeouts of calls that wait, such as ``receive(timeout_millis)``, remain real time.

    `advance` is called by one thread at a time; any thread may read the clock.

    Args:
        wall_ms: the time of day at which the clock starts, in ms since 1970 (UTC); default is the present.
        monotonic: the start of the clock that measures ages.

    Example:
        >>> from datetime import timedelta
        >>> import embeddedpulsar as pulsar
        >>> with ManualClock() as clock, pulsar.Client("memory://") as client:
        ...     consumer = client.subscribe("reminders", "app", pulsar.ConsumerType.Shared)
        ...     producer = client.create_producer("reminders")
        ...     message_id = producer.send(b"water the plants", deliver_after=timedelta(days=1))
        ...     clock.advance(timedelta(days=1))
        ...     consumer.receive(timeout_millis=5000).data()
        b'water the plants'
        >>> clock = ManualClock(wall_ms=1000, monotonic=5.0)
        >>> clock.sleep(2)
        >>> clock.wall_ms(), clock.wall_ns(), clock.monotonic()
        (3000, 3000000000, 7.0)
        >>> clock.set_wall_ms(9000)
        >>> clock.wall_ms(), clock.monotonic()
        (9000, 7.0)
        >>> scheduler = clock.scheduler()
        >>> timer = scheduler.call_later(1.0, lambda: print("due"))
        >>> clock.advance(1)
        due
        >>> clock.thread(lambda: print("runs in start"), "worker").start()
        runs in start
    """

    __slots__ = ("_before", "_is_used", "_monotonic_us", "_schedulers", "_wall_us")

    def __init__(self, wall_ms: int | None = None, monotonic: float = 1_000.0) -> None:
        # Whole microseconds: sums of floats would drift, and two timers of one moment would be due at two.
        self._wall_us = 1000 * (time.time_ns() // 1_000_000 if wall_ms is None else wall_ms)
        self._monotonic_us = round(monotonic * 1e6)
        self._schedulers: list[ManualScheduler] = []
        # A stack, since one clock may be used inside of another.
        self._before: list[Clock] = []
        self._is_used = False

    def __enter__(self) -> ManualClock:
        """Make it the clock of the stores that are opened from now on."""
        self._before.append(clocks.CLOCK)
        clocks.CLOCK = self
        return self

    def __exit__(self, *error: object) -> None:
        """Go back to the clock before. Stores that are still open keep this one."""
        clocks.CLOCK = self._before.pop()

    def wall_ms(self) -> int:
        """The time of day in milliseconds since 1970 (UTC), for example for ``deliver_at``."""
        return self._wall_us // 1000

    def wall_ns(self) -> int:
        """The same in nanoseconds."""
        return 1000 * self._wall_us

    def monotonic(self) -> float:
        """Seconds on the clock that measures ages and timers."""
        return self._monotonic_us / 1e6

    def advance(self, seconds: float | timedelta) -> None:
        """Let time pass, and do what becomes due: each timer runs at its own time, in this thread.

        What is due already runs also with ``advance(0)``. An exception of a timer is raised here.

        Raises:
            ValueError: ``seconds`` is negative.
            RuntimeError: the clock is in use, and no store was opened with it yet.
        """
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        if seconds < 0:
            raise ValueError(f"a monotonic clock cannot go back by {-seconds} s; use set_wall_ms for a step")
        # A test that opens its client too early would wait for a clock that nothing looks at.
        if self._before and not self._is_used:
            raise RuntimeError(
                "no store was opened with this clock: open the client inside the with statement"
            )
        end = self._monotonic_us + round(seconds * 1e6)
        # One moment after the other: a timer may set another one that is due before the end, and sees the
        # clock at its own time.
        while True:
            # Stores that were closed have closed their schedulers.
            self._schedulers = [scheduler for scheduler in self._schedulers if not scheduler.is_closed]
            due = [at for scheduler in self._schedulers if (at := scheduler.next_due()) is not None]
            if not due or (next_us := round(min(due) * 1e6)) > end:
                break
            # All that is due at this moment, of every store, in the order of the schedulers.
            self._move_to(next_us)
            for scheduler in self._schedulers:
                scheduler.run_due()
        # Nothing more is due up to the end.
        self._move_to(end)
        for store in list(REGISTRY.stores.values()):
            if store.clock is self:
                store.mailbox.ring_self()  # threads that sleep until a message is due look again

    def _move_to(self, monotonic_us: int) -> None:
        # Never back, since a monotonic clock does not go back.
        passed = max(0, monotonic_us - self._monotonic_us)
        self._monotonic_us += passed
        self._wall_us += passed

    def sleep(self, seconds: float) -> None:
        """Let time pass; timers wait for the next `advance`."""
        self._move_to(self._monotonic_us + round(seconds * 1e6))

    def set_wall_ms(self, wall_ms: int) -> None:
        """Step the time of day, as an administrator or NTP would; ages and timers do not notice."""
        self._wall_us = 1000 * wall_ms

    def scheduler(self, patience_s: float = 0.0) -> ManualScheduler:
        """A scheduler whose timers run in `advance`; locks are waited for as long as in any call."""
        scheduler = ManualScheduler(self)
        self._schedulers.append(scheduler)
        self._is_used = True
        return scheduler

    def thread(self, target: Callable[[], object], name: str) -> ThreadLike:
        """A thread whose target runs in `advance`, too."""
        return _Inline(target)


class _Inline:
    """A thread that runs its target inside `start`."""

    is_current = False

    def __init__(self, target: Callable[[], object]) -> None:
        self._target = target

    def start(self) -> None:
        """Run the target."""
        self._target()

    def join(self, timeout: float | None = None) -> None:
        """Return: the target is over."""


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
            raise SchedulerClosed("the scheduler is closed")
        # Rounded, or a timer could be due between two microseconds, at a time that the clock never shows.
        due = round(self._clock.monotonic() + max(0.0, delay_s), 6)  # a time at which the clock can stand
        timer = Timer(self._timers, due, function)
        try:
            self._lock.acquire()
            self._timers.push(timer)
        finally:
            self._lock.release()
        return timer

    def trigger(self, function: Callable[[], object]) -> Callable[[], object]:
        """As `Scheduler.trigger`."""

        def make_due() -> None:
            if not self.is_closed:
                self.call_later(0.0, function)

        return make_due

    def run_due(self) -> int:
        """Run what is due, including what those functions make due at once, and return how many ran.

        Exceptions are not logged but come out: a test wants to see them.
        """
        count = 0
        # What a function makes due at once runs in the same call, so a test need not call twice.
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
