"""The received message: a position in a decoded entry, with fields that are read on access. Hot."""

from __future__ import annotations

from itertools import repeat

from embeddedpulsar.message_id import MessageId, make
from embeddedpulsar.records import TYPE_CHECKING, Generic, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, Final, Self

    # A type checker provides typing_extensions itself; nothing needs to be installed for it.
    from typing_extensions import TypeVar

    from embeddedpulsar._engine.store.schema_info import SchemaInfo
    from embeddedpulsar.encryption import EncryptionContext

    T = TypeVar("T", default=bytes)
    """The type of values that a producer, consumer or reader handles: that of its schema, or ``bytes``."""
else:
    from embeddedpulsar.records import TypeVar

    T = TypeVar("T")


class DecodedEntry(Protocol):
    """The interface of an entry to its messages, implemented by `_engine.format.entry.EntryView`.

    ``payload`` holds the values of all messages: value ``i`` is ``offsets[i]:offsets[i + 1]``. A missing
    column is None.
    """

    ledger_id: int
    entry_id: int
    publish_time: int
    count: int
    batched: bool
    redelivery_count: int
    payload: bytes
    offsets: list[int]

    @property
    def producer_name(self) -> str:
        """Name of the producer."""

    @property
    def first_sequence_id(self) -> int:
        """Sequence id of message 0."""

    @property
    def schema_version(self) -> int:
        """Version of the schema; -1 for none."""

    def keys(self) -> Sequence[str | None] | None:
        """Partition keys."""

    def ordering_keys(self) -> Sequence[str | None] | None:
        """Ordering keys."""

    def properties(self, index: int) -> dict[str, str] | None:
        """The properties of one message."""

    def event_times(self) -> Sequence[int] | None:
        """Event times, in ms."""

    def deliver_at(self) -> Sequence[int] | None:
        """Delivery times, in ms; 0 for at once."""

    def sequence_ids(self) -> Sequence[int] | None:
        """Sequence ids; None if they are consecutive."""

    def null(self, index: int) -> bool:
        """Whether the value of one message is null."""


class ValueDecoder(Protocol):
    """The interface of the consumer's schema to its messages."""

    def decode(self, data: bytes, /) -> Any:
        """Decode one value."""

    def decode_message(self, msg: Any, /) -> Any:
        """Decode the value of a message."""


class Origin(Protocol):
    """The properties that all messages of one consumer and topic share, in one object."""

    topic_name: str
    schema: ValueDecoder
    partition: int
    by_message: bool


class _Unknown(dict[int, "SchemaInfo | None"]):
    """The schemas of messages whose topic is not asked."""

    def __missing__(self, version: int) -> None:
        return None


class MessageOrigin:
    """The `Origin` of messages that are read from a topic.

    Args:
        topic_name: full name of the topic.
        schema: of the consumer.
        writers: the schema of each version; None for -1, and for one that is not known.
        by_message: whether the schema decodes by the message, not by its payload alone.
        partition: of the topic, by its name; -1 for none.

    Attributes:
        acks: returns what the consumer collects acknowledgements with, or None if that is gone. A consumer
            has one origin for all messages that it receives, and another one after a seek.
    """

    __slots__ = ("acks", "by_message", "partition", "schema", "topic_name", "writers")

    def __init__(
        self,
        topic_name: str,
        schema: ValueDecoder,
        writers: Mapping[int, SchemaInfo | None] | None = None,
        by_message: bool = False,
        partition: int | None = None,
    ) -> None:
        self.topic_name = topic_name
        self.schema = schema
        self.writers: Mapping[int, SchemaInfo | None] = _Unknown() if writers is None else writers
        self.by_message = by_message
        self.acks: Callable[[], object] = _nothing
        if partition is None:
            from embeddedpulsar.topic_name import TopicName  # 1.5 ms of the import of the package

            # Parsed here only for origins that are made without it, those of unsent messages for example.
            partition = TopicName.parse(topic_name).partition
        self.partition = partition

    def again(self) -> MessageOrigin:
        """An equal one, of messages that are not to be taken for those of this one."""
        return MessageOrigin(self.topic_name, self.schema, self.writers, self.by_message, self.partition)


def _nothing() -> None:
    return None


NO_ORIGIN: Final = object()
"""The origin of no message."""


_new: Any = object.__new__


class Message(Generic[T]):
    """A message as received by a consumer, a reader or a listener.

    Cheap to create: it refers to its entry, which is shared by all messages of a batch, and decodes a field
    when the method is called. It stays valid after the consumer is closed, may be read by any thread, and
    keeps the payload of its whole entry alive. A message never changes: `copy.copy` and `copy.deepcopy`
    return the message itself.

    A message can be pickled, for a queue of `multiprocessing` for example, if its schema can: what is pickled
    is this message alone, without the rest of its batch. The copy in the other process has all fields. Back
    in the process of the consumer, it is acknowledged by its id, like the message.

    Only consumers and readers create messages. The parameter of ``Message[dict]`` is the type of `value`; it
    has no cost at run time.

    Example:
        >>> from types import SimpleNamespace
        >>> from embeddedpulsar.schema import StringSchema
        >>> entry = SimpleNamespace(ledger_id=7, entry_id=0, count=2, batched=True, payload=b"onetwo",
        ...     offsets=[0, 3, 6], keys=lambda: None)
        >>> origin = SimpleNamespace(topic_name="persistent://public/default/t", schema=StringSchema(),
        ...     partition=-1, by_message=False)
        >>> message = Message(entry, 1, origin)
        >>> message.data(), message.value(), message.message_id(), message.partition_key()
        (b'two', 'two', (7,0,-1,1), '')
        >>> from embeddedpulsar import Client
        >>> with Client("memory://") as client, client.subscribe("orders", "billing") as consumer:
        ...     producer = client.create_producer("orders", producer_name="till-1")
        ...     message_id = producer.send(b"tea", {"table": "7"}, ordering_key="bar", event_timestamp=1000)
        ...     message = consumer.receive()
        >>> message.topic_name(), message.producer_name(), message.sequence_id()
        ('persistent://public/default/orders', 'till-1', 0)
        >>> message.properties(), message.ordering_key(), message.event_timestamp()
        ({'table': '7'}, 'bar', 1000)
        >>> message.publish_timestamp() > 1000, message.redelivery_count(), message.schema_version()
        (True, 0, '')
        >>> message.has_null_value(), message.encryption_context(), message.deliver_at()
        (False, None, 0)
    """

    __slots__ = ("_entry", "_index", "_origin")

    def __init__(self, entry: DecodedEntry, index: int, origin: Origin) -> None:
        self._entry = entry
        self._index = index
        self._origin = origin

    def data(self) -> bytes:
        """Return the payload, as it was sent. ``b""`` for a null value."""
        entry = self._entry
        offsets = entry.offsets
        # Hot: locals, and one slice of the payload of the whole entry.
        index = self._index
        return entry.payload[offsets[index] : offsets[index + 1]]

    def value(self) -> T:
        """Return the payload decoded by the schema of the consumer.

        Returns:
            None for a null value, whatever the schema; ``pulsar-client`` passes ``b""`` to the schema. With
            `KeyValueSchema` and a key that is stored in the message, a `KeyValue` with the key and None.

        Raises:
            Exception: any exception of the schema for a payload that does not fit it.
        """
        origin = self._origin
        # A schema that needs more of the message than its payload: its writer's schema, or its key.
        if origin.by_message:
            offsets, index = self._entry.offsets, self._index
            # No bytes are an empty payload or a null value; only then is the bitmap looked at.
            if offsets[index] == offsets[index + 1] and self._entry.null(index):
                return cast("T", self._null_value())
            return cast("T", origin.schema.decode_message(self))
        data = self.data()
        if not data and self._entry.null(self._index):
            return cast("T", None)
        return cast("T", origin.schema.decode(data))

    def _null_value(self) -> object:
        """The value of a null value: None, unless a schema finds a key in the key of the message."""
        schema = self._origin.schema
        # A pair whose key is stored apart has a key, also where its value is null.
        if hasattr(schema, "decode_keyed") and self.partition_key():
            return schema.decode_message(self)
        return None

    def message_id(self) -> MessageId:
        """Return the id of the message, which equals the id that `Producer.send` returned."""
        entry = self._entry
        partition = self._origin.partition
        # A batch of one has an index as well: the flag of the entry says it, and not the number of messages.
        if entry.batched:
            return make(entry.ledger_id, entry.entry_id, self._index, partition, entry.count)
        message_id = make(entry.ledger_id, entry.entry_id, -1, partition, 0)
        # Only entries that are put together of chunks have the attribute.
        first_chunk = getattr(entry, "first_chunk", None)
        if first_chunk is not None:
            message_id._first_chunk = make(first_chunk[0], first_chunk[1], -1, partition, 0)
        return message_id

    def topic_name(self) -> str:
        """Return the full name of the topic; on a partitioned topic, of the partition."""
        return self._origin.topic_name

    def properties(self) -> dict[str, str]:
        """Return the properties, a new dict; empty if there are none."""
        return dict(self._entry.properties(self._index) or ())

    def partition_key(self) -> str:
        """Return the key of the message, ``""`` if it has none."""
        keys = self._entry.keys()
        return (keys[self._index] or "") if keys is not None else ""

    def ordering_key(self) -> str:
        """Return the ordering key, ``""`` if it has none."""
        keys = self._entry.ordering_keys()
        return (keys[self._index] or "") if keys is not None else ""

    def publish_timestamp(self) -> int:
        """Return the time of publication in milliseconds since 1970 (UTC). Never decreases within a topic."""
        return self._entry.publish_time

    def event_timestamp(self) -> int:
        """Return the event time set by the producer, in milliseconds since 1970 (UTC); 0 if it is not set."""
        times = self._entry.event_times()
        return times[self._index] if times is not None else 0

    def deliver_at(self) -> int:
        """Return the earliest delivery on Shared subscriptions that the producer asked for, in milliseconds
        since 1970 (UTC); 0 for at once (not in ``pulsar-client``)."""
        times = self._entry.deliver_at()
        return times[self._index] if times is not None else 0

    def redelivery_count(self) -> int:
        """Return the number of earlier deliveries; counted on Shared and Key_Shared subscriptions only."""
        return self._entry.redelivery_count

    def schema_version(self) -> str:
        """Return the version of the schema with which the message was written.

        Eight characters holding a big-endian counter, as in ``pulsar-client``; ``""`` without a schema.
        """
        version = self._entry.schema_version
        # Pulsar's clients show the version as the eight bytes of a long, in a str.
        return version.to_bytes(8, "big").decode("latin-1") if version >= 0 else ""

    def writer_schema(self) -> SchemaInfo | None:
        """Return the schema with which the message was written, also if it was deleted since then (not in
        ``pulsar-client``).

        Returns:
            None if the message was written without one, or if it is not kept any more.

        Raises:
            AlreadyClosed: the client was closed before the schema was looked up.
            StorageError: the schemas of the topic cannot be read.

        Example:
            >>> from embeddedpulsar import Client
            >>> from embeddedpulsar.schema import StringSchema
            >>> with Client("memory://") as client:
            ...     consumer = client.subscribe("notes", "s")
            ...     _ = client.create_producer("notes", schema=StringSchema()).send("buy milk")
            ...     consumer.receive().writer_schema()
            <SchemaInfo SchemaType.STRING 'STRING'>
        """
        writers = getattr(self._origin, "writers", None)  # that of an unsent message lacks it
        return None if writers is None else writers[self._entry.schema_version]

    def producer_name(self) -> str:
        """Return the name of the producer."""
        return self._entry.producer_name

    def sequence_id(self) -> int:
        """Return the sequence id the producer gave the message (not in ``pulsar-client``)."""
        ids = self._entry.sequence_ids()
        # Ids that count up are not stored, only the first one.
        return ids[self._index] if ids is not None else self._entry.first_sequence_id + self._index

    def has_null_value(self) -> bool:
        """Return whether None was sent; an empty payload is not null."""
        return self._entry.null(self._index)

    def encryption_context(self) -> EncryptionContext | None:
        """Return the encryption of the message; None if it was not encrypted."""
        return getattr(self._entry, "encryption", None)

    def replace(self, *, data: bytes | None = None, properties: dict[str, str] | None = None) -> Message[T]:
        """Return a copy with another payload or other properties, for interceptors. Not in ``pulsar-client``.

        The copy has the id of the message, so acknowledging the copy acknowledges the message.

        Example:
            >>> from types import SimpleNamespace
            >>> entry = SimpleNamespace(payload=b"zip", offsets=[0, 3], properties=lambda index: None)
            >>> copy = Message(entry, 0, SimpleNamespace()).replace(data=b"zipped", properties={"by": "me"})
            >>> copy.data(), copy.properties()
            (b'zipped', {'by': 'me'})
        """
        index = self._index
        payload = self.data() if data is None else data
        if not isinstance(payload, bytes):
            raise TypeError(f"data is {type(payload).__name__}, not bytes")
        fields = self.properties() if properties is None else dict(properties)
        # The entry stays shared: its other messages are not affected.
        return Message(_ChangedEntry(self._entry, index, payload, fields), index, self._origin)

    def __copy__(self) -> Self:
        return self  # a message never changes, and a copy is to be acknowledged like the message

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # All that the message can be asked for, of this message alone: the entry may be a megabyte, and its
        # map does not go to another process.
        index, entry, origin = self._index, self._entry, self._origin
        fields = {
            "ledger_id": entry.ledger_id,
            "entry_id": entry.entry_id,
            "first_chunk": getattr(entry, "first_chunk", None),
            "batched": entry.batched,
            "count": entry.count,
            "redelivery_count": entry.redelivery_count,
            "publish_time": self.publish_timestamp(),
            "producer_name": self.producer_name(),
            "schema_version": entry.schema_version,
            "encryption": self.encryption_context(),
            "payload": self.data(),
            "key": self.partition_key(),
            "ordering_key": self.ordering_key(),
            "own_properties": self.properties(),
            "event_time": self.event_timestamp(),
            "delivery_time": self.deliver_at(),
            "sequence_id": self.sequence_id(),
            "is_null": self.has_null_value(),
        }
        shared = (origin.topic_name, origin.schema, self.writer_schema(), origin.by_message, origin.partition)
        return _restored, (index, fields, shared)

    def __repr__(self) -> str:
        key = self.partition_key()
        label = f" key={key!r}" if key else ""
        return f"<Message {self.message_id()} of {self.topic_name()}{label} {len(self.data())} bytes>"


class _ChangedEntry:
    """An entry with one changed message, for that message alone; see `Message.replace`."""

    __slots__ = ("_entry", "_properties", "offsets", "payload")

    def __init__(self, entry: DecodedEntry, index: int, payload: bytes, properties: dict[str, str]) -> None:
        self._entry = entry
        self._properties = properties
        self.payload = payload
        # Only the slice of this message matters; those before it are empty.
        self.offsets = [0] * (index + 1) + [len(payload)]

    def __getattr__(self, name: str) -> Any:
        # Everything but payload and properties is that of the entry.
        return getattr(self._entry, name)

    def properties(self, index: int) -> dict[str, str]:
        """Return the properties of the copy."""
        return self._properties


class _KeptEntry:
    """An entry of which one message is left: that of a message which was pickled.

    ``acked`` is None, so the message is acknowledged by its id.
    """

    acked = None

    def __init__(self, index: int, fields: dict[str, Any]) -> None:
        # The values of this message alone, at the place that it had in its batch.
        vars(self).update(fields)
        self._rows = index + 1
        self.offsets = [0] * self._rows + [len(fields["payload"])]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def first_sequence_id(self) -> int:
        """The sequence id of message 0, as if the ids of the batch were consecutive."""
        # `Message.sequence_id` adds the index to this.
        first: int = self.sequence_id - self._rows + 1
        return first

    def keys(self) -> list[str | None]:
        """The partition key."""
        return [self.key] * self._rows

    def ordering_keys(self) -> list[str | None]:
        """The ordering key."""
        return [self.ordering_key] * self._rows

    def properties(self, index: int) -> dict[str, str]:
        """The properties."""
        own: dict[str, str] = self.own_properties
        return own

    def event_times(self) -> list[int]:
        """The event time, in ms."""
        return [self.event_time] * self._rows

    def deliver_at(self) -> list[int]:
        """The delivery time, in ms."""
        return [self.delivery_time] * self._rows

    def sequence_ids(self) -> None:
        """The sequence id is made of `first_sequence_id`."""

    def null(self, index: int) -> bool:
        """Whether the value is null."""
        return bool(self.is_null)


def _restored(
    index: int, fields: dict[str, Any], shared: tuple[str, ValueDecoder, SchemaInfo | None, bool, int]
) -> Message[Any]:
    """The message that `Message.__reduce__` took apart."""
    topic_name, schema, writer, by_message, partition = shared
    writers = {fields["schema_version"]: writer}
    origin = MessageOrigin(topic_name, schema, writers, by_message, partition)
    return Message(_KeptEntry(index, fields), index, origin)


def messages_of(entry: DecodedEntry, first: int, end: int, origin: Origin) -> list[Message[Any]]:
    """Make the messages ``first`` to ``end - 1`` of an entry, without calls of ``__init__``, which saves a
    fifth of the time."""
    messages: list[Message[Any]] = list(map(_new, repeat(Message, end - first)))
    for index, message in enumerate(messages, first):
        message._entry = entry
        message._index = index
        message._origin = origin
    return messages


def messages_left(
    entry: DecodedEntry, skip: int | bytearray | None, origin: Origin, first: int = 0
) -> list[Message[Any]]:
    """Make the messages of an entry from index ``first`` on, without those that are acknowledged.

    Args:
        entry: the entry.
        skip: the acknowledged messages, as bits or as bytes; None for none.
        origin: what the messages share.
        first: the first of them.
    """
    return [Message(entry, i, origin) for i in range(first, entry.count) if not is_skipped(skip, i)]


def is_skipped(skip: int | bytearray | None, index: int) -> bool:
    """Whether a message of a batch was acknowledged before its entry was fetched.

    >>> is_skipped(0b101, 2), is_skipped(0b101, 1), is_skipped(None, 0)
    (True, False, False)
    """
    if skip is None:
        return False
    if isinstance(skip, int):
        return bool(skip >> index & 1)
    return bool(skip[index])


def size_of(messages: Iterable[Message[Any]]) -> int:
    """Return the payload size in bytes."""
    size = 0
    for message in messages:
        offsets, index = message._entry.offsets, message._index
        size += offsets[index + 1] - offsets[index]
    return size
