"""Schemas that take the definition from the topic: generic records, and payloads that are encoded already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from embeddedpulsar.enums import SchemaType
from embeddedpulsar.schema.key_value import is_separated, key_value_decoder, payload_decoder
from embeddedpulsar.schema.schema import BytesSchema, Schema, SchemaInfo


class GenericRecord:
    """A value that was decoded by the definition of its writer. As Pulsar's ``GenericRecord``.

    Args:
        native: the value: a dict, a Protobuf message, a text, a number, a time, bytes, or a `KeyValue` of
            them.
        info: the schema; None for bytes without one.

    Example:
        >>> record = GenericRecord({"item": "soup", "count": 2}, None)
        >>> record.get_fields(), record.get_field("item"), record["count"]
        (['item', 'count'], 'soup', 2)
        >>> record.get_native_object(), record.get_schema_type()
        ({'item': 'soup', 'count': 2}, <SchemaType.BYTES: -1>)
    """

    __slots__ = ("_info", "_native")

    def __init__(self, native: Any, info: SchemaInfo | None) -> None:
        self._native: Final = native
        self._info: Final = info

    def get_schema_type(self) -> SchemaType:
        """Return the type of the schema; ``SchemaType.BYTES`` for bytes without one."""
        return SchemaType.BYTES if self._info is None else self._info.schema_type()

    def get_native_object(self) -> Any:
        """Return the value: a dict, a Protobuf message, a text, a number, a time, bytes, or a `KeyValue`."""
        return self._native

    def get_fields(self) -> list[str]:
        """Return the names of the fields; empty for a value without fields."""
        if isinstance(self._native, dict):
            return list(self._native)
        descriptor = getattr(self._native, "DESCRIPTOR", None)
        return [] if descriptor is None else [field.name for field in descriptor.fields]

    def get_field(self, name: str) -> Any:
        """Return the value of a field; None if the record does not have it. A record in it is a dict."""
        if isinstance(self._native, dict):
            return self._native.get(name)
        return getattr(self._native, name, None) if name in self.get_fields() else None

    def __getitem__(self, name: str) -> Any:
        if name not in self.get_fields():
            raise KeyError(name)
        return self.get_field(name)

    def __contains__(self, name: object) -> bool:
        return name in self.get_fields()

    def __iter__(self) -> Iterator[str]:
        return iter(self.get_fields())

    def __eq__(self, other: object) -> bool:
        return self._native == other._native if isinstance(other, GenericRecord) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<GenericRecord {self.get_schema_type().name} {self._native!r}>"


class AutoConsumeSchema(Schema[GenericRecord]):
    """For consumers and readers of any topic: each message is decoded with the schema of its writer.

    As ``Schema.AUTO_CONSUME`` of Pulsar's Java client. It registers nothing, and is never refused. Messages
    without a schema are records of bytes.

    Example:
        >>> from embeddedpulsar import Client
        >>> from embeddedpulsar.schema import Integer, JsonSchema, Record
        >>> class Order(Record):
        ...     table = Integer()
        >>> with Client("memory://") as client:
        ...     consumer = client.subscribe("orders", "s", schema=AutoConsumeSchema())
        ...     _ = client.create_producer("orders", schema=JsonSchema(Order)).send(Order(table=7))
        ...     consumer.receive().value()
        <GenericRecord JSON {'table': 7}>
        >>> AutoConsumeSchema().decode_written(b'{"table": 7}', JsonSchema(Order).schema_info())["table"]
        7
        >>> AutoConsumeSchema().decode(b"seven")
        <GenericRecord BYTES b'seven'>
        >>> AutoConsumeSchema().encode({"table": 7})
        Traceback (most recent call last):
        TypeError: AutoConsumeSchema is for consumers; give the producer AutoProduceBytesSchema()
    """

    def __init__(self) -> None:
        super().__init__(GenericRecord, SchemaType.AUTO_CONSUME, None, "AUTO_CONSUME")
        self._forget_decoders()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_decoders", "_keyed")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget_decoders()

    def _forget_decoders(self) -> None:
        self._decoders: dict[SchemaInfo, Callable[[bytes], Any]] = {}
        self._keyed: dict[SchemaInfo, Callable[[bytes | None, str], Any]] = {}

    def encode(self, obj: GenericRecord) -> bytes:
        """Refuse: a producer needs a schema of its own, or `AutoProduceBytesSchema`."""
        raise TypeError("AutoConsumeSchema is for consumers; give the producer AutoProduceBytesSchema()")

    def decode(self, data: bytes) -> GenericRecord:
        """Return the bytes as a record without fields."""
        return GenericRecord(data, None)

    def decode_message(self, msg: Any) -> GenericRecord:
        """Return the value of a message."""
        writer = msg.writer_schema()
        if writer is None or writer.schema_type() != SchemaType.KEY_VALUE:
            return self.decode_written(msg.data(), writer)
        return self.decode_keyed(None if msg.has_null_value() else msg.data(), msg.partition_key(), writer)

    def decode_written(self, data: bytes, writer: SchemaInfo | None) -> GenericRecord:
        """Return the record of a payload; see `payload_decoder.payload_decoder` for the errors."""
        if writer is None:
            return self.decode(data)
        decode = self._decoders.get(writer)
        if decode is None:
            decode = self._decoders[writer] = payload_decoder(writer)
        return GenericRecord(decode(data), writer)

    def decode_keyed(
        self, data: bytes | None, partition_key: str, writer: SchemaInfo | None
    ) -> GenericRecord:
        """Return the record of a payload, None for a null value, and of the key of its message.

        Example:
            >>> from embeddedpulsar.schema import KeyValueEncodingType, KeyValueSchema, StringSchema
            >>> writer = KeyValueSchema(StringSchema(), StringSchema(), KeyValueEncodingType.SEPARATED)
            >>> AutoConsumeSchema().decode_keyed(b"soup", "aw==", writer.schema_info())
            <GenericRecord KEY_VALUE KeyValue(key='k', value='soup')>
        """
        if writer is None or writer.schema_type() != SchemaType.KEY_VALUE:
            return self.decode_written(data or b"", writer)
        decode = self._keyed.get(writer)
        if decode is None:
            decode = self._keyed[writer] = key_value_decoder(writer)
        return GenericRecord(decode(data, partition_key), writer)


class AutoProduceBytesSchema(BytesSchema):
    """For producers of payloads that are encoded already: each must fit the newest schema that the topic had
    when the producer was created. As ``Schema.AUTO_PRODUCE_BYTES`` of Pulsar's Java client.

    A topic without a schema takes any bytes. With `KeyValueEncodingType.SEPARATED`, the payload is that of
    the value, and ``partition_key`` the key in Base64.

    Example:
        >>> from embeddedpulsar import Client
        >>> from embeddedpulsar.schema import Integer, JsonSchema, Record
        >>> class Order(Record):
        ...     table = Integer()
        >>> with Client("memory://") as client:
        ...     consumer = client.subscribe("orders", "s", schema=JsonSchema(Order))
        ...     producer = client.create_producer("orders", schema=AutoProduceBytesSchema())
        ...     _ = producer.send(b'{"table": 7}')
        ...     consumer.receive().value().table
        7
        >>> with Client("memory://") as client:
        ...     _ = client.create_producer("orders", schema=JsonSchema(Order))
        ...     client.create_producer("orders", schema=AutoProduceBytesSchema()).send(b"7 soups")
        Traceback (most recent call last):
        ValueError: the payload does not fit the JSON schema of the topic: ...
    """

    def __init__(self) -> None:
        super().__init__()
        self._schema_info = SchemaInfo(SchemaType.AUTO_PUBLISH, "AUTO_PUBLISH", "null")
        self._check: Callable[[bytes], object] = len

    def for_topic(self, info: SchemaInfo) -> AutoProduceBytesSchema:
        """Return the schema for a topic that has schema ``info``. Called when a producer is created.

        Example:
            >>> from embeddedpulsar.schema import StringSchema
            >>> AutoProduceBytesSchema().for_topic(StringSchema().schema_info()).encode(b"tea")
            b'tea'
        """
        bound = AutoProduceBytesSchema()
        bound._schema_info = info
        bound._check = payload_decoder(info)
        bound.separates_key = is_separated(info)
        return bound

    def __reduce__(self) -> tuple[Any, ...]:
        if self._schema_info.schema_type() == SchemaType.AUTO_PUBLISH:
            return AutoProduceBytesSchema, ()
        return AutoProduceBytesSchema.for_topic, (AutoProduceBytesSchema(), self._schema_info)

    def encode(self, data: bytes) -> bytes:
        """Return ``data``.

        Raises:
            TypeError: it is not ``bytes``.
            ValueError: it does not fit the schema of the topic.
        """
        self._validate_object_type(data)
        try:
            self._check(data)
        except Exception as error:  # each format has its own
            raise self._unfit("payload", error) from error
        return data

    def encode_keyed(self, obj: bytes | None, partition_key: str | None) -> tuple[bytes | None, str | None]:
        """Return ``obj`` and the key, for a topic whose schema separates keys. Called when a message is sent.

        Raises:
            TypeError, ValueError: see `encode`; the key, too, must fit the schema.

        Example:
            >>> from embeddedpulsar.schema import KeyValueEncodingType, KeyValueSchema, StringSchema
            >>> pairs = KeyValueSchema(StringSchema(), StringSchema(), KeyValueEncodingType.SEPARATED)
            >>> AutoProduceBytesSchema().for_topic(pairs.schema_info()).encode_keyed(b"soup", "aw==")
            (b'soup', 'aw==')
        """
        payload = None if obj is None else self.encode(obj)
        try:
            key_value_decoder(self._schema_info)(None, partition_key or "")
        except Exception as error:  # each format has its own
            raise self._unfit("key", error) from error
        return payload, partition_key

    def _unfit(self, what: str, error: Exception) -> ValueError:
        kind = self._schema_info.schema_type().name
        return ValueError(f"the {what} does not fit the {kind} schema of the topic: {error}")
