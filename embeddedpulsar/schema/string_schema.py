"""The schema of text."""

from __future__ import annotations

from embeddedpulsar.enums import SchemaType
from embeddedpulsar.schema.schema import Schema


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
