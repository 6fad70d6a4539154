"""One consumer on several topics: `Client.subscribe` with a list."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from embeddedpulsar import (
    AlreadyClosed,
    BrokerMetadataError,
    Client,
    ConsumerBatchReceivePolicy,
    ConsumerBusy,
    ConsumerType,
    InvalidConfiguration,
    InvalidTopicName,
    MessageId,
    OperationNotSupported,
    Timeout,
)
from tests.children import in_child
from tests.conformance.conftest import receive_all
from tests.support.clients import subscribe, texts

TOPICS = ["red", "green", "blue"]


def publish(client: Client, *topics: str, count: int = 3) -> dict[str, list[Any]]:
    """Send ``red-0``, ``red-1`` and so on to each topic."""
    ids = {}
    for topic in topics or TOPICS:
        with client.create_producer(topic) as producer:
            ids[topic] = [producer.send(f"{topic}-{i}".encode()) for i in range(count)]
    return ids


def expected(count: int = 3, topics: list[str] | None = None) -> list[str]:
    """The payloads that `publish` sends, sorted."""
    return sorted(f"{topic}-{i}" for topic in topics or TOPICS for i in range(count))


def test_all_topics_are_received_each_in_order(client):
    """Every message of every topic comes once, and those of one topic in their order."""
    publish(client, count=50)
    messages = receive_all(subscribe(client, TOPICS))
    assert texts(messages) == expected(50)
    for topic in TOPICS:
        own = [message.data() for message in messages if message.topic_name().endswith(topic)]
        assert own == [f"{topic}-{i}".encode() for i in range(50)]


@pytest.mark.in_memory
def test_topics_take_turns(client):
    """A topic with much to say does not keep the others waiting."""
    publish(client, "red", count=500)
    publish(client, "green", "blue")
    consumer = subscribe(client, TOPICS)
    first = [consumer.receive(1000).topic_name() for _ in range(60)]
    assert len(set(first)) == 3


@pytest.mark.parametrize("by_id", [False, True])
def test_acknowledgements_find_their_topic(client, by_id):
    """Messages and ids are acknowledged on the topic they belong to, for good."""
    publish(client)
    consumer = subscribe(client, TOPICS)
    for message in receive_all(consumer):
        if not message.data().endswith(b"-1"):
            consumer.acknowledge(message.message_id() if by_id else message)
    consumer.close()
    assert texts(receive_all(subscribe(client, TOPICS))) == ["blue-1", "green-1", "red-1"]


def test_a_cumulative_acknowledgement_covers_one_topic(client):
    """Everything up to the message on its own topic is acknowledged, and nothing elsewhere."""
    publish(client)
    consumer = subscribe(client, TOPICS)
    (last_green,) = (one for one in receive_all(consumer) if one.data() == b"green-2")
    consumer.acknowledge_cumulative(last_green)
    consumer.close()
    assert texts(receive_all(subscribe(client, TOPICS))) == expected(3, ["red", "blue"])


def test_ids_of_other_topics_are_refused(client):
    """What belongs to a topic that is not among them cannot be acknowledged; ids of nothing are ignored."""
    other = publish(client, "black")["black"][0]
    message = client.create_reader("black", MessageId.earliest).read_next(1000)
    consumer = subscribe(client, TOPICS)
    for call in (consumer.acknowledge, consumer.negative_acknowledge, consumer.acknowledge_cumulative):
        for target in (other, message):
            with pytest.raises(OperationNotSupported, match="none of the topics"):
                call(target)
        with pytest.raises(TypeError):
            call(5)
        call(MessageId.earliest)


def test_nacks_find_their_topic(client):
    """A message that was given back comes again, with what is unacknowledged on its topic."""
    publish(client)
    consumer = subscribe(client, TOPICS, negative_ack_redelivery_delay_ms=100)
    for message in receive_all(consumer):
        if message.data() == b"green-1":
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    assert consumer.receive(5000).data() == b"green-1"
    with pytest.raises(Timeout):
        consumer.receive(300)


def test_everything_unacknowledged_comes_again(client):
    """redeliver_unacknowledged_messages concerns all topics."""
    publish(client)
    consumer = subscribe(client, TOPICS)
    for message in receive_all(consumer):
        if message.data().startswith(b"red"):
            consumer.acknowledge(message)
    consumer.redeliver_unacknowledged_messages()
    assert texts(receive_all(consumer)) == expected(3, ["green", "blue"])


def test_duplicates_are_removed(client):
    """A topic that is named twice, in whatever form, is subscribed to once."""
    publish(client)
    consumer = subscribe(client, [*TOPICS, "red", "persistent://public/default/green"])
    assert texts(receive_all(consumer)) == expected()


def test_one_topic_is_just_that(client):
    """A list that names one topic gives a consumer of that topic."""
    publish(client, "red")
    consumer = subscribe(client, ["red", "public/default/red"])
    assert consumer.topic() == "persistent://public/default/red"
    assert consumer.get_last_message_id().entry_id() == 2


def test_names_are_checked_before_anything_is_made(client):
    """One wrong name refuses all, and none of the topics is created."""
    with pytest.raises(InvalidTopicName):
        subscribe(client, ["red", "a/b"])
    with pytest.raises(TypeError, match="a topic is a str"):
        subscribe(client, ["red", 5])
    assert client._core.store.topics.names() == []


def test_missing_topics_are_made(client):
    """Subscribing makes the topics, and messages sent later arrive."""
    consumer = subscribe(client, TOPICS)
    assert len(client._core.store.topics.names()) == 3
    publish(client)
    assert texts(receive_all(consumer)) == expected()


def test_one_failure_fails_all(client):
    """When one subscription is held by another, that is the error, and the other topics are free again."""
    holder = client.subscribe("blue", "sub")
    with pytest.raises(ConsumerBusy):
        subscribe(client, TOPICS)
    client.subscribe("red", "sub").close()
    client.subscribe("green", "sub").close()
    holder.close()
    assert subscribe(client, TOPICS).is_connected()


def test_no_topic_at_all(client):
    """An empty list gives a consumer that waits for nothing."""
    consumer = subscribe(client, [])
    assert consumer.topic() == "EmptyTopics"
    assert consumer.is_connected()
    assert consumer.receive_nowait() is None
    with pytest.raises(Timeout):
        consumer.receive(10)
    consumer.close()
    assert not consumer.is_connected()


def test_names(client):
    """The topic of such a consumer is a made name; subscription and consumer have theirs."""
    consumer = subscribe(client, TOPICS, consumer_name="reader-1")
    assert consumer.topic().startswith("persistent://public/default/blue-TopicsConsumerFakeName-")
    assert (consumer.subscription_name(), consumer.consumer_name()) == ("sub", "reader-1")
    with pytest.raises(OperationNotSupported):
        consumer.get_last_message_id()


@pytest.mark.parametrize("topic", TOPICS)
def test_a_message_on_any_topic_wakes_it(client, store_url, topic):
    """A consumer that sleeps gets a message of whichever topic at once, also from another client."""
    consumer = subscribe(client, TOPICS)
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(consumer.receive(20_000)))
    waiting.start()
    with Client(store_url) as other:
        begun = time.monotonic()
        other.create_producer(topic).send(b"wake up")
        waiting.join()
    assert time.monotonic() - begun < 5
    assert got[0].topic_name().endswith(topic)


def test_closing_ends_a_receive(client):
    """A receive that waits raises AlreadyClosed when the consumer is closed."""
    consumer = subscribe(client, TOPICS)
    raised: list[Any] = []

    def wait() -> None:
        try:
            consumer.receive()
        except AlreadyClosed as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    consumer.close()
    waiting.join(10)
    assert len(raised) == 1


def test_a_closed_consumer_refuses_everything(client):
    """After close every call raises AlreadyClosed, but for those that give back what has gone to others."""
    publish(client, "red")
    consumer = subscribe(client, TOPICS)
    message = consumer.receive(1000)
    consumer.close()
    consumer.negative_acknowledge(message)
    for call in (
        consumer.receive,
        consumer.receive_nowait,
        consumer.batch_receive,
        consumer.close,
        consumer.unsubscribe,
        lambda: consumer.acknowledge(message),
        lambda: consumer.seek(0),
    ):
        with pytest.raises(AlreadyClosed):
            call()
    consumer.redeliver_unacknowledged_messages()


def test_a_listener_gets_all_topics_one_message_at_a_time(client):
    """Whatever the topic, the listener is called by one thread, and may acknowledge."""
    seen: list[str] = []
    calls = {"now": 0, "most": 0}
    done = threading.Event()

    def listener(consumer: Any, message: Any) -> None:
        calls["now"] += 1
        calls["most"] = max(calls["most"], calls["now"])
        seen.append(message.data().decode())
        consumer.acknowledge(message)
        calls["now"] -= 1
        if len(seen) == 9:
            done.set()

    consumer = subscribe(client, TOPICS, message_listener=listener)
    publish(client)
    assert done.wait(10)
    assert sorted(seen) == expected()
    assert calls["most"] == 1
    with pytest.raises(InvalidConfiguration):
        consumer.receive(10)
    consumer.pause_message_listener()
    consumer.resume_message_listener()
    consumer.close()


def test_batches_hold_messages_of_all_topics(client):
    """batch_receive gathers from all topics, up to its limit; the rest stays."""
    publish(client)
    policy = ConsumerBatchReceivePolicy(5, -1, 200)
    consumer = subscribe(client, TOPICS, batch_receive_policy=policy)
    first = consumer.batch_receive()
    assert len(first) == 5
    assert texts([*first, *consumer.batch_receive()]) == expected()


def test_a_batch_that_is_too_large_waits(client):
    """A message beyond the byte limit comes first the next time, on its own topic."""
    publish(client, "red", count=2)
    consumer = subscribe(client, TOPICS, batch_receive_policy=ConsumerBatchReceivePolicy(-1, 8, 100))
    assert [one.data() for one in consumer.batch_receive()] == [b"red-0"]
    assert [one.data() for one in consumer.batch_receive()] == [b"red-1"]


def test_seek_to_the_ends_and_to_a_time_moves_all(client):
    """Earliest, latest and times mean something on every topic."""
    publish(client)
    consumer = subscribe(client, TOPICS)
    receive_all(consumer)
    consumer.seek(MessageId.earliest)
    assert texts(receive_all(consumer)) == expected()
    consumer.seek(MessageId.latest)
    assert receive_all(consumer) == []
    consumer.seek(0)
    assert texts(receive_all(consumer)) == expected()


def test_seek_to_an_id_moves_its_topic(client):
    """Ids are unique in a store, so an id says which topic it means; those of other topics are refused."""
    ids = publish(client)
    other = publish(client, "black")["black"][0]
    consumer = subscribe(client, TOPICS)
    receive_all(consumer)
    consumer.seek(ids["green"][0])
    assert texts(receive_all(consumer)) == ["green-1", "green-2"]
    with pytest.raises(OperationNotSupported):
        consumer.seek(other)


def test_unsubscribe_deletes_all(client):
    """The subscription is gone on every topic, and the consumer closed."""
    publish(client)
    consumer = subscribe(client, TOPICS)
    consumer.unsubscribe()
    assert not consumer.is_connected()
    store = client._core.store
    assert [store.use_topic(name).topic.subscriptions() for name in store.topics.names()] == [[], [], []]


def test_unsubscribe_needs_to_be_alone_everywhere(client):
    """When one of the subscriptions has another consumer, none is deleted and the consumer stays."""
    publish(client)
    consumer = subscribe(client, TOPICS, consumer_type=ConsumerType.Shared)
    other = client.subscribe("blue", "sub", ConsumerType.Shared)
    with pytest.raises(BrokerMetadataError):
        consumer.unsubscribe()
    assert texts(receive_all(consumer)) == expected()
    other.close()
    consumer.unsubscribe()
    assert client._core.store.use_topic("red").topic.subscriptions() == []


def test_a_lost_subscription_ends_it_all(client):
    """When one topic's subscription is deleted, the consumer is closed, and the other topics are free."""
    consumer = subscribe(client, TOPICS)
    client._core.store.use_topic("green").topic.subscription("sub").delete(force=True)
    with pytest.raises(AlreadyClosed):
        consumer.receive(5000)
    assert not consumer.is_connected()
    client.subscribe("red", "sub").close()


def test_acknowledgement_timeouts_and_queues_of_size_0(client):
    """Options hold for each topic; a queue of size 0 takes no timeout here either."""
    publish(client)
    consumer = subscribe(client, TOPICS, receiver_queue_size=0, unacked_messages_timeout_ms=10_000)
    with pytest.raises(InvalidConfiguration):
        consumer.receive(10)
    assert texts([consumer.receive() for _ in range(9)]) == expected()


def test_all_queues_together_are_bounded(client):
    """Each topic gets its share of max_total_receiver_queue_size_across_partitions."""
    publish(client, count=20)
    consumer = subscribe(client, TOPICS, max_total_receiver_queue_size_across_partitions=12)
    consumer.receive(1000)
    assert max(len(child.queue) for child in consumer._core.children.values()) <= 4
    assert len(receive_all(consumer)) == 59


def test_it_can_be_awaited(client):
    """receive_async takes from all topics, and sleeps until one has something."""

    async def main() -> list[Any]:
        consumer = subscribe(client, TOPICS)
        waiting = [asyncio.create_task(consumer.receive_async()) for _ in range(9)]
        await asyncio.wait(waiting, timeout=0)
        publish(client)
        return await asyncio.wait_for(asyncio.gather(*waiting), timeout=20)

    assert texts(asyncio.run(main())) == expected()


def test_a_forked_child_has_none(client):
    """The consumer, and the acknowledgement of what it received, stay the parent's."""
    publish(client)
    consumer = subscribe(client, TOPICS)
    message = consumer.receive(1000)

    def use() -> str:
        raised = []
        for call in (consumer.receive, lambda: consumer.acknowledge(message), consumer.close):
            try:
                call()
            except AlreadyClosed as error:
                raised.append("parent" in str(error))
        return str(raised)

    assert in_child(use) == "[True, True, True]"
    consumer.acknowledge(message)
    assert len(receive_all(consumer)) == 8


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_several_consumers_share_several_topics(client, kind):
    """Two consumers of the same topics get every message between them, once."""
    publish(client, count=20)
    consumers = [subscribe(client, TOPICS, consumer_type=kind, receiver_queue_size=2) for _ in range(2)]
    messages: list[Any] = []
    until = time.monotonic() + 20
    while len(messages) < len(expected(20)) and time.monotonic() < until:
        for consumer in consumers:  # None is not the end: a timer may hold the lock
            message = consumer.receive_nowait()
            if message is not None:
                consumer.acknowledge(message)
                messages.append(message)
    assert texts(messages) == expected(20)
    assert [consumer.receive_nowait() for consumer in consumers] == [None, None]


def test_the_standby_takes_over_all_topics(client):
    """With Failover, what the first consumer leaves unacknowledged goes to the other when it closes."""
    publish(client)
    first = subscribe(client, TOPICS, consumer_type=ConsumerType.Failover, consumer_name="a")
    second = subscribe(client, TOPICS, consumer_type=ConsumerType.Failover, consumer_name="b")
    one = receive_all(first, 300)
    two = receive_all(second, 300)
    assert texts([*one, *two]) == expected()
    first.close()
    again = receive_all(second, 300)
    assert texts([*two, *again]) == expected()
