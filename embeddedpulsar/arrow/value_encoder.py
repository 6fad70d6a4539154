"""Payloads of columns of records, encoded by the schema of a topic: the opposite of `value_decoder`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from embeddedpulsar.arrow.topic_schemas import RECORDS
from embeddedpulsar.arrow.value_types import record_of, value_type
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.schema.avro_definition import ABSENT, DefinitionField
from embeddedpulsar.schema.json_text import dumps
from embeddedpulsar.schema.schema import SchemaInfo
from embeddedpulsar.schema.schema_avro import AvroSchema


class ValueEncoder:
    """Role: makes payloads of records. Invariants: a payload can be read by the schema; a null record is a
    null. Callers: one thread.

    Args:
        topic: for errors.
        info: the schema of the topic; None if it has none.
        kind: the type of the records, a struct.
        as_keys: whether payloads are compared: equal records have the text that a producer gives them.

    Raises:
        InvalidConfiguration: the topic has no schema of records, or one with other fields.
    """

    def __init__(self, topic: str, info: SchemaInfo | None, kind: Any, *, as_keys: bool = False) -> None:
        self._topic: Final = topic
        if info is None or info.schema_type() not in RECORDS:
            has = "has none" if info is None else f"is of type {info.schema_type().name}"
            raise InvalidConfiguration(
                f"records are encoded by the schema of {topic}, which {has}; register one of type JSON or "
                "AVRO, or write text: to_json(value)"
            )
        self._is_json: Final = info.schema_type() == SchemaType.JSON
        defined = {field.name: field for field in record_of(info.schema()).fields}
        self._targets: Final = [self._target(defined, field) for field in kind]
        given = {field.name for field in kind}
        self._absent: Final = [name for name, field in defined.items() if name not in given]
        for name in self._absent:
            if not _is_optional(defined[name]):
                raise InvalidConfiguration(
                    f"the schema of {topic} demands a field {name!r}; add it to the records"
                )
        self._nulls: Final = {name: None for name in self._absent if defined[name].default is ABSENT}
        json_text = _exact_text(tuple(defined)) if as_keys else dumps
        self._encode: Final = (
            json_text if self._is_json else AvroSchema(None, json.loads(info.schema())).encode
        )

    def _target(self, defined: dict[str, DefinitionField], field: Any) -> tuple[str, list[Any]]:
        if field.name not in defined:
            raise InvalidConfiguration(
                f"the schema of {self._topic} has no field {field.name!r}; it has {', '.join(defined)}"
            )
        final, raw, between = value_type(defined[field.name])
        return field.name, [final, between, _with_texts(raw)] if self._is_json else [final]

    def encode(self, records: Any) -> Any:
        """The payloads of records.

        Raises:
            ValueError: a record that the schema does not admit.
        """
        columns = []
        for number, (name, kinds) in enumerate(self._targets):
            column = records.field(number)
            try:
                for kind in kinds:
                    column = column if column.type.equals(kind) else column.cast(kind)
            except pa.ArrowException as error:
                given = records.field(number).type
                raise ValueError(
                    f"{self._topic}: field {name} of value is {given}, and {kinds[0]} by the schema: {error}"
                ) from error
            columns.append(column)
        rows = pa.StructArray.from_arrays(
            columns, [name for name, _ in self._targets], mask=records.is_null()
        ).to_pylist(maps_as_pydicts="strict")
        encode, nulls = self._encode, self._nulls
        try:
            return pa.array([None if row is None else encode(row | nulls) for row in rows], pa.binary())
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{self._topic}: a record does not fit the schema of the topic: {error}"
            ) from error


def _exact_text(order: tuple[str, ...]) -> Callable[[dict[str, Any]], bytes]:
    """The text of records as `JsonSchema` writes it, with the fields in this order."""
    return lambda row: json.dumps({name: row[name] for name in order if name in row}, indent=True).encode()


def _is_optional(field: DefinitionField) -> bool:
    is_nullable = field.node.kind == "union" and any(one.kind == "null" for one in field.node.branches)
    return is_nullable or field.default is not ABSENT


def _with_texts(kind: Any) -> Any:
    """A type with texts for bytes, as JSON has them."""
    if pa.types.is_binary(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_with_texts(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _with_texts(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(part.name, _with_texts(part.type)) for part in kind])
    return kind
