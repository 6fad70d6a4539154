"""nobroker: jobs in a log file, by the standard library alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contest import POWER
from benchmarks.jobs import JobQueue


class NobrokerQueue(JobQueue):
    """With `fsync=False`, as its page compares it with queues that do not flush. Jobs are JSON."""

    key = "nobroker"
    name = "nobroker, fsync=False"
    is_flushed = False
    _queue: Any = None

    def open(self, place: Path) -> None:
        import nobroker

        self._queue = nobroker.Queue(str(place / "jobs"), fsync=self.is_flushed)

    def putter(self) -> Callable[[Any], object]:
        put: Callable[[Any], object] = self._queue.enqueue
        return put

    def getter(self) -> Callable[[], object]:
        lease, ack = self._queue.lease_one, self._queue.ack

        def get_one() -> object:
            job = lease()
            payload: object = job.payload
            ack(job)
            return payload

        return get_one

    def close(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close()


class FlushedNobrokerQueue(NobrokerQueue):
    """As shipped: each job is flushed."""

    name = "nobroker"
    survives = POWER
    is_flushed = True
