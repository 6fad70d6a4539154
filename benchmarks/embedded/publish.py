"""Publishing, through the public API and nothing else."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.contest import POWER, PROCESS, Contestant
from benchmarks.embedded.prepare import keep_everything

TOPIC = "bench"


class _Publisher(Contestant):
    """Opens a fresh store for every round: each pays for its own first pages, none runs the disk full."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.payload = b"x" * size
        self._client: Any = None

    def start(self, place: Path) -> None:
        self._root = place / "store"
        self._open()

    def run(self, operations: int) -> float:
        seconds = self.publish(self._producer, operations)
        self._client.close()
        self._client = None
        shutil.rmtree(self._root)
        self._open()
        return seconds

    def _open(self) -> None:
        from embeddedpulsar import Client

        keep_everything(self._root)
        self._client = Client(self._root, **self.client_options())
        self._producer = self._client.create_producer(TOPIC, **self.producer_options())
        # The first message makes the segment, as the tables and maps of the peers were made before.
        self._producer.send(self.payload)

    def client_options(self) -> dict[str, Any]:
        return {}

    def producer_options(self) -> dict[str, Any]:
        return {}

    def publish(self, producer: Any, operations: int) -> float:
        raise NotImplementedError

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()


class Send(_Publisher):
    """`send`, unbatched: each message is in the log before the next."""

    key = "embeddedpulsar"
    name = "embeddedpulsar send"
    survives = PROCESS

    def publish(self, producer: Any, operations: int) -> float:
        send, payload = producer.send, self.payload
        begun = time.perf_counter()
        for _ in range(operations):
            send(payload)
        return time.perf_counter() - begun


class FlushedSend(Send):
    """`send` at durability "flush": each message is on the disk before the next."""

    key = "embeddedpulsar-flush"
    name = 'embeddedpulsar send, durability="flush"'
    survives = POWER

    def client_options(self) -> dict[str, Any]:
        return {"durability": "flush"}


class SendAsync(_Publisher):
    """`send_async`, batched by the producer, flushed at the end."""

    key = "embeddedpulsar"
    name = "embeddedpulsar send_async, batches of 1000"
    survives = PROCESS

    def producer_options(self) -> dict[str, Any]:
        return {"batching_enabled": True, "block_if_queue_full": True, "max_pending_messages": 10_000}

    def publish(self, producer: Any, operations: int) -> float:
        send, payload = producer.send_async, self.payload
        begun = time.perf_counter()
        for _ in range(operations):
            send(payload, None)
        producer.flush()
        return time.perf_counter() - begun
