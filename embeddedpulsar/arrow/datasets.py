"""A topic as a `pyarrow.dataset.Dataset`: other programs ask for columns and filters, and little is read.

A topic as a source of Polars: a query reads its columns, and what can have rows that its filters leave.

A topic as plain files: Parquet, JSON lines or CSV, in a folder for each topic and day.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count, pairwise
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from embeddedpulsar.arrow import schema as names
from embeddedpulsar.arrow.engine import EntryLookup, EntryRange, split
from embeddedpulsar.arrow.entry_pruning import Wanted, with_wanted
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.records import NamedTuple, Protocol

# A piece is what a filter keeps or leaves out, and costs an expression of Arrow and two look-ups in the
# index.
_PIECE_BYTES: Final = 1 << 20
_SECOND_US: Final = 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
# Beyond this many literals, an expression for each interval costs more than the reading that it saves.
_MOST_VALUES: Final = 1000

Opener = Callable[[list[EntryRange], tuple[str, ...]], Iterator[Any]]
"""Reads ranges: gives record batches of these columns."""
Planner = Callable[[], list[EntryRange]]


class TopicDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """The messages of a topic, read when a scanner is asked for them: by DuckDB, Polars, pandas, or by the
    methods of this class. `embeddedpulsar.arrow.dataset` makes it.

    A scanner reads the columns that are asked for, and for a filter on times, topics, partitions or places
    only pieces of the log that can have such rows, of 1 MiB each. Arrow applies the filter to each row.

    Args:
        columns: names of columns.
        every: the schema of all that could be asked for.
        plan: finds what there is, for each scanner anew.
        read: reads it.
    """

    def __init__(self, columns: tuple[str, ...], every: Any, plan: Planner, read: Opener) -> None:
        # Not the constructor of the base, which has files behind it.
        self._columns = columns
        self._every = every
        self._plan = plan
        self._read = read

    def __reduce__(self) -> Any:
        raise TypeError("a dataset of a topic cannot be pickled; make another one")

    @property
    def schema(self) -> Any:
        """The columns."""
        return self._schema_of(self._columns)

    @property
    def partition_expression(self) -> Any:
        """None: what each piece has is known when it is read."""
        return ds.scalar(True)

    def get_fragments(self, filter: Any = None) -> Iterator[Any]:
        """There are none: pieces of the log are no files."""
        return iter(())

    def replace_schema(self, schema: Any) -> TopicDataset:
        """The same messages with other columns."""
        known = frozenset(self._every.names)
        for name in schema.names:
            if name not in known:
                raise InvalidConfiguration(
                    f"there is no column {name!r}; there are {', '.join(self._every.names)}"
                )
        return TopicDataset(tuple(schema.names), self._every, self._plan, self._read)

    def lazy_frame(self) -> Any:
        """The same as a ``polars.LazyFrame``: a query reads its columns, and what its filters may leave.

        Raises:
            ImportError: Polars is not installed.

        Example:
            >>> import embeddedpulsar
            >>> with embeddedpulsar.Client("./data") as client:
            ...     producer = client.create_producer("guests")
            ...     _ = [producer.send(b"%d" % n, partition_key=f"table-{n % 3}") for n in range(6)]
            >>> guests = embeddedpulsar.arrow.dataset("./data", "guests").lazy_frame()
            >>> import polars
            >>> guests.filter(polars.col("__key") == b"table-1").select("value").collect().rows()
            [(b'1',), (b'4',)]
        """

        return lazy_frame(self)

    def batches(self, columns: Sequence[str], filter: Any = None) -> Iterator[Any]:
        """Record batches of what is stored now; for a filter, of pieces that can have such rows, whole.

        Args:
            columns: names.
            filter: an expression, which is not applied to rows.
        """
        ranges = self._plan()
        # Left out here is only what cannot have a row of the result; Arrow applies the filter to the rows
        # that remain.
        if filter is not None:
            ranges = surviving(ranges, filter, self._every)
        # A count needs rows and no columns. One column, the first, gives them.
        return self._read(ranges, tuple(columns) or self._columns[:1])

    def _schema_of(self, columns: Sequence[str]) -> Any:
        return pa.schema([self._every.field(name) for name in columns])

    def scanner(
        self, columns: Any = None, filter: Any = None, batch_size: int | None = None, **options: Any
    ) -> Any:
        """Return a `pyarrow.dataset.Scanner` over what is stored now.

        Args:
            columns: names; or a map of names to expressions.
            filter: an expression that holds for the rows.
            batch_size: rows of a batch.
            options: others of `pyarrow.dataset.Dataset.scanner`.
        """
        wanted = self._needed(columns, filter)
        schema = self._schema_of(wanted)
        reader = pa.RecordBatchReader.from_batches(schema, self.batches(wanted, filter))
        # The scanner cuts batches of its own, smaller ones.
        if batch_size is not None:
            options["batch_size"] = batch_size
        return ds.Scanner.from_batches(reader, columns=columns, filter=filter, **options)

    def _needed(self, columns: Any, filter: Any) -> tuple[str, ...]:
        """The columns to be read: those of the result, and those that expressions name."""
        if columns is None:
            return self._columns
        requested = list(columns) if not isinstance(columns, dict) else []
        texts = [str(filter)] if filter is not None else []
        # Expressions have no public list of the columns they name. A column whose name is part of a text is
        # read in vain; none that is named is missed.
        texts += [str(expression) for expression in columns.values()] if isinstance(columns, dict) else []
        needed = [name for name in self._columns if name in requested or any(name in text for text in texts)]
        return tuple(needed or self._columns[:1])


def surviving(ranges: list[EntryRange], filter: Any, schema: Any) -> list[EntryRange]:
    """The pieces of ranges that can have rows for which a filter holds; neighbours are put together again.

    Arrow decides it: each piece is shown to it as a file of which it knows a few bounds.

    Args:
        ranges: what is planned.
        filter: an expression.
        schema: of the columns that it may name, all columns of messages among them.
    """
    pieces = [piece for planned in ranges for piece in split(planned, _PIECE_BYTES)]
    bounds = [_bounds(piece) for piece in pieces]
    # Neighbours become one range again: the reader maps and checks ranges one by one, and has a fixed cost
    # for each.
    kept_pieces: list[EntryRange] = []
    for piece in map(pieces.__getitem__, _satisfiable(bounds, filter, schema)):
        last = kept_pieces[-1] if kept_pieces else None
        # `keep` cuts messages off the last entry, so nothing can follow it without a gap.
        if last is not None and (last.path, last.end_entry, last.keep) == (piece.path, piece.first_entry, 0):
            kept_pieces[-1] = replace(
                last, end_entry=piece.end_entry, end_offset=piece.end_offset, keep=piece.keep
            )
        else:
            kept_pieces.append(piece)
    # Finer than pieces: the entries within them, by keys and event times.
    wanted = wanted_by(filter, schema)
    kept_pieces = [part for piece in kept_pieces for part in with_wanted(piece, wanted)]
    # The counters are entries: messages are not counted without reading more of the index.
    kept, total = (
        sum(piece.end_entry - piece.first_entry for piece in some) for some in (kept_pieces, ranges)
    )
    logging.getLogger("embeddedpulsar.arrow").info(
        "filters leave %d of %d entries to be read; %d are pruned", kept, total, total - kept
    )
    return kept_pieces


def wanted_by(filter: Any, schema: Any) -> Wanted:
    """The keys and event times that rows can have for which a filter holds.

    The literals of the filter divide all values into these and what lies between them. Arrow decides which of
    the parts, and whether null, the filter can hold for.

    Example:
        >>> filter = ds.field("__key").isin([b"a", b"b"]) & (ds.field("__partition") == 1)
        >>> sorted(wanted_by(filter, names.arrow_schema(names.KNOWN)).keys)
        [b'a', b'b']
        >>> filter = (ds.field("__key") == b"a") | (ds.field("__partition") == 1)
        >>> wanted_by(filter, names.arrow_schema(names.KNOWN)).keys
    """
    # Whether a column is in the filter at all, by its text: to decode the literals takes far longer.
    text = str(filter)
    literals = _literals(filter) if names.KEY in text or names.EVENT_TIME in text else []
    keys, start, end = None, None, None
    if names.KEY in text:
        sorted_keys = sorted({literal for literal in literals if isinstance(literal, bytes)})
        parts = _parts(names.KEY, sorted_keys, filter, schema)
        # Keys are a set and no interval, so every part must be a single value; with an open interval, any key
        # may be asked for. No part at all gives the empty set: no key can fulfil the filter.
        if parts is not None and all(low == high for low, high in parts):
            keys = frozenset(low for low, _ in parts)
    if names.EVENT_TIME in text:
        moments = sorted({literal for literal in literals if isinstance(literal, datetime)})
        parts = _parts(names.EVENT_TIME, moments, filter, schema)
        # Times are one interval, from the first part to the last: what lies between two parts is read in
        # vain.
        if parts:
            first, last = parts[0][0], parts[-1][1]
            start = None if first is None else (first - _EPOCH) // _MILLISECOND
            # The limits of `Wanted` are half-open, and a literal itself may be asked for.
            end = None if last is None else (last - _EPOCH) // _MILLISECOND + 1
        elif parts is not None:
            # No part at all: no time fulfils the filter.
            start = end = 0
    return Wanted(keys, start, end)


def _parts(name: str, values: list[Any], filter: Any, schema: Any) -> list[tuple[Any, Any]] | None:
    """The intervals of a column in which a filter can hold, in order, None for an open side; None if it can
    hold for null, or is not understood."""
    # Without literals the filter compares the column with nothing that is known here, with another column,
    # say.
    if not 0 < len(values) <= _MOST_VALUES:
        return None
    field = ds.field(name)
    kind = names.arrow_schema((name,)).field(0).type
    scalars = [pa.scalar(value, kind) for value in values]
    # The intervals in the order of the guarantees below: the open sides, what lies between two literals, and
    # the literals themselves.
    limits = [(None, values[0]), *pairwise(values), (values[-1], None), *zip(values, values, strict=True)]
    guarantees = [field < scalars[0], *((field > low) & (field < high) for low, high in pairwise(scalars))]
    # The last guarantee has no interval: it is null. A filter that can hold for null rules nothing out.
    guarantees += [field > scalars[-1], *(field == scalar for scalar in scalars), field.is_null()]
    parts = _satisfiable(guarantees, filter, schema)
    if len(limits) in parts:
        return None
    # By the lower end, and a literal before the interval that begins behind it.
    ends = dict(zip(values, range(len(values)), strict=True)) | {None: -1}
    return sorted(map(limits.__getitem__, parts), key=lambda part: (ends[part[0]], part[0] != part[1]))


def _literals(filter: Any) -> list[Any]:
    """All values in an expression, by the form in which Arrow sends it to other processes."""
    # Pickling gives a table of one row with the literals of the expression as columns, which is the only
    # public way to them.
    (form,) = filter.__reduce__()[1]
    pending: list[Any] = [column.to_pylist() for column in pa.ipc.open_file(form).read_all().columns]
    literals: list[Any] = []
    while pending:
        value = pending.pop()
        if isinstance(value, list | dict):
            pending += value.values() if isinstance(value, dict) else value
        elif isinstance(value, datetime):
            # Polars and pandas give moments without a zone; the columns of times are in UTC.
            literals.append(value if value.tzinfo else value.replace(tzinfo=UTC))
        else:
            literals.append(value.encode() if isinstance(value, str) else value)
    return literals


def _satisfiable(guarantees: list[Any], filter: Any, schema: Any) -> list[int]:
    """The numbers of the guarantees under which a filter can hold; each is shown to Arrow as a file."""
    if not guarantees:
        return []
    # A fragment is a file with a guarantee, its partition expression. `get_fragments` leaves out those whose
    # guarantee contradicts the filter, and opens none of them.
    form, files = ds.IpcFileFormat(), pa.fs.LocalFileSystem()
    fragments = [
        form.make_fragment(str(number), files, partition_expression=guarantee)
        for number, guarantee in enumerate(guarantees)
    ]
    shown = ds.FileSystemDataset(fragments, schema, form, files)
    # The path, whose last part is the number, is all that tells fragments apart.
    return [int(os.path.basename(fragment.path)) for fragment in shown.get_fragments(filter)]


def _bounds(piece: EntryRange) -> Any:
    """What holds for all rows of a piece."""
    lookup = EntryLookup.of(piece)
    try:
        # Publish times never decrease within a log (docs/format/frame.md), so the first and the last entry
        # have the limits.
        first_ms, last_ms = lookup.publish_ms(piece.first_entry), lookup.publish_ms(piece.end_entry - 1)
    except FileNotFoundError:  # trimmed meanwhile: the reading of it says so, if that is to be said
        return ds.scalar(True)
    time = names.arrow_schema((names.PUBLISH_TIME,)).field(0).type

    def at(ms: int) -> Any:
        return pa.scalar(ms * _SECOND_US, time)

    published, entry = ds.field(names.PUBLISH_TIME), ds.field(names.ENTRY_ID)
    return (
        (published >= at(first_ms))
        & (published <= at(last_ms))
        & (ds.field(names.TOPIC) == piece.topic)
        & (ds.field(names.PARTITION) == pa.scalar(piece.partition, pa.int32()))
        & (ds.field(names.LEDGER_ID) == piece.ledger_id)
        & (entry >= piece.first_entry)
        & (entry < piece.end_entry)
    )


_ROWS: Final = 1 << 16
_COMPARED: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "Eq": pc.equal,
    "Lt": pc.less,
    "LtEq": pc.less_equal,
    "Gt": pc.greater,
    "GtEq": pc.greater_equal,
}
_MIRRORED: Final = {"Eq": "Eq", "Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}
_PRUNED: Final = (
    *(names.PUBLISH_TIME, names.EVENT_TIME, names.TOPIC, names.PARTITION, names.KEY),
    *(names.LEDGER_ID, names.ENTRY_ID),
)


def require_polars() -> Any:
    """The module of Polars.

    Raises:
        ImportError: it is not installed; the text has the command that installs it.
    """
    try:
        import polars
        import polars.io.plugins
    except ImportError as error:
        raise ImportError("a lazy frame needs Polars: pip install polars") from error
    return polars


def lazy_frame(dataset: TopicDataset) -> Any:
    """See `TopicDataset.lazy_frame`."""
    pl = require_polars()

    def read(
        columns: list[str] | None, predicate: Any, n_rows: int | None, batch_size: int | None
    ) -> Iterator[Any]:
        # Columns that only the predicate names are read for it, and left out of the result below.
        wanted = dataset.schema.names if columns is None else columns
        filter = None
        if predicate is not None:
            wanted = list(dict.fromkeys([*wanted, *predicate.meta.root_names()]))
            filter = pruning_filter(pl, predicate)
        rows_left = n_rows
        for batch in dataset.batches(wanted, filter):
            frame = pl.from_arrow(batch)
            # The source applies the predicate: Polars does not do it again, and pruning leaves rows of other
            # keys and times.
            if predicate is not None:
                frame = frame.filter(predicate)
            # The limit counts rows that the predicate leaves, so it is applied behind it.
            if rows_left is not None:
                frame = frame.head(rows_left)
                rows_left -= frame.height
            if columns is not None:
                frame = frame.select(columns)
            yield from frame.iter_slices(batch_size or _ROWS)
            # Not before: a query may ask for no rows.
            if rows_left == 0:
                return

    # Polars asks a source for its schema before it reads.
    schema = pl.from_arrow(dataset.schema.empty_table()).schema
    return pl.io.plugins.register_io_source(read, schema=schema)


def pruning_filter(pl: Any, predicate: Any) -> Any:
    """What a predicate of Polars demands of columns by which entries are pruned, as an expression of Arrow.

    It holds for all rows for which the predicate holds. None if it demands nothing.
    """
    try:
        # Expressions of Polars have no public tree; their text in JSON is not promised to stay as it is.
        # Whatever is not understood prunes nothing, and the predicate is applied to all rows.
        tree = json.loads(predicate.meta.serialize(format="json"))
        return _demanded(pl, tree)
    except (
        AttributeError,
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        pa.ArrowException,
        pl.exceptions.PolarsError,
    ):
        return None  # a release of Polars that writes expressions in another way, or a function of the user


def _demanded(pl: Any, node: Any) -> Any:
    if "Function" in node:
        return _of_function(pl, node["Function"])
    parts = node.get("BinaryExpr") if isinstance(node, dict) else None
    if parts is None:
        return None
    first, second, act = parts["left"], parts["right"], parts["op"]
    if act in ("And", "Or"):
        demanded_first, demanded_second = _demanded(pl, first), _demanded(pl, second)
        # A half that is not understood: AND still demands the other one, OR demands nothing.
        if demanded_first is None or demanded_second is None:
            return (demanded_second if demanded_first is None else demanded_first) if act == "And" else None
        return demanded_first & demanded_second if act == "And" else demanded_first | demanded_second
    if act not in _COMPARED:
        return None
    # A literal compared with a column: the same the other way round.
    if "Column" in second:
        first, second, act = second, first, _MIRRORED[act]
    return _compared(first.get("Column"), act, _value(pl, second))


def _of_function(pl: Any, node: Any) -> Any:
    kind = node["function"].get("Boolean")
    column, *others = node["input"]
    name = column.get("Column")
    # Null in a list equals nothing. With `nulls_equal` it does, and the function prunes nothing.
    if "IsIn" in kind and not kind["IsIn"]["nulls_equal"]:
        comparisons = [_compared(name, "Eq", value) for value in _value(pl, others[0]) if value is not None]
        return (
            None
            if not comparisons or any(comparison is None for comparison in comparisons)
            else functools.reduce(pc.or_kleene, comparisons)
        )
    # Both limits count as part of the interval, whatever `closed` says: that rules out less.
    if "IsBetween" in kind:
        bounds = zip(("GtEq", "LtEq"), others, strict=True)
        low, high = (_compared(name, act, _value(pl, bound)) for act, bound in bounds)
        return None if low is None or high is None else low & high
    return None


def _compared(name: Any, act: str, value: Any) -> Any:
    if name not in _PRUNED or not isinstance(value, int | str | bytes | datetime):
        return None  # numbers of other kinds would be rounded
    return _COMPARED[act](pc.field(name), pa.scalar(value, names.arrow_schema([name]).field(0).type))


def _value(pl: Any, node: Any) -> Any:
    """The value of a literal; None if it is none, or null."""
    if "Literal" not in node:
        return None
    # The text of a literal depends on its type, so Polars makes the value of it.
    values = pl.select(pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json")).to_series()
    if getattr(values.dtype, "time_unit", None) == "ns":
        return None  # what becomes of it in Python is less exact
    value = values[0]
    return value.to_list() if isinstance(value, pl.Series) else value


FORMATS: Final = ("parquet", "jsonl", "csv")
_UNFINISHED: Final = ".tmp"
_SERIAL: Final = (names.MESSAGE_ID,)
_FIRST_US: Final = -62_135_596_800_000_000
_LAST_US: Final = 253_402_300_799_999_999
"""The first and the last microsecond that Python's ``datetime`` has."""


class ExportReport(NamedTuple):
    """What was written.

    Attributes:
        files: their paths, sorted.
        rows: messages in them.
    """

    files: tuple[str, ...]
    rows: int


class _Part(Protocol):
    """A file that rows are written to."""

    def write(self, batch: Any) -> None: ...
    def close(self) -> None: ...


class _Texts:
    """JSON lines, or CSV with a line of names."""

    def __init__(self, path: str, columns: tuple[str, ...], is_csv: bool) -> None:
        self._file = open(path, "w", encoding="utf-8", newline="" if is_csv else "\n")
        self._csv = csv.writer(self._file) if is_csv else None
        if self._csv is not None:
            self._csv.writerow(columns)

    def write(self, batch: Any) -> None:
        # CSV has one line of names, so a row of it has values alone; a line of JSON carries its names.
        for row in batch.to_pylist():
            texts = {name: _text(name, value) for name, value in row.items()}
            if self._csv is None:
                self._file.write(json.dumps(texts, ensure_ascii=False) + "\n")
            else:
                self._csv.writerow(
                    json.dumps(text, ensure_ascii=False) if isinstance(text, dict | list) else text
                    for text in texts.values()
                )

    def close(self) -> None:
        self._file.close()


class _Table:
    """A file of Parquet."""

    def __init__(self, path: str, schema: Any) -> None:
        self._writer = pq.ParquetWriter(path, schema, compression="zstd")

    def write(self, batch: Any) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


def _text(name: str, value: Any) -> Any:
    # Ids of messages are bytes without a meaning as text; payloads and keys were checked by `_as_texts` and
    # are UTF-8.
    if isinstance(value, bytes):
        if name in _SERIAL:
            return value.hex()
        # Columns of payloads were checked by `_as_texts`; this is a field within one.
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InvalidConfiguration(
                "a field of bytes is not UTF-8, which text cannot hold; export it as parquet"
            ) from error
    # Properties, and maps of records: Arrow gives a map as a list of pairs. An empty list may be either; only
    # the properties of a message are known to be a map.
    if isinstance(value, list):
        if (value and all(isinstance(each, tuple) for each in value)) or name == names.PROPERTIES:
            return {str(key): _text("", each) for key, each in value}
        return [_text("", each) for each in value]
    if isinstance(value, dict):
        return {key: _text("", each) for key, each in value.items()}
    # A decimal number as a text, since a number of JSON may lose its digits.
    if isinstance(value, Decimal):
        return str(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


def _as_texts(batch: Any, columns: tuple[str, ...], mode: str) -> Any:
    """The rows with what text cannot hold refused, null, or left out."""
    kept = pa.repeat(True, batch.num_rows)
    for name in columns:
        column = batch.column(name)
        fits, reason = _fits_text(name, column)
        unfit = [] if fits is None else pc.indices_nonzero(pc.invert(fits)).to_pylist()
        if not unfit:
            continue
        # The place of the first message of the batch that does not fit names it in the error; the others are
        # counted.
        position = [
            batch.column(place_column)[unfit[0]].as_py()
            for place_column in (names.TOPIC, *names.PLACE_COLUMNS)
        ]
        message = f"{position[0]}: message {position[1]}:{position[2]}:{position[3]} has a {name} {reason}"
        if mode == names.FAILFAST:
            raise InvalidConfiguration(
                f"{message}, which text cannot hold; export it as parquet, or with the mode PERMISSIVE, in "
                "which it is null, or DROPMALFORMED"
            )
        logging.getLogger("embeddedpulsar.arrow").warning(
            "%s, like %d others beside it; %s",
            message,
            len(unfit) - 1,
            "they are null" if mode == names.PERMISSIVE else "these messages are left out",
        )
        # With DROPMALFORMED the values are nulled as well, in rows that the filter below removes.
        nulled = pc.if_else(fits, column, pa.scalar(None, column.type))
        batch = batch.set_column(batch.schema.get_field_index(name), batch.schema.field(name), nulled)
        kept = pc.and_(kept, fits)
    return batch.filter(kept) if mode == names.DROPMALFORMED else batch


def _fits_text(name: str, column: Any) -> tuple[Any, str]:
    """Which values of a column text can hold, None for all; and what is wrong with the others."""
    if pa.types.is_timestamp(column.type):
        # Python's `datetime`, which makes the text, has no other years.
        numbers = column.cast(pa.int64())
        is_fit = pc.and_(pc.greater_equal(numbers, _FIRST_US), pc.less_equal(numbers, _LAST_US))
        return pc.fill_null(is_fit, True), "that is not in the years 1 to 9999"
    if pa.types.is_binary(column.type) and name not in _SERIAL:
        # The cast checks all values in C. Only for a column with a value that does not fit they are looked at
        # one by one.
        try:
            column.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array(
                [value is None or _is_utf8(value) for value in column.to_pylist()]
            ), "that is not UTF-8"
    return None, ""


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def write_export(
    batches: Iterator[Any],
    columns: tuple[str, ...],
    target: str,
    file_format: str,
    on_progress: Callable[[int], object],
    mode: str = names.FAILFAST,
    schema: Any = None,
) -> ExportReport:
    """Write batches that have the columns, the place of messages, topic and publish time; see
    `embeddedpulsar.arrow.export`. Of decoded values, ``schema`` has the types of the columns."""
    rows = 0
    schema = names.arrow_schema(columns) if schema is None else schema
    written = pa.schema([schema.field(name) for name in columns])
    with _Parts(target, written, file_format) as parts:
        for batch in batches:
            # Parquet holds what a column of Arrow holds, so only texts are checked.
            if file_format != "parquet":
                batch = _as_texts(batch, columns, mode)
            # Publish times are in UTC, so a day is the same for every reader of the files.
            days = pc.strftime(batch.column(names.PUBLISH_TIME), "%Y-%m-%d")
            for key, piece in _pieces(batch, days):
                parts.of(key).write(piece.select(columns))
            rows += batch.num_rows
            # After the batch is in its files, so a caller that counts never sees more than was written.
            on_progress(rows)
        return ExportReport(parts.publish(), rows)


class _Parts:
    """The files of one export. They get their names when all are whole, so an export that fails leaves none.

    One is open at a time: topics come one after the other, and their days, too.
    """

    def __init__(self, target: str, schema: Any, file_format: str) -> None:
        self._target: Final = target
        self._schema: Final = schema
        self._format: Final = file_format
        self._key: tuple[str, str] | None = None
        self._open: _Part | None = None
        self._made: Final[list[tuple[str, str]]] = []  # name for now, and name at the end

    def of(self, key: tuple[str, str]) -> _Part:
        """The file of a topic and a day."""
        if self._open is None or key != self._key:
            # Publish times never decrease within a log, and logs come one after the other, so the file before
            # gets no more rows.
            self._close()
            topic, day = key
            folder = os.path.join(self._target, f"topic={quote(topic, safe='')}", f"date={day}")
            os.makedirs(folder, exist_ok=True)
            self._key, self._open = key, self._begin(self._claimed(folder))
        return self._open

    def _claimed(self, folder: str) -> str:
        """The name for now of the next file, which no other export takes."""
        for number in count():
            name = f"part-{number:05d}.{self._format}"
            path, temporary = os.path.join(folder, name), os.path.join(folder, f"_{name}{_UNFINISHED}")
            # A file of an earlier export keeps its name; its number is taken.
            if os.path.exists(path):
                continue
            # Creating the file exclusively claims the number: of two exports into one directory, one gets
            # FileExistsError and tries the next. The name begins with an underscore, by which Spark, Hive and
            # Arrow leave a file out; so what a killed export leaves is never read. It stays until it is
            # removed by hand.
            with contextlib.suppress(FileExistsError):
                open(temporary, "x").close()
                # Between the two lines above, another export may have given its file the name and removed the
                # claim: the number is taken after all.
                if not os.path.exists(path):  # by an export that ended meanwhile
                    self._made.append((temporary, path))
                    return temporary
                os.remove(temporary)
        raise AssertionError("numbers do not end")

    def _begin(self, temporary: str) -> _Part:
        if self._format == "parquet":
            return _Table(temporary, self._schema)
        return _Texts(temporary, tuple(self._schema.names), self._format == "csv")

    def _close(self) -> None:
        part, self._open = self._open, None
        if part is not None:
            part.close()

    def publish(self) -> tuple[str, ...]:
        """Give all files their names, which are returned, sorted."""
        # Parquet has its footer only when the file is closed.
        self._close()
        paths = sorted(path for _, path in self._made)
        # A kill between two names leaves the first files published and the others under their names for now.
        # A name is never given to a file that is not whole.
        while self._made:
            temporary, path = self._made[0]
            os.replace(temporary, path)
            # Only what still has its name for now is removed by `__exit__`.
            del self._made[0]
        return tuple(paths)

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *_: object) -> None:
        # After `publish` the list is empty. After an error it has all files, none of which has its name.
        self._close()
        for temporary, _path in self._made:
            # The error that ends the export is the one to raise, and not that a file is missing.
            with contextlib.suppress(FileNotFoundError):
                os.remove(temporary)


def _pieces(batch: Any, days: Any) -> Iterator[tuple[tuple[str, str], Any]]:
    """The rows of each topic and day; nearly always one of each."""
    topics = batch.column(names.TOPIC)
    # Distinct topics and days are few, mostly one of each, so filtering for each pair costs less than
    # sorting.
    for topic in topics.unique().to_pylist():
        for day in days.unique().to_pylist():
            piece = batch.filter(pc.and_(pc.equal(topics, topic), pc.equal(days, day)))
            if piece.num_rows:
                yield (topic, day), piece
