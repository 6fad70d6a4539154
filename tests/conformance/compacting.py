"""Compacting a topic in a test, and what is read of it."""

from __future__ import annotations

from typing import Any

from embeddedpulsar import Admin, Client, MessageId
from embeddedpulsar._engine.platform import timing
from tests.conformance.chunks import begin_ledger

TOPIC = "topic"
Found = tuple[Any, str, bytes]


def compact(admin: Admin, topic: str = TOPIC) -> None:
    """Compact a topic, and wait for the end."""
    admin.topics().compact(topic)
    until = timing.perf_counter() + 60
    while admin.topics().compaction_status(topic).status == "RUNNING":
        assert timing.perf_counter() < until
    status = admin.topics().compaction_status(topic)
    assert status.status == "SUCCESS", status.last_error


def send(client: Client, *pairs: tuple[str | None, bytes | None], **options: Any) -> list[Any]:
    """Store messages, one by one: a key or None, and a value. Returns their ids."""
    with client.create_producer(TOPIC, **options) as producer:
        return [producer.send(value, partition_key=key) for key, value in pairs]  # type: ignore[arg-type]


def send_batch(client: Client, *pairs: tuple[str | None, bytes | None], **options: Any) -> list[Any]:
    """Store messages as one batch; returns their ids."""
    ids: list[Any] = []
    with client.create_producer(TOPIC, batching_enabled=True, **options) as producer:
        for key, value in pairs:
            note = lambda _, found: ids.append(found)  # noqa: E731
            producer.send_async(value, note, partition_key=key)  # type: ignore[arg-type]
        producer.flush()
    return ids


def next_ledger(client: Client) -> None:
    """What is sent from here on is in another ledger."""
    use = client._core.store.use_topic(TOPIC)
    try:
        begin_ledger(use.topic.ledger)
    finally:
        use.release()


def rest_of(reader: Any) -> list[Found]:
    """Id, key and payload of all messages that a reader still has."""
    found = []
    while reader.has_message_available():
        message = reader.read_next(1000)
        found.append((message.message_id(), message.partition_key(), message.data()))
    return found


def compacted(client: Client, start: Any = MessageId.earliest, **options: Any) -> list[Found]:
    """What a reader gets that reads compacted."""
    with client.create_reader(TOPIC, start, is_read_compacted=True, **options) as reader:
        return rest_of(reader)


def values(found: list[Found]) -> list[tuple[str, bytes]]:
    """Keys and payloads alone."""
    return [(key, value) for _, key, value in found]
