"""Results of sends, passed in groups from the callback thread to a loop. Hot: once per message."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from embeddedpulsar.asyncio.errors import renumber
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
        """See `ErrorTaker.failed`."""
        self._sent.put(self._future, error, True)
