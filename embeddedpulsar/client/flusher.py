"""The thread of a client that stores messages which its producers could not store at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from embeddedpulsar._engine.platform import deadline, fork, threads
from embeddedpulsar._engine.platform.clock import SYSTEM_CLOCK

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
    """The interface of a publisher to the flusher."""

    def retry(self) -> bool: ...


class Flusher:
    """Retries to store the messages of producers whose topic was locked.

    Role: `Producer.send_async` never waits for the lock of a topic. If it cannot store a message at once, it
    registers its publisher here. There is one daemon thread per client, started on first need, and asleep
    when no publisher is registered. The thread never waits for a lock, so a topic whose lock is held by a
    stopped process does not delay the others; it tries each publisher in turn, with pauses of 0.5 to 2 ms.
    The sender tries as well, because otherwise a busy sender and this thread would compete for the
    interpreter while one of them holds the lock.

    Thread-safe. `kick` takes no lock, so it may be called under any lock. After a fork the child starts with
    no publishers, because pending messages belong to the parent, and starts its own thread.
    """

    def __init__(self, log: ClientLog) -> None:
        self._log = log
        self._reset()
        fork.register(self)

    def _reset(self) -> None:
        self._waiting: dict[int, Waiting] = {}
        self._not_before: dict[int, float] = {}  # of publishers that failed for another reason than a lock
        self._wake = threads.Lock()
        self._wake.acquire()  # stays held until `_ring` releases it
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
        self._closed = True
        self._ring()
        self._thread.wait_over(max(_SHORTEST_GOODBYE_S, deadline.left(_LONGEST_GOODBYE_S)))

    def after_fork_in_child(self) -> None:
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
            return  # two threads rang at once, and the flusher is awake

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
        # Set the flag before looking at the queue: a publisher that called `kick` before the flag is seen
        # here, and one that calls it after the flag rings.
        self._sleeps = True
        if not self._waiting and not self._closed:
            self._wake.acquire(timeout=_LONGEST_NAP_S)
        self._sleeps = False

    def _try_all(self) -> bool:
        """Try to store for every publisher. Returns True if any of them has stored all its messages."""
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
