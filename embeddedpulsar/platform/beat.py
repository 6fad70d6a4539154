"""Functions that are called at a fixed interval, with one timer for all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from embeddedpulsar.platform.scheduler import Timer


class Beat:
    """Calls functions every ``interval_s`` seconds, one after the other.

    Role: the subscriptions of thousands of topics have to show that this process runs. With a timer for each
    the timer thread would run most of the time. Invariants: at most one timer is current, and there is one
    while there are functions. The first call of a function may come sooner than after an interval; one that
    raises does not keep the others from being called.
    Callers: any thread, and signal handlers: no lock is taken.

    Args:
        call_later: of the scheduler.
        interval_s: seconds between two calls.
        call: calls one function, and lets no exception out.
    """

    __slots__ = ("_call", "_call_later", "_functions", "_interval_s", "_timer", "_turn")

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], object]], Timer],
        interval_s: float,
        call: Callable[[Callable[[], object]], object],
    ) -> None:
        self._call_later: Final = call_later
        self._interval_s: Final = interval_s
        self._call: Final = call
        self._functions: dict[Callable[[], object], None] = {}
        self._turn: object = None  # stands for the current timer
        self._timer: Timer | None = None

    def join(self, function: Callable[[], object]) -> None:
        """Call ``function()`` at every beat from now on; once, however often it joined."""
        self._functions[function] = None
        if self._turn is None:
            self._arm()

    def leave(self, function: Callable[[], object]) -> None:
        """Call it no more. Idempotent."""
        self._functions.pop(function, None)
        if self._functions or self._turn is None:
            return
        self._turn, timer = None, self._timer
        if timer is not None:
            timer.cancel()
        if self._functions and self._turn is None:  # another thread joined, and saw the timer
            self._arm()

    def _arm(self) -> None:
        turn = self._turn = object()
        try:
            self._timer = self._call_later(self._interval_s, partial(self._on_timer, turn))
        except BaseException:
            self._turn = None
            raise

    def _on_timer(self, turn: object) -> None:
        if turn is not self._turn:
            return  # of two threads that armed it at once, one had its timer replaced
        self._turn = None  # first: a function that joins from here on arms it, or is in the list
        functions = list(self._functions)
        if functions and self._turn is None:
            self._arm()
        for function in functions:
            self._call(function)
