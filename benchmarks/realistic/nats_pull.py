"""NATS JetStream in the realistic cells: publish, and one durable pull consumer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.contest import MINUTES
from benchmarks.peers import servers
from benchmarks.peers.nats_jetstream import SUBJECT, WINDOW, Link
from benchmarks.realistic.cell import SEND, Cell, Letter
from benchmarks.realistic.contestant import CellContestant
from benchmarks.realistic.workers import Sink, Source

READ_AT_ONCE = 100


class NatsPull(CellContestant):
    """A server that stores on files; keys and properties are headers."""

    peer = "NATS JetStream, pull consumer"
    survives = MINUTES
    source = "benchmarks.realistic.nats_pull:NatsSource"
    sink = "benchmarks.realistic.nats_pull:NatsSink"

    def open(self, place: Path) -> dict[str, Any]:
        self.server = server = servers.nats(place)
        return {"port": server.port}


class NatsSource(Source):
    def __init__(self, cell: Cell, port: int) -> None:
        super().__init__(cell)
        self._link = Link(port)

    def send(self, batch: list[Letter]) -> None:
        self._link.do(self._send(batch))

    async def _send(self, batch: list[Letter]) -> None:
        stream = self._link.stream
        if self.cell.mode == SEND:
            for letter in batch:
                await stream.publish(SUBJECT, letter.body, headers=_headers(letter))
            return
        for first in range(0, len(batch), WINDOW):
            for letter in batch[first : first + WINDOW]:
                await stream.publish_async(SUBJECT, letter.body, headers=_headers(letter))
            await stream.publish_async_completed()

    def close(self) -> None:
        self._link.close()


def _headers(letter: Letter) -> dict[str, str] | None:
    return {"key": letter.key, **letter.properties} if letter.key else None


class NatsSink(Sink):
    def __init__(self, number: int, tally: str, cell: Cell, port: int) -> None:
        super().__init__(number, tally, cell)
        self._link = Link(port)
        self._pull = self._link.do(self._link.stream.pull_subscribe(SUBJECT, "durable"))

    def receive(self, seconds: float) -> None:
        self._link.do(self._receive(seconds))

    async def _receive(self, seconds: float) -> None:
        while True:
            try:
                messages = await self._pull.fetch(READ_AT_ONCE, timeout=seconds)
            except TimeoutError:  # nats-py raises its own kind or asyncio's
                return
            for message in messages:
                len(message.data)
                await message.ack()
            self.words[self.word] += len(messages)

    def close(self) -> None:
        self._link.close()
