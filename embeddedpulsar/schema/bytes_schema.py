"""The schema of raw bytes, which is the default."""

from __future__ import annotations

from embeddedpulsar.enums import SchemaType
from embeddedpulsar.schema.schema import Schema


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
