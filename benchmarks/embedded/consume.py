"""A producer process and an Exclusive consumer process that acknowledges every message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.actors import Pair, Receiver, Sender
from benchmarks.contest import PROCESS

TOPIC = "bench"


class ExclusivePair(Pair):
    """Batched `send_async` on one side; receive, data, acknowledge on the other."""

    key = "embeddedpulsar"
    name = "embeddedpulsar, Exclusive, each message acknowledged"
    survives = PROCESS
    sender = "benchmarks.embedded.consume:EmbeddedSender"
    receiver = "benchmarks.embedded.consume:EmbeddedReceiver"

    def start(self, place: Path) -> None:
        self.open_pair(root=str(place / "store"))


class VolatilePair(ExclusivePair):
    """The same over a non-persistent topic, with a ring that holds all that is under way."""

    key = "non-persistent"
    name = "embeddedpulsar, Exclusive, non-persistent topic"

    def start(self, place: Path) -> None:
        root = place / "store"
        root.mkdir()
        (root / "broker.conf").write_text("nonPersistentTopicRingSizeInMB=1024\n")
        self.open_pair(root=str(root), topic=f"non-persistent://public/default/{TOPIC}")


class EmbeddedSender(Sender):
    def __init__(self, root: str, topic: str = TOPIC) -> None:
        from embeddedpulsar import Client

        self._client = Client(root)
        self._one: Any = self._client.create_producer(topic)
        self._many: Any = self._client.create_producer(
            topic, batching_enabled=True, block_if_queue_full=True, max_pending_messages=10_000
        )

    def send_one(self, payload: bytes) -> None:
        self._one.send(payload)

    def send_many(self, operations: int, payload: bytes) -> None:
        send = self._many.send_async
        for _ in range(operations):
            send(payload, None)
        self._many.flush()

    def close(self) -> None:
        self._client.close()


class EmbeddedReceiver(Receiver):
    def __init__(self, root: str, topic: str = TOPIC) -> None:
        from embeddedpulsar import Client, Timeout

        self._timeout = Timeout
        self._client = Client(root)
        self._consumer: Any = self._client.subscribe(topic, "bench")

    def receive_one(self) -> bytes:
        message = self._consumer.receive()
        self._consumer.acknowledge(message)
        payload: bytes = message.data()
        return payload

    def receive_many(self, operations: int) -> None:
        receive, acknowledge = self._consumer.receive, self._consumer.acknowledge
        total = 0
        for _ in range(operations):
            message = receive()
            total += len(message.data())
            acknowledge(message)

    def receive_nothing(self, seconds: float) -> None:
        try:
            self._consumer.receive(timeout_millis=int(seconds * 1000))
        except self._timeout:
            return
        raise AssertionError("a message nobody sent")

    def close(self) -> None:
        self._client.close()
