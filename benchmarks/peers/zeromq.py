"""pyzmq PUSH/PULL over an ipc socket: fast, not durable, nothing is acknowledged."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.actors import Actor, Pair, Receiver, Sender
from benchmarks.contest import TRANSIT, Contestant


class PushPull(Pair):
    """One PUSH and one PULL socket in two processes, high-water marks as they come (1000 + 1000)."""

    key = "zmq"
    name = "pyzmq PUSH/PULL"
    survives = TRANSIT
    sender = "benchmarks.peers.zeromq:Push"
    receiver = "benchmarks.peers.zeromq:Pull"

    def start(self, place: Path) -> None:
        self.open_pair(address=f"ipc://{place}/socket")


class Put(Contestant):
    """Sends while another process drains; only the sends are timed."""

    key = "zmq"
    name = "pyzmq PUSH.send, drained"
    survives = TRANSIT

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._drain: Actor | None = None

    def start(self, place: Path) -> None:
        address = f"ipc://{place}/socket"
        self._drain = Actor("benchmarks.peers.zeromq:Pull", address=address)
        self._drain.wait_ready()
        self._push = Push(address)

    def run(self, operations: int) -> float:
        assert self._drain is not None
        self._drain.begin(operations=operations, stamped=False)
        begun = time.perf_counter()
        self._push.send_many(operations, b"x" * self._size)
        seconds = time.perf_counter() - begun
        self._drain.finish()
        return seconds

    def stop(self) -> None:
        if self._drain is not None:
            self._drain.stop()
        if hasattr(self, "_push"):
            self._push.close()


class _End:
    def __init__(self, address: str, kind: str) -> None:
        import zmq

        self._context = zmq.Context()
        self._socket: Any = self._context.socket(getattr(zmq, kind))
        self._socket.setsockopt(zmq.LINGER, 0)
        if kind == "PULL":
            self._socket.bind(address)
        else:
            self._socket.connect(address)

    def close(self) -> None:
        self._socket.close()
        self._context.term()


class Push(_End, Sender):
    def __init__(self, address: str) -> None:
        super().__init__(address, "PUSH")

    def send_one(self, payload: bytes) -> None:
        self._socket.send(payload)

    def send_many(self, operations: int, payload: bytes) -> None:
        send = self._socket.send
        for _ in range(operations):
            send(payload)


class Pull(_End, Receiver):
    def __init__(self, address: str) -> None:
        super().__init__(address, "PULL")

    def receive_one(self) -> bytes:
        payload: bytes = self._socket.recv()
        return payload

    def receive_many(self, operations: int) -> None:
        receive = self._socket.recv
        total = 0
        for _ in range(operations):
            total += len(receive())

    def receive_nothing(self, seconds: float) -> None:
        assert not self._socket.poll(int(seconds * 1000))
