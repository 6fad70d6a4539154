"""What `send_arrow` takes: tables, batches, streams, single columns; in the few forms it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from embeddedpulsar._engine.format.document import pack_map
from embeddedpulsar.records import NamedTuple

if TYPE_CHECKING:
    from embeddedpulsar.arrow.record_rows import RecordRows  # loads schemas, which payloads do not need

WINDOW: Final = 1 << 16
"""Rows that are looked at together; keys are grouped in them."""
_TIMES: Final = "a timestamp, a date, or an int64 of ms since 1970"


class ColumnNames(NamedTuple):
    """Which column is what; None for none."""

    value: str
    key: str | None
    ordering_key: str | None
    properties: str | None
    event_time: str | None
    sequence_id: str | None


class Columns(NamedTuple):
    """One window: arrays of equal length. Values and keys are binary or string with 32 or 64 bit offsets, and
    may have nulls; properties are packed; times and ids are int64 without nulls.
    """

    value: Any
    key: Any
    ordering_key: Any
    properties: Any
    event_time: Any
    sequence_id: Any

    def slice(self, start: int, stop: int) -> Columns:
        """Some rows."""
        return Columns(*[None if one is None else one.slice(start, stop - start) for one in self])

    def take(self, order: Any) -> Columns:
        """Rows in another order."""
        return Columns(*[None if one is None else one.take(order) for one in self])


def windows(
    data: Any,
    names: ColumnNames,
    encode_value: Callable[[Any], bytes] | RecordRows | None,
    rows: int,
    size: int,
) -> Iterator[Columns]:
    """The columns of ``data``, some 65,536 rows at a time. Small batches are put together until they make up
    an entry of ``rows`` messages or ``size`` bytes.

    Raises:
        TypeError: no tabular data, or a column of a type that cannot be written.
        ValueError: a column that is not there, or a value that cannot be.
    """
    if encode_value is not None and not callable(encode_value):
        selected, encode_value = _of_records(data, names, encode_value), None
    else:
        selected = _selected(data, names)
    for batch in _gathered(selected, rows, size):
        for start in range(0, len(batch), WINDOW):
            yield _normalised(batch.slice(start, WINDOW), names, encode_value)


def _selected(data: Any, names: ColumnNames) -> Iterator[Any]:
    """Record batches with the columns that are written, named by what they are."""
    wanted = {role: name for role, name in names._asdict().items() if name is not None}
    for batch in _batches(data, names.value):
        yield pa.RecordBatch.from_arrays(
            [_column(batch, role, name) for role, name in wanted.items()], names=list(wanted)
        )


def _of_records(data: Any, names: ColumnNames, records: RecordRows) -> Iterator[Any]:
    """The same of rows that a schema encodes. They are encoded before batches are put together: those that
    have dictionaries of their own within structs cannot be."""
    wanted = {role: name for role, name in names._asdict().items() if name is not None and role != "value"}
    is_one_column = isinstance(data, pa.ChunkedArray | pa.Array)
    for batch in _batches(data, names.value):
        for start in range(0, max(1, len(batch)), WINDOW):
            part = batch.slice(start, WINDOW)
            others = [_column(part, role, name) for role, name in wanted.items()]
            payloads = records.payloads(part, is_one_column=is_one_column)
            yield pa.RecordBatch.from_arrays([payloads, *others], names=["value", *wanted])


def _column(batch: Any, role: str, name: str) -> Any:
    place = batch.schema.get_all_field_indices(name)
    if len(place) != 1:
        raise ValueError(
            f"{role}={name!r}: {len(place)} columns have that name; there are {', '.join(batch.schema.names)}"
        )
    column = batch.column(place[0])
    # Here already: batches with dictionaries of their own cannot always be put together.
    return _plain(column) if _is_encoded(column.type) else column


def _batches(data: Any, value: str) -> Iterator[Any]:
    if isinstance(data, pa.ChunkedArray | pa.Array):
        data = pa.table({value: data})
    if isinstance(data, dict):
        data = pa.table(data)
    if isinstance(data, pa.Table):
        yield from data.to_batches()
    elif isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, pa.RecordBatchReader):
        yield from data
    elif hasattr(data, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(data)
    elif hasattr(data, "__arrow_c_array__"):
        yield pa.record_batch(data)
    else:
        raise TypeError(
            f"{type(data).__name__} is no tabular data; give a pyarrow Table, RecordBatch, Array or "
            "RecordBatchReader, a dict of columns, or what offers __arrow_c_stream__ (Polars, pandas, DuckDB)"
        )


def _gathered(batches: Iterator[Any], rows: int, size: int) -> Iterator[Any]:
    waiting: list[Any] = []
    waiting_rows = waiting_size = 0
    for batch in batches:
        waiting.append(batch)
        waiting_rows += len(batch)
        waiting_size += batch.nbytes
        if waiting_rows >= rows or waiting_size >= size:
            yield _joined(waiting)
            waiting, waiting_rows, waiting_size = [], 0, 0
    if waiting_rows:
        yield _joined(waiting)


def _joined(batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _normalised(batch: Any, names: ColumnNames, encode_value: Callable[[Any], bytes] | None) -> Columns:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    return Columns(
        _payloads(columns["value"], names.value, encode_value),
        _keys(columns.get("key"), names.key),
        _keys(columns.get("ordering_key"), names.ordering_key),
        _properties(columns.get("properties"), names.properties),
        _times(columns.get("event_time"), names.event_time),
        _ids(columns.get("sequence_id"), names.sequence_id),
    )


def _plain(values: Any) -> Any:
    """Without a dictionary, and with offsets."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        # By the indices: Arrow decodes no dictionary of views, as Polars has for Categorical and Enum.
        return _plain(values.dictionary).take(values.indices)
    if pa.types.is_run_end_encoded(kind):
        return _plain(pc.run_end_decode(values))
    if isinstance(values, pa.ExtensionArray):
        return _plain(values.storage)
    if pa.types.is_fixed_size_binary(kind) or kind == pa.binary_view():
        return values.cast(pa.binary())
    if kind == pa.string_view():
        return values.cast(pa.string())
    return values


def _is_encoded(kind: Any) -> bool:
    return bool(pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind))


def _has_texts(kind: Any) -> bool:
    """Whether the values of a column are texts, however they are stored."""
    if _is_encoded(kind):
        return _has_texts(kind.value_type)
    return _is_text(kind) or kind == pa.string_view()


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _payloads(values: Any, name: str, encode_value: Callable[[Any], bytes] | None) -> Any:
    values = _plain(values)
    kind = values.type
    if encode_value is not None:
        items = values.to_pylist()
        return pa.array([None if one is None else encode_value(one) for one in items], pa.large_binary())
    if pa.types.is_null(kind):
        return values.cast(pa.binary())
    if _is_text(kind) or _is_bytes(kind):
        return values
    raise TypeError(f"value={name!r} is a column of {kind}, not binary or string; encode it, or use a schema")


def _keys(keys: Any, name: str | None) -> Any:
    if keys is None:
        return None
    keys = _plain(keys)
    if _is_bytes(keys.type):
        try:
            keys = keys.cast(pa.large_string() if pa.types.is_large_binary(keys.type) else pa.string())
        except pa.ArrowInvalid as error:
            raise ValueError(f"column {name!r} holds a key that is not UTF-8: {error}") from None
    elif pa.types.is_null(keys.type):
        return None
    elif not _is_text(keys.type):
        raise TypeError(f"column {name!r} is {keys.type}; keys are string or binary")
    lengths = pc.min_max(pc.binary_length(keys))
    if lengths["min"].as_py() == 0:  # not set, as in `Producer.send`
        keys = pc.if_else(pc.equal(pc.binary_length(keys), 0), pa.scalar(None, keys.type), keys)
    return None if keys.null_count == len(keys) else keys


def _properties(maps: Any, name: str | None) -> Any:
    """Packed; the one column that costs a step for each message."""
    if maps is None or pa.types.is_null(maps.type):
        return None
    kind = maps.type
    if not (pa.types.is_map(kind) and _has_texts(kind.key_type) and _has_texts(kind.item_type)):
        raise TypeError(f"column {name!r} is {maps.type}; properties are map<string, string>")
    packed = []
    for pairs in maps.to_pylist():
        if pairs and any(value is None for _, value in pairs):
            raise ValueError(f"column {name!r} holds a property without a value: {pairs}")
        packed.append(pack_map(dict(pairs)) if pairs else b"")
    return pa.array(packed, pa.binary()) if any(packed) else None


def _times(times: Any, name: str | None) -> Any:
    if times is None or times.null_count == len(times):
        return None
    times = _plain(times)
    kind = times.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        _positive(times.cast(pa.int32() if kind == pa.date32() else pa.int64()), name)
        zone = getattr(kind, "tz", None)
        try:
            # Parts of milliseconds are cut off. Seconds may be too many for milliseconds.
            times = times.cast(pa.timestamp("ms", zone), safe=kind == pa.timestamp("s", zone))
        except pa.ArrowInvalid as error:
            raise ValueError(f"column {name!r} holds a time that int64 of ms cannot hold: {error}") from None
    elif not pa.types.is_integer(kind):
        raise TypeError(f"column {name!r} is {kind}; an event time is {_TIMES}")
    try:
        times = _positive(pc.fill_null(times.cast(pa.int64()), 0), name)
    except pa.ArrowInvalid as error:
        raise ValueError(f"column {name!r} holds a time that int64 of ms cannot hold: {error}") from None
    return times if pc.any(pc.not_equal(times, 0)).as_py() else None


def _ids(ids: Any, name: str | None) -> Any:
    if ids is None:
        return None
    if not pa.types.is_integer(ids.type) or ids.null_count:
        raise TypeError(f"column {name!r} is {ids.type} with {ids.null_count} nulls; sequence ids are int64")
    return _positive(ids.cast(pa.int64()), name)


def _positive(numbers: Any, name: str | None) -> Any:
    least = pc.min(numbers).as_py()
    if least is not None and least < 0:
        row = pc.index(numbers, pa.scalar(least, numbers.type)).as_py()
        raise ValueError(f"column {name!r} must not be negative, and holds {least} in row {row}")
    return numbers
