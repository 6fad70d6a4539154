"""Reading what is already there: by the message, and opening a large topic."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.contest import READ_ONLY, Contestant
from benchmarks.embedded import prepare


class ReadAll(Contestant):
    """A Reader from the earliest message; `read_next` and `data` for each."""

    key = "reader"
    name = "embeddedpulsar Reader, message by message"
    survives = READ_ONLY

    def __init__(self, messages: int, size: int, batch: int = 1000) -> None:
        super().__init__()
        self._messages, self._size, self._batch = messages, size, batch

    def start(self, place: Path) -> None:
        self._root = place / "store"
        prepare.fill(self._root, self._messages, self._size, self._batch)

    def run(self, operations: int) -> float:
        from embeddedpulsar import Client, MessageId

        client = Client(self._root)
        seconds = 0.0
        left = operations
        while left:
            count = min(left, self._messages)
            reader: Any = client.create_reader(prepare.TOPIC, MessageId.earliest)
            seconds += _read(reader, count)
            reader.close()
            left -= count
        client.close()
        return seconds


def _read(reader: Any, count: int) -> float:
    read_next = reader.read_next
    total = 0
    begun = time.perf_counter()
    for _ in range(count):
        total += len(read_next().data())
    return time.perf_counter() - begun


class OpenLarge(Contestant):
    """Client, Reader at the end, and the question whether there is more."""

    key = "embeddedpulsar"
    name = "embeddedpulsar: Client, Reader at the end"
    survives = READ_ONLY

    def __init__(self, messages: int) -> None:
        super().__init__()
        self._messages = messages

    def start(self, place: Path) -> None:
        self._root = place / "store"
        prepare.fill(self._root, self._messages, 10)

    def run(self, operations: int) -> float:
        from embeddedpulsar import Client, MessageId

        begun = time.perf_counter()
        client = Client(self._root)
        reader: Any = client.create_reader(prepare.TOPIC, MessageId.latest)
        more = reader.has_message_available()
        seconds = time.perf_counter() - begun
        assert not more
        client.close()
        return seconds
