"""Threads that wait until there is room."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from embeddedpulsar.platform import threads

_LONGEST_S = 0.1
"""A back-stop: after so long a waiter looks by itself."""


class Gates:
    """One gate for each thread that waits for something to become true.

    Role: whoever makes room opens all gates; the waiters look for themselves. A gate is a lock that is held
    until somebody opens it: it belongs to one waiter, so an interrupt in a wait can leave nothing behind that
    another thread would hang on.

    Thread-safe. After a fork the child has nobody waiting: its owner makes a new one.
    """

    __slots__ = ("_gates",)

    def __init__(self) -> None:
        self._gates: deque[Any] = deque()

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Sleep until ``is_over()``. Interruptible; not to be called under a lock."""
        gate = threads.Lock()
        gate.acquire()
        try:
            self._gates.append(gate)
            while not is_over():
                gate.acquire(timeout=_LONGEST_S)
        finally:
            if gate in self._gates:
                self._gates.remove(gate)

    def open(self) -> None:
        """Let those who wait look again; costs one test when nobody does. May be called under any lock."""
        if self._gates:
            for gate in list(self._gates):
                try:
                    gate.release()
                except RuntimeError:
                    continue  # open already
