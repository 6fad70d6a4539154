"""What the files of a store say of its topics, without opening it."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, Schema, StringSchema, TopicNotFound
from embeddedpulsar._engine.store.topic_lookup import (
    entry_limits,
    incarnation_in,
    partition_count,
    schemas_of,
    topic_directory,
    topics_in,
)
from embeddedpulsar.schema.primitives import Int64Schema
from embeddedpulsar.topic_name import TopicName

PREFIX = "persistent://public/default"


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A store with a topic, a partitioned one, and one that was never opened."""
    path = tmp_path / "store"
    with Client(path) as client, Admin(path) as admin:
        admin.topics().create_partitioned_topic("orders", 2)
        admin.topics().create_non_partitioned_topic("unused")
        client.create_producer("visits", schema=StringSchema()).close()
        client.create_producer("orders", schema=Int64Schema()).close()
    return str(path)


def test_the_topics_of_a_store(root: str, tmp_path: Path):
    """Partitions by the name of their topic; what a directory was of is not read again."""
    known: dict[str, str] = {}
    assert topics_in(root, known) == {f"{PREFIX}/visits", f"{PREFIX}/orders"}
    directories = {name: topic for name, topic in known.items() if topic.endswith("visits")}
    (directory,) = directories
    (Path(root) / "topics" / directory / "topic.meta").write_bytes(b"damaged")
    assert topics_in(root, known) == {f"{PREFIX}/visits", f"{PREFIX}/orders"}
    with pytest.raises(TopicNotFound, match="cannot tell which topic"):
        topics_in(root, {})
    with pytest.raises(TopicNotFound, match="not the directory of a store"):
        topics_in(str(tmp_path / "none"), {})


def test_a_topic_that_is_gone_is_left_out(root: str):
    """A caller that asks again does not get what only it remembers."""
    known: dict[str, str] = {}
    topics_in(root, known)
    with Admin(root) as admin:
        admin.topics().delete("visits")
    assert topics_in(root, known) == {f"{PREFIX}/orders"}


@pytest.mark.parametrize(
    ("topic", "schema"),
    [
        ("visits", StringSchema()),
        ("orders", Int64Schema()),
        ("orders-partition-1", Int64Schema()),
        ("visits-partition-0", None),
    ],
)
def test_schemas(root: str, topic: str, schema: Schema[object] | None):
    """Partitions share those of their topic; a topic that only looks like a partition has its own."""
    if schema is None:
        with Client(root) as client:
            client.create_producer(topic).close()
    current = schemas_of(root, topic).current
    assert [stored.info() for stored in current] == ([] if schema is None else [schema.schema_info()])


def test_limits_of_entries(root: str):
    """The smaller one of the policy and the setting of the store."""
    Path(root, "broker.conf").write_text("maxMessageSize=9000\n")
    with Admin(root) as admin:
        admin.topics().set_max_message_size("visits", 700)
    limit = entry_limits(root)
    assert limit(TopicName.parse("visits")) == 700
    assert limit(TopicName.parse("orders")) == limit(TopicName.parse("none")) == 9000


def test_incarnation_before_and_behind_the_log(root: str):
    """The description of a topic has it before there is a log, and the log has the same; 0 without both."""
    directory = Path(topic_directory(root, TopicName.parse("visits")))
    incarnation = incarnation_in(str(directory))
    assert incarnation > 0
    (directory / "ctl").unlink()
    assert incarnation_in(str(directory)) == incarnation
    (directory / "topic.meta").unlink()
    assert incarnation_in(str(directory)) == 0


def test_partitions_of_a_topic_that_was_never_opened(root: str):
    """The list of topics says it, where no directory does."""
    assert partition_count(root, TopicName.parse("unused")) == 0
    assert partition_count(root, TopicName.parse("orders")) == 2
    with pytest.raises(TopicNotFound):
        partition_count(root, TopicName.parse("none"))
