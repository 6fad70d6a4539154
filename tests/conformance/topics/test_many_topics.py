"""Hundreds of topics in one consumer: what has no messages costs nothing, and nothing is overlooked."""

from __future__ import annotations

from typing import Any

import pytest

from embeddedpulsar import (
    Client,
    ConsumerBatchReceivePolicy,
    ConsumerType,
    InitialPosition,
    MessageId,
    Timeout,
)
from embeddedpulsar._engine.platform.timing import Scheduler
from embeddedpulsar.client.consumer.delivery import Delivery
from tests.conformance.conftest import receive_all

TOPICS = 120


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows with every look for messages of one topic."""
    found: list[Any] = []
    poll = Delivery.poll

    def counted(self: Delivery, take: Any) -> Any:
        found.append(self)
        return poll(self, take)

    monkeypatch.setattr(Delivery, "poll", counted)
    return found


def subscribe(client: Client, kind: ConsumerType = ConsumerType.Exclusive, **options: Any) -> Any:
    return client.subscribe(
        [f"t{i}" for i in range(TOPICS)], "s", kind, initial_position=InitialPosition.Earliest, **options
    )


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_a_message_costs_no_look_at_all_topics(client: Client, polls: list[Any], kind: ConsumerType):
    """Messages come one at a time, on a few of the topics."""
    consumer = subscribe(client, kind)
    with pytest.raises(Timeout):
        consumer.receive(1)
    producers = [client.create_producer(f"t{i}") for i in (3, 50, 99)]
    polls.clear()
    for turn in range(60):
        producers[turn % 3].send(b"%d" % turn)
        message = consumer.receive(5000)
        assert message.data() == b"%d" % turn
        consumer.acknowledge(message)
    assert len(polls) < 60 * 10


def test_a_reader_of_many_partitions(client: Client, polls: list[Any]):
    """`has_message_available` and `read_next` look at those that have messages."""
    client._core.store.topics.create_partitioned("parts", TOPICS)
    reader = client.create_reader("parts", MessageId.earliest)
    assert not reader.has_message_available()
    producer = client.create_producer("parts-partition-77")
    polls.clear()
    for turn in range(30):
        producer.send(b"%d" % turn)
        assert reader.has_message_available()
        assert reader.read_next(5000).data() == b"%d" % turn
    assert not reader.has_message_available()
    assert len(polls) < 30 * 10
    reader.seek(MessageId.earliest)
    assert len(list(reader)) == 30


def test_every_topic_has_its_turn(client: Client):
    """One that always has messages holds up no other."""
    with client.create_producer("t0") as producer:
        for i in range(500):
            producer.send(b"much %d" % i)
    for i in range(1, TOPICS):
        with client.create_producer(f"t{i}") as producer:
            producer.send(b"little")
    consumer = subscribe(client)
    first = [consumer.receive(5000).data() for _ in range(TOPICS + 40)]
    assert first.count(b"little") == TOPICS - 1


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_what_comes_again_is_found(client: Client, kind: ConsumerType):
    """Given back, asked for again, moved: though nothing is appended to the log."""
    ids = []
    for i in (5, 80):
        with client.create_producer(f"t{i}") as producer:
            ids.append(producer.send(b"t%d" % i))
    consumer = subscribe(client, kind, negative_ack_redelivery_delay_ms=100)
    messages = receive_all(consumer)
    assert sorted(message.data() for message in messages) == [b"t5", b"t80"]
    consumer.negative_acknowledge(messages[0])
    assert consumer.receive(5000).data() == messages[0].data()
    consumer.redeliver_unacknowledged_messages()
    assert sorted(message.data() for message in receive_all(consumer)) == [b"t5", b"t80"]
    for target in (MessageId.earliest, 0):
        consumer.seek(target)
        assert sorted(message.data() for message in receive_all(consumer)) == [b"t5", b"t80"]


def test_what_does_not_fit_into_a_batch_is_not_forgotten(client: Client):
    """It is the first of the next batch."""
    for i in (5, 80):
        with client.create_producer(f"t{i}") as producer:
            for _ in range(2):
                producer.send(bytes(100))
    policy = ConsumerBatchReceivePolicy(-1, 150, 1000)
    consumer = subscribe(client, batch_receive_policy=policy)
    assert [len(consumer.batch_receive()) for _ in range(4)] == [1] * 4


def test_acknowledgements_of_all_topics_share_a_timer(client: Client, monkeypatch: pytest.MonkeyPatch):
    """A timer for each topic would wake the thread of the timers for each."""
    for i in range(TOPICS):
        with client.create_producer(f"t{i}") as producer:
            producer.send(b"t%d" % i)
    consumer = subscribe(client)
    messages = receive_all(consumer)
    assert len(messages) == TOPICS
    delays: list[float] = []
    call_later = Scheduler.call_later

    def counted(self: Scheduler, delay_s: float, function: Any) -> Any:
        delays.append(delay_s)
        return call_later(self, delay_s, function)

    monkeypatch.setattr(Scheduler, "call_later", counted)
    for message in messages:
        consumer.acknowledge(message)
    monkeypatch.undo()
    assert len(delays) < TOPICS / 4
    consumer.close()
    assert receive_all(subscribe(client)) == []
