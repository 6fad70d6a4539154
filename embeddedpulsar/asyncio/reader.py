"""The reader of asyncio loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar.asyncio.message_stream import MessageStream
from embeddedpulsar.asyncio.offload import in_thread, renumber
from embeddedpulsar.client.common.value_type import T
from embeddedpulsar.exceptions import PulsarException

if TYPE_CHECKING:
    from embeddedpulsar.client.consumer.reader import Reader as BlockingReader
    from embeddedpulsar.message import Message
    from embeddedpulsar.message_id import MessageId


class Reader(MessageStream[T]):
    """Reads a topic from a given position. Made by `Client.create_reader` of `embeddedpulsar.asyncio`.

    ``async with`` closes the reader at the end; ``async for`` reads until it is closed.
    """

    _blocking: BlockingReader[T]

    async def read_next(self) -> Message[T]:
        """Return the next message, awaiting it. A cancelled coroutine has taken no message.

        Raises:
            AlreadyClosed: the reader is closed, now or while waiting.

        Example:
            >>> import asyncio
            >>> from embeddedpulsar import MessageId
            >>> from embeddedpulsar.asyncio import Client
            >>> async def main():
            ...     async with Client("memory://") as client:
            ...         await (await client.create_producer("log")).send(b"line 1")
            ...         reader = await client.create_reader("log", MessageId.earliest)
            ...         return (await reader.read_next()).data()
            >>> asyncio.run(main())
            b'line 1'
        """
        try:
            return await self._blocking.read_next_async()
        except PulsarException as error:
            renumber(error)
            raise

    async def _next(self) -> Message[T]:
        return await self.read_next()

    async def has_message_available(self) -> bool:
        """Return whether `read_next` would return a message without waiting."""
        return await in_thread(self._blocking.has_message_available)

    async def seek(self, messageid: MessageId | int) -> None:
        """Continue at a message id, or a publish time in ms since 1970; see `embeddedpulsar.Reader.seek`."""
        await in_thread(lambda: self._blocking.seek(messageid))
