"""The client of a cluster for asyncio loops."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from typing import Any

from embeddedpulsar.asyncio.client import Client
from embeddedpulsar.asyncio.consumer import Consumer, Producer, Reader
from embeddedpulsar.asyncio.worker_threads import AsyncFacade, in_thread, renumber, threads
from embeddedpulsar.client.producer.bulk_publisher import SentMessages
from embeddedpulsar.cluster.client import (
    ClusterClient,
    ClusterConsumer,
    acknowledgeable,
    refuse_transaction,
)
from embeddedpulsar.cluster.translation import failure, library, not_supported
from embeddedpulsar.message import Message, T
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.results import Result


class _Closing:
    """Closes consumers and readers that the program drops without closing them."""

    @staticmethod
    def close_dropped(source: Any) -> None:
        # Finalizers call this, in any thread, and the close of `pulsar-client` waits for a broker.
        threads.start_daemon(lambda: source.__exit__(), "dropped")


_CLOSING: Any = _Closing()


async def _answer(call: Callable[[Callable[..., object]], object]) -> Any:
    """Await the callback of a call of ``pulsar-client``: a result, and perhaps a value."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def set_outcome(result: Any, value: Any) -> None:
        if future.done():
            return  # cancelled
        if result.name == Result.Ok.name:
            future.set_result(value)
        else:
            # `pulsar.asyncio` puts the number of the result before the text; so does
            # `embeddedpulsar.asyncio`.
            error = failure(result)
            renumber(error)
            future.set_exception(error)

    # The callback comes on a thread of `pulsar-client`, which has nothing to do with the loop. Some calls
    # have no value.
    call(lambda result, value=None: loop.call_soon_threadsafe(set_outcome, result, value))
    return await future


class ClusterAsyncioProducer(Producer[T]):
    """`embeddedpulsar.asyncio.Producer` over the producer of ``pulsar-client``."""

    def __init__(self, producer: Any) -> None:
        AsyncFacade.__init__(self, producer)

    async def send(self, content: T | None, *args: Any, **options: Any) -> MessageId:
        refuse_transaction(options.pop("txn", None))
        message_id: MessageId = await _answer(
            lambda callback: self._blocking.send_async(content, callback, *args, **options)
        )
        return message_id

    async def send_many(self, contents: Any, **options: Any) -> SentMessages:
        raise not_supported("Producer.send_many()", "gather several sends")

    async def send_arrow(self, data: Any, **options: Any) -> SentMessages:
        raise not_supported("Producer.send_arrow()", "gather several sends")


class ClusterAsyncioConsumer(Consumer[T]):
    """`embeddedpulsar.asyncio.Consumer` over the consumer of ``pulsar-client``."""

    _blocking: ClusterConsumer[T]

    async def acknowledge(self, message: Any, *, txn: Any = None) -> None:
        refuse_transaction(txn)
        await self._answered("acknowledge_async", message)

    async def acknowledge_cumulative(self, message: Message[T] | MessageId, *, txn: Any = None) -> None:
        refuse_transaction(txn)
        await self._answered("acknowledge_cumulative_async", message)

    async def _answered(self, name: str, message: Message[T] | MessageId) -> None:
        # `pulsar-client` offers no coroutine and no callback for acknowledgements in Python. The object of
        # its extension module has one, and takes the raw message or id.
        call = getattr(self._blocking.theirs._consumer, name)
        raw = acknowledgeable(message)
        await _answer(lambda callback: call(getattr(raw, "_message", raw), callback))


class ClusterAsyncioReader(Reader[T]):
    """`embeddedpulsar.asyncio.Reader` over the reader of ``pulsar-client``."""

    async def _next(self) -> Message[T] | None:
        # `async for` over a reader ends at the end of the topic, as over that of a store.
        return await self.read_next() if await self.has_message_available() else None


class ClusterAsyncioClient(Client):
    """`embeddedpulsar.asyncio.Client` over the client of ``pulsar-client``; see `ClusterClient`."""

    def __init__(self, service_url: Any, **kwargs: Any) -> None:
        AsyncFacade.__init__(self, ClusterClient(service_url, **kwargs))

    async def create_producer(self, *args: Any, **options: Any) -> ClusterAsyncioProducer[Any]:
        arguments = _arguments(Client.create_producer, args, options)
        # In a thread: `pulsar-client` waits for the broker. A cancelled call closes what it gets.
        producer = await in_thread(
            lambda: self._blocking.create_producer(**arguments), lambda producer: producer.close()
        )
        return ClusterAsyncioProducer(producer)

    async def subscribe(self, *args: Any, **options: Any) -> ClusterAsyncioConsumer[Any]:
        arguments = _arguments(Client.subscribe, args, options)
        if arguments.pop("is_pattern_topic", False):
            arguments["topic"] = re.compile(arguments["topic"])
        consumer = await in_thread(
            lambda: self._blocking.subscribe(**arguments), lambda consumer: consumer.close()
        )
        return ClusterAsyncioConsumer(consumer, _CLOSING)

    async def create_reader(self, *args: Any, **options: Any) -> ClusterAsyncioReader[Any]:
        arguments = _arguments(Client.create_reader, args, options)
        reader = await in_thread(
            lambda: self._blocking.create_reader(**arguments), lambda reader: reader.close()
        )
        return ClusterAsyncioReader(reader, _CLOSING)


def connected(service_url: Any, **options: Any) -> Client:
    """Return a client of a cluster for asyncio loops."""
    module = library()
    if getattr(module, "is_stand_in", False):  # in a test with `patch_pulsar`
        local: Client = module.asyncio.Client(service_url, **options)
        return local
    return ClusterAsyncioClient(service_url, **options)


def _arguments(call: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name, with the defaults of the coroutine, which differ from those of the method."""
    # The coroutine and the blocking method have different defaults, such as that of batching, so those of the
    # coroutine are written out before the blocking method is called.
    bound = inspect.signature(call).bind(None, *args, **options)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    del arguments["self"]
    arguments.update(arguments.pop("options", {}))
    # None stands for bytes in the coroutine; the blocking method has a default of its own for it.
    if arguments.get("schema") is None:
        arguments.pop("schema", None)
    return arguments
