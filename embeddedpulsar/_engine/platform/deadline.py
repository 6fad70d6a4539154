"""How long the present call may wait for locks, and what Ctrl-C in it becomes.

A deadline belongs to a call and goes with its thread, not with its arguments: the public call sets it with
`within`, and every wait for a lock below it, however deep, ends with it (`FileLock.acquire` and `enter` ask
`left`). Timers and event loops run their functions with `try_now`: then no lock is waited for at all, and one
that is held elsewhere raises `LockTimeout` at once. A deadline inside another one can only be shorter:
`anew` is for work that waits nevertheless.

The fast path of a lock does not come here: the deadline is looked up when a lock is held by another.

Ctrl-C in a blocking call: the error Pulsar has for it.

A worker thread blocks in short sleeps and file polls, and the main thread gets KeyboardInterrupt out of them.
The public calls that block translate it, so that ``except pulsar.Interrupted`` works as with
``pulsar-client`` and ``except KeyboardInterrupt`` as everywhere. An error of the operating system that
nothing below has named becomes a `StorageError` in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, copy_context
from functools import wraps
from types import TracebackType
from typing import Final, ParamSpec, TypeVar

from embeddedpulsar._engine.platform.access import named
from embeddedpulsar._engine.platform.natives import system
from embeddedpulsar._engine.platform.threads import RLock
from embeddedpulsar.error_text import with_nearest_argument
from embeddedpulsar.exceptions import Interrupted, LockTimeout, PulsarException

TURN_S: Final = 1e-3
"""How long a call that must not wait still waits for a holder that runs: a section takes microseconds."""
LONGEST_S: Final = 30.0
"""How long a thread lock of this process is waited for without a deadline: as long as a file lock."""

_NEVER: Final = float("inf")
_ends: Final[ContextVar[float]] = ContextVar("embeddedpulsar_deadline", default=_NEVER)

R = TypeVar("R")


def within(seconds: float, function: Callable[..., R], *arguments: object) -> R:
    """Call ``function(*arguments)``; its waits for locks end ``seconds`` from now, all together.

    About 0.15 us. The context is entered and left in C, so no interrupt leaves the deadline behind.

    >>> within(5.0, left, 30.0) <= 5.0
    True
    >>> left(30.0)
    30.0
    """
    # The outer deadline stays where it is sooner, without a new context. A call inside can only
    # shorten the time.
    end = system.monotonic() + seconds
    if _ends.get() <= end:
        return function(*arguments)
    return _run(end, function, arguments)


def within_half(function: Callable[..., R], *arguments: object) -> R:
    """Call ``function(*arguments)`` within half of the time that the present call has left.

    For a call that does the same for many objects: one that is stuck leaves time to the next.

    >>> within(8.0, within_half, left, 30.0) <= 4.0
    True
    """
    return within(left(LONGEST_S) / 2, function, *arguments)


def try_now(function: Callable[..., R], *arguments: object) -> R:
    """Call ``function(*arguments)``, which waits for no lock.

    >>> try_now(left, 30.0)
    0.0
    """
    if _ends.get() <= 0.0:
        return function(*arguments)
    return _run(0.0, function, arguments)


def anew(seconds: float, function: Callable[..., R], *arguments: object) -> R:
    """As `within`, also if the deadline of the present call is sooner: work of a timer that waits a little.

    >>> 0.0 < try_now(anew, 0.5, left, 30.0) <= 0.5
    True
    """
    return _run(system.monotonic() + seconds, function, arguments)


def unbounded(function: Callable[..., R], *arguments: object) -> R:
    """Call code of the application without the deadline of the present call.

    >>> within(5.0, unbounded, left, 30.0)
    30.0
    """
    return function(*arguments) if _ends.get() == _NEVER else _run(_NEVER, function, arguments)


def _run(end: float, function: Callable[..., R], arguments: tuple[object, ...]) -> R:
    # Not `set` and `reset` in this context: an interrupt between a `set` and the `try` that resets it
    # would leave the deadline to all later calls of the thread. The copy ends with the call.
    context = copy_context()
    context.run(_ends.set, end)
    return context.run(function, *arguments)


def left(timeout_s: float) -> float:
    """How long to wait for a lock that would be waited for ``timeout_s`` seconds; 0 to try only."""
    end = _ends.get()
    if end == _NEVER:
        return timeout_s
    return max(0.0, min(timeout_s, end - system.monotonic()))


def enter(lock: RLock, what: str) -> None:
    """Acquire a lock between threads under which others may wait for another process.

    In the place of ``lock.acquire()``, inside the ``try`` whose ``finally`` releases it.

    Raises:
        LockTimeout: another thread stayed inside.
    """
    # The first try reads no deadline and no clock. That is the usual case.
    if lock.acquire(False):
        return
    timeout_s = left(LONGEST_S)
    if not lock.acquire(True, timeout_s):
        raise LockTimeout(
            f"another thread of this process stayed inside {what} for {timeout_s:g} s, perhaps behind "
            "another process that is stopped inside a lock"
        )


P = ParamSpec("P")


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
