"""A call at the end of a turn of an asyncio loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final


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
