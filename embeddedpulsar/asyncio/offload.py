"""Blocking calls on other threads than that of the loop, with the error texts of ``pulsar.asyncio``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Self, TypeVar

from embeddedpulsar import error_text
from embeddedpulsar.client.common import awaited_call
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, PulsarException, ThreadLimitError
from embeddedpulsar.platform import deadline, threads

R = TypeVar("R")
Undo = Callable[[Any], object]


def renumber(error: BaseException | None) -> None:
    """Put number and name of the result before the text of an error of this package. Idempotent.

    The same object is changed, so that its class, its traceback and references to it stay valid.

    >>> from embeddedpulsar.exceptions import AlreadyClosed
    >>> error = AlreadyClosed()
    >>> renumber(error)
    >>> str(error)
    '15 AlreadyClosed'
    """
    if isinstance(error, PulsarException) and len(error.args) == 1:
        error.args = (error_text.renumbered(error.code, str(error.args[0])),)


class AsyncFacade:
    """The methods that clients, producers, consumers and readers of asyncio loops share.

    ``async with`` ends as the ``with`` of the blocking object does, on a thread.

    Args:
        blocking: the object below, with the interface of `embeddedpulsar`.
    """

    def __init__(self, blocking: Any) -> None:
        self._blocking = blocking

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await in_thread(lambda: self._blocking.__exit__(*raised))

    def __repr__(self) -> str:
        return f"<asyncio {repr(self._blocking)[1:]}"


async def in_thread(call: Callable[[], R], undo: Callable[[R], object] | None = None) -> R:
    """Run a call that may block on a thread of its own, and return its result.

    The loop's thread pool is not used: it has few threads, and a producer may wait for exclusive access for
    days. A cancelled coroutine does not get the result, so ``undo`` is called with it on a thread: an unknown
    consumer must not keep messages. If ``call`` waits for access to a topic, cancellation ends that wait. A
    call with an ``undo`` that has not begun by then does not begin: its thread may be slow to start, and the
    next call of the same coroutine must not conflict with its result.
    """
    future, awaited = _begin(call, undo)
    try:
        return await future
    except asyncio.CancelledError:
        awaited.give_up()
        if undo is not None and future.done() and not future.cancelled() and future.exception() is None:
            _start(undo, future.result())  # the result came just before the cancellation
        raise


async def in_thread_to_its_end(call: Callable[[], R], nothing: R) -> R:
    """`in_thread` for a call that a cancellation ends, with a wait for its end.

    So nothing of it happens after the await. The ``stored`` of the cancellation is the result of the call, or
    the ``stored`` of its exception, or ``nothing``. A second cancellation does not wait.
    """
    future, awaited = _begin(call, None)
    future.add_done_callback(lambda done: done.exception())  # marks the exception as retrieved
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError as cancelled:
        awaited.give_up()
        await asyncio.wait([future])
        error = future.exception()
        stored = future.result() if error is None else getattr(error, "stored", nothing)
        cancelled.stored = stored  # type: ignore[attr-defined]
        raise cancelled from error
    return future.result()


def try_or_start(call: Callable[[], object]) -> None:
    """Run a call of a method that is not awaited: at once if it waits for no lock, otherwise on a thread."""
    try:
        deadline.try_now(call)
    except LockTimeout:
        _start(lambda _: call(), None)


def _begin(call: Callable[[], R], undo: Undo | None) -> tuple[asyncio.Future[R], awaited_call.AwaitedCall]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()
    awaited = awaited_call.AwaitedCall()

    def run() -> None:
        if undo is not None and awaited.is_given_up:
            return
        awaited_call.current.set(awaited)
        outcome: Any = None
        error: BaseException | None = None
        try:
            outcome = call()
        except BaseException as e:  # noqa: BLE001 - passed to the awaiting coroutine
            error = e
        try:
            loop.call_soon_threadsafe(_settle, future, outcome, error, undo)
        except RuntimeError:  # the loop was closed meanwhile
            if error is None and undo is not None:
                undo(outcome)

    try:
        threads.start_daemon(run, "blocking-call")
    except ThreadLimitError as error:
        renumber(error)
        raise
    return future, awaited


def _settle(
    future: asyncio.Future[Any],
    outcome: Any,
    error: BaseException | None,
    undo: Undo | None,
) -> None:
    if future.done():  # cancelled
        if error is None and undo is not None:
            _start(undo, outcome)
    elif error is not None:
        renumber(error)
        future.set_exception(error)
    else:
        future.set_result(outcome)


def _start(undo: Undo, outcome: Any) -> None:
    def run() -> None:
        with contextlib.suppress(AlreadyClosed):  # closed with its client, meanwhile
            undo(outcome)

    threads.start_daemon(run, "undo")
