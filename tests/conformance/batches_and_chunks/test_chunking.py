"""Messages over ``maxMessageSize``: sent in parts, received whole."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from embeddedpulsar import (
    Client,
    CompressionType,
    ConsumerType,
    MessageId,
    MessageTooBig,
    StringSchema,
    Timeout,
)
from tests.conformance.chunks import (
    LIMIT,
    begin_ledger,
    entries_in,
    log_of,
    payload,
    subscription_of,
    use_small_entries,
)

pytestmark = pytest.mark.usefixtures("small_entries")

TYPES = [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared]


def test_without_chunking_it_is_too_big(topic):
    """As before: the message is refused and nothing is stored."""
    with topic.producer() as producer, pytest.raises(MessageTooBig):
        producer.send(payload(10 * LIMIT))
    assert entries_in(topic.client) == []


@pytest.mark.in_memory
@pytest.mark.parametrize("kind", TYPES)
def test_it_comes_whole(topic, kind):
    """One message goes in and one comes out, with all its fields, whatever the type of subscription."""
    consumer = topic.consumer(consumer_type=kind)
    producer = topic.producer(chunking_enabled=True, producer_name="me")
    value = payload(10 * LIMIT)
    sent = producer.send(value, {"a": "b"}, "key", event_timestamp=7, ordering_key="order")
    producer.send(b"small")
    message = consumer.receive(1000)
    assert message.data() == value
    assert message.properties() == {"a": "b"}
    assert (message.partition_key(), message.ordering_key()) == ("key", "order")
    assert (message.event_timestamp(), message.sequence_id(), message.producer_name()) == (7, 0, "me")
    assert message.message_id() == sent
    assert consumer.receive(1000).data() == b"small"
    with pytest.raises(Timeout):
        consumer.receive(10)


def test_each_part_is_an_entry_that_fits(topic):
    """The parts share the sequence id; only the last counts as a message; none exceeds the limit."""
    producer = topic.producer(chunking_enabled=True)
    producer.send(payload(5 * LIMIT))
    views = entries_in(topic.client)
    assert [view.count for view in views] == [0] * (len(views) - 1) + [1]
    assert {view.first_sequence_id for view in views} == {0}
    assert len(views) > 5
    log = log_of(topic.client)
    (segment,) = log.segments()
    assert (segment.entries, segment.messages) == (len(views), 1)
    last = views[-1].chunk(0)
    assert last["uuid"] == f"{producer.producer_name()}-0"
    assert (last["chunk"], last["chunks"], last["size"]) == (len(views) - 1, len(views), 5 * LIMIT)


@pytest.mark.parametrize("size", range(LIMIT - 120, LIMIT + 20))
def test_sizes_around_the_limit(topic, size):
    """What fits stays one entry; one byte more becomes two."""
    producer = topic.producer(chunking_enabled=True, producer_name="me")
    value = payload(size)
    sent = producer.send(value)
    views = entries_in(topic.client)
    fits = size + 8 + 16 <= LIMIT  # with the name of the producer, and what pads the columns
    assert (len(views) == 1) == fits
    assert (getattr(sent, "_first_chunk", None) is None) == fits
    reader = topic.client.create_reader("topic", MessageId.earliest)
    assert reader.read_next(1000).data() == value


@pytest.mark.parametrize("codec", list(CompressionType.__members__.values()))
def test_the_whole_payload_is_compressed(topic, codec):
    """Compression comes before cutting: what packs well needs fewer entries, or one."""
    value = b"0123456789" * LIMIT
    producer = topic.producer(chunking_enabled=True, compression_type=codec)
    producer.send(value)
    producer.send(payload(3 * LIMIT))
    reader = topic.client.create_reader("topic", MessageId.earliest)
    assert reader.read_next(1000).data() == value
    assert reader.read_next(1000).data() == payload(3 * LIMIT)
    assert len(entries_in(topic.client)) < (20 if codec == CompressionType.NONE else 7)


def test_a_schema_and_null_values(topic):
    """The schema encodes first; a null value is small."""
    producer = topic.producer(chunking_enabled=True, schema=StringSchema())
    producer.send("ä" * LIMIT)
    producer.send(None)
    reader = topic.client.create_reader("topic", MessageId.earliest, schema=StringSchema())
    assert reader.read_next(1000).value() == "ä" * LIMIT
    assert reader.read_next(1000).has_null_value()


def test_large_properties(topic):
    """Properties may need most of the last entry; when they need all of it, the message is too big."""
    producer = topic.producer(chunking_enabled=True)
    producer.send(payload(3 * LIMIT), {"p": "x" * 600})
    producer.send(b"tiny", {"p": "x" * 600})
    with pytest.raises(MessageTooBig, match="properties"):
        producer.send(payload(3 * LIMIT), {"p": "x" * LIMIT})
    reader = topic.client.create_reader("topic", MessageId.earliest)
    message = reader.read_next(1000)
    assert (message.data(), message.properties()) == (payload(3 * LIMIT), {"p": "x" * 600})
    assert reader.read_next(1000).data() == b"tiny"
    assert not reader.has_message_available()


def test_sending_without_waiting(topic):
    """A callback gets the id `send` would return."""
    producer = topic.producer(chunking_enabled=True)
    found: list[Any] = []
    producer.send_async(payload(3 * LIMIT), lambda result, sent: found.append((result.name, sent)))
    producer.send_async(
        payload(3 * LIMIT), lambda result, sent: found.append((result.name, sent)), {"p": "x" * LIMIT}
    )
    producer.flush()
    (first, sent), (second, _) = found
    assert (first, second) == ("Ok", "MessageTooBig")
    message = topic.client.create_reader("topic", MessageId.earliest).read_next(1000)
    assert message.message_id() == sent
    assert message.message_id().serialize() == sent.serialize()


def test_smaller_parts_may_be_asked_for(topic):
    """``chunk_max_message_size`` is the payload of a part; entries are never larger than the store allows."""
    consumer = topic.consumer()
    for size, length, parts in ((300, 300, 1), (300, 301, 2), (300, 901, 4), (5, 50, 10), (1, 3, 3)):
        before = len(entries_in(topic.client))
        with topic.producer(chunking_enabled=True, chunk_max_message_size=size) as producer:
            producer.send(payload(length))
        assert len(entries_in(topic.client)) - before == parts
        assert consumer.receive(1000).data() == payload(length)
    before = len(entries_in(topic.client))
    topic.producer(chunking_enabled=True, chunk_max_message_size=10 * LIMIT).send(payload(5 * LIMIT))
    assert len(entries_in(topic.client)) - before > 5


def test_the_publisher_counts_them(topic):
    """Statistics may tell how many messages went in parts."""
    producer = topic.producer(chunking_enabled=True)
    producer.send(payload(3 * LIMIT))
    producer.send(b"small")
    producer.send(payload(3 * LIMIT))
    assert producer._publisher.meter.chunked == 2


def test_backlog_counts_messages(topic):
    """A chunked message is one message of the backlog, as for users of Pulsar it is one message."""
    consumer = topic.consumer()
    with topic.producer(chunking_enabled=True) as producer:
        for _ in range(3):
            producer.send(payload(3 * LIMIT))
        producer.send(b"small")
    subscription = subscription_of(consumer)
    assert subscription.statistics().backlog == 4
    consumer.acknowledge(consumer.receive(1000))
    consumer._acks.flush()
    assert subscription.statistics().backlog == 3


def test_backlog_of_batches_and_parts(topic):
    """Entries without messages and entries with several do not make up for each other."""
    consumer = topic.consumer()
    with topic.producer(chunking_enabled=True) as producer:
        producer.send(payload(2 * LIMIT))
    parts = len(entries_in(topic.client)) - 1
    topic.publish_batch(parts + 1)
    topic.publish(1)
    log = log_of(topic.client)
    assert log.segments()[0].entries == log.segments()[0].messages
    first, *batch, alone = (consumer.receive(1000) for _ in range(parts + 3))
    for message in batch:
        consumer.acknowledge(message)
    consumer._acks.flush()
    assert subscription_of(consumer).backlog() == 2
    assert (len(first.data()), alone.data()) == (2 * LIMIT, b"hello-0")


def test_across_ledgers(topic):
    """Parts of one message may lie in several ledgers."""
    consumer = topic.consumer(consumer_type=ConsumerType.Shared)
    producer = topic.producer(chunking_enabled=True)
    log = log_of(topic.client)
    real = log.append_nowait
    session = producer._publisher.session

    def append_and_roll(*arguments: Any) -> Any:
        found = real(*arguments)
        begin_ledger(log)
        return found

    log.append_nowait = append_and_roll
    try:
        producer.send(payload(4 * LIMIT))
    finally:
        log.append_nowait = real
    assert session.ledger is log
    assert len(log.segments()) > 4
    message = consumer.receive(1000)
    assert message.data() == payload(4 * LIMIT)
    consumer.acknowledge(message)
    consumer._acks.flush()
    assert subscription_of(consumer).mark_delete >= log.last_position()


def test_delayed(time, store_path):
    """A chunked message can be delayed, as a whole."""
    time.close()
    use_small_entries(store_path)
    time.reopen()
    consumer = time.client.subscribe("topic", "sub", ConsumerType.Shared)
    producer = time.client.create_producer("topic", chunking_enabled=True)
    producer.send(payload(3 * LIMIT), deliver_after=timedelta(seconds=5))
    time.pass_ms(4999)
    assert consumer.receive_nowait() is None
    time.pass_ms(1)
    assert consumer.receive_nowait().data() == payload(3 * LIMIT)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_without_a_queue(topic, kind):
    """With a receiver queue of size 0, one at a time."""
    consumer = topic.consumer(consumer_type=kind, receiver_queue_size=0)
    producer = topic.producer(chunking_enabled=True)
    for seed in range(3):
        producer.send(payload(2 * LIMIT, seed))
    for seed in range(3):
        message = consumer.receive()
        assert message.data() == payload(2 * LIMIT, seed)
        consumer.acknowledge(message)


def test_byte_limits_count_the_whole_payload(topic):
    """`batch_receive` counts what a message holds, not what its last entry does."""
    from embeddedpulsar import ConsumerBatchReceivePolicy

    policy = ConsumerBatchReceivePolicy(10, 5 * LIMIT, 1000)
    consumer = topic.consumer(batch_receive_policy=policy)
    producer = topic.producer(chunking_enabled=True)
    for seed in range(4):
        producer.send(payload(2 * LIMIT, seed))
    assert 1 < len(consumer.batch_receive()) < 4


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.KeyShared])
def test_what_is_fetched_ahead_is_bounded(tmp_path, kind):
    """About 1 MiB of payload is fetched at once, however small the last entries are."""
    use_small_entries(tmp_path / "large", 64_000)
    with Client(tmp_path / "large") as client, client.subscribe("topic", "sub", kind) as consumer:
        producer = client.create_producer("topic", chunking_enabled=True)
        for seed in range(5):
            producer.send(payload(600_000, seed), partition_key="k")
        for seed in range(5):
            message = consumer.receive(1000)
            assert message.data() == payload(600_000, seed)
            assert consumer._core.queue.fetched_bytes <= 1_200_000 * (seed // 2 + 1)
            consumer.acknowledge(message)


def test_a_listener(topic):
    """Listeners get whole messages."""
    import threading

    found: list[int] = []
    done = threading.Event()

    def listen(consumer: Any, message: Any) -> None:
        found.append(len(message.data()))
        if len(found) == 2:
            done.set()

    consumer = topic.consumer(message_listener=listen)
    producer = topic.producer(chunking_enabled=True)
    producer.send(payload(4 * LIMIT))
    producer.send(b"small")
    assert done.wait(10)
    consumer.close()
    assert found == [4 * LIMIT, 5]


def test_several_topics(client):
    """One consumer of several topics gets whole messages, and acknowledges them by their ids."""
    with client.subscribe(["red", "blue"], "sub") as consumer:
        for name in ("red", "blue"):
            with client.create_producer(name, chunking_enabled=True) as producer:
                producer.send(payload(3 * LIMIT))
        for _ in range(2):
            message = consumer.receive(1000)
            assert message.data() == payload(3 * LIMIT)
            consumer.acknowledge(message.message_id())
    with client.subscribe(["red", "blue"], "sub") as consumer, pytest.raises(Timeout):
        consumer.receive(20)


def test_processes_read_what_others_wrote(topic, store_url):
    """Another client of the store gets the same."""
    producer = topic.producer(chunking_enabled=True)
    sent = producer.send(payload(3 * LIMIT))
    with Client(store_url) as other:
        message = other.create_reader("topic", MessageId.earliest).read_next(1000)
        assert (message.data(), message.message_id()) == (payload(3 * LIMIT), sent)


def test_letting_go(topic):
    """A producer keeps nothing of a message it has sent."""
    producer = topic.producer(chunking_enabled=True)
    out = producer._publisher.store_one(payload(3 * LIMIT), None)
    assert out.encoded.parts == []
    assert out.chunks._packed is None
