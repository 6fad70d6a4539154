"""A topic whose lock somebody has, and what is in it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from embeddedpulsar import Client, MessageId, Result
from tests.support.clients import stored


@contextmanager
def held(client: Client, topic: str = "topic", leave: threading.Event | None = None) -> Iterator[None]:
    """Stay in the lock of a topic, as another process would, until the end of the block, or ``leave``."""
    lock = client._core.store.use_topic(topic).topic.ledger.lock
    inside, leave = threading.Event(), leave or threading.Event()

    def hold() -> None:
        try:
            lock.acquire()
            inside.set()
            leave.wait(60)
        finally:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(10)
    try:
        yield
    finally:
        leave.set()
        thread.join()


def payloads(client: Client, topic: str = "topic") -> list[bytes]:
    """The payloads in a topic."""
    return [message.data() for message in stored(client, topic)]


def entries(client: Client, topic: str = "topic") -> list[list[bytes]]:
    """The payloads in a topic, entry by entry."""
    messages = stored(client, topic)
    places = groupby(messages, lambda message: message.message_id().entry_id())
    return [[message.data() for message in group] for _, group in places]


class Answers(list[tuple[Any, Result, MessageId]]):
    """Callbacks that remember for what, and with what, they were called."""

    def of(self, name: Any) -> Any:
        """The callback of one message."""
        return lambda result, message_id: self.append((name, result, message_id))

    @property
    def results(self) -> list[tuple[Any, Result]]:
        """What was answered to which message, in the order of the answers."""
        return [(name, result) for name, result, _ in self]
