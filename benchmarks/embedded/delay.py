"""Delayed messages: published long before they are due, all at once delivered when they are."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.actors import CONTEXT
from benchmarks.contest import PROCESS, Contestant
from benchmarks.embedded.acknowledge import resident_megabytes

LEAST_RATE = 20_000
SPREAD_MS = 200


class Delayed(Contestant):
    """Messages due within a fifth of a second, pending at a Shared consumer in another process.

    Timed is from the first due time to the last acknowledged receipt.
    """

    key = "embeddedpulsar"
    name = "embeddedpulsar, Shared, each message acknowledged"
    survives = PROCESS

    def start(self, place: Path) -> None:
        from embeddedpulsar import Client  # noqa: F401  (its absence must show here, not in a round)

        self._root = place / "store"

    def run(self, operations: int) -> float:
        from embeddedpulsar import Client

        client = Client(self._root)
        producer: Any = client.create_producer("bench")
        pipe, theirs = CONTEXT.Pipe()
        child = CONTEXT.Process(target=_consume, args=(theirs, str(self._root), operations), daemon=True)
        child.start()
        try:
            theirs.close()
            pipe.recv()
            rng = random.Random(1)
            begun = time.perf_counter()
            first_ms = int(time.time() * 1000) + 300 + operations * 1000 // LEAST_RATE
            for _ in range(operations):
                due_ms = first_ms + rng.randrange(SPREAD_MS)
                producer.send(due_ms.to_bytes(8, "little"), deliver_at=due_ms)
            rate = operations / (time.perf_counter() - begun)
            pipe.send(None)
            grown, early, ended = pipe.recv()
        finally:
            client.close()
            child.join(10)
            child.kill()
            shutil.rmtree(self._root)
        self.notes = {"publish msg/s": rate, "early": early, "grown MB": max(0.0, grown)}
        return float(ended - first_ms / 1000)


def _consume(pipe: Any, root: str, operations: int) -> None:
    from embeddedpulsar import Client, ConsumerType, Timeout

    client = Client(root)
    consumer: Any = client.subscribe("bench", "delayed", ConsumerType.Shared)
    pipe.send(None)
    before = resident_megabytes()
    while not pipe.poll():
        try:
            consumer.receive(timeout_millis=50)
        except Timeout:
            continue  # nothing is due, but it has looked
        raise AssertionError("a message came before any was due")
    pipe.recv()
    early = 0
    grown = -1.0
    for _ in range(operations):
        message = consumer.receive()
        now_ms = time.time() * 1000
        if grown < 0:
            grown = resident_megabytes() - before

        early += now_ms < int.from_bytes(message.data(), "little")
        consumer.acknowledge(message)
    pipe.send((grown, early, time.time()))
    client.close()
