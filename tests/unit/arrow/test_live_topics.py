"""Whole-column reads of topics that the library itself writes, beside what a consumer gets."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

import embeddedpulsar as pulsar
from embeddedpulsar.arrow import read_topic, scan_topic


def consumed(client: pulsar.Client, topic: str, count: int) -> list[tuple[object, ...]]:
    """(id, value, key, sequence-free facts) of every message as a Reader gives them."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    for _ in range(count):
        message = reader.read_next(timeout_millis=5000)
        found.append(
            (
                message.message_id().serialize(),
                message.data(),
                message.partition_key() or None,
                message.properties(),
                message.publish_timestamp(),
                message.event_timestamp(),
                message.topic_name(),
                message.producer_name(),
            )
        )
    reader.close()
    return found


def tabled(root: object, topic: str) -> list[tuple[object, ...]]:
    """The same facts from the table."""
    return [
        (
            row["__messageId"],
            row["value"],
            None if row["__key"] is None else row["__key"].decode(),
            dict(row["__messageProperties"]),
            round(row["__publishTime"].timestamp() * 1000),
            0 if row["__eventTime"] is None else round(row["__eventTime"].timestamp() * 1000),
            row["__topic"],
            row["__producerName"],
        )
        for row in read_topic(root, topic).to_pylist()
    ]


def publish(client: pulsar.Client, topic: str) -> int:
    """Single messages, batches with and without keys, properties and event times, and each core codec."""
    count = 0
    for codec in (pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4, pulsar.CompressionType.ZLib):
        single = client.create_producer(topic, compression_type=codec)
        batched = client.create_producer(topic, compression_type=codec, batching_enabled=True)
        for i in range(20):
            key = f"key-{i}" if i % 3 else None
            text = (f"message {i} " * 20).encode()
            single.send(text, partition_key=key)
            options = {"properties": {"n": str(i)}, "event_timestamp": 1_700_000_000_000 + i} if i % 2 else {}
            batched.send_async(text, None, partition_key=key, **options)
            count += 2
        batched.flush()
        single.close()
        batched.close()
    return count


def test_rows_are_what_a_reader_receives(tmp_path):
    """Ids, payloads, keys, properties, times and names are those of the messages, in the order of the log."""
    with pulsar.Client(tmp_path / "data") as client:
        count = publish(client, "orders")
        assert tabled(tmp_path / "data", "orders") == consumed(client, "orders", count)


def test_an_id_from_the_table_is_a_place_to_read_from(tmp_path):
    """`__messageId` goes back into MessageId.deserialize, and both sides meet there."""
    root = tmp_path / "data"
    with pulsar.Client(root) as client:
        count = publish(client, "orders")
        ids = [
            pulsar.MessageId.deserialize(text)
            for text in read_topic(root, "orders").column("__messageId").to_pylist()
        ]
        assert len(ids) == count
        for cut in (0, 1, 7, count // 2, count - 1):
            behind = read_topic(root, "orders", ["__messageId"], start=ids[cut])
            before = read_topic(root, "orders", ["__messageId"], end=ids[cut])
            assert (before.num_rows, behind.num_rows) == (cut, count - cut)
            reader = client.create_reader("orders", ids[cut], start_message_id_inclusive=True)
            assert reader.read_next(timeout_millis=5000).message_id() == ids[cut]
            reader.close()


def test_a_scan_sees_what_was_committed_before_it(tmp_path):
    """A producer goes on while a scan is read; the scan does not grow, the next one has everything."""
    root = tmp_path / "data"
    with pulsar.Client(root) as client:
        producer = client.create_producer("orders")
        for i in range(100):
            producer.send(b"%d" % i)
        scan = scan_topic(root, "orders", ["value"], batch_rows=10)
        for i in range(100, 200):
            producer.send(b"%d" % i)
        values = [value for batch in scan for value in batch.column(0).to_pylist()]
        assert values == [b"%d" % i for i in range(100)]
        assert read_topic(root, "orders", ["value"]).num_rows == 200


def test_a_topic_without_messages(tmp_path):
    """A topic that only has a producer is empty; one that nobody made does not exist."""
    root = tmp_path / "data"
    with pulsar.Client(root) as client:
        client.create_producer("orders")
        assert read_topic(root, "orders").num_rows == 0
        with pytest.raises(pulsar.TopicNotFound):
            read_topic(root, "absent")
