"""Schemas: the codecs between a Python value and the payload of a message, as in ``pulsar.schema``."""

from __future__ import annotations

from embeddedpulsar.schema.bytes_schema import BytesSchema
from embeddedpulsar.schema.registry_schemas import AvroSchema, JsonSchema, ProtobufNativeSchema
from embeddedpulsar.schema.schema import Schema, SchemaInfo
from embeddedpulsar.schema.string_schema import StringSchema

__all__ = [
    "AvroSchema",
    "BytesSchema",
    "JsonSchema",
    "ProtobufNativeSchema",
    "Schema",
    "SchemaInfo",
    "StringSchema",
]
