"""Chunked messages in a store with small entries, and what a topic holds of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from embeddedpulsar.client.arguments import Options
from embeddedpulsar.message_id import BEFORE_FIRST

LIMIT = 1000


def use_small_entries(store_path: Path, limit: int = LIMIT) -> None:
    """Have a store of which no entry is larger than ``limit`` bytes. Before it is opened."""
    store_path.mkdir(exist_ok=True)
    (store_path / "broker.conf").write_text(f"maxMessageSize={limit}\n")


def payload(size: int, seed: int = 0) -> bytes:
    """Bytes that do not compress, and differ everywhere."""
    return random.Random(seed).randbytes(size)


def log_of(client: Any, name: str = "topic") -> Any:
    """The managed ledger of a topic that is in use."""
    use = client._core.use_topic(name)
    try:
        return use.topic.ledger
    finally:
        use.release()


def begin_ledger(log: Any) -> None:
    """Begin a ledger now, unless the last one is empty."""
    log.roll()


def subscription_of(consumer: Any) -> Any:
    """The subscription of a consumer."""
    return consumer._core.session.subscription


class HalfSent:
    """A message of which the parts are sent one by one, as if the producer were slow, or died.

    Attributes:
        out: the message.
    """

    def __init__(
        self, producer: Any, value: bytes, options: Options | None = None, sequence_id: int = -1
    ) -> None:
        self._producer = producer  # one that is dropped is closed
        publisher = producer._publisher
        self._queue = publisher.queue
        self._log = publisher.session.ledger
        if sequence_id < 0:
            sequence_id = publisher.queue.ids.following
            publisher.queue.ids.following += 1
        self.out = publisher.queue.encoder.encode_one(value, options, sequence_id).chunks
        self._parts = list(self.out.parts())

    @property
    def left(self) -> int:
        """Parts to be sent before the last."""
        return len(self._parts) - len(self.out.earlier)

    def send(self, number: int = 1) -> HalfSent:
        """Send the next parts; never the last."""
        for _ in range(number):
            encoded = self._parts[len(self.out.earlier)]
            ledger, entry, _, _ = self._log.append_nowait(encoded, self._queue)
            self.out.earlier.append((ledger, entry))
        return self

    def finish(self) -> tuple[int, int]:
        """Send the rest."""
        self.send(self.left)
        ledger, entry, _, _ = self._log.append_nowait(self.out.finish(), self._queue)
        return ledger, entry


def entries_in(client: Any, name: str = "topic") -> list[Any]:
    """Every entry of a topic, parts of messages included."""
    cursor = log_of(client, name).cursor(BEFORE_FIRST, inclusive=False)
    found = []
    while views := cursor.read(1000, 1000, 1 << 20):
        found += views
    return found
