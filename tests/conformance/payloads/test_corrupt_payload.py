"""An entry that cannot be unpacked is skipped, acknowledged and reported: it never comes again and again."""

from __future__ import annotations

import logging

import pytest

from embeddedpulsar import CompressionType, ConsumerType
from tests.conformance.conftest import receive_all

pytest.importorskip("cramjam", reason="the extra `compression` is not installed")

PACKING = [codec for codec in CompressionType if codec is not CompressionType.NONE]


def publish_with_one_bad(topic, monkeypatch, codec, batching):
    """Good, bad, good; the bad one is what a broken compressor would leave: checksums hold."""
    with topic.producer(compression_type=codec, batching_enabled=batching) as producer:
        producer.send(b"first" * 50)
        with monkeypatch.context() as broken:
            broken.setattr("embeddedpulsar._engine.format.entry.compress", lambda codec, data: b"\xfe" * 40)
            producer.send(b"second" * 50)
        producer.send(b"third" * 50)


@pytest.mark.parametrize("codec", PACKING)
@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("kind", list(ConsumerType))
def test_it_is_skipped_and_acknowledged(topic, monkeypatch, caplog, codec, batching, kind):
    """The others are delivered; afterwards nothing is left, for this consumer or the next; it is reported."""
    with caplog.at_level(logging.WARNING, "embeddedpulsar"):
        consumer = topic.consumer(consumer_type=kind)
        publish_with_one_bad(topic, monkeypatch, codec, batching)
        messages = receive_all(consumer)
    assert [message.data()[:5] for message in messages] == [b"first", b"third"]
    for message in messages:
        consumer.acknowledge(message)
    assert caplog.text.count("entries 1 to 1") == 1
    assert codec.name.upper() in caplog.text
    consumer.close()
    assert topic.client._core.store.use_topic("topic").topic.subscription("sub").backlog() == 0
    assert receive_all(topic.consumer(consumer_type=kind)) == []


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_as_the_last_entry_it_waits_for_the_next(topic, monkeypatch, kind):
    """At the end of the log it is stepped over, and acknowledged with what follows."""
    consumer = topic.consumer(consumer_type=kind)
    with topic.producer(compression_type=CompressionType.LZ4) as producer:
        with monkeypatch.context() as broken:
            broken.setattr("embeddedpulsar._engine.format.entry.compress", lambda codec, data: b"\xfe" * 40)
            producer.send(b"bad" * 50)
        assert receive_all(consumer) == []
        producer.send(b"good" * 50)
    (message,) = receive_all(consumer)
    consumer.acknowledge(message)
    consumer.close()
    assert receive_all(topic.consumer(consumer_type=kind)) == []
