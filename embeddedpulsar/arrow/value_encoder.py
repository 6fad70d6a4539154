"""Payloads of columns of records, encoded by the schema of a topic: the opposite of `value_decoder`.

Payloads of columns with a `key` and a `value`, by a schema of pairs: the opposite of `value_decoder`.

Payloads of columns of single values: texts, numbers, times, by the schema of a topic or of a part.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from embeddedpulsar.arrow.engine import ABSENT, DefinitionField
from embeddedpulsar.arrow.typed_columns import RECORDS
from embeddedpulsar.arrow.value_decoder import PARTS
from embeddedpulsar.arrow.value_types import record_of, value_type
from embeddedpulsar.enums import KeyValueEncodingType, SchemaType
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.schema.json_text import dumps
from embeddedpulsar.schema.key_value import joined_pair, key_bytes
from embeddedpulsar.schema.primitives import primitive_schema
from embeddedpulsar.schema.schema import KeyValueInfo, SchemaInfo
from embeddedpulsar.schema.schema_avro import AvroSchema


class ValueEncoder:
    """Makes payloads of records. Invariants: a payload can be read by the schema; a null record is a
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
        # Without a schema of records nothing says how records become bytes: JSON by default would be a guess
        # that consumers have to share.
        if info is None or info.schema_type() not in RECORDS:
            has = "has none" if info is None else f"is of type {info.schema_type().name}"
            raise InvalidConfiguration(
                f"records are encoded by the schema of {topic}, which {has}; register one of type JSON or "
                "AVRO, or write text: to_json(value)"
            )
        # All that can fail is decided once, by the types: a query of Spark fails before it has written a row.
        self._is_json: Final = info.schema_type() == SchemaType.JSON
        defined = {field.name: field for field in record_of(info.schema()).fields}
        self._targets: Final = [self._target(defined, field) for field in kind]
        given = {field.name for field in kind}
        # Fields of the schema that the records do not have: those with a default or a null may be left out.
        self._absent: Final = [name for name, field in defined.items() if name not in given]
        for name in self._absent:
            if not _is_optional(defined[name]):
                raise InvalidConfiguration(
                    f"the schema of {topic} demands a field {name!r}; add it to the records"
                )
        # A missing field without a default is written as null; one with a default is left to the encoder, or
        # to the reader.
        self._nulls: Final = {name: None for name in self._absent if defined[name].default is ABSENT}
        # Keys are compared as bytes, by compaction and by routing, so equal records must have the very text
        # that `JsonSchema` gives a producer, with the fields in the order of the definition.
        json_text = _exact_text(tuple(defined)) if as_keys else dumps
        self._encode: Final = (
            json_text if self._is_json else AvroSchema(None, json.loads(info.schema())).encode
        )

    def _target(self, defined: dict[str, DefinitionField], field: Any) -> tuple[str, list[Any]]:
        if field.name not in defined:
            raise InvalidConfiguration(
                f"the schema of {self._topic} has no field {field.name!r}; it has {', '.join(defined)}"
            )
        # JSON: first what the field is in the end, which checks the values, then what JSON has in its place:
        # numbers for times, texts for bytes.
        final, raw, between = value_type(defined[field.name])
        return field.name, [final, between, _with_texts(raw)] if self._is_json else [final]

    def encode(self, records: Any) -> Any:
        """The payloads of records.

        Raises:
            ValueError: a record that the schema does not admit.
        """
        columns = []
        # Column by column in C; only the last step, from rows to bytes, is one for each message.
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
        # The mask keeps null records null: without it they would be records of nulls.
        rows = pa.StructArray.from_arrays(
            columns, [name for name, _ in self._targets], mask=records.is_null()
        ).to_pylist(maps_as_pydicts="strict")
        encode, nulls = self._encode, self._nulls
        # A null record is a null value, a tombstone.
        try:
            return pa.array([None if row is None else encode(row | nulls) for row in rows], pa.binary())
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            # What Avro's library raises for a value that does not fit depends on the value.
            raise ValueError(
                f"{self._topic}: a record does not fit the schema of the topic: {error}"
            ) from error


def _exact_text(order: tuple[str, ...]) -> Callable[[dict[str, Any]], bytes]:
    """The text of records as `JsonSchema` writes it, with the fields in this order."""
    return lambda row: json.dumps({name: row[name] for name in order if name in row}, indent=True).encode()


def _is_optional(field: DefinitionField) -> bool:
    is_nullable = field.node.kind == "union" and any(branch.kind == "null" for branch in field.node.branches)
    return is_nullable or field.default is not ABSENT


def _with_texts(kind: Any) -> Any:
    """A type with texts for bytes, as JSON has them."""
    # Text in UTF-8: JSON has no bytes. `decode_each` of `value_decoder` reads it back so.
    if pa.types.is_binary(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_with_texts(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _with_texts(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(part.name, _with_texts(part.type)) for part in kind])
    return kind


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
    """Makes payloads of single values. Invariants: a null is a null. Callers: one thread.

    Args:
        what: whose values they are, for errors.
        info: the schema; None for none.
        kind: the type of the values.

    Raises:
        InvalidConfiguration: the schema has other values.
    """

    def __init__(self, what: str, info: SchemaInfo | None, kind: Any) -> None:
        schema_type = None if info is None else info.schema_type()
        final = None if schema_type is None else _TYPES.get(schema_type)
        schema = None if schema_type is None else primitive_schema(schema_type)
        # Types of one sort are cast, with a check of each value. A number for a date, say, is refused: it may
        # be of any unit.
        if final is None or schema is None or _sort(final) != _sort(kind):
            has = "has none" if schema_type is None else f"is of type {schema_type.name}"
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
            # One cast for the column, then a step for each value.
            payloads = [
                None if value is None else encode(value) for value in values.cast(self._final).to_pylist()
            ]
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise ValueError(f"a value does not fit the schema of {self._what}: {error}") from error
        return pa.array(payloads, pa.binary())


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
    # Without width and unit: `int` and `float` are numbers above, so this tells texts, dates and times apart.
    return str(kind).partition("[")[0].rstrip("0123456789")


class PairEncoder:
    """Makes payloads of pairs, and keys of messages where the schema stores keys there. Invariants: a
    null pair is a null. Callers: one thread.

    Args:
        what: whose pairs they are, for errors.
        info: the schema.
        kind: the type of the pairs, a struct.

    Raises:
        InvalidConfiguration: the struct has other fields, or parts that do not fit.

    Attributes:
        separates_key: whether keys are those of messages.
    """

    def __init__(self, what: str, info: SchemaInfo, kind: Any) -> None:
        pair_info = KeyValueInfo.of(info)
        given = [field.name for field in kind]
        if sorted(given) != list(PARTS):
            raise InvalidConfiguration(
                f"the schema of {what} is of type KEY_VALUE, so records have the fields key and value, not "
                f"{', '.join(given)}; either may be null"
            )
        self.separates_key: Final = pair_info.encoding == KeyValueEncodingType.SEPARATED
        # The fields of the struct may be in any order.
        self._numbers: Final = [given.index(name) for name in PARTS]
        self._parts: Final = [
            payload_encoder(
                f"the {name} of {what}",
                part,
                kind.field(name).type,
                # A key that becomes the key of the message is compared; one in the payload is not.
                as_keys=self.separates_key and part is pair_info.key,
            )
            for name, part in zip(PARTS, (pair_info.key, pair_info.value), strict=True)
        ]

    def encode(self, pairs: Any) -> Any:
        """The payloads of pairs; errors as of `ValueEncoder.encode`."""
        # With SEPARATED the payload is the value alone, and `keys` gives the rest.
        if self.separates_key:
            return self._part(pairs, 1)
        keys, values = (self._part(pairs, number).to_pylist() for number in range(2))
        validity = pairs.is_valid().to_pylist()
        return pa.array(
            # A null pair is a null value; a pair with null parts is a payload.
            [
                joined_pair(key, value) if has_pair else None
                for has_pair, key, value in zip(validity, keys, values, strict=True)
            ],
            pa.binary(),
        )

    def keys(self, pairs: Any) -> Any:
        """The keys of the messages, in Base64.

        Raises:
            ValueError: a key that is no bytes.
        """
        keys = self._part(pairs, 0).to_pylist()
        # An empty key of a message counts as none (see `Producer.send`), so the message would lose its key.
        if b"" in keys:
            raise ValueError(
                "a key is encoded to no bytes, which is no key of a message; use another key, or "
                "KeyValueEncodingType.INLINE"
            )
        # Base64, as Pulsar's clients have keys of such schemas: a key of a message is text.
        return pa.array([None if key is None else base64.b64encode(key) for key in keys], pa.binary())

    def _part(self, pairs: Any, number: int) -> Any:
        column = pairs.flatten()[self._numbers[number]]
        encoder = self._parts[number]
        return column.cast(pa.binary()) if encoder is None else encoder.encode(column)


Encoder = ValueEncoder | PlainEncoder | PairEncoder


def payload_encoder(
    what: str, info: SchemaInfo | None, kind: Any, *, as_keys: bool = False
) -> Encoder | None:
    """What makes payloads of a column; None if it has payloads.

    Args:
        what: whose values they are: a topic, or a part of its pairs.
        info: the schema; None for none.
        kind: the type of the column.
        as_keys: see `ValueEncoder`.

    Raises:
        InvalidConfiguration: the schema has other values.
    """
    # Four cases: bytes or text, which are payloads as they are; a single value; a pair; and a record.
    if is_payload(kind):
        return None
    if not pa.types.is_struct(kind):
        return PlainEncoder(what, info, kind)
    if info is not None and info.schema_type() == SchemaType.KEY_VALUE:
        return PairEncoder(what, info, kind)
    return ValueEncoder(what, info, kind, as_keys=as_keys)


def value_part(info: SchemaInfo | None) -> SchemaInfo | None:
    """The schema of the values alone, where keys are those of messages; None for another schema."""
    if info is None or info.schema_type() != SchemaType.KEY_VALUE:
        return None
    pair_info = KeyValueInfo.of(info)
    return pair_info.value if pair_info.encoding == KeyValueEncodingType.SEPARATED else None


def check_keys(keys: Any) -> None:
    """Refuse keys of messages that are not in Base64, as the consumers of such a schema would.

    Raises:
        ValueError: one is not.
    """
    # A key is decoded once however many rows have it. Null and the empty key mean "no key".
    for key in keys.unique().to_pylist():
        if key:
            key_bytes(key if isinstance(key, str) else key.decode("ascii", "replace"))
