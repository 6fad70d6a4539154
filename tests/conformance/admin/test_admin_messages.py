"""An Admin shows single messages of a topic, by place and by time."""

from __future__ import annotations

import pytest

from embeddedpulsar import Admin, Client, InvalidMessage, MessageId, NotAllowedError
from embeddedpulsar.admin.topics import Topics
from tests.conformance.conftest import Topic
from tests.conformance.manual_time import ManualTime
from tests.support.key_files import key_files


def test_a_message_is_found_from_either_end(topics: Topics, topic: Topic):
    """Messages of a batch count singly; no subscription is needed."""
    topic.publish(3)
    topic.publish_batch(4)
    topic.publish(1)
    texts = [b"hello-%d" % number for number in (0, 1, 2, 0, 1, 2, 3, 0)]
    places = range(1, 9)
    assert [topics.examine_message("topic", "earliest", place).data() for place in places] == texts
    assert [topics.examine_message("topic", "latest", place).data() for place in places] == texts[::-1]
    assert topics.examine_message("topic").data() == b"hello-0"
    for end in ("earliest", "latest"):
        with pytest.raises(InvalidMessage, match="has 8 messages, so there is no message 9"):
            topics.examine_message("topic", end, 9)


def test_what_is_trimmed_does_not_count(five_per_ledger: None, topics: Topics, topic: Topic):
    """The first message is the first that is retained."""
    consumer = topic.consumer()
    ids = topic.publish(12)
    consumer.acknowledge_cumulative([consumer.receive() for _ in range(10)][-1])
    topic.client._core.save(5.0)
    topics.trim_topic("topic")
    assert topics.examine_message("topic", "earliest", 1).data() == b"hello-10"
    assert topics.get_message_id_by_timestamp("topic", 0) == ids[10]
    with pytest.raises(InvalidMessage, match="was trimmed"):
        topics.get_message_by_id("topic", ids[0].ledger_id(), 0)


@pytest.mark.in_memory
def test_the_messages_of_an_entry(topics: Topics, topic: Topic):
    """By ledger and entry: one, or those of a batch."""
    (alone,) = topic.publish(1)
    topic.publish_batch(3)
    batch = topics.get_last_message_id("topic")
    ledger, entry = alone.ledger_id(), alone.entry_id()
    assert topics.get_message_by_id("topic", ledger, entry).data() == b"hello-0"
    found = topics.get_messages_by_id("topic", batch.ledger_id(), batch.entry_id())
    assert [one.data() for one in found] == [b"hello-0", b"hello-1", b"hello-2"]
    assert found[2].message_id() == batch and found[0].topic_name() == "persistent://public/default/topic"
    assert topics.get_message_by_id("topic", batch.ledger_id(), batch.entry_id()).data() == b"hello-0"


def test_an_entry_without_a_message(topics: Topics, topic: Topic):
    """Made-up ids, and parts of chunked messages, are refused."""
    with topic.producer(chunking_enabled=True, chunk_max_message_size=300) as producer:
        sent = producer.send(b"x" * 1000)
    ledger = sent.ledger_id()
    for place in ((ledger, 0), (ledger, 99), (ledger + 1, 0), (0, 0), (1 << 70, 0), (ledger, 1 << 63)):
        with pytest.raises(InvalidMessage, match="has no message in entry"):
            topics.get_message_by_id("topic", *place)
    for wrong in (-1, True, "1", 1.0):
        with pytest.raises(ValueError, match="ledger_id is a number from 0"):
            topics.get_message_by_id("topic", wrong, 0)  # type: ignore[arg-type]


def test_an_encrypted_batch_is_one_message(
    topics: Topics, topic: Topic, tmp_path_factory: pytest.TempPathFactory
):
    """Its ciphertext, as `peek_messages` shows it."""
    reader = key_files(tmp_path_factory.mktemp("keys"))
    topic.publish_batch(3, encryption_key="key", crypto_key_reader=reader)
    for end in ("earliest", "latest"):
        for place in (1, 2, 3):
            message = topics.examine_message("topic", end, place)
            assert b"hello" not in message.data() and message.encryption_context() is not None


def test_by_publish_time(time: ManualTime):
    """The first entry published then or later, or the place behind the last."""
    with Admin(time.url) as admin, time.client.create_producer("topic") as producer:
        find = admin.topics().get_message_id_by_timestamp
        start, ids = time.now_ms(), []
        for _ in range(3):
            ids.append(producer.send(b"x"))
            time.pass_ms(1000)
        assert [find("topic", start + at) for at in (0, 1, 1000, 1001, 2000)] == [
            ids[0],
            ids[1],
            ids[1],
            ids[2],
            ids[2],
        ]
        behind = find("topic", start + 2001)
        assert (behind.ledger_id(), behind.entry_id()) == (ids[2].ledger_id(), ids[2].entry_id() + 1)
        with pytest.raises(ValueError, match="timestamp is a number from 0"):
            find("topic", -1)


def test_ids_of_a_partition(topics: Topics, client: Client):
    """They have its number; the partitioned topic itself is refused, as its partitions can be asked."""
    topics.create_partitioned_topic("orders", 2)
    name = "orders-partition-1"
    assert topics.get_last_message_id(name) == MessageId(1, -1, -1)
    with client.create_producer(name) as producer:
        sent = producer.send(b"x")
    assert topics.get_last_message_id(name).partition() == 1
    assert topics.get_message_id_by_timestamp(name, 0).partition() == 1
    found = topics.get_message_by_id(name, sent.ledger_id(), sent.entry_id())
    assert found.message_id().partition() == 1
    for look in (topics.get_last_message_id, topics.examine_message, topics.get_internal_stats):
        with pytest.raises(NotAllowedError, match="open its partitions"):
            look("orders")


def test_arguments_are_checked(topics: Topics, topic: Topic):
    """Before anything is looked at."""
    with pytest.raises(ValueError, match="'earliest' or 'latest', not 'middle'"):
        topics.examine_message("topic", "middle")
    for wrong in (0, -1, True, "1"):
        with pytest.raises(ValueError, match="message_position is a number from 1"):
            topics.examine_message("topic", "latest", wrong)  # type: ignore[arg-type]
