"""persist-queue: the file queue and the SQLite queue with acknowledgements."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.contest import PROCESS, Contestant


class FilePut(Contestant):
    """persistqueue.Queue: a file of pickles and an information file replaced at each put."""

    key = "persistqueue"
    name = "persistqueue.Queue.put"
    survives = PROCESS
    kind = "Queue"

    def __init__(self, size: int) -> None:
        super().__init__()
        self._payload = b"x" * size

    def start(self, place: Path) -> None:
        import persistqueue

        self._queue = getattr(persistqueue, self.kind)(str(place / "queue"))

    def run(self, operations: int) -> float:
        put, payload = self._queue.put, self._payload
        begun = time.perf_counter()
        for _ in range(operations):
            put(payload)
        return time.perf_counter() - begun

    def stop(self) -> None:
        if hasattr(self, "_queue") and hasattr(self._queue, "close"):
            self._queue.close()


class AckPut(FilePut):
    """persistqueue.SQLiteAckQueue: the variant that can acknowledge."""

    key = "persistqueue-ack"
    name = "persistqueue.SQLiteAckQueue.put"
    kind = "SQLiteAckQueue"
