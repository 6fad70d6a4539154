"""NATS JetStream on files, through nats-py (asyncio only)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from benchmarks.actors import Crowd, CrowdReceiver, Pair, Receiver, Sender
from benchmarks.contest import MINUTES, Contestant
from benchmarks.peers import servers

WINDOW = 1000
SUBJECT, STREAM = "bench", "BENCH"


class Link:
    """A connection, its JetStream context and the loop they live in."""

    def __init__(self, port: int) -> None:
        self._runner = asyncio.Runner()
        self.do(self._open(port))

    async def _open(self, port: int) -> None:
        import nats

        self._connection = await nats.connect(f"nats://127.0.0.1:{port}")
        self.stream = self._connection.jetstream(publish_async_max_pending=4 * WINDOW)
        await self.stream.add_stream(name=STREAM, subjects=[SUBJECT])

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end."""
        return self._runner.run(work)

    def close(self) -> None:
        """Close the connection and the loop."""
        self.do(self._connection.close())
        self._runner.close()


class _OverNats(Contestant):
    survives = MINUTES

    def __init__(self, size: int) -> None:
        super().__init__()
        self.payload = b"x" * size
        self._server: servers.Server | None = None
        self._link: Link | None = None

    def start(self, place: Path) -> None:
        self._server = servers.nats(place)
        self._link = Link(self._server.port)

    def run(self, operations: int) -> float:
        assert self._link is not None
        seconds: float = self._link.do(self.publish(self._link.stream, operations))
        self._link.do(self._link.stream.purge_stream(STREAM))
        return seconds

    async def publish(self, stream: Any, operations: int) -> float:
        raise NotImplementedError

    def stop(self) -> None:
        if self._link is not None:
            self._link.close()
        if self._server is not None:
            self._server.stop()


class Publish(_OverNats):
    """Each publish awaits its acknowledgement."""

    key = "nats"
    name = "NATS JetStream publish"

    async def publish(self, stream: Any, operations: int) -> float:
        publish, payload = stream.publish, self.payload
        begun = time.perf_counter()
        for _ in range(operations):
            await publish(SUBJECT, payload)
        return time.perf_counter() - begun


class PublishAsync(_OverNats):
    """Acknowledgements are awaited a thousand at a time."""

    key = "nats"
    name = "NATS JetStream publish_async"

    async def publish(self, stream: Any, operations: int) -> float:
        publish, payload = stream.publish_async, self.payload
        begun = time.perf_counter()
        for first in range(0, operations, WINDOW):
            for _ in range(min(WINDOW, operations - first)):
                await publish(SUBJECT, payload)
            await stream.publish_async_completed()
        return time.perf_counter() - begun


class StreamPair(Pair):
    """One publisher, one pull consumer that acknowledges each message."""

    key = "nats"
    name = "NATS JetStream, pull consumer"
    survives = MINUTES
    sender = "benchmarks.peers.nats_jetstream:StreamSender"
    receiver = "benchmarks.peers.nats_jetstream:StreamReceiver"
    _server: servers.Server | None = None

    def start(self, place: Path) -> None:
        self._server = servers.nats(place)
        self.open_pair(port=self._server.port)

    def stop(self) -> None:
        super().stop()
        if self._server is not None:
            self._server.stop()


class StreamCrowd(Crowd):
    """Two publishers, two pull subscribers of one durable consumer."""

    key = "nats"
    name = "NATS JetStream, pull consumer, 2 to 2"
    survives = MINUTES
    sender = "benchmarks.peers.nats_jetstream:StreamSender"
    receiver = "benchmarks.peers.nats_jetstream:StreamMember"
    _server: servers.Server | None = None

    def start(self, place: Path) -> None:
        self._server = servers.nats(place)
        self.open_crowd(place, port=self._server.port)

    def stop(self) -> None:
        super().stop()
        if self._server is not None:
            self._server.stop()


class StreamMember(CrowdReceiver):
    def __init__(self, number: int, tally: str, port: int) -> None:
        super().__init__(number, tally)
        self._link = Link(port)
        self._pull = self._link.do(self._link.stream.pull_subscribe(SUBJECT, "durable"))

    def receive_some(self, seconds: float) -> int:
        received: int = self._link.do(self._receive_some(seconds))
        return received

    async def _receive_some(self, seconds: float) -> int:
        try:
            messages = await self._pull.fetch(WINDOW // 4, timeout=max(seconds, 0.1))
        except TimeoutError:  # nats-py raises its own kind or asyncio's
            return 0
        total = 0
        for message in messages:
            total += len(message.data)
            await message.ack()
        return len(messages)

    def close(self) -> None:
        self._link.close()


class NackAll(_OverNats):
    """A pull consumer gives each message back, gets all again and acknowledges."""

    key = "nats"
    name = "NATS JetStream nak, of 20,000"
    operation_limit = 20_000

    def run(self, operations: int) -> float:
        assert self._link is not None
        stream = self._link.stream
        self._link.do(PublishAsync.publish(self, stream, operations))  # type: ignore[arg-type]
        seconds: float = self._link.do(self._give_all_back(stream, operations))
        self._link.do(stream.delete_consumer(STREAM, "durable"))
        self._link.do(stream.purge_stream(STREAM))
        return seconds

    async def _give_all_back(self, stream: Any, operations: int) -> float:
        from nats.js.api import ConsumerConfig

        config = ConsumerConfig(max_ack_pending=operations + 1)
        pull = await stream.pull_subscribe(SUBJECT, "durable", config=config)
        begun = time.perf_counter()
        left = operations
        while left:
            for message in await pull.fetch(min(WINDOW, operations), timeout=30):
                if message.metadata.num_delivered == 1:
                    await message.nak()
                else:
                    await message.ack()
                    left -= 1
        return time.perf_counter() - begun


class StreamSender(Sender):
    def __init__(self, port: int) -> None:
        self._link = Link(port)

    def send_one(self, payload: bytes) -> None:
        self._link.do(self._link.stream.publish(SUBJECT, payload))

    def send_many(self, operations: int, payload: bytes) -> None:
        self._link.do(self._send_many(operations, payload))

    async def _send_many(self, operations: int, payload: bytes) -> None:
        stream = self._link.stream
        for first in range(0, operations, WINDOW):
            for _ in range(min(WINDOW, operations - first)):
                await stream.publish_async(SUBJECT, payload)
            await stream.publish_async_completed()

    def close(self) -> None:
        self._link.close()


class StreamReceiver(Receiver):
    def __init__(self, port: int) -> None:
        self._link = Link(port)
        self._pull = self._link.do(self._link.stream.pull_subscribe(SUBJECT, "durable"))

    def receive_one(self) -> bytes:
        payload: bytes = self._link.do(self._receive_one())
        return payload

    async def _receive_one(self) -> bytes:
        (message,) = await self._pull.fetch(1, timeout=30)
        await message.ack()
        payload: bytes = message.data
        return payload

    def receive_many(self, operations: int) -> None:
        self._link.do(self._receive_many(operations))

    async def _receive_many(self, operations: int) -> None:
        left, total = operations, 0
        while left:
            messages = await self._pull.fetch(min(left, WINDOW), timeout=30)
            for message in messages:
                total += len(message.data)
                await message.ack()
            left -= len(messages)

    def receive_nothing(self, seconds: float) -> None:
        self._link.do(self._receive_nothing(seconds))

    async def _receive_nothing(self, seconds: float) -> None:
        import nats.errors

        try:
            await self._pull.fetch(1, timeout=seconds)
        except nats.errors.TimeoutError:
            return
        raise AssertionError("a message nobody sent")

    def close(self) -> None:
        self._link.close()
