"""A whole topic as one Arrow table."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.contest import READ_ONLY, Contestant
from benchmarks.embedded import prepare


class ReadTable(Contestant):
    """`read_topic`, which verifies all checksums, then the length of every payload."""

    key = "embeddedpulsar"
    survives = READ_ONLY

    def __init__(self, messages: int, size: int, columns: list[str] | None, name: str, key: str = "") -> None:
        super().__init__()
        self.name = name
        self.key = key or self.key
        self._messages, self._size, self._columns = messages, size, columns

    def start(self, place: Path) -> None:
        self._root = place / "store"
        prepare.fill(self._root, self._messages, self._size)

    def run(self, operations: int) -> float:
        import pyarrow.compute as pc

        from embeddedpulsar.arrow import read_topic

        begun = time.perf_counter()
        table = read_topic(self._root, prepare.TOPIC, self._columns)
        total = pc.sum(pc.binary_length(table.column("value"))).as_py()
        seconds = time.perf_counter() - begun
        assert total == operations * self._size, (total, operations)
        return seconds
