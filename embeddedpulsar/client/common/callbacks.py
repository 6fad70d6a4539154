"""The thread on which a client runs the callbacks of its producers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from embeddedpulsar.platform import deadline, fork, threads
from embeddedpulsar.platform.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from embeddedpulsar.client.common.client_log import ClientLog

Job = Callable[[], object]
monotonic = SYSTEM_CLOCK.monotonic


class CallbackThread:
    """Runs jobs one after the other in the order they were handed in, on one daemon thread.

    Role: user callbacks never run under a lock of ours, nor in the thread that sends. The thread starts with
    the first job and sleeps when there is none.

    Waking a thread costs more than most jobs, and each time the two threads fight for the interpreter. So
    when it was woken often in a short time, the thread looks by itself every millisecond as long as it
    finds several jobs each time; a lone caller who waits for each callback is served by wake-ups.

    Thread-safe. `put` is an append and, when the thread sleeps, one wake-up; it takes no lock, so it may be
    called under any. After a fork the child has no jobs (they belong to the parent) and a thread of its own.
    """

    def __init__(self, log: ClientLog) -> None:
        self._log = log
        self._reset()
        fork.register(self)

    def _reset(self) -> None:
        self._jobs: deque[Job] = deque()
        self._wake = threads.Lock()
        self._wake.acquire()  # a lock that is held until somebody rings
        self._sleeps = False
        self._thread = threads.LoneThread(self._run, "callbacks")
        self._closed = False
        self._looks_by_itself = False
        self._poor_looks = 0
        self._woken = 0
        self._counted_from = 0.0
        self._not_again_before = 0.0

    def put(self, job: Job) -> None:
        """Hand in a job; it never raises, whatever the job does later."""
        self._jobs.append(job)
        if self._sleeps:
            self._ring()
        elif not self._thread.is_started:
            self._begin()

    def run_after_all(self, job: Job) -> None:
        """Run a job behind everything handed in before: here and now if that has run."""
        if not self._jobs and (self._sleeps or not self._thread.is_started):
            job()
        else:
            self.put(job)

    def wait_done(self, timeout_s: float | None = None) -> bool:
        """Wait until everything handed in before has run; True at once in the callback thread itself.

        Interruptible. Returns False after the timeout.

        Raises:
            RuntimeError: there are jobs, and the system refuses the thread.
        """
        if self.is_current or (not self._jobs and (self._sleeps or not self._thread.is_started)):
            return True
        self._thread.start()
        done = threads.Event()
        self.put(done.set)
        return done.wait(timeout_s)

    @property
    def is_open(self) -> bool:
        """Whether jobs are taken."""
        return not self._closed

    @property
    def is_current(self) -> bool:
        """Whether the caller is the callback thread."""
        return self._thread.is_current

    def close(self) -> None:
        """Run what was handed in, then end the thread. Does not wait for a callback that never returns."""
        self._closed = True
        if self._thread.is_started or self._jobs:
            self.put(_nothing)
            self._thread.wait_over(max(_SHORTEST_GOODBYE_S, deadline.left(_LONGEST_GOODBYE_S)))

    def after_fork_in_child(self) -> None:
        """Forget the parent's jobs."""
        self._reset()

    def _begin(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:  # too many threads; the job waits for whoever comes next
            self._log.warning("%d callbacks wait for a thread: %s", len(self._jobs), error)

    def _ring(self) -> None:
        self._sleeps = False
        try:
            self._wake.release()
        except RuntimeError:
            return  # two rang at once: it is awake

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
            del job  # what it belongs to may be closed before the next one comes

    def _sleep(self) -> None:
        if self._looks_by_itself:
            self._wake.acquire(timeout=_LOOK_S)
            self._poor_looks = 0 if len(self._jobs) >= _SEVERAL else self._poor_looks + 1
            if self._poor_looks < _TOO_POOR:
                return
            self._looks_by_itself = False
            self._not_again_before = monotonic() + _PATIENCE_S
        # Say first, look second: whoever appended before we said so is seen here, whoever comes later rings.
        self._sleeps = True
        if self._jobs or self._closed:
            self._sleeps = False
            return
        # An interrupt between the two lines of _ring would lose the wake-up; the time limit heals that.
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
_MANY = 16  # wake-ups within so short a time are often
_SHORT_S = 0.005
_PATIENCE_S = 0.2
_LONGEST_NAP_S = 1.0
_SHORTEST_GOODBYE_S = 0.2
_LONGEST_GOODBYE_S = 5.0


def _nothing() -> None:
    return None
