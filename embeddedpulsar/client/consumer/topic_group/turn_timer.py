"""One timer for the acknowledgements of all topics of a consumer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

_SLICE: Final = 64
_SHARE: Final = 9
"""Ratio of a pause to the work before it."""


class TurnTimer:
    """Calls functions later, as `Scheduler.call_later` does, with one timer for all of them.

    Role: a consumer of 1,000 topics has up to 1,000 groups of acknowledgements to write. The first one starts
    a timer for all. When that is due, the waiting functions are called in order: 64 in a row, then a pause of
    nine times the time they took, ``delay_s`` at most. So writing takes a tenth of a processor, independent
    of the number of topics, and more is written at once if it falls behind.

    Invariant: a waiting function is called, because it is queued before the timer is checked, and the timer
    clears its flag before it reads the queue. It may be called before its own delay is over. Any thread may
    call the methods.

    Args:
        call_later: of the scheduler.
        monotonic: returns the time.
        delay_s: the common delay of the functions; a function with another delay has its own timer.
    """

    __slots__ = ("_call_later", "_delay_s", "_is_armed", "_monotonic", "_waiting")

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], object]], object],
        monotonic: Callable[[], float],
        delay_s: float,
    ) -> None:
        self._call_later: Final = call_later
        self._monotonic: Final = monotonic
        self._delay_s: Final = delay_s
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_armed = False

    def call_later(self, delay_s: float, function: Callable[[], object]) -> object:
        """Call ``function()`` once, about ``delay_s`` seconds from now."""
        if delay_s != self._delay_s:
            return self._call_later(delay_s, function)
        self._waiting.append(function)
        if not self._is_armed:
            self._arm(delay_s)
        return None

    def _arm(self, delay_s: float) -> None:
        try:
            self._is_armed = True
            self._call_later(delay_s, self._on_timer)
        except BaseException:
            self._is_armed = False
            raise

    def _on_timer(self) -> None:
        self._is_armed = False
        waiting = self._waiting
        begun = self._monotonic()
        try:
            for _ in range(min(_SLICE, len(waiting))):
                waiting.popleft()()
        finally:
            if waiting and not self._is_armed:
                self._arm(min(self._delay_s, _SHARE * (self._monotonic() - begun)))
