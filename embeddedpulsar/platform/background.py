"""Work that must not wait for a lock: tried now, and soon again while the lock is held elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from embeddedpulsar.exceptions import LockTimeout
from embeddedpulsar.platform import deadline
from embeddedpulsar.platform.scheduler import is_idle

if TYPE_CHECKING:
    from embeddedpulsar.platform.scheduler import Timer

FIRST_PAUSE_S: Final = 1e-3
LONGEST_PAUSE_S: Final = 0.05
PATIENT_PAUSE_S: Final = 1.0
LONG_S: Final = 1.0
AFTER_FAILURE_S: Final = 1.0

CallLater = Callable[[float, Callable[[], object]], "Timer"]


class Backoff:
    """Pauses between tries: 1 ms, doubling up to 50 ms, and from 0.2 s on a quarter of all pauses so far, up
    to 1 s: hundreds of processes that try more often leave the holder of the lock no CPU.

    >>> backoff = Backoff()
    >>> [backoff.next() for _ in range(8)]
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05]
    >>> [round(backoff.next(), 2) for _ in range(16)][-3:]
    [0.77, 0.97, 1.0]
    >>> backoff.reset()
    >>> backoff.next()
    0.001
    """

    __slots__ = ("_is_reported", "_passed_s", "_progress", "_reached_s", "pause_s")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Note that the lock was free."""
        self.pause_s = 0.0
        self._passed_s = self._reached_s = 0.0
        self._progress: object = None
        self._is_reported = False

    def next(self) -> float:
        """How long to pause now that the lock was held."""
        longest = max(LONGEST_PAUSE_S, min(self._passed_s / 4, PATIENT_PAUSE_S))
        self.pause_s = min(2 * self.pause_s, longest) or FIRST_PAUSE_S
        self._passed_s += self.pause_s
        return self.pause_s

    def is_busy(self, progress: object) -> bool:
        """Whether the lock was held, and passed to another holder since the last `is_long` with its
        ``progress``: then it is not stuck, and worth waiting for a little."""
        return self.pause_s > 0 and progress != self._progress

    def is_long(self, progress: object = None) -> bool:
        """Whether to tell the user: once, when the pauses since the last `reset` come to a second.

        Args:
            progress: what the holders of the lock change, if that is known. A lock that passes from one to
                the next is busy, not stuck: the second begins anew with each change.
        """
        if progress != self._progress:
            self._progress, self._reached_s = progress, self._passed_s
        if self._is_reported or self._passed_s - self._reached_s < LONG_S:
            return False
        self._is_reported = True
        return True


class BackgroundWork:
    """One piece of work of a timer, a wake-up or a death.

    Role: calls ``work()``, which waits for no lock meanwhile (`deadline.try_now`). If a lock is held
    elsewhere (`LockTimeout`), ``work`` is called again by a timer (`Backoff`), until it gets through: so a
    lock that a stopped process holds delays this work and no other. Any other exception goes to the caller
    of `run`. One that strikes a timer goes to the log, and the work is done again after a second.

    Invariants: at most one timer is pending. ``work`` may be called twice at once, by the timer and by
    `run`, and can be repeated after it raised. Callers: any thread, holding no lock that ``work`` takes.
    """

    __slots__ = ("_backoff", "_call_later", "_is_over", "_timer", "_work")

    def __init__(self, call_later: CallLater, work: Callable[[], object]) -> None:
        self._call_later: Final = call_later
        self._work: Final = work
        self._backoff: Final = Backoff()
        self._timer: Timer | None = None
        self._is_over = False

    def run(self) -> bool:
        """Do the work now.

        Returns:
            False if a lock is held elsewhere: then it is done later.
        """
        if self._is_over:
            return True
        try:
            deadline.try_now(self._work)
        except LockTimeout:
            self.after(self._backoff.next())
            return False
        self._backoff.reset()
        return True

    def after(self, delay_s: float) -> None:
        """Do the work on a timer, unless one is pending."""
        if is_idle(self._timer) and not self._is_over:
            self._timer = self._call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None  # first: what becomes due from here on starts another
        try:
            self.run()
        except Exception:
            self.after(AFTER_FAILURE_S)
            raise  # to the log

    def cancel(self) -> None:
        """Do the work no more. Idempotent."""
        self._is_over = True
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
