"""The thread on which a client runs the callbacks of its producers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from embeddedpulsar._engine.platform import deadline, fork, threads
from embeddedpulsar._engine.platform.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from embeddedpulsar.client.common.client_log import ClientLog

Job = Callable[[], object]
monotonic = SYSTEM_CLOCK.monotonic


class CallbackThread:
    """Runs jobs one after the other on one daemon thread, in the order in which they were added.

    Role: user callbacks never run under a lock of this package, nor in the thread that sends. The thread
    starts with the first job and sleeps when there is none.

    A wake-up costs more than most jobs, and the two threads then compete for the interpreter. So after many
    wake-ups in a short time, the thread polls every millisecond as long as it finds several jobs each time.
    A caller that waits for each callback is served by wake-ups.

    Thread-safe. `put` is an append and, when the thread sleeps, one wake-up. It takes no lock, so it may be
    called under any lock. After a fork the child starts without jobs, because they belong to the parent, and
    starts its own thread.
    """

    def __init__(self, log: ClientLog) -> None:
        self._log = log
        self._reset()
        fork.register(self)

    def _reset(self) -> None:
        self._jobs: deque[Job] = deque()
        self._wake = threads.Lock()
        self._wake.acquire()  # stays held until `_ring` releases it
        self._sleeps = False
        self._thread = threads.LoneThread(self._run, "callbacks")
        self._closed = False
        self._looks_by_itself = False
        self._poor_looks = 0
        self._woken = 0
        self._counted_from = 0.0
        self._not_again_before = 0.0

    def put(self, job: Job) -> None:
        """Add a job. An exception that the job raises is logged, and is never raised here."""
        self._jobs.append(job)
        if self._sleeps:
            self._ring()
        elif not self._thread.is_started:
            self._begin()

    def run_after_all(self, job: Job) -> None:
        """Run a job after all jobs added before: in this thread, at once, if they have already run."""
        if self.is_idle:
            job()
        else:
            self.put(job)

    def wait_done(self, timeout_s: float | None = None) -> bool:
        """Wait until all jobs added before have run. Returns True at once in the callback thread itself.

        Interruptible. Returns False after the timeout.

        Raises:
            RuntimeError: there are jobs, and the system refuses the thread.
        """
        if self.is_idle or self.is_current:
            return True
        self._thread.start()
        done = threads.Event()
        self.put(done.set)
        return done.wait(timeout_s)

    @property
    def is_idle(self) -> bool:
        """Whether all jobs added before have run."""
        return not self._jobs and (self._sleeps or not self._thread.is_started)

    @property
    def is_open(self) -> bool:
        return not self._closed

    @property
    def is_current(self) -> bool:
        return self._thread.is_current

    def close(self) -> None:
        """Run the remaining jobs, then end the thread. Does not wait for a callback that never returns."""
        self._closed = True
        if self._thread.is_started or self._jobs:
            self.put(_nothing)
            self._thread.wait_over(max(_SHORTEST_GOODBYE_S, deadline.left(_LONGEST_GOODBYE_S)))

    def after_fork_in_child(self) -> None:
        self._reset()

    def _begin(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:  # too many threads; the next `put` tries again
            self._log.warning("%d callbacks wait for a thread: %s", len(self._jobs), error)

    def _ring(self) -> None:
        self._sleeps = False
        try:
            self._wake.release()
        except RuntimeError:
            return  # two threads rang at once, and the callback thread is awake

    def _run(self) -> None:
        jobs = self._jobs
        while True:
            try:
                job = jobs.popleft()
            except IndexError:
                if self._closed:
                    return
                self._sleep()
                continue
            try:
                job()
            except BaseException:  # noqa: BLE001 - whatever it was, the next job has its turn
                self._log.exception("A job of the callback thread failed: %r", job)
            del job  # the job may hold the last reference to a producer, which can be closed meanwhile

    def _sleep(self) -> None:
        if self._looks_by_itself:
            self._wake.acquire(timeout=_LOOK_S)
            self._poor_looks = 0 if len(self._jobs) >= _SEVERAL else self._poor_looks + 1
            if self._poor_looks < _TOO_POOR:
                return
            self._looks_by_itself = False
            self._not_again_before = monotonic() + _PATIENCE_S
        # Set the flag before looking at the queue: a job added before the flag is seen here, and a thread
        # that adds one after it rings.
        self._sleeps = True
        if self._jobs or self._closed:
            self._sleeps = False
            return
        # An interrupt between the two lines of _ring loses the wake-up; the time limit bounds the delay.
        self._wake.acquire(timeout=_LONGEST_NAP_S)
        self._sleeps = False
        self._count_wake_up()

    def _count_wake_up(self) -> None:
        self._woken += 1
        if self._woken == _MANY:
            now = monotonic()
            is_often = now - self._counted_from < _SHORT_S
            self._looks_by_itself = is_often and now >= self._not_again_before
            self._poor_looks = 0
            self._woken = 0
            self._counted_from = now


_LOOK_S = 0.001
_SEVERAL = 4
_TOO_POOR = 3
_MANY = 16  # so many wake-ups within the period start polling
_SHORT_S = 0.005
_PATIENCE_S = 0.2
_LONGEST_NAP_S = 1.0
_SHORTEST_GOODBYE_S = 0.2
_LONGEST_GOODBYE_S = 5.0


def _nothing() -> None:
    return None
