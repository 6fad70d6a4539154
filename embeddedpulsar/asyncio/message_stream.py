"""The common base of asyncio consumers and readers."""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic

from embeddedpulsar.asyncio.offload import AsyncFacade, in_thread
from embeddedpulsar.client.common.value_type import T
from embeddedpulsar.exceptions import AlreadyClosed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.consumer.consumer import Consumer
    from embeddedpulsar.client.consumer.reader import Reader
    from embeddedpulsar.message import Message


class MessageStream(AsyncFacade, ABC, Generic[T]):
    """A stream of messages until it is closed.

    ``async with`` closes it at the end; ``async for`` continues until it is closed. A stream that the program
    drops without closing it is closed soon, and its unacknowledged messages go to other consumers.
    """

    _blocking: Consumer[T] | Reader[T]

    def __init__(self, source: Consumer[T] | Reader[T], core: ClientContext) -> None:
        super().__init__(source)
        self._client_core = core

    @abstractmethod
    async def _next(self) -> Message[T]:
        """Return the next message, awaited; raise `AlreadyClosed` at the end."""

    def topic(self) -> str:
        """Return the full name of the topic."""
        return self._blocking.topic()

    def is_connected(self) -> bool:
        """Return whether messages can be received: True until it is closed."""
        return self._blocking.is_connected()

    async def close(self) -> None:
        """Stop receiving. A consumer writes its acknowledgements and detaches from the subscription; its
        other messages go to other consumers. Closing a closed stream is no error."""
        with contextlib.suppress(AlreadyClosed):
            await in_thread(self._blocking.close)

    async def __aiter__(self) -> AsyncIterator[Message[T]]:
        while True:
            try:
                message = await self._next()
            except AlreadyClosed:
                return
            yield message

    def __del__(self) -> None:
        # As in pulsar.asyncio, where the consumer ends with the last reference to it.
        source = getattr(self, "_blocking", None)
        if source is not None and not sys.is_finalizing() and source.is_connected():
            self._client_core.close_dropped(source)
