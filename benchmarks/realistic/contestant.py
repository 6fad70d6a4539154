"""A row of the realistic tables: one source process, several sink processes, and the CPU time of all."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

from benchmarks.actors import PATIENCE_SECONDS, Actor, Tally
from benchmarks.contest import Contestant, Measure
from benchmarks.realistic.cell import Cell

WARM_UP = 500
CPU_MICROSECONDS = Measure("us of CPU", lambda operations, seconds: seconds / operations * 1e6, False)
PRODUCER, CONSUMERS = "producer us", "consumers us"


class Running(Protocol):
    """A server that `open` started. Its CPU time is part of the work."""

    @property
    def pid(self) -> int: ...
    def stop(self) -> None: ...


class CellContestant(Contestant):
    """Runs one cell. The figure is the CPU time of a message in all processes, a server's included.

    The notes say how it divides, the messages a second from the first sent to the last received (from the
    start of the consumers in a cell with a backlog), and the most memory one of the client processes had.
    """

    source = ""
    sink = ""
    peer = ""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.key = f"{self.peer} {cell.text}"
        self.name = self.key
        self.server: Running | None = None
        self._actors: list[Actor] = []

    def open(self, place: Path) -> dict[str, Any]:
        """Start what the processes share, and a `server`; returns the arguments of each process."""
        raise NotImplementedError

    def start(self, place: Path) -> None:
        arguments = self.open(place)
        tally = str(place / "tally")
        self._words = Tally(tally).words
        cell = tuple(self.cell)
        for number in range(self.cell.consumers):
            self._actors.append(Actor(self.sink, number=number, tally=tally, cell=cell, **arguments))
        self._actors.append(Actor(self.source, cell=cell, **arguments))
        for actor in self._actors:
            actor.wait_ready()
        self.run(min(WARM_UP, self.operation_limit or WARM_UP))

    def run(self, operations: int) -> float:
        words = self._words
        *sinks, source = self._actors
        for word in range(1 + len(sinks)):
            words[word] = 0
        before = self._server_cpu_ns()
        source.begin(operations=operations)
        sent = source.finish() if self.cell.is_backlog else None
        begun = time.monotonic()
        for sink in sinks:
            sink.begin()
        sent = sent or source.finish()
        ended = self._wait_received(operations)
        spent = (self._server_cpu_ns() - before) / 1e9
        words[0] = 1
        received = [sink.finish() for sink in sinks]
        consumers = sum(answer["cpu"] for answer in received)
        begun = begun if self.cell.is_backlog else sent["begun"]
        self.notes = {
            PRODUCER: sent["cpu"] / operations * 1e6,
            CONSUMERS: consumers / operations * 1e6,
            **({"server us": spent / operations * 1e6} if self.server else {}),
            "msg/s": operations / (ended - begun),
            "MiB": max(answer["memory"] for answer in [sent, *received]),
        }
        return float(sent["cpu"] + consumers + spent)

    def _wait_received(self, operations: int) -> float:
        words, count = self._words, 1 + self.cell.consumers
        deadline = time.monotonic() + PATIENCE_SECONDS
        while sum(words[1:count]) < operations:
            if time.monotonic() > deadline:
                raise TimeoutError("the consumers did not get everything in time")
            time.sleep(0.001)
        return time.monotonic()

    def _server_cpu_ns(self) -> int:
        """By all its threads, ended ones too: the kernel's clock of that process."""
        return time.clock_gettime_ns(~self.server.pid << 3 | 2) if self.server else 0

    def stop(self) -> None:
        for actor in reversed(self._actors):
            actor.stop()
        self._actors.clear()
        if self.server is not None:
            self.server.stop()
