"""A topic as plain files: Parquet, JSON lines or CSV, in a folder for each topic and day."""

from __future__ import annotations

import contextlib
import csv
import json
import os
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote

import pyarrow.compute as pc
import pyarrow.parquet as pq

from embeddedpulsar.arrow import schema as names
from embeddedpulsar.exceptions import InvalidConfiguration

FORMATS: Final = ("parquet", "jsonl", "csv")
_UNFINISHED: Final = ".tmp"
_SERIAL: Final = (names.MESSAGE_ID,)


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
        for row in batch.to_pylist():
            texts = {name: _text(name, value) for name, value in row.items()}
            if self._csv is None:
                self._file.write(json.dumps(texts, ensure_ascii=False) + "\n")
            else:
                self._csv.writerow(
                    json.dumps(one) if isinstance(one, dict) else one for one in texts.values()
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
    if isinstance(value, bytes):
        if name in _SERIAL:
            return value.hex()
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InvalidConfiguration(
                f"a message has a {name} that is not UTF-8, which text cannot hold; export it as parquet"
            ) from error
    if isinstance(value, list):
        return dict(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


def write_export(
    batches: Iterator[Any],
    columns: tuple[str, ...],
    target: str,
    file_format: str,
    on_progress: Callable[[int], object],
) -> ExportReport:
    """Write batches that have the columns, topic and publish time; see `embeddedpulsar.arrow.export`."""
    parts: dict[tuple[str, str], tuple[str, _Part]] = {}
    rows = 0
    with contextlib.ExitStack() as closing:
        for batch in batches:
            days = pc.strftime(batch.column(names.PUBLISH_TIME), "%Y-%m-%d")
            for key, piece in _pieces(batch, days):
                if key not in parts:
                    parts[key] = _begin(target, key, columns, file_format)
                    closing.callback(parts[key][1].close)
                parts[key][1].write(piece.select(columns))
            rows += batch.num_rows
            on_progress(rows)
    for path, _ in parts.values():
        os.replace(path + _UNFINISHED, path)  # a file that has its name is whole
    return ExportReport(tuple(sorted(path for path, _ in parts.values())), rows)


def _pieces(batch: Any, days: Any) -> Iterator[tuple[tuple[str, str], Any]]:
    """The rows of each topic and day; nearly always one of each."""
    topics = batch.column(names.TOPIC)
    for topic in topics.unique().to_pylist():
        for day in days.unique().to_pylist():
            piece = batch.filter(pc.and_(pc.equal(topics, topic), pc.equal(days, day)))
            if piece.num_rows:
                yield (topic, day), piece


def _begin(
    target: str, key: tuple[str, str], columns: tuple[str, ...], file_format: str
) -> tuple[str, _Part]:
    topic, day = key
    folder = os.path.join(target, f"topic={quote(topic, safe='')}", f"date={day}")
    os.makedirs(folder, exist_ok=True)
    number = 0
    while os.path.exists(path := os.path.join(folder, f"part-{number:05d}.{file_format}")):
        number += 1
    if file_format == "parquet":
        return path, _Table(path + _UNFINISHED, names.arrow_schema(columns))
    return path, _Texts(path + _UNFINISHED, columns, file_format == "csv")
