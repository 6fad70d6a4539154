"""Enumerations of schemas that a program which has none does not load."""

from __future__ import annotations

from embeddedpulsar.enums import PulsarEnum


class KeyValueEncodingType(PulsarEnum):
    """Where `schema.KeyValueSchema` stores the key. Not in ``pulsar-client``; as in Pulsar's Java client.

    ``INLINE``: in the payload, before the value. ``SEPARATED``: in the key of the message.

    Example:
        >>> [one.name for one in KeyValueEncodingType]
        ['SEPARATED', 'INLINE']
    """

    SEPARATED = 0
    INLINE = 1


class SchemaCompatibilityStrategy(PulsarEnum):
    """Which schemas a topic accepts beside those that it has. Not in ``pulsar-client``; as in Pulsar's Java
    client.

    ``BACKWARD``: the new schema reads what the last one wrote. ``FORWARD``: the last one reads what the new
    one writes. ``FULL``: both. With ``_TRANSITIVE``, all schemas of the topic count, not the last one alone.
    ``UNDEFINED`` stands for the strategy of the next level.

    Example:
        >>> SchemaCompatibilityStrategy["FULL"]
        <SchemaCompatibilityStrategy.FULL: 5>
    """

    UNDEFINED = 0
    ALWAYS_INCOMPATIBLE = 1
    ALWAYS_COMPATIBLE = 2
    BACKWARD = 3
    FORWARD = 4
    FULL = 5
    BACKWARD_TRANSITIVE = 6
    FORWARD_TRANSITIVE = 7
    FULL_TRANSITIVE = 8
