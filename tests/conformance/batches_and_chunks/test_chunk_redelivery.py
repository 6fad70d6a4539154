"""Chunked messages that come again, or move: nacks, timeouts, takeovers, dead letters, retries."""

from __future__ import annotations

from typing import Any

import pytest

from embeddedpulsar import (
    Client,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InitialPosition,
    MessageId,
)
from tests.conformance.chunks import LIMIT, log_of, payload, subscription_of

KINDS = [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared]
VALUE = payload(4 * LIMIT)


def subscribed(client: Client, kind: ConsumerType, name: str = "topic", **options: Any) -> Any:
    """A consumer from the first message on."""
    return client.subscribe(name, "sub", kind, initial_position=InitialPosition.Earliest, **options)


def publish(client: Client) -> None:
    """One chunked message."""
    with client.create_producer("topic", chunking_enabled=True) as producer:
        producer.send(VALUE, {"a": "b"}, "key", event_timestamp=7)


@pytest.mark.parametrize("kind", KINDS)
def test_a_negative_acknowledgement(clocked, kind):
    """It comes again, whole, after the delay, and counted where redeliveries are counted."""
    consumer = subscribed(clocked.client, kind, negative_ack_redelivery_delay_ms=1000)
    publish(clocked.client)
    consumer.negative_acknowledge(consumer.receive_nowait())
    assert consumer.receive_nowait() is None
    clocked.pass_ms(1100)
    message = consumer.receive_nowait()
    assert message.data() == VALUE
    assert message.redelivery_count() == (1 if kind.name in ("Shared", "KeyShared") else 0)
    consumer.acknowledge(message)
    consumer._acks.flush()
    assert subscription_of(consumer).mark_delete == log_of(clocked.client).last_position()


@pytest.mark.parametrize("kind", KINDS)
def test_an_acknowledgement_timeout(clocked, kind):
    """The same when the application forgets it."""
    consumer = subscribed(clocked.client, kind, unacked_messages_timeout_ms=10_000)
    publish(clocked.client)
    assert consumer.receive_nowait().data() == VALUE
    clocked.pass_ms(12_000)
    message = consumer.receive_nowait()
    assert message.data() == VALUE
    consumer.acknowledge(message)
    clocked.pass_ms(20_000)
    assert consumer.receive_nowait() is None


@pytest.mark.parametrize("kind", KINDS)
def test_redelivery_on_request(clocked, kind):
    """`redeliver_unacknowledged_messages` gives it again."""
    consumer = subscribed(clocked.client, kind)
    publish(clocked.client)
    assert consumer.receive_nowait().data() == VALUE
    consumer.redeliver_unacknowledged_messages()
    assert consumer.receive_nowait().data() == VALUE


@pytest.mark.parametrize("kind", KINDS[1:])
def test_the_next_consumer_gets_it(clocked, kind):
    """When its consumer leaves; what that one acknowledged late counts."""
    first = subscribed(clocked.client, kind)
    publish(clocked.client)
    assert first.receive_nowait().data() == VALUE
    second = subscribed(clocked.client, kind)
    first.close()
    assert second.receive_nowait().data() == VALUE


@pytest.mark.parametrize("kind", KINDS[2:])
@pytest.mark.parametrize("by", ["nack", "shown"])
def test_dead_letters(clocked, kind, by):
    """A chunked message that comes too often moves as one, though it exceeds the limit there, too."""
    policy = ConsumerDeadLetterPolicy(1, "dead", "dead-sub")
    options: dict[str, Any] = {"negative_ack_redelivery_delay_ms": 1000, "dead_letter_policy": policy}
    consumer = subscribed(clocked.client, kind, **options)
    publish(clocked.client)
    for _ in range(2):
        message = consumer.receive_nowait()
        assert message.data() == VALUE
        if by == "nack":
            consumer.negative_acknowledge(message)
        else:
            consumer.redeliver_unacknowledged_messages()
        clocked.pass_ms(1100)
    assert consumer.receive_nowait() is None
    clocked.pass_ms(1100)
    reader = clocked.client.create_reader("dead", MessageId.earliest)
    (letter,) = list(reader)
    assert letter.data() == VALUE
    assert (letter.partition_key(), letter.event_timestamp()) == ("key", 7)
    assert letter.properties()["a"] == "b"
    assert subscription_of(consumer).mark_delete == log_of(clocked.client).last_position()


def test_retry_letters(clocked):
    """`reconsume_later` sends it round by way of the retry topic."""
    consumer = subscribed(clocked.client, ConsumerType.Shared, enable_retry=True)
    publish(clocked.client)
    consumer.reconsume_later(consumer.receive_nowait(), 1000)
    assert consumer.receive_nowait() is None
    clocked.pass_ms(1000)
    message = consumer.receive_nowait()
    assert message.data() == VALUE
    assert message.properties()["RECONSUMETIMES"] == "1"
