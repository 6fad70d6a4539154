"""Statistics of producers and consumers: for their owner, and in the log at the client's interval."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Client, CompressionType, MessageTooBig
from tests.conformance.conftest import Topic, receive_all
from tests.conformance.manual_time import ManualTime
from tests.support.key_files import key_files


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """The log, at level INFO."""
    caplog.set_level(logging.INFO)
    return lambda word: [text for text in caplog.messages if text.startswith(word)]


def test_messages_sent_one_by_one(topic: Topic):
    """Every message counts, whichever way it is sent, with the bytes of its payload."""
    producer = topic.producer()
    assert producer.stats().messages_sent == producer.stats().entries_sent == 0
    for _ in range(10):
        producer.send(b"12345")
        producer.send_async(b"67", None)
    producer.flush()
    producer.send(b"1", partition_key="k", properties={"a": "b"})
    stats = producer.stats()
    assert (stats.messages_sent, stats.entries_sent, stats.send_failures) == (21, 21, 0)
    assert 71 <= stats.bytes_sent <= 71 + 21 * 16 + 32
    assert (stats.pending_messages, stats.chunked_messages) == (0, 0)
    assert stats.messages_per_second > 0
    assert stats.bytes_per_second > 0


def test_the_hot_path_counts_exactly(topic: Topic):
    """Plain messages are counted to the byte, by threads that send at once too."""
    import threading

    producer = topic.producer()

    def send() -> None:
        for _ in range(500):
            producer.send(b"12345")

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = producer.stats()
    assert (stats.messages_sent, stats.bytes_sent, stats.entries_sent) == (1500, 7500, 1500)


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4])
@pytest.mark.parametrize("is_encrypted", [False, True])
def test_batches(topic: Topic, tmp_path: Path, compression: CompressionType, is_encrypted: bool):
    """A batch is one entry; bytes are those before compression and encryption; every entry is timed."""
    keys = {"encryption_key": "k", "crypto_key_reader": key_files(tmp_path)} if is_encrypted else {}
    producer = topic.producer(
        batching_enabled=True, compression_type=compression, batching_max_publish_delay_ms=60_000, **keys
    )
    for _ in range(10):
        producer.send_async(b"x" * 100, None)
    assert producer.stats().pending_messages == 10
    producer.flush()
    stats = producer.stats()
    assert (stats.messages_sent, stats.entries_sent, stats.pending_messages) == (10, 1, 0)
    assert 1000 <= stats.bytes_sent <= 1016
    assert 0 < stats.latency_ms_50 == stats.latency_ms_99 == stats.latency_ms_max


def test_chunked_messages(topic: Topic):
    """A chunked message is one message of several entries."""
    producer = topic.producer(chunking_enabled=True, chunk_max_message_size=1000)
    producer.send(bytes(2500))
    producer.send(b"x")
    stats = producer.stats()
    assert (stats.messages_sent, stats.chunked_messages, stats.send_failures) == (2, 1, 0)
    assert stats.entries_sent >= 4
    assert 2501 <= stats.bytes_sent <= 2517


def test_failures(topic: Topic):
    """A message that was taken and could not be stored is a failure, whoever learns of it."""
    producer = topic.producer()
    huge = b"x" * (6 << 20)
    with pytest.raises(MessageTooBig):
        producer.send(huge)
    producer.send_async(huge, None)
    with pytest.raises(MessageTooBig):
        producer.flush()
    producer.send_async(huge, lambda result, sent: None)
    producer.flush()
    stats = producer.stats()
    assert (stats.messages_sent, stats.bytes_sent, stats.send_failures) == (0, 0, 3)


@pytest.mark.parametrize("durability", ["process", "flush"])
def test_times_of_messages_sent_one_by_one(topic: Topic, durability: str):
    """After `stats()` was called the next 32 are measured, and then no more; at ``flush`` all are."""
    producer = topic.producer(durability=durability)
    producer.send(b"x")
    measured = producer.stats().latency_ms_max
    assert (measured > 0) == (durability == "flush")
    for _ in range(40):
        producer.send(b"x")
    stats = producer.stats()
    assert stats.messages_sent == 41
    assert 0 < stats.latency_ms_50 <= stats.latency_ms_95 <= stats.latency_ms_99 <= stats.latency_ms_max
    publisher: Any = producer._publisher
    assert len(publisher.meter._latencies) == (32 if durability == "process" else 41)
    assert len(receive_all(topic.consumer())) == 41


def test_producers_are_logged_at_the_interval(time: ManualTime, lines: Any):
    """Every 600 s what was sent since, and in all; nothing when there was nothing."""
    producer = time.client.create_producer("topic", "till-1")
    time.pass_ms(600_000)
    assert lines("Producer") == []
    for _ in range(3):
        producer.send(b"12345")
    time.pass_ms(600_000)
    for _ in range(2):
        producer.send(b"12")
    time.pass_ms(600_000)
    first, second = lines("Producer")
    assert first.startswith(
        "Producer till-1 on persistent://public/default/topic, in 600 s: sent 3 messages, "
    )
    assert "0 failed; 0 pending; latency in ms of 3 entries: " in first
    assert second.startswith(
        "Producer till-1 on persistent://public/default/topic, in 600 s: sent 2 messages, "
    )
    assert "In all: 5 messages, " in second
    producer.close()
    time.pass_ms(600_000)
    assert len(lines("Producer")) == 2


def test_rates_are_of_the_running_interval(time: ManualTime):
    """Messages and bytes per second since statistics were logged last."""
    producer = time.client.create_producer("topic")
    consumer = time.client.subscribe("topic", "s")
    for _ in range(100):
        producer.send(b"12345")
        consumer.receive(1000)
    time.pass_ms(10_000)
    assert producer.stats().messages_per_second == pytest.approx(10)
    assert producer.stats().bytes_per_second == pytest.approx(50)
    assert consumer.stats().messages_per_second == pytest.approx(10)
    assert consumer.stats().bytes_per_second == pytest.approx(50)
    time.pass_ms(590_000)
    assert producer.stats().messages_per_second == consumer.stats().messages_per_second == 0


def test_no_statistics_in_the_log_if_the_interval_is_0(store_url: Path | str, lines: Any):
    """Counting goes on."""
    with Client(store_url, stats_interval_in_seconds=0) as client:
        producer = client.create_producer("topic")
        producer.send(b"x")
        assert producer.stats().messages_sent == 1
        assert producer._publisher.meter._timer is None
    assert lines("Producer") == []


def test_consumers(topic: Topic):
    """What the application was given, what waits, and what was acknowledged."""
    topic.publish(5)
    consumer = topic.consumer(ack_receipt_enabled=True)
    assert consumer.stats()[:4] == (0, 0, 0, 0)
    for _ in range(2):
        consumer.acknowledge(consumer.receive(1000))
    stats = consumer.stats()
    assert stats[:4] == (2, 14, 2, 3)
    assert stats.messages_per_second > 0


def test_several_topics_and_partitions_are_summed(client: Client):
    """One producer over all partitions, one consumer over all topics."""
    core: Any = client._core
    core.store.topics.create_partitioned("parts", 3)
    consumer = client.subscribe(["parts", "plain"], "s")
    producer = client.create_producer("parts")
    for _ in range(9):
        producer.send(b"12345")
    client.create_producer("plain").send(b"1")
    stats = producer.stats()
    assert (stats.messages_sent, stats.bytes_sent, stats.entries_sent) == (9, 45, 9)
    assert len(receive_all(consumer)) == 10
    assert consumer.stats()[:2] == (10, 46)
    for _ in range(99):
        producer.send(b"1")
    assert producer.stats().latency_ms_max > 0


def test_a_forked_child_counts_anew(topic: Topic):
    """What the parent sent is the parent's."""
    producer = topic.producer()
    producer.send(b"parent")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            producer.send(b"child")
            producer.send(b"child")
            code = 0 if producer.stats().messages_sent == 2 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert producer.stats()[:2] == (1, 6)


def test_dead_letters_are_counted_where_they_go(time: ManualTime, lines: Any):
    """The producer of a dead letter topic is one, and logs like one."""
    from embeddedpulsar import ConsumerDeadLetterPolicy, ConsumerType

    consumer = time.client.subscribe(
        "topic",
        "s",
        ConsumerType.Shared,
        dead_letter_policy=ConsumerDeadLetterPolicy(1),
        negative_ack_redelivery_delay_ms=100,
    )
    time.client.create_producer("topic").send(b"x")
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(1000))
        time.pass_ms(1000)
    time.pass_ms(600_000)
    assert len([text for text in lines("Producer") if "topic-s-DLQ" in text]) == 1
