"""One message many times the size of an entry: sent in parts, received whole."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from benchmarks.contest import READ_ONLY, Contestant
from benchmarks.embedded.prepare import keep_everything
from benchmarks.embedded.publish import TOPIC, Send

PEAK = "peak, MB beyond the message"


class SendChunked(Send):
    """`send` with ``chunking_enabled``."""

    key = "embeddedpulsar"
    name = "embeddedpulsar send, chunking_enabled"

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.payload = os.urandom(min(size, 1 << 20)) * max(size >> 20, 1)

    def producer_options(self) -> dict[str, Any]:
        return {"chunking_enabled": True}

    def publish(self, producer: Any, operations: int) -> float:
        before = reset_peak()
        seconds = super().publish(producer, operations)
        self.notes[PEAK] = max(self.notes.get(PEAK, 0.0), peak_since(before))
        return seconds


class ReceiveChunked(Contestant):
    """A Reader that gets the message whole; both checksums of every part are verified."""

    key = "reader"
    name = "embeddedpulsar Reader, the message whole"
    survives = READ_ONLY

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def start(self, place: Path) -> None:
        from embeddedpulsar import Client

        self._root = place / "store"
        keep_everything(self._root)
        with Client(self._root) as client, client.create_producer(TOPIC, chunking_enabled=True) as producer:
            producer.send(os.urandom(min(self._size, 1 << 20)) * max(self._size >> 20, 1))

    def run(self, operations: int) -> float:
        from embeddedpulsar import Client, MessageId

        seconds = 0.0
        with Client(self._root) as client:
            for _ in range(operations):
                reader: Any = client.create_reader(TOPIC, MessageId.earliest)
                before = reset_peak()
                begun = time.perf_counter()
                size = len(reader.read_next().data())
                seconds += time.perf_counter() - begun
                peak = peak_since(before) - size / 1e6
                self.notes[PEAK] = max(self.notes.get(PEAK, 0.0), peak)
                reader.close()
        return seconds


def reset_peak() -> float:
    """Begin to watch the resident memory of this process, where the system can; what it is now, in MB."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0.0
    return _status("VmRSS")


def peak_since(before: float) -> float:
    """How much larger it has been since; MB."""
    return max(_status("VmHWM") - before, 0.0) if before else 0.0


def _status(name: str) -> float:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    return 0.0
