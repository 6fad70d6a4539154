"""Non-persistent topics: messages for the consumers that are there, each at most once, and counted drops."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar.asyncio as asyncio_client
from embeddedpulsar import (
    Admin,
    BatchingType,
    Client,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    CumulativeAcknowledgementNotAllowedError,
    InitialPosition,
    InvalidConfiguration,
    MessageId,
    MessageTooBig,
    NotAllowedError,
    SubscriptionMode,
    Timeout,
    TopicNotFound,
)
from embeddedpulsar.admin.topic_stats import SubscriptionStats
from embeddedpulsar.admin.topics import Topics
from tests.conformance.conftest import Topic

NAME = "non-persistent://public/default/topic"
TYPES = list(ConsumerType)
SINGLE = [ConsumerType.Exclusive, ConsumerType.Failover]
SHARED = [ConsumerType.Shared, ConsumerType.KeyShared]
MESSAGE = b"x" * 1000
NOTHING_MS = 50


@pytest.fixture
def topic(client: Client) -> Topic:
    """A non-persistent topic of the client."""
    made = Topic(client)
    made.name = NAME
    return made


@pytest.fixture
def small_ring(store_path: Path) -> None:
    """A ring of one MiB, a thousand messages. To be asked for before the client."""
    store_path.mkdir()
    (store_path / "broker.conf").write_text("nonPersistentTopicRingSizeInMB=1\n")


def texts(consumer: Any, count: int) -> list[bytes]:
    """The payloads of the next messages; there are no more."""
    found = [consumer.receive(5000).data() for _ in range(count)]
    nothing(consumer)
    return found


def nothing(consumer: Any) -> None:
    """There is no message for a consumer."""
    with pytest.raises(Timeout):
        consumer.receive(NOTHING_MS)


def stats(topics: Topics, name: str = "sub") -> SubscriptionStats:
    """The stats of one subscription."""
    return topics.get_stats(NAME).subscriptions[name]


def drops(topics: Topics, *consumers: Any) -> int | None:
    """What a subscription lost, once its consumers have settled, which they do after 0.1 s."""
    for consumer in consumers:
        consumer._core.session.attachment._acknowledge_given()
    return stats(topics).msg_drop_counter


@pytest.mark.in_memory
@pytest.mark.parametrize("kind", TYPES)
def test_messages_for_the_consumers_that_are_there(topic, kind):
    """A new consumer gets what is sent from then on; its initial position is ignored."""
    topic.publish(2)
    consumer = topic.consumer(consumer_type=kind)
    topic.publish(3)
    assert texts(consumer, 3) == [b"hello-0", b"hello-1", b"hello-2"]
    consumer.close()
    topic.publish(2)
    consumer = topic.consumer(consumer_type=kind)
    nothing(consumer)
    topic.publish(1)
    assert texts(consumer, 1) == [b"hello-0"]


@pytest.mark.in_memory
@pytest.mark.parametrize("kind", TYPES)
def test_no_message_comes_twice(topic, kind):
    """Acknowledging, refusing, seeking and closing change nothing; the redelivery count is 0."""
    consumer = topic.consumer(
        consumer_type=kind, negative_ack_redelivery_delay_ms=1, unacked_messages_timeout_ms=10_000
    )
    ids = topic.publish(4)
    first, second = consumer.receive(5000), consumer.receive(5000)
    assert [first.message_id(), second.message_id()] == ids[:2]
    consumer.negative_acknowledge(first)
    consumer.acknowledge(second)
    consumer.acknowledge(second.message_id())
    consumer.redeliver_unacknowledged_messages()
    consumer.seek(MessageId.earliest)
    consumer.seek(0)
    assert first.redelivery_count() == 0
    assert texts(consumer, 2) == [b"hello-2", b"hello-3"]
    consumer.close()
    nothing(topic.consumer(consumer_type=kind))


@pytest.mark.parametrize("kind", SHARED)
def test_cumulative_acknowledgement_is_refused(topic, kind):
    """As for persistent topics, on the types that have none."""
    consumer = topic.consumer(consumer_type=kind)
    topic.publish(1)
    message = consumer.receive(5000)
    with pytest.raises(CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(message)


@pytest.mark.parametrize("kind", SINGLE)
def test_cumulative_acknowledgement_does_nothing(topic, kind):
    """It is accepted on the others."""
    consumer = topic.consumer(consumer_type=kind)
    topic.publish(2)
    consumer.receive(5000)
    consumer.acknowledge_cumulative(consumer.receive(5000))
    nothing(consumer)


@pytest.mark.in_memory
@pytest.mark.parametrize("kind", TYPES)
def test_batches(topic, topics, kind):
    """A batch is an entry: all its messages arrive, and are counted one by one."""
    consumer = topic.consumer(consumer_type=kind)
    options: dict[str, Any] = {}
    if kind == ConsumerType.KeyShared:
        options["batching_type"] = BatchingType.KeyBased
    topic.publish_batch(10, **options)
    assert len(texts(consumer, 10)) == 10
    assert drops(topics, consumer) == 0
    consumer.close()
    topic.publish_batch(10, **options)
    assert stats(topics).msg_drop_counter == 10


def test_shared_divides_the_messages(topic):
    """Each message goes to one of the consumers."""
    consumers = [topic.consumer(consumer_type=ConsumerType.Shared, receiver_queue_size=1) for _ in range(3)]
    topic.publish(30)
    found: list[bytes] = []
    while len(found) < 30:
        for consumer in consumers:
            message = consumer.receive_nowait()
            found += [] if message is None else [message.data()]
    assert sorted(found) == sorted(b"hello-%d" % number for number in range(30))
    for consumer in consumers:
        nothing(consumer)


def test_key_shared_divides_by_key(topic):
    """The messages of a key go to one consumer, in order."""
    one, other = (topic.consumer(consumer_type=ConsumerType.KeyShared) for _ in range(2))
    with topic.producer() as producer:
        for number in range(60):
            producer.send(b"%d" % number, partition_key=f"key {number % 6}")
    found: dict[str, list[tuple[str, int]]] = {}
    for consumer in (one, other):
        while (message := consumer.receive_nowait()) is not None:
            at = consumer.consumer_name(), int(message.data())
            found.setdefault(message.partition_key(), []).append(at)
    assert sorted(found) == [f"key {number}" for number in range(6)]
    for number in range(6):
        names, numbers = zip(*found[f"key {number}"], strict=True)
        assert len(set(names)) == 1
        assert list(numbers) == list(range(number, 60, 6))


@pytest.mark.parametrize("kind", SHARED)
def test_what_was_fetched_and_not_taken_goes_to_others(topic, kind):
    """A consumer that closes leaves the messages its application has not taken; they are not redelivered."""
    leaving = topic.consumer(consumer_type=kind)
    topic.publish(10)
    taken = [leaving.receive(5000).data() for _ in range(3)]
    staying = topic.consumer(consumer_type=kind)
    leaving.close()
    rest = [staying.receive(5000) for _ in range(7)]
    assert sorted(taken + [one.data() for one in rest]) == sorted(b"hello-%d" % one for one in range(10))
    assert {one.redelivery_count() for one in rest} == {0}
    nothing(staying)


def test_a_standby_begins_when_it_takes_over(topic, topics):
    """What was sent to the consumer that was active before does not come again."""
    first = topic.consumer(consumer_type=ConsumerType.Failover, consumer_name="a")
    second = topic.consumer(consumer_type=ConsumerType.Failover, consumer_name="b")
    topic.publish(3)
    assert first.receive(5000).data() == b"hello-0"
    nothing(second)
    first.close()
    nothing(second)
    topic.publish(1)
    assert texts(second, 1) == [b"hello-0"]
    assert drops(topics, second) == 2


@pytest.mark.parametrize("kind", TYPES)
def test_a_slow_consumer_loses_the_oldest(small_ring, topic, topics, kind):
    """The ring holds a MiB: of more, the newest arrive, in order, and the rest is counted."""
    consumer = topic.consumer(consumer_type=kind)
    with topic.producer() as producer:
        for number in range(3000):
            producer.send(b"%05d" % number + MESSAGE)
    found = []
    while (message := consumer.receive_nowait()) is not None:
        found.append(int(message.data()[:5]))
    assert found == sorted(set(found))
    assert found[-1] == 2999
    assert 500 < len(found) < 1500
    assert drops(topics, consumer) == 3000 - len(found)
    assert stats(topics).msg_drop_rate > 0
    assert topics.get_stats(NAME).storage_size <= 1 << 20
    assert topics.get_stats(NAME).msg_in_counter == 3000


def test_a_large_message(small_ring, topic):
    """A message that is larger than the ring arrives, if the consumer takes it before the next comes."""
    consumer = topic.consumer()
    with topic.producer(max_pending_messages=1) as producer:
        for number in range(3):
            producer.send(b"%d" % number * (2 << 20))
            assert consumer.receive(5000).data() == b"%d" % number * (2 << 20)


def test_readers_get_live_messages(topic):
    """Wherever they are to start, and wherever they seek."""
    topic.publish(2)
    reader = topic.client.create_reader(NAME, MessageId.earliest)
    assert not reader.has_message_available()
    topic.publish(2)
    assert reader.has_message_available()
    assert [reader.read_next(5000).data() for _ in range(2)] == [b"hello-0", b"hello-1"]
    reader.seek(MessageId.earliest)
    assert not reader.has_message_available()


def test_drops_without_a_consumer(topic, topics):
    """A subscription that nobody is attached to loses everything; a new one has lost nothing."""
    topic.publish(3)
    topic.consumer().close()
    assert stats(topics).msg_drop_counter == 0
    topic.publish(4)
    found = stats(topics)
    assert (found.msg_drop_counter, found.msg_backlog, found.type) == (4, 0, "None")
    assert found.msg_drop_rate == topics.get_stats(NAME).msg_rate_in
    answer = topics.get_stats(NAME).json()
    assert answer["subscriptions"]["sub"]["msgDropRate"] > 0
    assert answer["msgDropRate"] == answer["subscriptions"]["sub"]["msgDropRate"]
    with topic.producer():
        assert topics.get_stats(NAME).json()["publishers"][0]["msgDropRate"] == 0.0
    topic.client.create_producer("persistent")
    assert "msgDropRate" not in topics.get_stats("persistent").json()


def test_stats_of_partitions(client, store_url, topics):
    """A partitioned topic: its partitions lose messages, and the sums count them."""
    topics.create_partitioned_topic(NAME, 3)
    consumer = client.subscribe(NAME, "sub")
    producer = client.create_producer(NAME)
    for number in range(9):
        producer.send(b"%d" % number)
    assert sorted(consumer.receive(5000).data() for _ in range(9)) == [b"%d" % one for one in range(9)]
    consumer.close()
    for number in range(6):
        producer.send(b"%d" % number)
    found = topics.get_partitioned_stats(NAME, per_partition=True)
    assert found.totals.subscriptions["sub"].msg_drop_counter == 6
    assert found.totals.msg_drop_rate > 0
    assert topics.get_partitioned_topic_list() == [NAME]
    topics.delete_partitioned_topic(NAME, force=True)
    assert topics.get_list() == []


def test_admin_makes_lists_and_deletes(store_url, client, topics):
    """The kinds of topics are kept apart: one name may be both."""
    topics.create_non_partitioned_topic(NAME)
    topics.create_non_partitioned_topic("topic")
    persistent = "persistent://public/default/topic"
    assert topics.get_list() == [NAME, persistent]
    with Admin(store_url) as admin:
        listed = admin.namespaces().get_topics
        assert listed("public/default") == [persistent]
        assert listed("public/default", "NON_PERSISTENT") == [NAME]
        assert listed("public/default", "ALL") == [NAME, persistent]
        with pytest.raises(ValueError, match="mode is"):
            listed("public/default", "BOTH")
    assert topics.get_stats(NAME).msg_in_counter == 0
    client.create_producer(NAME).send(b"hello")
    assert topics.get_stats(NAME).msg_in_counter == 1
    assert topics.get_stats("topic").msg_in_counter == 0
    topics.delete(NAME, force=True)
    with pytest.raises(TopicNotFound):
        topics.get_stats(NAME)
    assert topics.get_list() == [persistent]


def test_a_topic_that_is_made_again(topic, topics):
    """Its subscriptions went with it."""
    consumer = topic.consumer()
    topic.publish(1)
    consumer.close()
    assert topics.get_subscriptions(NAME) == ["sub"]
    topics.delete(NAME)
    topic.publish(1)
    assert topics.get_subscriptions(NAME) == []


def test_several_topics_and_patterns(client):
    """Topics of both kinds in one consumer; each acts by its own rules."""
    both = [NAME, "persistent://public/default/topic"]
    consumer = client.subscribe(both, "sub", negative_ack_redelivery_delay_ms=1)
    for name in both:
        client.create_producer(name).send(name.encode())
    found = [consumer.receive(5000) for _ in range(2)]
    assert sorted(one.topic_name() for one in found) == sorted(both)
    for message in found:
        consumer.negative_acknowledge(message)
    again = consumer.receive(5000)
    assert again.topic_name() == both[1]
    consumer.acknowledge(again)
    nothing(consumer)
    pattern = client.subscribe(re.compile("non-persistent://public/default/to.*"), "other")
    assert list(pattern._core.children) == [both[1]]  # the mode counts, as in Pulsar


def test_options_that_need_redelivery_have_no_effect(topic):
    """A dead letter policy never finds a letter."""
    policy = ConsumerDeadLetterPolicy(1, "letters")
    consumer = topic.consumer(
        consumer_type=ConsumerType.Shared,
        dead_letter_policy=policy,
        negative_ack_redelivery_delay_ms=1,
        batch_index_ack_enabled=True,
    )
    topic.publish(1)
    consumer.negative_acknowledge(consumer.receive(5000))
    nothing(consumer)
    assert not topic.client._core.store.topics.has("letters")


def test_delays_are_ignored(topic):
    """A delayed message is delivered at once: there is no place where it would wait."""
    consumer = topic.consumer(consumer_type=ConsumerType.Shared)
    with topic.producer() as producer:
        producer.send(b"hello", deliver_after=timedelta(hours=1))
    assert texts(consumer, 1) == [b"hello"]


def test_chunks_are_not_made(topic):
    """As in Pulsar, chunking_enabled has no effect: a message that is too large is refused."""
    with topic.producer(chunking_enabled=True) as producer, pytest.raises(MessageTooBig):
        producer.send(bytes(6 << 20))


def test_a_cursor_is_not_reset(topic, topics):
    """A message that was delivered does not come again."""
    topic.consumer().close()
    for target in (MessageId.earliest, 0):
        with pytest.raises(NotAllowedError, match="no earlier place"):
            topics.reset_cursor(NAME, "sub", target)


def test_an_operator_empties_it(topic, topics):
    """Skipped messages are lost, and counted."""
    consumer = topic.consumer(consumer_type=ConsumerType.Shared)
    topic.publish(5)
    assert topics.skip_messages(NAME, "sub", 2) == 2
    assert texts(consumer, 3) == [b"hello-2", b"hello-3", b"hello-4"]
    assert drops(topics, consumer) == 2


def test_table_views_are_refused(client):
    """They need a topic that keeps its messages."""
    with pytest.raises(InvalidConfiguration, match="keeps its messages"):
        client.create_table_view(NAME)


def test_subscriptions_that_are_not_durable(topic, topics):
    """They work, and vanish with their last consumer."""
    consumer = topic.consumer(subscription_mode=SubscriptionMode.NonDurable)
    topic.publish(2)
    assert len(texts(consumer, 2)) == 2
    consumer.close()
    assert topics.get_subscriptions(NAME) == []


def test_deduplication_is_ignored(store_url, topic):
    """A sequence id that was sent before is no reason to drop a message."""
    with Admin(store_url) as admin:
        admin.namespaces().set_deduplication_status("public/default", True)
    consumer = topic.consumer()
    with topic.producer(producer_name="p") as producer:
        for _ in range(2):
            producer.send(b"hello", sequence_id=7)
    assert len(texts(consumer, 2)) == 2


def test_switched_off(store_path, store_url):
    """enableNonPersistentTopics=false refuses them; others work."""
    store_path.mkdir(exist_ok=True)
    (store_path / "broker.conf").write_text("enableNonPersistentTopics=false\n")
    with Client(store_url) as client:
        for use in (client.create_producer, lambda name: client.subscribe(name, "sub"), client.create_reader):
            with pytest.raises(NotAllowedError, match="enableNonPersistentTopics"):
                use(NAME, MessageId.earliest) if use == client.create_reader else use(NAME)
        client.create_producer("topic").send(b"hello")


def test_every_level_of_durability(store_path):
    """Nothing is flushed, whatever the client asks for of its other topics."""
    for level in ("process", "interval", "flush"):
        with Client(str(store_path), durability=level) as client:
            consumer = client.subscribe(NAME, "sub", initial_position=InitialPosition.Earliest)
            producer = client.create_producer(NAME)
            producer.send(b"hello")
            producer.flush()
            assert texts(consumer, 1) == [b"hello"]


def test_asyncio(run):
    """The asyncio client, with a reader beside."""

    async def main(client: asyncio_client.Client) -> list[bytes]:
        consumer = await client.subscribe(NAME, "sub")
        producer = await client.create_producer(NAME)
        await producer.send(b"hello")
        message = await consumer.receive()
        await consumer.acknowledge(message)
        return [message.data()]

    assert run(main) == [b"hello"]


def test_listeners(topic):
    """A listener gets each message once."""
    found: list[bytes] = []
    topic.consumer(message_listener=lambda _, message: found.append(message.data()))
    topic.publish(20)
    while len(found) < 20:
        topic.client._core.store.mailbox.wait(topic.client._core.store.mailbox.generation, 0.01)
    assert found == [b"hello-%d" % number for number in range(20)]
