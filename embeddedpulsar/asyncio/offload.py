"""Calls that block, away from the loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from embeddedpulsar.client import opening_request
from embeddedpulsar.exceptions import AlreadyClosed
from embeddedpulsar.platform import threads

R = TypeVar("R")


async def in_thread(call: Callable[[], R], undo: Callable[[R], object] | None = None) -> R:
    """Run a call that may block on a thread of its own, and return what it returns.

    Not on the loop's thread pool: that has a handful of threads, and a producer may wait for its turn for
    days. Whoever is cancelled meanwhile does not get the result, so ``undo`` is called with it, on a thread
    too: a consumer nobody knows of must not hold messages. If ``call`` waits for its turn, that ends.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()
    request = opening_request.OpeningRequest()

    def run() -> None:
        opening_request.current.set(request)
        outcome: Any = None
        error: BaseException | None = None
        try:
            outcome = call()
        except BaseException as e:  # noqa: BLE001 - told to whoever awaits
            error = e
        try:
            loop.call_soon_threadsafe(_settle, future, outcome, error, undo)
        except RuntimeError:  # the loop was closed meanwhile
            if error is None and undo is not None:
                undo(outcome)

    threads.start_daemon(run, "blocking-call")
    try:
        return await future
    except asyncio.CancelledError:
        request.give_up()
        if undo is not None and future.done() and not future.cancelled() and future.exception() is None:
            _start(undo, future.result())  # it came in the very moment of the cancellation
        raise


def _settle(
    future: asyncio.Future[Any],
    outcome: Any,
    error: BaseException | None,
    undo: Callable[[Any], object] | None,
) -> None:
    if future.done():  # cancelled
        if error is None and undo is not None:
            _start(undo, outcome)
    elif error is not None:
        future.set_exception(error)
    else:
        future.set_result(outcome)


def _start(undo: Callable[[Any], object], outcome: Any) -> None:
    def run() -> None:
        with contextlib.suppress(AlreadyClosed):  # with its client, meanwhile
            undo(outcome)

    threads.start_daemon(run, "undo")
