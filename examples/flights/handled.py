"""Who handled which flight, in the order in which it happened: one file that all workers append to."""

from __future__ import annotations

import os
import struct
from pathlib import Path

NO_TAIL = ""
"""Stands for the aircraft of flights that never got one: their messages have no key, which is one as well."""
_RECORD = struct.Struct("<II")  # row of the flight, number of the worker


class HandledLog:
    """Where a worker notes what it handled. A record is one small append, so a kill tears none."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, row: int, worker: int) -> None:
        """This worker handled that flight just now."""
        os.write(self._fd, _RECORD.pack(row, worker))


class Order:
    """Watches the log, and whether the flights of each aircraft are handled as they were published.

    The next flight of an aircraft that is handled for the first time must be the next one that was published.
    A flight may be handled again, when its worker died before the acknowledgement was written.
    """

    def __init__(self, path: Path, tails: list[str]) -> None:
        self._path = path
        self._tails = tails
        self._at = 0
        self._next: dict[str, int] = {}  # aircraft -> how many of its flights were handled
        self._rows: dict[str, list[int]] = {}
        for row, tail in enumerate(tails):
            self._rows.setdefault(tail, []).append(row)
        self._seen = bytearray(len(tails))
        self.done = 0
        self.again: dict[int, int] = {}
        self.wrong: list[int] = []
        self.of_worker: dict[int, int] = {}
        self._aircraft: dict[int, set[str]] = {}

    @property
    def aircraft(self) -> int:
        """How many aircraft there are; flights that never got one do not count."""
        return len(self._rows) - (NO_TAIL in self._rows)

    def aircraft_of(self, worker: int) -> int:
        """How many different aircraft a worker dealt with."""
        return len(self._aircraft.get(worker, ()))

    def look(self) -> None:
        """Read what was added to the log since."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            records = file.read()
        records = records[: len(records) // _RECORD.size * _RECORD.size]
        self._at += len(records)
        for row, worker in _RECORD.iter_unpack(records):
            self._take(row, worker)

    def _take(self, row: int, worker: int) -> None:
        tail = self._tails[row]
        self.of_worker[worker] = self.of_worker.get(worker, 0) + 1
        self._aircraft.setdefault(worker, set()).add(tail)
        if self._seen[row]:
            self.again[row] = self.again.get(row, 0) + 1
            return
        self._seen[row] = 1
        self.done += 1
        at = self._next.get(tail, 0)
        if self._rows[tail][at] != row:
            self.wrong.append(row)
        self._next[tail] = at + 1
