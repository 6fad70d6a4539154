"""What each process did, in small mapped files that survive its death."""

from __future__ import annotations

import mmap
import os
from pathlib import Path


class Tally:
    """How often each flight was seen, a byte for each. A kill loses nothing that was marked."""

    def __init__(self, path: Path, flights: int) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(fd, flights)
            self._seen = mmap.mmap(fd, flights)
        finally:
            os.close(fd)
        self._flights = flights

    def mark(self, flight: int) -> bool:
        """Count one sighting; whether it is the first."""
        times = self._seen[flight]
        self._seen[flight] = min(255, times + 1)
        return times == 0

    def seen(self) -> int:
        """Flights seen at least once."""
        return self._flights - self._seen[:].count(b"\0")

    def again(self) -> int:
        """Flights seen more than once."""
        return self.seen() - self._seen[:].count(b"\1")


class Counter:
    """One number that another process watches."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(fd, 8)
            self._word = memoryview(mmap.mmap(fd, 8)).cast("Q")
        finally:
            os.close(fd)

    @property
    def value(self) -> int:
        """The number."""
        return self._word[0]

    @value.setter
    def value(self, number: int) -> None:
        self._word[0] = number
