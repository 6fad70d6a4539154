"""One reader over all partitions of a topic."""

from __future__ import annotations

import threading
from queue import Queue
from typing import Any

import pytest

from embeddedpulsar import (
    AlreadyClosed,
    Client,
    InvalidConfiguration,
    MessageId,
    OperationNotSupported,
    Timeout,
)
from tests.children import in_child
from tests.support.clients import store_of

BASE = "persistent://public/default/orders"


@pytest.fixture(autouse=True)
def partitioned(client: Client) -> None:
    """The topic has three partitions."""
    store_of(client).topics.create_partitioned("orders", 3)


def publish(client: Client, count: int = 3, partitions: range = range(3)) -> dict[int, list[Any]]:
    """Send ``0-0``, ``0-1`` and so on to each partition."""
    ids = {}
    for index in partitions:
        with client.create_producer(f"orders-partition-{index}") as producer:
            ids[index] = [producer.send(f"{index}-{i}".encode()) for i in range(count)]
    return ids


def read_all(reader: Any) -> list[str]:
    """Everything there is now, sorted."""
    return sorted(message.data().decode() for message in reader)


def expected(count: int = 3) -> list[str]:
    """The payloads that `publish` sends, sorted."""
    return sorted(f"{index}-{i}" for index in range(3) for i in range(count))


def test_everything_is_read_each_partition_in_order(client):
    """From the earliest on; ids and names say which partition."""
    publish(client, 100)
    reader = client.create_reader("orders", MessageId.earliest)
    assert reader.topic() == BASE and reader.has_message_available()
    messages = list(reader)
    for index in range(3):
        own = [one for one in messages if one.message_id().partition() == index]
        assert [one.data() for one in own] == [f"{index}-{i}".encode() for i in range(100)]
        assert {one.topic_name() for one in own} == {f"{BASE}-partition-{index}"}
    assert not reader.has_message_available() and reader.read_nowait() is None
    with pytest.raises(Timeout):
        reader.read_next(10)


def test_from_the_latest_only_what_is_new(client):
    """Wherever it is published."""
    publish(client)
    reader = client.create_reader("orders", MessageId.latest)
    assert not reader.has_message_available()
    publish(client, 1)
    assert read_all(reader) == ["0-0", "1-0", "2-0"]


def test_from_an_id_its_partition_goes_on_there(client):
    """The others are read from their beginning, so that nothing is missed."""
    ids = publish(client)
    reader = client.create_reader("orders", ids[1][1])
    assert read_all(reader) == sorted(set(expected()) - {"1-0", "1-1"})
    inclusive = client.create_reader("orders", ids[1][1], start_message_id_inclusive=True)
    assert read_all(inclusive) == sorted(set(expected()) - {"1-0"})


def test_seek_moves_all_partitions_or_the_one_of_an_id(client):
    """An id of another topic is refused."""
    ids = publish(client)
    reader = client.create_reader("orders", MessageId.earliest)
    assert read_all(reader) == expected()
    reader.seek(MessageId.latest)
    assert read_all(reader) == []
    reader.seek(0)
    assert read_all(reader) == expected()
    reader.seek(MessageId.earliest)
    assert reader.read_next(1000) is not None
    reader.seek(MessageId.earliest)
    assert read_all(reader) == expected()
    reader.seek(ids[2][0])
    assert read_all(reader) == ["2-1", "2-2"]
    with client.create_producer("other") as producer:
        other = producer.send(b"")
    with pytest.raises(OperationNotSupported, match="no partition of"):
        reader.seek(other)
    with pytest.raises(ValueError):
        reader.seek("earliest")  # type: ignore[arg-type]


def test_waiting_ends_with_a_message_of_any_partition(client):
    """Also of one that is new."""
    reader = client.create_reader("orders", MessageId.earliest)
    received: Queue[bytes] = Queue()
    waiting = threading.Thread(target=lambda: [received.put(reader.read_next(10_000).data()) for _ in "12"])
    waiting.start()
    publish(client, 1, range(1, 2))
    assert received.get(timeout=10) == b"1-0"
    store_of(client).grow_partitions("orders", 4)
    publish(client, 1, range(3, 4))
    assert received.get(timeout=10) == b"3-0"
    waiting.join()


def test_a_listener_gets_all(client):
    """And then nobody else can read."""
    got = threading.Semaphore(0)
    reader = client.create_reader(
        "orders", MessageId.earliest, reader_listener=lambda reader, message: got.release()
    )
    publish(client)
    for _ in range(9):
        assert got.acquire(timeout=10)
    with pytest.raises(InvalidConfiguration):
        reader.read_next(10)
    reader.close()


def test_whole_columns(client):
    """The rest of every partition as one table."""
    publish(client)
    reader = client.create_reader("orders", MessageId.earliest)
    reader.read_next(1000)
    table = reader.to_arrow(["value", "__topic"])
    assert table.num_rows == 8 and len(set(table["__topic"].to_pylist())) == 3
    assert read_all(reader) == []


def test_a_closed_reader_is_closed(client):
    """Its parts, too; a forked child has none."""
    reader = client.create_reader("orders", MessageId.earliest, reader_name="audit")
    assert "audit" in repr(reader) and BASE in repr(reader)

    def child() -> None:
        with pytest.raises(AlreadyClosed, match="belongs to the parent"):
            reader.read_next(10)

    in_child(child)
    reader.close()
    for call in (reader.read_next, reader.close, reader.has_message_available, lambda: reader.seek(0)):
        with pytest.raises(AlreadyClosed):
            call()
    assert not reader.is_connected()
