"""Whether a schema may join those of a topic. Pure: a strategy, definitions, and an answer."""

from __future__ import annotations

import json
from binascii import a2b_base64
from collections.abc import Sequence
from typing import Final

from embeddedpulsar.enums import SchemaType
from embeddedpulsar.schema.avro_definition import DefinitionNode, is_alike, parsed
from embeddedpulsar.schema.avro_resolution import why_unreadable
from embeddedpulsar.schema.key_value_info import KeyValueInfo
from embeddedpulsar.schema.schema import SchemaInfo
from embeddedpulsar.schema_enums import SchemaCompatibilityStrategy

_Strategy = SchemaCompatibilityStrategy
_TRANSITIVE: Final = (_Strategy.BACKWARD_TRANSITIVE, _Strategy.FORWARD_TRANSITIVE, _Strategy.FULL_TRANSITIVE)
_OLD_READ_NEW: Final = (
    *(_Strategy.FORWARD, _Strategy.FORWARD_TRANSITIVE),
    *(_Strategy.FULL, _Strategy.FULL_TRANSITIVE),
)
_NEW_READ_OLD: Final = (
    *(_Strategy.BACKWARD, _Strategy.BACKWARD_TRANSITIVE),
    *(_Strategy.FULL, _Strategy.FULL_TRANSITIVE),
)
_IN_AVRO: Final = (SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF)
_ONE_DEFINITION: Final = "null"
"""What `Schema` gives as the definition of a type that needs none."""


def is_registered(info: SchemaInfo) -> bool:
    """Whether a topic stores schemas of this type: not those of plain bytes, or of clients alone."""
    return info.schema_type().value > 0


def why_invalid(info: SchemaInfo) -> str:
    """What is wrong with a definition; empty for nothing."""
    try:
        if info.schema_type() in _IN_AVRO:
            _tree(info)
        elif info.schema_type() == SchemaType.PROTOBUF_NATIVE:
            _root_message(info)
        elif info.schema_type() == SchemaType.KEY_VALUE:
            parts = KeyValueInfo.of(info)
            return why_invalid(parts.key) or why_invalid(parts.value)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"its definition is not one of {info.schema_type().name}: {error}"
    return ""


def is_same(one: SchemaInfo, other: SchemaInfo) -> bool:
    """Whether two schemas are one version: spaces and comments in a definition do not count."""
    if one.schema_type() != other.schema_type():
        return False
    if one.schema_type() == SchemaType.KEY_VALUE:
        (key, value, encoding), found = KeyValueInfo.of(one), KeyValueInfo.of(other)
        return encoding == found.encoding and is_same(key, found.key) and is_same(value, found.value)
    if (one.schema() or _ONE_DEFINITION) == (other.schema() or _ONE_DEFINITION):
        return True
    return one.schema_type() in _IN_AVRO and is_alike(_tree(one), _tree(other))


def why_refused(known: Sequence[SchemaInfo], new: SchemaInfo, strategy: SchemaCompatibilityStrategy) -> str:
    """Why a schema may not be added to those of a topic; empty if it may.

    Args:
        known: those there are, the oldest first, each valid.
        new: another one, valid.
        strategy: of the topic.
    """
    if strategy == _Strategy.ALWAYS_COMPATIBLE or not known:
        return ""
    for one in reversed(known if strategy in _TRANSITIVE else known[-1:]):
        text = _why_apart(one, new, strategy)
        if text:
            return text
    return ""


def why_unfit(known: Sequence[SchemaInfo], reader: SchemaInfo, strategy: SchemaCompatibilityStrategy) -> str:
    """Why a consumer may not use a schema on a topic that has some; empty if it may.

    As in Pulsar, the consumer must read the last of them, and all of them if the strategy is a transitive one
    that includes reading.
    """
    if strategy == _Strategy.ALWAYS_COMPATIBLE:
        return ""
    if strategy == _Strategy.ALWAYS_INCOMPATIBLE:
        if any(is_same(one, reader) for one in known):
            return ""
        return why_refused(known, reader, strategy)
    if strategy in (_Strategy.BACKWARD_TRANSITIVE, _Strategy.FULL_TRANSITIVE):
        return why_refused(known, reader, strategy)
    return why_refused(known, reader, _Strategy.BACKWARD)


def _why_apart(old: SchemaInfo, new: SchemaInfo, strategy: SchemaCompatibilityStrategy) -> str:
    kind = new.schema_type()
    if old.schema_type() != kind:
        return f"the topic has schemas of the type {old.schema_type().name}, and this one is {kind.name}"
    if is_same(old, new):
        return ""
    if strategy == _Strategy.ALWAYS_INCOMPATIBLE:
        return "the strategy ALWAYS_INCOMPATIBLE allows no other schema"
    if kind in _IN_AVRO:
        before, after = _tree(old), _tree(new)
        if strategy in _NEW_READ_OLD and (text := why_unreadable(before, after)):
            return f"the new schema does not read what was written with the old one: {text}"
        if strategy in _OLD_READ_NEW and (text := why_unreadable(after, before)):
            return f"the old schema does not read what is written with the new one: {text}"
    elif kind == SchemaType.KEY_VALUE:
        return _why_pairs_apart(KeyValueInfo.of(old), KeyValueInfo.of(new), strategy)
    elif kind == SchemaType.PROTOBUF_NATIVE and _root_message(old) != _root_message(new):
        return f"the root message is {_root_message(new)}, and was {_root_message(old)}"
    return ""


def _why_pairs_apart(old: KeyValueInfo, new: KeyValueInfo, strategy: SchemaCompatibilityStrategy) -> str:
    if old.encoding != new.encoding:
        return f"the keys of the topic are {old.encoding.name}, and those of this one {new.encoding.name}"
    text = _why_apart(old.key, new.key, strategy)
    if text:
        return f"the keys: {text}"
    text = _why_apart(old.value, new.value, strategy)
    return f"the values: {text}" if text else ""


def _tree(info: SchemaInfo) -> DefinitionNode:
    return parsed(info.schema(), strict=info.schema_type() == SchemaType.AVRO)


def _root_message(info: SchemaInfo) -> str:
    fields = json.loads(info.schema())
    a2b_base64(fields["fileDescriptorSet"], strict_mode=True)
    return str(fields["rootMessageTypeName"])
