"""Encoding the next entries on a second thread while the present one is written."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from embeddedpulsar.platform import threads

if TYPE_CHECKING:
    from collections.abc import Callable
    from queue import SimpleQueue

R = TypeVar("R")

WORTH_A_THREAD: Final = 256 << 10
"""Bytes of an entry from which on the next are encoded meanwhile: passing one to a thread costs 0.05 ms."""
AHEAD: Final = 2
"""Large entries that are encoded while one is stored. With one, either thread often waits for the other."""


class _Job(Generic[R]):
    """One entry to be encoded by whoever comes first; `done` is None if it waits for the one who takes it."""

    __slots__ = ("done", "encode")

    def __init__(self, encode: Callable[[], R], done: SimpleQueue[R | BaseException] | None) -> None:
        self.encode = encode
        self.done = done

    def run(self) -> None:
        assert self.done is not None
        try:
            self.done.put(self.encode())
        except BaseException as error:
            self.done.put(error)  # for whoever takes it
            if not isinstance(error, Exception):
                raise  # Ctrl-C struck whoever encodes: it is not for an entry's turn, which may never come


class EncodeAhead(Generic[R]):
    """Entries, encoded by two threads and taken in order.

    Role: checksums, codecs and writes all let other threads run, so large entries are checksummed while one
    is copied into the file. The second thread lives as long as the call, and nothing of the user runs on it.
    Whoever takes an entry that is not ready need not sleep, but may encode the one behind it: a thread that
    is woken for every entry costs more than the checksum of half of one.
    Who may call: one thread. Jobs must not depend on each other.
    """

    __slots__ = ("_has_queue", "_jobs", "_todo")

    def __init__(self) -> None:
        self._jobs: deque[_Job[R]] = deque()
        self._has_queue = False
        self._todo: SimpleQueue[_Job[R] | None]

    def add(self, encode: Callable[[], R], *, is_large: bool) -> None:
        """Put an entry behind the others.

        Args:
            encode: returns it; called once, on either thread.
            is_large: worth a thread; otherwise it is encoded when it is taken.
        """
        if not is_large or not self._has_thread():
            self._jobs.append(_Job(encode, None))
            return
        from queue import SimpleQueue

        job = _Job(encode, SimpleQueue())
        self._jobs.append(job)
        self._todo.put(job)

    def _has_thread(self) -> bool:
        if not self._has_queue:
            from queue import SimpleQueue

            self._todo = SimpleQueue()
            self._has_queue = (
                True  # before the start: Ctrl-C may strike behind it, and `close` ends the thread
            )
            try:
                threads.start_daemon(self._run, "encode")
            except RuntimeError:
                self._has_queue = False
                return False  # the system refuses, or the interpreter is about to end: it goes without
        return True

    def take(self, *, helps: bool = True) -> R:
        """The first entry; raises what encoding it raised.

        Args:
            helps: encode others meanwhile, if it is not ready.
        """
        job = self._jobs.popleft()
        if job.done is None:
            return job.encode()
        while helps and job.done.empty():
            other = self._unclaimed()
            if other is None:
                break
            other.run()
        done = job.done.get()
        if isinstance(done, BaseException):
            raise done
        return done

    def _unclaimed(self) -> _Job[R] | None:
        from queue import Empty

        try:
            return self._todo.get_nowait()
        except Empty:
            return None

    def close(self) -> None:
        """Let the thread end. It may still be at an entry; it holds nothing but that."""
        self._jobs.clear()
        if self._has_queue:
            while self._unclaimed() is not None:
                pass
            self._todo.put(None)

    def _run(self) -> None:
        while (job := self._todo.get()) is not None:
            job.run()
            job = None
