"""Trimming one topic: removing what no subscription needs and no policy keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from embeddedpulsar.managed_ledger.log import Log
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.platform import package_log, threads
from embeddedpulsar.platform.clock import Clock
from embeddedpulsar.policies import Retention

SLICE: Final = 64
"""Segments removed at once. Large ones take some milliseconds each, therefore `SLICE_S`."""
SLICE_S: Final = 0.01
"""How long a slice removes ledgers."""
PATIENCE_S: Final = 0.2
"""How long housekeeping waits for the topic lock: a process that closes the topic waits for housekeeping."""


class TopicTrimming:
    """Role: asks every subscription which entries it needs, and gives up the ledgers that none needs.

    Invariants: the subscriptions are looked at without their locks, which is safe because a trim point that
    was chosen before one of them was made or put back is not published (`managed_ledger.trimming`).
    Callers: any thread, holding no lock of the topic or below.
    """

    def __init__(
        self,
        ledger: Log,
        retention: Callable[[], Retention],
        keeps_until_subscribed: Callable[[], bool],
        marks: Callable[[], Sequence[Position]],
        clock: Clock,
    ) -> None:
        self._ledger: Final = ledger
        self._retention: Final = retention
        self._keeps_until_subscribed: Final = keeps_until_subscribed
        self._marks: Final = marks
        self._clock: Final = clock
        self._lock = threads.RLock()  # held during a slice, so that the log is not closed in the middle
        self._is_closed = False

    def may_find_any(self) -> bool:
        """Whether there are closed ledgers that might go, now or later. Cheap: whatever the policy says now,
        any process may change it."""
        return not self._is_closed and self._ledger.trimming.has_closed_ledgers

    def trim(self, lock_timeout_s: float | None = None, done: list[str] | None = None) -> int:
        """Give up what may go and remove the files of a slice of it; return how many ledgers went.

        0 means that there is nothing more to do now.

        Args:
            lock_timeout_s: how long to wait for the topic lock; default that of the topic.
            done: what is to be logged is added to it, by a caller that holds a lock; default: it is logged.

        Raises:
            StorageError: the position of a subscription is unknown. Nothing was given up.
            LockTimeout: another process stayed in the topic lock.
        """
        try:
            self._lock.acquire()
            if self._is_closed:
                return 0
            trimming = self._ledger.trimming
            retention = self._retention()
            if not retention.is_unlimited and trimming.has_closed_ledgers:
                self._give_up(retention, lock_timeout_s)
            removed = trimming.remove(SLICE, SLICE_S)
        finally:
            self._lock.release()
        if removed:
            text = f"{self._ledger.name}: {removed} ledgers that nothing needs were removed"
            if done is None:
                package_log.info("%s", text)
            else:
                done.append(text)
        return removed

    def _give_up(self, retention: Retention, lock_timeout_s: float | None) -> None:
        trimming = self._ledger.trimming
        is_decided = False
        while not is_decided:
            seen = trimming.rewind_count(lock_timeout_s)
            marks = self._marks()
            if not marks and self._keeps_until_subscribed():
                return
            first = trimming.first_needed(marks, retention, self._clock.wall_ms())
            if first > trimming.first_retained:
                first = trimming.snapshot_before(first, lock_timeout_s)
            is_decided = first <= trimming.first_retained or trimming.give_up(first, seen, lock_timeout_s)

    def close(self) -> None:
        """Trim nothing from here on. Waits for the slice that is under way."""
        try:
            self._lock.acquire()
            self._is_closed = True
        finally:
            self._lock.release()

    def abandon(self) -> None:
        """Renew the lock in a forked child: it may be held by a thread that does not exist here."""
        self._lock = threads.renewed(self._lock)
        self._is_closed = True
