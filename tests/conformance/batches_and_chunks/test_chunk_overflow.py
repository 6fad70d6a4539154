"""More incomplete messages than ``max_pending_chunked_message``: the oldest is dropped."""

from __future__ import annotations

from typing import Any

import pytest

from embeddedpulsar import Client, ConsumerType, InitialPosition
from tests.conformance.chunks import LIMIT, HalfSent, log_of, payload, subscription_of

KINDS = [ConsumerType.Exclusive, ConsumerType.Shared]


def subscribed(client: Client, kind: ConsumerType, most: int, **options: Any) -> Any:
    """A consumer that bears so many incomplete messages."""
    return client.subscribe(
        "topic",
        "sub",
        kind,
        initial_position=InitialPosition.Earliest,
        max_pending_chunked_message=most,
        **options,
    )


def interleaved(client: Client, number: int) -> list[HalfSent]:
    """So many messages, each begun by a producer of its own before any of them is finished."""
    producers = [client.create_producer("topic", chunking_enabled=True) for _ in range(number)]
    begun = [HalfSent(one, payload(3 * LIMIT, seed)) for seed, one in enumerate(producers)]
    for one in begun:
        one.send(1)
    return begun


def drained(consumer: Any) -> list[int]:
    """The seeds of the messages that are there, acknowledged."""
    seeds = {payload(3 * LIMIT, seed): seed for seed in range(12)}
    found = []
    while (message := consumer.receive_nowait()) is not None:
        found.append(seeds[message.data()])
        consumer.acknowledge(message)
    consumer._acks.flush()
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("most", "number"), [(10, 10), (0, 12), (1, 1)])
def test_so_many_are_borne(clocked, kind, most, number):
    """Up to the limit all are delivered; 0 is no limit."""
    consumer = subscribed(clocked.client, kind, most)
    for one in interleaved(clocked.client, number):
        one.finish()
    assert sorted(drained(consumer)) == list(range(number))


@pytest.mark.parametrize("kind", KINDS)
def test_the_oldest_is_left_alone(clocked, kind):
    """By default it is neither delivered now nor acknowledged: it comes when everything comes again."""
    consumer = subscribed(clocked.client, kind, 2)
    begun = interleaved(clocked.client, 3)
    for one in begun:
        one.finish()
    assert drained(consumer) == [1, 2]
    assert subscription_of(consumer).mark_delete.entry_id == -1
    assert subscription_of(consumer).backlog() == 1
    consumer.close()
    consumer = subscribed(clocked.client, kind, 2)
    assert drained(consumer) == [0]
    assert subscription_of(consumer).mark_delete == log_of(clocked.client).last_position()


@pytest.mark.parametrize("kind", KINDS)
def test_or_acknowledged(clocked, kind):
    """With ``auto_ack_oldest_chunked_message_on_queue_full`` it never comes."""
    consumer = subscribed(clocked.client, kind, 2, auto_ack_oldest_chunked_message_on_queue_full=True)
    for one in interleaved(clocked.client, 4):
        one.finish()
    assert drained(consumer) == [2, 3]
    assert subscription_of(consumer).mark_delete == log_of(clocked.client).last_position()
    consumer.close()
    assert drained(subscribed(clocked.client, kind, 2)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_left_alone_it_comes_after_the_timeout(clocked, kind):
    """An acknowledgement timeout covers it, though the application never saw it."""
    consumer = subscribed(clocked.client, kind, 1, unacked_messages_timeout_ms=10_000)
    for one in interleaved(clocked.client, 2):
        one.finish()
    assert drained(consumer) == [1]
    clocked.pass_ms(11_000)
    assert drained(consumer) == [0]


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_was_dropped_and_never_ends_expires(clocked, kind):
    """Its parts do not hold back the subscription for ever."""
    consumer = subscribed(clocked.client, kind, 1)
    interleaved(clocked.client, 2)
    assert drained(consumer) == []
    clocked.pass_ms(60_000)
    assert subscription_of(consumer).mark_delete == log_of(clocked.client).last_position()


def test_messages_one_after_the_other_do_not_count(clocked):
    """Only incomplete ones do: any number may follow each other, or wait for acknowledgement."""
    consumer = subscribed(clocked.client, ConsumerType.Exclusive, 1)
    producer = clocked.client.create_producer("topic", chunking_enabled=True)
    for seed in range(5):
        producer.send(payload(3 * LIMIT, seed))
    assert drained(consumer) == list(range(5))
