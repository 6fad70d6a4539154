"""localqueue: jobs in SQLite, written in Rust, with leases and receipts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contest import POWER
from benchmarks.jobs import JobQueue


class LocalQueue(JobQueue):
    """As shipped: `DurabilityMode.RELAXED`, SQLite's `synchronous=NORMAL`. Jobs are JSON."""

    key = "localqueue"
    name = "localqueue"
    durability = "RELAXED"
    _queue: Any = None

    def open(self, place: Path) -> None:
        import localqueue

        self._queue = localqueue.SimpleQueue(
            str(place / "queue"),
            delivery=localqueue.DeliveryPolicy(lease_seconds=30, max_retries=3),
            durability=localqueue.DurabilityMode[self.durability],
        )

    def putter(self) -> Callable[[Any], object]:
        put: Callable[[Any], object] = self._queue.put
        return put

    def getter(self) -> Callable[[], object]:
        get, ack = self._queue.get, self._queue.ack

        def get_one() -> object:
            job = get()
            data: object = job.data
            ack(job)
            return data

        return get_one

    def close(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close()


class DurableLocalQueue(LocalQueue):
    """`DurabilityMode.DURABLE`, SQLite's `synchronous=FULL`."""

    name = "localqueue, DURABLE"
    survives = POWER
    durability = "DURABLE"
