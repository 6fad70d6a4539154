"""What tests do with clients all the time: send, subscribe from the beginning, see what is stored."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import Event
from typing import Any

from embeddedpulsar import Client, InitialPosition, MessageId

_NEVER = Event()


def send(client: Client, topic: str, *payloads: bytes | str, **options: Any) -> list[MessageId]:
    """Send payloads one by one through a producer that is closed then; the options are those of `send`."""
    with client.create_producer(topic) as producer:
        return [
            producer.send(payload.encode() if isinstance(payload, str) else payload, **options)
            for payload in payloads
        ]


def subscribe(client: Client, topics: Any, name: str = "sub", **options: Any) -> Any:
    """A consumer of a topic, a list or a pattern, from the earliest message on unless told otherwise."""
    options.setdefault("initial_position", InitialPosition.Earliest)
    return client.subscribe(topics, name, **options)


def stored(client: Client, topic: str) -> list[Any]:
    """All messages of a topic, as a reader gets them."""
    with client.create_reader(topic, MessageId.earliest) as reader:
        return list(reader)


def present(consumer: Any) -> list[Any]:
    """The messages that a consumer has for the asking, without a wait."""
    return list(iter(consumer.receive_nowait, None))


def texts(messages: Iterable[Any]) -> list[str]:
    """The payloads of messages as texts, sorted."""
    return sorted(message.data().decode() for message in messages)


def store_of(client: Any) -> Any:
    """The open store of a client."""
    return client._core.store


def refresh_topics(client: Any) -> None:
    """Let a client notice now which topics and partitions there are, which it does from time to time."""
    client._core.partition_watch.report_changes()


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Return when a condition holds that other threads or processes bring about."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it did not come to that within {seconds} s"
        _NEVER.wait(0.001)
