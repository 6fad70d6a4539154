"""Avro schema: records, or dicts of a definition, in Avro's binary form."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, cast, overload

from embeddedpulsar._engine.format.avro_definition import check_levels
from embeddedpulsar._engine.format.avro_definition import parsed as read_definition
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.schema.definition import Record, builtin_of, class_definition, stored_record
from embeddedpulsar.schema.schema import Schema, SchemaInfo, T

_OF_CODEC: Final = ("_encode", "_build", "_check")
Definition = dict[str, Any]
"""A definition, as `json.loads` gives it."""


def _library() -> Any:
    # Loaded with this module if it is installed: `encode` and `decode` use it for each message.
    try:
        import fastavro
    except ImportError:
        return None
    return fastavro


fastavro = _library()


def library() -> Any:
    """Return the module ``fastavro``.

    Raises:
        ImportError: it is not installed.
    """
    if fastavro is None:
        raise ImportError('Avro schemas need fastavro: pip install "embeddedpulsar[avro]"')
    return fastavro


class AvroSchema(Schema[T]):
    """Values are records, models or dicts, and are stored in Avro's binary form. Needs ``fastavro``.

    A message is decoded with the definition that it was written with, which the topic has, and resolved to
    that of this schema.

    Args:
        record_cls: the class of the values, a `Record` or a model as `JsonSchema` takes it; None if they are
            dicts.
        schema_definition: the definition for dicts, as `json.loads` gives it. With a
            record class, only that of the class is accepted.

    Raises:
        ImportError: fastavro is not installed.
        AssertionError: neither a class nor a definition is given.
        ValueError: both are given and differ.
        InvalidConfiguration: the definition is not valid; a ValueError, too.

    Example:
        >>> from embeddedpulsar.schema import Integer, Record, String
        >>> class Order(Record):
        ...     item = String(required=True)
        ...     count = Integer(required=True)
        >>> schema = AvroSchema(Order)
        >>> schema.encode(Order(item="soup", count=2))
        b'\\x08soup\\x04'
        >>> schema.decode(b'\\x08soup\\x04').count
        2
    """

    _encode: Callable[[Any], Any]
    _build: Callable[[Any], Any] | None
    _check: Callable[[Any], object]

    @overload
    def __init__(
        self: AvroSchema[dict[str, Any]], record_cls: None, schema_definition: Definition
    ) -> None: ...
    @overload
    def __init__(self, record_cls: type[T], schema_definition: Definition | None = None) -> None: ...

    def __init__(self, record_cls: type[Any] | None, schema_definition: Definition | None = None) -> None:
        library()
        if record_cls is None and schema_definition is None:
            raise AssertionError("give a record class or a schema_definition")
        if record_cls is None:
            # A definition without a class: values are dicts.
            definition: Any = schema_definition
            self._use_codec(None)
        else:
            definition = self._use_codec(record_cls)
            if schema_definition not in (None, definition):
                text = f"schema_definition is not that of {record_cls.__name__}: give one of the two"
                raise ValueError(text)
        super().__init__(record_cls or dict, SchemaType.AVRO, definition, "AVRO")
        self._is_record = record_cls is not None
        self._parsed = parsed(definition)
        # By definition: a topic has few versions, and resolving takes far longer than reading a message.
        self._writers: dict[str, tuple[Any, Any]] = {}  # by definition

    def _use_codec(self, kind: Any) -> Any:
        """Set what makes values of a class, and what is made of them; returns the definition of the class."""
        self._encode = builtin_of
        self._build = None
        self._check = self._validate_object_type
        self._is_model = False
        if kind is None:
            return None
        if isinstance(kind, type) and issubclass(kind, Record):
            self._build = partial(stored_record, kind)
            return class_definition(kind)
        from embeddedpulsar.schema.model_codec import avro_codec  # few schemas are of models

        definition, self._encode, self._build, self._check = avro_codec(kind)
        self._is_model = True
        return definition

    def __getstate__(self) -> dict[str, Any]:
        # Closures cannot be pickled: they are made again from the class.
        return {name: value for name, value in vars(self).items() if name not in _OF_CODEC}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._use_codec(self._record_cls if self._is_record else None)

    def encode(self, obj: T) -> bytes:
        """Return ``obj`` in Avro's binary form.

        Raises:
            TypeError: ``obj`` is not of the record class, or something in it has no form.
            ValueError: ``obj`` is not a dict, or a value does not fit the definition.
        """
        if self._is_record:
            self._check(obj)
        elif not isinstance(obj, dict):
            raise ValueError(
                f"with a definition of its own, the schema takes a dict, not {type(obj).__name__}"
            )
        buffer = io.BytesIO()
        try:
            fastavro.schemaless_writer(buffer, self._parsed, self._encode(obj))
        except RecursionError:
            # fastavro calls itself for each level, so a value that contains itself ends the stack.
            raise ValueError("the value contains itself, or is nested too deeply") from None
        return buffer.getvalue()

    def encode_dict(self, d: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of ``d`` in which dicts stand for records, and names for members of enumerations.

        Example:
            >>> from embeddedpulsar.schema import Integer, Record
            >>> class Table(Record):
            ...     number = Integer(required=True)
            >>> AvroSchema(Table).encode_dict({"table": Table(number=7)})
            {'table': {'number': 7}}
        """
        copied: dict[str, Any] = builtin_of(d)
        return copied

    def decode(self, data: bytes) -> T:
        """Return the record, or the dict; the bytes must be written with the definition of this schema."""
        return self._decoded(data, self._parsed, self._parsed)

    def decode_message(self, msg: Any) -> T:
        """Return the record, or the dict, of a message.

        Raises:
            ValueError: what was written cannot be read with the definition of this schema.
        """
        return self.decode_written(msg.data(), msg.writer_schema())

    def decode_written(self, data: bytes, writer: SchemaInfo | None) -> T:
        """Return the record, or the dict, of a payload that was written with another definition.

        Example:
            >>> old = {"type": "record", "name": "Order", "fields": [{"name": "count", "type": "int"}]}
            >>> new = {**old, "fields": [{"name": "count", "type": "long"}]}
            >>> payload = AvroSchema(None, old).encode({"count": 7})
            >>> AvroSchema(None, new).decode_written(payload, AvroSchema(None, old).schema_info())
            {'count': 7}
        """
        if writer is None:
            return self.decode(data)
        definitions = self._writers.get(writer._definition)
        if definitions is None:
            # Kept for the life of the schema: definitions of a topic are few.
            definitions = self._writers[writer._definition] = self._resolution(writer)
        written, reader = definitions
        try:
            return self._decoded(data, written, reader)
        except fastavro.read.SchemaResolutionError as error:
            # The registry refuses schemas that do not fit; a topic with ALWAYS_COMPATIBLE has them.
            raise ValueError(f"written with a schema that this one cannot read: {error}") from error

    def _resolution(self, writer: SchemaInfo) -> tuple[Any, Any]:
        """The definitions of the writer and the reader, for one another."""
        own = self._schema_info.schema()
        # The same text, or a type that has no definition in Avro: nothing to resolve.
        if writer.schema() == own or writer.schema_type() != SchemaType.AVRO:
            return self._parsed, self._parsed
        written, reader = definitions_for(
            writer.schema(), own, gives_defaults=self._is_record, leaves_defaults=self._is_model
        )
        return parsed(written), parsed(reader)

    def _decoded(self, data: bytes, writer: Any, reader: Any) -> T:
        # Of a union of records, the name says which one it is. `Record` has no unions.
        value = (
            fastavro.schemaless_reader(
                *(io.BytesIO(data), writer, reader), return_record_name=True, return_record_name_override=True
            )
            if self._is_model
            else fastavro.schemaless_reader(io.BytesIO(data), writer, reader)
        )
        return cast("T", value if self._build is None else self._build(value))


def parsed(definition: Any) -> Any:
    """The definition as fastavro takes it without reading it again for every message.

    Raises:
        InvalidConfiguration: the definition is not valid Avro.
    """
    try:
        check_levels(definition)
        # By way of JSON: what has no JSON text is no definition.
        return fastavro.parse_schema(json.loads(json.dumps(definition)))
    except Exception as error:  # the library raises what its steps raise: KeyError, for example
        text = f"not a valid Avro definition: {_why_invalid(definition, error)}"
        raise InvalidConfiguration(text) from error


def _why_invalid(definition: Any, error: BaseException) -> str:
    """What is wrong with a definition that the library refuses with an error."""
    if isinstance(error, fastavro.schema.SchemaParseException | fastavro.schema.UnknownType):
        return str(error)
    try:
        # The library's own errors say which step failed, not what is wrong; the package's parser says that.
        check_levels(definition)
        read_definition(json.dumps(definition), strict=True)
    except (ValueError, TypeError, RecursionError) as reason:
        return "it is nested too deeply" if isinstance(reason, RecursionError) else str(reason)
    return f"a type lacks {error}" if isinstance(error, KeyError) else str(error)


def definitions_for(
    writer: str, reader: str, *, gives_defaults: bool = True, leaves_defaults: bool = False
) -> tuple[Any, Any]:
    """The definitions of a writer and a reader, as one is resolved to the other.

    Args:
        writer, reader: definitions, as text.
        gives_defaults: a field that may be None, and that the writer does not have, is None.
        leaves_defaults: a field with a default that the writer does not have is left to the class.
    """
    written, wanted = json.loads(writer), json.loads(reader)
    if isinstance(written, dict) and isinstance(wanted, dict) and "name" in written:
        # As in pulsar-client: the name of the class does not count.
        written = written | {key: wanted.get(key) for key in ("name", "namespace")}
    # Before defaults are given: a field that was left out needs none.
    if leaves_defaults:
        _leave_defaults(wanted, written)
    if gives_defaults:
        _give_defaults(wanted)
    return written, wanted


def _leave_defaults(reader: Any, writer: Any) -> None:
    # By the names of records, with the fields that the writer has of each.
    written = {
        record.get("name"): {field["name"] for field in record["fields"]} for record in _records(writer)
    }
    # A field with a default that was not written is left out of the reader: the class itself gives the
    # default, which may be one that no definition states.
    for record in _records(reader):
        names_written = written.get(record.get("name"))
        if names_written is not None:
            record["fields"] = [
                field
                for field in record["fields"]
                if "default" not in field or field["name"] in names_written
            ]


def _records(definition: Any) -> Iterator[Any]:
    # Wherever a definition may have a record: in unions, fields, items and values.
    if isinstance(definition, list):
        for branch in definition:
            yield from _records(branch)
    elif isinstance(definition, dict):
        if isinstance(definition.get("fields"), list):
            yield definition
            for field in definition["fields"]:
                yield from _records(field["type"])
        for part in ("type", "items", "values"):
            yield from _records(definition.get(part))


def with_defaults(definition: str) -> str:
    """The definition with None as the default of each field that may be None."""
    form = json.loads(definition)
    _give_defaults(form)
    return json.dumps(form)


def _give_defaults(definition: Any) -> None:
    """Let a record be read where a field is missing that may be None: the class has a default for it."""
    if isinstance(definition, list):
        for branch in definition:
            _give_defaults(branch)
    elif isinstance(definition, dict):
        for field in definition.get("fields", ()):
            kind = field["type"]
            # The default of a union belongs to its first type, so null must come first.
            if isinstance(kind, list) and kind[:1] == ["null"]:
                field.setdefault("default", None)
            _give_defaults(kind)
        for part in ("type", "items", "values"):
            if isinstance(definition.get(part), dict | list):
                _give_defaults(definition[part])
