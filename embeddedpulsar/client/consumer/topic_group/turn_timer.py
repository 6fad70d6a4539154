"""One timer for what the consumers of several topics have to write."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

_SLICE: Final = 64
_SHARE: Final = 9
"""Pauses last so many times as long as the work before them."""


class TurnTimer:
    """Calls functions later, as `Scheduler.call_later` does, one timer for all of them.

    Role: a consumer of 1,000 topics has up to 1,000 groups of acknowledgements to write. Instead of a timer
    for each, the first starts one, and when that is due all that wait are called in the order in which they
    came: 64 in a row, then a pause of nine times as long as they took, ``delay_s`` at most. So the writing
    takes a tenth of a processor, however many topics there are, and more is written at once where it falls
    behind.

    Invariant: a function that waits is called, since it is noted before the timer is looked at, and the timer
    says that it is over before it takes what was noted. It may be called before its own delay is over.
    Who may call: any thread.

    Args:
        call_later: of the scheduler.
        monotonic: the time.
        delay_s: the delay that functions have in common; one that is called with another has its own timer.
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
