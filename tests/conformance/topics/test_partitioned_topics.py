"""Partitioned topics: their names, who makes them, and what cannot be opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, MessageId, TopicNotFound

BASE = "persistent://public/default/orders"


def configured(path: Path, text: str) -> Client:
    """A client of a store with settings."""
    path.mkdir(mode=0o700)
    (path / "broker.conf").write_text(text)
    return Client(path)


def test_the_names_of_partitions(client, store_url):
    """Full names, in order; of a plain topic its own, and asking makes nothing."""
    with Admin(store_url) as admin:
        admin.topics().create_partitioned_topic("orders", 3)
        assert client.get_topic_partitions("orders") == [f"{BASE}-partition-{i}" for i in range(3)]
        assert client.get_topic_partitions(f"{BASE}-partition-1") == [f"{BASE}-partition-1"]
        assert client.get_topic_partitions("plain") == ["persistent://public/default/plain"]
        assert len(admin.topics().get_list()) == 3


OPENINGS = [
    lambda client, topic: client.create_producer(topic),
    lambda client, topic: client.subscribe(topic, "sub"),
    lambda client, topic: client.create_reader(topic, MessageId.earliest),
]


@pytest.mark.parametrize("open_one", OPENINGS)
def test_by_default_topics_make_themselves_without_partitions(tmp_path, open_one):
    """However many partitions a partitioned one would have."""
    with configured(tmp_path / "made", "defaultNumPartitions=4\n") as client:
        open_one(client, "orders")
        assert client.get_topic_partitions("orders") == [BASE]


@pytest.mark.parametrize("open_one", OPENINGS)
def test_topics_make_themselves_with_partitions_where_it_says_so(tmp_path, open_one):
    """Whatever is opened first; but not a partition of a topic that does not exist."""
    text = "allowAutoTopicCreationType=partitioned\ndefaultNumPartitions=4\n"
    with configured(tmp_path / "made", text) as client:
        open_one(client, "orders")
        assert len(client.get_topic_partitions("orders")) == 4
        open_one(client, "loose-partition-0")
        assert client.get_topic_partitions("loose") == ["persistent://public/default/loose"]


@pytest.mark.parametrize("open_one", OPENINGS)
def test_nothing_makes_itself_where_that_is_off(tmp_path, open_one):
    """What an Admin made can be used, with all its partitions."""
    with (
        configured(tmp_path / "made", "allowAutoTopicCreation=false\n") as client,
        Admin(tmp_path / "made") as admin,
    ):
        with pytest.raises(TopicNotFound):
            open_one(client, "orders")
        admin.topics().create_partitioned_topic("orders", 2)
        open_one(client, "orders")
        with pytest.raises(TopicNotFound):
            open_one(client, "orders-partition-2")


@pytest.mark.parametrize("open_one", OPENINGS)
def test_a_partition_that_does_not_exist_cannot_be_opened(client, store_url, open_one):
    """Until the topic grows."""
    with Admin(store_url) as admin:
        admin.topics().create_partitioned_topic("orders", 3)
        with pytest.raises(TopicNotFound, match="has 3 partitions, numbered from 0"):
            open_one(client, "orders-partition-3")
        assert len(admin.topics().get_list()) == 3
        admin.topics().update_partitioned_topic("orders", 4)
        open_one(client, "orders-partition-3")


def test_messages_say_where_they_are(client, store_url):
    """The producer of the topic gives ids with partitions, and readers find them there."""
    with Admin(store_url) as admin:
        admin.topics().create_partitioned_topic("orders", 3)
    with client.create_producer("orders") as producer:
        ids = [producer.send(b"%d" % i) for i in range(9)]
    assert sorted(one.partition() for one in ids) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    found = {message.message_id(): message for message in client.create_reader("orders", MessageId.earliest)}
    for number, one in enumerate(ids):
        assert found[one].data() == b"%d" % number
        assert found[one].topic_name() == f"{BASE}-partition-{one.partition()}"
