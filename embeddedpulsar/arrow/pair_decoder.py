"""Payloads with a key and a value as two columns, `key` and `value`, each by the schema of its part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from embeddedpulsar.arrow.value_decoder import AvroDecoder, JsonDecoder, Settled, ValueDecoder, each_of
from embeddedpulsar.arrow.value_types import ValueType, default_of, plain_type, record_of, value_type
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.schema.key_value import split_pair
from embeddedpulsar.schema.key_value_info import KeyValueInfo
from embeddedpulsar.schema.payload_decoder import payload_decoder
from embeddedpulsar.schema.schema import SchemaInfo

PARTS: Final = ("key", "value")
_RECORDS: Final = (SchemaType.JSON, SchemaType.AVRO)
_DAY: Final = {"type": "int", "logicalType": "date"}
_MOMENT: Final = {"type": "long", "logicalType": "timestamp-micros"}
_PRIMITIVES: Final[Mapping[SchemaType, Any]] = {
    SchemaType.STRING: "string",
    SchemaType.BYTES: "bytes",
    SchemaType.BOOLEAN: "boolean",
    SchemaType.INT8: "int",
    SchemaType.INT16: "int",
    SchemaType.INT32: "int",
    SchemaType.INT64: "long",
    SchemaType.FLOAT: "float",
    SchemaType.DOUBLE: "double",
    SchemaType.DATE: _MOMENT,
    SchemaType.TIMESTAMP: _MOMENT,
    SchemaType.INSTANT: _MOMENT,
    SchemaType.LOCAL_DATE: _DAY,
}


def pair_definition(info: SchemaInfo) -> str:
    """A definition of records in Avro's notation with the two parts of a schema as fields.

    Raises:
        InvalidConfiguration: a part has a type that is no column.
    """
    found = KeyValueInfo.of(info)
    fields = []
    for name, part in zip(PARTS, (found.key, found.value), strict=True):
        kind = part.schema_type()
        form = json.loads(part.schema()) if kind in _RECORDS else _PRIMITIVES.get(kind)
        if form is None:
            raise InvalidConfiguration(f"the {name} is of type {kind.name}, which is no column")
        if isinstance(form, dict) and "fields" in form:
            form = form | {"namespace": f"pair.{name}"}  # the parts may have types of the same name
        fields.append({"name": name, "type": ["null", form], "default": None})
    return json.dumps({"type": "record", "name": "KeyValue", "pair": True, "fields": fields})


def is_pair(definition: str | None) -> bool:
    """Whether columns may be those of pairs: by a definition of `pair_definition`, or as they are written."""
    return definition is None or bool(json.loads(definition).get("pair"))


class PairDecoder:
    """Keys and values that are stored together. A `ValueDecoder`.

    Args:
        written: the schema of the writer.
        definition: to which it is resolved, as of `pair_definition`; None for the parts as they are written.
        types: of the columns that are read, by their name.

    Raises:
        ValueError: a part was written with a schema that is no record, and records are read.
    """

    def __init__(self, written: SchemaInfo, definition: str | None, types: Mapping[str, ValueType]) -> None:
        found = KeyValueInfo.of(written)
        fields = [] if definition is None else json.loads(definition)["fields"]
        forms = {field["name"]: field["type"][1] for field in fields}
        self._parts: Final = {
            name: _Part(found.key if name == "key" else found.value, forms.get(name), kind.final)
            for name, kind in types.items()
        }

    def decode(self, payloads: Any) -> list[Any]:
        """As `ValueDecoder.decode`."""
        keys, values = zip(*map(split_pair, payloads.to_pylist()), strict=True)
        return [part.decode(keys if name == "key" else values) for name, part in self._parts.items()]

    def decode_each(self, payloads: Any) -> Settled:
        """As `ValueDecoder.decode_each`."""
        pairs, malformed = each_of(payloads.to_pylist(), split_pair)
        bad = {number for number, _ in malformed}
        numbers = [number for number in range(len(payloads)) if number not in bad]
        reasons: dict[int, str] = {}
        for name, part in self._parts.items():
            unfit = part.decode_each([pair[PARTS.index(name)] for pair in pairs]).malformed
            reasons = {number: f"the {name}: {why}" for number, why in unfit} | reasons
        whole = [pair for number, pair in enumerate(pairs) if number not in reasons]
        columns = [
            part.decode_each([pair[PARTS.index(name)] for pair in whole]).columns[0]
            for name, part in self._parts.items()
        ]
        malformed += [(numbers[number], why) for number, why in reasons.items()]
        return Settled(columns, sorted(malformed))


class _Part:
    """The decoder of one part into a column."""

    def __init__(self, info: SchemaInfo, form: Any, final: Any) -> None:
        self._final: Final = final
        self._records: ValueDecoder | None = None
        if pa.types.is_struct(final):
            if info.schema_type() not in _RECORDS:
                raise ValueError(f"a part was written with a schema of type {info.schema_type().name}")
            self._records = _record_decoder(info, form, final)
        else:
            self._one: Final = payload_decoder(info)

    def decode(self, parts: tuple[bytes | None, ...]) -> Any:
        """The column of so many parts."""
        if self._records is None:
            return pa.array([None if one is None else self._one(one) for one in parts], self._final)
        payloads = pa.array(parts, pa.binary())
        given = payloads.drop_null()
        if not len(given):
            return pa.nulls(len(parts), self._final)
        return self._placed(self._records.decode(given), payloads.is_valid())

    def decode_each(self, parts: list[bytes | None]) -> Settled:
        """The column of the parts that are not malformed, and of the others the number and the reason."""
        if self._records is None:
            return self._values_each(parts)
        given = [number for number, part in enumerate(parts) if part is not None]
        settled = self._records.decode_each(pa.array([parts[number] for number in given], pa.binary()))
        malformed = [(given[number], why) for number, why in settled.malformed]
        bad = {number for number, _ in malformed}
        is_there = pa.array([part is not None for i, part in enumerate(parts) if i not in bad], pa.bool_())
        if len(bad) == len(given):
            return Settled([pa.nulls(len(is_there), self._final)], malformed)
        return Settled([self._placed(settled.columns, is_there)], malformed)

    def _values_each(self, parts: list[bytes | None]) -> Settled:
        def decode(part: bytes | None) -> Any:
            value = None if part is None else self._one(part)
            return pa.scalar(value, self._final)  # refuses what is out of range

        scalars, malformed = each_of(parts, decode)
        return Settled([pa.array([one.as_py() for one in scalars], self._final)], malformed)

    def _placed(self, columns: list[Any], is_there: Any) -> Any:
        """Records in the rows that have one; the others are null."""
        records = pa.StructArray.from_arrays(columns, fields=list(self._final))
        counted = pc.cumulative_sum(is_there.cast(pa.int64()))
        return records.take(pc.if_else(is_there, pc.subtract(counted, 1), None))


def _record_decoder(info: SchemaInfo, form: Any, final: Any) -> ValueDecoder:
    if form is None:
        types = {field.name: plain_type(field.type) for field in final}
        defaults: dict[str, Any] = {}
    else:
        fields = record_of(json.dumps(form)).fields
        wanted = [field for field in fields if final.get_field_index(field.name) >= 0]
        types = {
            field.name: value_type(field)._replace(final=final.field(field.name).type) for field in wanted
        }
        found = {field.name: default_of(field) for field in wanted}
        defaults = {name: default for name, default in found.items() if default is not None}
    if info.schema_type() == SchemaType.JSON:
        return JsonDecoder(types, defaults)
    same = form is None or {**form, "namespace": None} == {**json.loads(info.schema()), "namespace": None}
    return AvroDecoder(info.schema(), None if same else json.dumps(form), types)
