"""Ctrl-C in a blocking call: the error Pulsar has for it.

A worker thread blocks in short sleeps and file polls, and the main thread gets KeyboardInterrupt out of them.
The public calls that block translate it, so that ``except pulsar.Interrupted`` works as with
``pulsar-client`` and ``except KeyboardInterrupt`` as everywhere. An error of the operating system that
nothing below has named becomes a `StorageError` in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Final, ParamSpec, TypeVar

from embeddedpulsar._engine.platform.access import named
from embeddedpulsar.error_text import with_nearest_argument
from embeddedpulsar.exceptions import Interrupted, PulsarException

P = ParamSpec("P")
R = TypeVar("R")


class _Translation:
    """Context manager without state: one object serves every call and thread."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            translate(error)


def translate(error: BaseException) -> None:
    """Raise the error that Pulsar has for ``error``; return if it needs none. For hot code, in the place of
    `translated`."""
    if isinstance(error, KeyboardInterrupt) and not isinstance(error, Interrupted):
        # The place where it struck says nothing to the caller; it stays the context of the error.
        raise Interrupted(str(error)) from None
    # `named` returns the same object where the error has its text already.
    if isinstance(error, OSError) and (told := named(error)) is not error:
        raise told from error
    if isinstance(error, PulsarException) and isinstance(error.__context__, (IndexError, ValueError)):
        error.__suppress_context__ = True  # that a queue was empty, or a map closed, explains nothing


def translating(method: Callable[P, R]) -> Callable[P, R]:
    """The method with `translated` around each call. Signature and documentation stay."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            translate(error)
            told = with_nearest_argument(error, method) if isinstance(error, TypeError) else None
            if told is not None:
                raise told from None
            raise

    call._is_translating = True  # type: ignore[attr-defined]
    return call


def is_translating(method: object) -> bool:
    """Whether `translating` made the method."""
    return hasattr(method, "_is_translating")


translated: Final = _Translation()
"""``with interrupts.translated:`` around a blocking call raises `Interrupted` where Ctrl-C hit.

Nothing is cleaned up by it: what the block holds is given back in its own ``finally``.
"""
