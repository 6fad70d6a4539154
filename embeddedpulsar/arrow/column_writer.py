"""Entries made of Arrow columns: what is laid out alike is handed on by reference, not copied.

What `send_arrow` takes: tables, batches, streams, single columns; in the few forms it writes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from embeddedpulsar.arrow.engine import (
    FLAG_BATCHED,
    FLAG_EVENT_TIMES,
    FLAG_KEY_ABSENT,
    FLAG_KEYS,
    FLAG_NULL_VALUES,
    FLAG_ORDERING_KEY_ABSENT,
    FLAG_ORDERING_KEYS,
    FLAG_PROPERTIES,
    FLAG_SEQUENCE_IDS,
    PADDING,
    EncodedEntry,
    ProducerPrefix,
    encode_columns,
    pack_map,
    sticky_key_hash,
    unpack_text_map,
)
from embeddedpulsar.records import NamedTuple, Protocol

if TYPE_CHECKING:
    from embeddedpulsar.arrow.row_values import RecordRows


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
        return Columns(*[None if column is None else column.slice(start, stop - start) for column in self])

    def reorder(self, order: Any) -> Columns:
        """Rows in another order."""
        return Columns(*[None if column is None else column.take(order) for column in self])


def windows(
    data: Any,
    names: ColumnNames,
    encode_value: Callable[[Any], bytes] | RecordRows | None,
    rows: int,
    size: int,
    common: dict[str, str] | None = None,
) -> Iterator[Columns]:
    """The columns of ``data``, some 65,536 rows at a time. Small batches are put together until they make up
    an entry of ``rows`` messages or ``size`` bytes. ``common`` are properties that every row has.

    Raises:
        TypeError: no tabular data, or a column of a type that cannot be written.
        ValueError: a column that is not there, or a value that cannot be.
    """
    # Records are encoded before batches are put together, single values after that; payloads need no
    # encoding. So there are three ways in, and one way from there on.
    if encode_value is not None and not callable(encode_value):
        selected, encode_value = _of_records(data, names, encode_value), None
    else:
        selected = _selected(data, names)
    # An entry that is as large as it may be needs all of its rows in one array; a large batch is cut into
    # windows without a copy.
    for batch in _gathered(selected, rows, size):
        for start in range(0, len(batch), WINDOW):
            yield _normalised(batch.slice(start, WINDOW), names, encode_value, common or {})


def _selected(data: Any, names: ColumnNames) -> Iterator[Any]:
    """Record batches with the columns that are written, named by what they are."""
    wanted = {role: name for role, name in names._asdict().items() if name is not None}
    # The name of the role replaces the name of the column, so what follows knows no names of the application.
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
        # An empty batch is encoded, too: a column that is no field is an error also without rows.
        for start in range(0, max(1, len(batch)), WINDOW):
            part = batch.slice(start, WINDOW)
            others = [_column(part, role, name) for role, name in wanted.items()]
            payloads = records.payloads(part, is_one_column=is_one_column)
            yield pa.RecordBatch.from_arrays([payloads, *others], names=["value", *wanted])


def _column(batch: Any, role: str, name: str) -> Any:
    # Arrow allows a name twice. Taking the first of them would publish what the caller did not mean.
    place = batch.schema.get_all_field_indices(name)
    if len(place) != 1:
        raise ValueError(
            f"{role}={name!r}: {len(place)} columns have that name; there are {', '.join(batch.schema.names)}"
        )
    column = batch.column(place[0])
    # Here already: batches with dictionaries of their own cannot always be put together.
    return _plain(column) if _is_encoded(column.type) else column

    # What pyarrow has itself comes first: its classes offer `__arrow_c_stream__`, too, and need no stream.


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
        # Polars, pandas and DuckDB. The stream refers to their buffers, so this copies nothing.
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
    # Both limits are those of an entry: more rows together would be cut again.
    for batch in batches:
        waiting.append(batch)
        waiting_rows += len(batch)
        waiting_size += batch.nbytes
        if waiting_rows >= rows or waiting_size >= size:
            yield from _joined(waiting)
            waiting, waiting_rows, waiting_size = [], 0, 0
    if waiting_rows:
        yield from _joined(waiting)


def _joined(batches: list[Any]) -> list[Any]:
    if len(batches) == 1:
        return batches
    # Rows of several batches become one batch by a copy, which is cheaper than entries of a few messages
    # each. They become several where a column with offsets of 32 bits would exceed 2 GiB.
    joined: list[Any] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def _normalised(
    batch: Any, names: ColumnNames, encode_value: Callable[[Any], bytes] | None, common: dict[str, str]
) -> Columns:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    return Columns(
        _payloads(columns["value"], names.value, encode_value),
        _keys(columns.get("key"), names.key),
        _keys(columns.get("ordering_key"), names.ordering_key),
        _properties(columns.get("properties"), names.properties, common, len(batch)),
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
    # Three cases: values that a schema encodes one by one, a column of nulls alone, and payloads as they are.
    values = _plain(values)
    kind = values.type
    if encode_value is not None:
        # A step for each value: only for schemas of single values, since records were encoded before.
        items = values.to_pylist()
        return pa.array([None if item is None else encode_value(item) for item in items], pa.large_binary())
    if pa.types.is_null(kind):
        # A null value is a tombstone, so a column without a type is a column of those.
        return values.cast(pa.binary())
    if _is_text(kind) or _is_bytes(kind):
        return values
    raise TypeError(f"value={name!r} is a column of {kind}, not binary or string; encode it, or use a schema")


def _keys(keys: Any, name: str | None) -> Any:
    # Keys are text in the format of entries (docs/format/frame.md), so bytes are taken if they are UTF-8. The
    # cast checks that in C and copies nothing.
    if keys is None:
        return None
    keys = _plain(keys)
    if _is_bytes(keys.type):
        try:
            # The width of the offsets stays: casting 64 bits to 32 would fail beyond 2 GiB of keys.
            keys = keys.cast(pa.large_string() if pa.types.is_large_binary(keys.type) else pa.string())
        except pa.ArrowInvalid as error:
            raise ValueError(f"column {name!r} holds a key that is not UTF-8: {error}") from None
    elif pa.types.is_null(keys.type):
        return None
    elif not _is_text(keys.type):
        raise TypeError(f"column {name!r} is {keys.type}; keys are string or binary")
    lengths = pc.min_max(pc.binary_length(keys))
    if lengths["min"].as_py() == 0:  # not set, as in `Producer.send`
        # The pass over all keys that this takes is needed only where the shortest key is empty.
        keys = pc.if_else(pc.equal(pc.binary_length(keys), 0), pa.scalar(None, keys.type), keys)
    # A column of nulls is the same as none, and takes no bytes in the entry.
    return None if keys.null_count == len(keys) else keys


def _properties(maps: Any, name: str | None, common: dict[str, str], rows: int) -> Any:
    """Packed; the one column that costs a step for each message, where they differ."""
    # A null map and an empty map are both "no properties", as for `Producer.send`.
    if maps is None or pa.types.is_null(maps.type):
        return pa.repeat(pa.scalar(pack_map(common), pa.binary()), rows) if common else None
    kind = maps.type
    if not (pa.types.is_map(kind) and _has_texts(kind.key_type) and _has_texts(kind.item_type)):
        raise TypeError(f"column {name!r} is {maps.type}; properties are map<string, string>")
    packed = []
    for pairs in maps.to_pylist():
        # A property without a value cannot be stored: both sides are text in the format.
        if pairs and any(value is None for _, value in pairs):
            raise ValueError(f"column {name!r} holds a property without a value: {pairs}")
        own = {**common, **dict(pairs or ())}
        packed.append(pack_map(own) if own else b"")
    # Where no message has a property, the entry gets no column of them.
    return pa.array(packed, pa.binary()) if any(packed) else None


def _times(times: Any, name: str | None) -> Any:
    # 0 stands for "no event time" in the format, so nulls become 0 and a column of zeros becomes none.
    if times is None or times.null_count == len(times):
        return None
    times = _plain(times)
    kind = times.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        # Before the cast, which cuts parts of milliseconds: a time just before 1970 would become 0, and so no
        # event time, instead of an error.
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
        # An integer is taken as milliseconds, as `event_timestamp` of `Producer.send` is.
        times = _positive(pc.fill_null(times.cast(pa.int64()), 0), name)
    except pa.ArrowInvalid as error:
        raise ValueError(f"column {name!r} holds a time that int64 of ms cannot hold: {error}") from None
    return times if pc.any(pc.not_equal(times, 0)).as_py() else None


def _ids(ids: Any, name: str | None) -> Any:
    if ids is None:
        return None
    # Deduplication compares sequence ids, so a message without one among others with one has no meaning.
    if not pa.types.is_integer(ids.type) or ids.null_count:
        raise TypeError(f"column {name!r} is {ids.type} with {ids.null_count} nulls; sequence ids are int64")
    return _positive(ids.cast(pa.int64()), name)


def _positive(numbers: Any, name: str | None) -> Any:
    least = pc.min(numbers).as_py()
    # The row that the error names helps to find the value in a column of millions.
    if least is not None and least < 0:
        row = pc.index(numbers, pa.scalar(least, numbers.type)).as_py()
        raise ValueError(f"column {name!r} must not be negative, and holds {least} in row {row}")
    return numbers


__all__ = ["ColumnNames", "ColumnPortion", "portions_of"]

Group = tuple[Any, Columns, Sequence[int]]
"""A mark, the rows that bear it, and their numbers."""


class Routing(Protocol):
    """Which partition messages go to."""

    @property
    def is_custom(self) -> bool: ...
    def of_keys(self, keys: Iterable[str | None]) -> list[int]: ...
    # The partition whose turn it is: for messages without a key, one for each entry.
    def next_partition(self) -> int: ...
    def choose(self, value: bytes, /, *options: Any) -> int: ...


class ColumnPortion:
    """The messages of one entry, as slices of Arrow arrays. One thread at a time.

    Attributes:
        count: messages.
        numbers: which rows these are.
        partition: where they go; 0 where there are no partitions.
    """

    is_copied = False

    __slots__ = ("_built", "_columns", "count", "numbers", "partition")

    def __init__(self, columns: Columns, numbers: Sequence[int], partition: int = 0) -> None:
        self.count = len(columns.value)
        self.numbers = numbers
        self.partition = partition
        self._columns = columns
        # The layout does not depend on sequence ids, so it is made once: a portion is encoded again where
        # another thread has sent a message meanwhile.
        self._built: tuple[list[Any], int, int] | None = None

    @property
    def explicit_ids(self) -> tuple[int, int, int] | None:
        """First, last and highest sequence id, where they are not automatic."""
        ids = self._columns.sequence_id
        # The highest one need not be the last: the application chooses the ids, and deduplication keeps the
        # highest.
        if ids is None:
            return None
        return ids[0].as_py(), ids[self.count - 1].as_py(), pc.max(ids).as_py()

    def part(self, start: int, stop: int) -> ColumnPortion:
        """Some of the messages."""
        return ColumnPortion(self._columns.slice(start, stop), self.numbers[start:stop], self.partition)

    def laid_out(self) -> tuple[list[Any], int, int]:
        """The columns as they are stored, their flags, and the hash of the first message's key."""
        if self._built is None:
            self._built = _built(self._columns)
        return self._built

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The messages one by one, as a ``message_router`` is asked about them."""
        return _rows(self._columns)

    def encode(self, first: int, prefix: ProducerPrefix, codec: int) -> EncodedEntry:
        """The entry; ``first`` is its first automatic sequence id. Uncompressed bytes are not copied."""
        parts, flags, key_hash = self.laid_out()
        ids = self.explicit_ids
        # Explicit ids that count up are stored by their first alone, like automatic ones.
        if ids is not None:
            first = ids[0]
        return encode_columns(
            parts, self.count, flags, first, key_hash, prefix, codec, schema_version=prefix.schema_version
        )


def _built(columns: Columns) -> tuple[list[Any], int, int]:
    """All columns as they are stored, the flags that say which, and the hash of the first message's key."""
    # The order of the parts is that of the flag bits (docs/format/frame.md): a reader finds a column by
    # adding up the sizes of those before it. The bitmaps of absent keys have the highest bits, so they are
    # kept until all others are in.
    values, nulls = without_nulls(columns.value)
    parts, flags = variable(values), FLAG_BATCHED
    behind: list[Any] = []
    key_hash = 0
    for keys, flag, absent_flag in (
        (columns.key, FLAG_KEYS, FLAG_KEY_ABSENT),
        (columns.ordering_key, FLAG_ORDERING_KEYS, FLAG_ORDERING_KEY_ABSENT),
    ):
        # A column without a single key is left out, and its flag with it.
        if keys is None or keys.null_count == len(keys):
            continue
        # Dispatch by key looks at the first message of an entry: with `key_based` all others have the same
        # key.
        first = keys[0].as_py()
        if first is not None:
            key_hash = sticky_key_hash(first)  # the ordering key's, if there are both
        keys, absent = without_nulls(keys)
        parts += variable(keys)
        flags |= flag
        if absent is not None:
            # Where only some messages have a key, an empty text stands for the others and a bitmap tells them
            # apart; an empty key does not exist.
            behind += absent
            flags |= absent_flag
    if columns.properties is not None:
        parts += variable(columns.properties)
        flags |= FLAG_PROPERTIES
    if columns.event_time is not None:
        parts += fixed(columns.event_time)
        flags |= FLAG_EVENT_TIMES
    # Ids that count up by 1 follow from the first one, which the metadata has.
    if columns.sequence_id is not None and not _counts_up(columns.sequence_id):
        parts += fixed(columns.sequence_id)
        flags |= FLAG_SEQUENCE_IDS
    if nulls is not None:
        parts += nulls
        flags |= FLAG_NULL_VALUES
    return parts + behind, flags, key_hash


def _counts_up(ids: Any) -> bool:
    # The first difference is null: there is nothing before the first id.
    steps = pc.pairwise_diff(ids).slice(1)
    return not len(steps) or bool(pc.all(pc.equal(steps, 1)).as_py())


def portions_of(
    data: Any,
    names: ColumnNames,
    encode_value: Callable[[Any], bytes] | RecordRows | None,
    messages: int,
    payload: int,
    key_based: bool,
    routing: Routing | None = None,
    common: dict[str, str] | None = None,
) -> Iterator[ColumnPortion]:
    """Cut tabular data into entries.

    Args:
        data: see `send_arrow`.
        names: which column is what.
        encode_value: a schema's encoding, for each value, or for rows of records; None where columns hold
            payloads.
        messages, payload: most messages, and bytes of values, of an entry.
        key_based: whether an entry holds one key only. The order within a key is kept.
        routing: where rows go; None where there are no partitions.
        common: properties that every row has.

    Raises:
        TypeError, ValueError: see `windows`.
    """
    base = 0
    for window in windows(data, names, encode_value, messages, payload, common):
        numbers = range(base, base + len(window.value))
        base = numbers.stop
        # Three cuts, one within the other: by partition, by key, and by the size of an entry. The order of
        # the rows with one key survives all three, since grouping is stable.
        routed: list[Group] = [(0, window, numbers)]
        if routing is not None:
            routed = _grouped(window, numbers, _partitions(window, routing))
        for partition, columns, places in routed:
            groups: list[Group] = [(0, columns, places)]
            if key_based:
                groups = _grouped(columns, places, _sticky_keys(columns))
            for _, group, rows in groups:
                start = 0
                for stop in _cuts(group.value, messages, payload):
                    # A negative mark stands for messages without a key that go to the partitions in turn. The
                    # turn passes with each entry and not with each message: one entry for each partition and
                    # window would be wasteful.
                    to = routing.next_partition() if routing is not None and partition < 0 else partition
                    yield ColumnPortion(group.slice(start, stop), rows[start:stop], to)
                    start = stop


def _grouped(columns: Columns, numbers: Sequence[int], marks: Any) -> list[Group]:
    """The rows by their marks, in the order in which these appear first; the order within is kept."""
    # Arrow encodes a dictionary in the order of first appearance, so sorting by its indices keeps that order.
    encoded = marks.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    # The common case of one partition or key costs no copy.
    if len(distinct) == 1:
        return [(distinct[0], columns, numbers)]
    order = pc.sort_indices(encoded.indices)  # stable
    columns = columns.reorder(order)
    # Row numbers travel with the rows: an error names the row of the caller's table, and not that of a group.
    places = array("q", [numbers[i] for i in order.to_pylist()])
    # The ends of runs of equal indices are the ends of the groups.
    ends = [0, *pc.run_end_encode(encoded.indices.take(order)).run_ends.to_pylist()]
    return [
        (mark, columns.slice(start, end), places[start:end])
        for mark, (start, end) in zip(distinct, pairwise(ends), strict=True)
    ]


def _sticky_keys(columns: Columns) -> Any:
    # The ordering key comes first, as in Pulsar's `ORDERING_KEY, else KEY` of key-based batching; a message
    # without any is in the group of the empty key.
    given = [keys.cast(pa.large_string()) for keys in (columns.ordering_key, columns.key) if keys is not None]
    return pc.coalesce(*given, "") if given else pa.repeat("", len(columns.value))


def _partitions(columns: Columns, routing: Routing) -> Any:
    """Where each row goes, asked once for each key."""
    # A router of the application sees each message, since it may decide by the payload.
    if routing.is_custom:
        return pa.array([routing.choose(*row) for row in _rows(columns)], pa.int32())
    if columns.key is None:
        return pa.repeat(pa.scalar(routing.of_keys([None])[0], pa.int32()), len(columns.value))
    # "encode" makes null a member of the dictionary, so the router is asked for rows without a key as well.
    encoded = columns.key.dictionary_encode("encode")
    partitions = pa.array(routing.of_keys(encoded.dictionary.to_pylist()), pa.int32())
    return partitions.take(encoded.indices)


def _rows(columns: Columns) -> Iterator[tuple[Any, ...]]:
    """What a ``message_router`` is asked about, row by row."""
    count = len(columns.value)
    lists = [[None] * count if column is None else column.to_pylist() for column in columns]
    for value, key, ordering_key, packed, time, sequence_id in zip(*lists, strict=True):
        # A router gets bytes, as from `send`, also where a column of texts is stored as it is.
        payload = value.encode() if isinstance(value, str) else value or b""
        fields = unpack_text_map(packed) if packed else None
        yield payload, value is None, key, ordering_key, fields, time, sequence_id


def _cuts(values: Any, messages: int, payload: int) -> Iterator[int]:
    """Where the entries end."""
    # The offsets of an Arrow array are the running sizes of its values, so a cut is a search in them: no step
    # for each message. They need not begin with 0 in a slice of an array.
    offsets, count = values.buffers()[1], len(values)
    if not count:
        return
    is_wide = values.type in (pa.large_binary(), pa.large_string())
    width = 8 if is_wide else 4
    view = memoryview(offsets.slice(width * values.offset, width * (count + 1)))
    sizes = view.cast("b").cast("q" if is_wide else "i")
    at = 0
    while at < count:
        # The first boundary that is too far, between the next message and as many as an entry may have.
        stop = bisect_right(sizes, sizes[at] + payload, at + 1, min(at + messages, count) + 1)
        # One message larger than the limit is an entry of its own, which the publisher refuses by the number
        # of its row.
        at = max(stop - 1, at + 1)
        yield at


_INT32, _INT64 = pa.int32(), pa.int64()
_WIDE: Final = (pa.large_binary(), pa.large_string())


def variable(values: Any) -> list[Any]:
    """A binary or string array, of any offset width and without nulls, as a variable column. The bytes stay
    where they are; the offsets are made anew unless they start at 0.
    """
    count = len(values)
    is_wide = values.type in _WIDE
    _, offsets, data = values.buffers()
    ends = pa.Array.from_buffers(_INT64 if is_wide else _INT32, count + 1, [None, offsets], 0, values.offset)
    first, last = ends[0].as_py(), ends[count].as_py()
    # The format wants offsets from 0 on. Those of a slice are shifted, which copies 4 bytes a message and no
    # payload.
    if first:
        ends = pc.subtract(ends, pa.scalar(first, ends.type))
    if is_wide:
        # An entry is far below 2 GiB, so 32 bits suffice for offsets from its start.
        ends = ends.cast(_INT32)
    size = 4 * count + 4
    packed = ends.buffers()[1].slice(4 * ends.offset, size)
    # Both parts are padded to 8 bytes, for the alignment of what follows.
    parts = [memoryview(packed), PADDING[-size & 7]]
    if last > first:
        parts += [memoryview(data.slice(first, last - first)), PADDING[first - last & 7]]
    return [part for part in parts if part]


def fixed(values: Any) -> list[Any]:
    """An int64 array without nulls as a fixed column."""
    # Arrow and the format agree on little-endian int64, so the buffer is the column.
    return [memoryview(values.buffers()[1].slice(8 * values.offset, 8 * len(values)))]


def bitmap(bits: Any) -> list[Any]:
    """A boolean array without nulls as a bitmap column; bits behind the last are 0."""
    # Arrow's bitmap may begin within a byte, in a slice, and its bits behind the last are undefined; the
    # format begins at bit 0 and has zeros behind. One shift of one large integer does both.
    count, shift = len(bits), bits.offset & 7
    packed = bits.buffers()[1].slice(bits.offset >> 3, (shift + count + 7) // 8)
    number = int.from_bytes(memoryview(packed), "little") >> shift & (1 << count) - 1
    return [number.to_bytes((count + 63) // 64 * 8, "little")]


def without_nulls(values: Any) -> tuple[Any, list[Any] | None]:
    """A variable array with empty values in place of nulls, and the bitmap of these; None if none is."""
    # Arrow leaves the bytes of a null undefined, so they are not handed on.
    if not values.null_count:
        return values, None
    absent = bitmap(pc.is_null(values))
    return pc.fill_null(
        values, pa.scalar(b"" if pa.types.is_binary(values.type) else "", values.type)
    ), absent
