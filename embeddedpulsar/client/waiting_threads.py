"""The threads of a client that wait for exclusive access to a topic."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final, TypeVar

from embeddedpulsar.client.common.waiter_set import WaiterSet
from embeddedpulsar.platform import threads

R = TypeVar("R")

_MOST_LOOKS: Final = 30
"""Some 3 s: only somebody who was stopped in the lock of a topic keeps a thread from leaving its queue."""


class WaitingThreads:
    """Who is in a call that may wait for days.

    Role: who closes the client lets them leave the queue before the store may go from under them.
    Who may call: any thread.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew in a forked child: they are the parent's."""
        self._inside: dict[int, bool] = {}
        self._waiters = WaiterSet()

    def run(self, call: Callable[[], R]) -> R:
        """Run a call that may wait."""
        thread = threads.current_id()
        try:
            self._inside[thread] = True
            return call()
        finally:
            self._inside.pop(thread, None)
            self._waiters.wake()

    def others(self) -> bool:
        """Whether any other thread is in such a call."""
        own = threads.current_id()  # a signal handler may close the client in the midst of the wait
        return any(thread != own for thread in list(self._inside))

    def wait_gone(self) -> None:
        """Wait until they have left, but not for long."""
        looks = itertools.count()
        self._waiters.wait(lambda: not self.others() or next(looks) >= _MOST_LOOKS)
