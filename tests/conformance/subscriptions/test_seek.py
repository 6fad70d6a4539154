"""Seek: move a subscription to a message or to a time."""

from __future__ import annotations

import pytest

from embeddedpulsar import AlreadyClosed, MessageId
from tests.conformance.conftest import numbers, receive_all


def test_to_a_message(topic):
    """Delivery goes on behind the message."""
    ids = topic.publish(100)
    consumer = topic.consumer()
    consumer.seek(ids[50])
    assert numbers(receive_all(consumer)) == list(range(51, 100))


def test_to_a_message_inclusive(topic):
    """With start_message_id_inclusive that message is delivered too."""
    ids = topic.publish(10)
    consumer = topic.consumer(start_message_id_inclusive=True)
    consumer.seek(ids[5])
    assert numbers(receive_all(consumer)) == [5, 6, 7, 8, 9]


def test_to_the_ends(topic):
    """earliest is the first message; latest means new messages only."""
    topic.publish(3)
    consumer = topic.consumer()
    consumer.seek(MessageId.latest)
    assert receive_all(consumer) == []
    consumer.seek(MessageId.earliest)
    assert numbers(receive_all(consumer)) == [0, 1, 2]
    consumer.seek(MessageId.latest)
    topic.publish(1)
    assert numbers(receive_all(consumer)) == [0]


def test_to_the_latest_inclusive(topic):
    """The end of the topic is no message: with start_message_id_inclusive, too, what comes next is new."""
    topic.publish(3)
    consumer = topic.consumer(start_message_id_inclusive=True)
    consumer.seek(MessageId.latest)
    assert receive_all(consumer) == []
    topic.publish(1)
    assert numbers(receive_all(consumer)) == [0]


@pytest.mark.parametrize("inclusive", [False, True])
def test_to_a_whole_batch(topic, inclusive):
    """The id of an entry is smaller than those of the batch's messages, which all are behind it."""
    topic.publish_batch(3)
    topic.publish(1)
    consumer = topic.consumer(start_message_id_inclusive=inclusive)
    first = receive_all(consumer)[0].message_id()
    entry = MessageId(first.partition(), first.ledger_id(), first.entry_id(), -1)
    assert entry < first
    consumer.seek(entry)
    assert numbers(receive_all(consumer)) == [0, 1, 2, 0]
    reader = topic.client.create_reader("topic", entry, start_message_id_inclusive=inclusive)
    assert numbers(list(reader)) == [0, 1, 2, 0]


@pytest.mark.in_memory
def test_to_a_time(topic):
    """Delivery goes on with the first message published then or later."""
    topic.publish(5)
    consumer = topic.consumer()
    times = [message.publish_timestamp() for message in receive_all(consumer)]
    consumer.seek(times[0])
    assert numbers(receive_all(consumer)) == [0, 1, 2, 3, 4]
    consumer.seek(times[0] - 1000)
    assert numbers(receive_all(consumer)) == [0, 1, 2, 3, 4]
    consumer.seek(times[-1] + 1)
    assert receive_all(consumer) == []


def test_within_a_batch(topic):
    """The batch index is respected, exclusive and inclusive."""
    topic.publish_batch(5)
    with topic.consumer() as consumer:
        ids = [message.message_id() for message in receive_all(consumer)]
        consumer.seek(ids[2])
        assert numbers(receive_all(consumer)) == [3, 4]
        consumer.seek(ids[4])
        assert receive_all(consumer) == []
    with topic.consumer(start_message_id_inclusive=True) as consumer:
        consumer.seek(ids[2])
        assert numbers(receive_all(consumer)) == [2, 3, 4]


def test_the_rest_of_a_batch_completes_it(topic):
    """After a seek into a batch, acknowledging what was delivered acknowledges the entry."""
    topic.publish_batch(3)
    with topic.consumer() as consumer:
        consumer.seek(receive_all(consumer)[0].message_id())
        for message in receive_all(consumer):
            consumer.acknowledge(message)
    assert receive_all(topic.consumer()) == []


def test_acknowledgements_before_the_seek_are_undone(topic):
    """Messages behind the new place come again, acknowledged or not."""
    topic.publish(5)
    consumer = topic.consumer()
    for message in receive_all(consumer):
        consumer.acknowledge(message)
    consumer.seek(MessageId.earliest)
    assert numbers(receive_all(consumer)) == [0, 1, 2, 3, 4]


def test_the_place_is_kept(topic):
    """The next consumer goes on from there."""
    ids = topic.publish(5)
    with topic.consumer() as consumer:
        consumer.seek(ids[2])
    assert numbers(receive_all(topic.consumer())) == [3, 4]


def test_an_id_made_by_hand(topic):
    """Ledger and entry are enough."""
    ids = topic.publish(5)
    consumer = topic.consumer()
    consumer.seek(MessageId(-1, ids[1].ledger_id(), ids[1].entry_id()))
    assert numbers(receive_all(consumer)) == [2, 3, 4]


def test_prefetched_messages_are_dropped(topic):
    """After the seek nothing from before it is delivered."""
    ids = topic.publish(10)
    consumer = topic.consumer()
    consumer.receive()
    consumer.seek(ids[7])
    assert numbers(receive_all(consumer)) == [8, 9]


@pytest.mark.parametrize("target", [1.5, "x", None])
def test_wrong_targets(topic, target):
    """Another type is refused in the words of pulsar-client."""
    consumer = topic.consumer()
    with pytest.raises(ValueError, match="invalid seek_arg type"):
        consumer.seek(target)
    consumer.close()
    with pytest.raises(AlreadyClosed):
        consumer.seek(MessageId.earliest)


@pytest.mark.parametrize("time_ms", [-1, 2**64])
def test_times_that_are_none(topic, time_ms):
    """Pulsar has 64 bits for a time, and none for its sign: a TypeError here as there."""
    topic.publish(1)
    for one in (topic.consumer(), topic.client.create_reader("topic", MessageId.earliest)):
        with pytest.raises(TypeError, match="must be between 0 and"):
            one.seek(time_ms)
        one.seek(2**64 - 1)
        one.seek(0)


def test_an_id_without_index_of_a_batch(topic):
    """It stands before the first message of the batch, as in the order of ids."""
    before = topic.publish(1)[0]
    topic.publish_batch(3)
    topic.publish(2)
    ledger, entry = before.ledger_id(), before.entry_id() + 1
    consumer = topic.consumer()
    consumer.seek(MessageId(-1, ledger, entry))
    assert numbers(receive_all(consumer)) == [0, 1, 2, 0, 1]
    reader = topic.client.create_reader("topic", MessageId(-1, ledger, entry))
    assert numbers(list(reader)) == [0, 1, 2, 0, 1]
    reader = topic.client.create_reader("topic", MessageId(-1, ledger, entry, 2))
    assert numbers(list(reader)) == [0, 1]


@pytest.mark.parametrize(("inclusive", "expected"), [(False, [2, 3]), (True, [1, 2, 3])])
def test_an_index_of_what_is_no_batch(topic, inclusive, expected):
    """A message that was not batched is found by ledger and entry, whatever the index says."""
    ids = topic.publish(4)
    made = MessageId(-1, ids[1].ledger_id(), ids[1].entry_id(), 3)
    reader = topic.client.create_reader("topic", made, start_message_id_inclusive=inclusive)
    assert numbers(list(reader)) == expected
