"""Threads of a client that wait: for a condition, or for exclusive access to a topic."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final, TypeVar

from embeddedpulsar._engine.platform import threads

R = TypeVar("R")

_LONGEST_S: Final = 0.1
"""Seconds until a waiter checks the condition without a wake-up, in case a wake-up is lost."""
_MOST_LOOKS: Final = 30
"""About 3 s in total: a thread leaves its queue unless another process was stopped with the topic's lock."""


class WaiterSet:
    """The threads that wait for one condition to become true.

    Role: a thread that may have made the condition true wakes all waiters, and each of them checks it. A
    waiter sleeps on its own lock, which is held until the waiter is woken, so an interrupted wait leaves no
    lock behind that could block another thread.

    Thread-safe. After a fork no thread of the child waits; the owner makes a new set.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[Any] = []

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Sleep until ``is_over()``. Interruptible; not to be called under a lock."""
        waiter = threads.Lock()
        waiter.acquire()
        try:
            self._waiters.append(waiter)
            while not is_over():
                waiter.acquire(timeout=_LONGEST_S)
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def wake(self) -> None:
        """Let the waiters check again. Costs one test if there are none. May be called under any lock."""
        if self._waiters:
            for waiter in list(self._waiters):
                try:
                    waiter.release()
                except RuntimeError:
                    continue  # woken already


class WaitingThreads:
    """The threads of a client that are in a call without a time limit.

    Role: `Client.close` lets them leave the queue before the store is closed. Any thread may call the
    methods.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start empty in a forked child: the threads belong to the parent."""
        self._inside: dict[int, bool] = {}
        self._waiters = WaiterSet()

    def run(self, call: Callable[[], R]) -> R:
        thread = threads.current_id()
        try:
            self._inside[thread] = True
            return call()
        finally:
            self._inside.pop(thread, None)
            self._waiters.wake()

    def others(self) -> bool:
        own = threads.current_id()  # a signal handler may close the client during the wait of its own thread
        return any(thread != own for thread in list(self._inside))

    def wait_gone(self) -> None:
        """Wait for a limited time until they have left."""
        looks = itertools.count()
        self._waiters.wait(lambda: not self.others() or next(looks) >= _MOST_LOOKS)
