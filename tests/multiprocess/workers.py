"""Consumers in processes of their own that do what they are told, and say what they get and when."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import embeddedpulsar as pulsar
from tests.multiprocess.children import Child, say

EARLIEST = pulsar.InitialPosition.Earliest


def subscribe(client: pulsar.Client, kind: str, **options: Any) -> pulsar.Consumer:
    """A consumer of ``jobs`` on the subscription ``work``."""
    options = {"initial_position": EARLIEST, "ack_group_time_ms": 0, **options}
    return client.subscribe("jobs", "work", pulsar.ConsumerType[kind], **options)


def work(root: str, kind: str, name: str = "worker", queue: str = "1000") -> None:
    """Obey one word a line: ``take`` and ``ack`` receive, the second acknowledges; ``close``, ``nothing``;
    ``ack-all`` receives and acknowledges for ever."""
    with pulsar.Client(root) as client:
        consumer = subscribe(client, kind, consumer_name=name, receiver_queue_size=int(queue))
        say("attached")
        for line in sys.stdin:
            word = line.strip()
            if word == "close":
                consumer.close()
                say("closed")
            while word in ("take", "ack", "ack-all"):
                message = consumer.receive()
                now = time.perf_counter()
                if word != "take":
                    consumer.acknowledge(message)
                say(message.data().decode(), message.redelivery_count(), now)
                if word != "ack-all":
                    break


class Worker(Child):
    """`work` in a process of its own, attached."""

    def __init__(
        self,
        root: Path,
        kind: str,
        name: str = "worker",
        queue: int = 1000,
        *,
        within: Sequence[str] = (),
    ) -> None:
        super().__init__(work, root, kind, name, queue, within=within)
        assert self.read() == "attached"

    def got(self) -> tuple[str, int, float]:
        """What it received next: the payload, the redelivery count, and when (of `time.perf_counter`)."""
        data, count, when = self.read().split()
        return data, int(count), float(when)

    def take(self) -> tuple[str, int]:
        """Have it receive one message and keep it."""
        self.tell("take")
        return self.got()[:2]

    def ack(self) -> tuple[str, int]:
        """Have it receive one message and acknowledge it."""
        self.tell("ack")
        return self.got()[:2]


def send(client: pulsar.Client, *payloads: object, key: str | None = None) -> None:
    """Send to ``jobs``."""
    producer = client.create_producer("jobs")
    for payload in payloads:
        producer.send(str(payload).encode(), partition_key=key)
    producer.close()


def keep_alive(root: Path, seconds: int) -> None:
    """Set after how long a silent consumer is taken for dead."""
    (root / "broker.conf").write_text(f"keepAliveIntervalSeconds={seconds}\n")
