"""Messages that come again: given back by the thousand, or after the death of who had them."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.actors import CONTEXT
from benchmarks.contest import PROCESS, Contestant
from benchmarks.embedded import prepare
from benchmarks.embedded.acknowledge import resident_megabytes

SHORTEST_DELAY_MS = 100


class NackAll(Contestant):
    """Receives everything, gives each message back, receives all again and acknowledges."""

    key = "embeddedpulsar"
    survives = PROCESS

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind
        self.name = f"embeddedpulsar negative_acknowledge, {kind}, {SHORTEST_DELAY_MS} ms delay included"
        if kind != "Shared":
            self.key = kind

    def start(self, place: Path) -> None:
        from embeddedpulsar import Client  # noqa: F401  (its absence must show here, not in a round)

        self._root = place / "store"

    def run(self, operations: int) -> float:
        from embeddedpulsar import Client, ConsumerType, InitialPosition

        prepare.fill(self._root, operations, 10, batch=1)
        client = Client(self._root)
        consumer: Any = client.subscribe(
            prepare.TOPIC,
            "nacks",
            ConsumerType[self._kind],
            initial_position=InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=SHORTEST_DELAY_MS,
        )
        receive = consumer.receive
        before = resident_megabytes()
        begun = time.perf_counter()
        given_back = acknowledged = 0
        while acknowledged < operations:
            message = receive(60_000)
            if message.redelivery_count():
                consumer.acknowledge(message)
                acknowledged += 1
            else:
                consumer.negative_acknowledge(message)
                given_back += 1
        consumer.close()
        seconds = time.perf_counter() - begun
        assert given_back == operations
        self.notes = {"grown MB": max(0.0, resident_megabytes() - before)}
        client.close()
        shutil.rmtree(self._root)
        return seconds


class Takeover(Contestant):
    """Two consumer processes on one Failover subscription; the active one is killed while the other waits."""

    key = "embeddedpulsar"
    name = "embeddedpulsar Failover, SIGKILL to first message at the standby"
    survives = PROCESS

    def __init__(self) -> None:
        super().__init__()
        self._children: list[Any] = []

    def start(self, place: Path) -> None:
        from embeddedpulsar import Client, ConsumerType, InitialPosition

        self._root = str(place / "store")
        self._client = Client(self._root)
        self._producer: Any = self._client.create_producer("bench")
        failover, earliest = ConsumerType.Failover, InitialPosition.Earliest
        self._client.subscribe("bench", "takeover", failover, initial_position=earliest).close()

    def run(self, operations: int) -> float:
        """The median of so many takeovers: each victim's standby is the next victim."""
        taken = []
        active = self._join()
        for _ in range(operations):
            self._producer.send(b"message")
            active.wait()  # it has the message, and keeps it
            standby = self._join()
            time.sleep(0.1)
            begun = time.monotonic()
            active.kill()
            taken.append(standby.wait() - begun)
            standby.tell()  # to acknowledge
            active = standby
        active.kill()
        taken.sort()
        self.notes = {"worst ms": taken[-1] * 1e3}
        return median(taken)

    def _join(self) -> _Member:
        member = _Member(self._root)
        self._children.append(member)
        return member

    def stop(self) -> None:
        for child in self._children:
            child.kill()
        if hasattr(self, "_client"):
            self._client.close()


class _Member:
    """A consumer process."""

    def __init__(self, root: str) -> None:
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_consume, args=(theirs, root), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def wait(self) -> float:
        """When it received its message, on the clock of the machine."""
        if not self._pipe.poll(30):
            raise TimeoutError("no message came to the consumer")
        return float(self._pipe.recv())

    def tell(self) -> None:
        self._pipe.send(None)

    def kill(self) -> None:
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()


def _consume(pipe: Any, root: str) -> None:
    from embeddedpulsar import Client, ConsumerType

    client = Client(root)
    consumer: Any = client.subscribe("bench", "takeover", ConsumerType.Failover, ack_group_time_ms=0)
    pipe.send(None)
    while True:
        message = consumer.receive()
        pipe.send(time.monotonic())
        pipe.recv()
        consumer.acknowledge(message)
