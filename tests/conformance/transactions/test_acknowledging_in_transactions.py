"""What is acknowledged in a transaction counts when that commits, and comes again when it is aborted."""

from __future__ import annotations

from datetime import timedelta

import pytest

from embeddedpulsar import (
    ConsumerInterceptor,
    ConsumerType,
    CumulativeAcknowledgementNotAllowedError,
    NotConnected,
    TransactionConflict,
    TransactionState,
)
from embeddedpulsar.exceptions import TransactionHasOperationFailed
from tests.conformance.conftest import numbers, receive_all
from tests.support.clients import wait_until

TYPES = [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared]


def again(topic, consumer, **options):
    """What the subscription delivers to its next consumer."""
    consumer.close()
    with topic.consumer(**options) as other:
        return numbers(receive_all(other))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("is_batch", [False, True])
def test_commit(client, topic, kind, is_batch):
    """Some messages, one by one; the others stay."""
    (topic.publish_batch if is_batch else topic.publish)(6)
    consumer = topic.consumer(consumer_type=kind, batch_index_ack_enabled=True)
    messages = receive_all(consumer)
    with client.transaction() as txn:
        for message in messages[:4]:
            consumer.acknowledge(message, txn=txn)
    assert txn.state is TransactionState.COMMITTED
    assert again(topic, consumer, consumer_type=kind, batch_index_ack_enabled=True) == [4, 5]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("is_batch", [False, True])
def test_abort(client, topic, kind, is_batch):
    """They come again at once to the consumer that is there, without those that it acknowledged."""
    (topic.publish_batch if is_batch else topic.publish)(6)
    consumer = topic.consumer(consumer_type=kind, batch_index_ack_enabled=True)
    messages = receive_all(consumer)
    for message in messages[4:]:
        consumer.acknowledge(message)
    txn = client.new_transaction()
    consumer.acknowledge(messages[:4], txn=txn)
    consumer.redeliver_unacknowledged_messages()
    assert receive_all(consumer) == []
    txn.abort()
    returned = receive_all(consumer)
    assert numbers(returned) == [0, 1, 2, 3]
    if kind in (ConsumerType.Shared, ConsumerType.KeyShared):
        assert {message.redelivery_count() for message in returned} == {1}
    for message in returned:
        consumer.acknowledge(message)
    assert again(topic, consumer, consumer_type=kind) == []


@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize("is_committed", [False, True])
def test_cumulative(client, topic, by_id, is_committed):
    """After an abort the messages come again when they are asked for."""
    topic.publish(5)
    consumer = topic.consumer()
    message = receive_all(consumer)[2]
    txn = client.new_transaction()
    consumer.acknowledge_cumulative(message.message_id() if by_id else message, txn=txn)
    if is_committed:
        txn.commit()
    else:
        txn.abort()
        assert receive_all(consumer) == []
    consumer.redeliver_unacknowledged_messages()
    assert numbers(receive_all(consumer)) == ([3, 4] if is_committed else [0, 1, 2, 3, 4])


def test_cumulative_within_a_batch(client, topic):
    """Up to the message, also without acknowledgement of batch indexes."""
    topic.publish(1)
    topic.publish_batch(4)
    consumer = topic.consumer()
    messages = receive_all(consumer)
    with client.transaction() as txn:
        consumer.acknowledge_cumulative(messages[2], txn=txn)
    assert again(topic, consumer) == [2, 3]


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_cumulative_is_not_for_shared_messages(client, topic, kind):
    """As without a transaction."""
    topic.publish(1)
    consumer = topic.consumer(consumer_type=kind)
    txn = client.new_transaction()
    with pytest.raises(CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(consumer.receive(1000), txn=txn)
    with pytest.raises(TransactionHasOperationFailed):
        txn.commit()


@pytest.mark.parametrize("index_acks", [False, True])
@pytest.mark.parametrize("is_committed", [False, True])
def test_some_messages_of_a_batch(client, topic, index_acks, is_committed):
    """A transaction has some, plain acknowledgements have others: neither counts for the other."""
    topic.publish_batch(6)
    options = {"consumer_type": ConsumerType.Shared, "batch_index_ack_enabled": index_acks}
    consumer = topic.consumer(**options)
    messages = receive_all(consumer)
    consumer.acknowledge(messages[0])
    txn = client.new_transaction()
    consumer.acknowledge(messages[1:4], txn=txn)
    consumer.acknowledge(messages[4].message_id())
    consumer.acknowledge(messages[5])
    if is_committed:
        txn.commit()
    else:
        txn.abort()
    assert again(topic, consumer, **options) == ([] if is_committed else [1, 2, 3])


def test_ids_alone(client, topic):
    """Of messages that were not received yet: they are not delivered meanwhile."""
    ids = topic.publish(3)
    consumer = topic.consumer(consumer_type=ConsumerType.Shared)
    txn = client.new_transaction()
    consumer.acknowledge(ids[1], txn=txn)
    assert numbers(receive_all(consumer)) == [0, 2]
    txn.abort()
    assert numbers(receive_all(consumer)) == [1]


def test_a_message_that_waits_in_the_queue(client, topic):
    """It leaves the queue, and comes back with the abort."""
    ids = topic.publish(3)
    consumer = topic.consumer()
    first = consumer.receive(1000)
    txn = client.new_transaction()
    consumer.acknowledge([first, ids[1]], txn=txn)
    assert numbers(receive_all(consumer)) == [2]
    txn.abort()
    assert numbers(receive_all(consumer)) == [0, 1, 2]


def test_conflicts(client, topic):
    """The table of Pulsar; a conflict makes of the commit an abort, and leaves others alone."""
    topic.publish_batch(3)
    topic.publish(2)
    consumer = topic.consumer(consumer_type=ConsumerType.Shared, batch_index_ack_enabled=True)
    messages = receive_all(consumer)
    one, other = client.new_transaction(), client.new_transaction()
    consumer.acknowledge([messages[0], messages[3]], txn=one)
    consumer.acknowledge(messages[1], txn=other)
    consumer.acknowledge(messages[4])
    for message in (messages[0], messages[3], messages[4]):
        with pytest.raises(TransactionConflict, match=r"transaction \(0,2\)"):
            consumer.acknowledge(message, txn=other)
    with pytest.raises(TransactionConflict):
        consumer.acknowledge(messages[3], txn=one)
    with pytest.raises(TransactionHasOperationFailed, match=r"conflict|acknowledged|pending"):
        other.commit()
    with pytest.raises(TransactionHasOperationFailed):
        one.commit()
    assert numbers(receive_all(consumer)) == [0, 1, 2, 0]


def test_a_list_is_all_or_none(client, topic):
    """If one of it conflicts, nothing is pending of the others."""
    topic.publish(3)
    consumer = topic.consumer(consumer_type=ConsumerType.Shared)
    messages = receive_all(consumer)
    consumer.acknowledge(messages[2])
    one, other = client.new_transaction(), client.new_transaction()
    with pytest.raises(TransactionConflict):
        consumer.acknowledge(messages, txn=one)
    consumer.acknowledge(messages[:2], txn=other)
    other.commit()
    one.abort()
    assert receive_all(consumer) == []


def test_several_topics(client, admin):
    """Partitions and topics of one consumer, in one transaction and one call."""
    admin.topics().create_partitioned_topic("parted", 3)
    producer, other = client.create_producer("parted"), client.create_producer("topic")
    for number in range(6):
        producer.send(b"hello-%d" % number)
    other.send(b"hello-6")
    consumer = client.subscribe(["parted", "topic"], "sub", ConsumerType.Shared)
    consumer.close()
    consumer = client.subscribe(["parted", "topic"], "sub", ConsumerType.Shared)
    for number in range(7, 13):
        producer.send(b"hello-%d" % number)
    other.send(b"hello-13")
    messages = receive_all(consumer)
    txn = client.new_transaction()
    consumer.acknowledge(messages, txn=txn)
    txn.abort()
    wait_until(lambda: len(messages) == 7)
    messages = receive_all(consumer)
    assert sorted(numbers(messages)) == list(range(7, 14))
    with client.transaction() as txn:
        consumer.acknowledge(messages, txn=txn)
    consumer.redeliver_unacknowledged_messages()
    assert receive_all(consumer) == []


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_chunked_message(client, topic, is_committed):
    """Its parts are acknowledged with it."""
    topic.producer(chunking_enabled=True).send(bytes(11 << 20))
    options = {"consumer_type": ConsumerType.Shared}
    consumer = topic.consumer(**options)
    message = consumer.receive(1000)
    txn = client.new_transaction()
    consumer.acknowledge(message, txn=txn)
    if is_committed:
        txn.commit()
    else:
        txn.abort()
    consumer.close()
    with topic.consumer(**options) as other:
        assert len(receive_all(other)) == (not is_committed)


def test_timeouts_forget_what_a_transaction_acknowledged(time):
    """Neither the timeout of unacknowledged messages nor a negative acknowledgement brings them back."""
    client = time.client
    producer = client.create_producer("topic")
    options = {"unacked_messages_timeout_ms": 10_000, "negative_ack_redelivery_delay_ms": 100}
    consumer = client.subscribe("topic", "sub", ConsumerType.Shared, **options)
    for number in range(3):
        producer.send(b"hello-%d" % number)
    messages = receive_all(consumer)
    txn = client.new_transaction()
    consumer.negative_acknowledge(messages[0])
    consumer.acknowledge(messages[:2], txn=txn)
    time.pass_ms(15_000)
    assert numbers(receive_all(consumer)) == [2]
    txn.commit()


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_delayed_message_that_nobody_received(time, is_committed):
    """Acknowledged by its id before it is due, it is not delivered early when the transaction aborts."""
    client = time.client
    producer = client.create_producer("topic")
    consumer = client.subscribe("topic", "sub", ConsumerType.Shared)
    delayed = producer.send(b"hello-0", deliver_after=timedelta(seconds=20))
    producer.send(b"hello-1")
    txn = client.new_transaction()
    consumer.acknowledge(delayed, txn=txn)
    assert numbers(receive_all(consumer)) == [1]
    (txn.commit if is_committed else txn.abort)()
    assert receive_all(consumer) == []
    time.pass_ms(21_000)
    assert numbers(receive_all(consumer)) == ([] if is_committed else [0])


def test_a_seek_drops_what_is_pending(client, topic):
    """As in Pulsar's client, the application that seeks decides; messages of before it are refused."""
    topic.publish(3)
    consumer = topic.consumer()
    messages = receive_all(consumer)
    one, other = client.new_transaction(), client.new_transaction()
    consumer.acknowledge(messages[0], txn=one)
    consumer.seek(0)
    assert numbers(receive_all(consumer)) == [0, 1, 2]
    one.commit()
    consumer.redeliver_unacknowledged_messages()
    assert numbers(receive_all(consumer)) == [0, 1, 2]
    other.abort()


def test_acknowledged_for_another_consumer(client, topic):
    """A consumer of the process acknowledges what another one of its subscription received."""
    topic.publish_batch(3)
    one = topic.consumer(consumer_type=ConsumerType.Shared)
    messages = receive_all(one)
    other = topic.consumer(consumer_type=ConsumerType.Shared)
    one.acknowledge(messages[0])
    with client.transaction() as txn:
        other.acknowledge(messages[1:], txn=txn)
    one.close()
    other.close()
    with topic.consumer(consumer_type=ConsumerType.Shared) as last:
        assert receive_all(last) == []


def test_a_consumer_that_is_closed_before_the_end(client, topic):
    """What is pending stays so; after an abort another consumer gets it."""
    topic.publish(2)
    consumer = topic.consumer(consumer_type=ConsumerType.Shared)
    messages = receive_all(consumer)
    other = topic.consumer(consumer_type=ConsumerType.Shared)
    txn = client.new_transaction()
    consumer.acknowledge(messages, txn=txn)
    consumer.close()
    assert receive_all(other) == []
    txn.abort()
    assert numbers(receive_all(other)) == [0, 1]


def test_a_non_persistent_topic(client):
    """Its messages are acknowledged when they are delivered."""
    name = "non-persistent://public/default/fleeting"
    consumer = client.subscribe(name, "sub")
    client.create_producer(name).send(b"a")
    txn = client.new_transaction()
    with pytest.raises(TransactionConflict, match="non-persistent"):
        consumer.acknowledge(consumer.receive(1000), txn=txn)


def test_wrong_arguments(client, topic):
    """A list without a transaction, and what is no message."""
    topic.publish(1)
    consumer = topic.consumer()
    message = consumer.receive(1000)
    with pytest.raises(TypeError):
        consumer.acknowledge([message])
    with pytest.raises(TypeError), client.transaction() as txn:
        consumer.acknowledge(b"x", txn=txn)
    with pytest.raises(ValueError, match="txn"):
        consumer.acknowledge(message, txn=17)


def test_interceptors(client, topic):
    """They see each message."""
    seen = []

    class Note(ConsumerInterceptor):
        def on_acknowledge(self, consumer, message_id, error):
            seen.append(error)

    topic.publish(2)
    consumer = topic.consumer(interceptors=[Note()])
    with client.transaction() as txn:
        consumer.acknowledge(receive_all(consumer), txn=txn)
    assert seen == [None, None]


def test_the_loop_of_transactions(client, topic):
    """Each pass is one transaction; one that fails is repeated."""
    topic.publish(5)
    results = client.create_producer("results")
    consumer = topic.consumer(consumer_type=ConsumerType.Shared)
    seen = []

    def work():
        for messages, txn in consumer.transactions(2):
            seen.extend(numbers(messages))
            results.send(b"+".join(message.data() for message in messages), txn=txn)
            ended.append(txn)
            if len(seen) == 4:
                raise KeyError

    ended = []
    with pytest.raises(KeyError):
        work()
    txn = ended[-1]
    assert seen == [0, 1, 2, 3] and txn.state is TransactionState.ABORTED
    left = []
    for messages, txn in consumer.transactions():
        results.send(b"+".join(message.data() for message in messages), txn=txn)
        left += numbers(messages)
        if len(left) == 3:
            txn.commit()
            break
    assert sorted(left) == [2, 3, 4]
    assert again(topic, consumer, consumer_type=ConsumerType.Shared) == []


def test_not_connected(client, topic, topics):
    """A message of before a move of the subscription cannot be acknowledged, and its transaction not be
    committed."""
    topic.publish(2)
    consumer = topic.consumer(consumer_type=ConsumerType.Failover)
    messages = receive_all(consumer)
    topics.reset_cursor("topic", "sub", 0)
    txn = client.new_transaction()
    with pytest.raises(NotConnected):
        consumer.acknowledge(messages[0], txn=txn)
    with pytest.raises(TransactionHasOperationFailed):
        txn.commit()


def test_one_that_is_left_open_is_noticed_by_the_next(time):
    """Its messages come back after its timeout, though no call takes the lock of the subscription then."""
    consumer = time.client.subscribe("topic", "s", ConsumerType.Shared)
    with time.client.create_producer("topic") as producer:
        producer.send_many([b"0", b"1", b"2"], batching_max_messages=1)
    messages = receive_all(consumer)
    short, long = time.client.new_transaction(1000), time.client.new_transaction(600_000)
    consumer.acknowledge(messages[0], txn=short)
    consumer.acknowledge(messages[1], txn=long)
    time.pass_ms(100)
    time.pass_ms(1000)
    assert short.state is TransactionState.TIME_OUT
    assert numbers(receive_all(consumer)) == [0]
    long.commit()
