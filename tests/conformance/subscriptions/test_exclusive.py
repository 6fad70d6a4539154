"""Exclusive subscriptions: one consumer at a time, in order, from where the last one stopped."""

from __future__ import annotations

import pytest

from embeddedpulsar import AlreadyClosed, Client, ConsumerBusy, InitialPosition, Timeout
from embeddedpulsar.message_id import Position
from tests.conformance.conftest import numbers, receive_all


def test_messages_come_in_order(topic):
    """What was sent is received, in the order of sending."""
    consumer = topic.consumer()
    topic.publish(100)
    assert numbers(receive_all(consumer)) == list(range(100))


def test_a_second_consumer_is_refused(topic):
    """While one consumer holds the subscription, the next gets ConsumerBusy at once."""
    consumer = topic.consumer()
    with pytest.raises(ConsumerBusy):
        topic.consumer()
    consumer.close()
    topic.consumer().close()


def test_a_second_consumer_of_another_client_is_refused(topic, store_url):
    """The rule holds between clients."""
    with topic.consumer(), Client(store_url) as other, pytest.raises(ConsumerBusy):
        other.subscribe("topic", "sub")


def test_subscriptions_are_independent(topic):
    """Every subscription gets every message."""
    first = topic.client.subscribe("topic", "one", initial_position=InitialPosition.Earliest)
    second = topic.client.subscribe("topic", "two", initial_position=InitialPosition.Earliest)
    topic.publish(3)
    for message in receive_all(first):
        first.acknowledge(message)
    assert numbers(receive_all(second)) == [0, 1, 2]


def test_initial_position(topic):
    """A new subscription starts behind the last message, or at the first; an old one where it was."""
    topic.publish(2)
    latest = topic.client.subscribe("topic", "latest")
    earliest = topic.client.subscribe("topic", "earliest", initial_position=InitialPosition.Earliest)
    topic.publish(1)
    assert numbers(receive_all(latest)) == [0]
    assert numbers(receive_all(earliest)) == [0, 1, 0]
    latest.close()
    again = topic.client.subscribe("topic", "latest", initial_position=InitialPosition.Earliest)
    assert numbers(receive_all(again)) == [0]


@pytest.mark.in_memory
def test_the_next_consumer_gets_what_was_not_acknowledged(topic):
    """After a consumer closes, everything unacknowledged comes again, in order, with count 0."""
    topic.publish(10)
    with topic.consumer() as consumer:
        messages = receive_all(consumer)
        for index in (0, 1, 4):
            consumer.acknowledge(messages[index])
    again = receive_all(topic.consumer())
    assert numbers(again) == [2, 3, 5, 6, 7, 8, 9]
    assert {message.redelivery_count() for message in again} == {0}


def test_acknowledgements_survive_the_client(topic, store_url):
    """A subscription is where its last consumer left it, for any later process."""
    topic.publish(5)
    with topic.consumer() as consumer:
        for message in receive_all(consumer)[:3]:
            consumer.acknowledge(message.message_id())
    topic.client.close()
    with Client(store_url) as client:
        assert numbers(receive_all(client.subscribe("topic", "sub"))) == [3, 4]


def test_unsubscribe_forgets(topic):
    """After unsubscribe the subscription starts anew."""
    topic.publish(2)
    consumer = topic.consumer()
    consumer.acknowledge_cumulative(receive_all(consumer)[-1])
    consumer.unsubscribe()
    assert not consumer.is_connected()
    assert numbers(receive_all(topic.consumer())) == [0, 1]


def test_redeliver_unacknowledged_messages(topic):
    """Everything unacknowledged comes again from the start, once; what was prefetched is not doubled."""
    topic.publish(6)
    consumer = topic.consumer()
    messages = [consumer.receive() for _ in range(4)]
    consumer.acknowledge(messages[1])
    consumer.redeliver_unacknowledged_messages()
    again = receive_all(consumer)
    assert numbers(again) == [0, 2, 3, 4, 5]
    assert {message.redelivery_count() for message in again} == {0}


def test_receive_times_out(topic):
    """receive(timeout) raises Timeout, which is a TimeoutError."""
    consumer = topic.consumer()
    with pytest.raises(Timeout):
        consumer.receive(timeout_millis=10)
    with pytest.raises(TimeoutError):
        consumer.receive(0)
    assert consumer.receive_nowait() is None


def test_iteration_ends_when_the_consumer_closes(topic):
    """``for message in consumer`` receives until the consumer is closed."""
    topic.publish(3)
    consumer = topic.consumer()
    seen = []
    for message in consumer:
        seen.append(message)
        consumer.acknowledge(message)
        if len(seen) == 3:
            consumer.close()
    assert numbers(seen) == [0, 1, 2]


@pytest.mark.parametrize("size", [0, 1, 2, 1000])
def test_any_queue_size_delivers_everything(topic, size):
    """The size of the receiver queue changes nothing but memory."""
    topic.publish(7)
    consumer = topic.consumer(receiver_queue_size=size)
    messages = [consumer.receive() for _ in range(7)]
    assert numbers(messages) == list(range(7))


def test_names(topic):
    """A consumer knows its topic, its subscription and its name."""
    consumer = topic.consumer()
    assert consumer.topic() == "persistent://public/default/topic"
    assert consumer.subscription_name() == "sub"
    assert len(consumer.consumer_name()) == 10
    assert int(consumer.consumer_name(), 16) >= 0
    assert "\n" not in repr(consumer)
    consumer.close()
    assert topic.consumer(consumer_name="me").consumer_name() == "me"


def test_a_consumer_whose_subscription_is_deleted_is_closed(topic):
    """When somebody else deletes the subscription, the consumer is closed and says so."""
    consumer = topic.consumer()
    topic.client._core.store.use_topic("topic").topic.subscription("sub").delete(force=True)
    with pytest.raises(AlreadyClosed):
        consumer.receive(1000)
    assert not consumer.is_connected()


def test_another_process_moves_the_subscription(topic):
    """When the subscription is moved by somebody else, the consumer goes on there; late acks are void."""
    topic.publish(5)
    consumer = topic.consumer()
    messages = receive_all(consumer)
    consumer.acknowledge(messages[4])
    subscription = topic.client._core.store.use_topic("topic").topic.subscription("sub")
    second = messages[1].message_id()
    subscription.seek(Position(second.ledger_id(), second.entry_id()), inclusive=False)
    assert numbers(receive_all(consumer)) == [2, 3, 4]


def test_partition_topics_show_their_partition(client):
    """Messages of a topic that is a partition by its name carry its index, sent and received."""
    consumer = client.subscribe("orders-partition-3", "sub")
    with client.create_producer("orders-partition-3") as producer:
        sent = [producer.send(b"a"), producer.send(b"b", partition_key="k")]
    received = [message.message_id() for message in receive_all(consumer)]
    assert received == sent
    assert {message_id.partition() for message_id in sent} == {3}
