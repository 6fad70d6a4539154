"""honker: jobs in the program's own SQLite file, by an extension in Rust."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contest import Unavailable
from benchmarks.jobs import JobQueue


class HonkerQueue(JobQueue):
    """As shipped: write-ahead log, `synchronous=NORMAL`. Jobs are JSON."""

    key = "honker"
    name = "honker"
    _database: Any = None

    def open(self, place: Path) -> None:
        try:
            import honker
        except ImportError as error:
            raise Unavailable(
                "honker is not installed: it has no wheel, Rust builds it (pip install --group bench-rust)"
            ) from error

        self._database = honker.open(str(place / "app.db"))
        self._queue = self._database.queue("jobs")

    def putter(self) -> Callable[[Any], object]:
        put: Callable[[Any], object] = self._queue.enqueue
        return put

    def getter(self) -> Callable[[], object]:
        claim = self._queue.claim_one

        def get_one() -> object:
            job = claim("worker-1")
            payload: object = job.payload
            job.ack()
            return payload

        return get_one

    def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()
