"""The client of asyncio loops."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from embeddedpulsar.asyncio.consumer import Consumer, Producer, Reader, TableView
from embeddedpulsar.asyncio.worker_threads import AsyncFacade, Transaction, in_thread
from embeddedpulsar.client.client import Client as BlockingClient
from embeddedpulsar.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
)
from embeddedpulsar.message import T
from embeddedpulsar.schema import Schema
from embeddedpulsar.schema.schema import BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.transaction import PreparedTransaction, TxnID
    from embeddedpulsar.crypto import CryptoKeyReader
    from embeddedpulsar.message import Message
    from embeddedpulsar.message_id import MessageId
    from embeddedpulsar.policies import (
        ConsumerBatchReceivePolicy,
        ConsumerDeadLetterPolicy,
        ConsumerKeySharedPolicy,
    )


class Client(AsyncFacade):
    """A store in a directory, for the coroutines of an asyncio loop, with the interface of
    ``pulsar.asyncio.Client``.

    Args:
        service_url: a path, ``file:///path``, ``memory://`` or ``memory://name``; as for
            `embeddedpulsar.Client`.
        **kwargs: the options of `embeddedpulsar.Client`.

    Raises:
        ValueError, StorageError: as for `embeddedpulsar.Client`.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     async with Client("memory://") as client:
        ...         async with await client.create_producer("greetings") as producer:
        ...             return str(await producer.send(b"hello"))
        >>> asyncio.run(main()).endswith(",0,-1,0)")
        True
    """

    def __init__(self, service_url: Any, **kwargs: Any) -> None:
        super().__init__(BlockingClient(service_url, **kwargs))

    async def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Schema[T] | None = None,
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = True,
        batching_max_messages: int = 1000,
        batching_max_allowed_size_in_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: int = 10,
        chunking_enabled: bool = False,
        message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution,
        lazy_start_partitioned_producers: bool = False,
        properties: dict[str, str] | None = None,
        batching_type: BatchingType = BatchingType.Default,
        encryption_key: str | None = None,
        crypto_key_reader: CryptoKeyReader | None = None,
        access_mode: ProducerAccessMode = ProducerAccessMode.Shared,
        message_router: Callable[[Message[Any], int], int] | None = None,
        **options: Any,
    ) -> Producer[T]:
        """Attach a producer to a topic. The topic is created if necessary.

        Batching is on by default, as in ``pulsar.asyncio``. If the coroutine is cancelled, also while it
        waits for the topic (``WaitForExclusive``), it ends when the producer is detached; after a second at
        the latest, if another process stays in a lock, and then the producer is detached later.

        Args:
            topic: as for `embeddedpulsar.Client.create_producer`, and so are the other options.
            schema: None for `BytesSchema`.
            block_if_queue_full: `Producer.send` waits at ``max_pending_messages`` while the loop continues.
            **options: options that ``pulsar-client`` does not have.

        Raises:
            TypeError, ValueError, NotImplementedError, PulsarException: as for the blocking client.

        Example:
            >>> import asyncio
            >>> from embeddedpulsar.schema import StringSchema
            >>> async def main():
            ...     async with Client("memory://") as client:
            ...         producer = await client.create_producer("notes", "desk-1", StringSchema())
            ...         return producer.topic(), producer.producer_name()
            >>> asyncio.run(main())
            ('persistent://public/default/notes', 'desk-1')
        """
        # Called before any other local is made: `locals()` is then the arguments, by their names.
        arguments = _given(locals())
        # Three cases. Without a bound, or if it raises at the bound, the producer below decides. With
        # `block_if_queue_full`, coroutines wait for room, and the loop goes on. A chunked message may wait in
        # the middle, between its chunks, so sends then run on threads.
        waits = block_if_queue_full is True and max_pending_messages > 0
        is_chunking = chunking_enabled is True
        if waits and not is_chunking:
            # `Producer.send` waits at this number of sends, so the underlying producer never has to wait.
            arguments["block_if_queue_full"] = False
        producer = await in_thread(
            lambda: self._blocking.create_producer(**arguments), lambda producer: producer.close()
        )
        return Producer(
            producer,
            most_pending=max_pending_messages if waits else 0,
            sends_block=is_chunking,
        )

    async def subscribe(
        self,
        topic: str | list[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Schema[T] | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30000,
        negative_ack_redelivery_delay_ms: int = 60000,
        is_read_compacted: bool = False,
        properties: dict[str, str] | None = None,
        initial_position: InitialPosition = InitialPosition.Latest,
        crypto_key_reader: CryptoKeyReader | None = None,
        replicate_subscription_state_enabled: bool = False,
        max_pending_chunked_message: int = 10,
        auto_ack_oldest_chunked_message_on_queue_full: bool = False,
        start_message_id_inclusive: bool = False,
        batch_receive_policy: ConsumerBatchReceivePolicy | None = None,
        key_shared_policy: ConsumerKeySharedPolicy | None = None,
        batch_index_ack_enabled: bool = False,
        regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly,
        dead_letter_policy: ConsumerDeadLetterPolicy | None = None,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        is_pattern_topic: bool = False,
        **options: Any,
    ) -> Consumer[T]:
        """Attach a consumer to a subscription. Topic and subscription are created if necessary.

        If the coroutine is cancelled, it ends when the consumer is detached; after a second at the latest, if
        another process stays in a lock, and then the consumer is detached later.

        Args:
            topic: as for `embeddedpulsar.Client.subscribe`, and so are the other options.
            schema: None for `BytesSchema`.
            is_pattern_topic: whether ``topic`` is a regular expression.
            **options: options that ``pulsar-client`` does not have.

        Raises:
            ValueError: as for the blocking client; with ``is_pattern_topic`` also for a list, and for a text
                that is no regular expression.
            TypeError, NotImplementedError, PulsarException: as for the blocking client.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     async with Client("memory://") as client:
            ...         consumer = await client.subscribe("orders-.*", "audit", is_pattern_topic=True)
            ...         await (await client.create_producer("orders-eu")).send(b"order 1")
            ...         return (await asyncio.wait_for(consumer.receive(), timeout=10)).data()
            >>> asyncio.run(main())
            b'order 1'
        """
        arguments = _given(locals())
        # `pulsar.asyncio` says by this option what the blocking client says by the type of `topic`.
        if arguments.pop("is_pattern_topic"):
            if not isinstance(topic, str):
                raise ValueError("Argument topic is one regular expression where is_pattern_topic is True")
            arguments["topic"] = _pattern(topic)
        consumer = await in_thread(
            lambda: self._blocking.subscribe(**arguments), lambda consumer: consumer.close()
        )
        # These acknowledgements return when they are written, which may wait for a lock.
        blocks = bool(options.get("ack_receipt_enabled")) or options.get("ack_group_time_ms") == 0
        return Consumer(consumer, self._blocking._core, acknowledging_blocks=blocks)

    async def create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        schema: Schema[T] | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: CryptoKeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        **options: Any,
    ) -> Reader[T]:
        """Make a reader, and the topic if necessary; see `embeddedpulsar.Client.create_reader`.

        Example:
            >>> import asyncio
            >>> from embeddedpulsar import MessageId
            >>> async def main():
            ...     async with Client("memory://") as client:
            ...         await (await client.create_producer("log")).send(b"line 1")
            ...         reader = await client.create_reader("log", MessageId.earliest)
            ...         return (await reader.read_next()).data()
            >>> asyncio.run(main())
            b'line 1'
        """
        # As in `create_producer`: the arguments by name, before any other local.
        arguments = _given(locals())
        reader = await in_thread(
            lambda: self._blocking.create_reader(**arguments), lambda reader: reader.close()
        )
        return Reader(reader, self._blocking._core)

    async def create_table_view(
        self, topic: str, subscription_name: str | None = None, schema: Schema[T] | None = None
    ) -> TableView[T]:
        """Make a table view; see `embeddedpulsar.Client.create_table_view`. Not in ``pulsar.asyncio``.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     async with Client("memory://") as client:
            ...         await (await client.create_producer("prices")).send(b"2.80", partition_key="tea")
            ...         return (await client.create_table_view("prices")).get("tea")
            >>> asyncio.run(main())
            b'2.80'
        """
        view = await in_thread(
            lambda: self._blocking.create_table_view(topic, subscription_name, schema or BYTES),
            lambda view: view.close(),
        )
        return TableView(view)

    def transaction(self, timeout_ms: int = 60_000, *, label: str = "") -> Transaction:
        """Return a transaction for an ``async with`` block; see `embeddedpulsar.Client.transaction`.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     async with Client("memory://") as client:
            ...         producer = await client.create_producer("orders")
            ...         async with client.transaction() as txn:
            ...             await producer.send(b"one tea", txn=txn)
            ...         return txn.state.name
            >>> asyncio.run(main())
            'COMMITTED'
        """
        return Transaction(lambda: self._blocking.transaction(timeout_ms, label=label))

    async def new_transaction(self, timeout_ms: int = 60_000, *, label: str = "") -> Transaction:
        """Begin a transaction, which the caller ends; see `embeddedpulsar.Client.new_transaction`.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     async with Client("memory://") as client:
            ...         txn = await client.new_transaction(5000, label="invoices")
            ...         await (await client.create_producer("orders")).send(b"one tea", txn=txn)
            ...         await txn.abort()
            ...         return txn.state.name
            >>> asyncio.run(main())
            'ABORTED'
        """
        return await self.transaction(timeout_ms, label=label).__aenter__()

    async def join_transaction(self, token: bytes) -> Transaction:
        """Take part in a transaction of another process; see `embeddedpulsar.Client.join_transaction`.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     async with Client("memory://") as client, client.transaction() as txn:
            ...         async with await client.join_transaction(await txn.token()) as joined:
            ...             await (await client.create_producer("orders")).send(b"one tea", txn=joined)
            ...         return str(joined.id) == str(txn.id)
            >>> asyncio.run(main())
            True
        """
        return await Transaction(lambda: self._blocking.join_transaction(token)).__aenter__()

    async def prepared_transactions(self) -> list[PreparedTransaction]:
        """Return what waits for its end; see `embeddedpulsar.Client.prepared_transactions`.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     async with Client("memory://") as client:
            ...         txn = await client.new_transaction()
            ...         prepared = await txn.prepare("invoice-42")
            ...         await (await client.resume_transaction(prepared)).commit()
            ...         return await client.prepared_transactions()
            >>> asyncio.run(main())
            []
        """
        return await in_thread(self._blocking.prepared_transactions)

    async def resume_transaction(self, prepared: PreparedTransaction | TxnID) -> Transaction:
        """Return a prepared transaction; see `embeddedpulsar.Client.resume_transaction`.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     async with Client("memory://") as client:
            ...         prepared = await (await client.new_transaction()).prepare("invoice-42")
            ...         txn = await client.resume_transaction(prepared)
            ...         await txn.abort()
            ...         return txn.state.name
            >>> asyncio.run(main())
            'ABORTED'
        """
        return await Transaction(lambda: self._blocking.resume_transaction(prepared)).__aenter__()

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the names of the partitions of a topic, or its own full name. Creates nothing.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     async with Client("memory://") as client:
            ...         return await client.get_topic_partitions("orders")
            >>> asyncio.run(main())
            ['persistent://public/default/orders']
        """
        return await in_thread(lambda: self._blocking.get_topic_partitions(topic))

    def shutdown(self) -> None:
        """Close the client if it is open. The call is not awaited, so it blocks the loop.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     client = Client("memory://")
            ...     consumer = await client.subscribe("orders", "billing")
            ...     client.shutdown()
            ...     return consumer.is_connected()
            >>> asyncio.run(main())
            False
        """
        self._blocking.shutdown()

    async def close(self) -> None:
        """Close all producers, without flushing them, consumers and readers, and the store.

        Raises:
            AlreadyClosed: it was closed before.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     client = Client("memory://")
            ...     producer = await client.create_producer("orders")
            ...     await client.close()
            ...     return producer.is_connected()
            >>> asyncio.run(main())
            False
        """
        await in_thread(self._blocking.close)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"Argument topic is no regular expression: {text!r}: {error}") from error


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call for the blocking client, which has no None for a schema."""
    options = arguments.pop("options")
    # `self` is the coroutine's, and options that are not named go on as they came.
    given = {name: value for name, value in arguments.items() if name != "self"}
    return {**given, "schema": given["schema"] or BYTES, **options}
