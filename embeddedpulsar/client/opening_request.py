"""Whether anybody still wants what a thread is opening."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from embeddedpulsar.exceptions import AlreadyClosed


class OpeningRequest:
    """What somebody else asked this thread to open, and may give up: a coroutine, say.

    Role: `current` names it in the thread that opens. Nothing is interrupted: who waits looks now and then.
    Who may call: any thread.

    Attributes:
        is_given_up: nobody wants it any more.
    """

    __slots__ = ("is_given_up",)

    def __init__(self) -> None:
        self.is_given_up = False

    def give_up(self) -> None:
        """Let the wait for it end."""
        self.is_given_up = True


current: Final[ContextVar[OpeningRequest | None]] = ContextVar("opening_request", default=None)


def checks(check_open: Callable[[], object]) -> Callable[[], object]:
    """What is to be called during a wait: ``check_open``, and whether the request was given up.

    >>> request = OpeningRequest()
    >>> before = current.set(request)
    >>> check = checks(lambda: "open")
    >>> current.reset(before)
    >>> check()
    >>> request.give_up()
    >>> check()
    Traceback (most recent call last):
    embeddedpulsar.exceptions.AlreadyClosed: Pulsar error: AlreadyClosed: nobody waits for it any more
    """
    request = current.get()
    if request is None:
        return check_open

    def check() -> None:
        check_open()
        if request.is_given_up:
            raise AlreadyClosed("nobody waits for it any more")

    return check
