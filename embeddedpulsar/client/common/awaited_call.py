"""Whether anybody still awaits what a thread does."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from embeddedpulsar.exceptions import AlreadyClosed


class AwaitedCall:
    """What somebody else, a coroutine say, has this thread do, and may give up.

    Role: `current` names it in the thread. Nothing is interrupted: what waits, or stores much, looks now and
    then.
    Who may call: any thread.

    Attributes:
        is_given_up: nobody awaits it any more.
    """

    __slots__ = ("is_given_up",)

    def __init__(self) -> None:
        self.is_given_up = False

    def give_up(self) -> None:
        """Let it end."""
        self.is_given_up = True


current: Final[ContextVar[AwaitedCall | None]] = ContextVar("awaited_call", default=None)


def checks(check_open: Callable[[], object]) -> Callable[[], object]:
    """What is to be called now and then: ``check_open``, and whether the call was given up.

    >>> call = AwaitedCall()
    >>> before = current.set(call)
    >>> check = checks(lambda: "open")
    >>> current.reset(before)
    >>> check()
    >>> call.give_up()
    >>> check()
    Traceback (most recent call last):
    embeddedpulsar.exceptions.AlreadyClosed: Pulsar error: AlreadyClosed: nobody waits for it any more
    """
    call = current.get()
    if call is None:
        return check_open

    def check() -> None:
        check_open()
        if call.is_given_up:
            raise AlreadyClosed("nobody waits for it any more")

    return check
