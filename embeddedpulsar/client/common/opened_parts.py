"""What a call of the client has attached so far: closed at once if the call does not return it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout

if TYPE_CHECKING:
    from embeddedpulsar.client.client_core import ClientCore

Close = Callable[[], object]

OPENED: Final[ContextVar[list[Close] | None]] = ContextVar("embeddedpulsar.opened", default=None)
"""The functions that close what the call of this thread attaches. A part is listed before it attaches, so an
interrupt at any later instruction finds it. The finalizers would detach it as well, but not while the program
keeps the traceback, whose frames refer to it: a notebook keeps the last one."""


def close_opened(core: ClientCore, made: Any, opened: list[Close]) -> None:
    """Close what an interrupted call has made: the whole if it is complete, and each part that is not closed.

    What cannot be closed now, because another process stays in a lock, is closed later.
    """
    OPENED.set(None)
    if made is not None:
        with contextlib.suppress(AlreadyClosed, LockTimeout):
            core.in_time(made.close)
    while opened:
        close = opened.pop()
        try:
            core.in_time(close)
        except AlreadyClosed:
            continue
        except LockTimeout:
            core.abandon(close)
