"""A call that a coroutine runs on another thread and may abandon."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from embeddedpulsar.exceptions import AlreadyClosed


class AwaitedCall:
    """A call on this thread whose result a coroutine awaits; the coroutine may abandon it.

    Role: `current` holds the call in the thread that runs it. Abandoning interrupts nothing: code that waits,
    or stores many messages, checks `is_given_up` between its steps.
    Who may call: any thread.

    Attributes:
        is_given_up: whether the coroutine was cancelled, so that the result is not needed.
    """

    __slots__ = ("is_given_up",)

    def __init__(self) -> None:
        self.is_given_up = False

    def give_up(self) -> None:
        self.is_given_up = True


current: Final[ContextVar[AwaitedCall | None]] = ContextVar("awaited_call", default=None)


def checks(check_open: Callable[[], object]) -> Callable[[], object]:
    """Return a check that calls ``check_open`` and raises if the current call was abandoned.

    >>> call = AwaitedCall()
    >>> before = current.set(call)
    >>> check = checks(lambda: "open")
    >>> current.reset(before)
    >>> check()
    >>> call.give_up()
    >>> check()
    Traceback (most recent call last):
    embeddedpulsar.exceptions.AlreadyClosed: Pulsar error: AlreadyClosed: the caller was cancelled
    """
    call = current.get()
    if call is None:
        return check_open

    def check() -> None:
        check_open()
        if call.is_given_up:
            raise AlreadyClosed("the caller was cancelled")

    return check
