"""Decoders of payloads by the definition alone, into plain Python values: for those that know no class."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from typing import Any

from embeddedpulsar._engine.platform.descriptors import late_import
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.schema.schema import SchemaInfo


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
        decode: Callable[[bytes], Any] = late_import("embeddedpulsar.schema.key_value").value_decoder(info)
        return decode
    from embeddedpulsar.schema.primitives import primitive_schema

    found = primitive_schema(kind)
    return bytes if found is None else found.decode


def _avro_decoder(definition: str) -> Callable[[bytes], Any]:
    from embeddedpulsar.schema.schema_avro import library, parsed

    read, tree = library().schemaless_reader, parsed(json.loads(definition))

    def decode(data: bytes) -> Any:
        buffer = io.BytesIO(data)
        value = read(buffer, tree, None)
        if buffer.tell() != len(data):
            raise ValueError(f"{len(data) - buffer.tell()} bytes are left behind the value")
        return value

    return decode


def _protobuf_decoder(definition: str) -> Callable[[bytes], Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    fields = json.loads(definition)
    files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(fields["fileDescriptorSet"]))
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(fields["rootMessageTypeName"]))
    decode: Callable[[bytes], Any] = kind.FromString
    return decode
