"""JSON schema: records, and models of other libraries, as JSON text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from embeddedpulsar.enums import SchemaType
from embeddedpulsar.schema.definition import Record, class_definition, stored_record
from embeddedpulsar.schema.json_text import loads, record_bytes
from embeddedpulsar.schema.schema import Schema

T = TypeVar("T")


class JsonSchema(Schema[T]):
    """Values are objects of a class and are stored as JSON.

    The class is a `Record`, or a dataclass, a pydantic model or a ``msgspec.Struct``. Records are encoded to
    the bytes that ``pulsar-client`` gives. Models are validated by their own library when they are decoded.
    Members of an enumeration are stored by value.

    Args:
        record_cls: the class of the values.

    Raises:
        TypeError: the class is of another kind, or has an attribute whose type has no JSON form.

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
    """

    _encode: Callable[[Any], bytes]
    _decode: Callable[[bytes], Any]

    def __init__(self, record_cls: type[T]) -> None:
        super().__init__(record_cls, SchemaType.JSON, self._use_codec(record_cls), "JSON")

    def _use_codec(self, kind: Any) -> dict[str, Any]:
        """Set encoder and decoder of a class, and return its definition."""
        definition: dict[str, Any]
        if isinstance(kind, type) and issubclass(kind, Record):
            definition = class_definition(kind)
            self._encode = record_bytes
            self._decode = lambda data: stored_record(kind, loads(data))
        else:
            from embeddedpulsar.schema.models import model_codec  # few schemas are of models

            definition, self._encode, self._decode = model_codec(kind)
        return definition

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_encode", "_decode")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._use_codec(self._record_cls)

    def encode(self, obj: T) -> bytes:
        """Return ``obj`` as JSON; raises TypeError if it is not of the class of this schema."""
        self._validate_object_type(obj)
        return self._encode(obj)

    def decode(self, data: bytes) -> T:
        """Return the object.

        Raises:
            ValueError: ``data`` is not JSON.
            TypeError: a value has another type than its field.
        """
        value: T = self._decode(data)
        return value
