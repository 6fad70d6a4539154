"""A topic as plain files: Parquet, JSON lines or CSV, in a folder for each topic and day."""

from __future__ import annotations

import contextlib
import csv
import json
import logging
import os
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final, Protocol
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from embeddedpulsar.arrow import schema as names
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.records import NamedTuple

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
                    json.dumps(text) if isinstance(text, dict) else text for text in texts.values()
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
        return value.decode()
    # Properties: Arrow gives a map as a list of pairs.
    if isinstance(value, list):
        return dict(value)
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
) -> ExportReport:
    """Write batches that have the columns, the place of messages, topic and publish time; see
    `embeddedpulsar.arrow.export`."""
    rows = 0
    with _Parts(target, columns, file_format) as parts:
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

    def __init__(self, target: str, columns: tuple[str, ...], file_format: str) -> None:
        self._target: Final = target
        self._columns: Final = columns
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
            return _Table(temporary, names.arrow_schema(self._columns))
        return _Texts(temporary, self._columns, self._format == "csv")

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
