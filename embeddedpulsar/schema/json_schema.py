"""JSON schema: records, and models of other libraries, as JSON text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, overload

from embeddedpulsar.enums import SchemaType
from embeddedpulsar.schema.definition import Record, class_definition, stored_record
from embeddedpulsar.schema.json_text import loads, record_bytes
from embeddedpulsar.schema.schema import Schema

T = TypeVar("T")
_OF_CODEC: Final = ("_encode", "_decode", "_check")
_TOO_DEEP: Final = "the value contains itself, or is nested too deeply"


class JsonSchema(Schema[T]):
    """Values are objects of a class and are stored as JSON.

    The class is a `Record`, or a model: a dataclass, a pydantic model, a ``msgspec.Struct``, a ``TypedDict``
    or a ``NamedTuple``. Another type is given as in a type hint: ``dict``, ``Any``, ``list[Order]``, or a
    union of models. Records are encoded to the bytes that ``pulsar-client`` gives. Models are validated by
    their own library when they are decoded. Members of an enumeration are stored by value.

    Args:
        record_cls: the class of the values, or their type.

    Raises:
        TypeError: the type, or that of an attribute, has no JSON form.
        InvalidConfiguration: types are nested too deeply.

    Example:
        >>> from embeddedpulsar.schema import Integer, Record, String
        >>> class Order(Record):
        ...     item = String()
        ...     count = Integer()
        >>> schema = JsonSchema(Order)
        >>> schema.encode(Order(item="soup", count=2))
        b'{\\n "item": "soup",\\n "count": 2\\n}'
        >>> schema.decode(b'{"item": "soup"}').item
        'soup'
        >>> JsonSchema(list[int]).decode(b"[1, 2]"), JsonSchema(dict).encode({"item": "soup"})
        ([1, 2], b'{"item":"soup"}')
    """

    _encode: Callable[[Any], bytes]
    _decode: Callable[[bytes], Any]
    _check: Callable[[Any], object]

    @overload
    def __init__(self, record_cls: type[T]) -> None: ...
    @overload
    def __init__(self: JsonSchema[Any], record_cls: Any) -> None: ...

    def __init__(self, record_cls: Any) -> None:
        self._type = record_cls
        definition = self._use_codec(record_cls)
        super().__init__(
            record_cls if isinstance(record_cls, type) else object, SchemaType.JSON, definition, "JSON"
        )

    def _use_codec(self, kind: Any) -> Any:
        """Set encoder, decoder and check of a type, and return its definition."""
        definition: Any
        # A record class has its own text, to the byte that of pulsar-client; models have the text of their
        # library.
        if isinstance(kind, type) and issubclass(kind, Record):
            definition = class_definition(kind)
            self._encode = record_bytes
            self._decode = lambda data: stored_record(kind, loads(data))
            self._check = self._validate_object_type
        else:
            from embeddedpulsar.schema.model_codec import json_codec  # few schemas are of models

            definition, self._encode, self._decode, self._check = json_codec(kind)
        return definition

    def __getstate__(self) -> dict[str, Any]:
        # Encoders are closures, which cannot be pickled: they are made again from the type.
        return {name: value for name, value in vars(self).items() if name not in _OF_CODEC}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._use_codec(self._type)

    def encode(self, obj: T) -> bytes:
        """Return ``obj`` as JSON.

        Raises:
            TypeError: it is not of the type of this schema, or something in it has no JSON form.
            ValueError: it contains itself, or bytes that are no text.
        """
        self._check(obj)
        try:
            return self._encode(obj)
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None

    def decode(self, data: bytes) -> T:
        """Return the object.

        Raises:
            ValueError: ``data`` is not JSON.
            TypeError: a value has another type than its field.
        """
        value: T = self._decode(data)
        return value
