"""Several consumers of one subscription, and what a test does with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def take_turns(consumers: Sequence[Any], most: int = 10_000) -> list[list[Any]]:
    """Let the consumers receive one message each in turn until none gets any; the messages of each."""
    taken: list[list[Any]] = [[] for _ in consumers]
    had_any = True
    while had_any:
        had_any = False
        for consumer, messages in zip(consumers, taken, strict=True):
            message = consumer.receive_nowait() if len(messages) < most else None
            if message is not None:
                messages.append(message)
                had_any = True
    return taken


def take(consumer: Any, most: int = 10_000) -> list[Any]:
    """What one consumer can have now, without waiting and without acknowledging."""
    return take_turns([consumer], most)[0]


def acknowledge_all(consumer: Any, messages: Iterable[Any]) -> None:
    """Acknowledge messages one by one."""
    for message in messages:
        consumer.acknowledge(message)


def write_settings(store_path: Path, **settings: object) -> None:
    """Write the broker.conf of a store that is not open yet."""
    store_path.mkdir(mode=0o700, exist_ok=True)
    lines = [f"{name}={str(value).lower()}\n" for name, value in settings.items()]
    (store_path / "broker.conf").write_text("".join(lines), "utf-8")
