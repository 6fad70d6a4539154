"""The schemas that need the schema registry. They exist so that their absence explains itself."""

from __future__ import annotations

from embeddedpulsar.schema.schema import RegistrySchema


class JsonSchema(RegistrySchema):
    """Records as JSON. Not built yet.

    Example:
        >>> JsonSchema(object)
        Traceback (most recent call last):
        NotImplementedError: JsonSchema needs the schema registry, which is not built yet; ...
    """


class AvroSchema(RegistrySchema):
    """Records in Avro. Not built yet."""


class ProtobufNativeSchema(RegistrySchema):
    """Protobuf messages. Not built yet."""
