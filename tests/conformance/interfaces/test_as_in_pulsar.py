"""Small things that ``pulsar-client`` with a broker does so, and that programs may depend on."""

from __future__ import annotations

import asyncio
import gc
from datetime import timedelta
from typing import Any

import pytest

import embeddedpulsar.asyncio as asyncio_client
from embeddedpulsar import (
    AlreadyClosed,
    Client,
    ConsumerBusy,
    ConsumerType,
    InitialPosition,
    InvalidConfiguration,
    MessageId,
    ProducerAccessMode,
    ProducerFenced,
    RegexSubscriptionMode,
    Timeout,
)
from tests.conformance.conftest import Topic, numbers, receive_all

FENCING = ProducerAccessMode.ExclusiveWithFencing


@pytest.mark.parametrize("batching", [False, True])
def test_a_shared_producer_comes_back(topic: Topic, batching: bool):
    """Fenced out, it fails and is not connected; once the other one has gone it works as before."""
    producer = topic.producer(producer_name="till", batching_enabled=batching)
    producer.send(b"hello-0")
    for turn in (1, 2):
        thief = topic.producer(access_mode=FENCING)
        assert not producer.is_connected()
        with pytest.raises(ProducerFenced):
            producer.send(b"lost")
        thief.send(b"hello-%d" % (2 * turn - 1))
        thief.close()
        assert producer.is_connected()
        producer.send(b"hello-%d" % (2 * turn))
    assert producer.producer_name() == "till"
    assert numbers(receive_all(topic.consumer())) == [0, 1, 2, 3, 4]
    producer.close()
    assert not producer.is_connected()
    topic.producer(access_mode=ProducerAccessMode.Exclusive).close()  # nothing of it is left


def test_a_shared_producer_of_partitions_comes_back(client: Client):
    """All its partitions do."""
    client._core.store.topics.create_partitioned("parts", 2)
    producer = client.create_producer("parts")
    thief = client.create_producer("parts", access_mode=FENCING)
    assert not producer.is_connected()
    with pytest.raises(ProducerFenced):
        producer.send(b"lost")
    thief.close()
    for _ in range(4):
        producer.send(b"stored")
    assert producer.is_connected()


def test_an_exclusive_producer_stays_out(topic: Topic):
    """It lost its promise; a new one has to be made."""
    first = topic.producer(access_mode=ProducerAccessMode.Exclusive)
    topic.producer(access_mode=FENCING).close()
    assert not first.is_connected()
    with pytest.raises(ProducerFenced):
        first.send(b"lost")


def test_a_dropped_consumer_of_asyncio_frees_its_subscription(run: Any):
    """Without `close`: another one may subscribe, and gets what was not acknowledged."""

    async def main(client: asyncio_client.Client) -> list[bytes]:
        producer = await client.create_producer("topic")
        consumer: Any = await client.subscribe("topic", "sub", initial_position=InitialPosition.Earliest)
        await producer.send(b"one")
        assert (await consumer.receive()).data() == b"one"
        with pytest.raises(ConsumerBusy):
            await client.subscribe("topic", "sub")
        del consumer
        gc.collect()
        for _ in range(1000):
            try:
                other = await client.subscribe("topic", "sub")
                break
            except ConsumerBusy:
                await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(gc.collect))])
        return [(await other.receive()).data()]

    assert run(main) == [b"one"]


@pytest.mark.parametrize("inclusive", [False, True])
def test_a_reader_waits_for_an_id_beyond_the_end(topic: Topic, inclusive: bool):
    """What comes before that id is passed over; so it is after a seek."""
    (last,) = topic.publish(1)
    beyond = MessageId(-1, last.ledger_id(), last.entry_id() + 3)
    reader = topic.client.create_reader("topic", beyond, start_message_id_inclusive=inclusive)
    producer = topic.producer()
    for _ in range(2):
        assert not reader.has_message_available()
        for i in range(2):
            producer.send(b"hello-%d" % i)
        with pytest.raises(Timeout):
            reader.read_next(10)
        for i in range(2, 5):
            sent = producer.send(b"hello-%d" % i)
        assert numbers(list(reader)) == ([2, 3, 4] if inclusive else [3, 4])
        beyond = MessageId(-1, sent.ledger_id(), sent.entry_id() + 3)
        reader.seek(beyond)
    reader.seek(MessageId.earliest)
    assert reader.read_next(1000).message_id() == last


def test_options_of_patterns_and_replication_are_accepted(topic: Topic):
    """On an ordinary topic they have nothing to do."""
    topic.publish(1)
    consumer = topic.consumer(
        pattern_auto_discovery_period=5,
        regex_subscription_mode=RegexSubscriptionMode.AllTopics,
        replicate_subscription_state_enabled=True,
    )
    assert numbers(receive_all(consumer)) == [0]


@pytest.mark.parametrize("size", [-1, -1000])
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_a_negative_queue_size(topic: Topic, kind: ConsumerType, size: int):
    """There is room for one message; time limits are allowed, unlike with a queue of size 0."""
    topic.publish(3)
    consumer = topic.consumer(consumer_type=kind, receiver_queue_size=size)
    assert numbers(receive_all(consumer)) == [0, 1, 2]
    reader = topic.client.create_reader("topic", MessageId.earliest, receiver_queue_size=size)
    assert numbers([reader.read_next(1000) for _ in range(3)]) == [0, 1, 2]


@pytest.mark.parametrize("name", ["", " ", "\t\n"])
def test_a_blank_subscription_name(topic: Topic, name: str):
    """It names no subscription."""
    with pytest.raises(InvalidConfiguration):
        topic.client.subscribe("topic", name)


def test_an_id_takes_a_topic_name(client: Client):
    """As `deserialize` with a topic; the id stays equal, and serves consumers of several topics."""
    consumer = client.subscribe(["red", "blue"], "s")
    client.create_producer("red").send(b"x")
    message = consumer.receive(5000)
    again = MessageId.deserialize(message.message_id().serialize())
    assert again.topic_name(message.topic_name()) is None
    assert again == message.message_id()
    consumer.acknowledge(again)
    with pytest.raises(TypeError):
        again.topic_name(5)  # type: ignore[arg-type]


def test_a_delay_of_nothing_leaves_the_batch_of_a_coroutine(run: Any):
    """`pulsar.asyncio` tells 0 from None: the message is stored by itself, without a delay."""

    async def main(client: asyncio_client.Client) -> list[int]:
        producer = await client.create_producer("topic", batching_max_publish_delay_ms=60_000)
        ids = [await producer.send(b"x", deliver_after=timedelta(0)), await producer.send(b"x", deliver_at=0)]
        consumer = await client.subscribe(
            "topic", "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest
        )
        assert [(await consumer.receive()).message_id() for _ in ids] == ids
        return [one.batch_index() for one in ids]

    assert run(main) == [-1, -1]


def test_an_operation_without_time(store_url: Any):
    """With `operation_timeout_seconds=0` whatever opens something times out; closing works."""
    client = Client(store_url, operation_timeout_seconds=0)
    for operation in (
        lambda: client.create_producer("topic"),
        lambda: client.subscribe("topic", "s"),
        lambda: client.create_reader("topic", MessageId.earliest),
        lambda: client.get_topic_partitions("topic"),
    ):
        with pytest.raises(Timeout):
            operation()
    client.close()
    with pytest.raises(AlreadyClosed):
        client.create_producer("topic")


def test_hooks_are_not_public(topic: Topic):
    """What the library calls itself is no method of a public class."""
    reader = topic.client.create_reader("topic", MessageId.earliest)
    consumer = topic.client.subscribe(["topic", "other"], "s")
    for one in (topic.client, topic.producer(), consumer, reader):
        assert not [name for name in dir(one) if "fork" in name and not name.startswith("_")]
