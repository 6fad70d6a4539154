"""Ledger ids: unique in the whole store, rising, never used twice, whatever dies in between."""

from __future__ import annotations

from typing import Final

from embeddedpulsar.exceptions import CorruptionError, StorageFullError
from embeddedpulsar.format.control import StoreWord
from embeddedpulsar.platform import failpoints, fork, threads
from embeddedpulsar.platform.file_lock import FileLock
from embeddedpulsar.topic.store_control import StoreControl

SMALLEST_BLOCK: Final = 8
LARGEST_BLOCK: Final = 1024
LAST_ID: Final = (1 << 32) - 1

failpoints.declare("ledger_ids:raised", "ledger_ids:synced")


class LedgerIds:
    """This process's share of the ids.

    Role: a process reserves a block of ids, with one flush, and hands them out from memory. The first block
    is small, because most processes write to few topics; each further one is twice as large, so that
    opening a thousand topics flushes a dozen times.
    Invariants: an id is handed out once in the life of the store: the word in ``store.ctl`` is above it,
    durably, before. Ids a process leaves unused are lost, which is fine: 32 bits last for decades of
    restarts.
    Callers: any thread, with a topic's append lock held; takes the store lock, the innermost of all.
    """

    __slots__ = ("__weakref__", "_block", "_control", "_end", "_lock", "_mutex", "_next")

    def __init__(self, control: StoreControl, lock: FileLock) -> None:
        self._control = control
        self._lock = lock
        self._mutex = threads.RLock()  # guards the three below
        self._next = 0
        self._end = 0
        self._block = SMALLEST_BLOCK
        fork.register(self)

    def allocate(self, above: int) -> int:
        """A new ledger id greater than ``above``, the newest ledger of the topic it is for.

        Raises:
            StorageFullError: all 4 billion ids are used.
            CorruptionError: the word that says which is the next is damaged.
            LockTimeout: the store lock was not free in time.
            OSError: the reservation could not be made durable; no id was used.
        """
        try:
            self._mutex.acquire()
            if not above < self._next < self._end:
                # Another process is ahead on this topic, or the block is used up. What is left of it is
                # dropped: ids must rise within a topic, and keeping several blocks would buy nothing.
                self._reserve(above)
            ledger_id = self._next
            self._next += 1
            return ledger_id
        finally:
            self._mutex.release()

    def _reserve(self, above: int) -> None:
        self._next = self._end = 0
        words = self._control.words
        try:
            self._lock.acquire()
            if not self._control.is_next_id_possible():
                raise CorruptionError(
                    path=self._control.path,
                    offset=8 * StoreWord.NEXT_LEDGER_ID,
                    reason="the next ledger id is damaged",
                    remedy="close the store in every process and remove this file; it is derived again",
                )
            first = max(words[StoreWord.NEXT_LEDGER_ID], above + 1, 1)
            if first + self._block > LAST_ID:
                raise StorageFullError(
                    path=self._control.path,
                    reason="all ledger ids are used",
                    remedy="copy the messages into a new store",
                )
            # 1. Take the block. A crash from here on wastes it.
            words[StoreWord.NEXT_LEDGER_ID] = first + self._block
            if failpoints.ACTIVE:
                failpoints.hit("ledger_ids:raised")
            # 2. Durably, before one of its ids names a file: after a power loss an id must not come twice.
            self._control.flush()
            if failpoints.ACTIVE:
                failpoints.hit("ledger_ids:synced")
        finally:
            self._lock.release()
        # 3. Use it.
        self._next, self._end = first, first + self._block
        self._block = min(2 * self._block, LARGEST_BLOCK)

    def after_fork_in_child(self) -> None:
        """Drop the inherited block: what is left of it is the parent's."""
        self._mutex = threads.RLock()
        self._next = self._end = 0
