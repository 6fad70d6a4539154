"""What is closed, or dropped, leaves nothing behind in its process."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import tracemalloc
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Client, ConsumerBusy, ConsumerType, InitialPosition, MessageId
from embeddedpulsar._engine.store.store import REGISTRY
from embeddedpulsar.client.client_core import OPEN_CLIENTS

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


def descriptors() -> list[str]:
    """What the open descriptors of this process are of."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return sorted(found)


def threads_of_ours() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("embeddedpulsar")]


def drop_a_client(root: Path, *, with_consumer: bool) -> None:
    """Make a client, send and acknowledge without flushing, and drop everything."""
    client = Client(root)
    producer = client.create_producer("topic", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    producer.send(b"0")
    if with_consumer:
        consumer = client.subscribe(
            "topic", "sub", initial_position=InitialPosition.Earliest, ack_group_time_ms=60_000
        )
        consumer.acknowledge(consumer.receive(1000))
        client.create_reader("topic", MessageId.earliest).read_next(1000)
    producer.send_async(b"1", None)


@pytest.mark.parametrize("with_consumer", [False, True])
def test_a_dropped_client_closes_itself(tmp_path: Path, with_consumer: bool):
    """As a file does: with a ResourceWarning, what it had is stored; descriptors and threads go."""
    Client(tmp_path).close()
    gc.collect()
    before, stores = descriptors(), list(REGISTRY.stores)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        drop_a_client(tmp_path, with_consumer=with_consumer)
        gc.collect()
        for thread in list(OPEN_CLIENTS._running.values()):
            thread.join(10)
    assert [str(one.message) for one in caught if one.category is ResourceWarning] == [
        f"unclosed client {tmp_path}"
    ]
    gc.collect()
    assert list(REGISTRY.stores) == stores
    assert threads_of_ours() == []
    assert descriptors() == before
    with Client(tmp_path) as client:
        reader = client.create_reader("topic", MessageId.earliest)
        assert [one.data() for one in reader] == [b"0", b"1"]
        if with_consumer:
            assert client.subscribe("topic", "sub").receive(1000).data() == b"1"


def test_what_a_client_made_keeps_it(tmp_path: Path):
    """Whoever has a producer, consumer or reader has its client, as with pulsar-client."""
    client = Client(tmp_path)
    producer = client.create_producer("topic")
    del client
    gc.collect()
    producer.send(b"0")
    reader = producer._client.create_reader("topic", MessageId.earliest)
    del producer
    gc.collect()
    assert reader.read_next(1000).data() == b"0"
    reader._client.close()


def test_a_dropped_consumer_lives_with_its_client(topic):
    """As with pulsar-client: it stays attached until the client is closed."""
    topic.consumer()
    gc.collect()
    with pytest.raises(ConsumerBusy):
        topic.consumer()


def test_a_dropped_producer_is_closed_and_what_it_had_is_stored(topic):
    """Its name is free a moment later."""
    producer = topic.producer(producer_name="p", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    producer.send_async(b"x", None)
    del producer
    gc.collect()
    reader = topic.client.create_reader("topic", MessageId.earliest)
    assert reader.read_next(1000).data() == b"x"
    topic.producer(producer_name="p").close()
