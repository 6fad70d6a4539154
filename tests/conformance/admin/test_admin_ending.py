"""An Admin ends a topic, empties it, or has its consumers begin anew."""

from __future__ import annotations

import os
import threading

import pytest

from embeddedpulsar import (
    Admin,
    Client,
    ConsumerType,
    InitialPosition,
    MessageId,
    NotAllowedError,
    ProducerAccessMode,
    Result,
    Timeout,
    TopicNotFound,
    TopicTerminated,
)
from embeddedpulsar._engine.platform import timing
from tests.children import in_child
from tests.conformance.chunks import begin_ledger, log_of
from tests.conformance.conftest import numbers, receive_all


def ledgers(client: Client) -> int:
    """How many ledgers the topic has."""
    return len(log_of(client).segments())


# -- terminating -----------------------------------------------------------------------------------------


def test_a_terminated_topic_takes_no_messages(topics, client):
    """From producers that are attached, or come later; batched or not."""
    plain = client.create_producer("topic")
    batching = client.create_producer("topic", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    last = plain.send(b"hello-0")
    results: list[object] = []
    batching.send_async(b"late", lambda result, _: results.append(result))
    assert topics.terminate_topic("topic") == last
    with pytest.raises(TopicTerminated):
        plain.send(b"late")
    batching.flush()
    assert results == [Result.TopicTerminated]
    with pytest.raises(TopicTerminated, match="was terminated and takes no more messages; publish"):
        client.create_producer("topic")
    assert topics.terminate_topic("topic") == last


def test_a_terminated_topic_is_read_to_its_end(topics, topic, client):
    """By consumers and readers, attached before or after; they can move in it."""
    consumer = topic.consumer()
    topic.publish(3)
    topics.terminate_topic("topic")
    held = receive_all(consumer)
    assert numbers(held) == [0, 1, 2]
    consumer.acknowledge_cumulative(held[-1])
    with pytest.raises(Timeout):
        consumer.receive(50)
    with client.create_reader("topic", MessageId.earliest) as reader:
        assert numbers([reader.read_next(1000) for _ in range(3)]) == [0, 1, 2]
        assert not reader.has_message_available()
    topics.create_subscription("topic", "late", MessageId.earliest)
    assert len(topics.peek_messages("topic", "late", 9)) == 3
    topics.reset_cursor("topic", "sub", MessageId.earliest)
    assert numbers(receive_all(consumer)) == [0, 1, 2]


def test_a_producer_that_waits_for_its_turn_is_refused(topics, client):
    """It does not get a topic that has ended."""
    holder = client.create_producer("topic", access_mode=ProducerAccessMode.Exclusive)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            client.create_producer("topic", access_mode=ProducerAccessMode.WaitForExclusive)
        except TopicTerminated as error:
            caught.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    topics.terminate_topic("topic")
    waiting.join(10)
    assert len(caught) == 1 and holder.is_connected()


def test_partitions_end_together(topics, client):
    """Each with its own last message; one can end alone."""
    topics.create_partitioned_topic("topic", 3)
    last = {}
    for index in (0, 2):
        with client.create_producer(f"topic-partition-{index}") as producer:
            last[index] = producer.send(b"hello-0")
    producer = client.create_producer("topic")
    assert topics.terminate_topic("topic-partition-2") == last[2]
    with pytest.raises(NotAllowedError, match="use terminate_partitioned_topic"):
        topics.terminate_topic("topic")
    assert topics.terminate_partitioned_topic("topic") == last | {1: MessageId.earliest}
    with pytest.raises(TopicTerminated):
        producer.send(b"late")
    topics.create_non_partitioned_topic("plain")
    with pytest.raises(NotAllowedError, match="is not partitioned; use terminate_topic"):
        topics.terminate_partitioned_topic("plain")
    for call in (topics.terminate_topic, topics.terminate_partitioned_topic, topics.truncate, topics.unload):
        with pytest.raises(TopicNotFound):
            call("missing")


@pytest.mark.parametrize("is_compacted", [False, True])
def test_the_end_survives_a_reboot(store_path, monkeypatch, is_compacted):
    """The word that stops appends does not; the journal says it, also as a snapshot."""
    with Client(store_path) as client, Admin(store_path) as admin:
        with client.create_producer("topic") as producer:
            producer.send(b"hello-0")
        admin.topics().terminate_topic("topic")
        if is_compacted:
            use = client._core.use_topic("topic")
            try:
                producers = use.topic._producers.get()
                producers._section(lambda _: producers.journal.compact(0))
            finally:
                use.release()
    monkeypatch.setattr(timing, "_boot_id", os.urandom(16))
    with Client(store_path) as client:
        with pytest.raises(TopicTerminated):
            client.create_producer("topic")
        with client.create_reader("topic", MessageId.earliest) as reader:
            assert reader.read_next(1000).data() == b"hello-0"


def test_other_processes_see_the_end(store_path, client):
    """A producer of this process is stopped by an Admin of another."""
    producer = client.create_producer("topic")
    last = producer.send(b"hello-0")

    def end() -> MessageId:
        with Admin(store_path) as admin:
            return admin.topics().terminate_topic("topic")

    assert in_child(end) == str(last)
    with pytest.raises(TopicTerminated):
        producer.send(b"late")


def test_a_topic_that_is_created_again_takes_messages(topics, client):
    """The end is that of one topic, not of its name."""
    topics.create_non_partitioned_topic("topic")
    assert topics.terminate_topic("topic") == MessageId.earliest
    topics.delete("topic")
    client.create_producer("topic").send(b"hello-0")


# -- truncating ------------------------------------------------------------------------------------------


def test_a_truncated_topic_has_its_open_ledger_alone(topics, topic, client):
    """Whatever its subscriptions have acknowledged, and whatever retention says."""
    topics.create_subscription("topic", "sub", MessageId.earliest)
    topics.set_retention("topic", -1, -1)
    consumer = topic.client.subscribe(
        "topic", "other", ConsumerType.Shared, initial_position=InitialPosition.Earliest
    )
    for _ in range(3):
        topic.publish(2)
        begin_ledger(log_of(client))
    topic.publish(1)
    assert ledgers(client) == 4
    topics.truncate("topic")
    assert ledgers(client) == 1
    assert topics.peek_messages("topic", "sub", 9) == [] == topics.peek_messages("topic", "other", 9)
    receive_all(consumer)
    topic.publish(1)
    assert numbers(receive_all(consumer)) == [0]
    topics.truncate("topic")


def test_a_topic_that_waits_for_a_subscription_is_truncated(topics, topic, client):
    """Although it keeps all until then."""
    topics.create_non_partitioned_topic("topic")
    topics.set_keep_until_subscribed("topic", True)
    topic.publish(2)
    begin_ledger(log_of(client))
    topic.publish(1)
    assert topics.trim_topic("topic") == 0
    topics.truncate("topic")
    assert ledgers(client) == 1


def test_all_partitions_are_truncated(topics, client):
    """Also those that were never used."""
    topics.create_partitioned_topic("topic", 3)
    topics.create_subscription("topic", "sub")
    names = client.get_topic_partitions("topic")
    for name in names[:2]:
        with client.create_producer(name) as producer:
            producer.send(b"hello-0")
    topics.truncate("topic")
    assert [topics.peek_messages(name, "sub", 9) for name in names] == [[], [], []]


# -- unloading -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ConsumerType)
def test_consumers_of_an_unloaded_topic_begin_anew(topics, topic, kind):
    """With what is not acknowledged; acknowledgements and the order of messages stay."""
    consumer = topic.consumer(consumer_type=kind)
    topic.publish(6)
    held = [consumer.receive(1000) for _ in range(4)]
    for message in (held[0], held[2]):
        consumer.acknowledge(message)
    topics.unload("topic")
    again = receive_all(consumer)
    assert numbers(again) == [1, 3, 4, 5]
    for message in again:
        consumer.acknowledge(message)
    consumer.close()
    assert topics.peek_messages("topic", "sub", 9) == []
    topics.unload("topic")
