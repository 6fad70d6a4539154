"""Whether a schema may join those of a topic. Pure: a strategy, definitions, and an answer."""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Sequence

from embeddedpulsar._engine.format.avro_definition import (
    DefinitionNode,
    check_levels,
    is_alike,
    json_of,
    parsed,
    why_unreadable,
)
from embeddedpulsar._engine.store.schema_info import KeyValueInfo, SchemaInfo
from embeddedpulsar.enums import SchemaCompatibilityStrategy, SchemaType
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Final

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
_OF_PROTOBUF: Final = ("fileDescriptorSet", "rootMessageTypeName")
_ONE_DEFINITION: Final = "null"
"""What `Schema` gives as the definition of a type that needs none."""


def why_invalid(info: SchemaInfo) -> str:
    """What is wrong with a definition; empty for nothing."""
    # By the kinds of definitions: in Avro's notation, descriptors of Protobuf, and pairs of either.
    try:
        if info.schema_type() in _IN_AVRO:
            check_levels(json_of(info.schema() or _ONE_DEFINITION))
            _Trees().tree(info)
        elif info.schema_type() == SchemaType.PROTOBUF_NATIVE:
            _root_message(info)
        elif info.schema_type() == SchemaType.KEY_VALUE:
            parts = KeyValueInfo.of(info)
            return why_invalid(parts.key) or why_invalid(parts.value)
    except ValueError as error:
        # Everything that a definition can be wrong in raises ValueError below.
        return f"its definition is not one of {info.schema_type().name}: {error}"
    return ""


class _Trees(dict[tuple[SchemaType, str], DefinitionNode]):
    """The trees of the definitions that are compared, each read once."""

    def tree(self, info: SchemaInfo) -> DefinitionNode:
        """The tree of a definition.

        Raises:
            ValueError: it is not valid.
        """
        kind, text = info.schema_type(), info.schema()
        node = self.get((kind, text))
        if node is None:
            node = self[kind, text] = parsed(text, strict=kind == SchemaType.AVRO)
        return node


def is_same(info: SchemaInfo, other: SchemaInfo) -> bool:
    """Whether two schemas are one version: spaces and comments in a definition do not count.

    Raises:
        ValueError: one of them is not valid.
    """
    return _is_same(info, other, _Trees())


def place_of(known: Sequence[SchemaInfo], info: SchemaInfo) -> int:
    """The place of a schema among others, all of them valid; -1 if it is none of them."""
    trees, outline = _Trees(), _outline(info)
    for place, stored in enumerate(known):
        # A tree takes ten times as long as its JSON text: most of the others have other fields.
        if (
            stored.schema_type() == info.schema_type()
            and _outline(stored) == outline
            and _is_same(stored, info, trees)
        ):
            return place
    return -1


def _outline(info: SchemaInfo) -> list[Any] | None:
    """What two definitions have in common if they are the same: the names of their fields. None for types
    that are compared otherwise."""
    if info.schema_type() not in _IN_AVRO:
        return None
    form = json_of(info.schema() or _ONE_DEFINITION)
    fields = form.get("fields") if isinstance(form, dict) else None
    return [field.get("name") for field in fields] if isinstance(fields, list) else None


def _is_same(info: SchemaInfo, other: SchemaInfo, trees: _Trees) -> bool:
    if info.schema_type() != other.schema_type():
        return False
    # Pairs are compared part by part: their texts may differ in what the parts may differ in.
    if info.schema_type() == SchemaType.KEY_VALUE:
        (key, value, encoding), other_parts = KeyValueInfo.of(info), KeyValueInfo.of(other)
        return (
            encoding == other_parts.encoding
            and _is_same(key, other_parts.key, trees)
            and _is_same(value, other_parts.value, trees)
        )
    # Equal texts need no parsing, and are the usual case: the same class in another process.
    if (info.schema() or _ONE_DEFINITION) == (other.schema() or _ONE_DEFINITION):
        return True
    return info.schema_type() in _IN_AVRO and is_alike(trees.tree(info), trees.tree(other))


def why_refused(known: Sequence[SchemaInfo], new: SchemaInfo, strategy: SchemaCompatibilityStrategy) -> str:
    """Why a schema may not be added to those of a topic; empty if it may.

    Args:
        known: those there are, the oldest first, each valid.
        new: another one, valid.
        strategy: of the topic.
    """
    if strategy == _Strategy.ALWAYS_COMPATIBLE or not known:
        return ""
    trees = _Trees()
    # The newest first: it is the one that a new schema most likely fails with. Without a transitive strategy
    # it is the only one.
    for stored in reversed(known if strategy in _TRANSITIVE else known[-1:]):
        text = _why_apart(stored, new, strategy, trees)
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
    # The strategy allows no other schema at all, so a consumer may use one that is there, and no other.
    if strategy == _Strategy.ALWAYS_INCOMPATIBLE:
        if place_of(known, reader) >= 0:
            return ""
        return why_refused(known, reader, strategy)
    if strategy in (_Strategy.BACKWARD_TRANSITIVE, _Strategy.FULL_TRANSITIVE):
        return why_refused(known, reader, strategy)
    # A consumer reads what is there; it writes nothing that others would have to read. So the direction is
    # always BACKWARD, whatever the topic's strategy asks of new schemas.
    return why_refused(known, reader, _Strategy.BACKWARD)


def _why_apart(old: SchemaInfo, new: SchemaInfo, strategy: SchemaCompatibilityStrategy, trees: _Trees) -> str:
    kind = new.schema_type()
    # Types never change, whatever the strategy.
    if old.schema_type() != kind:
        return f"the topic has schemas of the type {old.schema_type().name}, and this one is {kind.name}"
    # The same schema is compatible with itself under every strategy.
    if _is_same(old, new, trees):
        return ""
    if strategy == _Strategy.ALWAYS_INCOMPATIBLE:
        return "the strategy ALWAYS_INCOMPATIBLE allows no other schema"
    if kind in _IN_AVRO:
        before, after = trees.tree(old), trees.tree(new)
        # Both directions for FULL; the text says which of them failed.
        if strategy in _NEW_READ_OLD and (text := why_unreadable(before, after)):
            return f"the new schema does not read what was written with the old one: {text}"
        if strategy in _OLD_READ_NEW and (text := why_unreadable(after, before)):
            return f"the old schema does not read what is written with the new one: {text}"
    elif kind == SchemaType.KEY_VALUE:
        return _why_pairs_apart(KeyValueInfo.of(old), KeyValueInfo.of(new), strategy, trees)
    elif kind == SchemaType.PROTOBUF_NATIVE and _root_message(old) != _root_message(new):
        # As in Pulsar, two Protobuf schemas of one root message are compatible: field numbers see to the
        # rest.
        return f"the root message is {_root_message(new)}, and was {_root_message(old)}"
    return ""


def _why_pairs_apart(
    old: KeyValueInfo, new: KeyValueInfo, strategy: SchemaCompatibilityStrategy, trees: _Trees
) -> str:
    if old.encoding != new.encoding:
        return f"the keys of the topic are {old.encoding.name}, and those of this one {new.encoding.name}"
    text = _why_apart(old.key, new.key, strategy, trees)
    if text:
        return f"the keys: {text}"
    text = _why_apart(old.value, new.value, strategy, trees)
    return f"the values: {text}" if text else ""


def _root_message(info: SchemaInfo) -> str:
    fields = json_of(info.schema())
    parts: list[Any] = [fields.get(name) if isinstance(fields, dict) else None for name in _OF_PROTOBUF]
    for name, part in zip(_OF_PROTOBUF, parts, strict=True):
        if not isinstance(part, str):
            raise ValueError(f"it has no text {name}")
    # Refuses what only looks like a descriptor, before it reaches the registry.
    a2b_base64(parts[0], strict_mode=True)
    return str(parts[1])
