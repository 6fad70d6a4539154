"""Schemas: the codecs between a Python value and the payload of a message, as in ``pulsar.schema``."""

from __future__ import annotations

from sys import modules

from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.schema.schema import BytesSchema, Schema, SchemaInfo, StringSchema

if TYPE_CHECKING:
    from typing import Any

    from embeddedpulsar.enums import KeyValueEncodingType
    from embeddedpulsar.schema.definition import (
        Array,
        Boolean,
        Bytes,
        CustomEnum,
        Double,
        Field,
        Float,
        Integer,
        Long,
        Map,
        Null,
        Record,
        String,
    )
    from embeddedpulsar.schema.json_schema import JsonSchema
    from embeddedpulsar.schema.key_value import (
        AutoConsumeSchema,
        AutoProduceBytesSchema,
        GenericRecord,
        KeyValue,
        KeyValueSchema,
    )
    from embeddedpulsar.schema.primitives import (
        BooleanSchema,
        DateSchema,
        DoubleSchema,
        FloatSchema,
        InstantSchema,
        Int8Schema,
        Int16Schema,
        Int32Schema,
        Int64Schema,
        LocalDateSchema,
        LocalDateTimeSchema,
        LocalTimeSchema,
        TimeSchema,
        TimestampSchema,
    )
    from embeddedpulsar.schema.schema_avro import AvroSchema
    from embeddedpulsar.schema.schema_protobuf import ProtobufNativeSchema

# Loaded on first access, so that importing the package is fast.
_LAZY = {
    "AutoConsumeSchema": "key_value",
    "AutoProduceBytesSchema": "key_value",
    "AvroSchema": "schema_avro",
    "GenericRecord": "key_value",
    "JsonSchema": "json_schema",
    "KeyValue": "key_value",
    "KeyValueEncodingType": "key_value",
    "KeyValueSchema": "key_value",
    "ProtobufNativeSchema": "schema_protobuf",
    **dict.fromkeys(
        (
            *(
                "Array",
                "Boolean",
                "Bytes",
                "CustomEnum",
                "Double",
                "Field",
                "Float",
                "Integer",
                "Long",
                "Map",
            ),
            *("Null", "Record", "String"),
        ),
        "definition",
    ),
    **dict.fromkeys(
        (
            *("BooleanSchema", "DateSchema", "DoubleSchema", "FloatSchema", "InstantSchema"),
            *("Int8Schema", "Int16Schema", "Int32Schema", "Int64Schema", "LocalDateSchema"),
            *("LocalDateTimeSchema", "LocalTimeSchema", "TimeSchema", "TimestampSchema"),
        ),
        "primitives",
    ),
}
_MODULES = ("definition", "schema_avro", "schema_protobuf")

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        place = name if name in _MODULES else _LAZY.get(name)
        if place is None:
            text = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=modules[__name__])
        from importlib import import_module

        module = import_module(f"{__name__}.{place}")
        value = module if name in _MODULES else getattr(module, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


__all__ = [
    "Array",
    "AutoConsumeSchema",
    "AutoProduceBytesSchema",
    "AvroSchema",
    "Boolean",
    "BooleanSchema",
    "Bytes",
    "BytesSchema",
    "CustomEnum",
    "DateSchema",
    "Double",
    "DoubleSchema",
    "Field",
    "Float",
    "FloatSchema",
    "GenericRecord",
    "InstantSchema",
    "Int16Schema",
    "Int32Schema",
    "Int64Schema",
    "Int8Schema",
    "Integer",
    "JsonSchema",
    "LocalDateSchema",
    "LocalDateTimeSchema",
    "LocalTimeSchema",
    "KeyValue",
    "KeyValueEncodingType",
    "KeyValueSchema",
    "Long",
    "Map",
    "Null",
    "ProtobufNativeSchema",
    "Record",
    "Schema",
    "SchemaInfo",
    "String",
    "StringSchema",
    "TimeSchema",
    "TimestampSchema",
]
