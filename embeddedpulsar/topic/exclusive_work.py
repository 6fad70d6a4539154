"""Work on a topic that one process of the store does at a time, in the background: compaction, offloading."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Final

from embeddedpulsar._engine.platform import lease, package_log, threads
from embeddedpulsar._engine.platform.clock import Clock, ThreadLike
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.exceptions import LockTimeout
from embeddedpulsar.records import NamedTuple

NOT_RUN: Final = "NOT_RUN"
RUNNING: Final = "RUNNING"
SUCCESS: Final = "SUCCESS"
ERROR: Final = "ERROR"
_LOOKERS_S: Final = 1.0
"""How long the work waits for its lock, which processes that look whether it goes on have for moments."""


class LongRunningProcessStatus(NamedTuple):
    """How the compaction or the offloading of a topic stands.

    Attributes:
        status: ``NOT_RUN``, ``RUNNING``, ``SUCCESS`` or ``ERROR``.
        last_error: why it failed last; empty if what was tried since succeeded.
    """

    status: str
    last_error: str = ""

    def json(self) -> dict[str, str]:
        """Return the fields by their names in Pulsar."""
        return {"status": self.status, "lastError": self.last_error}


def status_of(is_running: bool, error: str, has_succeeded: bool) -> LongRunningProcessStatus:
    """The status by what the record of the work says. It is read after it was asked whether the work goes on:
    then an end that comes between is in the record."""
    if is_running:
        return LongRunningProcessStatus(RUNNING, error)
    if error:
        return LongRunningProcessStatus(ERROR, error)
    return LongRunningProcessStatus(SUCCESS if has_succeeded else NOT_RUN)


def joint_status(found: Iterable[LongRunningProcessStatus]) -> LongRunningProcessStatus:
    """The status of a partitioned topic: ``RUNNING`` or ``ERROR`` if that holds for a partition."""
    order = (RUNNING, ERROR, SUCCESS, NOT_RUN)
    return min(found, key=lambda one: order.index(one.status), default=LongRunningProcessStatus(NOT_RUN))


Step = tuple[Callable[[], object], Callable[[], object]]
"""What to do, and what to call when it has ended."""


class ExclusiveWork:
    """Role: does what is asked for, one after the other, in a thread that ends with the last of it. A file
    lock says to all processes that it goes on, and keeps them apart. Callers: any thread.

    Args:
        topic: full name, for the log.
        verb: what is done with the topic, for the log and as the name of the thread.
        lock_path: of the file lock.
        clock: makes the thread.
    """

    def __init__(self, topic: str, verb: str, lock_path: str, clock: Clock) -> None:
        self.progress: tuple[int, int] | None = None
        """What is done in this process, and what there is to do; None if nothing goes on here."""
        self._topic: Final = topic
        self._verb: Final = verb
        self._lock_path: Final = lock_path
        self._clock: Final = clock
        self._lock = threads.RLock()  # guards the four below, and whether there is a `progress`
        self._thread: ThreadLike | None = None
        self._is_wanted = self._is_stopped = False
        self._asked: list[Step] = []

    @property
    def is_to_end(self) -> bool:
        """Whether what goes on is to end where it is: the topic is being closed, and no call asked for it."""
        return self._is_stopped and not self._is_wanted

    def is_running(self) -> bool:
        """Whether any process does it."""
        return self.progress is not None or self._is_locked()

    def is_running_elsewhere(self) -> bool:
        """Whether another process does it. Nothing begins in this one meanwhile: what began between a look at
        `progress` and one at the file would be taken for another process."""
        try:
            self._lock.acquire()
            return self.progress is None and self._is_locked()
        finally:
            self._lock.release()

    def _is_locked(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return lease.is_locked(self._lock_path)
        return False

    def begin(self, work: Callable[[], object], on_end: Callable[[], object], *, is_wanted: bool) -> bool:
        """Work in a thread; or let the one that works by itself do that, too.

        Args:
            work: called under the file lock.
            on_end: called in the thread when that has ended, or another process has the lock.
            is_wanted: whether a call asked for it. `close` waits for the end of it then.

        Returns:
            False if the thread does what was asked for before, or the topic is being closed.
        """
        lock = FileLock(self._lock_path)  # makes the file, which says that there is a status
        try:
            self._lock.acquire()
            is_busy = self.progress is not None
            is_refused = self._is_stopped or (is_busy and (self._is_wanted or not is_wanted))
            if not is_refused:
                self._asked.append((work, on_end))
                self._is_wanted = is_wanted
            if is_refused or is_busy:
                lock.close()
                return not is_refused
            self.progress = (0, 0)
            thread = self._thread = self._clock.thread(lambda: self._run(lock), self._verb)
        finally:
            self._lock.release()
        try:
            thread.start()
        except BaseException:
            lock.close()
            self._give_up(1)
            raise
        return True

    def _run(self, lock: FileLock) -> None:
        try:
            while (asked := self._next()) is not None:
                work, on_end = asked
                try:
                    self._do(work, lock)
                finally:
                    lock.release()
                    on_end()
        except BaseException:
            self._give_up()
            raise
        finally:
            lock.close()

    def _do(self, work: Callable[[], object], lock: FileLock) -> None:
        try:
            lock.acquire(_LOOKERS_S)
        except LockTimeout:
            package_log.info("%s: another process does this already: %s", self._topic, self._verb)
            return
        work()

    def _next(self) -> Step | None:
        """What to do next; None if nothing is left, and the thread is as good as ended."""
        try:
            self._lock.acquire()
            if self._asked:
                return self._asked.pop(0)
            self.progress, self._is_wanted = None, False
            return None
        finally:
            self._lock.release()

    def _give_up(self, first: int = 0) -> None:
        """End without doing what is left, and call what is to be called then, from that step on."""
        try:
            self._lock.acquire()
            left, self._asked = self._asked[first:], []
            self.progress, self._is_wanted = None, False
        finally:
            self._lock.release()
        for _, on_end in left:
            on_end()

    def close(self) -> None:
        """End what no call asked for, and wait for the rest."""
        try:
            self._lock.acquire()
            self._is_stopped, thread = True, self._thread
        finally:
            self._lock.release()
        if thread is not None and self.progress is not None and not thread.is_current:
            thread.join()

    def abandon(self) -> None:
        """Forget the thread, which does not exist in a forked child."""
        self._lock = threads.renewed(self._lock)
        self._thread = self.progress = None
        self._asked.clear()
        self._is_stopped = True
