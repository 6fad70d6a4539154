"""The client of a cluster, its producers, consumers, readers and table views.

`ClusterHandle` is what these share: the object of ``pulsar-client``, its topic, and the end. Coroutines
wait for messages while ``pulsar-client`` fetches them.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from embeddedpulsar._engine.platform import threads
from embeddedpulsar.client.arguments import check_type
from embeddedpulsar.client.client import Client
from embeddedpulsar.client.client_threads import ClientLog
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.client.consumer.reader import Reader
from embeddedpulsar.client.consumer.table_view import TableView
from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.cluster.translation import (
    failure,
    from_message_id,
    from_service_info,
    given,
    library,
    not_supported,
    to_pulsar,
    translated,
)
from embeddedpulsar.encryption import EncryptedKey, EncryptionContext, EncryptionFacts
from embeddedpulsar.exceptions import AlreadyClosed, Timeout
from embeddedpulsar.message import Message, T
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.results import Result
from embeddedpulsar.schema import SchemaInfo
from embeddedpulsar.schema.schema import BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from embeddedpulsar.client.cluster_options import ServiceInfo
    from embeddedpulsar.client.producer.bulk_publisher import SentMessages
    from embeddedpulsar.client.statistics import ConsumerStats, ProducerStats
    from embeddedpulsar.client.transaction import PreparedTransaction, Transaction, TxnID


class ClusterMessage(Message[T]):
    """`Message` over the message of ``pulsar-client``."""

    __slots__ = ("theirs",)

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs

    def data(self) -> bytes:
        return cast("bytes", self.theirs.data())

    def value(self) -> T:
        # By the schema of this package, which `pulsar-client` got inside of an adapter
        # (`translation._adapter`).
        return cast("T", self.theirs._schema.ours.decode_message(self))

    def writer_schema(self) -> SchemaInfo | None:
        schema: SchemaInfo | None = self.theirs._schema.writer_of(self.theirs._message)
        return schema

    def message_id(self) -> MessageId:
        return from_message_id(self.theirs.message_id(), self.topic_name())

    def topic_name(self) -> str:
        return str(self.theirs.topic_name())

    def properties(self) -> dict[str, str]:
        return dict(self.theirs.properties())

    def partition_key(self) -> str:
        return str(self.theirs.partition_key())

    def ordering_key(self) -> str:
        return str(self.theirs.ordering_key())

    def publish_timestamp(self) -> int:
        return int(self.theirs.publish_timestamp())

    def event_timestamp(self) -> int:
        return int(self.theirs.event_timestamp())

    def deliver_at(self) -> int:
        raise not_supported("Message.deliver_at()", "put the time into a property")

    def redelivery_count(self) -> int:
        return int(self.theirs.redelivery_count())

    def schema_version(self) -> str:
        return str(self.theirs.schema_version())

    def producer_name(self) -> str:
        return str(self.theirs.producer_name())

    def sequence_id(self) -> int:
        raise not_supported("Message.sequence_id()", "put the number into a property")

    def has_null_value(self) -> bool:
        return bool(self.theirs.has_null_value())

    def encryption_context(self) -> EncryptionContext | None:
        theirs = self.theirs.encryption_context()
        if theirs is None:
            return None
        # The empty text is the initialization vector, which `pulsar-client` does not give out.
        return EncryptionContext(
            EncryptionFacts(
                tuple(EncryptedKey(key.key, key.value, key.metadata) for key in theirs.keys()),
                theirs.param(),
                int(theirs.compression_type()),
                theirs.uncompressed_message_size(),
                theirs.batch_size(),
                b"",
                theirs.is_decryption_failed(),
            )
        )

    def replace(self, *, data: bytes | None = None, properties: dict[str, str] | None = None) -> Message[T]:
        raise not_supported("Message.replace()", "there are no interceptors")


class AwaitedMessages:
    """Gives the messages of one consumer or reader to coroutines, in the order in which they asked.

    Role: a request to ``pulsar-client`` cannot be taken back, and a coroutine that is cancelled has taken no
    message. So requests belong to no coroutine. A message is put into a queue, and a coroutine is woken,
    which takes the first message when it runs; if it is cancelled before, the next one is woken. Messages
    that no coroutine waits for are kept for the next call. There is one request at a time:
    ``pulsar-client`` may answer several of them in another order. A blocking call beside a request may get
    the message behind that of the request. Any thread may call the methods.

    Args:
        request: asks for one message, as ``request(callback)``; the callback gets a result and the message.
        wrap: makes the message of this package.
    """

    def __init__(self, request: Callable[[Any], object], wrap: Callable[[Any], Any]) -> None:
        self._request: Final = request
        self._wrap: Final = wrap
        self._lock = threads.RLock()  # guards all that follows
        self._kept: deque[Any] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._woken = 0  # coroutines that will take a message when they run
        self._is_requested = False
        self._is_asking = False  # a thread is in the loop of `_ask`

    def take_kept(self) -> Any:
        """Return a message that a cancelled coroutine left; None if there is none."""
        try:
            self._lock.acquire()
            # Messages that woken coroutines are about to take are not free: a call that took one would leave
            # a coroutine without.
            return self._kept.popleft() if len(self._kept) > self._woken else None
        finally:
            self._lock.release()

    async def next(self) -> Any:
        """Return the next message, awaited."""
        kept = self.take_kept()
        if kept is not None:
            return kept
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            self._lock.acquire()
            self._waiting.append(future)
        finally:
            self._lock.release()
        self._ask()
        try:
            await future
        except asyncio.CancelledError:
            # Woken and cancelled in the same turn of the loop: its message goes to the next one.
            if future.done() and not future.cancelled() and future.exception() is None:
                self._pass_on()
            raise
        try:
            self._lock.acquire()
            self._woken -= 1
            return self._kept.popleft()
        finally:
            self._lock.release()

    def _ask(self) -> None:
        """Request messages as long as there are fewer than coroutines."""
        # A loop and no recursion: an answer that comes within `_request` only ends the request, and the loop
        # asks for the next.
        while self._may_ask():
            self._request(self._on_message)  # which may call back at once, in this thread
            self._is_asking = False

    def _may_ask(self) -> bool:
        try:
            self._lock.acquire()
            # Every coroutine that waits or is about to take needs a message, of those that are kept or
            # requested.
            waiting = self._woken + sum(not future.done() for future in self._waiting)
            if self._is_requested or self._is_asking or len(self._kept) >= waiting:
                return False
            self._is_requested = self._is_asking = True
            return True
        finally:
            self._lock.release()

    def _on_message(self, result: Any, theirs: Any) -> None:
        """Called on a thread of ``pulsar-client``, once for each request."""
        is_message = result.name == "Ok"
        message = self._wrap(theirs) if is_message else None
        try:
            self._lock.acquire()
            self._is_requested = False
            if is_message:
                self._kept.append(message)
        finally:
            self._lock.release()
        # After the lock: waking runs code of a loop.
        self._wake(None if is_message else failure(result))
        self._ask()

    def _pass_on(self) -> None:
        """A coroutine that was woken takes no message: wake another one."""
        try:
            self._lock.acquire()
            self._woken -= 1
        finally:
            self._lock.release()
        self._wake(None)

    def _wake(self, error: Exception | None) -> None:
        """Let the coroutine that has waited longest take a message, or raise the error."""
        try:
            self._lock.acquire()
            future = None
            while self._waiting and future is None:
                # Cancelled coroutines, and those of a loop that was closed, are passed over.
                first = self._waiting.popleft()
                future = None if first.done() or first.get_loop().is_closed() else first
            if future is None:
                return
            self._woken += error is None
        finally:
            self._lock.release()
        chosen = future

        def complete() -> None:
            if chosen.done():  # cancelled meanwhile
                if error is None:
                    self._pass_on()
            elif error is None:
                chosen.set_result(None)
            else:
                chosen.set_exception(error)

        try:
            # A future belongs to its loop, and is completed in its thread.
            chosen.get_loop().call_soon_threadsafe(complete)
        except RuntimeError:  # the loop was closed meanwhile
            if error is None:
                self._pass_on()


class ClusterHandle:
    """An object over one of ``pulsar-client``, which is closed once."""

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs
        self._is_closed = False

    def close(self) -> None:
        if self._is_closed:
            raise AlreadyClosed  # pulsar-client raises a ValueError of a list
        self._is_closed = True
        with translated:
            self.theirs.close()

    def __exit__(self, *_: object) -> None:
        if not self._is_closed:
            with contextlib.suppress(AlreadyClosed):  # with its client, or by unsubscribe
                self.close()


class ClusterSource(ClusterHandle):
    """A consumer or reader, with the messages that coroutines wait for.

    Args:
        theirs: that of ``pulsar-client``.
        request: asks it for one message, as `AwaitedMessages` does.
    """

    def __init__(self, theirs: Any, request: Callable[[Any], object]) -> None:
        super().__init__(theirs)
        self._awaited = AwaitedMessages(request, self._wrapped)
        self._make_message: Any = library().Message

    def _wrapped(self, raw: Any) -> ClusterMessage[Any]:
        message = self._make_message()
        # As `pulsar-client` makes its own messages: its Python class around the raw one, with the schema of
        # the consumer.
        message._message, message._schema = raw, self.theirs._schema
        return ClusterMessage(message)

    def topic(self) -> str:
        return str(self.theirs.topic())

    def is_connected(self) -> bool:
        return bool(self.theirs.is_connected())


def no_transactions() -> NoReturn:
    """Refuse a transaction of a cluster."""
    raise NotImplementedError(
        "transactions need a store of embeddedpulsar: pulsar-client, which connects to clusters, has none; "
        "leave txn out, and have duplicates dropped by deduplication and by what consumes them"
    )


def refuse_transaction(txn: object) -> None:
    """Refuse an operation in a transaction, of whatever store."""
    if txn is not None:
        no_transactions()


def acknowledgeable(message: Any) -> Any:
    """What ``pulsar-client`` acknowledges: its own message, or its own id."""
    if isinstance(message, ClusterMessage):
        return message.theirs
    if isinstance(message, MessageId):
        return to_pulsar(message)
    raise TypeError(f"a message or a message id of this consumer is expected, not {type(message).__name__}")


class ClusterConsumer(ClusterSource, Consumer[T]):
    """`Consumer` over the consumer of ``pulsar-client``. Thread-safe."""

    def __init__(self, theirs: Any) -> None:
        super().__init__(theirs, theirs._consumer.receive_async)

    def subscription_name(self) -> str:
        return str(self.theirs.subscription_name())

    def consumer_name(self) -> str:
        return str(self.theirs.consumer_name())

    def stats(self) -> ConsumerStats:
        raise not_supported("Consumer.stats()", "ask the admin interface of the cluster")

    def receive(self, timeout_millis: int | None = None) -> Message[T]:
        if timeout_millis is not None:
            check_type(int, timeout_millis, "timeout_millis")
        # A coroutine that was cancelled may have left a message, which comes before those that are still with
        # `pulsar-client`.
        kept: Message[T] | None = self._awaited.take_kept()
        if kept is not None:
            return kept
        with translated:
            return ClusterMessage(self.theirs.receive(timeout_millis))

    async def receive_async(self) -> Message[T]:
        message: Message[T] = await self._awaited.next()
        return message

    def receive_nowait(self) -> Message[T] | None:
        try:
            # What `pulsar-client` has fetched; 0 does not wait for a broker.
            return self.receive(0)
        except Timeout:
            return None

    def batch_receive(self) -> list[Message[T]]:
        with translated:
            return [ClusterMessage(message) for message in self.theirs.batch_receive()]

    def acknowledge(self, message: Any, *, txn: Transaction | None = None) -> None:
        refuse_transaction(txn)
        with translated:
            self.theirs.acknowledge(acknowledgeable(message))

    def transactions(self, max_messages: int = 100, *, timeout_ms: int = 60_000, label: str = "") -> NoReturn:
        no_transactions()

    def acknowledge_cumulative(
        self, message: Message[T] | MessageId, *, txn: Transaction | None = None
    ) -> None:
        refuse_transaction(txn)
        with translated:
            self.theirs.acknowledge_cumulative(acknowledgeable(message))

    def negative_acknowledge(
        self, message: Message[T] | MessageId, *, reason: str | BaseException | None = None
    ) -> None:
        # The reason is for dead letters, and those of `pulsar-client` have none.
        with translated:
            self.theirs.negative_acknowledge(acknowledgeable(message))

    def redeliver_unacknowledged_messages(self) -> None:
        with translated:
            self.theirs.redeliver_unacknowledged_messages()

    def reconsume_later(
        self,
        message: Message[T],
        delay_ms: int,
        properties: dict[str, str] | None = None,
        *,
        reason: str | BaseException | None = None,
    ) -> None:
        raise not_supported("Consumer.reconsume_later()", "publish the message with deliver_after")

    def reconsume_later_cumulative(
        self,
        message: Message[T],
        delay_ms: int,
        properties: dict[str, str] | None = None,
        *,
        reason: str | BaseException | None = None,
    ) -> None:
        raise not_supported("Consumer.reconsume_later_cumulative()", "publish the message with deliver_after")

    def pause_message_listener(self) -> None:
        with translated:
            self.theirs.pause_message_listener()

    def resume_message_listener(self) -> None:
        with translated:
            self.theirs.resume_message_listener()

    def seek(self, messageid: MessageId | int) -> None:
        with translated:
            self.theirs.seek(to_pulsar(messageid))

    def get_last_message_id(self) -> MessageId:
        with translated:
            return from_message_id(self.theirs.get_last_message_id(), self.topic())

    def unsubscribe(self) -> None:
        with translated:
            self.theirs.unsubscribe()

    def __repr__(self) -> str:
        state = "open" if self.is_connected() else "closed"
        return f"<Consumer {self.consumer_name()} of {self.subscription_name()!r} on {self.topic()} {state}>"


_LOG = ClientLog()


class ClusterProducer(ClusterHandle, Producer[T]):
    """`Producer` over the producer of ``pulsar-client``. Thread-safe."""

    def send(self, content: T | None, *args: Any, **options: Any) -> MessageId:
        refuse_transaction(options.pop("txn", None))
        with translated:
            return from_message_id(self.theirs.send(content, *args, **options), self.topic())

    def send_async(self, content: T | None, callback: Any, *args: Any, **options: Any) -> None:
        refuse_transaction(options.pop("txn", None))
        with translated:
            self.theirs.send_async(content, self._callback(callback), *args, **options)

    def _callback(self, callback: Callable[[Result, MessageId], object] | None) -> Any:
        """The callback for ``pulsar-client``, in which an exception would end the process."""
        if callback is None:
            return None
        topic = self.topic()

        def call(result: Any, message_id: Any) -> None:
            try:
                # The id is that of `pulsar-client`, in a subclass of this package's: it keeps what only that
                # one knows, such as the batch.
                callback(Result[result.name], from_message_id(message_id, topic))
            except BaseException:  # noqa: BLE001 - the application's code
                _LOG.exception("The callback of a send to %s failed", topic, topic=topic)

        return call

    def send_many(self, contents: Iterable[T | None], **options: Any) -> SentMessages:
        raise not_supported("Producer.send_many()", "call send_async for each, and flush")

    def send_arrow(self, data: Any, **options: Any) -> SentMessages:
        raise not_supported("Producer.send_arrow()", "call send_async for each row, and flush")

    def flush(self) -> None:
        with translated:
            self.theirs.flush()

    def topic(self) -> str:
        return str(self.theirs.topic())

    def producer_name(self) -> str:
        return str(self.theirs.producer_name())

    def last_sequence_id(self) -> int:
        return int(self.theirs.last_sequence_id())

    def is_connected(self) -> bool:
        return bool(self.theirs.is_connected())

    def stats(self) -> ProducerStats:
        raise not_supported("Producer.stats()", "ask the admin interface of the cluster")

    def __exit__(self, *error: object) -> None:
        if self._is_closed:
            return
        try:
            # A block that raised leaves the messages unsent, as the producer of a store does.
            if not any(error):
                self.flush()
        finally:
            super().__exit__(*error)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<Producer {self.producer_name()} on {self.topic()} {state}>"


class ClusterReader(ClusterSource, Reader[T]):
    """`Reader` over the reader of ``pulsar-client``. Thread-safe."""

    def __init__(self, theirs: Any) -> None:
        super().__init__(theirs, theirs._reader.read_next_async)

    def read_next(self, timeout_millis: int | None = None) -> Message[T]:
        if timeout_millis is not None:
            check_type(int, timeout_millis, "timeout_millis")
        kept: Message[T] | None = self._awaited.take_kept()
        if kept is not None:
            return kept
        with translated:
            return ClusterMessage(self.theirs.read_next(timeout_millis))

    async def read_next_async(self) -> Message[T]:
        message: Message[T] = await self._awaited.next()
        return message

    def read_nowait(self) -> Message[T] | None:
        # The end of the topic is asked for: what is there may not have arrived yet.
        if not self.has_message_available():
            return None
        try:
            # It arrives within moments, or not at all, as when the topic was trimmed meanwhile.
            return self.read_next(1000)
        except Timeout:
            return None

    def has_message_available(self) -> bool:
        with translated:
            return bool(self.theirs.has_message_available())

    def seek(self, messageid: MessageId | int) -> None:
        with translated:
            self.theirs.seek(to_pulsar(messageid))

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        raise not_supported("Reader.to_arrow()", "read the messages one by one")

    def __repr__(self) -> str:
        return f"<Reader on {self.topic()} {'open' if self.is_connected() else 'closed'}>"


class ClusterTableView(ClusterHandle, TableView[T]):
    """`TableView` over the table view of ``pulsar-client``. Thread-safe."""

    def get(self, key: str, default: Any = None) -> Any:
        with translated:
            # None is no value: `pulsar-client` returns it for a key that is not there.
            value = self.theirs.get(key)
        return default if value is None else value

    def _pairs(self) -> Iterator[tuple[str, T]]:
        pairs: list[tuple[str, T]] = []
        self.for_each(lambda key, value: pairs.append((key, value)))
        return iter(pairs)

    def for_each(self, callback: Callable[[str, T], object]) -> None:
        with translated:
            self.theirs.for_each(callback)

    def for_each_and_listen(self, callback: Callable[[str, T | None], object]) -> None:
        with translated:
            self.theirs.for_each_and_listen(callback)

    def _keys(self) -> list[str]:
        keys: list[str] = []
        # The raw view: the values are not decoded for it.
        self.theirs._table_view.for_each(lambda key, _: keys.append(key))
        return keys

    def __len__(self) -> int:
        return len(self.theirs)

    def __contains__(self, key: object) -> bool:
        # The raw view again: the first of its answer says whether the key is there, and no value is decoded.
        return isinstance(key, str) and bool(self.theirs._table_view.get(key)[0])

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys())

    def __repr__(self) -> str:
        return repr(self.theirs)


class ClusterClient(Client):
    """`Client` over the client of ``pulsar-client``. Thread-safe.

    Made by `embeddedpulsar.connect`. At the end of a ``with`` block its producers are flushed, and all of it
    is closed.

    Args:
        service_url: ``pulsar://``, ``pulsar+ssl://``, ``http://`` or ``https://``; an `AutoClusterFailover`;
            or a `ServiceInfoProvider`.
        *args: as for ``pulsar.Client``, and so are the options.
        **options: those of this package that concern files are ignored.

    Raises:
        ImportError: ``pulsar-client`` is not installed.
        ValueError: a wrong type or value.
    """

    def __init__(self, service_url: Any, *args: Any, **options: Any) -> None:
        kind = library().Client
        arguments = given(Client.__init__, kind.__init__, service_url, *args, **options)
        # Kept for `pickle`: the client is made again from its arguments in another process.
        self._arguments: Final = service_url, args, options
        self._is_closed = False
        with translated:
            self.theirs = kind(**arguments)
        # Weak: a producer that the program drops ends by itself, and is not kept for the end of the block.
        self._producers: weakref.WeakSet[ClusterProducer[Any]] = weakref.WeakSet()

    def create_producer(self, topic: str, *args: Any, **options: Any) -> ClusterProducer[Any]:
        arguments = _given(Client.create_producer, self.theirs.create_producer, topic, *args, **options)
        router = arguments.get("message_router")
        # The router of the application gets a message of this package.
        if router is not None:
            arguments["message_router"] = _router(router)
        with translated:
            producer: ClusterProducer[Any] = ClusterProducer(self.theirs.create_producer(**arguments))
        self._keep(producer)
        self._producers.add(producer)
        return producer

    def subscribe(self, topic: Any, *args: Any, **options: Any) -> ClusterConsumer[Any]:
        arguments = _given(Client.subscribe, self.theirs.subscribe, topic, *args, **options)
        consumer: ClusterConsumer[Any] = self._receiver(
            ClusterConsumer, self.theirs.subscribe, arguments, "message_listener"
        )
        return consumer

    def create_reader(
        self, topic: str, start_message_id: Any, *args: Any, **options: Any
    ) -> ClusterReader[Any]:
        arguments = _given(
            Client.create_reader, self.theirs.create_reader, topic, start_message_id, *args, **options
        )
        reader: ClusterReader[Any] = self._receiver(
            ClusterReader, self.theirs.create_reader, arguments, "reader_listener"
        )
        return reader

    def _receiver(
        self, kind: Callable[[Any], Any], make: Callable[..., Any], arguments: dict[str, Any], name: str
    ) -> Any:
        """Make a consumer or reader, whose listener is the argument of that name."""
        # The listener may be called before this method returns, and then gets a wrapper of its own around the
        # same consumer; afterwards the one that the program has.
        receivers: list[Any] = []
        if arguments.get(name) is not None:
            arguments[name] = _listener(arguments[name], receivers, kind)
        with translated:
            receiver = kind(make(**arguments))
        self._keep(receiver)
        receivers.append(receiver)
        return receiver

    def create_table_view(self, topic: str, *args: Any, **options: Any) -> ClusterTableView[Any]:
        arguments = _given(Client.create_table_view, self.theirs.create_table_view, topic, *args, **options)
        with translated:
            return ClusterTableView(self.theirs.create_table_view(**arguments))

    def transaction(self, timeout_ms: int = 60_000, *, label: str = "") -> NoReturn:
        no_transactions()

    def new_transaction(self, timeout_ms: int = 60_000, *, label: str = "") -> NoReturn:
        no_transactions()

    def join_transaction(self, token: bytes) -> NoReturn:
        no_transactions()

    def prepared_transactions(self) -> NoReturn:
        no_transactions()

    def resume_transaction(self, prepared: PreparedTransaction | TxnID) -> NoReturn:
        no_transactions()

    def get_topic_partitions(self, topic: str) -> list[str]:
        with translated:
            return list(self.theirs.get_topic_partitions(topic))

    def get_service_info(self) -> ServiceInfo:
        with translated:
            return from_service_info(self.theirs.get_service_info())

    def shutdown(self) -> None:
        self._is_closed = True
        with translated:
            self.theirs.shutdown()

    def close(self) -> None:
        self._is_closed = True
        with translated:
            self.theirs.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._is_closed:
            return
        # Messages that were sent without a wait are stored before the client ends; not after an error, as in
        # a store.
        try:
            if kind is None:
                for producer in list(self._producers):
                    if not producer._is_closed:
                        producer.flush()
        finally:
            self.close()

    def __del__(self) -> None:
        """Leave the rest to the destructor of ``pulsar-client``."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self._arguments

    def __repr__(self) -> str:
        return f"<Client {self._arguments[0]!r}{' closed' if self._is_closed else ''}>"


def _given(
    call: Callable[..., Any], theirs: Callable[..., Any], *args: Any, **options: Any
) -> dict[str, Any]:
    """`given`, with a schema of this package also where the call has none."""
    # Without a schema `pulsar-client` would decode with its own class of bytes, which has no `ours`
    # (`ClusterMessage.value`).
    return {"schema": to_pulsar(BYTES), **given(call, theirs, *args, **options)}


def connected(service_url: Any, **options: Any) -> Client:
    """Return a client of a cluster."""
    module = library()
    if getattr(module, "is_stand_in", False):  # in a test with `patch_pulsar`
        local: Client = module.Client(service_url, **options)
        return local
    return ClusterClient(service_url, **options)


def _again(service_url: Any, args: tuple[Any, ...], options: dict[str, Any]) -> ClusterClient:
    return ClusterClient(service_url, *args, **options)


def _listener(listener: Callable[..., object], receivers: list[Any], wrap: Callable[[Any], Any]) -> Any:
    """A listener for ``pulsar-client``; it may be called before the call that makes the consumer returns."""

    def call(theirs: Any, message: Any) -> None:
        listener(receivers[0] if receivers else wrap(theirs), ClusterMessage(message))

    return call


def _router(router: Callable[[Any, int], int]) -> Any:
    return lambda message, partitions: router(ClusterMessage(message), partitions)
