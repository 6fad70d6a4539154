"""A message that is acknowledged after it was given back, while it is on its way for the second time."""

from __future__ import annotations

import queue
from typing import Any

import pytest

from embeddedpulsar import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InitialPosition,
    MessageId,
)
from embeddedpulsar.exceptions import LockTimeout
from tests.conformance.conftest import Topic, numbers, receive_all
from tests.conformance.manual_time import ManualTime
from tests.conformance.pool import take

IN_ORDER = [ConsumerType.Exclusive, ConsumerType.Failover]
SINGLY = [ConsumerType.Shared, ConsumerType.KeyShared]
KINDS = [*IN_ORDER, *SINGLY]
WRITING = [{}, {"ack_group_time_ms": 0}, {"ack_receipt_enabled": True}, {"batch_index_ack_enabled": True}]
WAYS = [*zip(["message", "id", "message", "id"], WRITING, strict=True), ("id", {})]


def acknowledge(consumer: Any, message: Any, by: str) -> None:
    consumer.acknowledge(message if by == "message" else message.message_id())


@pytest.mark.parametrize(("by", "writing"), WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_before_it_is_fetched_again(topic: Topic, kind: ConsumerType, writing: dict, by: str):
    """All are given back, then one is acknowledged: the others come."""
    consumer = topic.consumer(consumer_type=kind, **writing)
    topic.publish(4)
    messages = take(consumer)
    consumer.redeliver_unacknowledged_messages()
    acknowledge(consumer, messages[1], by)
    assert numbers(take(consumer)) == [0, 2, 3]


@pytest.mark.parametrize(("by", "writing"), WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_while_it_waits_in_the_queue(topic: Topic, kind: ConsumerType, writing: dict, by: str):
    """They are fetched again with the first of them; then two are acknowledged, one of them in writing."""
    consumer = topic.consumer(consumer_type=kind, **writing)
    topic.publish(6)
    messages = take(consumer)
    consumer.redeliver_unacknowledged_messages()
    assert numbers(take(consumer, 1)) == [0]
    acknowledge(consumer, messages[2], by)
    consumer._acks.flush()
    acknowledge(consumer, messages[4], by)
    assert numbers(take(consumer)) == [1, 3, 5]
    consumer.redeliver_unacknowledged_messages()
    assert numbers(take(consumer)) == [0, 1, 3, 5]


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("by", ["message", "id"])
@pytest.mark.parametrize("kind", KINDS)
def test_another_of_its_batch_is_given_back(time: ManualTime, kind: ConsumerType, by: str, is_written: bool):
    """With acknowledgements of batch indexes, each message of the batch counts by itself."""
    topic = Topic(time.client)
    consumer = topic.consumer(
        consumer_type=kind, negative_ack_redelivery_delay_ms=100, batch_index_ack_enabled=True
    )
    topic.publish_batch(5)
    messages = take(consumer)
    acknowledge(consumer, messages[1], by)
    consumer.negative_acknowledge(messages[0])
    time.pass_ms(200)
    assert numbers(take(consumer, 1)) == [0]
    acknowledge(consumer, messages[3], by)
    if is_written:
        time.pass_ms(100)
    assert numbers(take(consumer)) == [2, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_batch_after_its_messages_came_again(topic: Topic, kind: ConsumerType):
    """Without them, a batch whose messages are all acknowledged comes no further."""
    consumer = topic.consumer(consumer_type=kind)
    topic.publish_batch(4)
    topic.publish_batch(3)
    messages = take(consumer)
    consumer.redeliver_unacknowledged_messages()
    assert numbers(take(consumer, 1)) == [0]
    for message in messages[:4]:
        consumer.acknowledge(message)
    assert numbers(take(consumer)) == [0, 1, 2]


@pytest.mark.parametrize("kind", IN_ORDER)
@pytest.mark.parametrize("is_batch", [False, True])
def test_all_up_to_one(topic: Topic, kind: ConsumerType, is_batch: bool):
    """A cumulative acknowledgement covers what waits in the queue."""
    consumer = topic.consumer(consumer_type=kind, batch_index_ack_enabled=True)
    (topic.publish_batch if is_batch else topic.publish)(6)
    messages = take(consumer)
    consumer.redeliver_unacknowledged_messages()
    assert numbers(take(consumer, 1)) == [0]
    consumer.acknowledge_cumulative(messages[3])
    consumer._acks.flush()
    assert numbers(take(consumer)) == [4, 5]


@pytest.mark.parametrize("writing", WRITING)
@pytest.mark.parametrize("kind", KINDS)
def test_an_id_before_its_message_is_received(topic: Topic, kind: ConsumerType, writing: dict):
    """The ids that the producer returned are acknowledged while the messages wait in the queue."""
    consumer = topic.consumer(consumer_type=kind, **writing)
    ids = topic.publish(6)
    assert numbers(take(consumer, 1)) == [0]
    consumer.acknowledge(ids[2])
    consumer.acknowledge(ids[5])
    assert consumer.stats().queued_messages == 3
    assert numbers(take(consumer)) == [1, 3, 4]
    assert consumer.stats().messages_received == 4


@pytest.mark.parametrize("kind", IN_ORDER)
def test_all_up_to_an_id_before_its_message_is_received(topic: Topic, kind: ConsumerType):
    """The same for everything up to an id."""
    consumer = topic.consumer(consumer_type=kind)
    ids = topic.publish(6)
    assert numbers(take(consumer, 1)) == [0]
    consumer.acknowledge_cumulative(ids[3])
    assert numbers(take(consumer)) == [4, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_seek(topic: Topic, kind: ConsumerType):
    """The consumer went back; a message that it got before is acknowledged while it waits in the queue."""
    consumer = topic.consumer(consumer_type=kind)
    topic.publish(5)
    messages = take(consumer)
    consumer.seek(MessageId.earliest)
    assert numbers(take(consumer, 1)) == [0]
    consumer.acknowledge(messages[2])
    assert numbers(take(consumer)) == [1, 3, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_after_an_acknowledgement_timeout(time: ManualTime, kind: ConsumerType):
    """What timed out is acknowledged at last, one before and one after it was fetched again."""
    topic = Topic(time.client)
    consumer = topic.consumer(consumer_type=kind, unacked_messages_timeout_ms=10_000)
    topic.publish(5)
    messages = take(consumer)
    time.pass_ms(12_000)
    consumer.acknowledge(messages[1])
    assert numbers(take(consumer, 1)) == [0]
    consumer.acknowledge(messages[3])
    assert numbers(take(consumer)) == [2, 4]


@pytest.mark.parametrize("is_after_fetch", [False, True])
@pytest.mark.parametrize("kind", SINGLY)
def test_a_chunked_message(topic: Topic, kind: ConsumerType, is_after_fetch: bool):
    """A message of several entries, and one of a single entry before it."""
    consumer = topic.consumer(consumer_type=kind)
    with topic.producer(chunking_enabled=True) as producer:
        producer.send(b"small")
        producer.send(b"x" * (11 << 20))
        producer.send(b"last")
    small, large, _ = take(consumer)
    consumer.redeliver_unacknowledged_messages()
    before = [message.data() for message in take(consumer, 1)] if is_after_fetch else []
    consumer.acknowledge(large)
    assert small.data() == b"small"
    assert [*before, *(message.data() for message in take(consumer))] == [b"small", b"last"]


@pytest.mark.parametrize("kind", KINDS)
def test_with_batch_receive(topic: Topic, kind: ConsumerType):
    """Messages that did not fit into a batch are looked at again."""
    consumer = topic.consumer(
        consumer_type=kind, batch_receive_policy=ConsumerBatchReceivePolicy(-1, 16, 100)
    )
    topic.publish(6)
    messages = take(consumer)
    consumer.redeliver_unacknowledged_messages()
    assert numbers(consumer.batch_receive()) == [0, 1]
    consumer.acknowledge(messages[2])
    consumer.acknowledge(messages[4])
    assert numbers(consumer.batch_receive()) == [3, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_of_several_topics(topic: Topic, kind: ConsumerType):
    """Each topic of a consumer has acknowledgements of its own."""
    client = topic.client
    consumer = client.subscribe(
        ["one", "two"], "sub", consumer_type=kind, initial_position=InitialPosition.Earliest
    )
    for name in ("one", "two"):
        with client.create_producer(name) as producer:
            for number in range(3):
                producer.send(b"%d" % number)
    messages = receive_all(consumer)
    consumer.redeliver_unacknowledged_messages()
    first = consumer.receive(1000)
    left = {(one.topic_name(), one.data()) for one in messages} - {(first.topic_name(), first.data())}
    for message in messages:
        if message.data() == b"1":
            consumer.acknowledge(message)
            left.discard((message.topic_name(), b"1"))
    assert {(one.topic_name(), one.data()) for one in receive_all(consumer)} == left


@pytest.mark.parametrize("kind", KINDS)
def test_with_a_listener(topic: Topic, kind: ConsumerType):
    """The first message that comes a second time has a listener acknowledge the others of the first time."""
    shown: queue.Queue[int] = queue.Queue()
    before: list[Any] = []

    def listen(consumer: Any, message: Any) -> None:
        before.append(message)
        if len(before) == 4:
            consumer.redeliver_unacknowledged_messages()
        if len(before) == 5:
            for one in before[1:3]:
                consumer.acknowledge(one)
        shown.put(numbers([message])[0])

    topic.publish(4)
    consumer = topic.consumer(consumer_type=kind, message_listener=listen)
    assert [shown.get(timeout=10) for _ in range(6)] == [0, 1, 2, 3, 0, 3]
    consumer.close()
    assert shown.empty()


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_with_a_short_queue(topic: Topic, kind: ConsumerType, size: int):
    """A consumer that fetches one message at a time."""
    consumer = topic.consumer(consumer_type=kind, receiver_queue_size=size)
    topic.publish(4)
    messages = [consumer.receive() for _ in range(4)]
    consumer.redeliver_unacknowledged_messages()
    consumer.acknowledge(messages[0])
    assert numbers([consumer.receive()]) == [1]
    consumer.acknowledge(messages[2])
    assert numbers(take(consumer)) == [3]


@pytest.mark.parametrize("is_after_fetch", [False, True])
def test_it_is_no_dead_letter(time: ManualTime, is_after_fetch: bool):
    """What was acknowledged after it was given back too often does not go to the dead letter topic."""
    topic = Topic(time.client)
    dead = time.client.subscribe("dead", "sub", initial_position=InitialPosition.Earliest)
    consumer = topic.consumer(
        consumer_type=ConsumerType.Shared,
        dead_letter_policy=ConsumerDeadLetterPolicy(1, "dead"),
    )
    topic.publish(2)
    take(consumer)
    consumer.redeliver_unacknowledged_messages()
    messages = take(consumer)
    if is_after_fetch:
        consumer.negative_acknowledge(messages[1])
    else:
        # As another process gives them back: this consumer does not move them when they are due.
        consumer._core.session.attachment.redeliver()
        consumer._core.start_over()
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[1])
    assert receive_all(consumer) == []
    time.pass_ms(120_000)
    assert receive_all(dead) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_fast_path_is_back_afterwards(topic: Topic, kind: ConsumerType):
    """When all that may come twice has come, messages are taken and acknowledged as quickly as before."""
    consumer = topic.consumer(consumer_type=kind, receiver_queue_size=4)
    topic.publish(4)
    take(consumer)
    consumer.redeliver_unacknowledged_messages()
    assert numbers(take(consumer)) == [0, 1, 2, 3]
    topic.publish(4)
    assert numbers(take(consumer, 1)) == [0]
    assert len(consumer._core.queue.messages) == 3
    assert consumer._acks._recent is None
    assert consumer._acks.quick


@pytest.mark.parametrize("by", ["message", "id"])
@pytest.mark.parametrize("kind", SINGLY)
def test_another_consumer_gets_the_rest_of_a_batch(time: ManualTime, kind: ConsumerType, by: str):
    """One message of it is given back, another is acknowledged before, and one after; neither is written by a
    timer before another consumer gets the batch."""
    topic = Topic(time.client)
    options = {"consumer_type": kind, "batch_index_ack_enabled": True, "ack_group_time_ms": 60_000}
    consumer = topic.consumer(negative_ack_redelivery_delay_ms=100, **options)
    topic.publish_batch(5)
    messages = take(consumer)
    acknowledge(consumer, messages[1], by)
    consumer.negative_acknowledge(messages[0])
    with topic.consumer(consumer_name="other", **options) as other:
        time.pass_ms(200)
        acknowledge(consumer, messages[3], by)
        assert numbers(take(other)) == [0, 2, 4]


@pytest.mark.parametrize("kind", SINGLY)
@pytest.mark.parametrize("size", [1, 3])
def test_another_consumer_does_not_get_what_is_complete(time: ManualTime, kind: ConsumerType, size: int):
    """An entry is acknowledged as a whole after a message of it was given back."""
    topic = Topic(time.client)
    options = {"consumer_type": kind, "ack_group_time_ms": 60_000}
    consumer = topic.consumer(negative_ack_redelivery_delay_ms=100, **options)
    (topic.publish_batch if size > 1 else topic.publish)(size)
    messages = take(consumer)
    consumer.negative_acknowledge(messages[0])
    with topic.consumer(consumer_name="other", **options) as other:
        time.pass_ms(200)
        for message in messages:
            consumer.acknowledge(message)
        assert not take(other)


@pytest.mark.parametrize("kind", SINGLY)
def test_another_consumer_gets_the_rest_when_all_are_given_back(time: ManualTime, kind: ConsumerType):
    """What is acknowledged of a batch afterwards is left out at once."""
    topic = Topic(time.client)
    options = {"consumer_type": kind, "batch_index_ack_enabled": True, "ack_group_time_ms": 60_000}
    consumer = topic.consumer(**options)
    topic.publish_batch(4)
    messages = take(consumer)
    with topic.consumer(consumer_name="other", **options) as other:
        consumer.redeliver_unacknowledged_messages()
        consumer.acknowledge(messages[1])
        consumer.acknowledge(messages[2])
        assert numbers(take(other)) == [0, 3]


@pytest.mark.parametrize("kind", SINGLY)
def test_a_batch_that_cannot_be_given_back_is_kept(
    time: ManualTime, kind: ConsumerType, monkeypatch: pytest.MonkeyPatch
):
    """It is acknowledged as before: when all its messages are."""
    topic = Topic(time.client)
    consumer = topic.consumer(consumer_type=kind, negative_ack_redelivery_delay_ms=100)
    topic.publish_batch(3)
    messages = take(consumer)

    def refused(positions: Any) -> bool:
        raise LockTimeout("the lock of the subscription")

    with monkeypatch.context() as patch:
        patch.setattr(consumer._core.session.attachment, "redeliver_entries", refused)
        with pytest.raises(LockTimeout):
            consumer._core.redelivery.due([(messages[0]._entry.ledger_id, messages[0]._entry.entry_id)])
    assert list(consumer._acks.open) == [(messages[0]._entry.ledger_id, messages[0]._entry.entry_id)]
    for message in messages:
        consumer.acknowledge(message)
    consumer.redeliver_unacknowledged_messages()
    assert not take(consumer)
