"""Ringing the processes that wait for an append."""

from __future__ import annotations

from typing import Final

from embeddedpulsar.exceptions import LockTimeout
from embeddedpulsar.format.control import TopicWord
from embeddedpulsar.platform.file_lock import FileLock
from embeddedpulsar.platform.processes.peers import Peers
from embeddedpulsar.storage.waiter_slots import WaiterSlots

_LOCK_S: Final = 5e-3


class Ringing:
    """Rings a process that was taken from the waiters; if it is gone, the next of its group.

    Role: between the waiters, which a sender takes from under the lock, and the doorbells, which it rings
    without. Callers: any thread, holding no lock.

    Attributes:
        waiters: of the topic.
    """

    __slots__ = ("_lock", "_ring", "waiters")

    def __init__(self, words: memoryview, lock: FileLock, peers: Peers) -> None:
        self.waiters: Final = WaiterSlots(words, TopicWord.WAITERS, peers)
        self._lock: Final = lock
        self._ring: Final = peers.ring

    def __call__(self, uuid: bytes) -> bool:
        """Ring; False if another process was rung instead, or none is left."""
        if self._ring(uuid):
            return True
        gone = [uuid]
        while gone:
            gone = [one for one in self._instead_of(gone) if not self._ring(one)]
        return False

    def _instead_of(self, gone: list[bytes]) -> list[bytes]:
        lock = self._lock
        if lock.held:
            return []  # a signal handler inside a section of its own thread: the back-stop finds it
        try:
            lock.acquire(_LOCK_S)
            for uuid in gone:
                self.waiters.forget(uuid)
            return self.waiters.take()
        except (LockTimeout, ValueError):
            return []  # held for long, or closed; the back-stop finds it
        finally:
            lock.release()
