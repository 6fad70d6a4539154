"""After a seek into a batch, what lies before the position does not come back by a redelivery."""

from __future__ import annotations

from typing import Any

import pytest

from embeddedpulsar import ConsumerType, MessageId
from tests.conformance.conftest import Topic, numbers, receive_all

SINGLE = [ConsumerType.Exclusive, ConsumerType.Failover]
SHARED = [ConsumerType.Shared, ConsumerType.KeyShared]


def give_back(consumer: Any, messages: list[Any], how: str) -> None:
    if how == "redeliver":
        consumer.redeliver_unacknowledged_messages()
    elif how == "nack":
        consumer.negative_acknowledge(messages[0])
    else:
        for message in messages:
            consumer.negative_acknowledge(message.message_id())


@pytest.mark.parametrize("how", ["redeliver", "nack", "nack of all"])
@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("kind", [*SINGLE, *SHARED])
def test_it_begins_at_the_position_again(topic: Topic, kind: ConsumerType, inclusive: bool, how: str):
    """As often as the batch comes; the entries behind it come whole."""
    topic.publish_batch(5)
    topic.publish_batch(2)
    consumer = topic.consumer(
        consumer_type=kind,
        start_message_id_inclusive=inclusive,
        negative_ack_redelivery_delay_ms=100,
    )
    ids = [message.message_id() for message in receive_all(consumer)]
    consumer.seek(ids[3 if inclusive else 2])
    expected = [3, 4, 0, 1]
    messages = receive_all(consumer)
    assert numbers(messages) == expected
    for _ in range(2):
        give_back(consumer, messages, how)
        come_alone = how == "nack" and kind in SHARED
        coming = expected[:2] if come_alone else expected
        again = [consumer.receive(5000) for _ in coming]  # each entry has a timer of its own
        assert numbers(again + receive_all(consumer)) == coming
    for message in again:
        consumer.acknowledge(message)
    if come_alone:
        for message in messages[2:]:
            consumer.acknowledge(message)
    consumer.close()
    assert receive_all(topic.consumer(consumer_type=kind)) == []


def test_the_next_seek_is_another_one(topic: Topic):
    """To the beginning, the whole batch comes; so it does after a seek of somebody else."""
    topic.publish_batch(5)
    consumer = topic.consumer(consumer_type=ConsumerType.Failover, consumer_name="a")
    ids = [message.message_id() for message in receive_all(consumer)]
    consumer.seek(ids[2])
    assert numbers(receive_all(consumer)) == [3, 4]
    consumer.seek(MessageId.earliest)
    assert numbers(receive_all(consumer)) == [0, 1, 2, 3, 4]
    consumer.seek(ids[2])
    other = topic.consumer(consumer_type=ConsumerType.Failover, consumer_name="b")
    other.seek(MessageId.earliest)
    assert numbers([*receive_all(consumer), *receive_all(other)]) == [0, 1, 2, 3, 4]


def test_readers(topic: Topic):
    """A reader that goes back and forth begins where it was told last."""
    topic.publish_batch(5)
    reader = topic.client.create_reader("topic", MessageId.earliest)
    ids = [message.message_id() for message in reader]
    reader.seek(ids[2])
    assert numbers(list(reader)) == [3, 4]
    reader.seek(0)
    assert numbers(list(reader)) == [0, 1, 2, 3, 4]
