"""A topic as a `pyarrow.dataset.Dataset`: other programs ask for columns and filters, and little is read."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from embeddedpulsar.arrow import schema as names
from embeddedpulsar.arrow.key_pruning import with_keys
from embeddedpulsar.arrow.plan import EntryLookup, EntryRange, split

_PIECE_BYTES: Final = 1 << 20
_SECOND_US: Final = 1000
_MOST_KEYS: Final = 1000

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
        plan: finds what there is, for each scanner anew.
        read: reads it.
    """

    def __init__(self, columns: tuple[str, ...], plan: Planner, read: Opener) -> None:
        # Not the constructor of the base, which has files behind it.
        self._columns = columns
        self._plan = plan
        self._read = read

    def __reduce__(self) -> Any:
        raise TypeError("a dataset of a topic cannot be pickled; make another one")

    @property
    def schema(self) -> Any:
        """The columns."""
        return names.arrow_schema(self._columns)

    @property
    def partition_expression(self) -> Any:
        """None: what each piece has is known when it is read."""
        return ds.scalar(True)

    def get_fragments(self, filter: Any = None) -> Iterator[Any]:
        """There are none: pieces of the log are no files."""
        return iter(())

    def replace_schema(self, schema: Any) -> TopicDataset:
        """The same messages with other columns."""
        return TopicDataset(names.check_columns(schema.names), self._plan, self._read)

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
        ranges = self._plan()
        if filter is not None:
            ranges = surviving(ranges, filter)
        schema = names.arrow_schema(wanted)
        reader = pa.RecordBatchReader.from_batches(schema, self._read(ranges, wanted))
        if batch_size is not None:
            options["batch_size"] = batch_size
        return ds.Scanner.from_batches(reader, columns=columns, filter=filter, **options)

    def _needed(self, columns: Any, filter: Any) -> tuple[str, ...]:
        """The columns to be read: those of the result, and those that expressions name."""
        if columns is None:
            return self._columns
        asked = list(columns) if not isinstance(columns, dict) else []
        texts = [str(filter)] if filter is not None else []
        texts += [str(one) for one in columns.values()] if isinstance(columns, dict) else []
        found = [name for name in self._columns if name in asked or any(name in text for text in texts)]
        return tuple(found or self._columns[:1])


def surviving(ranges: list[EntryRange], filter: Any) -> list[EntryRange]:
    """The pieces of ranges that can have rows for which a filter holds; neighbours are put together again.

    Arrow decides it: each piece is shown to it as a file of which it knows a few bounds.
    """
    pieces = [piece for planned in ranges for piece in split(planned, _PIECE_BYTES)]
    bounds = [_bounds(piece) for piece in pieces]
    found: list[EntryRange] = []
    for piece in map(pieces.__getitem__, _satisfiable(bounds, filter)):
        last = found[-1] if found else None
        if last is not None and (last.path, last.end_entry, last.keep) == (piece.path, piece.first_entry, 0):
            found[-1] = replace(last, end_entry=piece.end_entry, end_offset=piece.end_offset, keep=piece.keep)
        else:
            found.append(piece)
    keys = keys_of(filter)
    if keys is not None:
        found = [part for piece in found for part in with_keys(piece, keys)]
    kept, total = (sum(one.end_entry - one.first_entry for one in some) for some in (found, ranges))
    logging.getLogger("embeddedpulsar.arrow").info(
        "filters leave %d of %d entries to be read; %d are pruned", kept, total, total - kept
    )
    return found


def keys_of(filter: Any) -> frozenset[bytes] | None:
    """The keys that a row can have for which a filter holds; None if others are possible, or none at all.

    Candidates are the literals of the filter. Arrow decides whether it can hold for the keys between them,
    and for null.

    Example:
        >>> filter = ds.field("__key").isin([b"a", b"b"]) & (ds.field("__partition") == 1)
        >>> sorted(keys_of(filter))
        [b'a', b'b']
        >>> keys_of((ds.field("__key") == b"a") | (ds.field("__partition") == 1))
    """
    if names.KEY not in str(filter):
        return None
    found = sorted(_literals(filter))
    if not 0 < len(found) <= _MOST_KEYS:
        return None
    key = ds.field(names.KEY)
    others = [key < found[0], key > found[-1], key.is_null()]
    others += [(key > one) & (key < other) for one, other in pairwise(found)]
    possible = _satisfiable([*others, *(key == one for one in found)], filter)
    if possible and possible[0] < len(others):
        return None
    return frozenset(found[number - len(others)] for number in possible)


def _literals(filter: Any) -> set[bytes]:
    """All binary values in an expression, by the form in which Arrow sends it to other processes."""
    (form,) = filter.__reduce__()[1]
    pending: list[Any] = [column.to_pylist() for column in pa.ipc.open_file(form).read_all().columns]
    found: set[bytes] = set()
    while pending:
        value = pending.pop()
        if isinstance(value, bytes | str):
            found.add(value if isinstance(value, bytes) else value.encode())
        elif isinstance(value, list | dict):
            pending += value.values() if isinstance(value, dict) else value
    return found


def _satisfiable(guarantees: list[Any], filter: Any) -> list[int]:
    """The numbers of the guarantees under which a filter can hold; each is shown to Arrow as a file."""
    if not guarantees:
        return []
    form, files = ds.IpcFileFormat(), pa.fs.LocalFileSystem()
    fragments = [
        form.make_fragment(str(number), files, partition_expression=one)
        for number, one in enumerate(guarantees)
    ]
    shown = ds.FileSystemDataset(fragments, names.arrow_schema(names.KNOWN), form, files)
    return [int(os.path.basename(one.path)) for one in shown.get_fragments(filter)]


def _bounds(piece: EntryRange) -> Any:
    """What holds for all rows of a piece."""
    first_ms = _lookup(piece).publish_ms(piece.first_entry)
    last_ms = _lookup(piece).publish_ms(piece.end_entry - 1)
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


def _lookup(piece: EntryRange) -> EntryLookup:
    return EntryLookup(piece.path, piece.ledger_id, piece.end_offset, piece.end_entry)
