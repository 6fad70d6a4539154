"""embeddedpulsar in the realistic cells."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from benchmarks.contest import PROCESS
from benchmarks.realistic.cell import KEY_BATCHED, SEND, Cell, Letter
from benchmarks.realistic.contestant import CellContestant
from benchmarks.realistic.workers import Sink, Source

TOPIC, SUBSCRIPTION = "orders", "workers"


class Embedded(CellContestant):
    """Processes that share a store."""

    peer = "embeddedpulsar"
    survives = PROCESS
    source = "benchmarks.realistic.embedded:EmbeddedSource"
    sink = "benchmarks.realistic.embedded:EmbeddedSink"

    def open(self, place: Path) -> dict[str, Any]:
        return {"root": str(place / "store")}


class EmbeddedSource(Source):
    def __init__(self, cell: Cell, root: str) -> None:
        from embeddedpulsar import BatchingType, Client

        super().__init__(cell)
        self._client = Client(root)
        batching = BatchingType.KeyBased if self.cell.mode == KEY_BATCHED else BatchingType.Default
        self._producer: Any = self._client.create_producer(
            TOPIC,
            batching_enabled=self.cell.mode != SEND,
            batching_type=batching,
            block_if_queue_full=True,
        )

    def send(self, batch: list[Letter]) -> None:
        if self.cell.mode == SEND:
            send = self._producer.send
            if self.cell.keys:
                for body, key, properties in batch:
                    send(body, properties=properties, partition_key=key)
            else:
                for body, _, _ in batch:
                    send(body)
            return
        send_async = self._producer.send_async
        if self.cell.keys:
            for body, key, properties in batch:
                send_async(body, None, properties=properties, partition_key=key)
        else:
            for body, _, _ in batch:
                send_async(body, None)
        self._producer.flush()

    def close(self) -> None:
        self._client.close()


class EmbeddedSink(Sink):
    def __init__(self, number: int, tally: str, cell: Cell, root: str) -> None:
        from embeddedpulsar import Client, ConsumerType, InitialPosition, Timeout

        super().__init__(number, tally, cell)
        self._client = Client(root)
        self._timeout: Any = Timeout
        self._consumer: Any = self._client.subscribe(
            TOPIC, SUBSCRIPTION, ConsumerType[self.cell.kind], initial_position=InitialPosition.Earliest
        )

    def receive(self, seconds: float) -> None:
        receive, acknowledge, words, word = (
            self._consumer.receive,
            self._consumer.acknowledge,
            self.words,
            self.word,
        )
        timeout = int(seconds * 1000)
        with contextlib.suppress(self._timeout):
            while True:
                message = receive(timeout)
                message.data()
                acknowledge(message)
                words[word] += 1

    def close(self) -> None:
        self._client.close()
