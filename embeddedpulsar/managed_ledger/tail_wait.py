"""Sleeping until something is appended to a topic."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.platform.clock import SYSTEM_CLOCK
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.natives import system
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout
from embeddedpulsar.storage.waiter_slots import EACH, OTHERS, OTHERS_POLL_S, Ringing

_TAIL: Final = TopicWord.TAIL
_SPIN_S: Final = 50e-6
_BUSY_S: Final = 5e-3
"""A wait that begins this soon after the last one ended with an append is worth a spin."""
_BACKSTOP_S: Final = 0.1
"""A sender that dies between taking our bit and ringing costs this much."""
_IDLE_AFTER_S: Final = 10.0
_IDLE_BACKSTOP_S: Final = 1.0
_LEAVE_S: Final = 2e-3
"""How long a waiter that leaves waits for the topic lock, in which it withdraws its bit."""
_yield_cpu: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


class TailWait:
    """Waits for the tail word of one topic to move, on behalf of all threads of the process.

    Role: spin shortly where appends come fast, else announce the process in the topic's waiters and sleep in
    its mailbox. Waiters with a key share it with waiters of other processes that do the same work: an append
    rings one of them, and one that was rung and does not look has to `leave`.
    Invariants: the mailbox's generation is read before the tail is looked at, and the bit is set under the
    topic lock with the tail unmoved; so a process that appends later finds the bit and rings.
    Callers: any thread.
    """

    def __init__(
        self,
        words: memoryview,
        lock: FileLock,
        ringing: Ringing,
        mailbox: Mailbox,
        lock_timeout_s: float,
        on_idle: Callable[[], None],
    ) -> None:
        self._words: Final = words
        self._lock: Final = lock
        self._timeout_s: Final = lock_timeout_s
        self._on_idle: Final = on_idle
        self._moved_at = -1.0
        self.rebind(ringing, mailbox)

    def rebind(self, ringing: Ringing, mailbox: Mailbox) -> None:
        self._ring = ringing
        self._waiters = ringing.waiters
        self._mailbox = mailbox
        self._slot = OTHERS
        self._groups: dict[int, int] = {}
        self._sharing: dict[int, set[object]] = {}  # the waiters by key
        self._announced: set[int] = set()

    @property
    def must_poll(self) -> bool:
        """Whether this process waits and has no slot, so that no append rings it."""
        return self._slot == OTHERS

    def arm(self, seen_tail: int, key: int = EACH, waiter: object = None) -> bool:
        """Ask for a ring at the next append; False if there was one since `seen_tail`.

        Args:
            seen_tail: the tail when the caller last looked.
            key: identifies the waiters of which an append rings only one; `EACH` if there are none.
            waiter: stands for the caller until it leaves; with a key only.
        """
        words, lock, waiters = self._words, self._lock, self._waiters
        try:
            if words[_TAIL] != seen_tail:
                return False
            group = EACH
            if key:
                self._sharing.setdefault(key, set()).add(waiter)
                group = self._groups.get(key, EACH)
            uuid = self._mailbox.uuid
            if waiters.is_armed(self._slot, group, key, uuid):
                return True  # still announced: the next append clears the bit and rings
            lock.acquire(self._timeout_s)
            if words[_TAIL] != seen_tail:
                return False
            slot = self._slot = waiters.claim(uuid, self._slot)
            if key:
                group = self._groups[key] = waiters.group_of(key, group)
                self._announced.add(key)
            waiters.arm(slot, group)
            return True
        except ValueError:
            raise AlreadyClosed("the topic is closed") from None
        finally:
            lock.release()

    def leave(self, key: int, waiter: object, seen_tail: int, is_served: bool) -> None:
        """End the wait of the caller: it must not be rung in the place of another waiter.

        Waits 2 ms for the topic lock at most. If it is not free, a process that left may be rung later, and
        the others notice the append by their back-stop.

        Args:
            key, waiter: as for `arm`.
            seen_tail: the tail before the caller last looked.
            is_served: it found something then, so that a ring up to there was of use.
        """
        sharing = self._sharing.get(key)
        if sharing is None:
            return
        sharing.discard(waiter)
        if sharing or key not in self._announced:
            return  # another thread of this process waits for the same, and was rung with this one
        try:
            is_armed = self._waiters.is_armed(self._slot, self._groups[key], key, self._mailbox.uuid)
            self._announced.discard(key)
            if is_armed or not is_served or self._words[_TAIL] != seen_tail:
                self._withdraw(key, is_served, seen_tail)
        except (LockTimeout, ValueError):
            return

    def _withdraw(self, key: int, is_served: bool, seen_tail: int) -> None:
        waiters, lock, group = self._waiters, self._lock, self._groups[key]
        instead = None
        try:
            lock.acquire(_LEAVE_S)
            is_taken = waiters.is_of(group, key) and not waiters.disarm(self._slot, group)
            if is_taken and group and (not is_served or self._words[_TAIL] != seen_tail):
                instead = waiters.take_one(group)
        finally:
            lock.release()
        if instead is not None:
            self._ring(instead)

    def wait(self, seen_tail: int, timeout_s: float | None, key: int = EACH, waiter: object = None) -> bool:
        """Sleep until the tail is not `seen_tail`; False after the timeout."""
        monotonic = SYSTEM_CLOCK.monotonic  # sleeping takes real time, whatever clock stamps entries
        began = monotonic()
        deadline = None if timeout_s is None else began + timeout_s
        if began - self._moved_at < _BUSY_S and self._spin(seen_tail):
            self._moved_at = monotonic()
            return True
        while True:
            generation = self._mailbox.generation
            if not self.arm(seen_tail, key, waiter):
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
        words, until = self._words, system.perf_counter() + _SPIN_S
        while words[_TAIL] == seen_tail:
            _yield_cpu()  # not sleep(0), which takes 90 us
            if system.perf_counter() >= until:
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


class OnlookerWait(TailWait):
    """`TailWait` of a process that may not announce itself, because it writes nothing: it looks at the tail
    every 50 ms."""

    def arm(self, seen_tail: int, key: int = EACH, waiter: object = None) -> bool:
        """Whether the tail is still that; nothing is asked for. See `must_poll`."""
        try:
            return bool(self._words[_TAIL] == seen_tail)
        except ValueError:
            raise AlreadyClosed("the topic is closed") from None

    def leave(self, key: int, waiter: object, seen_tail: int, is_served: bool) -> None:
        """Do nothing."""
