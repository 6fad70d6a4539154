"""Jobs that are put, got and acknowledged one at a time, as the front pages of job queues show it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contest import PROCESS, Contestant

JOB: dict[str, Any] = {
    "task": "send-email",
    "to": "ada@example.com",
    "attempt": 1,
    "urgent": False,
    "note": "y" * 260,
}
"""About 340 bytes as JSON, 320 as msgpack."""
RECEIVE_MS = 10_000


class JobQueue:
    """One queue as its documentation shows it; a peer fills in the four methods.

    What encodes a job is what the queue itself uses; one that takes bytes gets msgpack.
    """

    key = ""
    name = ""
    survives = PROCESS

    def open(self, place: Path) -> None:
        """Open a new queue in the empty directory `place`; raises Unavailable."""
        raise NotImplementedError

    def putter(self) -> Callable[[Any], object]:
        """Return what puts one job."""
        raise NotImplementedError

    def getter(self) -> Callable[[], object]:
        """Return what gets the next job, acknowledges it, and returns it."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what `open` opened, also after a failure half way through it."""
        raise NotImplementedError


class PulsarJobs(JobQueue):
    """By the API of pulsar-client: `send`, and `receive` and `acknowledge` on a Shared subscription.

    Jobs are msgpack. `open` makes the producer and the consumer.
    """

    _producer: Any
    _consumer: Any

    def putter(self) -> Callable[[Any], object]:
        import msgpack

        send, pack = self._producer.send, msgpack.packb

        def put(job: Any) -> object:
            return send(pack(job))

        return put

    def getter(self) -> Callable[[], object]:
        import msgpack

        receive, acknowledge, unpack = self._consumer.receive, self._consumer.acknowledge, msgpack.unpackb

        def get_one() -> object:
            message = receive(RECEIVE_MS)
            job: object = unpack(message.data())
            acknowledge(message)
            return job

        return get_one


class Put(Contestant):
    """Puts jobs. Each round has a new queue: all pay for their first pages, and none fills the disk."""

    verb = "put"

    def __init__(self, queue: JobQueue) -> None:
        super().__init__()
        self.queue = queue
        self.key, self.name, self.survives = queue.key, f"{queue.name}, {self.verb}", queue.survives

    def start(self, place: Path) -> None:
        self._place = place
        self._open()

    def run(self, operations: int) -> float:
        seconds = self.work(operations)
        self.queue.close()
        shutil.rmtree(self._place)
        self._open()
        return seconds

    def _open(self) -> None:
        self._place.mkdir(exist_ok=True)
        self.queue.open(self._place)
        put = self.queue.putter()
        put(JOB)  # the first makes files and tables
        assert self.queue.getter()() == JOB

    def work(self, operations: int) -> float:
        """Do what is measured; return the seconds it took."""
        put, job = self.queue.putter(), JOB
        begun = time.perf_counter()
        for _ in range(operations):
            put(job)
        return time.perf_counter() - begun

    def stop(self) -> None:
        self.queue.close()


class Get(Put):
    """Gets and acknowledges jobs that were put before."""

    verb = "get and acknowledge"

    def work(self, operations: int) -> float:
        put = self.queue.putter()
        for _ in range(operations):
            put(JOB)
        get = self.queue.getter()
        begun = time.perf_counter()
        for _ in range(operations):
            get()
        return time.perf_counter() - begun
