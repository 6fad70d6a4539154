"""Pausing the garbage collector of the interpreter while objects are made that are known to stay."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final, TypeVar

from embeddedpulsar.platform import fork

R = TypeVar("R")


class _Pauses:
    """How many calls have paused the collector; a forked child has none of them."""

    __slots__ = ("__weakref__", "under_way")

    def __init__(self) -> None:
        self.under_way = 0

    def after_fork_in_child(self) -> None:
        """Start the collector again: the threads that would do so are the parent's."""
        if self.under_way:
            self.under_way = 0
            gc.enable()


_PAUSES: Final = _Pauses()
fork.register(_PAUSES)


def uncollected(function: Callable[[], R]) -> R:
    """Call a function that makes millions of objects which stay, without the collector going through them.

    It would do so each time their number has grown by a quarter, and find nothing: for a consumer of 10,000
    topics that is more than half of the time. Reference counts work meanwhile. A collector that the
    application has stopped stays stopped. Of two calls at once, the first to end starts it again.

    >>> uncollected(gc.isenabled), gc.isenabled()
    (False, True)
    """
    if not gc.isenabled():
        return function()
    try:
        _PAUSES.under_way += 1
        gc.disable()
        return function()
    finally:
        _PAUSES.under_way -= 1
        gc.enable()
