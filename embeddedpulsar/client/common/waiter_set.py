"""Threads that wait until there is room."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from embeddedpulsar.platform import threads

_LONGEST_S = 0.1
"""A back-stop: after so long a waiter checks by itself."""


class WaiterSet:
    """The threads that wait for one condition to become true.

    Role: a thread that may have made the condition true wakes all waiters, and each of them checks it. A
    waiter sleeps on a lock of its own, which is held until it is woken: an interrupted wait leaves nothing
    behind that another thread would hang on.

    Thread-safe. After a fork no thread waits in the child: the owner makes a new set.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: deque[Any] = deque()

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
        """Let the waiters check again; costs one test when there are none. May be called under any lock."""
        if self._waiters:
            for waiter in list(self._waiters):
                try:
                    waiter.release()
                except RuntimeError:
                    continue  # woken already
