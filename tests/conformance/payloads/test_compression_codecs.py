"""Compression: whole entries, whatever the codec; consumers need not be told which."""

from __future__ import annotations

import sys

import pytest

import embeddedpulsar
from embeddedpulsar import CompressionType, ConsumerType, MessageTooBig
from tests.conformance.conftest import receive_all

pytest.importorskip("cramjam", reason="the extra `compression` is not installed")

PACKING = [codec for codec in CompressionType if codec is not CompressionType.NONE]
EXTRA = [CompressionType.ZSTD, CompressionType.SNAPPY]


@pytest.mark.parametrize("codec", list(CompressionType))
@pytest.mark.parametrize("batching", [False, True])
def test_every_field_survives(topic, codec, batching):
    """Payload, keys, properties, event time and sequence id are packed together and come back."""
    consumer = topic.consumer()
    payload = b"abcdefgh" * 100
    with topic.producer(compression_type=codec, batching_enabled=batching) as producer:
        for number in range(5):
            producer.send_async(
                payload + b"%d" % number,
                None,
                {"number": str(number)} if number % 2 else None,
                f"key-{number}" if number != 3 else None,
                f"order-{number}" if number == 1 else None,
                event_timestamp=1000 + number,
            )
        producer.send_async(None, None)
    messages = receive_all(consumer)
    assert [message.data() for message in messages] == [payload + b"%d" % n for n in range(5)] + [b""]
    assert [message.partition_key() for message in messages] == ["key-0", "key-1", "key-2", "", "key-4", ""]
    assert [message.ordering_key() for message in messages] == ["", "order-1", "", "", "", ""]
    assert [message.properties().get("number") for message in messages] == [None, "1", None, "3", None, None]
    assert [message.event_timestamp() for message in messages] == [1000, 1001, 1002, 1003, 1004, 0]
    assert [message.sequence_id() for message in messages] == [0, 1, 2, 3, 4, 5]
    assert [message.has_null_value() for message in messages] == [False] * 5 + [True]


@pytest.mark.in_memory
def test_codecs_change_within_a_topic(topic):
    """Each entry says how it is packed: one topic may hold them all."""
    consumer = topic.consumer()
    for codec in CompressionType:
        with topic.producer(compression_type=codec) as producer:
            producer.send(codec.name.encode() * 50)
    assert [message.data()[:2] for message in receive_all(consumer)] == [b"NO", b"LZ", b"ZL", b"ZS", b"SN"]


@pytest.mark.parametrize("codec", PACKING)
@pytest.mark.parametrize("batching", [False, True])
def test_the_packed_size_counts_against_the_limit(store_path, codec, batching):
    """Beyond maxMessageSize a message may be, if it is not once it is packed; what does not shrink is not."""
    store_path.mkdir()
    (store_path / "broker.conf").write_text("maxMessageSize=20000\n")
    big = bytes(300_000)
    noise = b"".join(number.to_bytes(8, "big") for number in _noise(12_500))
    with embeddedpulsar.Client(store_path) as client:
        with client.create_producer("sized", compression_type=codec, batching_enabled=batching) as producer:
            producer.send(big)
            with pytest.raises(MessageTooBig, match="maxMessageSize is 20000"):
                producer.send(noise)
        with client.create_reader("sized", embeddedpulsar.MessageId.earliest) as reader:
            assert reader.read_next(1000).data() == big
            assert not reader.has_message_available()


@pytest.mark.parametrize("codec", EXTRA)
def test_a_producer_needs_the_package_of_its_codec(client, monkeypatch, codec):
    """Without it, create_producer says what to install; no topic is made."""
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(ImportError, match=r'pip install "embeddedpulsar\[compression\]"'):
        client.create_producer("unpacked", compression_type=codec)
    client.create_producer("unpacked", compression_type=CompressionType.LZ4).close()


@pytest.mark.parametrize("codec", EXTRA)
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared])
def test_a_consumer_without_the_package_loses_nothing(topic, monkeypatch, codec, kind):
    """What comes before is delivered, then each receive raises; with the package the consumer goes on."""
    consumer = topic.consumer(consumer_type=kind)
    with topic.producer() as plain, topic.producer(compression_type=codec) as packing:
        plain.send(b"before")
        packing.send(b"packed" * 50)
        plain.send(b"behind")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "cramjam", None)
        assert consumer.receive(1000).data() == b"before"
        for _ in range(3):
            with pytest.raises(ImportError, match=r'pip install "embeddedpulsar\[compression\]"'):
                consumer.receive(1000)
    assert [consumer.receive(1000).data() for _ in range(2)] == [b"packed" * 50, b"behind"]


@pytest.mark.parametrize("codec", EXTRA)
def test_another_consumer_has_the_package(topic, monkeypatch, codec):
    """An entry given back by one who can read it is not lost on one who cannot: it stays unacknowledged."""
    consumer = topic.consumer(consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    with topic.producer() as plain, topic.producer(compression_type=codec) as packing:
        plain.send(b"before")
        packing.send(b"packed" * 50)
    for message in (consumer.receive(1000), consumer.receive(1000)):
        consumer.negative_acknowledge(message)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "cramjam", None)
        assert consumer.receive(5000).data() == b"before"
        with pytest.raises(ImportError):
            consumer.receive(1000)
    assert consumer.receive(5000).data() == b"packed" * 50


def _noise(count: int) -> list[int]:
    """Numbers nobody can pack."""
    value, found = 1, []
    for _ in range(count):
        value = value * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        found.append(value ^ value >> 29)
    return found


@pytest.mark.parametrize("codec", list(CompressionType))
def test_arrow_and_spark_read_every_codec(topic, store_path, codec):
    """Whole columns come out of packed entries, single ones and batches (Spark reads through the same)."""
    pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")
    from embeddedpulsar.arrow import read_topic

    with topic.producer(compression_type=codec) as single:
        single.send(b"single" * 40, partition_key="one")
    with topic.producer(compression_type=codec, batching_enabled=True) as batched:
        for number in range(50):
            batched.send_async(b"batched %d" % number * 10, None, partition_key=f"key-{number}")
    with topic.producer(compression_type=codec) as bulk:
        bulk.send_many([b"bulk" * 30] * 20)
    table = read_topic(store_path, "topic", ["value", "__key"])
    values = [b"single" * 40, *(b"batched %d" % number * 10 for number in range(50)), *[b"bulk" * 30] * 20]
    assert table["value"].to_pylist() == values
    keys = [b"one", *(b"key-%d" % number for number in range(50)), *[None] * 20]
    assert table["__key"].to_pylist() == keys
