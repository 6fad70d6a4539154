"""Partitioned topics as tables: all partitions by the name of the topic, also after it was made anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, TopicNotFound
from embeddedpulsar._engine.store.topic_lookup import topic_partitions
from embeddedpulsar.arrow import read_topic, scan_topic

BASE = "persistent://public/default/orders"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with a topic of four partitions; one of them was never used."""
    path = tmp_path / "store"
    with Admin(path) as admin:
        admin.topics().create_partitioned_topic("orders", 4)
    publish(path, [0, 1, 3])
    return path


def publish(root: Path, partitions: list[int]) -> None:
    """Two messages to each."""
    with Client(root) as client:
        for index in partitions:
            with client.create_producer(f"orders-partition-{index}") as producer:
                for i in range(2):
                    producer.send(f"{index}-{i}".encode())


def values(root: Path, topic: str) -> list[tuple[str, int]]:
    """Payloads and partitions."""
    table = read_topic(root, topic, ["value", "__partition"])
    return [(row["value"].decode(), row["__partition"]) for row in table.to_pylist()]


def test_all_partitions_by_the_name_of_the_topic(root: Path):
    """In the order of their numbers, each in its own order, over the gap."""
    expected = [(f"{index}-{i}", index) for index in (0, 1, 3) for i in range(2)]
    assert values(root, "orders") == values(root, BASE) == expected
    assert sum(batch.num_rows for batch in scan_topic(root, "orders", ["value"])) == 6
    assert values(root, "orders-partition-3") == [("3-0", 3), ("3-1", 3)]
    assert values(root, "orders-partition-2") == []
    with pytest.raises(TopicNotFound):
        read_topic(root, "orders-partition-4")


def test_one_that_was_never_used_is_empty(root: Path):
    """It exists all the same."""
    with Admin(root) as admin:
        admin.topics().create_partitioned_topic("empty", 2)
    assert read_topic(root, "empty").num_rows == 0
    assert topic_partitions(str(root), "empty") == []


def test_a_topic_that_was_made_anew_is_read_where_it_lies(root: Path):
    """In a directory of its own."""
    for _ in range(2):
        with Admin(root) as admin:
            admin.topics().delete_partitioned_topic("orders")
            with pytest.raises(TopicNotFound):
                read_topic(root, "orders")
            admin.topics().create_partitioned_topic("orders", 2)
        publish(root, [1])
        assert values(root, "orders") == [("1-0", 1), ("1-1", 1)]
    with Admin(root) as admin:
        admin.topics().delete_partitioned_topic("orders")
        admin.topics().create_non_partitioned_topic("orders")
    with Client(root) as client:
        client.create_producer("orders").send(b"plain")
    assert values(root, "orders") == [("plain", -1)]
