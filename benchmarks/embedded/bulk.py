"""Whole columns: lists and Arrow tables in one call, beside message by message, and the checksum alone."""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path
from typing import Any

from benchmarks.contest import PROCESS, READ_ONLY, Contestant, Unavailable
from benchmarks.embedded.publish import _Publisher

DISTINCT = 1000


def payloads(messages: int, size: int) -> list[bytes]:
    """Random payloads, each an object of its own, as those of an application are."""
    noise = os.urandom(DISTINCT * size)
    return [bytes(memoryview(noise)[i % DISTINCT * size :][:size]) for i in range(messages)]


class _Bulk(_Publisher):
    """The payloads are there before the clock starts."""

    survives = PROCESS

    def __init__(self, messages: int, size: int) -> None:
        super().__init__(size)
        self._messages, self._size = messages, size

    def start(self, place: Path) -> None:
        self._values = payloads(self._messages, self._size)
        super().start(place)

    def publish(self, producer: Any, operations: int) -> float:
        begun = time.perf_counter()
        sent = self.send(producer)
        seconds = time.perf_counter() - begun
        assert len(sent) == operations, (len(sent), operations)
        return seconds

    def send(self, producer: Any) -> Any:
        raise NotImplementedError


class SendMany(_Bulk):
    """`send_many` of a list."""

    key = "embeddedpulsar"
    name = "embeddedpulsar send_many"

    def send(self, producer: Any) -> Any:
        return producer.send_many(self._values)


class SendKeyed(_Bulk):
    """`send_many` with a key for each message."""

    key = "keyed"
    name = "embeddedpulsar send_many, with keys"

    def start(self, place: Path) -> None:
        self._keys = [f"key-{i % 100}" for i in range(self._messages)]
        super().start(place)

    def send(self, producer: Any) -> Any:
        return producer.send_many(self._values, partition_keys=self._keys)


class SendArrow(_Bulk):
    """`send_arrow` of a table."""

    key = "embeddedpulsar"
    name = "embeddedpulsar send_arrow"

    def start(self, place: Path) -> None:
        try:
            import pyarrow as pa
        except ImportError:
            raise Unavailable("pyarrow (pip install pyarrow)") from None
        super().start(place)
        self._table = pa.table({"value": pa.array(self._values, pa.binary())})
        self._values = []

    def send(self, producer: Any) -> Any:
        return producer.send_arrow(self._table)


class SendAsyncEach(_Bulk):
    """`send_async` for each message, each an entry of its own."""

    key = "each"
    name = "embeddedpulsar send_async, message by message"

    def publish(self, producer: Any, operations: int) -> float:
        send = producer.send_async
        begun = time.perf_counter()
        for value in self._values:
            send(value, None)
        producer.flush()
        return time.perf_counter() - begun


class SendAsyncBatched(SendAsyncEach):
    """`send_async` for each message, batched by the producer."""

    key = "batched"
    name = "embeddedpulsar send_async, batches of 1000"

    def producer_options(self) -> dict[str, Any]:
        return {
            "batching_enabled": True,
            "batching_max_allowed_size_in_bytes": 1 << 20,
            "block_if_queue_full": True,
            "max_pending_messages": 10_000,
        }


class Checksum(Contestant):
    """`zlib.crc32` over the same bytes, in one call."""

    key = "crc32"
    name = "zlib.crc32 over the same bytes"
    survives = READ_ONLY

    def __init__(self, messages: int, size: int) -> None:
        super().__init__()
        self._messages, self._size = messages, size

    def start(self, place: Path) -> None:
        self._bytes = b"".join(payloads(self._messages, self._size))

    def run(self, operations: int) -> float:
        begun = time.perf_counter()
        zlib.crc32(self._bytes)
        return time.perf_counter() - begun
