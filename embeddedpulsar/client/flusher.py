"""The thread of a client that stores what its producers could not store at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from embeddedpulsar.platform import deadline, fork, threads
from embeddedpulsar.platform.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from embeddedpulsar.client.common.client_log import ClientLog

monotonic = SYSTEM_CLOCK.monotonic

_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.002
_AFTER_FAILURE_S = 1.0
_PAUSE_OF_FAILED_S = 0.1
_LONGEST_NAP_S = 1.0
_SHORTEST_GOODBYE_S = 0.2
_LONGEST_GOODBYE_S = 5.0


class Waiting(Protocol):
    """A publisher."""

    def retry(self) -> bool: ...


class Flusher:
    """Tries, again and again, to store the messages of producers whose topic was locked.

    Role: `Producer.send_async` never waits for the lock of a topic. It stores what it can at once; what it
    cannot, it leaves here. One daemon thread per client, started on first need, asleep otherwise. It waits
    for no lock either, so a topic whose lock is held by a stopped process does not hold up the others; it
    tries each in turn, with pauses of 0.5 to 2 ms. The sender itself tries meanwhile, too: a busy sender and
    this thread would otherwise fight for the interpreter while one of them holds the lock.

    Thread-safe; `kick` takes no lock, so it may be called under any. After a fork the child has a thread of
    its own and nothing to do: what waits is the parent's.
    """

    def __init__(self, log: ClientLog) -> None:
        self._log = log
        self._reset()
        fork.register(self)

    def _reset(self) -> None:
        self._waiting: dict[int, Waiting] = {}
        self._not_before: dict[int, float] = {}  # of those whose last try failed otherwise than by a lock
        self._wake = threads.Lock()
        self._wake.acquire()  # a lock that is held until somebody rings
        self._sleeps = False
        self._thread = threads.LoneThread(self._run, "flusher")
        self._closed = False

    def kick(self, publisher: Waiting) -> None:
        """Have ``publisher.retry()`` called until it returns True."""
        self._waiting[id(publisher)] = publisher
        if self._sleeps:
            self._ring()
        elif not self._thread.is_started and not self._closed:
            self._begin()

    def close(self) -> None:
        """End the thread. What still waits is its publishers' affair."""
        self._closed = True
        self._ring()
        self._thread.wait_over(max(_SHORTEST_GOODBYE_S, deadline.left(_LONGEST_GOODBYE_S)))

    def after_fork_in_child(self) -> None:
        """What waits is the parent's."""
        self._reset()

    def _begin(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:  # too many threads; the next send, or flush, tries again
            self._log.warning("Messages wait for a thread that stores them: %s", error)

    def _ring(self) -> None:
        self._sleeps = False
        try:
            self._wake.release()
        except RuntimeError:
            return  # two rang at once: it is awake

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._closed:
            if not self._waiting:
                self._sleep()
                continue
            self._wake.acquire(timeout=pause)
            longest = _PAUSE_OF_FAILED_S if len(self._not_before) == len(self._waiting) else _LONGEST_PAUSE_S
            pause = _FIRST_PAUSE_S if self._try_all() else min(2 * pause, longest)

    def _sleep(self) -> None:
        # Say first, look second: whoever kicked before we said so is seen here, whoever comes later rings.
        self._sleeps = True
        if not self._waiting and not self._closed:
            self._wake.acquire(timeout=_LONGEST_NAP_S)
        self._sleeps = False

    def _try_all(self) -> bool:
        """Give everyone a try; whether any could store all it had."""
        is_progress = False
        for key in list(self._waiting):
            if monotonic() < self._not_before.get(key, 0.0):
                continue
            publisher = self._waiting.pop(key, None)
            self._not_before.pop(key, None)
            if publisher is None:
                continue
            if self._try(key, publisher):
                is_progress = True
            else:
                self._waiting[key] = publisher
        return is_progress

    def _try(self, key: int, publisher: Waiting) -> bool:
        try:
            return publisher.retry()
        except BaseException:  # noqa: BLE001 - whatever it was, the others have their turn
            self._log.exception("Storing what waits failed, and is tried again: %r", publisher)
            self._not_before[key] = monotonic() + _AFTER_FAILURE_S
            return False
