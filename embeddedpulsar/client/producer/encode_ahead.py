"""Encoding of the next entries on a second thread while the current one is written."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from embeddedpulsar._engine.platform import threads

if TYPE_CHECKING:
    from collections.abc import Callable
    from queue import SimpleQueue

R = TypeVar("R")

WORTH_A_THREAD: Final = 256 << 10
"""Bytes of an entry from which on the next ones are encoded ahead: passing one to a thread takes 0.05 ms."""
AHEAD: Final = 2
"""Large entries that are encoded while one is stored. With one, each thread often waits for the other."""


class _Job(Generic[R]):
    """One entry to be encoded by the first free thread; `done` is None if `pop` encodes it."""

    __slots__ = ("done", "encode")

    def __init__(self, encode: Callable[[], R], done: SimpleQueue[R | BaseException] | None) -> None:
        self.encode = encode
        self.done = done

    def run(self) -> None:
        assert self.done is not None
        try:
            self.done.put(self.encode())
        except BaseException as error:
            self.done.put(error)  # for `pop`
            if not isinstance(error, Exception):
                raise  # Ctrl-C ends the thread that encodes, because `pop` may never ask for this entry


class EncodeAhead(Generic[R]):
    """Entries, encoded by two threads and taken in order.

    Checksums, codecs and writes release the interpreter, so large entries are checksummed while one is
    copied into the file. The second thread lives as long as the call and runs no code of the application. If
    the next entry is not ready, `pop` may encode the one after it instead of sleeping, because waking a
    thread for every entry costs more than half a checksum.
    Only one thread may call the methods. Jobs must not depend on each other.
    """

    __slots__ = ("_has_queue", "_jobs", "_todo")

    def __init__(self) -> None:
        self._jobs: deque[_Job[R]] = deque()
        self._has_queue = False
        self._todo: SimpleQueue[_Job[R] | None]

    def add(self, encode: Callable[[], R], *, is_large: bool) -> None:
        """Add an entry after the others.

        Args:
            encode: returns the entry; called once, on either thread.
            is_large: whether to use the second thread; otherwise `pop` encodes it.
        """
        if not is_large or not self._has_thread():
            self._jobs.append(_Job(encode, None))
            return
        from embeddedpulsar._engine.platform.natives import SimpleQueue

        job = _Job(encode, SimpleQueue())
        self._jobs.append(job)
        self._todo.put(job)

    def _has_thread(self) -> bool:
        if not self._has_queue:
            from embeddedpulsar._engine.platform.natives import SimpleQueue

            self._todo = SimpleQueue()
            self._has_queue = (
                True  # before the start: after a Ctrl-C right behind it, `close` still ends the thread
            )
            try:
                threads.start_daemon(self._run, "encode")
            except RuntimeError:
                self._has_queue = False
                return False  # no thread can start, or the interpreter is ending: `pop` encodes all entries
        return True

    def pop(self, *, helps: bool = True) -> R:
        """Return the first entry, or raise the exception of its encoding.

        Args:
            helps: whether to encode other entries while it is not ready.
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
        """Ask the thread to end. It may still encode one entry, and refers to nothing else."""
        self._jobs.clear()
        if self._has_queue:
            while self._unclaimed() is not None:
                pass
            self._todo.put(None)

    def _run(self) -> None:
        while (job := self._todo.get()) is not None:
            job.run()
            job = None
