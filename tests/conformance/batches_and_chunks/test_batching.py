"""Batches: many messages in one entry, with the same ids and order for consumers."""

from __future__ import annotations

import pytest

from embeddedpulsar import BatchingType, CompressionType, MessageId, Result
from tests.conformance.conftest import numbers, receive_all


@pytest.mark.in_memory
def test_ids_share_the_entry_and_count_up(topic):
    """Messages of a batch have one entry and batch indexes from 0; sent and received ids agree."""
    sent = []
    consumer = topic.consumer()
    with topic.producer(batching_enabled=True, batching_max_messages=5) as producer:
        for i in range(5):
            producer.send_async(b"hello-%d" % i, lambda result, message_id: sent.append((result, message_id)))
    received = [message.message_id() for message in receive_all(consumer)]
    assert sent == [(Result.Ok, message_id) for message_id in received]
    assert [message_id.batch_index() for message_id in received] == [0, 1, 2, 3, 4]
    assert len({(one.ledger_id(), one.entry_id()) for one in received}) == 1


def test_callbacks_come_in_the_order_of_the_sends(topic):
    """Over many batches, callbacks keep the order of the sends."""
    order = []
    with topic.producer(batching_enabled=True, batching_max_messages=7) as producer:
        for i in range(100):
            producer.send_async(b"x", lambda result, message_id, i=i: order.append((i, message_id)))
    assert [i for i, _ in order] == list(range(100))
    ids = [message_id for _, message_id in order]
    assert ids == sorted(ids)


def test_the_publish_delay(topic):
    """Without a flush, a batch is published when its delay has passed."""
    consumer = topic.consumer()
    producer = topic.producer(batching_enabled=True, batching_max_publish_delay_ms=20)
    producer.send_async(b"hello-0", None)
    assert numbers([consumer.receive(5000)]) == [0]
    producer.close()


def test_close_does_not_flush(topic):
    """What waits in a batch when the producer closes fails with AlreadyClosed and is not stored."""
    results = []
    producer = topic.producer(batching_enabled=True, batching_max_publish_delay_ms=60_000)
    producer.send_async(b"hello-0", lambda result, message_id: results.append(result))
    producer.close()
    assert results == [Result.AlreadyClosed]
    assert receive_all(topic.consumer()) == []


def test_every_message_keeps_its_own_fields(topic):
    """Keys, properties, event times and sequence ids belong to the message, not to the batch."""
    consumer = topic.consumer()
    with topic.producer(batching_enabled=True, batching_max_publish_delay_ms=60_000) as producer:
        producer.send_async(b"0", None)
        producer.send_async(b"1", None, {"a": "b"}, "key", "order", 77, event_timestamp=5)
        producer.send_async(b"2", None)
    first, second, third = receive_all(consumer)
    for plain in (first, third):
        assert (plain.properties(), plain.partition_key(), plain.ordering_key()) == ({}, "", "")
        assert plain.event_timestamp() == 0
    assert (second.properties(), second.partition_key()) == ({"a": "b"}, "key")
    assert (second.ordering_key(), second.event_timestamp()) == ("order", 5)
    assert [message.sequence_id() for message in (first, second, third)] == [0, 77, 1]


def test_key_based_batching(topic):
    """With key-based batching an entry holds one key, and the order within each key is kept."""
    consumer = topic.consumer()
    with topic.producer(
        batching_enabled=True, batching_type=BatchingType.KeyBased, batching_max_publish_delay_ms=60_000
    ) as producer:
        for i in range(30):
            producer.send_async(b"hello-%d" % i, None, partition_key=f"key-{i % 3}")
    messages = receive_all(consumer)
    keys_of_entry: dict[int, set[str]] = {}
    for message in messages:
        keys_of_entry.setdefault(message.message_id().entry_id(), set()).add(message.partition_key())
    assert all(len(keys) == 1 for keys in keys_of_entry.values())
    for key in range(3):
        mine = [one for one in messages if one.partition_key() == f"key-{key}"]
        assert numbers(mine) == list(range(key, 30, 3))


@pytest.mark.parametrize("codec", list(CompressionType))
@pytest.mark.parametrize("batching", [False, True])
def test_compression(topic, codec, batching):
    """Whatever the codec, consumers see the same messages."""
    if codec in (CompressionType.ZSTD, CompressionType.SNAPPY):
        pytest.importorskip("cramjam", reason="the extra `compression` is not installed")
    consumer = topic.consumer()
    payload = b"abcdefgh" * 100
    with topic.producer(compression_type=codec, batching_enabled=batching) as producer:
        producer.send_async(payload, None, partition_key="key")
        producer.send(b"")
    first, second = receive_all(consumer)
    assert (first.data(), first.partition_key(), second.data()) == (payload, "key", b"")


def test_one_nack_brings_the_whole_batch_back(topic):
    """A batch comes back whole, because it is one entry."""
    topic.publish_batch(3)
    consumer = topic.consumer(negative_ack_redelivery_delay_ms=100)
    messages = receive_all(consumer)
    consumer.acknowledge(messages[0])
    consumer.negative_acknowledge(messages[1])
    again = [consumer.receive(5000) for _ in range(3)]
    assert numbers(again) == [0, 1, 2]


@pytest.mark.in_memory
def test_a_batch_is_acknowledged_when_all_its_messages_are(topic):
    """Without batch index acknowledgement, a partly acknowledged batch comes back whole."""
    topic.publish_batch(3)
    with topic.consumer() as consumer:
        first, second, _ = receive_all(consumer)
        consumer.acknowledge(first)
        consumer.acknowledge(second.message_id())
    with topic.consumer() as consumer:
        messages = receive_all(consumer)
        assert numbers(messages) == [0, 1, 2]
        for message in (messages[2], messages[0], messages[1].message_id()):
            consumer.acknowledge(message)
    assert receive_all(topic.consumer()) == []


def test_a_synchronous_send_does_not_wait_for_the_delay(topic):
    """send() publishes its batch at once, with what waits in it."""
    consumer = topic.consumer()
    producer = topic.producer(batching_enabled=True, batching_max_publish_delay_ms=60_000)
    producer.send_async(b"hello-0", None)
    assert producer.send(b"hello-1").batch_index() == 1
    assert numbers(receive_all(consumer)) == [0, 1]
    producer.close()


def test_a_batch_may_begin_in_the_middle(topic):
    """A reader that starts behind message 1 of a batch continues with message 2 of it."""
    topic.publish_batch(4)
    ids = [message.message_id() for message in topic.client.create_reader("topic", MessageId.earliest)]
    with topic.client.create_reader("topic", ids[1]) as reader:
        assert numbers(list(reader)) == [2, 3]


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.LZ4])
@pytest.mark.parametrize("kind", list(BatchingType))
def test_options_are_those_of_the_call(topic, kind, codec):
    """Whatever becomes of the dict afterwards, however large the message is, whatever its batch holds."""
    options = {"batching_enabled": True, "batching_type": kind, "compression_type": codec}
    sizes = (1, 300, 5_000, 200_000)
    expected, properties = [], {}
    consumer = topic.consumer()
    with topic.producer(**options, batching_max_publish_delay_ms=60_000) as producer:
        for number in range(40):
            properties.clear()
            if number % 3:
                properties.update(number=str(number), тема="ж" * (number % 5))
            key = f"key-{number % 4}" if number % 2 else None
            more = {"event_timestamp": number} if number % 7 == 0 else {}
            payload = b"%d " % number + b"x" * sizes[number % len(sizes)]
            producer.send_async(payload, None, properties, key, **more)
            expected.append((number, dict(properties), key or "", more.get("event_timestamp", 0)))
        properties["late"] = "change"
        producer.flush()
    received = [
        (int(m.data().split()[0]), m.properties(), m.partition_key(), m.event_timestamp())
        for m in receive_all(consumer)
    ]
    assert sorted(received, key=lambda one: one[0]) == expected
