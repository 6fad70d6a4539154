"""Decoders of many payloads at once, JSON or Avro, into one Arrow array for each field."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from embeddedpulsar.arrow.value_types import ValueType, has_map
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.schema.json_text import loads
from embeddedpulsar.schema.schema_avro import definitions_for, library, parsed

_VALUE: Final = "v"
_MARK: Final = "m"
_OPENING, _BETWEEN, _CLOSING = b'{"v":', b'}\n{"v":', b"}\n"


class ValueDecoder(Protocol):
    """Decodes payloads of one format."""

    def decode(self, payloads: Any) -> list[Any]:
        """One array for each field, of as many values as there are payloads.

        Raises:
            Exception: any of the payloads is malformed; each format has its own errors.
        """


class Settled(NamedTuple):
    """What became of payloads.

    Attributes:
        columns: one array for each field, with the values of all payloads that are not malformed.
        malformed: the number of each payload that is, and why.
    """

    columns: list[Any]
    malformed: list[tuple[int, str]]


def settle(decoder: ValueDecoder, payloads: Any, types: list[Any]) -> Settled:
    """Decode all payloads that can be decoded: together, and in halves where one is malformed."""
    found: list[list[Any]] = []
    malformed: list[tuple[int, str]] = []
    pending = [(0, len(payloads))] if len(payloads) else []
    while pending:
        start, stop = pending.pop()
        try:
            found.append(decoder.decode(payloads.slice(start, stop - start)))
        except (MemoryError, NotImplementedError):
            raise
        except Exception as error:  # noqa: BLE001 - each format has its own
            if stop - start == 1:
                malformed.append((start, f"{error}" or type(error).__name__))
                continue
            middle = (start + stop) // 2
            pending += [(middle, stop), (start, middle)]
    if len(found) == 1:
        return Settled(found[0], malformed)
    columns = [
        pa.concat_arrays([part[i] for part in found] or [pa.nulls(0, kind)]) for i, kind in enumerate(types)
    ]
    return Settled(columns, malformed)


class JsonDecoder:
    """JSON objects: fields by name, others are left out, and a missing one is null or its default.

    Arrow's own parser reads all payloads as one text. Maps it cannot read: with one among the fields, each
    payload becomes a dict first.

    Args:
        types: of the fields.
        defaults: of fields that are never null.
    """

    def __init__(self, types: Mapping[str, ValueType], defaults: Mapping[str, Any]) -> None:
        self._types: Final = dict(types)
        self._defaults: Final = defaults
        self._raw: Final = pa.struct([(name, kind.raw) for name, kind in types.items()])
        self._is_plain: Final = not has_map(self._raw)
        self._options: Final = pa_json.ParseOptions(
            explicit_schema=pa.schema([(_VALUE, self._raw)]), unexpected_field_behavior="ignore"
        )

    def decode(self, payloads: Any) -> list[Any]:
        """As `ValueDecoder.decode`."""
        records = self._parsed(payloads) if self._is_plain else self._by_value(payloads)
        if records.null_count:
            raise ValueError("null is no record")
        found = []
        for number, (name, kind) in enumerate(self._types.items()):
            column = records.field(number)
            if name in self._defaults and column.null_count:
                column = pc.fill_null(column, pa.scalar(self._defaults[name], kind.raw))
            for wanted in (kind.between, kind.final):
                column = column if column.type.equals(wanted) else column.cast(wanted)
            found.append(column)
        return found

    def _parsed(self, payloads: Any) -> Any:
        # Each payload has an object of its own around it. The text between two of them is valid JSON only
        # where one object ends and the next begins, so as many objects as payloads are these payloads. A
        # payload that is a record, a comma and further members is read as the record.
        text = pa.py_buffer(b"".join((_OPENING, _joined(payloads, _BETWEEN), _CLOSING)))
        # One block, which ends with a line: payloads may have several lines.
        options = pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
        table = pa_json.read_json(pa.BufferReader(text), options, self._options)
        if table.num_rows != len(payloads):
            raise ValueError("more than one JSON value, or less")
        return table.column(0).combine_chunks()

    def _by_value(self, payloads: Any) -> Any:
        values = [loads(payload) for payload in payloads.to_pylist()]
        for value in values:
            if not isinstance(value, dict):
                raise ValueError(f"{type(value).__name__} is no record")
        return pa.array(values, self._raw)


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
        self._mark: Final = os.urandom(16)
        self._fields: Final = list(types)
        self._type: Final = pa.struct(
            [
                (_VALUE, pa.struct([(name, kind.final) for name, kind in types.items()])),
                (_MARK, pa.binary(len(self._mark))),
            ]
        )
        is_same = wanted is None or json.loads(wanted) == json.loads(written)
        writer, reader = definitions_for(written, written if wanted is None else wanted)
        self._writer: Final = parsed(_marked(_without_odd_types(writer)))
        # Without a resolution, fastavro takes half the time.
        self._reader: Final = None if is_same else _projected(_without_odd_types(reader), self._fields)

    def decode(self, payloads: Any) -> list[Any]:
        """As `ValueDecoder.decode`."""
        parts = (_zigzag(len(payloads)), _joined(payloads, self._mark), self._mark, b"\0")
        data = io.BytesIO(b"".join(parts))
        records = self._read(data, self._writer, self._reader)
        if len(records) != len(payloads) or data.read(1):
            raise ValueError("bytes are left behind the value, or are missing")
        found = pa.array(records, self._type)
        if not pc.all(pc.equal(found.field(1), pa.scalar(self._mark, self._type[1].type))).as_py():
            raise ValueError("bytes are left behind the value, or are missing")
        return [found.field(0).field(number) for number in range(len(self._fields))]


def _joined(payloads: Any, separator: bytes) -> Any:
    """The bytes of all payloads, with a separator between two."""
    listed = pa.ListArray.from_arrays(pa.array([0, len(payloads)], pa.int32()), payloads)
    return pc.binary_join(listed, pa.scalar(separator, pa.binary()))[0].as_buffer()


def _zigzag(count: int) -> bytes:
    """A number of 0 or more as Avro writes it."""
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
        return [_without_odd_types(one) for one in form]
    if not isinstance(form, dict):
        return form
    found = dict(form)
    if found.get("logicalType") not in _KEPT_TYPES:
        found.pop("logicalType", None)
    for part in ("type", "items", "values"):
        if part in found:
            found[part] = _without_odd_types(found[part])
    if isinstance(found.get("fields"), list):
        found["fields"] = [_without_odd_types(field) for field in found["fields"]]
    return found
