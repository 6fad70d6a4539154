"""lmdb-queue: jobs in LMDB, with leases and retries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.jobs import JobQueue

MAP_SIZE = 8 << 30


class LmdbQueue(JobQueue):
    """As shipped: a commit reaches the page cache.

    With `sync=True` it does no more: the map is written asynchronously (`map_async`). So it is not in the
    table of what a power loss leaves.
    """

    key = "lmdb-queue"
    name = "lmdb-queue"
    _queue: Any = None

    def open(self, place: Path) -> None:
        import equeue

        self._queue = equeue.Queue(str(place / "queue"), map_size=MAP_SIZE)

    def putter(self) -> Callable[[Any], object]:
        put: Callable[[Any], object] = self._queue.put
        return put

    def getter(self) -> Callable[[], object]:
        get = self._queue.get

        def get_one() -> object:
            record = get(timeout=5.0)
            job = record.payload
            record.ack()
            return job

        return get_one

    def close(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close()
