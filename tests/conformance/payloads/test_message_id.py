"""Message ids: where a message is, the same for sender and receiver."""

from __future__ import annotations

from itertools import pairwise

import pulsar
import pytest

from embeddedpulsar import MessageId
from tests.conformance.conftest import numbers, receive_all


@pytest.mark.parametrize("batching", [False, True])
def test_ids_rise_and_agree(topic, batching):
    """Ids rise strictly with every send, and the received ids equal the sent ones."""
    consumer = topic.consumer()
    sent = topic.publish(10, batching_enabled=batching)
    received = [message.message_id() for message in receive_all(consumer)]
    assert sent == received
    assert all(one < other for one, other in pairwise(sent))
    assert {message_id.partition() for message_id in sent} == {-1}
    assert {message_id.batch_index() for message_id in sent} == ({0} if batching else {-1})


def test_ids_may_be_stored(topic):
    """A serialized id works in acknowledge, seek and create_reader, and pulsar-client reads it too."""
    topic.publish(5)
    consumer = topic.consumer()
    messages = receive_all(consumer)
    stored = messages[1].message_id().serialize()
    theirs = pulsar.MessageId.deserialize(stored)
    restored = MessageId.deserialize(stored)
    assert (theirs.ledger_id(), theirs.entry_id()) == (restored.ledger_id(), restored.entry_id())
    assert numbers(list(topic.client.create_reader("topic", restored))) == [2, 3, 4]
    consumer.acknowledge(restored)
    consumer.acknowledge_cumulative(MessageId.wrap(messages[0].message_id()))
    consumer.redeliver_unacknowledged_messages()
    assert numbers(receive_all(consumer)) == [2, 3, 4]
    consumer.seek(restored)
    assert numbers(receive_all(consumer)) == [2, 3, 4]


def test_get_last_message_id(topic):
    """The last message of the topic; in a batch, the last of it; of an empty topic, entry -1."""
    consumer = topic.consumer()
    assert consumer.get_last_message_id().entry_id() == -1
    ids = topic.publish(3)
    assert consumer.get_last_message_id() == ids[-1]
    topic.publish_batch(4)
    last = consumer.get_last_message_id()
    assert last.batch_index() == 3
    assert last == receive_all(consumer)[-1].message_id()


def test_ids_of_nothing_acknowledge_nothing(topic):
    """earliest and latest are no messages."""
    topic.publish(2)
    with topic.consumer() as consumer:
        for message_id in (MessageId.earliest, MessageId.latest):
            consumer.acknowledge(message_id)
            consumer.acknowledge_cumulative(message_id)
            consumer.negative_acknowledge(message_id)
    assert numbers(receive_all(topic.consumer())) == [0, 1]
