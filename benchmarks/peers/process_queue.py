"""multiprocessing.Queue: a pipe, a lock, a feeder thread and pickle between related processes."""

from __future__ import annotations

import queue
import time
from pathlib import Path
from typing import Any

from benchmarks.actors import CONTEXT, Pair, Receiver, Sender
from benchmarks.contest import MEMORY


class QueuePair(Pair):
    """Sender and receiver share the queue by inheritance, the only way it can be shared."""

    key = "mpqueue"
    name = "multiprocessing.Queue"
    survives = MEMORY
    sender = "benchmarks.peers.process_queue:QueueSender"
    receiver = "benchmarks.peers.process_queue:QueueReceiver"

    def start(self, place: Path) -> None:
        self.open_pair(shared=CONTEXT.Queue())


class QueueSender(Sender):
    def __init__(self, shared: Any) -> None:
        self._queue = shared

    def send_one(self, payload: bytes) -> None:
        self._queue.put(payload)

    def send_many(self, operations: int, payload: bytes) -> None:
        put = self._queue.put
        for _ in range(operations):
            put(payload)

    def close(self) -> None:
        self._queue.cancel_join_thread()


class QueueReceiver(Receiver):
    def __init__(self, shared: Any) -> None:
        self._queue = shared

    def receive_one(self) -> bytes:
        payload: bytes = self._queue.get()
        return payload

    def receive_many(self, operations: int) -> None:
        get = self._queue.get
        total = 0
        for _ in range(operations):
            total += len(get())

    def receive_nothing(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        try:
            self._queue.get(timeout=seconds)
        except queue.Empty:
            return
        raise AssertionError(f"a message nobody sent, {deadline - time.monotonic():.3f} s early")
