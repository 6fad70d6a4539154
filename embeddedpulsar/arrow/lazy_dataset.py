"""A topic as a `pyarrow.dataset.Dataset`: other programs ask for columns and filters, and little is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from embeddedpulsar.arrow import schema as names
from embeddedpulsar.arrow.plan import EntryLookup, EntryRange, split

_PIECE_BYTES: Final = 1 << 20
_SECOND_US: Final = 1000

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
    if not pieces:
        return []
    schema = names.arrow_schema(names.KNOWN)
    form, files = ds.IpcFileFormat(), pa.fs.LocalFileSystem()
    fragments = [
        form.make_fragment(str(number), files, partition_expression=_bounds(piece, behind))
        for number, (piece, behind) in enumerate(zip(pieces, [*pieces[1:], None], strict=True))
    ]
    shown = ds.FileSystemDataset(fragments, schema, form, files)
    kept = [pieces[int(os.path.basename(one.path))] for one in shown.get_fragments(filter)]
    found: list[EntryRange] = []
    for piece in kept:
        last = found[-1] if found else None
        if last is not None and (last.path, last.end_entry, last.keep) == (piece.path, piece.first_entry, 0):
            found[-1] = replace(last, end_entry=piece.end_entry, end_offset=piece.end_offset, keep=piece.keep)
        else:
            found.append(piece)
    return found


def _bounds(piece: EntryRange, behind: EntryRange | None) -> Any:
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
