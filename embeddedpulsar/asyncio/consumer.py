"""Consumers, readers and table views of asyncio loops."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from embeddedpulsar.asyncio.worker_threads import (
    AsyncFacade,
    Transaction,
    begun,
    in_thread,
    late_imports,
    renumber,
    try_or_start,
)
from embeddedpulsar.client.client_context import ProcessBound
from embeddedpulsar.exceptions import AlreadyClosed, PulsarException
from embeddedpulsar.message import T
from embeddedpulsar.records import Generic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from embeddedpulsar.client.client_context import ClientContext
    from embeddedpulsar.client.consumer.consumer import Consumer as BlockingConsumer
    from embeddedpulsar.client.consumer.reader import Reader as BlockingReader
    from embeddedpulsar.message import Message
    from embeddedpulsar.message_id import MessageId


_TURN: Final = 64
"""Messages of a reader that ``async for`` returns before other coroutines have their turn."""


class MessageStream(ProcessBound, AsyncFacade, ABC, Generic[T]):
    """A stream of messages: a consumer or a reader.

    ``async with`` closes it at the end. A stream that the program drops without closing it is closed soon,
    and its unacknowledged messages go to other consumers.
    """

    _blocking: BlockingConsumer[T] | BlockingReader[T]

    def __init__(self, source: BlockingConsumer[T] | BlockingReader[T], core: ClientContext) -> None:
        super().__init__(source)
        self._client_core = core

    @abstractmethod
    async def _next(self) -> Message[T] | None:
        """Return the next message of ``async for``; None, or `AlreadyClosed`, at the end."""

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
            if message is None:
                return
            yield message

    def __del__(self) -> None:
        # As in pulsar.asyncio, where the consumer ends with the last reference to it.
        source = getattr(self, "_blocking", None)
        # `__del__` may see an object whose `__init__` failed, or modules that are gone.
        if source is not None and not sys.is_finalizing() and source.is_connected():
            self._client_core.close_dropped(source)


class Consumer(MessageStream[T]):
    """Receives the messages of a subscription. Made by `Client.subscribe` of `embeddedpulsar.asyncio`.

    Any number of coroutines may receive; those of one loop are served in the order of their calls. ``async
    with`` closes the consumer at the end; ``async for`` receives until it is closed.

    Example:
        >>> import asyncio
        >>> from embeddedpulsar.asyncio import Client
        >>> async def main():
        ...     async with Client("memory://") as client:
        ...         options = {"consumer_name": "till-1", "negative_ack_redelivery_delay_ms": 1}
        ...         consumer = await client.subscribe("orders", "billing", **options)
        ...         print(consumer.topic(), consumer.subscription_name(), consumer.consumer_name())
        ...         producer = await client.create_producer("orders")
        ...         waiting = asyncio.create_task(consumer.receive())
        ...         ids = [await producer.send(b"order %d" % number) for number in range(4)]
        ...         await consumer.acknowledge(await waiting)
        ...         await consumer.acknowledge_cumulative(ids[1])
        ...         print((await consumer.get_last_message_id()).entry_id() == ids[3].entry_id())
        ...         await consumer.seek(ids[2])
        ...         print((await consumer.receive()).data())
        ...         consumer.redeliver_unacknowledged_messages()
        ...         await consumer.negative_acknowledge(await consumer.receive())
        ...         print((await consumer.receive()).data())
        ...         await consumer.unsubscribe()
        ...         print(consumer.is_connected())
        ...         await consumer.close()
        >>> asyncio.run(main())
        persistent://public/default/orders billing till-1
        True
        b'order 3'
        b'order 3'
        False
    """

    _blocking: BlockingConsumer[T]

    def __init__(
        self, consumer: BlockingConsumer[T], core: ClientContext, *, acknowledging_blocks: bool = False
    ) -> None:
        super().__init__(consumer, core)
        self._acknowledging_blocks = acknowledging_blocks

    def subscription_name(self) -> str:
        """Return the name of the subscription."""
        return self._blocking.subscription_name()

    def consumer_name(self) -> str:
        """Return the name of the consumer: the one requested, or ten random hexadecimal digits."""
        return self._blocking.consumer_name()

    async def receive(self) -> Message[T]:
        """Return the next message, awaiting it. For a time limit, use ``asyncio.wait_for``.

        A cancelled coroutine has taken no message.

        Raises:
            AlreadyClosed: the consumer is closed, now or while waiting.
        """
        try:
            # In the loop: `receive_async` waits on a future, and holds no thread.
            return await self._blocking.receive_async()
        except PulsarException as error:
            renumber(error)
            raise

    def receive_nowait(self) -> Message[T] | None:
        """Return the next message if there is one, else None. Not in ``pulsar.asyncio``.

        Raises:
            AlreadyClosed: the consumer is closed.

        Example:
            >>> import asyncio
            >>> from embeddedpulsar.asyncio import Client
            >>> async def main():
            ...     async with Client("memory://") as client:
            ...         return (await client.subscribe("orders", "billing")).receive_nowait()
            >>> print(asyncio.run(main()))
            None
        """
        try:
            return self._blocking.receive_nowait()
        except PulsarException as error:
            renumber(error)
            raise

    async def _next(self) -> Message[T]:
        return await self.receive()

    async def acknowledge(
        self,
        message: Message[T] | MessageId | Sequence[Message[T] | MessageId],
        *,
        txn: Transaction | None = None,
    ) -> None:
        """Acknowledge a message. It is written together with others within ``ack_group_time_ms``.

        With ``ack_receipt_enabled`` or a group time of 0, and in a transaction, this returns when the
        acknowledgement is written.

        Args:
            message: as for `embeddedpulsar.Consumer.acknowledge`.
            txn: the transaction that acknowledges, likewise. Not in ``pulsar.asyncio``.

        Raises:
            ValueError: neither a message nor an id.
            AlreadyClosed: the consumer is closed.
            TransactionConflict, InvalidTxnStatusError, NotConnected: as for
                `embeddedpulsar.Consumer.acknowledge`.
        """
        if txn is not None:
            transaction = await begun(txn)
            return await in_thread(lambda: self._blocking.acknowledge(message, txn=transaction))
        await self._acknowledged(self._blocking.acknowledge, message)

    async def acknowledge_cumulative(
        self, message: Message[T] | MessageId, *, txn: Transaction | None = None
    ) -> None:
        """Acknowledge a message and everything before it.

        Args:
            message: a message, or its id.
            txn: as for `acknowledge`.

        Raises:
            CumulativeAcknowledgementNotAllowedError: the subscription is Shared or Key_Shared.
            AlreadyClosed: the consumer is closed.
            TransactionConflict, InvalidTxnStatusError, NotConnected: as for `acknowledge`.
        """
        if txn is not None:
            transaction = await begun(txn)
            return await in_thread(lambda: self._blocking.acknowledge_cumulative(message, txn=transaction))
        await self._acknowledged(self._blocking.acknowledge_cumulative, message)

    async def transactions(
        self, max_messages: int = 100, *, timeout_ms: int = 60_000, label: str = ""
    ) -> AsyncIterator[tuple[list[Message[T]], Transaction]]:
        """Consume, transform, produce; see `embeddedpulsar.Consumer.transactions`.

        After a ``break`` without a commit the transaction is aborted when the loop has let go of it.

        Example:
            >>> import asyncio
            >>> from embeddedpulsar.asyncio import Client
            >>> async def main():
            ...     async with Client("memory://") as client:
            ...         consumer = await client.subscribe("orders", "billing")
            ...         orders, bills = [await client.create_producer(name) for name in ("orders", "bills")]
            ...         await asyncio.gather(*(orders.send(b"%d" % i) for i in range(3)))
            ...         async for messages, txn in consumer.transactions():
            ...             total = sum(int(message.data()) for message in messages)
            ...             await bills.send(b"%d" % total, txn=txn)
            ...             await txn.commit()
            ...             return total
            >>> asyncio.run(main())
            3
        """
        with late_imports():
            from embeddedpulsar.client.transaction import begin
        core = self._blocking._core.client
        while True:
            try:
                messages = [await self.receive()]
            except AlreadyClosed:
                return
            while len(messages) < max_messages:
                message = self._blocking.receive_nowait()
                if message is None:
                    break
                messages.append(message)
            async with Transaction(lambda: begin(core, timeout_ms, label)) as txn:
                await self.acknowledge(messages, txn=txn)
                yield messages, txn

    async def _acknowledged(self, function: Callable[[Any], None], message: Any) -> None:
        # A thread for each acknowledgement costs more than the acknowledgement, so only where it may wait.
        if self._acknowledging_blocks:
            return await in_thread(lambda: function(message))
        try:
            function(message)
        except PulsarException as error:
            renumber(error)
            raise

    async def negative_acknowledge(
        self, message: Message[T] | MessageId, *, reason: str | BaseException | None = None
    ) -> None:
        """Have a message delivered again after ``negative_ack_redelivery_delay_ms``; see
        `embeddedpulsar.Consumer.negative_acknowledge`.
        """
        self._blocking.negative_acknowledge(message, reason=reason)

    async def unsubscribe(self) -> None:
        """Delete the subscription and close the consumer.

        Raises:
            BrokerMetadataError: other consumers are attached.
            AlreadyClosed: the consumer is closed.
        """
        await in_thread(self._blocking.unsubscribe)

    async def seek(self, messageid: MessageId | int) -> None:
        """Move the subscription to a message id, or to a publish time in ms since 1970; see
        `embeddedpulsar.Consumer.seek`.
        """
        await in_thread(lambda: self._blocking.seek(messageid))

    async def get_last_message_id(self) -> MessageId:
        """Return the id of the last message of the topic.

        Raises:
            OperationNotSupported: the consumer has several topics.
        """
        return await in_thread(self._blocking.get_last_message_id)

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all messages delivered again that were received and are not acknowledged.

        If that must wait for a lock, a thread does it soon after the call.
        """
        try_or_start(self._blocking.redeliver_unacknowledged_messages)


class Reader(MessageStream[T]):
    """Reads a topic from a given position. Made by `Client.create_reader` of `embeddedpulsar.asyncio`.

    ``async with`` closes the reader at the end. ``async for`` returns the messages that are there, one after
    the other, and ends at the end of the topic, or when the reader is closed, like ``for`` over a reader of
    `embeddedpulsar`; the next ``async for`` continues there. To wait for messages, await `read_next`.

    Example:
        >>> import asyncio
        >>> from embeddedpulsar import MessageId
        >>> from embeddedpulsar.asyncio import Client
        >>> async def main():
        ...     async with Client("memory://") as client:
        ...         await (await client.create_producer("log")).send(b"line 1")
        ...         reader = await client.create_reader("log", MessageId.latest)
        ...         print(reader.topic(), await reader.has_message_available())
        ...         await reader.seek(MessageId.earliest)
        ...         print((await reader.read_next()).data())
        ...         await reader.close()
        ...         print(reader.is_connected())
        >>> asyncio.run(main())
        persistent://public/default/log False
        b'line 1'
        False
    """

    _blocking: BlockingReader[T]
    _count = 0

    async def read_next(self) -> Message[T]:
        """Return the next message, awaiting it. A cancelled coroutine has taken no message.

        Raises:
            AlreadyClosed: the reader is closed, now or while waiting.
        """
        try:
            return await self._blocking.read_next_async()
        except PulsarException as error:
            renumber(error)
            raise

    async def _next(self) -> Message[T] | None:
        message = self._blocking.read_nowait()
        self._count += 1
        if not self._count % _TURN:  # nothing else suspends this coroutine while there are messages
            await asyncio.sleep(0)
        return message

    async def has_message_available(self) -> bool:
        """Return whether `read_next` would return a message without waiting."""
        return await in_thread(self._blocking.has_message_available)

    async def seek(self, messageid: MessageId | int) -> None:
        """Continue at a message id, or a publish time in ms since 1970; see `embeddedpulsar.Reader.seek`."""
        await in_thread(lambda: self._blocking.seek(messageid))


D = TypeVar("D")


class TableView(ProcessBound, AsyncFacade, Mapping[str, T]):
    """The last value of each key, as a `Mapping`. Made by `Client.create_table_view` of
    `embeddedpulsar.asyncio`; see `embeddedpulsar.TableView`. ``pulsar.asyncio`` has none.

    The calls that only use memory are not awaited. ``async with`` closes the view at the end.

    Example:
        >>> import asyncio
        >>> from embeddedpulsar.asyncio import Client
        >>> async def main():
        ...     async with Client("memory://") as client:
        ...         await (await client.create_producer("prices")).send(b"2.80", partition_key="tea")
        ...         async with await client.create_table_view("prices") as view:
        ...             print(view.keys(), list(view.values()), list(view.items()))
        ...             return view.get("tea"), len(view)
        >>> asyncio.run(main())
        KeysView(TableView(topic=prices)) [b'2.80'] [('tea', b'2.80')]
        (b'2.80', 1)
        >>> async def changes():
        ...     async with Client("memory://") as client:
        ...         view, seen = await client.create_table_view("prices"), asyncio.Queue()
        ...         view.for_each_and_listen(lambda key, value: seen.put_nowait((key, value)))
        ...         await (await client.create_producer("prices")).send(b"2.80", partition_key="tea")
        ...         print(await seen.get())
        ...         view.for_each(print)
        ...         await view.close()
        >>> asyncio.run(changes())
        ('tea', b'2.80')
        tea b'2.80'
    """

    @overload
    def get(self, key: str, default: None = None) -> T | None: ...
    @overload
    def get(self, key: str, default: D) -> T | D: ...

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key; ``default`` if there is none."""
        return self._blocking.get(key, default)

    def keys(self) -> KeysView[str]:
        """Return the keys, as the blocking view does."""
        keys: KeysView[str] = self._blocking.keys()
        return keys

    def values(self) -> ValuesView[T]:
        """Return the values, as the blocking view does."""
        values: ValuesView[T] = self._blocking.values()
        return values

    def items(self) -> ItemsView[str, T]:
        """Return the keys with their values, as the blocking view does."""
        items: ItemsView[str, T] = self._blocking.items()
        return items

    def for_each(self, callback: Callable[[str, T], object]) -> None:
        """Call ``callback(key, value)`` for each key."""
        self._blocking.for_each(callback)

    def for_each_and_listen(self, callback: Callable[[str, T | None], object]) -> None:
        """`for_each`, and then call ``callback(key, value)`` in the loop for each later change.

        Called in the loop. The value of a key that is removed is None. The exceptions of later calls go to
        the exception handler of the loop.
        """
        loop = asyncio.get_running_loop()

        def pass_on(key: str, value: T | None) -> None:
            # The first calls, for what is there, come within this call, in the loop; later ones on the thread
            # that follows the topic.
            if _running_loop() is loop:
                callback(key, value)
            else:
                loop.call_soon_threadsafe(callback, key, value)

        self._blocking.for_each_and_listen(pass_on)

    async def close(self) -> None:
        """Follow the topic no more.

        Raises:
            AlreadyClosed: it was closed before.
        """
        await in_thread(self._blocking.close)

    def __getitem__(self, key: str) -> T:
        value: T = self._blocking[key]
        return value

    __hash__ = object.__hash__  # its content changes

    def __len__(self) -> int:
        return len(self._blocking)

    def __contains__(self, key: object) -> bool:
        return key in self._blocking

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocking)

    def __repr__(self) -> str:
        return repr(self._blocking)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
