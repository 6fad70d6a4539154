"""The producer, and the opening of one of the class that the topic and the options need.

Hot: benchmarks measure `Producer.send_async` and `Producer.send`.
"""

from __future__ import annotations

from functools import cache

from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar.client.arguments import (
    INT32_MAX,
    NO_OPTIONS,
    NULL_VALUE,
    check_few,
    check_options,
    check_range,
    check_transaction,
    check_type,
    check_type_or_none,
    checked_properties,
    keyed_columns,
    keyed_row,
    with_key,
)
from embeddedpulsar.client.client_context import ProcessBound, despite_deletion, registered
from embeddedpulsar.client.producer.pending_entry import shut_batch
from embeddedpulsar.client.producer.producer_session import BULK_BYTES, BULK_MESSAGES, BulkLimits
from embeddedpulsar.client.producer.publisher import Publisher, attach_publisher
from embeddedpulsar.enums import ProducerAccessMode
from embeddedpulsar.exceptions import InvalidConfiguration, OperationNotSupported
from embeddedpulsar.message import T
from embeddedpulsar.records import TYPE_CHECKING, Generic
from embeddedpulsar.schema import BytesSchema, StringSchema
from embeddedpulsar.schema.schema import BYTES, checked_version
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import timedelta
    from types import TracebackType
    from typing import Any, Final

    from embeddedpulsar.client.arguments import Options
    from embeddedpulsar.client.client_context import ClientContext
    from embeddedpulsar.client.producer.bulk_publisher import (
        BulkPublisher,
        OptionColumns,
        Rows,
        SentMessages,
    )
    from embeddedpulsar.client.producer.partitioned_publisher import (
        Interception,
        PartitionedPublisher,
        Router,
    )
    from embeddedpulsar.client.producer.pending_entry import SendCallback
    from embeddedpulsar.client.producer.producer_session import ProducerConfig
    from embeddedpulsar.client.producer.send_queue import SendQueue
    from embeddedpulsar.client.statistics import ProducerStats
    from embeddedpulsar.client.transaction import Transaction
    from embeddedpulsar.message_id import MessageId

_NO_PARTS: Final[dict[Any, Any]] = {}
_MOST_MESSAGES = 1 << 20  # the limit of a batch acknowledgement


@cache
def _of_columns() -> tuple[type[BulkPublisher], type[OptionColumns], Callable[..., Iterator[Rows]]]:
    """What publishes columns, which few producers send; imported once, because a column may be short."""
    with late_imports():
        from embeddedpulsar.client.producer.bulk_publisher import BulkPublisher, OptionColumns, entries_of
    return BulkPublisher, OptionColumns, entries_of


class Producer(ProcessBound, Generic[T]):
    """Publishes messages to one topic. Made by `Client.create_producer`.

    Thread-safe: any number of threads may send. Messages of one producer are stored in the order of their
    sends, which is the order of their sequence ids; those of several producers interleave by entry. In a
    forked child the producer continues under a new name; messages in its batch stay with the parent.

    Durability is that of the client, unless the producer sets its own level: a message whose send returned,
    or whose callback got `Result.Ok`, survives the death of every process; at level ``flush`` also a power
    failure.

    On a partitioned topic it publishes to each partition like a producer of that partition: order, sequence
    ids and durability are those of the partitions. Messages of one key stay in order as long as the number of
    partitions is unchanged.

    At the end of a ``with`` block the producer is flushed and closed; after an exception it is only closed.

    Example:
        >>> from embeddedpulsar import Client
        >>> with Client("memory://") as client:
        ...     producer = client.create_producer("orders", producer_name="till-1")
        ...     message_id = producer.send(b"one tea")
        ...     producer.topic(), producer.producer_name(), producer.stats().messages_sent
        ...     producer.close()
        ...     producer.is_connected()
        ('persistent://public/default/orders', 'till-1', 1)
        False
    """

    def __init__(self, publisher: Publisher | PartitionedPublisher) -> None:
        schema = publisher.config.schema
        self._publisher = publisher
        self._queue: SendQueue | PartitionedPublisher = publisher.queue
        self._lane: SendQueue | Router = publisher.lane
        self._wall_ms = publisher.wall_ms
        self._interception: Interception | None = None
        # The batch of messages with a key; one that accepts none if their partition depends on the key.
        self._keyed = publisher.queue.batch if isinstance(publisher, Publisher) else shut_batch(0)
        # The class of values that need no encoding; with a schema, a class without instances.
        self._encode: Callable[[T], bytes] = schema.encode
        self._separates_key = schema.separates_key
        self._raw: type[Any] = bytes if type(schema) is BytesSchema else Producer

    def _intercept(self, interception: Interception) -> None:
        """Pass all messages to interceptors from now on. Before the first message."""
        self._raw, self._interception = Producer, interception

    def send(
        self,
        content: T | None,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        *,
        txn: Transaction | None = None,
    ) -> MessageId:
        """Publish a message and wait until it is stored.

        A batching producer stores the batch of the message at once, as Pulsar's Java client does;
        ``pulsar-client`` waits for ``batching_max_publish_delay_ms``.

        Args:
            content: the value, encoded by the schema; None publishes a null value, which is not ``b""``.
            properties: str to str, copied. ``bytes`` are decoded as UTF-8.
            partition_key: key of the message; decides its consumer on Key_Shared subscriptions.
            ordering_key: replaces the partition key there.
            sequence_id: id to use instead of the next automatic one; 0 counts as not set.
            replication_clusters: not built; only None or an empty list.
            disable_replication: accepted and ignored; a store is not replicated.
            event_timestamp: when the event happened, in ms since 1970; 0 counts as not set.
            deliver_at: earliest delivery on Shared subscriptions, in ms since 1970. Others deliver at once.
            deliver_after: the same, counted from now.
            txn: the transaction that the message is of: it is stored at once, and seen when that commits. At
                level ``flush`` the commit waits for the disk, and this call does not. Not in
                ``pulsar-client``.

        Returns:
            The id of the message, equal to the one consumers will see.

        Raises:
            TypeError: the schema rejects ``content``, or an option's value is out of range.
            ValueError: an option has a wrong type or value.
            MessageTooBig: larger than ``maxMessageSize`` (5 MiB) with its metadata.
            Timeout: another process held the topic longer than the send timeout.
            ProducerQueueIsFull: ``max_pending_messages`` are not stored, and the producer does not block.
            MemoryBufferIsFull: likewise for ``memory_limit_bytes`` of the client.
            StorageFullError: the disk is full; nothing was stored.
            InvalidTxnStatusError: the transaction has ended; `TransactionTimeout` if its time was up.
            NotAllowedError: with a transaction, the topic is non-persistent.
            AlreadyClosed: the producer or its client is closed.
            Interrupted: Ctrl-C; the message may have been stored.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     producer = client.create_producer("orders")
            ...     producer.send(b"one", partition_key="customer-7", properties={"kind": "new"}).entry_id()
            0
        """
        # Hot: options that need no check and no queue; the others are checked, then `Publisher.send` asks
        # again whether the message may be appended at once. None of the tests is for interceptors or for a
        # schema: `_raw` is a class without instances then.
        if (
            content.__class__ is self._raw
            and sequence_id is None
            and replication_clusters is None
            and deliver_at is None
            and deliver_after is None
            and disable_replication is False
            and txn is None
            and len(content) <= self._queue.alone_max  # type: ignore[arg-type]
        ):
            sent = self._publisher.send_alone(
                content,  # type: ignore[arg-type]
                properties,
                partition_key,
                ordering_key,
                event_timestamp,
            )
            if sent is not None:
                return sent
        if (
            txn is not None
            and content.__class__ is self._raw
            and (properties is None and partition_key is None and ordering_key is None)
            and (sequence_id is None and replication_clusters is None and event_timestamp is None)
            and (deliver_at is None and deliver_after is None and disable_replication is False)
        ):
            part = getattr(txn, "_parts", _NO_PARTS).get(self._publisher)
            sent = None if part is None else part.publisher.send_part(part, content)
            if sent is not None:
                return sent  # type: ignore[no-any-return]
            check_transaction(txn)
            return self._publisher.send(content, None, txn)  # type: ignore[arg-type]
        options = check_options(
            content is None,
            properties,
            partition_key,
            ordering_key,
            sequence_id,
            replication_clusters,
            disable_replication,
            event_timestamp,
            deliver_at,
            deliver_after,
            self._wall_ms,
        )
        if txn is not None:
            check_transaction(txn)
        if self._interception is not None:
            return self._interception.send(content, options, txn)
        value: Any = content
        if self._separates_key:
            value, options = with_key(self._publisher.config.schema, content, options)
        elif content.__class__ is not self._raw:
            value = self._encoded(content)
        return self._publisher.send(value, options, txn)

    def send_async(
        self,
        content: T | None,
        callback: SendCallback | None,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        *,
        txn: Transaction | None = None,
    ) -> None:
        """Publish a message without waiting for it.

        A batching producer adds the message to a batch, which is stored when it is full or when
        ``batching_max_publish_delay_ms`` has passed. Otherwise it is stored at once. The call never waits for
        a topic that other processes have locked: messages are queued until the send timeout.

        Args:
            content: as for `send`, and so are the other options.
            txn: as for `send`. `Transaction.commit` waits for the message; if it cannot be stored, the
                transaction is aborted.
            callback: called as ``callback(result, message_id)`` on the client's callback thread, in the order
                of the sends. An exception that it raises is logged. Without a callback, the next `flush`
                raises the first failure.

        Raises:
            TypeError: the schema rejects ``content``, or an option's value is out of range.
            ValueError: an option has a wrong type or value. The callback gets all other errors.
            AlreadyClosed: the producer is closed and there is no callback, or the client is closed.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     producer = client.create_producer("clicks", batching_enabled=True)
            ...     for i in range(3):
            ...         producer.send_async(b"%d" % i, lambda result, sent: print(result, sent.batch_index()))
            ...     producer.flush()
            Result.Ok 0
            Result.Ok 1
            Result.Ok 2
        """
        # Hot: 0.2 us, besides encoding. No lock: appending to the list is one step, and a flush removes from
        # its front. This thread checks the timer after the append, and the timer clears `armed` before it
        # looks at the list, so one of the two sees the other. The batch is read once: with partitions,
        # another thread may open the batch of the next one at any moment.
        options: Options | None = None
        if (
            ordering_key is None
            and sequence_id is None
            and replication_clusters is None
            and event_timestamp is None
            and deliver_at is None
            and deliver_after is None
            and disable_replication is False
        ):
            if txn is not None and properties is None and partition_key is None:
                # A later message of a transaction, of this producer without partitions, joins what the
                # transaction has deferred, or the batch, with its part of the transaction. Whether that is
                # open the append checks.
                try:
                    deferred, parts = txn._deferred, txn._parts
                except AttributeError:
                    deferred, parts = None, _NO_PARTS  # no transaction, which is refused below
                if (
                    deferred is not None
                    and deferred.publisher is self._publisher
                    and content.__class__ is self._raw
                    and len(content) <= deferred.share  # type: ignore[arg-type]
                ):
                    items = deferred.items
                    if callback is None:
                        items.append(content)
                    else:
                        deferred.mixed = deferred.has_callbacks = True
                        items.append((content, callback))
                    if len(items) >= deferred.trigger:
                        deferred.publisher.fill_deferred(deferred)  # type: ignore[union-attr]
                    return
                batch = self._keyed
                if content.__class__ is self._raw and len(content) <= batch.share:  # type: ignore[arg-type]
                    publisher: Any = self._publisher
                    part = parts.get(publisher)
                    if part is not None:
                        batch.has_parts = batch.mixed = True
                        batch.items.append((content, callback, part))
                        if len(batch.items) >= batch.trigger:
                            batch.on_full()
                        elif not batch.armed:
                            batch.start_timer()
                        return
                    is_first = deferred is None and parts is not _NO_PARTS
                    if is_first and publisher.defer_first(txn, content, callback):
                        return
            elif properties is not None or partition_key is not None:
                batch, is_raw = self._keyed, content.__class__ is self._raw and txn is None
                if is_raw and len(content) <= batch.share:  # type: ignore[arg-type]
                    batch.mixed = True
                    batch.items.append(keyed_row(content, callback, properties, partition_key))
                    if len(batch.items) >= batch.trigger:
                        batch.on_full()
                    elif not batch.armed:
                        batch.start_timer()
                    return
                options = check_few(content is None, properties, partition_key)
            elif content.__class__ is self._raw:
                batch = self._lane.batch
                if len(content) <= batch.share:  # type: ignore[arg-type]
                    items = batch.items
                    if callback is None:
                        items.append(content)
                    else:
                        batch.mixed = True
                        items.append((content, callback))
                    if len(items) >= batch.trigger:
                        batch.on_full()
                    elif not batch.armed:
                        batch.start_timer()
                    return
        else:
            first = properties, partition_key, ordering_key, sequence_id, replication_clusters
            rest = disable_replication, event_timestamp, deliver_at, deliver_after
            options = check_options(content is None, *first, *rest, self._wall_ms)
        if content.__class__ is self._raw and txn is None:
            self._publisher.enqueue(content, callback, options)  # type: ignore[arg-type]
        else:
            self._enqueue(content, callback, options, txn)

    def _enqueue(
        self,
        content: T | None,
        callback: SendCallback | None,
        options: Options | None,
        txn: Transaction | None = None,
    ) -> None:
        """`send_async` with checked options."""
        if txn is not None:
            check_transaction(txn)
        if options is None and content is None:
            options = NULL_VALUE
        if options == NO_OPTIONS:
            options = None
        if self._interception is not None:
            self._interception.enqueue(content, callback, options, txn)
            return
        value: Any = content
        if self._separates_key:
            value, options = with_key(self._publisher.config.schema, content, options)
        elif content.__class__ is not self._raw:
            value = self._encoded(content)
        self._publisher.enqueue(value, callback, options, txn)

    def _encoded(self, content: T | None) -> bytes:
        if content is None:
            return b""
        data = self._encode(content)
        if data.__class__ is not bytes:
            check_type(bytes, data, "data")
        return data

    def send_many(
        self,
        contents: Iterable[T | None],
        *,
        partition_keys: Iterable[str | None] | None = None,
        ordering_keys: Iterable[str | None] | None = None,
        properties: Iterable[dict[str, str] | None] | None = None,
        common_properties: dict[str, str] | None = None,
        event_timestamps: Iterable[int | None] | None = None,
        sequence_ids: Iterable[int] | None = None,
        batching_max_messages: int = BULK_MESSAGES,
        batching_max_allowed_size_in_bytes: int = BULK_BYTES,
        txn: Transaction | None = None,
    ) -> SentMessages:
        """Publish many messages and wait until they are stored: like `send` for each, up to 50 times as fast.

        Messages are stored in the order of ``contents``, in entries of their own, independent of
        ``batching_enabled``. With ``BatchingType.KeyBased`` an entry holds one key: messages are grouped by
        key within portions of 65,536, so only the order within each key is that of ``contents``, and sequence
        ids increase in the order of storing. Otherwise Key_Shared subscriptions deliver an entry of several
        keys to the consumer of its first key, as Pulsar does.

        On a partitioned topic, messages of one key keep their order. Messages without a key keep their order
        on each partition.

        An entry is stored completely or not at all. An error or Ctrl-C may end the call between two entries:
        the attribute ``stored`` of the exception, a `SentMessages`, has the ids of the stored messages, and
        ``stored.numbers()`` the indexes of their values. Calls with the same arguments make the same entries.

        Thread-safe. On return the messages are as durable as after `send`; at level ``flush`` there is one
        flush.

        Args:
            contents: the values; None for a null value. An iterator is consumed 65,536 values at a time.
            partition_keys: a key for each message; None or ``""`` for none. This and the following have the
                length of ``contents``.
            ordering_keys, properties, event_timestamps: likewise, see `Producer.send`.
            common_properties: properties of all messages; those in ``properties`` replace them by name.
            sequence_ids: ids to use instead of the automatic ones, which do not advance then; 0 is an id. Not
                with ``KeyBased``.
            batching_max_messages: number of messages at which an entry is full; at most 1,048,576.
            batching_max_allowed_size_in_bytes: payload bytes at which an entry is full, up to
                ``maxMessageSize``.
            txn: the transaction that all of them are of; see `send`.

        Returns:
            The ids, in the order of ``contents``; each id is created on access.

        Raises:
            TypeError: a value that the schema rejects.
            ValueError: columns of different lengths, or an option of a wrong type or value.
            MessageTooBig: a value larger than ``maxMessageSize`` with its metadata.
            Exception: any exception that `send` raises.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     producer = client.create_producer("orders")
            ...     sent = producer.send_many([b"tea", b"cake"], partition_keys=["table-7", "table-9"])
            ...     len(sent), sent[1].batch_index(), producer.last_sequence_id()
            (2, 1, 1)
        """
        limits = self._bulk_limits(
            batching_max_messages, batching_max_allowed_size_in_bytes, sequence_ids is not None
        )
        # A text or a dict is iterable as well, and would be sent as its characters or its keys.
        for name, column in (("contents", contents), ("partition_keys", partition_keys)):
            if isinstance(column, str | bytes):
                raise ValueError(
                    f"{name} must be a list or another iterable, with an element for each message"
                )
        if isinstance(properties, dict):
            raise ValueError("properties must be an iterable of dicts, one for each message")
        schema = self._publisher.config.schema
        encode_value = None if type(schema) is BytesSchema else schema.encode
        values: Iterable[Any] = contents
        if self._separates_key:
            values, partition_keys = keyed_columns(schema, contents, partition_keys)
            encode_value = None
        _, OptionColumns, entries_of = _of_columns()
        columns = OptionColumns(partition_keys, ordering_keys, properties, event_timestamps, sequence_ids)
        check_type_or_none(dict, common_properties, "common_properties")
        common = checked_properties(common_properties or {})
        entries = entries_of(values, columns, encode_value, limits, self._publisher.routing, common)
        return self._publish_all(entries, txn)

    def send_arrow(
        self,
        data: Any,
        *,
        value: str = "value",
        key: str | None = None,
        ordering_key: str | None = None,
        properties: str | None = None,
        common_properties: dict[str, str] | None = None,
        event_time: str | None = None,
        sequence_id: str | None = None,
        batching_max_messages: int = BULK_MESSAGES,
        batching_max_allowed_size_in_bytes: int = BULK_BYTES,
        txn: Transaction | None = None,
    ) -> SentMessages:
        """Publish Arrow columns, one message per row, and wait until they are stored.

        The bytes of a column are written to the log with one copy and one checksum, independent of the number
        of messages. `embeddedpulsar.arrow.read_topic` returns the same columns. Order, keys, errors, threads
        and durability are as for `send_many`.

        Args:
            data: a ``pyarrow`` Table, RecordBatch, RecordBatchReader, Array, a dict of columns, or anything
                with ``__arrow_c_stream__`` (Polars, pandas, DuckDB). A stream is read batch by batch.
            value: name of the column of payloads: binary or string, also large, fixed-size, view or
                dictionary; nulls are null values. With a `JsonSchema` or `AvroSchema` of records, of the
                column of structs; without such a column, the columns of ``data`` are the fields of the
                schema. With other schemas, each value is encoded separately.
            key: name of the column of partition keys: string or binary in UTF-8; null or empty for none.
            ordering_key: name of the column of ordering keys, likewise.
            properties: name of the column of properties, ``map<string, string>``, the only column that costs
                a step per message.
            common_properties: properties of all messages; one of the column replaces that of the same name.
                Without a column they cost no step per message.
            event_time: name of the column of event times: timestamp or date, truncated to ms, or int64 in ms.
            sequence_id: name of the column of ids to use instead of the automatic ones.
            batching_max_messages: as for `send_many`.
            batching_max_allowed_size_in_bytes: as for `send_many`.
            txn: the transaction that all of them are of; see `send`.

        Returns:
            The ids, in the order of the rows; each id is created on access.

        Raises:
            ImportError: pyarrow is not installed.
            TypeError: ``data`` is not tabular, or a column is of a type that cannot be written.
            ValueError: a missing column, or one with values that a message cannot hold. With a schema of
                records: a column that is no field, or a row that does not fit, named by its number and field.
            MessageTooBig: a row larger than ``maxMessageSize`` with its metadata.
            Exception: any exception that `send` raises.

        Example:
            >>> import pyarrow as pa
            >>> from embeddedpulsar import Client
            >>> table = pa.table({"text": ["tea", "cake"], "table": ["7", "9"]})
            >>> with Client("memory://") as client:
            ...     sent = client.create_producer("orders").send_arrow(table, value="text", key="table")
            >>> len(sent)
            2

            Columns that are the fields of a schema, one of them the key as well:

            >>> from embeddedpulsar.schema import JsonSchema, Record, String
            >>> class Order(Record):
            ...     text = String(required=True)
            ...     table = String()
            >>> with Client("memory://") as client:
            ...     producer = client.create_producer("orders", schema=JsonSchema(Order))
            ...     len(producer.send_arrow(table, key="table"))
            2
        """
        limits = self._bulk_limits(
            batching_max_messages, batching_max_allowed_size_in_bytes, sequence_id is not None
        )
        check_type(str, value, "value")
        for name in ("key", "ordering_key", "properties", "event_time", "sequence_id"):
            check_type_or_none(str, locals()[name], name)
        check_type_or_none(dict, common_properties, "common_properties")
        common = checked_properties(common_properties or {})
        if self._separates_key:
            raise OperationNotSupported(
                "send_arrow takes payloads and keys from columns, and the schema separates keys from values; "
                "use send_many with KeyValue, or a producer without the schema"
            )
        from embeddedpulsar.arrow.schema import require_pyarrow

        require_pyarrow()
        from embeddedpulsar.arrow.column_writer import ColumnNames, portions_of

        names = ColumnNames(value, key, ordering_key, properties, event_time, sequence_id)
        # Columns of bytes and text are payloads as they are. For other schemas a value is made of each row:
        # of the columns that are its fields, or of the one column `value`.
        schema = self._publisher.config.schema
        encode_value: Any = None
        if type(schema) not in (BytesSchema, StringSchema):
            from embeddedpulsar.arrow.row_values import rows_of

            others = (key, ordering_key, properties, event_time, sequence_id)
            encode_value = rows_of(schema, value, [name for name in others if name]) or schema.encode
        routing = self._publisher.routing
        portions = portions_of(data, names, encode_value, *limits, routing, common)
        return self._publish_all(portions, txn)

    def _bulk_limits(self, messages: int, payload: int, has_ids: bool) -> BulkLimits:
        check_type(int, messages, "batching_max_messages")
        check_type(int, payload, "batching_max_allowed_size_in_bytes")
        check_range(messages, "batching_max_messages", 1, _MOST_MESSAGES)
        check_range(payload, "batching_max_allowed_size_in_bytes", 1, INT32_MAX)
        key_based = self._publisher.config.key_based
        if key_based and has_ids:
            raise InvalidConfiguration(
                "sequence ids would not rise in the order in which key-based batching stores the messages; "
                "leave them out, or use a producer without it"
            )
        return BulkLimits(messages, payload, key_based)

    def _publish_all(self, portions: Any, txn: Transaction | None) -> SentMessages:
        if txn is not None:
            check_transaction(txn)
        if self._interception is not None:
            raise OperationNotSupported(
                "interceptors see single messages, and send_many and send_arrow publish columns; use "
                "send_async, or a producer without interceptors"
            )
        BulkPublisher, *_ = _of_columns()
        publisher = self._publisher
        bulk = BulkPublisher(publisher.of_partition, publisher.config.compression, txn)
        return bulk.publish(portions)

    def flush(self) -> None:
        """Store everything sent so far and wait for the callbacks.

        Raises:
            AlreadyClosed: the producer is closed.
            PulsarException: a message without a callback failed since the last flush; this is its error.
            Interrupted: Ctrl-C; the messages are still being stored.

        Example:
            >>> from embeddedpulsar import Client, MessageId
            >>> with Client("memory://") as client:
            ...     producer = client.create_producer("clicks", batching_enabled=True)
            ...     producer.send_async(b"click", None)
            ...     producer.flush()
            ...     client.create_reader("clicks", MessageId.earliest).read_next().data()
            b'click'
        """
        with timing.translated:
            self._publisher.flush()
        if self._interception is not None:
            self._interception.raise_failure()

    def close(self) -> None:
        """Detach from the topic. Does **not** flush: unsent batches fail with `Result.AlreadyClosed`.

        Raises:
            AlreadyClosed: it was closed before.
            LockTimeout: another process held a lock; the text names the messages that may not be stored.
        """
        with timing.translated:
            self._publisher.end()
        if self._interception is not None:
            self._interception.chain.close()

    def __repr__(self) -> str:
        state = "closed" if self._publisher.is_closed else "open"
        return f"<Producer {self.producer_name()} on {self.topic()} {state}>"

    def topic(self) -> str:
        """Return the full name of the topic."""
        return self._publisher.topic_name

    def producer_name(self) -> str:
        """Return the name: the one requested, or ``standalone-<client>-<n>``."""
        return self._publisher.name

    def last_sequence_id(self) -> int:
        """Return the sequence id of the last message stored; the largest one of all partitions.

        Before the first message it is ``initial_sequence_id``, or the id stored under the producer's name if
        the topic drops duplicates, or -1. As in ``pulsar-client`` it is the last id stored, not the largest:
        it decreases after a lower explicit id.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     producer = client.create_producer("orders", initial_sequence_id=41)
            ...     message_id = producer.send(b"order")
            ...     producer.last_sequence_id()
            42
        """
        return self._publisher.last_sequence_id

    def is_connected(self) -> bool:
        """Return whether the producer may send.

        True until it is closed, except while another producer has fenced it out."""
        return self._publisher.is_connected()

    def stats(self) -> ProducerStats:
        """Return the statistics of the producer. Not in ``pulsar-client``.

        The first call also starts measuring the time of the next 32 messages that are sent one by one.
        """
        return self._publisher.stats()

    def __enter__(self) -> Producer[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._publisher.is_closed:
            return
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def __del__(self) -> None:
        publisher = getattr(self, "_publisher", None)
        if publisher is not None:
            publisher.abandon()


def open_producer(core: ClientContext, config: ProducerConfig) -> Producer[Any]:
    """Attach a producer to a topic, which is created if necessary, or to all its partitions.

    Raises:
        InvalidTopicName, TopicNotFound, ProducerBusy, ProducerFenced: see `Client.create_producer`.
    """
    core.begin_operation()
    version = checked_version(config.schema, (config.topic,), is_producer=True)
    if version != config.schema_version:
        config = config._replace(schema_version=version)
    if config.access_mode == ProducerAccessMode.WaitForExclusive:
        return _open(core, config)  # a wait for access to a topic ends when the topic is deleted
    return despite_deletion(lambda: _open(core, config))


def _open(core: ClientContext, config: ProducerConfig) -> Producer[Any]:
    if config.chunking and not TopicName.parse(config.topic).is_persistent:
        config = config._replace(chunking=False)  # as in Pulsar: parts may be lost
    chain = config.chain
    if chain is not None:
        chain.bind(core, chain)  # until there is a producer
    partitions = core.store.partitions_of(config.topic)
    if config.schema_version < 0 and config.schema is not BYTES:
        durability = config.durability or core.config.durability
        schema, version = registered(core.store, config.topic, config.schema, durability)
        config = config._replace(schema=schema, schema_version=version)
    if partitions:
        # Imported on first use: most topics are plain, and most producers have no interceptors.
        from embeddedpulsar.client.producer.partitioned_publisher import PartitionedPublisher

        producer: Producer[Any] = Producer(PartitionedPublisher(core, config, partitions))
    else:
        producer = Producer(attach_publisher(core, config))
    if chain is not None:
        from embeddedpulsar.client.producer.partitioned_publisher import Interception

        producer._intercept(Interception(producer._publisher, producer._encoded, chain))
        chain.bind(core, producer)
        chain.begin()
    return producer
