"""What is closed, or dropped, leaves nothing behind in its process."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from typing import Any

import pytest

from embeddedpulsar import Client, ConsumerType, InitialPosition, MessageId

TYPES = [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared]


def consumer_of(client: Client, kind: ConsumerType, **options: Any) -> Any:
    return client.subscribe("topic", "sub", kind, initial_position=InitialPosition.Earliest, **options)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("end", ["close", "unsubscribe"])
def test_nothing_refers_to_a_closed_consumer(topic, kind: ConsumerType, end: str):
    """However it ended, and although its subscription and its client live on."""
    topic.publish(3)
    stays = topic.client.subscribe("other", "sub")
    consumer = consumer_of(topic.client, kind)
    consumer.negative_acknowledge(consumer.receive(1000))
    core = consumer._core
    references = [weakref.ref(one) for one in (consumer, core, core.session, core.session.attachment)]
    getattr(consumer, end)()
    del consumer, core
    gc.collect()
    assert [one() for one in references] == [None] * len(references)
    assert stays.is_connected()


def test_nothing_refers_to_a_closed_reader_or_producer(topic):
    """Neither the client nor a timer."""
    producer = topic.producer()
    producer.send_async(b"x", lambda result, message_id: None)
    producer.flush()
    reader = topic.client.create_reader("topic", MessageId.earliest)
    reader.read_next(1000)
    references = [weakref.ref(one) for one in (producer, producer._publisher, reader)]
    producer.close()
    reader.close()
    del producer, reader
    topic.client._core.callbacks.wait_done()
    gc.collect()
    assert [one() for one in references] == [None] * 3


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_subscribing_and_closing_does_not_add_up(topic, kind: ConsumerType):
    """A process that subscribes and closes all day keeps its size; it was 12 KB for each consumer."""
    topic.publish(1)

    def subscribe(times: int) -> None:
        for _ in range(times):
            consumer = consumer_of(topic.client, kind)
            consumer.receive(1000)
            consumer.close()

    subscribe(30)
    gc.collect()
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        subscribe(100)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 100 * 1000
