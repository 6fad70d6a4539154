"""Topics filled before anything is measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

TOPIC = "prepared"


def keep_everything(root: Path) -> None:
    """Let nothing be trimmed in the store that is made in ``root``: what is measured may not depend on it."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    (root / "broker.conf").write_text(
        "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n", "utf-8"
    )


def fill(root: Path, messages: int, size: int, batch: int = 1000) -> None:
    """Publish `messages` payloads of `size` random bytes to TOPIC of a new store, in batches. All stay."""
    from embeddedpulsar import Client

    keep_everything(root)
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
