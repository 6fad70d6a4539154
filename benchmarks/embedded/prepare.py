"""Topics filled before anything is measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

TOPIC = "prepared"


def fill(root: Path, messages: int, size: int, batch: int = 1000) -> None:
    """Publish `messages` payloads of `size` random bytes to TOPIC of a new store, in batches."""
    from embeddedpulsar import Client

    client = Client(root)
    producer: Any = client.create_producer(
        TOPIC, batching_enabled=batch > 1, batching_max_messages=max(2, batch), max_pending_messages=0
    )
    noise = os.urandom(size * 1000)
    payloads = [noise[i * size : (i + 1) * size] for i in range(1000)]
    send = producer.send_async
    for i in range(messages):
        send(payloads[i % 1000], None)
    producer.flush()
    client.close()
