"""A real Pulsar in the realistic cells: a standalone broker and pulsar-client."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from benchmarks.contest import POWER, PROCESS
from benchmarks.peers import pulsar_standalone
from benchmarks.realistic.cell import KEY_BATCHED, SEND, Cell, Letter
from benchmarks.realistic.contestant import CellContestant
from benchmarks.realistic.workers import Sink, Source

TOPIC, SUBSCRIPTION = "orders", "workers"


class RealPulsar(CellContestant):
    """A broker with its settings as shipped: each entry is on the disk before it is acknowledged."""

    peer = "Pulsar, as shipped"
    survives = POWER
    source = "benchmarks.realistic.real_pulsar:PulsarSource"
    sink = "benchmarks.realistic.real_pulsar:PulsarSink"
    is_tuned = False

    def open(self, place: Path) -> dict[str, Any]:
        self.server = broker = pulsar_standalone.Broker(place, is_tuned=self.is_tuned)
        return {"url": broker.url}


class TunedPulsar(RealPulsar):
    """The same without a flush of the journal and without its waits."""

    peer = "Pulsar, no flush"
    survives = PROCESS
    is_tuned = True


class PulsarSource(Source):
    def __init__(self, cell: Cell, url: str) -> None:
        import pulsar

        super().__init__(cell)
        self._client = pulsar_standalone.quiet_client(url)
        types = pulsar.BatchingType
        self._producer: Any = self._client.create_producer(
            TOPIC,
            batching_enabled=self.cell.mode != SEND,
            batching_type=types.KeyBased if self.cell.mode == KEY_BATCHED else types.Default,
            block_if_queue_full=True,
        )

    def send(self, batch: list[Letter]) -> None:
        if self.cell.mode == SEND:
            for letter in batch:
                self._producer.send(letter.body, **_options(letter))
            return
        for letter in batch:
            self._producer.send_async(letter.body, None, **_options(letter))
        self._producer.flush()

    def close(self) -> None:
        self._client.close()


def _options(letter: Letter) -> dict[str, Any]:
    return {"properties": letter.properties, "partition_key": letter.key} if letter.key else {}


class PulsarSink(Sink):
    def __init__(self, number: int, tally: str, cell: Cell, url: str) -> None:
        import pulsar

        super().__init__(number, tally, cell)
        self._client = pulsar_standalone.quiet_client(url)
        self._timeout: Any = pulsar.Timeout
        self._consumer: Any = self._client.subscribe(
            TOPIC,
            SUBSCRIPTION,
            getattr(pulsar.ConsumerType, self.cell.kind),
            initial_position=pulsar.InitialPosition.Earliest,
        )

    def receive(self, seconds: float) -> None:
        timeout = int(seconds * 1000)
        with contextlib.suppress(self._timeout):
            while True:
                message = self._consumer.receive(timeout)
                message.data()
                self._consumer.acknowledge(message)
                self.words[self.word] += 1

    def close(self) -> None:
        self._client.close()
