"""Consumers, readers and table views of asyncio loops.

The producer of asyncio loops, and how its sends share a batch and a callback. Hot: once per message.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, Unpack, overload

from embeddedpulsar.asyncio.worker_threads import (
    AsyncFacade,
    Transaction,
    begun,
    in_thread,
    in_thread_to_its_end,
    late_imports,
    renumber,
    try_or_start,
    with_blocking,
)
from embeddedpulsar.client.arguments import Options, check_options
from embeddedpulsar.client.client_context import ProcessBound
from embeddedpulsar.client.producer.bulk_publisher import SentMessages
from embeddedpulsar.client.producer.pending_entry import ErrorTaker
from embeddedpulsar.exceptions import AlreadyClosed, PulsarException
from embeddedpulsar.message import T
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import Generic
from embeddedpulsar.results import Result

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from datetime import timedelta

    from embeddedpulsar.client.client_context import ClientContext
    from embeddedpulsar.client.consumer.consumer import Consumer as BlockingConsumer
    from embeddedpulsar.client.consumer.reader import Reader as BlockingReader
    from embeddedpulsar.client.producer.producer import Producer as BlockingProducer
    from embeddedpulsar.client.transaction import Transaction as BlockingTransaction
    from embeddedpulsar.message import Message


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


Outcome = tuple["asyncio.Future[Any]", Any, bool]


class SendResults:
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
        # The flag is read after the append. If the loop has just cleared it, this calls again; if not, the
        # loop has yet to take the outcomes, and takes this one, too.
        self._outcomes.append((future, value, failed))
        if self._is_called:
            return
        self._is_called = True
        try:
            self.loop.call_soon_threadsafe(self._set_outcomes)
        except RuntimeError:
            self._outcomes.clear()  # the loop is closed, so no coroutine awaits the results

    def _set_outcomes(self) -> None:
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

    def __init__(self, sent: SendResults, future: asyncio.Future[MessageId]) -> None:
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
        # `call_soon` puts `_run` behind all tasks that are ready by now, whose sends join the batch.
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_called = False
        self._store()


class SendManyOptions(TypedDict, total=False):
    """The options of `Producer.send_many`; see `embeddedpulsar.Producer.send_many`."""

    partition_keys: Iterable[str | None] | None
    ordering_keys: Iterable[str | None] | None
    properties: Iterable[dict[str, str] | None] | None
    common_properties: dict[str, str] | None
    event_timestamps: Iterable[int | None] | None
    sequence_ids: Iterable[int] | None
    batching_max_messages: int
    batching_max_allowed_size_in_bytes: int
    txn: Transaction | None


class SendArrowOptions(TypedDict, total=False):
    """The options of `Producer.send_arrow`; see `embeddedpulsar.Producer.send_arrow`."""

    value: str
    key: str | None
    ordering_key: str | None
    properties: str | None
    common_properties: dict[str, str] | None
    event_time: str | None
    sequence_id: str | None
    batching_max_messages: int
    batching_max_allowed_size_in_bytes: int
    txn: Transaction | None


class Producer(ProcessBound, AsyncFacade, Generic[T]):
    """Publishes messages to one topic. Made by `Client.create_producer` of `embeddedpulsar.asyncio`.

    Coroutines of one loop at a time may use it. Messages are stored in the order in which their `send` began.
    Durability is as for `embeddedpulsar.Producer`: a message whose send returned is stored at the level of
    the producer. A cancelled send may still be stored.

    Example:
        >>> import asyncio
        >>> from embeddedpulsar.asyncio import Client
        >>> async def main():
        ...     async with Client("memory://") as client:
        ...         producer = await client.create_producer("orders", "till-1")
        ...         sending = [asyncio.create_task(producer.send(b"order %d" % i)) for i in range(3)]
        ...         await asyncio.gather(*sending)
        ...         await producer.flush()
        ...         print(producer.topic(), producer.producer_name(), producer.last_sequence_id())
        ...         await producer.close()
        ...         print(producer.is_connected())
        >>> asyncio.run(main())
        persistent://public/default/orders till-1 2
        False
    """

    _blocking: BlockingProducer[T]

    def __init__(
        self, producer: BlockingProducer[T], *, most_pending: int = 0, sends_block: bool = False
    ) -> None:
        super().__init__(producer)
        self._most_pending = most_pending
        self._sends_block = sends_block
        self._is_batching = producer._publisher.config.batching
        # The state of the loop that used it last:
        self._sent: SendResults | None = None
        self._turn_end: TurnEnd
        self._entering = 0  # number of sends that wait for their turn
        self._room: asyncio.Semaphore
        self._turn: asyncio.Lock

    def topic(self) -> str:
        """Return the full name of the topic."""
        return self._blocking.topic()

    def producer_name(self) -> str:
        """Return the name: the one requested, or one made by the store."""
        return self._blocking.producer_name()

    def last_sequence_id(self) -> int:
        """Return the sequence id of the last message stored; -1 before the first."""
        return self._blocking.last_sequence_id()

    def is_connected(self) -> bool:
        """Return whether the producer may send: True until it is closed."""
        return self._blocking.is_connected()

    async def send(
        self,
        content: T | None,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        *,
        txn: Transaction | None = None,
    ) -> MessageId:
        """Publish a message and wait until it is stored.

        The message joins a batch with others that are sent in the same turn of the loop, for example by
        `asyncio.gather`. The batch is stored when the loop has run all tasks that are ready, independent of
        ``batching_max_publish_delay_ms``.
        If the producer was made with ``block_if_queue_full``, this waits for room while the loop continues.

        Args:
            content: as for `embeddedpulsar.Producer.send`, and so are the other options.
            txn: the transaction that the message is of; see `embeddedpulsar.asyncio.Transaction`. Not in
                ``pulsar.asyncio``.

        Returns:
            The id of the message.

        Raises:
            TypeError, ValueError: as for `embeddedpulsar.Producer.send`.
            PulsarException: likewise; `PulsarException.error` returns the `Result`.

        Example:
            >>> import asyncio
            >>> from embeddedpulsar.asyncio import Client
            >>> async def main():
            ...     async with Client("memory://") as client:
            ...         producer = await client.create_producer("orders")
            ...         return (await producer.send(b"one", partition_key="customer-7")).entry_id()
            >>> asyncio.run(main())
            0
        """
        if deliver_at == 0 or (deliver_after is not None and not deliver_after):
            # As in pulsar.asyncio, 0 differs from None: it means no delay, but an entry of its own.
            deliver_at, deliver_after = 1, None
        # Checked before the send waits for room: a wrong argument raises at once.
        options = check_options(
            content is None,
            properties,
            partition_key,
            ordering_key,
            sequence_id,
            replication_clusters,
            disable_replication or False,
            event_timestamp,
            deliver_at,
            deliver_after,
            self._blocking._wall_ms,
        )
        sent, transaction = self._of_loop(), None
        if txn is not None:
            transaction = await begun(txn)
        if not self._most_pending:
            return await self._send(sent, content, options, transaction)
        async with self._room:
            return await self._send(sent, content, options, transaction)

    def _of_loop(self) -> SendResults:
        """Return the state of the running loop."""
        loop = asyncio.get_running_loop()
        sent = self._sent
        # A producer may be used by one loop after the other, as by two calls of `asyncio.run`. What belongs
        # to a loop is made anew; sends of the old one have no coroutine that awaits them.
        if sent is None or sent.loop is not loop:
            sent = self._sent = SendResults(loop)
            self._turn_end, self._entering = TurnEnd(loop, self._blocking._publisher.store_soon), 0
            self._room, self._turn = asyncio.Semaphore(self._most_pending), asyncio.Lock()
        return sent

    async def _send(
        self, sent: SendResults, content: T | None, options: Options, txn: BlockingTransaction | None
    ) -> MessageId:
        future: asyncio.Future[MessageId] = sent.loop.create_future()
        callback = SendCallback(sent, future)
        if self._sends_block or (txn is not None and txn._blocks):
            self._entering += 1
            try:
                async with self._turn:  # one thread at a time, to keep the order
                    await in_thread(lambda: self._blocking._enqueue(content, callback, options, txn))
            finally:
                self._entering -= 1
        else:
            try:
                self._blocking._enqueue(content, callback, options, txn)
            except PulsarException as error:
                renumber(error)
                raise
        # While other sends wait for their turn on a thread, the last of them stores the batch.
        if self._is_batching and not self._entering:
            self._turn_end.note_send()
        return await future

    async def send_many(
        self, contents: Iterable[T | None], **options: Unpack[SendManyOptions]
    ) -> SentMessages:
        """Publish many messages and wait until they are stored: like `send` for each, up to 50 times as fast.

        It runs on a thread that lives as long as the call, while the loop continues. Messages that the same
        loop sent before are stored before. Messages sent while a call is awaited are stored between its
        entries, and so are the entries of another call.

        If the coroutine is cancelled, the call ends after its current entry, and the cancellation waits for
        that. Then the ``stored`` of the `asyncio.CancelledError`, a `SentMessages`, contains the stored
        messages, as that of any other error. A second cancellation does not wait.

        Args:
            contents: as for `embeddedpulsar.Producer.send_many`, and so are the other options. The thread
                reads them: iterators run there, and lists must not change until this returns.

        Returns:
            The ids, in the order of ``contents``.

        Raises:
            TypeError, ValueError, PulsarException: as for `embeddedpulsar.Producer.send_many`.

        Example:
            >>> import asyncio
            >>> from embeddedpulsar.asyncio import Client
            >>> async def main():
            ...     async with Client("memory://") as client:
            ...         producer = await client.create_producer("orders")
            ...         return len(await producer.send_many([b"tea", b"cake"], partition_keys=["7", "9"]))
            >>> asyncio.run(main())
            2
        """
        # Sends that wait for their turn come first; all others are in the queue of the producer already.
        await self._sent_before()
        send_many: Any = self._blocking.send_many
        given = with_blocking(options)
        return await in_thread_to_its_end(lambda: send_many(contents, **given), SentMessages())

    async def send_arrow(self, data: Any, **options: Unpack[SendArrowOptions]) -> SentMessages:
        """Publish Arrow columns, one message per row, and wait until they are stored, like `send_many`.

        Args:
            data: as for `embeddedpulsar.Producer.send_arrow`, and so are the other options. The thread reads
                a stream.

        Returns:
            The ids, in the order of the rows.

        Raises:
            ImportError, TypeError, ValueError, PulsarException: as for `embeddedpulsar.Producer.send_arrow`.

        Example:
            >>> import asyncio
            >>> import pyarrow as pa
            >>> from embeddedpulsar.asyncio import Client
            >>> async def main():
            ...     async with Client("memory://") as client:
            ...         producer = await client.create_producer("orders")
            ...         table = pa.table({"text": ["tea", "cake"]})
            ...         return len(await producer.send_arrow(table, value="text"))
            >>> asyncio.run(main())
            2
        """
        await self._sent_before()
        send_arrow: Any = self._blocking.send_arrow
        given = with_blocking(options)
        return await in_thread_to_its_end(lambda: send_arrow(data, **given), SentMessages())

    async def _sent_before(self) -> None:
        """Wait until the underlying producer has all messages sent before."""
        # The lock, if it has to be waited for, is that of this loop.
        self._of_loop()
        if self._sends_block:
            async with self._turn:
                return

    async def flush(self) -> None:
        """Store everything sent so far; on return, the sends that await it are done.

        Raises:
            AlreadyClosed: the producer is closed.
        """
        await in_thread(self._blocking.flush)

    async def close(self) -> None:
        """Detach from the topic. Does **not** flush: unsent batches fail with `AlreadyClosed`.

        Raises:
            AlreadyClosed: it was closed before.
        """
        await in_thread(self._blocking.close)
