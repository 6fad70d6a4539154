"""A consumer of all topics whose names match a pattern: `Client.subscribe` with a regular expression."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import embeddedpulsar.asyncio as asyncio_client
from embeddedpulsar import (
    BrokerMetadataError,
    BytesSchema,
    Client,
    ConsumerBatchReceivePolicy,
    ConsumerBusy,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    IncompatibleSchema,
    InitialPosition,
    InvalidConfiguration,
    InvalidTopicName,
    MessageId,
    OperationNotSupported,
    RegexSubscriptionMode,
)
from embeddedpulsar._engine.log.topic_control import DELETED
from embeddedpulsar._engine.store import topic_deletion
from tests.conformance.conftest import acknowledged_texts, receive_all
from tests.conformance.held import held
from tests.support.clients import refresh_topics, store_of, subscribe

ORDERS = re.compile("persistent://public/default/orders-.*")
EARLIEST = InitialPosition.Earliest


@contextlib.contextmanager
def not_looking(client: Any) -> Iterator[None]:
    """Nothing joins or leaves inside the block."""
    turn = client._core.partition_watch._turn
    try:
        turn.acquire()
        yield
    finally:
        turn.release()


def send(client: Client, *topics: str, text: str = "hello") -> list[MessageId]:
    """Send one message to each topic: its name and the text."""
    ids = []
    for topic in topics:
        with client.create_producer(topic) as producer:
            ids.append(producer.send(f"{topic} {text}".encode()))
    return ids


def names(consumer: Any) -> list[str]:
    """The local names of the topics of a consumer."""
    return sorted(name.rpartition("/")[2] for name in consumer._core.children)


def test_the_topics_that_match_are_received(client):
    """Names match as a whole; others are left alone."""
    send(client, "orders-eu", "orders-us", "orders", "my-orders-eu", "bills")
    consumer = subscribe(client, ORDERS)
    assert acknowledged_texts(consumer) == ["orders-eu hello", "orders-us hello"]
    assert consumer.topic() == "persistent://public/default/orders-.*"
    assert consumer.is_connected()


@pytest.mark.in_memory
def test_topics_that_are_made_later_join(client):
    """From their first message on, although the consumer asked for new messages only."""
    consumer = subscribe(client, ORDERS, initial_position=InitialPosition.Latest)
    assert names(consumer) == []
    send(client, "orders-eu", "bills")
    refresh_topics(client)
    assert acknowledged_texts(consumer) == ["orders-eu hello"]
    send(client, "orders-eu", text="again")
    assert acknowledged_texts(consumer) == ["orders-eu again"]


def test_existing_topics_start_at_the_initial_position(client):
    """As in Pulsar: what was stored before does not come with Latest."""
    send(client, "orders-eu")
    consumer = subscribe(client, ORDERS, initial_position=InitialPosition.Latest)
    send(client, "orders-eu", text="new")
    assert acknowledged_texts(consumer) == ["orders-eu new"]


def test_a_deleted_topic_leaves_and_the_next_one_of_its_name_joins(client):
    """Without an error; messages of the old topic can be acknowledged, which does nothing to the new one."""
    send(client, "orders-eu", "orders-us")
    consumer = subscribe(client, ORDERS, negative_ack_redelivery_delay_ms=100)
    old = next(message for message in receive_all(consumer) if "eu" in message.topic_name())
    for _ in range(3):
        store_of(client).delete_topic("orders-eu", force=True)
        refresh_topics(client)
        assert names(consumer) == ["orders-us"]
        for call in (consumer.acknowledge, consumer.acknowledge_cumulative, consumer.negative_acknowledge):
            call(old)
            call(old.message_id())
        send(client, "orders-eu", text="reborn")
        refresh_topics(client)
        consumer.acknowledge(old)
        consumer.acknowledge_cumulative(old)
        (old,) = receive_all(consumer)
        assert old.data() == b"orders-eu reborn"
    consumer.acknowledge(old)
    consumer.redeliver_unacknowledged_messages()
    assert acknowledged_texts(consumer) == ["orders-us hello"]
    assert len(consumer._core.delivery._children) == 2  # numbers are used again


def test_a_topic_that_is_made_again_before_the_deletion_is_noticed(client):
    """It is another topic, which joins from its first message on; a partitioned one may take its place."""
    send(client, "orders-eu")
    consumer = subscribe(client, ORDERS)
    assert acknowledged_texts(consumer) == ["orders-eu hello"]
    store_of(client).delete_topic("orders-eu", force=True)
    send(client, "orders-eu", text="reborn")
    refresh_topics(client)
    assert acknowledged_texts(consumer) == ["orders-eu reborn"]
    store_of(client).delete_topic("orders-eu", force=True)
    store_of(client).topics.create_partitioned("orders-eu", 2)
    refresh_topics(client)
    assert names(consumer) == ["orders-eu-partition-0", "orders-eu-partition-1"]
    send(client, "orders-eu", text="in parts")
    assert acknowledged_texts(consumer) == ["orders-eu in parts"]


def test_a_deletion_that_fails_leaves_the_topic_in_the_group(client):
    """The consumer met the mark of the deletion, which was taken back: it reads on."""
    send(client, "orders-eu")
    consumer = subscribe(client, ORDERS)
    use = store_of(client).use_topic("orders-eu")
    topic_deletion.mark(use.topic, DELETED)
    assert consumer.receive_nowait() is None
    topic_deletion.mark(use.topic, 0)
    use.release()
    client._core.partition_watch._version = -1
    refresh_topics(client)
    assert acknowledged_texts(consumer) == ["orders-eu hello"]


def test_a_deletion_is_no_error_before_it_is_noticed(client):
    """Between the deletion and the next look at the list, every call works on the topics that are left."""
    send(client, "orders-eu", "orders-us")
    policy = ConsumerBatchReceivePolicy(10, -1, 50)
    consumer = subscribe(client, ORDERS, batch_receive_policy=policy)
    messages = receive_all(consumer)
    client._core.partition_watch.close()  # only the calls notice anything
    store_of(client).delete_topic("orders-eu", force=True)
    for message in messages:
        consumer.acknowledge(message)
        consumer.negative_acknowledge(message)
    consumer.seek(MessageId.earliest)
    consumer.redeliver_unacknowledged_messages()
    assert [message.data() for message in consumer.batch_receive()] == [b"orders-us hello"]
    assert consumer.receive_nowait() is None
    consumer.seek(0)
    assert acknowledged_texts(consumer) == ["orders-us hello"]
    consumer.stats()
    consumer.unsubscribe()


def test_a_waiting_receive_survives_deletions(client):
    """It gets the message of a topic that is made while it waits."""
    send(client, "orders-eu")
    consumer = subscribe(client, ORDERS)
    assert acknowledged_texts(consumer) == ["orders-eu hello"]
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(consumer.receive(10_000).data()))
    thread.start()
    store_of(client).delete_topic("orders-eu", force=True)
    send(client, "orders-us")
    thread.join()
    assert found == [b"orders-us hello"]


def test_a_partitioned_topic_joins_as_its_partitions(client):
    """Its own name matches; it grows and goes as a whole."""
    topics = store_of(client).topics
    topics.create_partitioned("orders-eu", 2)
    topics.create_partitioned("bills-eu", 2)
    pattern = re.compile("public/default/orders-..")
    consumer = subscribe(client, pattern)
    assert names(consumer) == ["orders-eu-partition-0", "orders-eu-partition-1"]
    topics.create_partitioned("orders-us", 1)
    store_of(client).grow_partitions("orders-eu", 3)
    refresh_topics(client)
    assert names(consumer) == [
        "orders-eu-partition-0",
        "orders-eu-partition-1",
        "orders-eu-partition-2",
        "orders-us-partition-0",
    ]
    send(client, "orders-eu-partition-2", "orders-us")
    assert acknowledged_texts(consumer) == ["orders-eu-partition-2 hello", "orders-us hello"]
    store_of(client).delete_partitioned_topic("orders-eu", force=True)
    refresh_topics(client)
    assert names(consumer) == ["orders-us-partition-0"]


def test_namespaces(client):
    """The namespace of a pattern is literal, and public/default without one; a pattern in its place matches
    several, which Pulsar does not have."""
    topics, namespaces = store_of(client).topics, store_of(client).topics.namespaces
    for namespace in ("acme/sales", "acme/sa.es", "acme/hr"):
        namespaces.create(namespace)
        topics.create_topic(f"{namespace}/orders-eu")
    topics.create_topic("orders-eu")
    for pattern, expected in (
        ("orders-.*", ["public/default"]),
        ("acme/sa.es/orders-.*", ["acme/sa.es"]),
        ("persistent://acme/(sales|hr)/orders-.*", ["acme/hr", "acme/sales"]),
        (".+/.+/orders-.*", ["acme/hr", "acme/sa.es", "acme/sales", "public/default"]),
        ("acme/none/.*", []),
    ):
        consumer = client.subscribe(re.compile(pattern), pattern)
        found = sorted(name[len("persistent://") : -len("/orders-eu")] for name in consumer._core.children)
        assert found == expected
        consumer.close()
    consumer = client.subscribe(re.compile("acme/later/.*"), "later")
    namespaces.create("acme/later")
    topics.create_topic("acme/later/orders")
    refresh_topics(client)
    assert names(consumer) == ["orders"]


def test_flags_are_kept(client):
    """In Pulsar they are lost."""
    send(client, "Orders-EU")
    assert names(subscribe(client, re.compile("orders-eu"))) == []
    for number, pattern in enumerate((re.compile("orders-eu", re.IGNORECASE), re.compile("(?i)orders-eu"))):
        assert names(client.subscribe(pattern, f"sub-{number}")) == ["Orders-EU"]


@pytest.mark.parametrize("pattern", ["a/b.*", "a/.*/", "", "http://a/b/c.*", "persistent://orders.*", "//x"])
def test_patterns_that_name_no_topic(client, pattern):
    """A pattern has the form of a topic name."""
    with pytest.raises(InvalidTopicName, match="write the pattern as"):
        subscribe(client, re.compile(pattern))


def test_other_bad_arguments(client):
    """Patterns of bytes, pieces that are no pattern of their own, and queues of size 0."""
    with pytest.raises(ValueError, match="bytes"):
        subscribe(client, re.compile(b"orders"))
    with pytest.raises(InvalidTopicName, match="nothing to repeat"):
        subscribe(client, re.compile("persistent://?a/b/c"))
    with pytest.raises(InvalidConfiguration, match="queue_size=0"):
        subscribe(client, ORDERS, receiver_queue_size=0)
    with pytest.raises(InvalidConfiguration, match="retry_letter_topic"):
        subscribe(client, ORDERS, enable_retry=True, consumer_type=ConsumerType.Shared)
    with pytest.raises(InvalidTopicName):
        subscribe(client, ORDERS, dead_letter_policy=ConsumerDeadLetterPolicy(1, "a/b"))


def test_modes(client):
    """Persistent topics are the default; non-persistent ones match if they are asked for, also later ones."""
    persistent, volatile = "persistent://public/default/", "non-persistent://public/default/"
    send(client, "orders-eu", volatile + "orders-us")
    expected = {
        RegexSubscriptionMode.PersistentOnly: [persistent + "orders-eu"],
        RegexSubscriptionMode.NonPersistentOnly: [volatile + "orders-us"],
        RegexSubscriptionMode.AllTopics: [persistent + "orders-eu", volatile + "orders-us"],
    }
    for mode, topics in expected.items():
        consumer = client.subscribe(ORDERS, mode.name, regex_subscription_mode=mode)
        assert sorted(consumer._core.children) == sorted(topics)
    client.create_producer(volatile + "orders-later")
    while len(consumer._core.children) < 3:
        consumer.receive_nowait()
    send(client, volatile + "orders-later")
    assert consumer.receive(5000).topic_name() == volatile + "orders-later"


def test_dead_letters_do_not_come_back(client):
    """A consumer that makes dead letters does not match them, nor does it make topics without end."""
    send(client, "orders-eu", "orders-us-other-DLQ")
    policy = ConsumerDeadLetterPolicy(1)
    consumer = subscribe(
        client,
        ORDERS,
        consumer_type=ConsumerType.Shared,
        dead_letter_policy=policy,
        negative_ack_redelivery_delay_ms=100,
    )
    for _ in range(2):
        message = consumer.receive(5000)
        assert message.data() == b"orders-eu hello"
        consumer.negative_acknowledge(message)
    letters = client.subscribe(re.compile("orders-.*-sub-DLQ"), "letters", initial_position=EARLIEST)
    assert letters.receive(5000).data() == b"orders-eu hello"
    refresh_topics(client)
    assert names(consumer) == ["orders-eu"]
    assert names(letters) == ["orders-eu-sub-DLQ"]


def test_a_named_dead_letter_topic_is_not_matched(client):
    """Although its name matches."""
    send(client, "orders-eu", "orders-failed")
    policy = ConsumerDeadLetterPolicy(1, "orders-failed")
    consumer = subscribe(client, ORDERS, consumer_type=ConsumerType.Shared, dead_letter_policy=policy)
    assert names(consumer) == ["orders-eu"]


def test_a_retry_of_a_message_whose_topic_was_deleted(client):
    """Is refused: the copy could not be acknowledged."""
    send(client, "orders-eu")
    consumer = subscribe(client, ORDERS)
    message = consumer.receive(1000)
    store_of(client).delete_topic("orders-eu", force=True)
    refresh_topics(client)
    for wrong in (message, message.message_id(), 5):
        with pytest.raises(OperationNotSupported, match=r"belongs to none of|was deleted"):
            consumer.reconsume_later(wrong, 0)


def test_retry_letters(client):
    """With a named retry topic, which belongs to the consumer and is made."""
    send(client, "orders-eu")
    consumer = subscribe(
        client,
        ORDERS,
        consumer_type=ConsumerType.Shared,
        enable_retry=True,
        retry_letter_topic="orders-again",
    )
    assert names(consumer) == ["orders-again", "orders-eu"]
    consumer.reconsume_later(consumer.receive(1000), 0)
    message = consumer.receive(1000)
    assert message.topic_name().endswith("orders-again")
    consumer.acknowledge(message)


@pytest.mark.parametrize(
    "name", ["__change_events", "__transaction_buffer_snapshot", "x__transaction_pending_ack"]
)
def test_system_topics_match_nothing(client, name, monkeypatch):
    """As in Pulsar, whose system topics are hidden from clients: those that an earlier release made."""
    with monkeypatch.context() as earlier:
        earlier.setattr("embeddedpulsar._engine.store.topic_list.is_system_topic", lambda name: False)
        store_of(client).topics.create_topic(name)
    assert names(subscribe(client, re.compile(".*"))) == []


def test_acknowledgements_last(client):
    """What was acknowledged does not come to the next consumer, on any of the topics."""
    send(client, "orders-eu", "orders-us")
    consumer = subscribe(client, ORDERS)
    for message in receive_all(consumer):
        if "eu" in message.topic_name():
            consumer.acknowledge(message.message_id())
    consumer.close()
    assert acknowledged_texts(subscribe(client, ORDERS)) == ["orders-us hello"]


def test_ids_find_their_topic(client):
    """A seek by id moves its own topic; ids of other topics are refused by it."""
    ids = send(client, "orders-eu", "orders-us")
    (foreign,) = send(client, "bills")
    consumer = subscribe(client, ORDERS, start_message_id_inclusive=True)
    receive_all(consumer)
    consumer.seek(ids[0])
    assert acknowledged_texts(consumer) == ["orders-eu hello"]
    with pytest.raises(OperationNotSupported, match="none of the topics"):
        consumer.seek(foreign)
    with pytest.raises(OperationNotSupported):
        consumer.get_last_message_id()


def test_unsubscribe_ends_all_subscriptions(client):
    """Those of all topics, and nothing joins afterwards."""
    send(client, "orders-eu", "orders-us")
    consumer = subscribe(client, ORDERS, consumer_type=ConsumerType.Shared)
    with subscribe(client, ORDERS, consumer_type=ConsumerType.Shared), pytest.raises(BrokerMetadataError):
        consumer.unsubscribe()
    consumer.unsubscribe()
    send(client, "orders-asia")
    refresh_topics(client)
    for topic in ("orders-eu", "orders-us", "orders-asia"):
        use = store_of(client).use_topic(topic)
        assert use.topic.subscriptions() == []
        use.release()
    assert not client._core.partition_watch._watched
    assert not store_of(client).topics._catalog._watchers


def test_a_listener_gets_the_messages_of_new_topics(client):
    """A listener is called for topics that join."""
    found: list[bytes] = []
    done = threading.Event()

    def listen(consumer: Any, message: Any) -> None:
        found.append(message.data())
        consumer.acknowledge(message)
        if len(found) == 2:
            done.set()

    subscribe(client, ORDERS, message_listener=listen)
    send(client, "orders-eu", "orders-us")
    refresh_topics(client)
    assert done.wait(30)
    assert sorted(found) == [b"orders-eu hello", b"orders-us hello"]


def test_a_topic_that_is_taken_joins_when_it_is_free(client, caplog):
    """An Exclusive consumer keeps it; the reason is logged once. At the beginning it is an error."""
    consumer = subscribe(client, ORDERS)
    with not_looking(client):
        other = client.subscribe("orders-eu", "sub")
    with pytest.raises(ConsumerBusy):
        client.subscribe(ORDERS, "sub")
    with caplog.at_level(logging.WARNING, logger="embeddedpulsar"):
        for _ in range(3):
            client._core.partition_watch._version = -1
            refresh_topics(client)
    (record,) = [one for one in caplog.records if "cannot be joined now" in one.message]
    assert "orders-eu" in record.message
    other.close()
    send(client, "orders-eu")
    client._core.partition_watch._version = -1
    refresh_topics(client)
    assert acknowledged_texts(consumer) == ["orders-eu hello"]


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_topic_that_is_made_again_while_the_consumer_subscribes(client, partitions):
    """Between the listing and the opening: the consumer gets the new topic, which may be of another kind."""

    class Meddler(BytesSchema):
        is_done = False

        def check_topic(self, topic: str, *, is_producer: bool) -> int:
            if topic.endswith("us") and not self.is_done:
                self.is_done = True
                store_of(client).delete_topic("orders-us")
                if partitions:
                    store_of(client).topics.create_partitioned("orders-us", partitions)
            return super().check_topic(topic, is_producer=is_producer)

    for topic in ("orders-eu", "orders-us"):
        store_of(client).topics.create_topic(topic)
    consumer = subscribe(client, ORDERS, schema=Meddler())
    refresh_topics(client)
    parts = [f"orders-us-partition-{i}" for i in range(partitions)]
    assert names(consumer) == ["orders-eu", *parts]
    send(client, "orders-eu", "orders-us")
    refresh_topics(client)
    assert acknowledged_texts(consumer) == ["orders-eu hello", "orders-us hello"]


def test_a_topic_that_is_stuck_does_not_keep_the_others(client, caplog):
    """The locks of a topic that joins are waited for as long as a second; it joins later."""
    consumer = subscribe(client, ORDERS)
    refresh_topics(client)
    with contextlib.ExitStack() as stack:
        with not_looking(client):
            send(client, "orders-eu", "orders-us")
            stack.enter_context(held(client, "orders-eu"))
        refresh_topics(client)
        found = acknowledged_texts(consumer)
        assert "orders-us hello" in found
    client._core.partition_watch._version = -1
    refresh_topics(client)
    assert sorted(found + acknowledged_texts(consumer)) == ["orders-eu hello", "orders-us hello"]


def test_the_schema_is_asked_about_every_topic(client):
    """A topic that it refuses does not join."""

    class Picky(BytesSchema):
        def check_topic(self, topic: str, *, is_producer: bool) -> int:
            if topic.endswith("us"):
                raise IncompatibleSchema(topic)
            return super().check_topic(topic, is_producer=is_producer)

    consumer = subscribe(client, ORDERS, schema=Picky())
    send(client, "orders-eu", "orders-us")
    refresh_topics(client)
    assert acknowledged_texts(consumer) == ["orders-eu hello"]
    with pytest.raises(IncompatibleSchema):
        client.subscribe(ORDERS, "other", schema=Picky())


def test_nothing_is_left_of_a_consumer(client):
    """Closing ends the watch; deleted topics leave nothing behind."""
    consumer = subscribe(client, ORDERS)
    for i in range(20):
        send(client, f"orders-{i}")
        refresh_topics(client)
        store_of(client).delete_topic(f"orders-{i}", force=True)
        refresh_topics(client)
    core = consumer._core
    assert core.children == {} == core._faces
    assert len(core.delivery._children) == 1
    consumer.close()
    assert not client._core.partition_watch._watched
    assert not store_of(client).topics._catalog._watchers


def test_hostile_names(client):
    """Names of any characters match or do not; they are data, never part of the expression."""
    ugly = [
        "a" * 200,
        "orders-.*",
        "orders-[",
        "orders-\\",
        "orders-(?i)",
        "orders-a/b//c",
        "orders-ü 漢 \U0001f600",
        "$^",
        "-partition-",
        "orders--partition-0x",
        "orders-%2F..%00",
        "…",
    ]
    for name in ugly:
        store_of(client).topics.create_topic(f"persistent://public/default/{name}")
    consumer = subscribe(client, ORDERS)
    assert len(consumer._core.children) == sum(name.startswith("orders-") for name in ugly)
    everything = client.subscribe(re.compile(r"(?s).*"), "all")
    assert len(everything._core.children) == len(ugly)
    everything.unsubscribe()


def test_asyncio(run):
    """``is_pattern_topic=True`` of the asyncio client; a list of patterns is refused, and so is a bad one."""

    async def main(client: asyncio_client.Client) -> None:
        consumer = await client.subscribe("orders-.*", "sub", is_pattern_topic=True)
        producer = await client.create_producer("orders-eu")
        waiting = asyncio.create_task(consumer.receive())
        await producer.send(b"hello")
        message = await asyncio.wait_for(waiting, 30)
        assert message.data() == b"hello"
        await consumer.acknowledge(message)
        with pytest.raises(ValueError, match="is_pattern_topic"):
            await client.subscribe(["a.*"], "sub", is_pattern_topic=True)
        with pytest.raises(ValueError, match="no regular expression"):
            await client.subscribe("orders-(", "sub", is_pattern_topic=True)
        await consumer.close()

    run(main)


@pytest.mark.parametrize(
    "expression", ["orders|bills", "^(orders|bills)$", "public/default/orders|public/default/bills"]
)
def test_alternatives_and_anchors(topic, client, expression):
    """Each alternative has its topics, and anchors stand for the ends of names."""
    for name in ("orders", "bills", "other"):
        with client.create_producer(name) as producer:
            producer.send(name.encode())
    consumer = client.subscribe(re.compile(expression), "s", initial_position=InitialPosition.Earliest)
    assert sorted(consumer.receive(5000).data() for _ in range(2)) == [b"bills", b"orders"]
    assert consumer.receive_nowait() is None


def test_a_pattern_that_no_topic_can_match_warns(client, caplog):
    """With the part of it, and what to write instead."""
    client.subscribe(re.compile("acme/sales/orders|bills"), "s").close()
    (record,) = [one for one in caplog.records if "no topic can match" in one.getMessage()]
    assert "'bills'; put alternatives into a group" in record.getMessage()
