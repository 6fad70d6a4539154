"""Jobs through the public API: a producer, and a consumer of a Shared subscription."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contest import POWER
from benchmarks.jobs import JobQueue

RECEIVE_MS = 10_000


class Jobs(JobQueue):
    """`send`, and `receive` and `acknowledge` on a Shared subscription. Jobs are msgpack."""

    key = "embeddedpulsar"
    name = "embeddedpulsar"
    durability = "process"
    _client: Any = None

    def open(self, place: Path) -> None:
        from embeddedpulsar import Client, ConsumerType

        self._client = Client(place / "store", durability=self.durability)
        self._producer = self._client.create_producer("jobs")
        self._consumer = self._client.subscribe("jobs", "workers", consumer_type=ConsumerType.Shared)

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

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


class FlushedJobs(Jobs):
    """The same at level "flush"."""

    name = 'embeddedpulsar, durability="flush"'
    survives = POWER
    durability = "flush"
