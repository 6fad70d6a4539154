"""Payloads of columns of single values: texts, numbers, times, by the schema of a topic or of a part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from embeddedpulsar.enums import SchemaType
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.schema.primitives import primitive_schema
from embeddedpulsar.schema.schema import SchemaInfo

_MOMENT: Final = pa.timestamp("us", "UTC")
_TYPES: Final[Mapping[SchemaType, Any]] = {
    SchemaType.BOOLEAN: pa.bool_(),
    SchemaType.INT8: pa.int8(),
    SchemaType.INT16: pa.int16(),
    SchemaType.INT32: pa.int32(),
    SchemaType.INT64: pa.int64(),
    SchemaType.FLOAT: pa.float32(),
    SchemaType.DOUBLE: pa.float64(),
    SchemaType.DATE: _MOMENT,
    SchemaType.TIMESTAMP: _MOMENT,
    SchemaType.INSTANT: _MOMENT,
    SchemaType.LOCAL_DATE: pa.date32(),
    SchemaType.TIME: pa.time64("us"),
    SchemaType.LOCAL_TIME: pa.time64("us"),
    SchemaType.LOCAL_DATE_TIME: pa.timestamp("us"),
}


class PlainEncoder:
    """Role: makes payloads of single values. Invariants: a null is a null. Callers: one thread.

    Args:
        what: whose values they are, for errors.
        info: the schema; None for none.
        kind: the type of the values.

    Raises:
        InvalidConfiguration: the schema has other values.
    """

    def __init__(self, what: str, info: SchemaInfo | None, kind: Any) -> None:
        found = None if info is None else info.schema_type()
        final = None if found is None else _TYPES.get(found)
        schema = None if found is None else primitive_schema(found)
        if final is None or schema is None or _sort(final) != _sort(kind):
            has = "has none" if found is None else f"is of type {found.name}"
            raise InvalidConfiguration(
                f"values of type {kind} are encoded by the schema of {what}, which {has}; register one that "
                "has such values, cast them, or write binary or string, which is stored as it is"
            )
        self._what: Final = what
        self._final: Final = final
        self._encode: Final = schema.encode

    def encode(self, values: Any) -> Any:
        """The payloads of values.

        Raises:
            ValueError: a value that the schema does not admit.
        """
        encode = self._encode
        try:
            found = [None if one is None else encode(one) for one in values.cast(self._final).to_pylist()]
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise ValueError(f"a value does not fit the schema of {self._what}: {error}") from error
        return pa.array(found, pa.binary())


def is_payload(kind: Any) -> bool:
    """Whether a column of that type has payloads as they are stored."""
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_string(kind)
        or types.is_large_binary(kind)
        or types.is_large_string(kind)
    )


def _sort(kind: Any) -> str:
    """What a value of a type is; those of one sort are cast to each other, others are a mistake."""
    if pa.types.is_timestamp(kind):
        return "local moment" if kind.tz is None else "moment"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "number"
    return str(kind).partition("[")[0].rstrip("0123456789")
