"""Sleeping until something is appended to a topic."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from embeddedpulsar.exceptions import AlreadyClosed
from embeddedpulsar.format.control import TopicWord
from embeddedpulsar.platform import clock as clocks
from embeddedpulsar.platform.clock import SYSTEM_CLOCK
from embeddedpulsar.platform.file_lock import FileLock
from embeddedpulsar.platform.mailbox import Mailbox
from embeddedpulsar.storage.waiter_slots import OTHERS, OTHERS_POLL_S, WaiterSlots

_TAIL: Final = TopicWord.TAIL
_WAITERS: Final = TopicWord.WAITERS
_SPIN_S: Final = 50e-6
_BUSY_S: Final = 5e-3
"""A wait that begins this soon after the last one ended with an append is worth a spin."""
_BACKSTOP_S: Final = 0.1
"""A sender that dies between taking our bit and ringing costs this much."""
_IDLE_AFTER_S: Final = 10.0
_IDLE_BACKSTOP_S: Final = 1.0
_yield_cpu: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


class TailWait:
    """Waits for the tail word of one topic to move, on behalf of all threads of the process.

    Role: spin shortly where appends come fast, else announce the process in the topic's waiter word and sleep
    in its mailbox.
    Invariants: the mailbox's generation is read before the tail is looked at, and the bit is set under the
    topic lock with the tail unmoved; so whoever appends later finds the bit and rings.
    Who may call: any thread.
    """

    def __init__(
        self,
        words: memoryview,
        lock: FileLock,
        waiters: WaiterSlots,
        mailbox: Mailbox,
        lock_timeout_s: float,
        on_idle: Callable[[], None],
    ) -> None:
        self._words: Final = words
        self._lock: Final = lock
        self._waiters = waiters
        self._mailbox = mailbox
        self._timeout_s: Final = lock_timeout_s
        self._on_idle: Final = on_idle
        self._slot = OTHERS
        self._moved_at = -1.0

    def rebind(self, waiters: WaiterSlots, mailbox: Mailbox) -> None:
        """Wait in another mailbox from now on."""
        self._waiters = waiters
        self._mailbox = mailbox
        self._slot = OTHERS

    def arm(self, seen_tail: int) -> bool:
        """Ask for a ring at the next append; False if there was one since `seen_tail`."""
        words, lock = self._words, self._lock
        try:
            if words[_TAIL] != seen_tail:
                return False
            if self._slot != OTHERS and words[_WAITERS] >> self._slot & 1:
                return True  # still announced: whoever appends from now on takes the bit and rings
            lock.acquire(self._timeout_s)
            if words[_TAIL] != seen_tail:
                return False
            slot = self._waiters.claim(self._mailbox.uuid, self._slot)
            self._slot = slot
            self._waiters.arm(slot)
            return True
        except ValueError:
            raise AlreadyClosed("the topic is closed") from None
        finally:
            lock.release()

    def wait(self, seen_tail: int, timeout_s: float | None) -> bool:
        """Sleep until the tail is not `seen_tail`; False after the timeout."""
        monotonic = SYSTEM_CLOCK.monotonic  # sleeping takes real time, whatever clock stamps entries
        began = monotonic()
        deadline = None if timeout_s is None else began + timeout_s
        if began - self._moved_at < _BUSY_S and self._spin(seen_tail):
            self._moved_at = monotonic()
            return True
        while True:
            generation = self._mailbox.generation
            if not self.arm(seen_tail):
                self._moved_at = monotonic()
                return True
            now = monotonic()
            nap = _BACKSTOP_S if now - began < _IDLE_AFTER_S else _IDLE_BACKSTOP_S
            if self._slot == OTHERS:
                nap = OTHERS_POLL_S
            if deadline is not None:
                if now >= deadline:
                    return False
                nap = min(nap, deadline - now)
            if self._mailbox.wait(generation, nap) == generation:
                self._on_idle()

    def _spin(self, seen_tail: int) -> bool:
        words, until = self._words, clocks.perf_counter() + _SPIN_S
        while words[_TAIL] == seen_tail:
            _yield_cpu()  # not sleep(0), which takes 90 us
            if clocks.perf_counter() >= until:
                return False
        return True

    def close(self) -> None:
        """Give the slot back, if there is one and the lock is free."""
        if self._slot == OTHERS:
            return
        try:
            if self._lock.try_acquire():
                self._waiters.forget(self._mailbox.uuid)
        finally:
            self._lock.release()
