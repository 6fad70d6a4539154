"""Threads that wait for a condition."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from embeddedpulsar.platform import threads

_LONGEST_S = 0.1
"""Seconds until a waiter checks the condition without a wake-up, in case a wake-up is lost."""


class WaiterSet:
    """The threads that wait for one condition to become true.

    Role: a thread that may have made the condition true wakes all waiters, and each of them checks it. A
    waiter sleeps on its own lock, which is held until the waiter is woken, so an interrupted wait leaves no
    lock behind that could block another thread.

    Thread-safe. After a fork no thread of the child waits; the owner makes a new set.
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
        """Let the waiters check again. Costs one test if there are none. May be called under any lock."""
        if self._waiters:
            for waiter in list(self._waiters):
                try:
                    waiter.release()
                except RuntimeError:
                    continue  # woken already
