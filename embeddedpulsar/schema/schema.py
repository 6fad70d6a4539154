"""Schemas: the codec of a message's value, and a description of it."""

from __future__ import annotations

from sys import modules

from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.store.schema_info import KeyValueInfo as KeyValueInfo
from embeddedpulsar._engine.store.schema_info import SchemaInfo as SchemaInfo
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.message import MessageOrigin
from embeddedpulsar.records import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Final

    from embeddedpulsar._engine.store.store import Store


T = TypeVar("T")
_LAST_VERSION = 2**31 - 1
_NO_VERSION: Final = -1


class Schema(Generic[T]):
    """Base of all schemas. Stateless, so one object may serve any number of producers and consumers.

    Derive from it to give a topic a codec of your own: override `encode` and `decode`.

    Args:
        record_cls: the class of the values.
        schema_type: the type that is stored with the topic.
        schema_definition: the definition, an object that `json.dumps` takes; None if it needs none.
        schema_name: the name that is stored with the topic.

    Raises:
        InvalidConfiguration: the definition has no JSON text, or is nested too deeply.

    Example:
        >>> class Number(Schema[int]):
        ...     def __init__(self):
        ...         super().__init__(int, SchemaType.BYTES, None, "BYTES")
        ...     def encode(self, obj):
        ...         self._validate_object_type(obj)
        ...         return str(obj).encode()
        ...     def decode(self, data):
        ...         return int(data)
        >>> Number().decode(Number().encode(42))
        42
        >>> Number().schema_info(), Number().decode_written(b"42", None)
        (<SchemaInfo SchemaType.BYTES 'BYTES'>, 42)
    """

    separates_key: bool = False
    """Whether the key of a message is made of its value: see `KeyValueSchema.encode_keyed`."""

    def __init__(
        self, record_cls: type[Any], schema_type: SchemaType, schema_definition: object, schema_name: str
    ) -> None:
        text = "null"  # without the import of json, a tenth of the import of the package
        if schema_definition is not None:
            with late_imports():
                from embeddedpulsar._engine.format.avro_definition import definition_text

            text = definition_text(schema_definition)
        self._record_cls = record_cls
        self._schema_info = SchemaInfo(schema_type, schema_name, text)

    def encode(self, obj: T) -> bytes:
        """Return the payload of ``obj``.

        Raises:
            TypeError: ``obj`` is not of the class this schema is for.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define encode()")

    def decode(self, data: bytes) -> T:
        """Return the value of a payload."""
        raise NotImplementedError(f"{type(self).__name__} does not define decode()")

    def decode_message(self, msg: Any) -> T:
        """Return the value of a message.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client, client.subscribe("notes", "s") as consumer:
            ...     message_id = client.create_producer("notes", schema=StringSchema()).send("buy milk")
            ...     StringSchema().decode_message(consumer.receive())
            'buy milk'
        """
        return self.decode(msg.data())

    def decode_written(self, data: bytes, writer: SchemaInfo | None) -> T:
        """Return the value of a payload that was written with another version of the schema.

        Args:
            data: the payload.
            writer: the schema with which it was written; None if that is not known.
        """
        return self.decode(data)

    def schema_info(self) -> SchemaInfo:
        """Return the description of this schema."""
        return self._schema_info

    def check_topic(self, topic: str, *, is_producer: bool) -> int:
        """Called before a producer, consumer or reader is made for a topic. Override it to refuse the topic,
        or to give messages a version.

        An error that it raises reaches the caller, `IncompatibleSchema` for example. Nothing is attached
        then, and no subscription or topic is created. A consumer of several topics is made only if all
        of them are accepted.

        Args:
            topic: full name; for partitions, that of the partitioned topic.
            is_producer: whether messages are to be written.

        Returns:
            The version that is stored with every message of the producer, see `Message.schema_version`; -1,
            the default, for none. For consumers and readers it has no effect.

        Example:
            >>> from embeddedpulsar import Client, IncompatibleSchema
            >>> class Plain(StringSchema):
            ...     def check_topic(self, topic, *, is_producer):
            ...         if topic.endswith("-binary"):
            ...             raise IncompatibleSchema(f"{topic} has no texts")
            ...         return 7
            >>> with Client("memory://") as client:
            ...     consumer = client.subscribe("notes", "s", schema=Plain())
            ...     _ = client.create_producer("notes", schema=Plain()).send("buy milk")
            ...     message = consumer.receive()
            ...     message.value(), message.schema_version()
            ('buy milk', '\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x07')
        """
        # For schemas of an application: those that a topic registers have their versions from it.
        return -1

    def attach_client(self, client: Any) -> None:
        """Called by the client that uses the schema, after the producer, consumer or reader is made.

        Example:
            >>> from embeddedpulsar import Client
            >>> class Plain(StringSchema):
            ...     def attach_client(self, client):
            ...         self.client = client
            >>> plain = Plain()
            >>> with Client("memory://") as client:
            ...     consumer = client.subscribe("notes", "s", schema=plain)
            ...     plain.client is client
            True
        """

    def _validate_object_type(self, obj: object) -> None:
        if not isinstance(obj, self._record_cls):
            text = f"Invalid record obj of type {type(obj)} - expected type is {self._record_cls}"
            raise TypeError(f"{text}{self._hint(obj)}")

    def _hint(self, obj: object) -> str:
        """What a caller that gives ``obj`` most likely means, for the text of the error."""
        return ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


def checked_version(schema: Schema[Any], topics: Iterable[str], *, is_producer: bool) -> int:
    """Have a schema check topics before anything is made for them.

    Returns:
        The version for the messages, that of the last topic; -1 for none.

    Raises:
        InvalidTopicName: one of the names is not a topic name.
        ValueError: the schema returns something that is not a version. Further errors are the schema's own.
    """
    # Nothing to check for plain bytes, the default of every producer and consumer.
    if schema is BYTES:
        return -1
    from embeddedpulsar.topic_name import TopicName  # 1.5 ms of the import of the package

    version = -1
    for topic in topics:
        name = TopicName.parse(topic)
        # Partitions share the schemas of their topic.
        version = schema.check_topic(name.base, is_producer=is_producer)
        if not isinstance(version, int) or not -1 <= version <= _LAST_VERSION:
            # The version is the application's own: it may come from a service that is wrong.
            raise ValueError(f"{schema!r} gives {topic} the schema version {version!r}, which is none")
    return version


def __getattr__(name: str) -> Any:
    if name == "JsonSchema":  # pulsar-client has it in this module, too
        return modules[__package__].JsonSchema  # the package imports it when it is asked for
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class BytesSchema(Schema[bytes]):
    """Values are ``bytes`` and are stored as they are.

    Example:
        >>> BytesSchema().encode(b"abc")
        b'abc'
        >>> BytesSchema().encode("abc")
        Traceback (most recent call last):
        TypeError: Invalid record obj of type <class 'str'> - expected type is <class 'bytes'>; encode the ...
    """

    def __init__(self) -> None:
        super().__init__(bytes, SchemaType.BYTES, None, "BYTES")

    def encode(self, data: bytes) -> bytes:
        """Return ``data``; raises TypeError if it is not ``bytes``."""
        self._validate_object_type(data)
        return data

    def _hint(self, obj: object) -> str:
        if isinstance(obj, str):
            return "; encode the text: send(text.encode()), or create the producer with schema=StringSchema()"
        if isinstance(obj, bytearray | memoryview):
            return "; copy it: send(bytes(data)), since the caller may change it before it is stored"
        return (
            "; turn it into bytes, by json.dumps(value).encode() for example, or give the producer a schema"
        )

    def decode(self, data: bytes) -> bytes:
        """Return ``data``."""
        return data

    def __str__(self) -> str:
        return "BytesSchema"


BYTES: Final[Schema[bytes]] = BytesSchema()
"""The schema of those that name none."""


class EncodedSchema(BytesSchema):
    """For producers of payloads that are encoded already: the schema that they were written with."""

    def __init__(self, info: SchemaInfo) -> None:
        super().__init__()
        self._schema_info = info


class CopiedSchema(EncodedSchema):
    """For producers of payloads that another topic has already: their topic takes the schema whatever its
    compatibility strategy says."""


class StringSchema(Schema[str]):
    """Values are ``str`` and are stored in UTF-8.

    Example:
        >>> StringSchema().encode("Zürich"), StringSchema().decode(b"abc")
        (b'Z\\xc3\\xbcrich', 'abc')
    """

    def __init__(self) -> None:
        super().__init__(str, SchemaType.STRING, None, "STRING")

    def encode(self, obj: str) -> bytes:
        """Return ``obj`` in UTF-8; raises TypeError if it is not a ``str``."""
        self._validate_object_type(obj)
        return obj.encode("utf-8")

    def _hint(self, obj: object) -> str:
        return "; bytes need no schema: create the producer without it" if isinstance(obj, bytes) else ""

    def decode(self, data: bytes) -> str:
        """Return the text; raises UnicodeDecodeError if ``data`` is not UTF-8."""
        return data.decode("utf-8")

    def __str__(self) -> str:
        return "StringSchema"


def origin_of(store: Callable[[], Store], topic: str, schema: Schema[Any] = BYTES) -> MessageOrigin:
    """What the messages share that are read from a topic.

    Args:
        store: of the topic.
        topic: full name.
        schema: decodes the messages.
    """
    by_message = type(schema).decode_message is not Schema.decode_message
    # 1.5 ms of the import of the package; the store, which is open here, has imported it.
    from embeddedpulsar.topic_name import TopicName

    writers = Writers(store, topic)
    if by_message:  # so that messages can be decoded when the client is closed
        writers.refresh()
    return MessageOrigin(topic, schema, writers, by_message, TopicName.parse(topic).partition)


class Writers(dict[int, SchemaInfo | None]):
    """The schemas of a topic by version. What a version is never changes, so it is looked up once.

    A version that cannot be looked up raises the error of the store: Avro that is decoded with another
    definition may give wrong values.
    """

    __slots__ = ("_store", "_topic")

    def __init__(self, store: Callable[[], Store], topic: str) -> None:
        self._store: Final = store
        self._topic: Final = topic

    def refresh(self) -> None:
        """Look all versions up that there are now."""
        for stored in self._store().schemas.document(self._topic).schemas:
            self[stored.version] = stored.info()

    def __missing__(self, version: int) -> SchemaInfo | None:
        if version != _NO_VERSION:
            self.refresh()
        return self.setdefault(version, None)  # deleted by force: it does not come back
