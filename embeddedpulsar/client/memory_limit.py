"""The limit of a client for the bytes of messages that are not stored yet."""

from __future__ import annotations

from embeddedpulsar._engine.platform import fork, threads
from embeddedpulsar.client.common.waiter_set import WaiterSet
from embeddedpulsar.exceptions import MemoryBufferIsFull


class MemoryLimit:
    """Counts the payload bytes of all messages of a client that are not stored yet.

    A message is accepted while the sum stays within the limit. A message larger than the whole limit is
    accepted if there is no other. Thread-safe. In a forked child the count starts at 0.

    >>> limit = MemoryLimit(10)
    >>> limit.take(6, False), limit.used
    (None, 6)
    >>> limit.give_back(6)
    >>> limit.used
    0
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._reset()
        fork.register(self)

    def _reset(self) -> None:
        self.used = 0
        self._lock = threads.RLock()
        self._waiters = WaiterSet()

    def take(self, size: int, waits: bool) -> None:
        """Count ``size`` bytes. If they exceed the limit, wait for room or raise.

        Raises:
            MemoryBufferIsFull: there is no room, and ``waits`` is False.
        """
        while not self._take(size):
            if not waits:
                raise MemoryBufferIsFull(
                    f"{self.used} bytes of this client's messages are not stored yet, {size} more are too "
                    f"many for memory_limit_bytes={self.limit}; wait for callbacks, or block_if_queue_full"
                )
            self._waiters.wait(lambda: self._has_room(size))

    def _has_room(self, size: int) -> bool:
        return not self.used or self.used + size <= self.limit

    def _take(self, size: int) -> bool:
        try:
            self._lock.acquire()
            has_room = self._has_room(size)
            if has_room:
                self.used += size
            return has_room
        finally:
            self._lock.release()

    def give_back(self, size: int) -> None:
        try:
            self._lock.acquire()
            self.used -= size
        finally:
            self._lock.release()
        self._waiters.wake()

    def after_fork_in_child(self) -> None:
        self._reset()
