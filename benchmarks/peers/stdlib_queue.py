"""queue.Queue: the floor price of handing an object over inside one process."""

from __future__ import annotations

import queue
import time
from pathlib import Path

from benchmarks.contest import MEMORY, Contestant


class Put(Contestant):
    """One producer puts; the queue is emptied outside the measured time."""

    key = "queue"
    name = "queue.Queue.put"
    survives = MEMORY

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def start(self, place: Path) -> None:
        self._queue: queue.Queue[bytes] = queue.Queue()

    def run(self, operations: int) -> float:
        put = self._queue.put
        payload = b"x" * self._size
        begun = time.perf_counter()
        for _ in range(operations):
            put(payload)
        seconds = time.perf_counter() - begun
        self._queue = queue.Queue()
        return seconds
