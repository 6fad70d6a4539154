"""Jobs through the public API: a producer, and a consumer of a Shared subscription."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.contest import POWER
from benchmarks.jobs import PulsarJobs


class Jobs(PulsarJobs):
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

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


class FlushedJobs(Jobs):
    """The same at level "flush"."""

    name = 'embeddedpulsar, durability="flush"'
    survives = POWER
    durability = "flush"
