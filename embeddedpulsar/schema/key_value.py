"""Schema of keys and values, both in the payload or the key in the key of the message.

Schemas that take the definition from the topic: generic records, and payloads that are encoded already.

Decoders of payloads by the definition alone, into plain Python values, for callers that know no class.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, Self, TypeVar

from embeddedpulsar.enums import KeyValueEncodingType, SchemaType
from embeddedpulsar.exceptions import IncompatibleSchema
from embeddedpulsar.schema.schema import BytesSchema, KeyValueInfo, Schema, SchemaInfo


def payload_decoder(info: SchemaInfo) -> Callable[[bytes], Any]:
    """Return the decoder of the payloads of a schema.

    Returns:
        A function that returns a ``dict`` for Avro, the value of a JSON text, a ``str``, a number, a time, a
        Protobuf message, or ``bytes`` for a type that has no decoder. It raises an error of the format for a
        payload that does not fit. Of keys and values it is a `KeyValue`, or the value alone if the key is
        not in the payload.

    Raises:
        ImportError: the library of the format is not installed.
        ValueError: the definition is not valid.

    Example:
        >>> payload_decoder(SchemaInfo(SchemaType.INT32, "INT32", ""))(bytes(3) + b"*")
        42
    """
    # By frequency. Libraries are imported for the types that need them, when a topic has such a schema.
    kind = info.schema_type()
    if kind == SchemaType.STRING:
        return bytes.decode
    if kind == SchemaType.JSON:
        from embeddedpulsar.schema.json_text import loads

        return loads
    if kind == SchemaType.AVRO:
        return _avro_decoder(info.schema())
    if kind == SchemaType.PROTOBUF_NATIVE:
        return _protobuf_decoder(info.schema())
    if kind == SchemaType.KEY_VALUE:
        decode: Callable[[bytes], Any] = value_decoder(info)
        return decode
    from embeddedpulsar.schema.primitives import primitive_schema

    schema_class = primitive_schema(kind)
    return bytes if schema_class is None else schema_class.decode


def _avro_decoder(definition: str) -> Callable[[bytes], Any]:
    from embeddedpulsar.schema.schema_avro import library, parsed

    read, tree = library().schemaless_reader, parsed(json.loads(definition))

    def decode(data: bytes) -> Any:
        buffer = io.BytesIO(data)
        # Without a reader's definition: values have the fields as they were written.
        value = read(buffer, tree, None)
        # The library reads as far as it needs; bytes behind that mean that the payload is of another
        # definition.
        if buffer.tell() != len(data):
            raise ValueError(f"{len(data) - buffer.tell()} bytes are left behind the value")
        return value

    return decode


def _protobuf_decoder(definition: str) -> Callable[[bytes], Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    fields = json.loads(definition)
    # A pool of its own: the default one belongs to the application, which may have another file of the same
    # name.
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(fields["fileDescriptorSet"]))
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(fields["rootMessageTypeName"]))
    # The implementations of protobuf, in C and in Python, raise different errors for one and the same fault.
    except (DecodeError, ValueError, TypeError, KeyError, RecursionError) as error:
        reason = error.args[0] if isinstance(error, KeyError) else error
        raise IncompatibleSchema(
            f"the topic has a Protobuf definition from which no message can be made: {reason}; delete its "
            "schemas with Admin.schemas().delete_schema, or receive the bytes"
        ) from error
    decode: Callable[[bytes], Any] = kind.FromString
    return decode


K = TypeVar("K")
V = TypeVar("V")
_LENGTH: Final = 4
_NULL: Final = b"\xff" * _LENGTH
_SEPARATED: Final = KeyValueEncodingType.SEPARATED
_Decoder = Callable[[bytes], Any]


class KeyValue(tuple[K, V], Generic[K, V]):
    """A key and its value; each may be None. A tuple of two.

    Example:
        >>> pair = KeyValue("table-7", 3)
        >>> key, value = pair
        >>> (key, value) == (pair.key, pair.value), pair
        (True, KeyValue(key='table-7', value=3))
    """

    __slots__ = ()

    def __new__(cls, key: K | None, value: V | None) -> Self:
        """Make a pair."""
        return tuple.__new__(cls, (key, value))

    @property
    def key(self) -> K:
        """The key; None for none."""
        return self[0]

    @property
    def value(self) -> V:
        """The value; None for none."""
        return self[1]

    def __getnewargs__(self) -> tuple[K, V]:
        return self[0], self[1]

    def __repr__(self) -> str:
        return f"KeyValue(key={self[0]!r}, value={self[1]!r})"


class KeyValueSchema(Schema[KeyValue[K, V]]):
    """Values are `KeyValue` pairs, each part with a schema of its own. As in Pulsar's Java client.

    With ``INLINE``, both are in the payload. With ``SEPARATED``, the payload is the value alone, and the key
    of the message is the key, encoded by its schema and in Base64: `Message.partition_key` has it, and it
    decides the partition, the consumer of a Key_Shared subscription, and what compaction and table views
    keep. Then ``send`` takes no ``partition_key``.

    Args:
        key_schema: of the keys.
        value_schema: of the values.
        encoding: where the key is stored.

    Raises:
        TypeError: a part is not a schema, or ``encoding`` is not a `KeyValueEncodingType`.
        ValueError: a part takes the schema of the topic, or is a pair that is stored ``SEPARATED``.

    Example:
        >>> from embeddedpulsar import Client
        >>> from embeddedpulsar.schema import Int32Schema, StringSchema
        >>> schema = KeyValueSchema(StringSchema(), Int32Schema(), KeyValueEncodingType.SEPARATED)
        >>> with Client("memory://") as client:
        ...     consumer = client.subscribe("tables", "s", schema=schema)
        ...     _ = client.create_producer("tables", schema=schema).send(KeyValue("table-7", 3))
        ...     message = consumer.receive()
        >>> message.value(), message.partition_key(), message.data()
        (KeyValue(key='table-7', value=3), 'dGFibGUtNw==', b'\\x00\\x00\\x00\\x03')
        >>> KeyValueSchema(StringSchema(), Int32Schema()).encode(KeyValue("k", 3)).hex()
        '000000016b0000000400000003'
    """

    def __init__(
        self,
        key_schema: Schema[K],
        value_schema: Schema[V],
        encoding: KeyValueEncodingType = KeyValueEncodingType.INLINE,
    ) -> None:
        for part in (key_schema, value_schema):
            if not isinstance(part, Schema):
                raise TypeError(f"{part!r} is not a schema; StringSchema() is one, for example")
        if not isinstance(encoding, KeyValueEncodingType):
            raise TypeError(f"encoding is a KeyValueEncodingType, not {encoding!r}")
        self._key: Final = key_schema
        self._value: Final = value_schema
        own = KeyValueInfo(key_schema.schema_info(), value_schema.schema_info(), encoding)
        self._record_cls = KeyValue
        self._schema_info = own.info()
        self._own: Final = own
        self._written: dict[SchemaInfo, KeyValueInfo] = {}
        self.separates_key = encoding == _SEPARATED

    def encoding(self) -> KeyValueEncodingType:
        """Return where the key is stored.

        Example:
            >>> from embeddedpulsar.schema import StringSchema
            >>> KeyValueSchema(StringSchema(), StringSchema()).encoding().name
            'INLINE'
        """
        return self._own.encoding

    def partition_key(self, key: K) -> str:
        """Return the key that a message has, with ``SEPARATED``: for `TableView.get`, for example.

        Raises:
            ValueError: the key is encoded to no bytes, as an empty text: a message has no empty key.

        Example:
            >>> from embeddedpulsar.schema import StringSchema
            >>> schema = KeyValueSchema(StringSchema(), StringSchema(), KeyValueEncodingType.SEPARATED)
            >>> schema.partition_key("k")
            'aw=='
        """
        data = self._key.encode(key)
        if not data:
            raise ValueError(
                f"the key {key!r} is encoded to no bytes, which is no key of a message; use "
                "KeyValueEncodingType.INLINE, or another key"
            )
        return base64.b64encode(data).decode("ascii")

    def encode(self, obj: KeyValue[K, V]) -> bytes:
        """Return the payload of a pair; with ``SEPARATED``, that of its value.

        Raises:
            TypeError: ``obj`` is not a `KeyValue`, or a part of it is not of the type of its schema.
        """
        if self.separates_key:
            return self.encode_keyed(obj, None)[0] or b""
        self._validate_object_type(obj)
        return joined_pair(
            None if obj.key is None else self._key.encode(obj.key),
            None if obj.value is None else self._value.encode(obj.value),
        )

    def encode_keyed(
        self, obj: KeyValue[K, V] | None, partition_key: str | None
    ) -> tuple[bytes | None, str | None]:
        """Return the payload and the key of a message, with ``SEPARATED``. Called when it is sent.

        Args:
            obj: the pair; None for a message without either.
            partition_key: as it was given to ``send``.

        Returns:
            None in place of the payload for a value of None, and in place of the key for a key of None.

        Raises:
            TypeError: see `encode`.
            ValueError: a key was given to ``send``, or see `partition_key`.

        Example:
            >>> from embeddedpulsar.schema import StringSchema
            >>> schema = KeyValueSchema(StringSchema(), StringSchema(), KeyValueEncodingType.SEPARATED)
            >>> schema.encode_keyed(KeyValue("k", "soup"), None)
            (b'soup', 'aw==')
        """
        # The key of a message is that of the pair: another one would be lost, or would route the message
        # elsewhere than the pair says.
        if partition_key is not None:
            raise ValueError(
                "with KeyValueEncodingType.SEPARATED, the key of the message is that of the KeyValue; leave "
                "partition_key out, or use INLINE"
            )
        if obj is None:
            return None, None
        self._validate_object_type(obj)
        payload = None if obj.value is None else self._value.encode(obj.value)
        return payload, None if obj.key is None else self.partition_key(obj.key)

    def decode(self, data: bytes) -> KeyValue[K, V]:
        """Return the pair of a payload, with ``INLINE``.

        Raises:
            ValueError: the payload is not a pair, or the key is not in it: with ``SEPARATED``, see
                `decode_message` and `decode_keyed`.
        """
        return self._inline(data, self._own.encoding, None)

    def decode_message(self, msg: Any) -> KeyValue[K, V]:
        """Return the pair of a message."""
        data = None if msg.has_null_value() else msg.data()
        return self.decode_keyed(data, msg.partition_key(), msg.writer_schema())

    def decode_written(self, data: bytes, writer: SchemaInfo | None) -> KeyValue[K, V]:
        """Return the pair of a payload that was written with another version of the schema."""
        written = self._parts_of(writer)
        return self._inline(data, (written or self._own).encoding, written)

    def decode_keyed(
        self, data: bytes | None, partition_key: str, writer: SchemaInfo | None
    ) -> KeyValue[K, V]:
        """Return the pair of a payload and the key of its message.

        Args:
            data: the payload; None for a null value.
            partition_key: of the message; ``""`` for none.
            writer: the schema with which it was written; None if that is not known.

        Raises:
            ValueError: the payload is not a pair, or the key is not Base64.

        Example:
            >>> from embeddedpulsar.schema import StringSchema
            >>> schema = KeyValueSchema(StringSchema(), StringSchema(), KeyValueEncodingType.SEPARATED)
            >>> schema.decode_keyed(b"soup", "aw==", None)
            KeyValue(key='k', value='soup')
        """
        written = self._parts_of(writer)
        encoding = (written or self._own).encoding
        if encoding != _SEPARATED:
            return self._inline(data or b"", encoding, written)
        return self._pair(key_bytes(partition_key), data, written)

    def _parts_of(self, writer: SchemaInfo | None) -> KeyValueInfo | None:
        """The parts of the schema of the writer; None if it has none, or another type."""
        if writer is None or writer.schema_type() != self._schema_info.schema_type():
            return None
        written = self._written.get(writer)
        if written is None:
            written = self._written[writer] = KeyValueInfo.of(writer)
        return written

    def _inline(
        self, data: bytes, encoding: KeyValueEncodingType, written: KeyValueInfo | None
    ) -> KeyValue[K, V]:
        if encoding == _SEPARATED:
            raise ValueError(
                "the key is not in the payload, but in the key of the message; use Message.value(), or "
                "decode_keyed(data, partition_key, None)"
            )
        return self._pair(*split_pair(data), written)

    def _pair(
        self, key: bytes | None, value: bytes | None, written: KeyValueInfo | None
    ) -> KeyValue[Any, Any]:
        return KeyValue(
            None if key is None else self._key.decode_written(key, written and written.key),
            None if value is None else self._value.decode_written(value, written and written.value),
        )

    def _hint(self, obj: object) -> str:
        return "; send KeyValue(*pair)" if isinstance(obj, tuple) else "; send KeyValue(key, value)"

    def __str__(self) -> str:
        return f"KeyValueSchema({self._key}, {self._value}, {self._own.encoding.name})"


def key_bytes(partition_key: str) -> bytes | None:
    """Return the bytes of a key that is stored apart; None for ``""``.

    Raises:
        ValueError: it is not Base64.

    Example:
        >>> key_bytes("aw=="), key_bytes("")
        (b'k', None)
    """
    if not partition_key:
        return None
    try:
        return base64.b64decode(partition_key, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(
            f"the key {partition_key!r} of the message is not Base64, which KeyValueEncodingType.SEPARATED "
            f"makes of a key: {error}"
        ) from error


def key_value_decoder(info: SchemaInfo) -> Callable[[bytes | None, str], KeyValue[Any, Any]]:
    """Return the decoder of the messages of a schema of pairs, by the definition alone.

    Returns:
        A function of the payload, None for a null value, and of the key of the message. For errors see
        `payload_decoder.payload_decoder`.
    """
    parts = KeyValueInfo.of(info)
    decode_key, decode_value = payload_decoder(parts.key), payload_decoder(parts.value)

    def decode(data: bytes | None, partition_key: str) -> KeyValue[Any, Any]:
        is_apart = parts.encoding == _SEPARATED
        key, value = (key_bytes(partition_key), data) if is_apart else split_pair(data or b"")
        return KeyValue(_decoded(decode_key, key), _decoded(decode_value, value))

    return decode


def is_separated(info: SchemaInfo) -> bool:
    """Whether messages of a schema have a key in Base64 that is part of the value.

    Raises:
        ValueError: the definition is not valid.
    """
    return info.schema_type() == SchemaType.KEY_VALUE and KeyValueInfo.of(info).encoding == _SEPARATED


def value_decoder(info: SchemaInfo) -> _Decoder:
    """Return the decoder of the payload alone: of a pair, or of its value if the key is stored apart."""
    parts = KeyValueInfo.of(info)
    if parts.encoding == _SEPARATED:
        return payload_decoder(parts.value)
    decode = key_value_decoder(info)
    return lambda data: decode(data, "")


def _decoded(decode: _Decoder, data: bytes | None) -> Any:
    return None if data is None else decode(data)


def joined_pair(key: bytes | None, value: bytes | None) -> bytes:
    """The payload of two parts: the opposite of `split_pair`."""
    parts: list[bytes] = []
    for data in (key, value):
        parts += [_NULL] if data is None else [len(data).to_bytes(_LENGTH, "big"), data]
    return b"".join(parts)


def split_pair(data: bytes) -> tuple[bytes | None, bytes | None]:
    """The two parts of a payload, each behind its length; -1 stands for None."""
    at, parts = 0, list[bytes | None]()
    for _ in range(2):
        size = int.from_bytes(data[at : at + _LENGTH], "big", signed=True)
        start = at + _LENGTH
        if start > len(data) or size < -1 or start + size > len(data):
            raise ValueError(
                f"a payload of {len(data)} bytes is not a key and a value, each behind its length"
            )
        parts.append(None if size < 0 else data[start : start + size])
        at = start + max(size, 0)
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes are left behind the value")
    return parts[0], parts[1]


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
