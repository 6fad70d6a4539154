"""How far a check, a repair or a backup is."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from embeddedpulsar._engine.platform.clock import SYSTEM_CLOCK
from embeddedpulsar.records import NamedTuple

_INTERVAL_S: Final = 1.0


class CareProgress(NamedTuple):
    """How far a check, a repair or a backup is. ``str`` gives a line for people.

    Attributes:
        doing: what is being done, such as ``checking``.
        topic: the number of the present topic, from 1.
        topics: how many there are.
        size: bytes read so far.
    """

    doing: str
    topic: int
    topics: int
    size: int

    def __str__(self) -> str:
        return f"{self.doing} topic {self.topic:,} of {self.topics:,}, {self.size >> 20:,} MiB read"


class ProgressMeter:
    """Counts what is done, and reports it once a second, for the first time after a second."""

    def __init__(self, doing: str, report: Callable[[CareProgress], object] | None) -> None:
        self._report: Final = report
        self._doing: Final = doing
        self._topic = self._topics = self._size = 0
        self._next = SYSTEM_CLOCK.monotonic() + _INTERVAL_S

    def topic(self, number: int, count: int) -> None:
        """Note that a topic is begun, the first with number 1."""
        self._topic, self._topics = number, count
        self._tell()

    def read(self, size: int) -> None:
        """Note that so many bytes more are read."""
        self._size += size
        self._tell()

    def ledger(self, path: str) -> None:
        """Note that a segment is being read."""
        try:
            size = os.stat(path).st_blocks * 512
        except FileNotFoundError:
            return  # the ledger was trimmed meanwhile
        self.read(size)

    def _tell(self) -> None:
        if self._report is None or SYSTEM_CLOCK.monotonic() < self._next:
            return
        self._report(CareProgress(self._doing, self._topic, self._topics, self._size))
        self._next = SYSTEM_CLOCK.monotonic() + _INTERVAL_S
