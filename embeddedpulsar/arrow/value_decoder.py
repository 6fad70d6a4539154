"""Decoders of many payloads at once, JSON or Avro, into one Arrow array for each field.

Values of JSON, as Python has them, for columns of Arrow: what does not fit a column is refused.

Payloads with a key and a value as two columns, `key` and `value`, each by the schema of its part.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from embeddedpulsar.arrow.value_types import (
    ValueType,
    default_of,
    has_decimal,
    has_map,
    plain_type,
    record_of,
    value_type,
)
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.records import NamedTuple, Protocol
from embeddedpulsar.schema.json_text import loads
from embeddedpulsar.schema.key_value import payload_decoder, split_pair
from embeddedpulsar.schema.schema import KeyValueInfo, SchemaInfo
from embeddedpulsar.schema.schema_avro import definitions_for, library, parsed

Convert = Callable[[Any], Any]
_MOST_MS: Final = (2**63 - 1) // 1000
"""The last millisecond that a column of microseconds has."""
_LARGEST_FLOAT32: Final = 3.4028235677973366e38
"""From here on, a number is rounded to infinity."""


def converter(kind: ValueType) -> Convert:
    """The function that makes of a value of a field what `pa.array` takes for its type in JSON.

    It does what Arrow's parser of JSON does with the text of the value: there is no conversion of one kind
    into another, except of whole numbers into decimal ones.

    Raises (the function):
        ValueError: the value is of another kind, or out of range.

    Example:
        >>> converter(ValueType(pa.int32(), pa.int32(), pa.int32()))(7)
        7
        >>> converter(ValueType(pa.int8(), pa.int8(), pa.int8()))(300)
        Traceback (most recent call last):
        ValueError: 300 is out of the range of int8
    """
    return _nullable(_converter(kind.final, kind.raw, kind.between))


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _converter(final: Any, raw: Any, between: Any) -> Convert:
    types = pa.types
    # `final`, `raw` and `between` have the same shape (see `ValueType`), so they are taken apart together.
    if types.is_struct(raw):
        return _of_struct(
            {
                part.name: converter(ValueType(final[i].type, part.type, between[i].type))
                for i, part in enumerate(raw)
            }
        )
    if types.is_list(raw):
        return _of_list(converter(ValueType(final.value_type, raw.value_type, between.value_type)))
    if types.is_map(raw):
        return _of_map(converter(ValueType(final.item_type, raw.item_type, between.item_type)))
    # A number that the cast to microseconds would overflow is refused here, with its field; Arrow's error
    # names neither.
    if types.is_integer(raw):
        if types.is_timestamp(between) and between.unit == "ms" and final.unit == "us":
            return _of_int(raw, -_MOST_MS, _MOST_MS)
        limit = 1 << (raw.bit_width - 1)
        return _of_int(raw, -limit, limit - 1)
    if types.is_floating(raw):
        return _of_float(raw)
    if types.is_boolean(raw):
        # True is 1 to Python, and no number in JSON.
        return _of_kind((bool,), raw)
    if types.is_string(raw):
        return _of_text(raw)
    if types.is_binary(raw):
        # JSON has texts for bytes; they are stored as UTF-8.
        text = _of_text(raw)
        return lambda value: text(value).encode()
    if types.is_null(raw):
        # No value has the type of a column of nulls; a null itself never comes here.
        return _of_kind((), raw)
    return lambda value: value  # decimal numbers: Arrow checks them exactly


def _unfit(value: Any, raw: Any) -> ValueError:
    # An error is read by people: of a large value the start suffices.
    text = repr(value)
    return ValueError(f"{text if len(text) <= 40 else text[:39] + '…'} is no {raw}")


def _of_kind(kinds: tuple[type, ...], raw: Any) -> Convert:
    def convert(value: Any) -> Any:
        # `type`, not `isinstance`: a bool is an int in Python.
        if type(value) not in kinds:
            raise _unfit(value, raw)
        return value

    return convert


def _of_int(raw: Any, low: int, high: int) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not int:
            raise _unfit(value, raw)
        if not low <= value <= high:
            raise ValueError(f"{value} is out of the range of {raw}")
        return value

    return convert


def _of_float(raw: Any) -> Convert:
    is_short = raw == pa.float32()

    def convert(value: Any) -> float:
        if isinstance(value, bool | str | list | dict):
            # What is left are numbers, `Decimal` among them where a record has decimal fields.
            raise _unfit(value, raw)
        try:
            number = float(value)
        except OverflowError:
            raise ValueError(f"a number of {len(str(value))} digits is out of the range of {raw}") from None
        # 32 bits would make infinity of it.
        if is_short and _LARGEST_FLOAT32 <= abs(number) < float("inf"):
            raise ValueError(f"{value} is out of the range of {raw}")
        return number

    return convert


def _of_text(raw: Any) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not str:
            raise _unfit(value, raw)
        if not value.isascii():
            value.encode()  # refuses half of a pair of surrogates
        return value

    return convert


def _of_list(convert_item: Convert) -> Convert:
    def convert(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _unfit(value, "array")
        return [convert_item(item) for item in value]

    return convert


def _of_map(convert_item: Convert) -> Convert:
    convert_key = _of_text("text")

    def convert(value: Any) -> list[tuple[str, Any]]:
        if type(value) is not dict:
            raise _unfit(value, "object")
        # Pairs, as `pa.array` takes a map.
        return [(convert_key(key), convert_item(item)) for key, item in value.items()]

    return convert


def _of_struct(parts: dict[str, Convert]) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _unfit(value, "object")
        # Fields that the column does not have are left out, and missing ones are null.
        return {name: convert_part(value.get(name)) for name, convert_part in parts.items()}

    return convert


_VALUE: Final = "v"
_MARK: Final = "m"
_OPENING, _BETWEEN, _CLOSING = b'{"v":[', b']}\n{"v":[', b"]}\n"
_CLOSES_AN_ARRAY: Final = r"\}\s*\]"
_ROW_BY_ROW: Final = 256
"""So many payloads, one of which is malformed, are decoded one by one, and no longer in halves."""
_MOST_FAILURES: Final = 32
"""After so many failures of a batch, what is left of it is decoded one by one."""


class ValueDecoder(Protocol):
    """Decodes payloads of one format."""

    def decode(self, payloads: Any) -> list[Any]:
        """One array for each field, of as many values as there are payloads.

        Raises:
            Exception: any of the payloads is malformed, or has to be decoded by `decode_each`; each format
                has its own errors.
        """

    def decode_each(self, payloads: Any) -> Decoded:
        """The same payload by payload, with those that are malformed. Of what `decode` decodes it gives the
        same values."""


class Decoded(NamedTuple):
    """What became of payloads.

    Attributes:
        columns: one array for each field, with the values of all payloads that are not malformed.
        malformed: the number of each payload that is, and why.
    """

    columns: list[Any]
    malformed: list[tuple[int, str]]


def decode_valid(decoder: ValueDecoder, payloads: Any, types: list[Any]) -> Decoded:
    """Decode all payloads that can be decoded: together, in halves where one is malformed, and one by one
    where many are."""
    parts: list[list[Any]] = []
    malformed: list[tuple[int, str]] = []
    # A stack of pieces still to decode. Halving finds one bad payload among n with some 2 log2(n) calls of
    # `decode`; the second half is pushed first, so pieces come back in the order of rows.
    pending = [(0, len(payloads))] if len(payloads) else []
    failures = 0
    while pending:
        start, stop = pending.pop()
        part = payloads.slice(start, stop - start)
        # Enough failures mean that bad payloads are common: then halving costs more than decoding one by one.
        if failures < _MOST_FAILURES:
            try:
                parts.append(decoder.decode(part))
                continue
            except (MemoryError, NotImplementedError):
                # Out of memory, and what is not implemented, are no fault of a payload.
                raise
            except Exception:  # noqa: BLE001 - each format has its own; `decode_each` says why
                failures += 1
            # Small enough: one by one tells which payload it is, and why.
            if stop - start > _ROW_BY_ROW:
                middle = (start + stop) // 2
                pending += [(middle, stop), (start, middle)]
                continue
        # The decoder gives columns of the good ones and the numbers of the bad ones, within the piece.
        columns, bad = decoder.decode_each(part)
        malformed += [(start + number, why) for number, why in bad]
        parts.append(columns)
    # The usual case: all of them at once, and nothing to put together.
    if len(parts) == 1:
        return Decoded(parts[0], malformed)
    columns = [
        # All payloads may be malformed; the columns are empty then, of the right types.
        pa.concat_arrays([part[i] for part in parts] or [pa.nulls(0, kind)])
        for i, kind in enumerate(types)
    ]
    return Decoded(columns, malformed)


def each_of(payloads: Iterable[Any], decode: Callable[[Any], Any]) -> tuple[list[Any], list[tuple[int, str]]]:
    """The values of the payloads that can be decoded, and of the others the number and the reason."""
    values, malformed = [], []
    for number, payload in enumerate(payloads):
        try:
            values.append(decode(payload))
        except (MemoryError, NotImplementedError):
            raise
        except Exception as error:  # noqa: BLE001 - each format has its own
            malformed.append((number, f"{error}" or type(error).__name__))
    return values, malformed


class JsonDecoder:
    """JSON objects: fields by name, others are left out, and a missing one is null or its default.

    Arrow's own parser reads all payloads as one text. What it does not take may be a value all the same, for
    `JsonSchema` does: a key that is there twice, NaN, another encoding than UTF-8. `decode_each` reads such
    payloads as `JsonSchema` does, and says of the others why they are malformed. Maps Arrow cannot read: with
    one among the fields, each payload is read so.

    Args:
        types: of the fields.
        defaults: of fields that are never null.
    """

    def __init__(self, types: Mapping[str, ValueType], defaults: Mapping[str, Any]) -> None:
        self._types: Final = dict(types)
        self._defaults: Final = defaults
        self._raw: Final = pa.struct([(name, kind.raw) for name, kind in types.items()])
        # Arrow's parser of JSON has no maps.
        self._is_plain: Final = not has_map(self._raw)
        self._convert: Final = {name: converter(kind) for name, kind in types.items()}
        self._has_decimal: Final = has_decimal(self._raw)
        self._options: Final = _parse_options([(_VALUE, pa.list_(self._raw))])
        # A name that is random for each decoder, so no payload can contain it on purpose.
        self._mark: Final = "m" + os.urandom(16).hex()
        self._marked: Final = _parse_options([*self._raw, (self._mark, pa.int8())])

    def decode(self, payloads: Any) -> list[Any]:
        """As `ValueDecoder.decode`."""
        if not self._is_plain:
            return self._finished(
                pa.array([self._record(payload) for payload in payloads.to_pylist()], self._raw)
            )
        # Arrow's parser does not check texts for UTF-8, and the cast does.
        payloads.cast(
            pa.large_string() if pa.types.is_large_binary(payloads.type) else pa.string()
        )  # is UTF-8
        # Two ways of putting payloads into one text. The first is quicker, and safe unless a payload can
        # close the array that it is put into.
        is_closed = pc.any(pc.match_substring_regex(payloads, _CLOSES_AN_ARRAY)).as_py()
        records = self._between_marks(payloads) if is_closed else self._in_arrays(payloads)
        if records.null_count:
            # `null` is JSON, and no record.
            raise ValueError("null is no record")
        columns = self._finished(records)
        for column in columns:
            # Arrow reads 1e999 as infinity; `JsonSchema` refuses it.
            _check_finite(column)
        return columns

    def decode_each(self, payloads: Any) -> Decoded:
        """As `ValueDecoder.decode_each`."""
        records, malformed = each_of(payloads.to_pylist(), self._record)
        # Together first: the values are in range, and only texts of times or digits of decimal numbers can
        # still fail.
        try:
            return Decoded(self._finished(pa.array(records, self._raw)), malformed)
        except (pa.ArrowException, ValueError):  # a text that is no time, or a number that is no decimal
            return self._finished_each(records, malformed, len(payloads))

    def _finished_each(self, records: list[Any], malformed: list[tuple[int, str]], count: int) -> Decoded:
        bad = {number for number, _ in malformed}
        # `records` has the good payloads alone; their own numbers are needed for the error.
        numbers = [number for number in range(count) if number not in bad]
        parts, unfit = each_of(records, lambda record: self._finished(pa.array([record], self._raw)))
        malformed = sorted([*malformed, *((numbers[number], why) for number, why in unfit)])
        columns = [
            pa.concat_arrays([part[i] for part in parts] or [pa.nulls(0, kind.final)])
            for i, kind in enumerate(self._types.values())
        ]
        return Decoded(columns, malformed)

    def _finished(self, records: Any) -> list[Any]:
        """The fields of records with their defaults, as what they are in the end."""
        columns = []
        for number, (name, kind) in enumerate(self._types.items()):
            column = records.field(number)
            if name in self._defaults and column.null_count:
                # Before the casts: a default is what JSON has, in the raw type.
                column = pc.fill_null(column, pa.scalar(self._defaults[name], kind.raw))
            # A number of milliseconds is cast to a time in milliseconds, and that to one in microseconds;
            # most fields need no cast.
            for wanted in (kind.between, kind.final):
                column = column if column.type.equals(wanted) else column.cast(wanted)
            columns.append(column)
        return columns

    def _in_arrays(self, payloads: Any) -> Any:
        """Records, each out of an array of its own in one text.

        A payload with more than one value gives an array of several, and one that ends the array has a
        closing bracket behind a closing brace, which `decode` has looked for. So as many arrays of one value
        as there are payloads are these payloads.
        """
        arrays = _read_lines(b"".join((_OPENING, _joined(payloads, _BETWEEN), _CLOSING)), self._options)
        column = arrays.column(0).combine_chunks()
        # Each array has one value, or a payload was no single value: "1 2", or an array that another payload
        # closes.
        if len(column) != len(payloads) or pc.any(pc.not_equal(pc.list_value_length(column), 1)).as_py():
            raise ValueError("more than one JSON value, or less")
        return column.flatten()

    def _between_marks(self, payloads: Any) -> Any:
        """Records, each as a text of its own, with a record of a random name behind it.

        If every second record is such a mark, and there are twice as many records as payloads, each payload
        is one record: it can neither make a mark nor swallow one without that showing.
        """
        mark = b'\n{"%s":1}\n' % self._mark.encode()
        table = _read_lines(b"".join((_joined(payloads, mark), mark)), self._marked)
        count = len(payloads)
        # Every second record is a mark, and nothing else is.
        pattern = pa.array([False, True] * count)
        if (
            table.num_rows != 2 * count
            or not pc.all(pc.equal(table.column(self._mark).combine_chunks().is_valid(), pattern)).as_py()
        ):
            raise ValueError("more than one JSON value, or less")
        # Chunks come from the parser's blocks; fields of a struct are single arrays.
        columns = table.filter(pc.invert(pattern)).combine_chunks().columns[: len(self._types)]
        return pa.StructArray.from_arrays(
            [column.combine_chunks() for column in columns], fields=list(self._raw)
        )

    def _record(self, payload: bytes) -> dict[str, Any]:
        """The fields of one payload, each in the range of its column."""
        # `Decimal` has all digits; a float would have lost some before the column checks them. Without
        # decimal fields, the reader of `JsonSchema` is used, which is the same for consumers.
        value = json.loads(payload, parse_float=Decimal) if self._has_decimal else loads(payload)
        if not isinstance(value, dict):
            raise ValueError(f"{_JSON_NAMES.get(type(value), type(value).__name__)} is no record")
        values = {}
        for name, convert in self._convert.items():
            try:
                values[name] = convert(value.get(name))
            except ValueError as error:
                # The name of the field, which the converter does not know.
                raise ValueError(f"field {name!r}: {error}") from None
        return values


_JSON_NAMES: Final = {type(None): "null", list: "an array", str: "a text", bool: "a truth value"} | {
    int: "a number",
    float: "a number",
    Decimal: "a number",
}


def _parse_options(fields: list[Any]) -> Any:
    return pa_json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore")


def _read_lines(data: bytes, options: Any) -> Any:
    """The records of a text, in one chunk."""
    # One block, which ends with a line: payloads may have several lines.
    read = pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    return pa_json.read_json(pa.BufferReader(pa.py_buffer(data)), read, options)


def _check_finite(column: Any) -> None:
    """Refuse infinities, which JSON does not have: they stand for a number beyond the range of the column."""
    kind = column.type
    if pa.types.is_floating(kind):
        if pc.any(pc.is_inf(column)).as_py():
            raise ValueError("a number is beyond the range of its column")
    elif pa.types.is_list(kind):
        _check_finite(column.flatten())
    elif pa.types.is_struct(kind):
        for part in column.flatten():
            _check_finite(part)


class AvroDecoder:
    """Records in Avro's binary form, resolved from the writer's definition to the reader's.

    All payloads are read as one array of pairs: a record, and a random mark that stands behind each payload.
    If each mark is where it belongs, each record has used up its payload to the last byte.

    Args:
        written: the definition of the writer.
        wanted: that of the reader; None for the fields as they are written.
        types: of the fields that are read.

    Raises:
        ImportError: fastavro is not installed.
        ValueError: a definition is not valid.
    """

    def __init__(self, written: str, wanted: str | None, types: Mapping[str, ValueType]) -> None:
        self._read: Final = library().schemaless_reader
        # Random for each decoder: a payload cannot contain it but by a chance of 2^-128.
        self._mark: Final = os.urandom(16)
        self._fields: Final = list(types)
        self._type: Final = pa.struct(
            [
                (_VALUE, pa.struct([(name, kind.final) for name, kind in types.items()])),
                (_MARK, pa.binary(len(self._mark))),
            ]
        )
        # Equal as JSON: spaces and the order of keys do not count.
        is_same = wanted is None or json.loads(wanted) == json.loads(written)
        writer, reader = definitions_for(written, written if wanted is None else wanted)
        # The logical types that no column has, a UUID or a time of day, are left out: the library would make
        # objects that Arrow does not take.
        self._writer: Final = parsed(_marked(_without_odd_types(writer)))
        # Without a resolution, fastavro takes half the time. Fields that are no column are skipped by the
        # resolution instead of decoded.
        self._reader: Final = None if is_same else _projected(_without_odd_types(reader), self._fields)

    def decode(self, payloads: Any) -> list[Any]:
        """As `ValueDecoder.decode`."""
        # An array in Avro: the number of its items, the items, and a 0 that ends it. Each item is a payload
        # and the mark.
        parts = (_zigzag(len(payloads)), _joined(payloads, self._mark), self._mark, b"\0")
        data = io.BytesIO(b"".join(parts))
        records = self._read(data, self._writer, self._reader)
        # A payload that is too short swallows a part of its mark, one that is too long leaves bytes before
        # it. Either way a mark is missing in its place, or the number is wrong.
        if len(records) != len(payloads) or data.read(1):
            raise ValueError("bytes are left behind the value, or are missing")
        marked = pa.array(records, self._type)
        if not pc.all(pc.equal(marked.field(1), pa.scalar(self._mark, self._type[1].type))).as_py():
            raise ValueError("bytes are left behind the value, or are missing")
        return [marked.field(0).field(number) for number in range(len(self._fields))]

    def decode_each(self, payloads: Any) -> Decoded:
        """As `ValueDecoder.decode_each`."""
        # Decoding tells which payloads are no records; the columns below tell which values do not fit.
        marked, malformed = each_of(payloads.to_pylist(), self._one)
        try:
            return Decoded(self._columns(marked), malformed)
        except (pa.ArrowException, ValueError):  # one of the values does not fit its column
            bad = {number for number, _ in malformed}
            numbers = [number for number in range(len(payloads)) if number not in bad]
            # One by one, only now that one is known not to fit.
            parts, unfit = each_of(marked, lambda record: self._columns([record]))
            malformed = sorted([*malformed, *((numbers[number], why) for number, why in unfit)])
            columns = [
                pa.concat_arrays([part[i] for part in parts] or [pa.nulls(0, field.type)])
                for i, field in enumerate(self._type[0].type)
            ]
            return Decoded(columns, malformed)

    def _one(self, payload: bytes) -> Any:
        """The record of one payload, with its mark."""
        data = io.BytesIO(b"".join((_zigzag(1), payload, self._mark, b"\0")))
        records = self._read(data, self._writer, self._reader)
        if len(records) != 1 or records[0][_MARK] != self._mark or data.read(1):
            raise ValueError("bytes are left behind the value, or are missing")
        return records[0]

    def _columns(self, marked: list[Any]) -> list[Any]:
        records = pa.array(marked, self._type).field(0)
        return [records.field(number) for number in range(len(self._fields))]


def _joined(payloads: Any, separator: bytes) -> Any:
    """The bytes of all payloads, with a separator between two."""
    # One list of all payloads is one text to Arrow's `binary_join`: no step for each.
    listed = pa.ListArray.from_arrays(pa.array([0, len(payloads)], pa.int32()), payloads)
    return pc.binary_join(listed, pa.scalar(separator, pa.binary()))[0].as_buffer()


def _zigzag(count: int) -> bytes:
    """A number of 0 or more as Avro writes it."""
    # Zigzag doubles a number that is not negative; then 7 bits a byte, the lowest first.
    value, out = 2 * count, bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _marked(record: Any) -> dict[str, Any]:
    mark = {"type": "fixed", "name": "embeddedpulsar_mark", "size": 16}
    fields = [{"name": _VALUE, "type": record}, {"name": _MARK, "type": mark}]
    return {"type": "array", "items": {"type": "record", "name": "embeddedpulsar_marked", "fields": fields}}


def _projected(record: Any, fields: list[str]) -> Any:
    """The definition with these fields alone, if it is complete without the others."""
    kept = [field for field in record["fields"] if field["name"] in fields]
    try:
        # A definition in the place of its first use: where that field is left out, the type is not known to
        # the others.
        return parsed(_marked(record | {"fields": kept}))
    except ValueError:  # a type that one of the others defines
        return parsed(_marked(record))


_KEPT_TYPES: Final = frozenset(
    (
        "date",
        "decimal",
        "timestamp-millis",
        "timestamp-micros",
        "local-timestamp-millis",
        "local-timestamp-micros",
    )
)


def _without_odd_types(form: Any) -> Any:
    """A definition with the logical types that columns have; others are read as what they are made of."""
    if isinstance(form, list):
        return [_without_odd_types(part) for part in form]
    if not isinstance(form, dict):
        return form
    kept = dict(form)
    # Without the logical type, a number or bytes are what is left.
    if kept.get("logicalType") not in _KEPT_TYPES:
        kept.pop("logicalType", None)
    for part in ("type", "items", "values"):
        if part in kept:
            kept[part] = _without_odd_types(kept[part])
    if isinstance(kept.get("fields"), list):
        kept["fields"] = [_without_odd_types(field) for field in kept["fields"]]
    return kept


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
    pair_info = KeyValueInfo.of(info)
    fields = []
    for name, part in zip(PARTS, (pair_info.key, pair_info.value), strict=True):
        kind = part.schema_type()
        # A record brings its own definition, a single value has the type that the column gets.
        form = json.loads(part.schema()) if kind in _RECORDS else _PRIMITIVES.get(kind)
        if form is None:
            raise InvalidConfiguration(f"the {name} is of type {kind.name}, which is no column")
        if isinstance(form, dict) and "fields" in form:
            form = form | {"namespace": f"pair.{name}"}  # the parts may have types of the same name
        # Either part of a pair may be null.
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
        pair_info = KeyValueInfo.of(written)
        fields = [] if definition is None else json.loads(definition)["fields"]
        # Branch 1 is the type: `pair_definition` writes ["null", type].
        forms = {field["name"]: field["type"][1] for field in fields}
        self._parts: Final = {
            name: _Part(pair_info.key if name == "key" else pair_info.value, forms.get(name), kind.final)
            for name, kind in types.items()
        }

    def decode(self, payloads: Any) -> list[Any]:
        """As `ValueDecoder.decode`."""
        # Split once, then each part as a column of its own.
        keys, values = zip(*map(split_pair, payloads.to_pylist()), strict=True)
        return [part.decode(keys if name == "key" else values) for name, part in self._parts.items()]

    def decode_each(self, payloads: Any) -> Decoded:
        """As `ValueDecoder.decode_each`."""
        pairs, malformed = each_of(payloads.to_pylist(), split_pair)
        bad = {number for number, _ in malformed}
        numbers = [number for number in range(len(payloads)) if number not in bad]
        # A pair is malformed if one of its parts is. The reason of the key comes first.
        reasons: dict[int, str] = {}
        for name, part in self._parts.items():
            unfit = part.decode_each([pair[PARTS.index(name)] for pair in pairs]).malformed
            reasons = {number: f"the {name}: {why}" for number, why in unfit} | reasons
        # Both columns have the same rows, so the pairs that are whole in both are decoded again.
        whole = [pair for number, pair in enumerate(pairs) if number not in reasons]
        columns = [
            part.decode_each([pair[PARTS.index(name)] for pair in whole]).columns[0]
            for name, part in self._parts.items()
        ]
        malformed += [(numbers[number], why) for number, why in reasons.items()]
        return Decoded(columns, sorted(malformed))


class _Part:
    """The decoder of one part into a column."""

    def __init__(self, info: SchemaInfo, form: Any, final: Any) -> None:
        self._final: Final = final
        self._records: ValueDecoder | None = None
        # A part is a record, decoded in columns, or a single value, decoded by the schema of its type.
        if pa.types.is_struct(final):
            if info.schema_type() not in _RECORDS:
                raise ValueError(f"a part was written with a schema of type {info.schema_type().name}")
            self._records = _record_decoder(info, form, final)
        else:
            self._one: Final = payload_decoder(info)

    def decode(self, parts: tuple[bytes | None, ...]) -> Any:
        """The column of so many parts."""
        if self._records is None:
            return pa.array([None if part is None else self._one(part) for part in parts], self._final)
        payloads = pa.array(parts, pa.binary())
        # A null part is no payload; records are decoded without them and put back in their rows.
        given = payloads.drop_null()
        if not len(given):
            return pa.nulls(len(parts), self._final)
        return self._placed(self._records.decode(given), payloads.is_valid())

    def decode_each(self, parts: list[bytes | None]) -> Decoded:
        """The column of the parts that are not malformed, and of the others the number and the reason."""
        if self._records is None:
            return self._values_each(parts)
        given = [number for number, part in enumerate(parts) if part is not None]
        decoded = self._records.decode_each(pa.array([parts[number] for number in given], pa.binary()))
        malformed = [(given[number], why) for number, why in decoded.malformed]
        bad = {number for number, _ in malformed}
        # Rows of the result are the parts that are not malformed, null ones among them.
        is_there = pa.array([part is not None for i, part in enumerate(parts) if i not in bad], pa.bool_())
        # No record is left: `_placed` has nothing to place.
        if len(bad) == len(given):
            return Decoded([pa.nulls(len(is_there), self._final)], malformed)
        return Decoded([self._placed(decoded.columns, is_there)], malformed)

    def _values_each(self, parts: list[bytes | None]) -> Decoded:
        def decode(part: bytes | None) -> Any:
            value = None if part is None else self._one(part)
            return pa.scalar(value, self._final)  # refuses what is out of range

        scalars, malformed = each_of(parts, decode)
        return Decoded([pa.array([scalar.as_py() for scalar in scalars], self._final)], malformed)

    def _placed(self, columns: list[Any], is_there: Any) -> Any:
        """Records in the rows that have one; the others are null."""
        records = pa.StructArray.from_arrays(columns, fields=list(self._final))
        # The number of the record for each row: how many there are up to it, less one; null for a row
        # without.
        counted = pc.cumulative_sum(is_there.cast(pa.int64()))
        return records.take(pc.if_else(is_there, pc.subtract(counted, 1), None))


def _record_decoder(info: SchemaInfo, form: Any, final: Any) -> ValueDecoder:
    # Without a definition, the fields are read as they were written: their types are those of the column.
    if form is None:
        types = {field.name: plain_type(field.type) for field in final}
        defaults: dict[str, Any] = {}
    else:
        fields = record_of(json.dumps(form)).fields
        wanted = [field for field in fields if final.get_field_index(field.name) >= 0]
        types = {
            field.name: value_type(field)._replace(final=final.field(field.name).type) for field in wanted
        }
        default_by_name = {field.name: default_of(field) for field in wanted}
        defaults = {name: default for name, default in default_by_name.items() if default is not None}
    if info.schema_type() == SchemaType.JSON:
        return JsonDecoder(types, defaults)
    # The namespace was added by `pair_definition`; it is no difference. Equal definitions need no resolution,
    # which takes twice the time.
    same = form is None or {**form, "namespace": None} == {**json.loads(info.schema()), "namespace": None}
    return AvroDecoder(info.schema(), None if same else json.dumps(form), types)
