"""One consumer of many topics, most of which have no message."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.contest import PROCESS, Contestant
from benchmarks.embedded.acknowledge import resident_megabytes

BURST = 2000
LONGEST_S = 60.0
WRITING = 0.05
"""Share of a processor; the acknowledgements are written with a tenth of one."""


class ManyTopics(Contestant):
    """Bursts of messages on topics drawn at random, received and acknowledged by one consumer.

    Timed is the consumer alone: publishing a burst, on producers that are open, is not.
    """

    survives = PROCESS

    def __init__(self, topics: int) -> None:
        super().__init__()
        self.key = f"embeddedpulsar {topics}"
        self.name = f"embeddedpulsar, Exclusive, {topics:,} topics"
        self._topics = topics

    def start(self, place: Path) -> None:
        from embeddedpulsar import Client, InitialPosition

        self._root = place / f"store-{self._topics}"
        self._client = Client(self._root)
        names = [f"topic-{number}" for number in range(self._topics)]
        before = resident_megabytes()
        begun = time.perf_counter()
        self._consumer: Any = self._client.subscribe(
            names, "bench", initial_position=InitialPosition.Earliest
        )
        self._subscribed = (time.perf_counter() - begun) / self._topics
        self._memory = (resident_megabytes() - before) / self._topics
        self._producers: list[Any] = [self._client.create_producer(name) for name in names]
        for producer in self._producers:
            producer.send(b"first")
        for _ in names:
            self._consumer.acknowledge(self._consumer.receive())

    def run(self, operations: int) -> float:
        rng = random.Random(1)
        elapsed = 0.0
        consumer = self._consumer
        for first in range(0, operations, BURST):
            count = min(BURST, operations - first)
            for _ in range(count):
                rng.choice(self._producers).send(bytes(100))
            begun = time.perf_counter()
            for _ in range(count):
                consumer.acknowledge(consumer.receive())
            elapsed += time.perf_counter() - begun
        written = _when_written()
        begun_cpu, begun = time.process_time(), time.perf_counter()
        time.sleep(1.0)
        idle = (time.process_time() - begun_cpu) / (time.perf_counter() - begun)
        self.notes = {
            "ms to subscribe, a topic": 1e3 * self._subscribed,
            "KiB a topic": 1024 * self._memory,
            "s until all is written": written,
            "idle CPU %": 100 * idle,
        }
        return elapsed

    def stop(self) -> None:
        self._client.shutdown()
        shutil.rmtree(self._root)


def _when_written() -> float:
    """Wait until the acknowledgements are written, which takes CPU time; return how long."""
    begun = time.perf_counter()
    quiet = 0
    while quiet < 3 and time.perf_counter() - begun < LONGEST_S:  # there are pauses in the writing
        before = time.process_time()
        time.sleep(0.5)
        quiet = quiet + 1 if time.process_time() - before < WRITING * 0.5 else 0
    return time.perf_counter() - begun - 0.5 * quiet
