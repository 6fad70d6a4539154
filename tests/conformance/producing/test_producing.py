"""Producers: names, sequence ids, sizes, fields, access."""

from __future__ import annotations

import threading
import time

import pytest

from embeddedpulsar import (
    Client,
    MessageId,
    MessageTooBig,
    ProducerAccessMode,
    ProducerBusy,
    ProducerFenced,
    Result,
    StringSchema,
    Timeout,
)
from tests.conformance.conftest import receive_all


def test_automatic_names_differ(topic, store_url):
    """Without a name each producer gets one of its own, across clients."""
    with Client(store_url) as other:
        names = [topic.producer().producer_name() for _ in range(3)]
        names.append(other.create_producer("topic").producer_name())
        assert len(set(names)) == 4
        assert all(name.startswith("standalone-") for name in names)


def test_a_name_is_taken_once(topic, store_url):
    """A second living producer of the same name is refused; afterwards the name is free."""
    first = topic.producer(producer_name="me")
    with Client(store_url) as other:
        for client in (topic.client, other):
            with pytest.raises(ProducerBusy):
                client.create_producer("topic", producer_name="me")
        assert other.create_producer("another", producer_name="me").producer_name() == "me"
    first.close()
    assert topic.producer(producer_name="me").producer_name() == "me"


def test_a_dropped_producer_frees_its_name(topic):
    """A producer that is dropped without close does not keep its name."""
    topic.producer(producer_name="me")
    assert topic.producer(producer_name="me").producer_name() == "me"


@pytest.mark.in_memory
def test_fields_of_a_message(topic):
    """What was sent with a message is received with it."""
    consumer = topic.consumer(schema=StringSchema())
    with topic.producer(schema=StringSchema(), producer_name="me") as producer:
        message_id = producer.send("text", {"a": "b", "ä": "ö"}, "key", "order", 7, event_timestamp=1234)
    (message,) = receive_all(consumer)
    assert (message.value(), message.data()) == ("text", b"text")
    assert message.properties() == {"a": "b", "ä": "ö"}
    assert (message.partition_key(), message.ordering_key()) == ("key", "order")
    assert (message.event_timestamp(), message.sequence_id()) == (1234, 7)
    assert (message.producer_name(), message.topic_name()) == ("me", "persistent://public/default/topic")
    assert message.message_id() == message_id
    assert message.publish_timestamp() > 1_600_000_000_000
    assert (message.schema_version(), message.encryption_context()) == ("\0" * 8, None)


def test_last_sequence_id(topic):
    """-1 or the initial id before the first message, then the last id stored, whichever way it was sent."""
    assert topic.producer().last_sequence_id() == -1
    producer = topic.producer(initial_sequence_id=9)
    assert producer.last_sequence_id() == 9
    producer.send(b"x")
    assert producer.last_sequence_id() == 10
    producer.send_async(b"x", None)
    producer.flush()
    assert producer.last_sequence_id() == 11


@pytest.mark.parametrize("batching", [False, True])
def test_message_too_big(topic, batching):
    """Beyond 5 MiB a message is refused; just below it is stored and received whole."""
    consumer = topic.consumer()
    results = []
    with topic.producer(batching_enabled=batching) as producer:
        with pytest.raises(MessageTooBig):
            producer.send(b"x" * 10 * 1024 * 1024)
        producer.send_async(b"x" * 5_242_880, lambda result, message_id: results.append(result))
        payload = bytes(range(256)) * 20_480
        producer.send(payload[32:])  # room for a name, and for what else Pulsar would store with it
    assert results == [Result.MessageTooBig]
    assert [message.data() for message in receive_all(consumer)] == [payload[32:]]


def test_exclusive_access(topic):
    """An Exclusive producer has the topic alone: others are refused, and it is refused where others are."""
    exclusive = topic.producer(access_mode=ProducerAccessMode.Exclusive)
    with pytest.raises(ProducerBusy):
        topic.producer()
    with pytest.raises(ProducerFenced):
        topic.producer(access_mode=ProducerAccessMode.Exclusive)
    exclusive.close()
    shared = topic.producer()
    with pytest.raises(ProducerFenced):
        topic.producer(access_mode=ProducerAccessMode.Exclusive)
    shared.close()


def test_exclusive_access_with_fencing(topic):
    """ExclusiveWithFencing throws the others out: their next send fails with ProducerFenced."""
    consumer = topic.consumer()
    shared = topic.producer()
    shared.send(b"before")
    winner = topic.producer(access_mode=ProducerAccessMode.ExclusiveWithFencing)
    results = []
    with pytest.raises(ProducerFenced):
        shared.send(b"after")
    shared.send_async(b"after", lambda result, message_id: results.append(result))
    winner.send(b"winner")
    assert [message.data() for message in receive_all(consumer)] == [b"before", b"winner"]
    shared.close()
    assert results == [Result.ProducerFenced]


@pytest.mark.in_memory
@pytest.mark.parametrize("durability", ["process", "interval", "flush"])
def test_levels_of_durability(topic, durability):
    """Messages of every level are the same to consumers."""
    consumer = topic.consumer()
    results = []
    with topic.producer(durability=durability) as single:
        single.send(b"0")
        single.send_async(b"1", lambda result, message_id: results.append(result))
        single.flush()
    with topic.producer(durability=durability, batching_enabled=True) as batches:
        batches.send_async(b"2", lambda result, message_id: results.append(result))
        batches.send(b"3")
    assert [message.data() for message in receive_all(consumer)] == [b"0", b"1", b"2", b"3"]
    assert results == [Result.Ok, Result.Ok]


def test_the_interval_reaches_the_log(store_url):
    """durability_interval_ms is the time between flushes of every topic of the store."""
    with Client(store_url, durability="interval", durability_interval_ms=25) as client:
        assert client._core.store.use_topic("topic").topic.ledger.options.interval_ms == 25


def test_a_name_that_is_too_long_takes_no_place(topic):
    """A name beyond 1,024 bytes is refused, and leaves no producer behind."""
    with pytest.raises(ValueError, match="1024 bytes"):
        topic.producer(producer_name="x" * 2000)
    assert topic.producer(access_mode=ProducerAccessMode.Exclusive).is_connected()


def test_send_timeout(topic):
    """A send that waits longer than send_timeout_millis for a locked topic fails with Timeout."""
    producer = topic.producer(send_timeout_millis=100)
    producer.send(b"before")
    lock = topic.client._core.store.use_topic("topic").topic.ledger.lock
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            lock.acquire()
            held.set()
            release.wait(60)
        finally:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    begun = time.monotonic()
    with pytest.raises(Timeout):
        producer.send(b"never")
    assert 0.1 <= time.monotonic() - begun < 5
    release.set()
    thread.join()
    producer.send(b"after")
    reader = topic.client.create_reader("topic", MessageId.earliest)
    assert [message.data() for message in reader] == [b"before", b"after"]
