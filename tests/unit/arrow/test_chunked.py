"""Chunked messages as rows: one each, with the whole value, in the range that holds the last part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Client, CompressionType, CorruptionError, InitialPosition, MessageId
from embeddedpulsar._engine.log.entry_range import split
from embeddedpulsar._engine.store.topic_lookup import plan_logs
from embeddedpulsar.arrow import read_topic
from embeddedpulsar.arrow.columns import record_batches, table
from embeddedpulsar.arrow.mapped_segment import open_ahead, raise_damage, raise_gone, warn_of_damage
from embeddedpulsar.topic_name import TopicName
from tests.conformance.chunks import LIMIT, HalfSent, entries_in, log_of, payload, use_small_entries

NAME = TopicName.parse("topic")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with small entries, which keeps closed ledgers that no subscription needs."""
    use_small_entries(tmp_path / "store")
    with (tmp_path / "store" / "broker.conf").open("a") as settings:
        settings.write("defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n")
    return tmp_path / "store"


def opened(ranges: list[Any]) -> Any:
    """The ranges with their segments, none of which may be gone."""
    return open_ahead(ranges, None, raise_gone)


def publish(client: Client) -> list[bytes]:
    """Messages of all kinds, parts between them, over two ledgers; their payloads in order."""
    producer = client.create_producer("topic", chunking_enabled=True)
    packer = client.create_producer("topic", chunking_enabled=True, compression_type=CompressionType.ZLib)
    HalfSent(producer, payload(3 * LIMIT, 9)).send(2)  # never finished
    slow = HalfSent(producer, payload(4 * LIMIT), ({"a": "b"}, "key", None, 0, 7, 0, False)).send(2)
    with client.create_producer("topic", batching_enabled=True) as batch:
        for i in range(5):
            batch.send_async(b"batch %d" % i, None)
    log_of(client).roll()
    slow.send(1)
    producer.send(b"small")
    slow.finish()
    packer.send(b"0123456789" * LIMIT)
    packer.send(payload(2 * LIMIT, 1))
    return [
        *(b"batch %d" % i for i in range(5)),
        b"small",
        payload(4 * LIMIT),
        b"0123456789" * LIMIT,
        payload(2 * LIMIT, 1),
    ]


def test_one_row_each(root: Path):
    """All columns are those a reader gives."""
    with Client(root) as client:
        expected = publish(client)
        messages = list(client.create_reader("topic", MessageId.earliest))
        found = read_topic(root, "topic")
    assert found.column("value").to_pylist() == expected
    for name, values in (
        ("__key", [message.partition_key().encode() or None for message in messages]),
        ("__messageId", [message.message_id().serialize() for message in messages]),
        ("__sequenceId", [message.sequence_id() for message in messages]),
        ("__producerName", [message.producer_name() for message in messages]),
    ):
        assert found.column(name).to_pylist() == values


@pytest.mark.parametrize("most_bytes", [300, 900, 2500, 10_000])
def test_cut_anywhere(root: Path, most_bytes: int):
    """However the topic is cut into ranges, each message is in exactly one."""
    with Client(root) as client:
        expected = publish(client)
        ranges = [piece for planned in plan_logs(str(root), [NAME]) for piece in split(planned, most_bytes)]
        whole = table(opened(ranges), ("value",), raise_damage)
        parts: list[Any] = []
        for planned in ranges:
            for batch in record_batches(
                opened([planned]), ("value",), rows=3, large=4, on_damage=raise_damage
            ):
                parts += batch.column(0).to_pylist()
    assert whole.column(0).to_pylist() == parts == expected


def test_a_reader_goes_on_in_columns(root: Path):
    """`Reader.to_arrow` behind a chunked message, or in front of one."""
    with Client(root) as client:
        expected = publish(client)
        reader = client.create_reader("topic", MessageId.earliest)
        for _ in range(6):
            reader.read_next(1000)
        assert reader.to_arrow(["value"]).column(0).to_pylist() == expected[6:]
        assert not reader.has_message_available()


def damage(client: Client, root: Path) -> list[bytes]:
    """A message one of whose parts is damaged, between two others; the payloads of those."""
    producer = client.create_producer("topic", chunking_enabled=True)
    for seed in range(3):
        producer.send(payload(2 * LIMIT, seed))
    views = entries_in(client)
    second = [view for view in views if view.first_sequence_id == 1][1]
    log = log_of(client)
    offset = log.view.offset_of(second.ledger_id, second.entry_id)
    path = next((root / "topics").glob("*/*.log"))
    with path.open("r+b") as file:
        file.seek(offset + 500)
        byte = file.read(1)
        file.seek(offset + 500)
        file.write(bytes([byte[0] ^ 1]))
    return [payload(2 * LIMIT, 0), payload(2 * LIMIT, 2)]


def test_damage_of_a_part(root: Path):
    """It costs that message, and is reported; the others come."""
    with Client(root) as client:
        expected = damage(client, root)
        reports: list[Any] = []
        log_of(client).damage = reports.append
        consumer = client.subscribe("topic", "sub", initial_position=InitialPosition.Earliest)
        found = []
        while (message := consumer.receive_nowait()) is not None:
            found.append(message.data())
            consumer.acknowledge(message)
        assert found == expected
        consumer._acks.flush()
        assert consumer._core.session.subscription.mark_delete == log_of(client).last_position()
        assert any("chunked message" in str(one) and "checksum" in str(one) for one in reports)
        ranges = plan_logs(str(root), [NAME])
        with pytest.raises(CorruptionError, match="checksum"):
            table(opened(ranges), ("value",), raise_damage)
        assert table(opened(ranges), ("value",), warn_of_damage).column(0).to_pylist() == expected


def test_a_part_that_was_trimmed(root: Path):
    """Its message went with it; no error of a read that begins later, but of one that began."""
    with Client(root) as client:
        producer = client.create_producer("topic", chunking_enabled=True)
        slow = HalfSent(producer, payload(3 * LIMIT)).send(2)
        log = log_of(client)
        log.roll()
        slow.finish()
        producer.send(b"small")
        reports: list[Any] = []
        log.damage = reports.append
        before = plan_logs(str(root), [NAME])[1:]
        log.trim_before(log.segments()[-1].ledger_id)
        reader = client.create_reader("topic", MessageId.earliest)
        assert [message.data() for message in reader] == [b"small"]
        assert any("not in the log" in str(one) or "no file" in str(one) for one in reports)
        assert reader.to_arrow(["value"]).num_rows == 0
        assert read_topic(root, "topic", ["value"]).column(0).to_pylist() == [b"small"]
        with pytest.raises(CorruptionError, match="in no file any more"):
            table(opened(before), ("value",), raise_damage)
        assert table(opened(before), ("value",), warn_of_damage).column(0).to_pylist() == [b"small"]
