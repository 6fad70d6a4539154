"""Schemas: the codecs between a Python value and the payload of a message, as in ``pulsar.schema``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

from embeddedpulsar.schema.schema import (
    AvroSchema,
    BytesSchema,
    JsonSchema,
    ProtobufNativeSchema,
    Schema,
    SchemaInfo,
    StringSchema,
)

_NEED_THE_REGISTRY = frozenset(
    (
        *("Array", "Boolean", "Bytes", "CustomEnum", "Double", "Field", "Float", "Integer", "Long", "Map"),
        *("Null", "Record", "String"),
    )
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> NoReturn:
        if name in _NEED_THE_REGISTRY:
            raise AttributeError(
                f"schema.{name} needs the schema registry, which is not built yet; "
                "use BytesSchema or StringSchema, or derive a codec of your own from Schema"
            )
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )


__all__ = [
    "AvroSchema",
    "BytesSchema",
    "JsonSchema",
    "ProtobufNativeSchema",
    "Schema",
    "SchemaInfo",
    "StringSchema",
]
