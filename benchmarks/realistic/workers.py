"""The two halves of a cell, each in a process of its own: one source and several sinks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.actors import Tally
from benchmarks.realistic.cell import Cell, Letter, letters

LOOK_SECONDS = 0.1


class Source:
    """Sends the messages of a cell; a peer fills in how."""

    def __init__(self, cell: Cell) -> None:
        self.cell = Cell(*cell)

    def run(self, operations: int) -> dict[str, Any]:
        """Send that many messages; the answer has the CPU time in seconds and the memory in MiB."""
        batch = letters(self.cell, operations)
        begun, cpu = time.monotonic(), time.process_time()
        self.send(batch)
        return {"begun": begun, "cpu": time.process_time() - cpu, "memory": peak_mebibytes()}

    def send(self, batch: list[Letter]) -> None:
        """Send all of them, and leave nothing in buffers of this process."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what the constructor opened."""


class Sink:
    """Receives, looks at, and acknowledges each message, until the run is over; a peer fills in how.

    Args:
        number: which of the sinks it is.
        tally: file with the words in which each sink counts.
        cell: what is measured.
    """

    def __init__(self, number: int, tally: str, cell: Cell) -> None:
        self.cell = Cell(*cell)
        self.number = number
        self.words = Tally(tally).words
        self.word = 1 + number

    def run(self) -> dict[str, Any]:
        """Receive until the run is over; the answer has the CPU time in seconds and the memory in MiB."""
        cpu = time.process_time()
        while not self.words[0]:
            self.receive(LOOK_SECONDS)
        return {"cpu": time.process_time() - cpu, "memory": peak_mebibytes()}

    def receive(self, seconds: float) -> None:
        """Receive, acknowledge and count messages, until none came for about that time."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what the constructor opened."""


def peak_mebibytes() -> float:
    """The most memory this process had at once; `getrusage` counts that of its parent before the exec."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0
