"""The methods of a producer that publish whole columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from embeddedpulsar.client.common.arguments import INT32_MAX, check_range, check_type, check_type_or_none
from embeddedpulsar.client.common.value_type import T
from embeddedpulsar.client.producer.bulk.bulk_publisher import BulkPublisher, Target
from embeddedpulsar.client.producer.bulk.bulk_rows import BulkLimits, OptionColumns, entries_of
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.schema import BytesSchema, StringSchema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from embeddedpulsar.client.producer.bulk.bulk_routing import BulkRouting
    from embeddedpulsar.client.producer.bulk.sent_messages import SentMessages
    from embeddedpulsar.client.producer.producer_config import ProducerConfig
    from embeddedpulsar.client.producer.producer_session import ProducerSession
    from embeddedpulsar.client.producer.publisher import Publisher

BULK_MESSAGES = 10_000
BULK_BYTES = 1 << 20
_MOST_MESSAGES = 1 << 20  # the limit of a batch acknowledgement


class BulkProducer(Generic[T]):
    """`send_many` and `send_arrow`, which ``pulsar-client`` does not have.

    Both store whole columns of values, in entries of some thousand messages, instead of single messages;
    consumers receive them as messages of batches. Messages sent before are stored before. Messages of other
    threads may be stored between two entries, never within one.
    """

    _publisher: Publisher
    _session: ProducerSession

    def send_many(
        self,
        contents: Iterable[T | None],
        *,
        partition_keys: Iterable[str | None] | None = None,
        ordering_keys: Iterable[str | None] | None = None,
        properties: Iterable[dict[str, str] | None] | None = None,
        event_timestamps: Iterable[int | None] | None = None,
        sequence_ids: Iterable[int] | None = None,
        batching_max_messages: int = BULK_MESSAGES,
        batching_max_allowed_size_in_bytes: int = BULK_BYTES,
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
            sequence_ids: ids to use instead of the automatic ones, which do not advance then; 0 is an id. Not
                with ``KeyBased``.
            batching_max_messages: number of messages at which an entry is full; at most 1,048,576.
            batching_max_allowed_size_in_bytes: payload bytes at which an entry is full, up to
                ``maxMessageSize``.

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
        for name, column in (("contents", contents), ("partition_keys", partition_keys)):
            if isinstance(column, str | bytes):
                raise ValueError(
                    f"{name} must be a list or another iterable, with an element for each message"
                )
        if isinstance(properties, dict):
            raise ValueError("properties must be an iterable of dicts, one for each message")
        columns = OptionColumns(partition_keys, ordering_keys, properties, event_timestamps, sequence_ids)
        schema = self._bulk_config().schema
        encode_value = None if type(schema) is BytesSchema else schema.encode
        return self._publish_all(entries_of(contents, columns, encode_value, limits, self._bulk_routing()))

    def send_arrow(
        self,
        data: Any,
        *,
        value: str = "value",
        key: str | None = None,
        ordering_key: str | None = None,
        properties: str | None = None,
        event_time: str | None = None,
        sequence_id: str | None = None,
        batching_max_messages: int = BULK_MESSAGES,
        batching_max_allowed_size_in_bytes: int = BULK_BYTES,
    ) -> SentMessages:
        """Publish Arrow columns, one message per row, and wait until they are stored.

        The bytes of a column are written to the log with one copy and one checksum, independent of the number
        of messages. `embeddedpulsar.arrow.read_topic` returns the same columns. Order, keys, errors, threads
        and durability are as for `send_many`.

        Args:
            data: a ``pyarrow`` Table, RecordBatch, RecordBatchReader, Array, a dict of columns, or anything
                with ``__arrow_c_stream__`` (Polars, pandas, DuckDB). A stream is read batch by batch.
            value: name of the column of payloads: binary or string, also large, fixed-size, view or
                dictionary; nulls are null values. With a schema other than bytes or string, each value is
                encoded separately.
            key: name of the column of partition keys: string or binary in UTF-8; null or empty for none.
            ordering_key: name of the column of ordering keys, likewise.
            properties: name of the column of properties, ``map<string, string>``, the only column that costs
                a step per message.
            event_time: name of the column of event times: timestamp or date, truncated to ms, or int64 in ms.
            sequence_id: name of the column of ids to use instead of the automatic ones.
            batching_max_messages: as for `send_many`.
            batching_max_allowed_size_in_bytes: as for `send_many`.

        Returns:
            The ids, in the order of the rows; each id is created on access.

        Raises:
            ImportError: pyarrow is not installed.
            TypeError: ``data`` is not tabular, or a column is of a type that cannot be written.
            ValueError: a missing column, or one with values that a message cannot hold.
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
        """
        limits = self._bulk_limits(
            batching_max_messages, batching_max_allowed_size_in_bytes, sequence_id is not None
        )
        check_type(str, value, "value")
        for name in ("key", "ordering_key", "properties", "event_time", "sequence_id"):
            check_type_or_none(str, locals()[name], name)
        from embeddedpulsar.arrow.schema import require_pyarrow

        require_pyarrow()
        from embeddedpulsar.arrow.column_writer import ColumnNames, portions_of

        names = ColumnNames(value, key, ordering_key, properties, event_time, sequence_id)
        schema = self._bulk_config().schema
        encode_value = None if type(schema) in (BytesSchema, StringSchema) else schema.encode
        return self._publish_all(portions_of(data, names, encode_value, *limits, self._bulk_routing()))

    def _bulk_limits(self, messages: int, payload: int, has_ids: bool) -> BulkLimits:
        check_type(int, messages, "batching_max_messages")
        check_type(int, payload, "batching_max_allowed_size_in_bytes")
        check_range(messages, "batching_max_messages", 1, _MOST_MESSAGES)
        check_range(payload, "batching_max_allowed_size_in_bytes", 1, INT32_MAX)
        key_based = self._bulk_config().key_based
        if key_based and has_ids:
            raise InvalidConfiguration(
                "sequence ids would not rise in the order in which key-based batching stores the messages; "
                "leave them out, or use a producer without it"
            )
        return BulkLimits(messages, payload, key_based)

    def _publish_all(self, portions: Any) -> SentMessages:
        return BulkPublisher(self._target, self._bulk_config().compression).publish(portions)

    def _bulk_config(self) -> ProducerConfig:
        return self._publisher.config

    def _bulk_routing(self) -> BulkRouting | None:
        """The routing of keys to partitions; None without partitions."""
        return None

    def _target(self, partition: int) -> Target:
        session = self._session
        return Target(self._publisher, session.ledger, session.partition)
