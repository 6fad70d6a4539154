"""The least that a checked read of a topic can cost: zlib.crc32 over the very bytes of its log."""

from __future__ import annotations

import mmap
import time
import zlib
from pathlib import Path

from benchmarks.contest import READ_ONLY, Contestant
from benchmarks.embedded import prepare


class LogChecksum(Contestant):
    """Maps the segments of a topic and checksums each in one call."""

    key = "crc32"
    name = "zlib.crc32 over the same mapped log"
    survives = READ_ONLY

    def __init__(self, messages: int, size: int) -> None:
        super().__init__()
        self._messages, self._size = messages, size

    def start(self, place: Path) -> None:
        from embeddedpulsar._engine.store.topic_lookup import plan_logs, topic_partitions

        root = place / "store"
        prepare.fill(root, self._messages, self._size)
        (name,) = topic_partitions(str(root), prepare.TOPIC)
        self._logs = [(planned.path, planned.end_offset) for planned in plan_logs(str(root), [name])]

    def run(self, operations: int) -> float:
        begun = time.perf_counter()
        for path, end in self._logs:
            with open(path, "rb") as file, mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ) as mapped:
                zlib.crc32(mapped)
        return time.perf_counter() - begun
