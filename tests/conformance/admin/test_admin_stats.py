"""What an Admin says about a topic: rates, sizes, backlogs, producers, consumers, ledgers and cursors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import (
    Admin,
    Client,
    ConsumerKeySharedPolicy,
    ConsumerType,
    InitialPosition,
    KeySharedMode,
    MessageId,
    NotAllowedError,
    ProducerAccessMode,
    SubscriptionMode,
    SubscriptionNotFound,
    TopicNotFound,
)
from embeddedpulsar.admin.topic_stats import SubscriptionStats, TopicStats
from embeddedpulsar.admin.topics import Topics
from tests.conformance.conftest import Topic, receive_all
from tests.conformance.manual_time import ManualTime

CLAIMING = [ConsumerType.Shared, ConsumerType.KeyShared]
SEEDS_EXAMPLE = {
    "msgThroughputIn": 0,
    "storageSize": 68398,
    "backlogSize": 46,
    "subscriptions": {
        "test-sub-name": {
            "msgBacklog": 0,
            "type": "Exclusive",
            "consumers": [{}],
            "isReplicated": False,
        }
    },
}
"""An answer of ``topic/stats`` that users know, without what is not here: rates of delivery, addresses."""


def subscription(topics: Topics, name: str = "sub", topic: str = "topic") -> SubscriptionStats:
    """The stats of one subscription."""
    return topics.get_stats(topic).subscriptions[name]


def written(client: Client) -> None:
    """Have all acknowledgements written: a consumer groups them."""
    client._core.save(5.0)


def assert_contains(found: Any, expected: Any) -> None:
    """Each field of ``expected`` is there, and of the same kind."""
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert_contains(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_contains(one, other)
    elif isinstance(expected, str | bool):
        assert found == expected
    else:
        assert isinstance(found, int | float) and not isinstance(found, bool)


# -- the topic -------------------------------------------------------------------------------------------


def test_the_example_of_the_documents(topics: Topics, client: Client):
    """Throughput, size, backlog, type and consumers have the names of Pulsar."""
    consumer = client.subscribe("topic", "test-sub-name")
    client.create_producer("topic").send(b"hello")
    consumer.acknowledge(consumer.receive())
    written(client)
    found = topics.get_stats("topic").json()
    assert_contains(found, SEEDS_EXAMPLE)
    assert found["subscriptions"]["test-sub-name"]["msgBacklog"] == 0
    assert "replication" not in found and "msgThroughputOut" not in found


def test_rates_are_those_of_the_last_minute(time: ManualTime):
    """Messages and bytes by publish time, whoever published them; the counters go on."""
    with Admin(time.url) as admin, time.client.create_producer("topic") as producer:
        for _ in range(120):
            producer.send(b"x" * 100)
        size = admin.topics().get_stats("topic").storage_size
        time.pass_ms(30_000)
        for _ in range(60):
            producer.send(b"x" * 100)
        both = admin.topics().get_stats("topic")
        assert both.msg_rate_in == 3.0 and both.msg_throughput_in == both.storage_size / 60
        assert both.average_msg_size == size / 120
        time.pass_ms(30_001)
        assert admin.topics().get_stats("topic").msg_rate_in == 1.0
        time.pass_ms(60_000)
        late = admin.topics().get_stats("topic")
        assert (late.msg_rate_in, late.msg_throughput_in, late.average_msg_size) == (0.0, 0.0, 0.0)
        assert late.msg_in_counter == 180 and late.bytes_in_counter == late.storage_size == both.storage_size


def test_rates_after_trimming(five_per_ledger: None, time: ManualTime):
    """Of what was published in the last minute a part is gone: the average over the time that is known."""
    with Admin(time.url) as admin, time.client.create_producer("topic") as producer:
        consumer = time.client.subscribe("topic", "sub")
        for _ in range(5):
            producer.send(b"x")
        time.pass_ms(10_000)
        for _ in range(5):
            producer.send(b"x")
        consumer.acknowledge_cumulative([consumer.receive() for _ in range(10)][-1])
        written(time.client)
        admin.topics().trim_topic("topic")
        assert [one.entries for one in admin.topics().get_internal_stats("topic").ledgers] == [5]
        time.pass_ms(4_000)
        stats = admin.topics().get_stats("topic")
        assert stats.msg_rate_in == 5 / 4  # the ledger that is left began 4 s ago
        assert stats.msg_in_counter == 10 and stats.bytes_in_counter == 2 * stats.storage_size
        assert admin.topics().get_internal_stats("topic").entries_added_counter == 10


def test_producers_are_listed(topics: Topics, client: Client):
    """Those that are connected, those that wait, and how often exclusive access was granted."""
    first = client.create_producer("topic", "first")
    second = client.create_producer("topic")
    stats = topics.get_stats("topic")
    assert [(one.producer_name, one.access_mode) for one in stats.publishers] == [
        ("first", "Shared"),
        (second.producer_name(), "Shared"),
    ]
    assert stats.topic_epoch is None and "topicEpoch" not in stats.json()
    second.close()
    assert [one.producer_name for one in topics.get_stats("topic").publishers] == ["first"]
    first.close()
    alone = client.create_producer("other", "e", access_mode=ProducerAccessMode.Exclusive)
    found = topics.get_stats("other")
    alone.close()
    assert found.topic_epoch == 1 and found.publishers[0].access_mode == "Exclusive"


def test_deduplication_is_shown(topics: Topics):
    """What holds for the topic, set there or not."""
    topics.create_non_partitioned_topic("topic")
    assert topics.get_stats("topic").deduplication_status == "Disabled"
    topics.set_deduplication_status("topic", True)
    assert topics.get_stats("topic").deduplication_status == "Enabled"


# -- backlogs --------------------------------------------------------------------------------------------


@pytest.mark.in_memory
@pytest.mark.parametrize("kind", ConsumerType)
def test_a_backlog_is_exact(topics: Topics, client: Client, topic: Topic, kind: ConsumerType):
    """Batches count by their messages, what is acknowledged out of order does not count, and the bytes are
    those behind the mark-delete position."""
    consumer = topic.consumer(consumer_type=kind, batch_index_ack_enabled=True)
    topic.publish(3)
    topic.publish_batch(10)
    topic.publish(2)
    full = subscription(topics)
    assert (full.msg_backlog, full.backlog_size) == (15, topics.get_stats("topic").storage_size)
    messages = [consumer.receive() for _ in range(15)]
    for number in (0, 2, 5, 7, 14):
        consumer.acknowledge(messages[number])
    written(client)
    left = subscription(topics)
    assert left.msg_backlog == 10 == len(topics.peek_messages("topic", "sub", 100))
    assert 0 < left.backlog_size < full.backlog_size
    assert left.earliest_msg_publish_time_in_backlog == messages[1].publish_timestamp()
    assert left.non_contiguous_deleted_messages_ranges == 2
    assert (left.unacked_messages > 0) == (kind in CLAIMING)
    found = topics.analyze_subscription_backlog("topic", "sub")
    assert (found.entries, found.messages, found.aborted) == (3, 10, False)
    for message in messages:
        consumer.acknowledge(message)
    written(client)
    none = topics.get_stats("topic")
    assert none.backlog_size == none.earliest_msg_publish_time_in_backlogs == 0
    assert subscription(topics).msg_backlog == subscription(topics).earliest_msg_publish_time_in_backlog == 0


def test_chunked_messages_count_once(topics: Topics, topic: Topic):
    """Their parts are entries and no messages."""
    topic.consumer()
    with topic.producer(chunking_enabled=True, chunk_max_message_size=300) as producer:
        producer.send(b"x" * 2000)
    stats = topics.get_stats("topic")
    assert (stats.subscriptions["sub"].msg_backlog, stats.msg_in_counter) == (1, 1)
    assert topics.analyze_subscription_backlog("topic", "sub").entries > 1
    last = topics.get_last_message_id("topic")
    (whole,) = topics.get_messages_by_id("topic", last.ledger_id(), last.entry_id())
    assert whole.data() == topics.examine_message("topic").data() == b"x" * 2000


def test_delayed_messages(time: ManualTime):
    """They are in the backlog, and those that a consumer came upon are also counted as delayed."""
    consumer = time.client.subscribe("topic", "sub", ConsumerType.Shared)
    with Admin(time.url) as admin, time.client.create_producer("topic") as producer:
        producer.send(b"now")
        for _ in range(3):
            producer.send(b"later", deliver_at=time.now_ms() + 60_000)
        message = consumer.receive()
        assert receive_all(consumer) == []
        found = subscription(admin.topics())
        assert (found.msg_backlog, found.msg_delayed, found.msg_backlog_no_delayed) == (4, 3, 1)
        consumer.acknowledge(message)
        written(time.client)
        assert subscription(admin.topics()).msg_backlog == 3
        time.pass_ms(61_000)
        assert len(receive_all(consumer)) == 3
        assert subscription(admin.topics()).msg_delayed == 0


def test_the_topic_s_backlog_is_that_of_the_slowest(
    five_per_ledger: None, topics: Topics, client: Client, topic: Topic
):
    """Of the durable subscriptions; of several ledgers."""
    slow, fast = topic.consumer(), client.subscribe("topic", "fast")
    topic.publish(10)
    fast.acknowledge_cumulative([fast.receive() for _ in range(7)][-1])
    written(client)
    stats = topics.get_stats("topic")
    assert [one.msg_backlog for one in stats.subscriptions.values()] == [3, 10]
    assert list(stats.subscriptions) == ["fast", "sub"]
    assert stats.backlog_size == stats.subscriptions["sub"].backlog_size == stats.storage_size
    entries = stats.storage_size // 10
    assert stats.subscriptions["fast"].backlog_size == 3 * entries
    assert slow.is_connected()


# -- consumers -------------------------------------------------------------------------------------------


def test_consumers_of_a_shared_subscription(time: ManualTime):
    """What they hold, may take, and were given, and since when they are there."""
    with Admin(time.url) as admin:
        first = time.client.subscribe(
            "topic", "sub", ConsumerType.Shared, consumer_name="one", receiver_queue_size=10
        )
        time.pass_ms(1500)
        time.client.subscribe("topic", "sub", ConsumerType.Shared, consumer_name="two", receiver_queue_size=1)
        stats = subscription(admin.topics())
        assert (stats.type, stats.active_consumer_name) == ("Shared", None)
        assert [(one.consumer_name, one.connected_since) for one in stats.consumers] == [
            ("one", "2023-11-14T22:13:20.000Z"),
            ("two", "2023-11-14T22:13:21.500Z"),
        ]
        assert [one.available_permits for one in stats.consumers] == [10, 1]
        with time.client.create_producer("topic") as producer:
            for _ in range(4):
                producer.send(b"x")
        held = [first.receive() for _ in range(3)]
        stats = subscription(admin.topics())
        counted = sum(one.unacked_messages for one in stats.consumers)
        assert counted == stats.unacked_messages == sum(one.msg_out_counter or 0 for one in stats.consumers)
        assert 3 <= counted <= 4 and stats.msg_backlog == 4
        first.acknowledge(held[0])
        written(time.client)
        assert subscription(admin.topics()).unacked_messages == counted - 1


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_a_consumer_that_holds_the_oldest_message(time: ManualTime, kind: ConsumerType):
    """It is named with its process while another one goes on; until it acknowledges."""
    client, options = time.client, {"consumer_type": kind, "receiver_queue_size": 3}
    with Admin(time.url) as admin:
        hung = client.subscribe("topic", "sub", consumer_name="hung", **options)
        with client.create_producer("topic") as producer:
            ids = [producer.send(b"x", partition_key="k") for _ in range(3)]
            held = [hung.receive() for _ in range(3)]
            busy = client.subscribe("topic", "sub", consumer_name="busy", **options)

            def stats() -> dict[str, Any]:
                found = admin.topics().get_stats("topic").subscriptions["sub"].consumers
                return {one.consumer_name: one for one in found}

            began = time.now_ms()
            assert stats()["hung"].held_since is None
            time.pass_ms(1500)
            first = f"{ids[0].ledger_id()}:{ids[0].entry_id()}"
            named = stats()["hung"]
            assert (named.held_since, named.pid, named.unacked_messages) == (began, os.getpid(), 3)
            assert (named.oldest_unacked_message_id, named.last_acked_timestamp) == (first, 0)
            assert stats()["busy"].held_since is None
            hung.acknowledge(held[1])
            time.pass_ms(200)  # the group is written
            acked = stats()["hung"].last_acked_timestamp
            assert began + 1500 <= acked <= time.now_ms()
            assert stats()["hung"].held_since is None
            time.pass_ms(3000)
            assert stats()["hung"].held_since == acked
            for message in (held[0], held[2]):
                hung.acknowledge(message)
            time.pass_ms(3000)
            assert stats()["hung"].held_since is None
            busy.close()


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_an_active_consumer_that_acknowledges_nothing(time: ManualTime, kind: ConsumerType):
    """The type does not say what it holds; it is named while there is a backlog."""
    with Admin(time.url) as admin:
        consumer = time.client.subscribe("topic", "sub", kind, consumer_name="hung")

        def named() -> Any:
            return admin.topics().get_stats("topic").subscriptions["sub"].consumers[0].held_since

        time.pass_ms(5000)
        assert named() is None
        with time.client.create_producer("topic") as producer:
            producer.send(b"x")
        sent = time.now_ms()
        time.pass_ms(2000)
        assert named() == sent
        consumer.acknowledge(consumer.receive())
        time.pass_ms(2000)
        assert named() is None


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_an_active_consumer(topics: Topics, client: Client, kind: ConsumerType):
    """It is named; what the consumer keeps to itself is left out."""
    client.subscribe("topic", "sub", kind, consumer_name="a")
    if kind == ConsumerType.Failover:
        client.subscribe("topic", "sub", kind, consumer_name="b")
    found = subscription(topics)
    assert (found.type, found.active_consumer_name) == (kind.name, "a")
    for field in ("availablePermits", "msgOutCounter", "keyHashRanges"):
        assert field not in found.json()["consumers"][0]


def test_consumers_that_are_blocked(store_path: Path, tmp_path: Path):
    """They hold as many messages as they may; the subscription likewise."""
    store_path.mkdir()
    (store_path / "broker.conf").write_text(
        "maxUnackedMessagesPerConsumer=2\nmaxUnackedMessagesPerSubscription=2\n"
    )
    with Client(store_path) as client, Admin(store_path) as admin:
        consumer = client.subscribe("topic", "sub", ConsumerType.Shared)
        with client.create_producer("topic") as producer:
            for _ in range(5):
                producer.send(b"x")
        assert len(receive_all(consumer)) == 2
        found = subscription(admin.topics())
        assert found.blocked_subscription_on_unacked_msgs
        assert found.consumers[0].blocked_consumer_on_unacked_msgs and found.unacked_messages == 2


def test_key_shared(topics: Topics, client: Client):
    """How keys are divided."""
    sticky = ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=[(0, 99), (200, 65535)])
    client.subscribe("topic", "sticky", ConsumerType.KeyShared, key_shared_policy=sticky)
    loose = ConsumerKeySharedPolicy(KeySharedMode.AutoSplit, allow_out_of_order_delivery=True)
    client.subscribe("topic", "loose", ConsumerType.KeyShared, key_shared_policy=loose)
    found = topics.get_stats("topic").subscriptions
    assert (found["sticky"].key_shared_mode, found["loose"].key_shared_mode) == ("STICKY", "AUTO_SPLIT")
    assert found["sticky"].consumers[0].key_hash_ranges == ("[0, 99]", "[200, 65535]")
    assert (found["sticky"].allow_out_of_order_delivery, found["loose"].allow_out_of_order_delivery) == (
        False,
        True,
    )


def test_subscriptions_without_consumers(topics: Topics, client: Client, topic: Topic):
    """A durable one is shown without a type; the others end with their consumers."""
    topic.consumer().close()
    passing = client.subscribe("topic", "passing", subscription_mode=SubscriptionMode.NonDurable)
    stats = topics.get_stats("topic").subscriptions
    assert (stats["sub"].type, stats["sub"].consumers) == ("None", ())
    assert (stats["passing"].is_durable, stats["sub"].is_durable) == (False, True)
    assert topics.get_subscriptions("topic") == ["passing", "sub"]
    passing.close()
    assert topics.get_subscriptions("topic") == ["sub"]
    client.subscribe("topic", "sub").unsubscribe()
    assert topics.get_subscriptions("topic") == [] == list(topics.get_stats("topic").subscriptions)
    client.subscribe("topic", "sub", consumer_name="again")
    assert [one.consumer_name for one in subscription(topics).consumers] == ["again"]


# -- partitions ------------------------------------------------------------------------------------------


def test_partitions_are_added_up(topics: Topics, client: Client):
    """A subscription, a consumer and a producer of several partitions are there once."""
    topics.create_partitioned_topic("orders", 3)
    assert topics.get_partitioned_stats("orders").totals == TopicStats(
        0.0, 0.0, 0.0, 0, 0, 0, 0, 0, (), 0, {}, "Disabled", None, 0
    )
    client.subscribe("orders", "sub", ConsumerType.Shared, consumer_name="c", receiver_queue_size=10)
    with client.create_producer("orders", "p") as producer:
        for number in range(30):
            producer.send(b"x", partition_key=str(number))
        found = topics.get_partitioned_stats("orders")
        assert [one.producer_name for one in found.totals.publishers] == ["p"]
    assert found.metadata.partitions == 3 == len(found.partitions)
    counts = [one.subscriptions["sub"].msg_backlog for one in found.partitions.values()]
    assert sum(counts) == 30 == found.totals.subscriptions["sub"].msg_backlog and min(counts) > 0
    (consumer,) = found.totals.subscriptions["sub"].consumers
    assert consumer.consumer_name == "c"
    assert found.totals.msg_in_counter == 30
    assert found.totals.storage_size == sum(one.storage_size for one in found.partitions.values())
    text = topics.get_partitioned_stats("orders", per_partition=False).json()
    assert text["partitions"] == {} and text["metadata"] == {"partitions": 3} and text["msgInCounter"] == 30
    assert topics.get_subscriptions("orders") == ["sub"]
    with pytest.raises(NotAllowedError, match=r"open its partitions.*get_partitioned_stats"):
        topics.get_stats("orders")
    topics.create_non_partitioned_topic("plain")
    with pytest.raises(NotAllowedError, match="not partitioned; use get_stats"):
        topics.get_partitioned_stats("plain")
    with pytest.raises(TopicNotFound):
        topics.get_partitioned_stats("missing")


# -- ledgers and cursors ---------------------------------------------------------------------------------


def test_internal_stats(five_per_ledger: None, topics: Topics, client: Client, topic: Topic):
    """Ledgers, and the position of each durable subscription, with what is acknowledged beyond it."""
    consumer = topic.consumer(consumer_type=ConsumerType.Shared)
    ids = topic.publish(10)
    messages = [consumer.receive() for _ in range(10)]
    for number in (0, 1, 3, 4, 6):
        consumer.acknowledge(messages[number])
    written(client)
    found = topics.get_internal_stats("topic")
    assert [(one.ledger_id, one.entries) for one in found.ledgers] == [
        (ids[0].ledger_id(), 5),
        (ids[5].ledger_id(), 5),
    ]
    assert found.entries_added_counter == found.number_of_entries == 10
    assert (
        found.total_size == sum(one.size for one in found.ledgers) == topics.get_stats("topic").storage_size
    )
    assert (found.current_ledger_entries, found.current_ledger_size) == (5, found.ledgers[1].size)
    first, last = ids[0].ledger_id(), ids[5].ledger_id()
    assert (found.last_confirmed_entry, found.state) == (f"{last}:4", "LedgerOpened")
    cursor = found.cursors["sub"].json()
    assert cursor == {
        "markDeletePosition": f"{first}:1",
        "readPosition": f"{last}:5",
        "individuallyDeletedMessages": f"[({first}:2..{first}:4],({last}:0..{last}:1]]",
        "numberOfEntriesSinceFirstNotAckedMessage": 8,
        "totalNonContiguousDeletedMessagesRange": 2,
        "state": "Open",
    }


def test_bytes_behind_a_message(topics: Topics, client: Client, topic: Topic):
    """Of everything after it; of all that is there from the beginning."""
    ids = topic.publish(4)
    size = topics.get_stats("topic").storage_size
    found = [topics.get_backlog_size_by_message_id("topic", one) for one in ids]
    assert found == [size * 3 // 4, size // 2, size // 4, 0]
    assert topics.get_backlog_size_by_message_id("topic", MessageId.earliest) == size
    assert topics.get_backlog_size_by_message_id("topic", MessageId.latest) == 0
    with pytest.raises(ValueError, match="MessageId"):
        topics.get_backlog_size_by_message_id("topic", "1:2")  # type: ignore[arg-type]


# -- what is not there -----------------------------------------------------------------------------------


def test_what_is_not_there(topics: Topics):
    """Topics and subscriptions that do not exist are refused; a topic that was never used is empty."""
    looks = [
        topics.get_stats,
        topics.get_internal_stats,
        topics.get_subscriptions,
        topics.get_last_message_id,
        topics.examine_message,
        lambda name: topics.analyze_subscription_backlog(name, "sub"),
        lambda name: topics.peek_messages(name, "sub", 1),
        lambda name: topics.get_message_id_by_timestamp(name, 0),
    ]
    for look in looks:
        with pytest.raises(TopicNotFound):
            look("topic")
        with pytest.raises(TopicNotFound):
            look("non-persistent://public/default/topic")
    assert topics.get_list() == []
    topics.create_non_partitioned_topic("topic")
    assert topics.get_stats("topic").storage_size == 0
    assert topics.get_internal_stats("topic").last_confirmed_entry == "-1:-1"
    assert str(topics.get_last_message_id("topic")) == "(-1,-1,-1,-1)"
    for look in looks[5:7]:
        with pytest.raises(SubscriptionNotFound, match="has no subscription 'sub'"):
            look("topic")
    for index in (3, "x"):
        with pytest.raises(TopicNotFound):
            topics.get_stats(f"topic-partition-{index}")


def test_a_subscription_of_a_new_consumer(topics: Topics, client: Client):
    """From the latest message: everything before it is not in its backlog."""
    with client.create_producer("topic") as producer:
        producer.send(b"before")
        client.subscribe("topic", "sub", initial_position=InitialPosition.Latest)
        assert (subscription(topics).msg_backlog, subscription(topics).backlog_size) == (0, 0)
        producer.send(b"after")
        assert subscription(topics).msg_backlog == 1
