"""The consumer of asyncio loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from embeddedpulsar.asyncio.offload import in_thread
from embeddedpulsar.client.value_type import T
from embeddedpulsar.exceptions import AlreadyClosed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    from embeddedpulsar.client.consumer import Consumer as BlockingConsumer
    from embeddedpulsar.message import Message
    from embeddedpulsar.message_id import MessageId
    from embeddedpulsar.schema import Schema


class Consumer(Generic[T]):
    """Receives the messages of a subscription; made by `Client.subscribe` of `embeddedpulsar.asyncio`.

    Any number of coroutines may receive; those of one loop are served in the order in which they came. Used
    with ``async with`` it is closed at the end; ``async for`` receives for ever, until it is closed.
    """

    def __init__(
        self, consumer: BlockingConsumer[T], schema: Schema[T], *, acknowledging_blocks: bool = False
    ) -> None:
        self._consumer = consumer
        self._schema = schema
        self._acknowledging_blocks = acknowledging_blocks

    def topic(self) -> str:
        """Return the full name of the topic."""
        return self._consumer.topic()

    def subscription_name(self) -> str:
        """Return the name of the subscription."""
        return self._consumer.subscription_name()

    def consumer_name(self) -> str:
        """Return the name of the consumer: the one asked for, or ten random hexadecimal digits."""
        return self._consumer.consumer_name()

    def is_connected(self) -> bool:
        """Return whether the consumer may receive: True until it is closed. Not in ``pulsar.asyncio``."""
        return self._consumer.is_connected()

    async def receive(self) -> Message[T]:
        """Return the next message, awaiting it. Put a time limit around it with ``asyncio.wait_for``.

        Whoever is cancelled has taken no message.

        Raises:
            AlreadyClosed: the consumer is closed, now or while waiting.

        Example:
            >>> import asyncio
            >>> from embeddedpulsar.asyncio import Client
            >>> async def main():
            ...     async with Client("memory://") as client:
            ...         consumer = await client.subscribe("orders", "billing")
            ...         waiting = asyncio.create_task(consumer.receive())
            ...         await (await client.create_producer("orders")).send(b"order 1")
            ...         return (await waiting).data()
            >>> asyncio.run(main())
            b'order 1'
        """
        return await self._consumer.receive_async()

    async def acknowledge(self, message: Message[T] | MessageId) -> None:
        """Acknowledge a message. It is written with others within ``ack_group_time_ms``.

        With ``ack_receipt_enabled``, and where acknowledgements are not collected, this returns when it is
        written.

        Raises:
            ValueError: neither a message nor an id.
            AlreadyClosed: the consumer is closed.
        """
        if self._acknowledging_blocks:
            await in_thread(lambda: self._consumer.acknowledge(message))
        else:
            self._consumer.acknowledge(message)

    async def acknowledge_cumulative(self, message: Message[T] | MessageId) -> None:
        """Acknowledge a message and everything before it.

        Raises:
            CumulativeAcknowledgementNotAllowedError: the subscription is Shared or Key_Shared.
            AlreadyClosed: the consumer is closed.
        """
        if self._acknowledging_blocks:
            await in_thread(lambda: self._consumer.acknowledge_cumulative(message))
        else:
            self._consumer.acknowledge_cumulative(message)

    async def negative_acknowledge(self, message: Message[T] | MessageId) -> None:
        """Give a message back; it is delivered again after ``negative_ack_redelivery_delay_ms``."""
        self._consumer.negative_acknowledge(message)

    async def unsubscribe(self) -> None:
        """Delete the subscription and close the consumer.

        Raises:
            BrokerMetadataError: other consumers are attached.
            AlreadyClosed: the consumer is closed.
        """
        await in_thread(self._consumer.unsubscribe)

    async def seek(self, messageid: MessageId | int) -> None:
        """Move the subscription to a message id, or to a publish time in ms since 1970; see
        `embeddedpulsar.Consumer.seek`."""
        await in_thread(lambda: self._consumer.seek(messageid))

    async def close(self) -> None:
        """Write the acknowledgements and leave the subscription. What is not acknowledged goes to others."""
        await in_thread(self._consumer.close)

    async def get_last_message_id(self) -> MessageId:
        """Return the id of the last message of the topic.

        Raises:
            OperationNotSupported: the consumer has several topics.
        """
        return await in_thread(self._consumer.get_last_message_id)

    def redeliver_unacknowledged_messages(self) -> None:
        """Have everything delivered again that was received and is not acknowledged."""
        self._consumer.redeliver_unacknowledged_messages()

    async def __aiter__(self) -> AsyncIterator[Message[T]]:
        while True:
            try:
                message = await self.receive()
            except AlreadyClosed:
                return
            yield message

    async def __aenter__(self) -> Consumer[T]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.is_connected():
            await self.close()

    def __repr__(self) -> str:
        return f"<asyncio {repr(self._consumer)[1:]}"
