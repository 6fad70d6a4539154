"""Sends of one loop: their batch at the end of a turn, and their results in groups. Hot: once per message."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from embeddedpulsar.asyncio.offload import renumber
from embeddedpulsar.client.producer.pending_entry import ErrorTaker
from embeddedpulsar.enums import Result
from embeddedpulsar.message_id import MessageId

Outcome = tuple["asyncio.Future[Any]", Any, bool]


class SentMessages:
    """Receives the results of sends of one loop.

    Role: waking a loop costs as much as ten sends, so results that come before a wake-up is handled are
    handled with it. Invariants: a result is appended before the flag is read; the loop clears the flag before
    it takes the results.
    """

    __slots__ = ("_is_called", "_outcomes", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._outcomes: deque[Outcome] = deque()
        self._is_called = False

    def put(self, future: asyncio.Future[Any], value: Any, failed: bool) -> None:
        """Add the result of a message, in the callback thread."""
        self._outcomes.append((future, value, failed))
        if self._is_called:
            return
        self._is_called = True
        try:
            self.loop.call_soon_threadsafe(self._settle)
        except RuntimeError:
            self._outcomes.clear()  # the loop is closed, so no coroutine awaits the results

    def _settle(self) -> None:
        self._is_called = False
        outcomes = self._outcomes
        while outcomes:
            future, value, failed = outcomes.popleft()
            if future.done():
                continue  # cancelled
            if failed:
                renumber(value)
                future.set_exception(value)
            else:
                future.set_result(value)


class SendCallback(ErrorTaker):
    """The callback of one send, which receives the exception itself."""

    __slots__ = ("_future", "_sent")

    def __init__(self, sent: SentMessages, future: asyncio.Future[MessageId]) -> None:
        self._sent = sent
        self._future = future

    def __call__(self, result: Result, message_id: MessageId) -> None:
        self._sent.put(self._future, message_id, False)

    def failed(self, error: BaseException, message_id: MessageId) -> None:
        self._sent.put(self._future, error, True)


class TurnEnd:
    """Stores the batch of the sends of one turn of a loop.

    Role: a coroutine that awaits its send waits for the batch. So the batch is stored as soon as the loop has
    run all tasks that are ready: sends that are awaited together share a batch, and one that is awaited alone
    is stored at once. Called in the loop's thread.
    """

    __slots__ = ("_is_called", "_loop", "_store")

    def __init__(self, loop: asyncio.AbstractEventLoop, store: Callable[[], object]) -> None:
        self._loop: Final = loop
        self._store: Final = store
        self._is_called = False

    def note_send(self) -> None:
        """A coroutine sent a message, and awaits the result."""
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_called = False
        self._store()
