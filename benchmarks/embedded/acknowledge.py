"""A million acknowledgements, in order and shuffled."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.contest import PROCESS, Contestant
from benchmarks.embedded import prepare


class Acks(Contestant):
    """Receives everything first; then acknowledges by message id, one call each, until it is journalled."""

    key = "random"
    name = "embeddedpulsar acknowledge, random order"
    survives = PROCESS
    shuffled = True

    def start(self, place: Path) -> None:
        from embeddedpulsar import Client  # noqa: F401  (its absence must show here, not in a round)

        self._root = place / "store"

    def run(self, operations: int) -> float:
        from embeddedpulsar import Client, InitialPosition

        prepare.fill(self._root, operations, 10)
        client = Client(self._root)
        consumer: Any = client.subscribe(
            prepare.TOPIC, "acks", initial_position=InitialPosition.Earliest, receiver_queue_size=1000
        )
        ids: list[Any] = [consumer.receive(timeout_millis=10_000).message_id() for _ in range(operations)]
        if self.shuffled:
            random.Random(1).shuffle(ids)
        before = resident_megabytes()
        acknowledge = consumer.acknowledge
        begun = time.perf_counter()
        for message_id in ids:
            acknowledge(message_id)
        grown = resident_megabytes() - before
        consumer.close()
        seconds = time.perf_counter() - begun
        self.notes = {"grown MB": max(0.0, grown)}
        client.close()
        shutil.rmtree(self._root)
        return seconds


class OrderedAcks(Acks):
    """The same in the order of the log."""

    key = "ordered"
    name = "embeddedpulsar acknowledge, in order"
    shuffled = False


def resident_megabytes() -> float:
    """Memory of this process, where Linux tells; else 0."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * 4096 / 1e6
