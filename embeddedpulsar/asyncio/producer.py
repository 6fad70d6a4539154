"""The producer of asyncio loops, and how its sends share a batch and a callback. Hot: once per message."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from embeddedpulsar.asyncio.worker_threads import (
    AsyncFacade,
    begun,
    in_thread,
    in_thread_to_its_end,
    renumber,
    with_blocking,
)
from embeddedpulsar.client.arguments import Options, check_options
from embeddedpulsar.client.client_context import ProcessBound
from embeddedpulsar.client.producer.bulk_publisher import SentMessages
from embeddedpulsar.client.producer.pending_entry import ErrorTaker
from embeddedpulsar.exceptions import PulsarException
from embeddedpulsar.message import T
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import Generic
from embeddedpulsar.results import Result

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from embeddedpulsar.asyncio.worker_threads import Transaction
    from embeddedpulsar.client.producer.producer import Producer as BlockingProducer
    from embeddedpulsar.client.transaction import Transaction as BlockingTransaction


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
