"""One consumer over all partitions of a topic: `Client.subscribe` with the name of a partitioned topic."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from embeddedpulsar import (
    AlreadyClosed,
    BrokerMetadataError,
    Client,
    ConsumerBatchReceivePolicy,
    ConsumerBusy,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    CumulativeAcknowledgementNotAllowedError,
    InitialPosition,
    InvalidConfiguration,
    MessageId,
    NotAllowedError,
    OperationNotSupported,
    Timeout,
    TopicNotFound,
)
from tests.conformance.conftest import receive_all
from tests.support.clients import store_of, subscribe, texts

BASE = "persistent://public/default/orders"
PARTITIONS = 3


@pytest.fixture(autouse=True)
def partitioned(client: Client) -> None:
    """The topic has three partitions."""
    store_of(client).topics.create_partitioned("orders", PARTITIONS)


def publish(client: Client, count: int = 3, partitions: range = range(PARTITIONS)) -> dict[int, list[Any]]:
    """Send ``0-0``, ``0-1`` and so on to each partition."""
    ids = {}
    for index in partitions:
        with client.create_producer(f"orders-partition-{index}") as producer:
            ids[index] = [producer.send(f"{index}-{i}".encode(), partition_key=f"k{i}") for i in range(count)]
    return ids


def expected(count: int = 3, partitions: range = range(PARTITIONS)) -> list[str]:
    """The payloads that `publish` sends, sorted."""
    return sorted(f"{index}-{i}" for index in partitions for i in range(count))


def test_the_partitions_have_names(client):
    """`get_topic_partitions` gives them; of a topic without partitions, its own name."""
    assert client.get_topic_partitions("orders") == [f"{BASE}-partition-{i}" for i in range(3)]
    assert client.get_topic_partitions("orders-partition-1") == [f"{BASE}-partition-1"]
    assert client.get_topic_partitions("other") == ["persistent://public/default/other"]
    for name in ("orders-partition-3", "public/nowhere/orders", "nobody/default/orders"):
        with pytest.raises(TopicNotFound):
            client.get_topic_partitions(name)


@pytest.mark.in_memory
def test_everything_comes_each_partition_in_order(client):
    """The consumer is of the topic; messages say which partition they are of, and so do their ids."""
    publish(client, 50)
    consumer = subscribe(client, "orders")
    assert consumer.topic() == BASE and consumer.is_connected()
    messages = receive_all(consumer)
    assert texts(messages) == expected(50)
    for index in range(PARTITIONS):
        own = [one for one in messages if one.topic_name() == f"{BASE}-partition-{index}"]
        assert [one.data() for one in own] == [f"{index}-{i}".encode() for i in range(50)]
        assert {one.message_id().partition() for one in own} == {index}


def test_partitions_take_turns(client):
    """One with much to say does not keep the others waiting."""
    publish(client, 500, range(1))
    publish(client, 3, range(1, 3))
    consumer = subscribe(client, "orders")
    assert len({consumer.receive(1000).topic_name() for _ in range(60)}) == 3


@pytest.mark.parametrize("how", ["message", "id", "id that was stored"])
def test_acknowledgements_find_their_partition(client, how):
    """For good."""
    publish(client)
    consumer = subscribe(client, "orders")
    for message in receive_all(consumer):
        if not message.data().endswith(b"-1"):
            target = message if how == "message" else message.message_id()
            if how == "id that was stored":
                target = MessageId.deserialize(target.serialize())
            consumer.acknowledge(target)
    consumer.close()
    assert texts(receive_all(subscribe(client, "orders"))) == ["0-1", "1-1", "2-1"]


def test_a_cumulative_acknowledgement_covers_one_partition(client):
    """Everything up to the message, on its own partition."""
    publish(client)
    consumer = subscribe(client, "orders")
    (last,) = (one for one in receive_all(consumer) if one.data() == b"1-2")
    consumer.acknowledge_cumulative(last)
    consumer.close()
    assert texts(receive_all(subscribe(client, "orders"))) == ["0-0", "0-1", "0-2", "2-0", "2-1", "2-2"]
    shared = client.subscribe("orders", "shared", ConsumerType.Shared)
    with pytest.raises(CumulativeAcknowledgementNotAllowedError):
        shared.acknowledge_cumulative(last)


def test_nacks_find_their_partition(client):
    """A message given back comes again."""
    publish(client)
    consumer = subscribe(
        client, "orders", consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
    )
    for message in receive_all(consumer):
        if message.data() == b"2-1":
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    again = consumer.receive(5000)
    assert again.data() == b"2-1" and again.redelivery_count() == 1
    with pytest.raises(Timeout):
        consumer.receive(20)


def test_everything_unacknowledged_comes_again(client):
    """`redeliver_unacknowledged_messages` concerns all partitions."""
    publish(client)
    consumer = subscribe(client, "orders")
    receive_all(consumer)
    consumer.redeliver_unacknowledged_messages()
    assert texts(receive_all(consumer)) == expected()


def test_seek_moves_every_partition_or_the_one_of_an_id(client):
    """Earliest, latest and times concern all."""
    ids = publish(client)
    consumer = subscribe(client, "orders")
    receive_all(consumer)
    consumer.seek(MessageId.earliest)
    assert texts(receive_all(consumer)) == expected()
    consumer.seek(MessageId.latest)
    assert receive_all(consumer) == []
    consumer.seek(ids[1][0])
    assert texts(receive_all(consumer)) == ["1-1", "1-2"]
    consumer.seek(0)
    assert texts(receive_all(consumer)) == expected()


def test_there_is_no_last_message(client):
    """Each partition has one."""
    consumer = subscribe(client, "orders")
    with pytest.raises(OperationNotSupported):
        consumer.get_last_message_id()
    one = client.subscribe("orders-partition-2", "other")
    assert one.get_last_message_id().partition() == 2


def test_the_queue_is_divided(client):
    """At most 50,000 messages for all partitions together, or what is said instead."""
    consumer = subscribe(client, "orders", max_total_receiver_queue_size_across_partitions=30)
    sizes = {child.config.receiver_queue_size for child in consumer._core.children.values()}
    assert sizes == {10}
    assert {one.config.receiver_queue_size for one in subscribe_other(client)} == {1000}


def subscribe_other(client: Client) -> Any:
    """The parts of another consumer, with default sizes."""
    return client.subscribe("orders", "other")._core.children.values()


def test_a_queue_of_size_0_is_refused(client):
    """On the topic; a partition takes it."""
    with pytest.raises(InvalidConfiguration, match="receiver_queue_size=0"):
        subscribe(client, "orders", receiver_queue_size=0)
    assert client.subscribe("orders-partition-0", "sub", receiver_queue_size=0).is_connected()


def test_unsubscribe_concerns_every_partition(client):
    """And nothing is deleted while one of them has another consumer."""
    consumer = subscribe(client, "orders", consumer_type=ConsumerType.Shared)
    other = client.subscribe("orders-partition-1", "sub", ConsumerType.Shared)
    with pytest.raises(BrokerMetadataError):
        consumer.unsubscribe()
    assert subscriptions(client) == [["sub"]] * 3
    other.close()
    consumer.unsubscribe()
    assert subscriptions(client) == [[]] * 3
    with pytest.raises(AlreadyClosed):
        consumer.receive(10)


def subscriptions(client: Client) -> list[list[str]]:
    """The subscriptions of every partition."""
    store = store_of(client)
    return [store.use_topic(name).topic.subscriptions() for name in store.topics.names()]


def test_all_partitions_or_none(client):
    """One that has a consumer already keeps the new one from all."""
    held = client.subscribe("orders-partition-2", "sub")
    with pytest.raises(ConsumerBusy):
        subscribe(client, "orders")
    held.close()
    assert subscribe(client, "orders").is_connected()


def test_one_partition_alone(client):
    """It is a plain topic, whose ids know their partition."""
    publish(client)
    consumer = client.subscribe(
        "orders-partition-1", "alone", initial_position=InitialPosition.Earliest, receiver_queue_size=5
    )
    assert consumer.topic() == f"{BASE}-partition-1"
    messages = receive_all(consumer)
    assert [one.data() for one in messages] == [b"1-0", b"1-1", b"1-2"]
    assert {one.message_id().partition() for one in messages} == {1}
    with pytest.raises(TopicNotFound, match="has 3 partitions"):
        client.subscribe("orders-partition-3", "alone")
    with pytest.raises(NotAllowedError, match="partitioned topic"):
        store_of(client).use_topic("orders")


def test_partitioned_and_plain_topics_together(client):
    """A list may mix them; and with a retry topic, too."""
    publish(client)
    with client.create_producer("plain") as producer:
        producer.send(b"plain")
    consumer = client.subscribe(["orders", "plain"], "sub", initial_position=InitialPosition.Earliest)
    assert texts(receive_all(consumer)) == [*expected(), "plain"]


def test_waiting_ends_with_a_message_of_any_partition(client):
    """In a thread, in a loop, and with a listener."""
    consumer = subscribe(client, "orders")
    received: list[bytes] = []
    waiting = threading.Thread(target=lambda: received.append(consumer.receive(10_000).data()))
    waiting.start()
    publish(client, 1, range(2, 3))
    waiting.join()
    assert received == [b"2-0"]

    async def awaiting() -> bytes:
        return (await asyncio.wait_for(consumer.receive_async(), 10)).data()

    publish(client, 1, range(1))
    assert asyncio.run(awaiting()) == b"0-0"
    consumer.close()
    got = threading.Semaphore(0)
    listening = client.subscribe(
        "orders",
        "listening",
        message_listener=lambda consumer, message: (consumer.acknowledge(message), got.release()),
    )
    publish(client, 2)
    for _ in range(6):
        assert got.acquire(timeout=10)
    listening.close()


def test_batches_are_collected_over_partitions(client):
    """`batch_receive` does not care where messages come from."""
    publish(client)
    policy = ConsumerBatchReceivePolicy(max_num_message=9, max_num_bytes=-1, timeout_ms=5000)
    assert texts(subscribe(client, "orders", batch_receive_policy=policy).batch_receive()) == expected()


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_several_consumers_share_every_partition(client, kind):
    """Each message comes to one of them."""
    publish(client, 30)
    consumers = [subscribe(client, "orders", consumer_type=kind) for _ in range(2)]
    publish(client, 30)
    messages: list[Any] = []
    while True:
        found = [message for one in consumers for message in iter(one.receive_nowait, None)]
        if not found:
            break
        messages += found
        for one in consumers:
            for message in found:
                one.acknowledge(message)
    assert texts(messages) == sorted(expected(30) * 2)


def test_letters_are_named_after_the_topic(client):
    """All partitions have one topic for dead letters, and one for retries."""
    publish(client, 1)
    consumer = subscribe(
        client,
        "orders",
        consumer_type=ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=ConsumerDeadLetterPolicy(1, initial_subscription_name="look"),
    )
    for _ in range(2):
        for message in [consumer.receive(5000) for _ in range(3)]:
            consumer.negative_acknowledge(message)
    dead = client.subscribe("orders-sub-DLQ", "look", initial_position=InitialPosition.Earliest)
    letters = [dead.receive(5000) for _ in range(3)]
    assert texts(letters) == ["0-0", "1-0", "2-0"]
    assert {one.properties()["REAL_TOPIC"] for one in letters} == {f"{BASE}-partition-{i}" for i in range(3)}
    consumer.close()
    retrying = client.subscribe(
        "orders", "again", ConsumerType.Shared, initial_position=InitialPosition.Earliest, enable_retry=True
    )
    assert retrying.topic() == BASE
    for _ in range(3):
        retrying.reconsume_later(retrying.receive(5000), 0)
    again = [retrying.receive(5000) for _ in range(3)]
    assert {one.topic_name() for one in again} == {f"{BASE}-again-RETRY"}
    assert texts(again) == ["0-0", "1-0", "2-0"]


def test_letters_go_to_a_partitioned_topic_too(client):
    """To one of its partitions, where the subscription of the policy waits for them."""
    store_of(client).topics.create_partitioned("dead", 2)
    publish(client, 1, range(1))
    consumer = subscribe(
        client,
        "orders",
        consumer_type=ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=ConsumerDeadLetterPolicy(1, "dead", "look"),
    )
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(5000))
    dead = client.subscribe("dead", "look")
    assert dead.receive(5000).data() == b"0-0"


def test_topics_make_themselves_as_the_settings_say(tmp_path):
    """With ``allowAutoTopicCreationType=partitioned``, subscribing makes a partitioned topic."""
    root = tmp_path / "partitioning"
    root.mkdir(mode=0o700)
    (root / "broker.conf").write_text("allowAutoTopicCreationType=partitioned\ndefaultNumPartitions=2\n")
    with Client(root) as other:
        assert other.get_topic_partitions("orders") == [BASE]
        assert other.subscribe("orders", "sub").topic() == BASE
        assert len(other.get_topic_partitions("orders")) == 2
