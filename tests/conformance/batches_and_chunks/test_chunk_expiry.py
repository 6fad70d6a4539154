"""Parts of a message whose last part never comes: not delivered, and gone after a minute."""

from __future__ import annotations

from typing import Any

import pytest

from embeddedpulsar import Client, ConsumerType, InitialPosition
from tests.conformance.chunks import LIMIT, HalfSent, log_of, payload, subscription_of

TYPES = [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared]


def subscribed(client: Client, kind: ConsumerType = ConsumerType.Exclusive, **options: Any) -> Any:
    """A consumer from the first message on."""
    return client.subscribe("topic", "sub", kind, initial_position=InitialPosition.Earliest, **options)


def drained(consumer: Any) -> list[bytes]:
    """The payloads that are there, acknowledged."""
    found = []
    while (message := consumer.receive_nowait()) is not None:
        found.append(message.data())
        consumer.acknowledge(message)
    consumer._acks.flush()
    return found


def chunking(client: Client, **options: Any) -> Any:
    """A producer that chunks."""
    return client.create_producer("topic", chunking_enabled=True, **options)


@pytest.mark.parametrize("kind", TYPES)
def test_after_a_minute_they_are_acknowledged(clocked, kind):
    """Not a millisecond earlier; meanwhile nothing of them shows, and other messages come and go."""
    consumer = subscribed(clocked.client, kind)
    producer = chunking(clocked.client)
    HalfSent(producer, payload(3 * LIMIT)).send(2)
    producer.send(b"small")
    assert drained(consumer) == [b"small"]
    subscription = subscription_of(consumer)
    assert subscription.statistics().backlog == 0
    clocked.pass_ms(59_999)
    assert subscription.mark_delete.entry_id == -1
    clocked.pass_ms(1)
    assert subscription.mark_delete == log_of(clocked.client).last_position()
    assert drained(consumer) == []


def test_the_time_can_be_chosen(clocked):
    """``expire_time_of_incomplete_chunked_message_ms``; 0 waits for ever."""
    consumer = subscribed(clocked.client, expire_time_of_incomplete_chunked_message_ms=500)
    patient = clocked.client.subscribe(
        "topic",
        "patient",
        initial_position=InitialPosition.Earliest,
        expire_time_of_incomplete_chunked_message_ms=0,
    )
    HalfSent(chunking(clocked.client), payload(3 * LIMIT)).send(1)
    assert drained(consumer) == drained(patient) == []
    clocked.pass_ms(500)
    assert subscription_of(consumer).mark_delete.entry_id == 0
    clocked.pass_ms(10**7)
    assert subscription_of(patient).mark_delete.entry_id == -1


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_a_message_that_is_complete_and_not_read_does_not_expire(clocked, kind):
    """An application that pauses for an hour between the parts and the end of a message loses nothing."""
    consumer = subscribed(clocked.client, kind, receiver_queue_size=1)
    producer = chunking(clocked.client)
    slow = HalfSent(producer, payload(3 * LIMIT)).send(2)
    producer.send(b"small")
    message = consumer.receive_nowait()
    slow.finish()
    clocked.pass_ms(3_600_000)
    assert subscription_of(consumer).mark_delete.entry_id == -1
    consumer.acknowledge(message)
    assert drained(consumer) == [payload(3 * LIMIT)]
    assert subscription_of(consumer).mark_delete == log_of(clocked.client).last_position()


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_one_that_is_delivered_and_not_acknowledged_does_not_expire(clocked, kind):
    """However long the application takes."""
    consumer = subscribed(clocked.client, kind)
    chunking(clocked.client).send(payload(3 * LIMIT))
    message = consumer.receive_nowait()
    clocked.pass_ms(3_600_000)
    assert subscription_of(consumer).mark_delete.entry_id == -1
    consumer.close()
    consumer = subscribed(clocked.client, kind)
    assert consumer.receive_nowait().data() == message.data() == payload(3 * LIMIT)


def test_a_last_part_that_comes_late_is_not_lost(clocked):
    """The producer was slow, not dead: what it finishes after its parts expired is still delivered."""
    consumer = subscribed(clocked.client)
    slow = HalfSent(chunking(clocked.client), payload(3 * LIMIT)).send(2)
    assert drained(consumer) == []
    clocked.pass_ms(60_000)
    slow.finish()
    assert drained(consumer) == [payload(3 * LIMIT)]
    assert subscription_of(consumer).mark_delete == log_of(clocked.client).last_position()


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_parts_that_a_consumer_read_who_is_gone(clocked, kind):
    """Whoever is left looks after them."""
    reader, other = subscribed(clocked.client, kind), subscribed(clocked.client, kind)
    producer = chunking(clocked.client)
    HalfSent(producer, payload(3 * LIMIT)).send(2)
    assert reader.receive_nowait() is None
    reader.close()
    assert other.receive_nowait() is None
    clocked.pass_ms(60_000)
    assert subscription_of(other).mark_delete.entry_id == 1


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_parts_that_another_consumer_has_just_read(clocked, kind):
    """They are as old as they are, not as old as the parts for which this consumer's timer runs."""
    first = subscribed(clocked.client, kind)
    HalfSent(chunking(clocked.client), payload(3 * LIMIT)).send(2)
    assert first.receive_nowait() is None
    clocked.pass_ms(59_000)
    second = subscribed(clocked.client, kind)
    late = HalfSent(chunking(clocked.client), payload(3 * LIMIT)).send(2)
    assert second.receive_nowait() is None
    assert first.receive_nowait() is None
    clocked.pass_ms(1_000)
    assert subscription_of(second).mark_delete.entry_id == 1
    late.finish()
    assert drained(second) + drained(first) == [payload(3 * LIMIT)]


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_a_consumer_that_comes_later(clocked, kind):
    """The minute begins with the consumer that sees them."""
    HalfSent(chunking(clocked.client), payload(3 * LIMIT)).send(2)
    first = subscribed(clocked.client, kind)
    assert first.receive_nowait() is None
    clocked.pass_ms(30_000)
    first.close()
    second = subscribed(clocked.client, kind)
    assert second.receive_nowait() is None
    clocked.pass_ms(59_999)
    assert subscription_of(second).mark_delete.entry_id == -1
    clocked.pass_ms(1)
    assert subscription_of(second).mark_delete.entry_id == 1


def test_a_message_begun_anew_under_its_sequence_id(clocked):
    """A producer that restarts may send the same sequence id again: the new parts make a message, the old
    ones expire."""
    consumer = subscribed(clocked.client)
    producer = chunking(clocked.client, producer_name="me")
    HalfSent(producer, payload(3 * LIMIT), sequence_id=7).send(2)
    HalfSent(producer, payload(3 * LIMIT), sequence_id=7).finish()
    assert drained(consumer) == [payload(3 * LIMIT)]
    assert subscription_of(consumer).mark_delete.entry_id == -1
    clocked.pass_ms(60_000)
    assert subscription_of(consumer).mark_delete == log_of(clocked.client).last_position()


def test_only_the_final_part_was_acknowledged(clocked):
    """Parts whose message is acknowledged (by somebody who could not read it) do not stay for ever."""
    consumer = subscribed(clocked.client, ConsumerType.Shared)
    last = HalfSent(chunking(clocked.client), payload(3 * LIMIT)).finish()
    consumer._core.session.attachment._acknowledge_chunks([last])
    assert consumer.receive_nowait() is None
    assert subscription_of(consumer).mark_delete.entry_id == -1
    clocked.pass_ms(60_000)
    assert subscription_of(consumer).mark_delete == log_of(clocked.client).last_position()


def test_a_reader_passes_them(clocked):
    """Readers acknowledge nothing and need not wait."""
    from embeddedpulsar import MessageId

    producer = chunking(clocked.client)
    HalfSent(producer, payload(3 * LIMIT)).send(2)
    reader = clocked.client.create_reader("topic", MessageId.earliest)
    assert not reader.has_message_available()
    producer.send(b"small")
    assert reader.read_next(0).data() == b"small"
