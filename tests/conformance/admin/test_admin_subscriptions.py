"""An Admin creates, moves, empties and deletes subscriptions, beside consumers that use them."""

from __future__ import annotations

import pytest

from embeddedpulsar import (
    Admin,
    AlreadyClosed,
    BrokerMetadataError,
    Client,
    ConsumerType,
    InitialPosition,
    MessageId,
    NotAllowedError,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
)
from embeddedpulsar.admin.topics import Topics
from tests.conformance.chunks import HalfSent, payload, use_small_entries
from tests.conformance.conftest import numbers, receive_all

ACTIVE = [ConsumerType.Exclusive, ConsumerType.Failover]
CLAIMING = [ConsumerType.Shared, ConsumerType.KeyShared]


def left(topics: Topics, topic: str = "topic") -> list[int]:
    """The numbers of the messages that subscription ``sub`` has not acknowledged."""
    return numbers(topics.peek_messages(topic, "sub", 1000))


# -- creating and deleting -------------------------------------------------------------------------------


def test_a_subscription_is_created_at_a_place(topics, topic):
    """Where it is told to begin: at a message, at the first, or behind the last."""
    ids = topic.publish(5)
    topics.create_subscription("topic", "middle", ids[3])
    topics.create_subscription("topic", "first", MessageId.earliest)
    topics.create_subscription("topic", "new")
    topics.create_subscription("topic", "beyond", MessageId(-1, ids[-1].ledger_id(), 99))
    counts = {
        name: len(topics.peek_messages("topic", name, 100)) for name in ("middle", "first", "new", "beyond")
    }
    assert counts == {"middle": 2, "first": 5, "new": 0, "beyond": 0}
    topic.publish(1)
    assert len(topics.peek_messages("topic", "new", 100)) == 1


def test_a_subscription_is_created_once(topics, topic):
    """A second call with the name says so, and moves nothing."""
    topic.publish(3)
    topics.create_subscription("topic", "sub", MessageId.earliest)
    with pytest.raises(NotAllowedError, match=r"public/default/topic has a subscription 'sub' already"):
        topics.create_subscription("topic", "sub")
    assert left(topics) == [0, 1, 2]
    for name in ("", None):
        with pytest.raises(ValueError, match="has a name"):
            topics.create_subscription("topic", name)
    with pytest.raises(ValueError, match="begins at a MessageId"):
        topics.create_subscription("topic", "other", 5)


def test_the_topic_of_a_subscription_is_created_where_that_is_allowed(topics, client, store_url):
    """As the first consumer creates it."""
    topics.create_subscription("fresh", "sub")
    assert topics.get_list() == ["persistent://public/default/fresh"]
    with pytest.raises(TopicNotFound, match="no namespace acme/sales"):
        topics.create_subscription("acme/sales/fresh", "sub")


def test_neither_setting_prevents_the_creation(store_path):
    """A subscription is created whatever ``allowAutoSubscriptionCreation`` says; a topic is not."""
    store_path.mkdir()
    (store_path / "broker.conf").write_text(
        "allowAutoTopicCreation=false\nallowAutoSubscriptionCreation=false\n"
    )
    with Client(store_path) as client, Admin(store_path) as admin:
        with pytest.raises(TopicNotFound, match="allowAutoTopicCreation=false"):
            admin.topics().create_subscription("topic", "sub")
        admin.topics().create_non_partitioned_topic("topic")
        with pytest.raises(SubscriptionNotFound, match="create_subscription"):
            client.subscribe("topic", "sub")
        admin.topics().create_subscription("topic", "sub")
        client.subscribe("topic", "sub").close()


def test_a_subscription_is_deleted(topics, topic):
    """And does not hold anything back or remember anything; a new one begins anew."""
    topic.publish(3)
    topics.create_subscription("topic", "sub", MessageId.earliest)
    topics.skip_messages("topic", "sub", 2)
    topics.delete_subscription("topic", "sub")
    for call in (topics.delete_subscription, topics.skip_all_messages):
        with pytest.raises(SubscriptionNotFound, match="has no subscription 'sub'; make it with create"):
            call("topic", "sub")
    topics.create_subscription("topic", "sub", MessageId.earliest)
    assert left(topics) == [0, 1, 2]


@pytest.mark.parametrize("kind", ConsumerType)
def test_a_subscription_in_use_is_deleted_by_force_alone(topics, topic, kind):
    """Its consumer then gets an error that says so."""
    consumer = topic.consumer(consumer_type=kind, consumer_name="till-1")
    with pytest.raises(
        BrokerMetadataError, match=r"'sub' of .*topic has consumers: 'till-1'; close them, or"
    ):
        topics.delete_subscription("topic", "sub")
    topic.publish(1)
    consumer.acknowledge(consumer.receive(1000))
    topics.delete_subscription("topic", "sub", force=True)
    with pytest.raises(AlreadyClosed, match="was deleted"):
        consumer.receive(1000)
    consumer.close()
    topic.consumer(consumer_type=kind).close()


# -- skipping --------------------------------------------------------------------------------------------


@pytest.mark.in_memory
def test_messages_are_skipped_one_by_one(topics, topic):
    """Counted as messages, also in the middle of a batch; and no more than there are."""
    topics.create_subscription("topic", "sub", MessageId.earliest)
    topic.publish_batch(5)
    assert topics.skip_messages("topic", "sub", 2) == 2
    assert left(topics) == [2, 3, 4]
    assert topics.skip_messages("topic", "sub", 1) == 1
    assert left(topics) == [3, 4]
    assert topics.skip_messages("topic", "sub", 9) == 2
    assert topics.skip_messages("topic", "sub", 9) == 0
    assert left(topics) == []
    topic.publish(2)
    assert left(topics) == [0, 1]


def test_what_is_acknowledged_is_not_counted(topics, topic):
    """Skipping goes on with the next message that is not acknowledged, and keeps what is behind."""
    consumer = topic.consumer(consumer_type=ConsumerType.Shared)
    topic.publish(6)
    for message in [consumer.receive(1000) for _ in range(6)]:
        if int(message.data()[-1:]) in (1, 4):
            consumer.acknowledge(message)
    consumer.close()
    assert topics.skip_messages("topic", "sub", 2) == 2
    assert left(topics) == [3, 5]


@pytest.mark.in_memory
def test_one_message_is_skipped_by_its_id(topics, topic):
    """In the middle, of a batch, a whole batch, chunked; only what is to be delivered."""
    topics.create_subscription("topic", "sub", MessageId.earliest)
    ids = topic.publish(3)
    topics.skip_message("topic", "sub", ids[1])
    assert left(topics) == [0, 2]
    with pytest.raises(NotAllowedError, match=r"'sub' of .* has no message .*: it is acknowledged"):
        topics.skip_message("topic", "sub", ids[1])
    topic.publish_batch(3)
    batch = [message.message_id() for message in topics.peek_messages("topic", "sub", 9)[2:]]
    topics.skip_message("topic", "sub", batch[1])
    assert left(topics) == [0, 2, 0, 2]
    with pytest.raises(NotAllowedError, match="it is acknowledged"):
        topics.skip_message("topic", "sub", batch[1])
    topics.skip_message("topic", "sub", MessageId(-1, batch[0].ledger_id(), batch[0].entry_id()))
    assert left(topics) == [0, 2]
    for wrong in (MessageId.latest, MessageId.earliest, MessageId(-1, 99, 0), MessageId(-1, 1, 99)):
        with pytest.raises(NotAllowedError, match="has no message"):
            topics.skip_message("topic", "sub", wrong)
    with pytest.raises(ValueError, match="named by its MessageId"):
        topics.skip_message("topic", "sub", "1:0")
    with pytest.raises(SubscriptionNotFound):
        topics.skip_message("topic", "gone", ids[0])


def test_a_chunked_message_is_skipped_whole(store_path):
    """With all its parts."""
    use_small_entries(store_path)
    with Client(store_path) as client, Admin(store_path) as admin:
        topics = admin.topics()
        topics.create_subscription("topic", "sub", MessageId.earliest)
        with client.create_producer("topic", chunking_enabled=True) as producer:
            message_id = producer.send(payload(3000))
        topics.skip_message("topic", "sub", message_id)
        assert topics.get_stats("topic").subscriptions["sub"].msg_backlog == 0


@pytest.mark.parametrize("kind", ACTIVE + CLAIMING)
def test_a_message_that_a_consumer_holds_is_skipped(topics, topic, kind):
    """It is not delivered again, and its acknowledgement does no harm. What was acknowledged just now is not
    skipped."""
    consumer = topic.consumer(consumer_type=kind)
    ids = topic.publish(4)
    held = [consumer.receive(1000) for _ in range(4)]
    consumer.acknowledge(held[2])
    topics.skip_message("topic", "sub", ids[1])
    consumer.acknowledge(held[1])
    with pytest.raises(NotAllowedError, match="it is acknowledged"):
        topics.skip_message("topic", "sub", ids[2])
    consumer.close()
    assert left(topics) == [0, 3]


def test_an_id_names_the_partition(topics, client):
    """Of a partitioned topic."""
    topics.create_partitioned_topic("parts", 2)
    topics.create_subscription("parts", "sub", MessageId.earliest)
    with client.create_producer("parts") as producer:
        ids = [producer.send(b"%d" % number) for number in range(4)]
    with pytest.raises(NotAllowedError, match="names none of its 2 partitions"):
        topics.skip_message("parts", "sub", MessageId(-1, ids[0].ledger_id(), ids[0].entry_id()))
    topics.skip_message("parts", "sub", ids[2])
    backlogs = [
        topics.get_stats(f"parts-partition-{index}").subscriptions["sub"].msg_backlog for index in range(2)
    ]
    assert backlogs[ids[2].partition()] == 1 and sum(backlogs) == 3


@pytest.mark.parametrize("kind", ACTIVE)
def test_an_active_consumer_goes_back(topics, topic, kind):
    """It gets again what it holds and is not skipped; acknowledgements behind stay, late ones do nothing."""
    consumer = topic.consumer(consumer_type=kind)
    topic.publish(6)
    held = [consumer.receive(1000) for _ in range(5)]
    consumer.acknowledge(held[3])
    topics.skip_messages("topic", "sub", 2)
    assert numbers(receive_all(consumer)) == [2, 4, 5]
    consumer.acknowledge(held[4])
    assert left(topics) == [2, 4, 5]
    topics.skip_all_messages("topic", "sub")
    assert left(topics) == []
    with pytest.raises(Timeout):
        consumer.receive(50)
    topic.publish(1)
    consumer.acknowledge(consumer.receive(1000))
    consumer.close()
    assert left(topics) == []


@pytest.mark.parametrize("kind", CLAIMING)
def test_consumers_that_share_keep_what_they_hold(topics, topic, kind):
    """What no consumer has yet is not delivered; what is behind goes on."""
    consumer = topic.consumer(consumer_type=kind, receiver_queue_size=2)
    topic.publish(10)
    held = [consumer.receive(1000)]
    topics.skip_all_messages("topic", "sub")
    assert left(topics) == []
    for message in [*held, *receive_all(consumer)]:
        consumer.acknowledge(message)
    topic.publish(2)
    assert numbers(receive_all(consumer)) == [0, 1]


def test_a_blocked_consumer_goes_on(store_path, time):
    """One that holds as many unacknowledged messages as it may gets new ones after they were skipped."""
    time.client.shutdown()
    store_path.mkdir(exist_ok=True)
    (store_path / "broker.conf").write_text("maxUnackedMessagesPerConsumer=3\n")
    time.reopen()
    with Admin(store_path) as admin:
        consumer = time.client.subscribe("topic", "sub", ConsumerType.Shared)
        producer = time.client.create_producer("topic")
        for i in range(10):
            producer.send(b"hello-%d" % i)
        assert len(receive_all(consumer)) < 10
        admin.topics().skip_all_messages("topic", "sub")
        producer.send(b"hello-10")
        assert 10 in numbers(receive_all(consumer))


def test_chunked_messages_are_skipped_whole(topics, client):
    """Nothing of them is left, and what lies between their parts stays."""
    topics.create_subscription("topic", "sub", MessageId.earliest)
    with client.create_producer("topic", chunking_enabled=True, chunk_max_message_size=1000) as producer:
        producer.send(payload(5000))
        producer.send(b"hello-1")
    assert topics.skip_messages("topic", "sub", 1) == 1
    assert left(topics) == [1]
    topics.skip_all_messages("topic", "sub")
    assert left(topics) == []


@pytest.mark.parametrize("kind", [None, *ConsumerType])
def test_a_message_that_is_being_stored_is_not_skipped(store_path, kind):
    """Its first parts are acknowledged; it is received all the same when its last part comes."""
    use_small_entries(store_path)
    with Client(store_path) as client, Admin(store_path) as admin:
        admin.topics().create_subscription("topic", "sub")
        consumer = None if kind is None else client.subscribe("topic", "sub", kind)
        slow = HalfSent(client.create_producer("topic", chunking_enabled=True), payload(3000)).send(2)
        if consumer is not None:
            assert consumer.receive_nowait() is None
        admin.topics().skip_all_messages("topic", "sub")
        slow.finish()
        consumer = consumer or client.subscribe("topic", "sub")
        message = consumer.receive(1000)
        assert message.data() == payload(3000)
        consumer.acknowledge(message)
        consumer.close()
        assert admin.topics().peek_messages("topic", "sub", 9) == []


def test_numbers_are_checked(topics, topic):
    """Before anything happens."""
    topics.create_subscription("topic", "sub")
    for count in (0, -1, True, 1.5, "2"):
        with pytest.raises(ValueError, match="count is an integer from 1 on"):
            topics.skip_messages("topic", "sub", count)
    for seconds in (-1, False, 0.5, None):
        with pytest.raises(ValueError, match="seconds is an integer from 0 on"):
            topics.expire_messages("topic", "sub", seconds)
        with pytest.raises(ValueError, match="seconds is an integer from 0 on"):
            topics.expire_messages_for_all_subscriptions("topic", seconds)
    for target in (-1, True, 1.5, "earliest", None):
        with pytest.raises(ValueError, match="reset to a time in ms since 1970 or to a MessageId"):
            topics.reset_cursor("topic", "sub", target)


# -- expiry ----------------------------------------------------------------------------------------------


def test_old_messages_expire(time, store_url):
    """Those published longer ago than that, to the millisecond, and no others."""
    with Admin(store_url) as admin:
        topics = admin.topics()
        for name in ("sub", "other"):
            topics.create_subscription("topic", name)
        producer = time.client.create_producer("topic")
        for i in range(4):
            producer.send(b"hello-%d" % i)
            time.pass_ms(10_000)
        topics.expire_messages("topic", "sub", 30)
        assert left(topics) == [1, 2, 3]
        time.pass_ms(1)
        topics.expire_messages("topic", "sub", 30)
        topics.expire_messages("topic", "sub", 3600)
        assert left(topics) == [2, 3]
        topics.expire_messages_for_all_subscriptions("topic", 10)
        assert left(topics) == [] == topics.peek_messages("topic", "other", 9)
        producer.send(b"hello-9")
        topics.expire_messages_for_all_subscriptions("topic", 0)
        assert left(topics) == [9]


def test_delayed_messages_expire_as_well(time, store_url):
    """Although no consumer could get them yet."""
    with Admin(store_url) as admin:
        consumer = time.client.subscribe("topic", "sub", ConsumerType.Shared)
        time.client.create_producer("topic").send(b"hello-0", deliver_at=time.now_ms() + 60_000)
        time.pass_ms(5_000)
        with pytest.raises(Timeout):
            consumer.receive(50)
        admin.topics().expire_messages("topic", "sub", 1)
        time.pass_ms(70_000)
        with pytest.raises(Timeout):
            consumer.receive(50)
        assert left(admin.topics()) == []


# -- resetting -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ConsumerType)
def test_a_reset_moves_attached_consumers(topics, topic, kind):
    """As a seek of their own does: back, forward, and to both ends."""
    consumer = topic.consumer(consumer_type=kind)
    ids = topic.publish(5)
    for message in receive_all(consumer):
        consumer.acknowledge(message)
    topics.reset_cursor("topic", "sub", ids[2])
    assert numbers(receive_all(consumer)) == [2, 3, 4]
    topics.reset_cursor("topic", "sub", MessageId.earliest)
    assert numbers(receive_all(consumer)) == [0, 1, 2, 3, 4]
    topics.reset_cursor("topic", "sub", MessageId.latest)
    with pytest.raises(Timeout):
        consumer.receive(50)
    assert left(topics) == []


def test_a_reset_to_a_message_of_a_batch(topics, topic):
    """Begins with that message."""
    topics.create_subscription("topic", "sub", MessageId.earliest)
    topic.publish_batch(4)
    ids = [message.message_id() for message in topics.peek_messages("topic", "sub", 9)]
    topics.skip_all_messages("topic", "sub")
    topics.reset_cursor("topic", "sub", ids[2])
    assert left(topics) == [2, 3]
    topics.reset_cursor("topic", "sub", ids[0])
    assert left(topics) == [0, 1, 2, 3]


def test_a_reset_to_a_time(time, store_url):
    """Begins with the first message published then or later."""
    with Admin(store_url) as admin:
        topics = admin.topics()
        topics.create_subscription("topic", "sub")
        producer, start = time.client.create_producer("topic"), time.now_ms()
        for i in range(4):
            producer.send(b"hello-%d" % i)
            time.pass_ms(1000)
        for moment, numbers_left in ((1000, [1, 2, 3]), (1001, [2, 3]), (9000, []), (-5, [0, 1, 2, 3])):
            topics.reset_cursor("topic", "sub", start + moment)
            assert left(topics) == numbers_left


# -- partitions ------------------------------------------------------------------------------------------


def test_partitions_are_managed_together(topics, client):
    """Whatever applies to each of them."""
    topics.create_partitioned_topic("topic", 3)
    names = client.get_topic_partitions("topic")
    topics.create_subscription("topic", "sub")
    ids = []
    for index, name in enumerate(names):
        with client.create_producer(name) as producer:
            ids += [producer.send(b"hello-%d" % (10 * index + number)) for number in range(2)]
    topics.skip_all_messages("topic", "sub")
    assert [left(topics, name) for name in names] == [[], [], []]
    topics.reset_cursor("topic", "sub", MessageId.earliest)
    topics.reset_cursor("topic", "sub", ids[3])
    assert [left(topics, name) for name in names] == [[0, 1], [11], [20, 21]]
    assert topics.skip_messages(names[2], "sub", 1) == 1
    topics.expire_messages_for_all_subscriptions("topic", 3600)
    assert [left(topics, name) for name in names] == [[0, 1], [11], [21]]
    with pytest.raises(NotAllowedError, match="no common order; skip messages of one, such as"):
        topics.skip_messages("topic", "sub", 1)
    plain_id = MessageId(-1, ids[0].ledger_id(), 0)
    for call in (topics.reset_cursor, topics.create_subscription):
        with pytest.raises(NotAllowedError, match="is a message of one partition; name that"):
            call("topic", "other", plain_id)
    consumer = client.subscribe(names[1], "sub")
    with pytest.raises(BrokerMetadataError, match="topic-partition-1 has consumers"):
        topics.delete_subscription("topic", "sub")
    assert left(topics, names[0]) == [0, 1]
    consumer.close()
    topics.delete_subscription("topic", "sub")
    for name in names:
        with pytest.raises(SubscriptionNotFound):
            topics.skip_all_messages(name, "sub")


def test_a_creation_that_was_interrupted_is_repeated(topics, client):
    """Partitions that have the subscription keep it as it is; the others get it."""
    topics.create_partitioned_topic("topic", 2)
    names = client.get_topic_partitions("topic")
    topics.create_subscription(names[0], "sub")
    for name in names:
        with client.create_producer(name) as producer:
            producer.send(b"hello-0")
    topics.create_subscription("topic", "sub", MessageId.earliest)
    assert [left(topics, name) for name in names] == [[0], [0]]
    with pytest.raises(NotAllowedError, match="already"):
        topics.create_subscription("topic", "sub")
    topics.delete_subscription(names[0], "sub")
    topics.delete_subscription("topic", "sub")


def test_acknowledgements_by_an_operator_survive(store_path):
    """A store that is opened later, or elsewhere, has them."""
    with Client(store_path) as client, Admin(store_path) as admin:
        consumer = client.subscribe("topic", "sub", initial_position=InitialPosition.Earliest)
        with client.create_producer("topic") as producer:
            for i in range(6):
                producer.send(b"hello-%d" % i)
        held = [consumer.receive(1000) for _ in range(6)]
        consumer.acknowledge(held[4])
        admin.topics().skip_messages("topic", "sub", 2)
        consumer.close()
        admin.topics().skip_messages("topic", "sub", 1)
    with Admin(store_path) as admin:
        assert left(admin.topics()) == [3, 5]
