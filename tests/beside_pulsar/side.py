"""What a scenario is given: a client, an administration and a namespace of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import pulsar

COMMON = frozenset(dir(pulsar.exceptions))
WAITING_SECONDS = 20.0


class Refused(Exception):
    """An operation of the administration failed: ``missing`` (404) or ``refused`` (another status)."""


class Administration(Protocol):
    """The operations of administration that scenarios use. Values are those of Pulsar's JSON."""

    def create_namespace(self, namespace: str) -> None: ...

    def topics(self, namespace: str) -> list[str]: ...

    def create_topic(self, topic: str, partitions: int = 0) -> None: ...

    def delete_topic(self, topic: str, force: bool = False) -> None: ...

    def terminate(self, topic: str) -> None: ...

    def stats(self, topic: str) -> dict[str, Any]: ...

    def partitioned_stats(self, topic: str) -> dict[str, Any]: ...

    def internal_stats(self, topic: str) -> dict[str, Any]: ...

    def create_subscription(self, topic: str, name: str) -> None: ...

    def delete_subscription(self, topic: str, name: str, force: bool = False) -> None: ...

    def skip(self, topic: str, name: str, count: int) -> None: ...

    def skip_all(self, topic: str, name: str) -> None: ...

    def expire(self, topic: str, name: str, seconds: int) -> None: ...

    def reset_to_time(self, topic: str, name: str, timestamp: int) -> None: ...

    def peek(self, topic: str, name: str, number: int) -> bytes: ...

    def examine(self, topic: str, end: str, number: int) -> bytes: ...

    def id_by_time(self, topic: str, timestamp: int) -> tuple[int, int]: ...

    def compact(self, topic: str) -> None: ...

    def set_policy(self, owner: str, name: str, value: Any) -> None: ...

    def get_policy(self, owner: str, name: str) -> Any: ...

    def remove_policy(self, owner: str, name: str) -> None: ...

    def close(self) -> None: ...


class Side:
    """embeddedpulsar or Pulsar, as a scenario uses it.

    Args:
        module: of the client.
        client: a client.
        admin: its administration.
        namespace: one that only this scenario uses; it exists.
    """

    def __init__(self, module: Any, client: Any, admin: Administration, namespace: str) -> None:
        self.pulsar = module
        self.client = client
        self.admin = admin
        self.namespace = namespace

    def close(self) -> None:
        """Close the client and the administration."""
        self.client.close()
        self.admin.close()

    def topic(self, name: str, domain: str = "persistent") -> str:
        """The full name of a topic of the scenario."""
        return f"{domain}://{self.namespace}/{name}"

    def short(self, topic: str) -> str:
        """A name without its namespace, so that the two sides can be compared."""
        return topic.replace(self.namespace, "NAMESPACE")

    def publish(self, topic: str, *payloads: Any, key: str | None = None) -> list[Any]:
        """Send messages one by one; returns their ids."""
        producer = self.client.create_producer(topic, send_timeout_millis=5000)
        try:
            return [producer.send(payload, partition_key=key) for payload in payloads]
        finally:
            producer.close()

    def publish_batch(self, topic: str, *pairs: tuple[str | None, bytes]) -> None:
        """Send keys and payloads as one batch."""
        options = {"batching_enabled": True, "batching_max_publish_delay_ms": 5000}
        producer = self.client.create_producer(topic, **options)
        for key, payload in pairs:
            producer.send_async(payload, lambda *_: None, partition_key=key)
        producer.flush()
        producer.close()

    def received(self, consumer: Any, acknowledge: bool = False, wait_ms: int = 700) -> list[bytes]:
        """The payloads that a consumer receives, until none came for a while."""
        found = []
        while True:
            try:
                message = consumer.receive(wait_ms)
            except self.pulsar.Timeout:
                return found
            found.append(message.data())
            if acknowledge:
                consumer.acknowledge(message)

    def backlog(self, topic: str, name: str) -> int:
        """The messages of a subscription that are not acknowledged."""
        return int(self.admin.stats(topic)["subscriptions"][name]["msgBacklog"])


def outcome(call: Callable[..., Any], *args: Any, **options: Any) -> str:
    """What became of a call: ``ok``, how the administration refused it, or that class of the exception that
    pulsar-client has."""
    try:
        call(*args, **options)
    except Refused as error:
        return str(error)
    except Exception as error:
        return next(one.__name__ for one in type(error).__mro__ if one.__name__ in COMMON or one is Exception)
    return "ok"


def pause(seconds: float) -> None:
    """Wait by the clock: the broker is another process, and its clock cannot be set."""
    threading.Event().wait(seconds)


def wait_for(condition: Callable[[], Any], seconds: float = WAITING_SECONDS) -> bool:
    """Whether a condition comes true in that time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        pause(0.05)
    return True
