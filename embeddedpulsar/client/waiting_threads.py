"""The threads of a client that wait for exclusive access to a topic."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final, TypeVar

from embeddedpulsar.client.common.waiter_set import WaiterSet
from embeddedpulsar.platform import threads

R = TypeVar("R")

_MOST_LOOKS: Final = 30
"""About 3 s in total: a thread leaves its queue unless another process was stopped with the topic's lock."""


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
        own = threads.current_id()  # a signal handler may close the client during the wait of its own thread
        return any(thread != own for thread in list(self._inside))

    def wait_gone(self) -> None:
        """Wait for a limited time until they have left."""
        looks = itertools.count()
        self._waiters.wait(lambda: not self.others() or next(looks) >= _MOST_LOOKS)
