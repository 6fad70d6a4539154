"""The Arrow types of the fields of records, by their definition in Avro's notation.

Apart from the names of columns, because those are known where pyarrow is not installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from embeddedpulsar.arrow.engine import ABSENT, DefinitionField, DefinitionNode, check_levels, json_of, parsed
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.records import NamedTuple

_UTC: Final = "UTC"
_PRIMITIVES: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_NUMBERS: Final = ("int", "long", "float", "double")


class ValueType(NamedTuple):
    """The type of a field.

    Attributes:
        final: of the column.
        raw: what is taken from JSON: numbers for dates and times.
        between: what `raw` is cast to before it is cast to `final`: numbers of milliseconds become times.
    """

    final: Any
    raw: Any
    between: Any


# The types of Avro's specification that Arrow has, too. Times of day are left as numbers.
_LOGICAL: Final = {
    "date": ValueType(pa.date32(), pa.int32(), pa.date32()),
    "timestamp-millis": ValueType(pa.timestamp("us", _UTC), pa.int64(), pa.timestamp("ms", _UTC)),
    "timestamp-micros": ValueType(pa.timestamp("us", _UTC), pa.int64(), pa.timestamp("us", _UTC)),
    "local-timestamp-millis": ValueType(pa.timestamp("us"), pa.int64(), pa.timestamp("ms")),
    "local-timestamp-micros": ValueType(pa.timestamp("us"), pa.int64(), pa.timestamp("us")),
}


def record_of(definition: str) -> DefinitionNode:
    """The record that a definition describes.

    Raises:
        InvalidConfiguration: it is no definition, or one of another type.
    """
    try:
        # Levels first: parsing is recursive, and a definition may come from another process.
        check_levels(json_of(definition))
        # Not strict: what Pulsar's clients write need not be valid for Avro in all points, and was accepted
        # by the topic.
        node = parsed(definition, strict=False)
    except ValueError as error:
        raise InvalidConfiguration(f"not a definition in Avro's notation: {error}") from None
    if node.kind != "record":
        raise InvalidConfiguration(f"only records have fields to make columns of, and this schema is {node}")
    return node


def value_type(field: DefinitionField) -> ValueType:
    """The type of a field.

    Raises:
        InvalidConfiguration: no column can have it: a union of several types, a record that contains itself.
    """
    try:
        return _type_of(field.node, ())
    except KeyError as error:
        raise InvalidConfiguration(
            f"the field {field.name!r} cannot be a column: its definition lacks {error}"
        ) from None
    except (ValueError, TypeError) as error:
        raise InvalidConfiguration(
            f"the field {field.name!r} cannot be a column: {error}; name other columns, or give a schema "
            "of your own"
        ) from None


def plain_type(final: Any) -> ValueType:
    """A type that was given without a definition: dates and times are texts in JSON, as ISO 8601 has them."""
    return ValueType(final, _with_texts(final), final)


def default_of(field: DefinitionField) -> Any:
    """What a JSON record without the field has there; None for null."""
    default = field.default
    # The class makes such a default for each object; the definition states a zero, so that older definitions
    # stay compatible.
    if field.others.get("computed"):  # what the definition states is no value of the class
        return None
    is_plain = isinstance(default, str | int | float)
    return default if is_plain and field.default is not ABSENT and field.node.kind in _PRIMITIVES else None


def _type_of(node: DefinitionNode, outer: tuple[int, ...]) -> ValueType:
    kind, logical = node.kind, node.others.get("logicalType")
    # A decimal number is the same in all three types: Arrow checks its digits itself.
    if logical == "decimal" and kind in ("bytes", "fixed"):
        decimal = pa.decimal128(int(node.others["precision"]), int(node.others.get("scale", 0)))
        return ValueType(decimal, decimal, decimal)
    if kind in ("int", "long") and logical in _LOGICAL:
        return _LOGICAL[logical]
    # Three equal types: neither JSON nor the cast changes anything.
    if kind in _PRIMITIVES:
        return ValueType(*(3 * [_PRIMITIVES[kind]]))
    if kind in ("enum", "fixed"):
        return ValueType(*(3 * [pa.string() if kind == "enum" else pa.binary()]))
    # A record may occur twice side by side; only within itself it has no end.
    if id(node) in outer:
        raise ValueError(f"{node} contains itself")
    outer = (*outer, id(node))
    if kind == "array":
        # The types of items three times, each wrapped.
        return ValueType(*map(pa.list_, _type_of(node.branches[0], outer)))
    if kind == "map":
        return ValueType(*(pa.map_(pa.string(), item) for item in _type_of(node.branches[0], outer)))
    if kind == "record":
        parts = [(field.name, _type_of(field.node, outer)) for field in node.fields]
        return ValueType(*(pa.struct([(name, part[i]) for name, part in parts]) for i in range(3)))
    if kind == "union":
        # A union of null and one type is that type: every column can have nulls.
        branches = [branch for branch in node.branches if branch.kind != "null"]
        if len(branches) == 1:
            return _type_of(branches[0], outer)
        kinds = [branch.kind for branch in branches]
        # A union of numbers becomes the one that holds all of them; a union of anything else has no column,
        # since Arrow's unions are known neither to Spark nor to Polars.
        if kinds and all(kind in _NUMBERS for kind in kinds):
            widest = "double" if {"float", "double"} & set(kinds) else "long"
            return ValueType(*(3 * [_PRIMITIVES[widest]]))
        raise ValueError(f"it is one of {', '.join(map(str, branches)) or 'no types'}")
    raise ValueError(f"{json.dumps(str(node))} is not a type of Avro")


def _with_texts(kind: Any) -> Any:
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_with_texts(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_with_texts(kind.key_type), _with_texts(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(part.name, _with_texts(part.type)) for part in kind])
    return kind


def has_map(kind: Any) -> bool:
    """Whether a type is a map or contains one."""
    return _contains(kind, pa.types.is_map)


def has_decimal(kind: Any) -> bool:
    """Whether a type is a decimal number or contains one."""
    return _contains(kind, pa.types.is_decimal)


def _contains(kind: Any, is_wanted: Callable[[Any], bool]) -> bool:
    if is_wanted(kind):
        return True
    if pa.types.is_list(kind):
        return _contains(kind.value_type, is_wanted)
    if pa.types.is_map(kind):
        return _contains(kind.item_type, is_wanted)
    return pa.types.is_struct(kind) and any(_contains(part.type, is_wanted) for part in kind)
