"""Dead letters: what came back too often moves to a topic of its own, and nothing is lost on the way."""

from __future__ import annotations

import logging
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import (
    Client,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InitialPosition,
    InvalidTopicName,
    MessageId,
    StorageFullError,
    StringSchema,
    Timeout,
)
from tests.conformance.conftest import receive_all

BASE = "persistent://public/default/"
SINGLY = [ConsumerType.Shared, ConsumerType.KeyShared]


def subscribe(client: Client, most: int = 1, kind: ConsumerType = ConsumerType.Shared, **options: Any) -> Any:
    """A consumer of ``orders`` whose messages move after ``most`` redeliveries."""
    options.setdefault("dead_letter_policy", ConsumerDeadLetterPolicy(most))
    return client.subscribe(
        "orders",
        "sub",
        kind,
        negative_ack_redelivery_delay_ms=100,
        initial_position=InitialPosition.Earliest,
        **options,
    )


def send(client: Client, count: int, **options: Any) -> list[MessageId]:
    """Send ``hello-0``, ``hello-1`` and so on."""
    with client.create_producer("orders") as producer:
        return [producer.send(b"hello-%d" % i, **options) for i in range(count)]


def refuse_all(consumer: Any, wait_ms: int = 1000) -> list[Any]:
    """Give back whatever comes, until nothing does any more; returns what came."""
    seen = []
    while True:
        try:
            message = consumer.receive(wait_ms)
        except Timeout:
            return seen
        seen.append(message)
        consumer.negative_acknowledge(message)


def letters(client: Client, topic: str = "orders-sub-DLQ") -> list[Any]:
    """What a topic holds."""
    with client.create_reader(topic, MessageId.earliest) as reader:
        return list(reader)


@pytest.mark.in_memory
@pytest.mark.parametrize("kind", SINGLY)
def test_ten_messages_are_delivered_sixty_times(client, kind):
    """With max_redeliver_count=5 each of ten comes six times, then nothing; the dead come in order."""
    send(client, 10)
    consumer = subscribe(client, 5, kind)
    dead = client.subscribe("orders-sub-DLQ", "undertaker", initial_position=InitialPosition.Earliest)
    seen = refuse_all(consumer)
    assert len(seen) == 60
    for i in range(10):
        own = [one.redelivery_count() for one in seen if one.data() == b"hello-%d" % i]
        assert own == list(range(6))
    assert [dead.receive(1000).data() for _ in range(10)] == [b"hello-%d" % i for i in range(10)]
    with pytest.raises(Timeout):
        dead.receive(100)


@pytest.mark.parametrize("kind", SINGLY)
def test_the_originals_are_acknowledged(client, kind):
    """What moved does not come to the next consumer; what was acknowledged in time did not move."""
    send(client, 3)
    with subscribe(client, 1, kind) as consumer:
        for _ in range(6):
            message = consumer.receive(5000)
            if message.data() == b"hello-1":
                consumer.acknowledge(message)
            else:
                consumer.negative_acknowledge(message)
            if message.redelivery_count() == 1 and message.data() == b"hello-2":
                break
        assert refuse_all(consumer, 400) == []
    assert [one.data() for one in letters(client)] == [b"hello-0", b"hello-2"]
    with subscribe(client, 1, kind) as consumer:
        assert receive_all(consumer) == []


def test_a_letter_carries_what_the_message_had(client):
    """Payload, properties, keys and event time are those of the message; two properties say where it was."""
    (sent,) = send(
        client, 1, properties={"table": "7"}, partition_key="k", ordering_key="o", event_timestamp=123
    )
    refuse_all(subscribe(client), 400)
    (letter,) = letters(client)
    assert letter.data() == b"hello-0"
    assert (letter.partition_key(), letter.ordering_key(), letter.event_timestamp()) == ("k", "o", 123)
    assert letter.properties() == {
        "table": "7",
        "REAL_TOPIC": BASE + "orders",
        "ORIGIN_MESSAGE_ID": str(sent),
    }


def test_payloads_move_as_they_are(client):
    """The schema of the consumer neither decodes nor encodes what it could not read; null stays null."""
    consumer = subscribe(client, schema=StringSchema())
    with client.create_producer("orders") as producer:
        producer.send(b"\xff\xfe")
        producer.send(None)
    refuse_all(consumer, 400)
    garbled, nothing = letters(client)
    assert garbled.data() == b"\xff\xfe"
    assert nothing.has_null_value()


def test_names_can_be_given(client):
    """The topic of the policy is used; a wrong name is refused when subscribing."""
    send(client, 1)
    policy = ConsumerDeadLetterPolicy(1, dead_letter_topic="graveyard")
    refuse_all(subscribe(client, dead_letter_policy=policy), 400)
    assert len(letters(client, "graveyard")) == 1
    with pytest.raises(InvalidTopicName):
        subscribe(client, dead_letter_policy=ConsumerDeadLetterPolicy(1, dead_letter_topic="a/b"))


def test_the_producer_has_the_name_of_the_consumer(client):
    """``<topic>-<subscription>-<consumer>-DLQ``, from the first letter on until the consumer is closed."""
    send(client, 1)
    consumer = subscribe(client, consumer_name="till-1")
    store = client._core.store
    assert not store.topics.has("orders-sub-DLQ")
    refuse_all(consumer, 400)
    topic = store.use_topic("orders-sub-DLQ").topic
    assert topic.producers() == [BASE + "orders-sub-till-1-DLQ"]
    consumer.close()
    assert topic.producers() == []


def test_an_initial_subscription_keeps_the_letters(client):
    """It exists before the first letter, so a consumer that comes later misses none."""
    send(client, 2)
    policy = ConsumerDeadLetterPolicy(1, initial_subscription_name="keep")
    refuse_all(subscribe(client, dead_letter_policy=policy), 400)
    late = client.subscribe("orders-sub-DLQ", "keep")  # Latest, for a new one
    assert [late.receive(1000).data() for _ in range(2)] == [b"hello-0", b"hello-1"]


def test_an_initial_subscription_that_is_not_allowed(tmp_path: Path, caplog):
    """With allowAutoSubscriptionCreation=false no letter is stored and the messages keep coming."""
    (tmp_path / "broker.conf").write_text("allowAutoSubscriptionCreation=false\n")
    with Client(tmp_path) as client:
        store = client._core.store
        store.use_topic("orders").topic.create_subscription("sub")
        send(client, 1)
        policy = ConsumerDeadLetterPolicy(1, initial_subscription_name="keep")
        consumer = subscribe(client, dead_letter_policy=policy)
        with caplog.at_level(logging.WARNING, "embeddedpulsar"):
            for _ in range(2):
                consumer.negative_acknowledge(consumer.receive(5000))
            assert refuse_all(consumer, 700) == []
        assert "allowAutoSubscriptionCreation=false" in caplog.text
        assert letters(client) == []
        store.use_topic("orders-sub-DLQ").topic.create_subscription("keep")
        keep = client.subscribe("orders-sub-DLQ", "keep")
        assert refuse_all(consumer, 700) == []
        assert keep.receive(5000).data() == b"hello-0"


@pytest.mark.parametrize("index_acks", [False, True])
def test_of_a_batch_the_rest_moves(client, index_acks):
    """Messages of a batch that were acknowledged do not move; the others do, each with its own id."""
    with client.create_producer(
        "orders", batching_enabled=True, batching_max_publish_delay_ms=60_000
    ) as producer:
        for i in range(4):
            producer.send_async(b"hello-%d" % i, None)
    consumer = subscribe(client, batch_index_ack_enabled=index_acks)
    for count in range(2):
        messages = [consumer.receive(5000) for _ in range(3 if count and index_acks else 4)]
        assert {one.redelivery_count() for one in messages} == {count}
        for message in messages:
            if message.data() == b"hello-1":
                consumer.acknowledge(message)
            else:
                consumer.negative_acknowledge(message)
    assert refuse_all(consumer, 500) == []
    found = letters(client)
    assert [one.data() for one in found] == [b"hello-0", b"hello-2", b"hello-3"]
    ids = [one.properties()["ORIGIN_MESSAGE_ID"] for one in found]
    assert [text.split(",")[-1] for text in ids] == ["0)", "2)", "3)"]
    consumer.close()
    with subscribe(client) as consumer:
        assert receive_all(consumer) == []


def test_messages_of_a_moved_batch_are_not_delivered(client):
    """What was fetched ahead of a batch that moved is dropped: it is in the other topic now."""
    with client.create_producer(
        "orders", batching_enabled=True, batching_max_publish_delay_ms=60_000
    ) as producer:
        for i in range(3):
            producer.send_async(b"hello-%d" % i, None)
    consumer = subscribe(client)
    first = [consumer.receive(5000) for _ in range(3)]
    consumer.negative_acknowledge(first[0])
    again = consumer.receive(5000)
    assert again.redelivery_count() == 1
    consumer.negative_acknowledge(again)
    dead = client.subscribe("orders-sub-DLQ", "undertaker", initial_position=InitialPosition.Earliest)
    assert [dead.receive(5000).data() for _ in range(3)] == [b"hello-0", b"hello-1", b"hello-2"]
    with pytest.raises(Timeout):
        consumer.receive(200)


def test_redeliver_unacknowledged_messages_counts_too(client):
    """Everything comes once more beyond the limit, and moves when it arrives, unseen."""
    send(client, 3)
    consumer = subscribe(client)
    for count in range(2):
        messages = [consumer.receive(5000) for _ in range(3)]
        assert {one.redelivery_count() for one in messages} == {count}
        consumer.redeliver_unacknowledged_messages()
    with pytest.raises(Timeout):
        consumer.receive(300)
    assert len(letters(client)) == 3


def test_another_consumer_of_the_subscription_moves_them_as_well(client):
    """Counts are the subscription's: a message that was refused here and there moves all the same."""
    send(client, 4)
    consumers = [subscribe(client, 2, receiver_queue_size=1), subscribe(client, 2, receiver_queue_size=1)]
    seen = 0
    for _ in range(500):
        for consumer in consumers:
            message = consumer.receive_nowait()
            if message is not None:
                seen += 1
                consumer.negative_acknowledge(message)
        if seen >= 12:
            break
        consumers[0]._core.session.mailbox.wait(consumers[0]._core.session.mailbox.generation, 0.02)
    assert seen == 12
    dead = client.subscribe("orders-sub-DLQ", "undertaker", initial_position=InitialPosition.Earliest)
    assert sorted(dead.receive(5000).data() for _ in range(4)) == [b"hello-%d" % i for i in range(4)]


def test_what_cannot_be_moved_keeps_coming(client, monkeypatch, caplog):
    """While the dead letter topic takes nothing, messages are neither lost nor shown; then they move."""
    send(client, 2)
    consumer = subscribe(client)
    ledger = client._core.store.use_topic("orders-sub-DLQ").topic.ledger
    append = ledger.append_nowait
    refused = []

    def full(*arguments: Any) -> Any:
        if len(refused) < 5:
            refused.append(arguments)
            raise StorageFullError("no room")
        return append(*arguments)

    monkeypatch.setattr(ledger, "append_nowait", full)
    dead = client.subscribe("orders-sub-DLQ", "undertaker", initial_position=InitialPosition.Earliest)
    assert len(refuse_all(consumer, 600)) == 4
    assert sorted(dead.receive(5000).data() for _ in range(2)) == [b"hello-0", b"hello-1"]
    assert len(refused) == 5
    assert "no room" in caplog.text


def test_exclusive_subscriptions_count_nothing(client):
    """As in Pulsar a policy is accepted there, and has no effect."""
    send(client, 1)
    consumer = subscribe(client, 1, ConsumerType.Exclusive)
    for _ in range(4):
        message = consumer.receive(5000)
        assert message.redelivery_count() == 0
        consumer.negative_acknowledge(message)
    consumer.close()
    assert not client._core.store.topics.has("orders-sub-DLQ")


def test_a_retried_message_may_die_too(client):
    """A message from the retry topic that is given back too often moves, and its origin stays the first."""
    (sent,) = send(client, 1)
    consumer = subscribe(client, enable_retry=True)
    consumer.reconsume_later(consumer.receive(5000), 0)
    seen = refuse_all(consumer, 500)
    assert [one.redelivery_count() for one in seen] == [0, 1]
    (letter,) = letters(client)
    properties = letter.properties()
    assert (properties["REAL_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == (BASE + "orders", str(sent))
    assert properties["RECONSUMETIMES"] == "1"


def test_retries_keep_their_delay(client):
    """On a Shared subscription a retry letter comes after its delay, and not before."""
    send(client, 1)
    consumer = subscribe(client, enable_retry=True)
    consumer.reconsume_later(consumer.receive(5000), 600)
    with pytest.raises(Timeout):
        consumer.receive(300)
    again = consumer.receive(5000)
    assert again.properties()["DELAY_TIME"] == "600"
    assert again.redelivery_count() == 0


@pytest.mark.slow
def test_an_overdue_acknowledgement_counts(client):
    """A message that is not acknowledged in time twice, with max_redeliver_count=1, moves."""
    send(client, 1)
    consumer = subscribe(client, unacked_messages_timeout_ms=10_000)
    assert consumer.receive(5000).redelivery_count() == 0
    assert consumer.receive(15_000).redelivery_count() == 1
    dead = client.subscribe("orders-sub-DLQ", "undertaker", initial_position=InitialPosition.Earliest)
    assert dead.receive(15_000).data() == b"hello-0"


@pytest.mark.parametrize("kind", SINGLY)
def test_every_message_ends_in_one_place(client, kind):
    """Three threads refuse at random: each message is acknowledged, or a dead letter, once and not both."""
    send(client, 200)
    consumers = [subscribe(client, 2, kind, receiver_queue_size=20) for _ in range(3)]
    dead = client.subscribe("orders-sub-DLQ", "undertaker", initial_position=InitialPosition.Earliest)
    acknowledged: list[bytes] = []
    is_over = threading.Event()

    def work(consumer: Any, seed: int) -> None:
        chance = random.Random(seed)
        while not is_over.is_set():
            try:
                message = consumer.receive(20)
            except Timeout:
                continue
            assert message.redelivery_count() <= 2
            if chance.random() < 0.5:
                consumer.acknowledge(message)
                acknowledged.append(message.data())
            else:
                consumer.negative_acknowledge(message)

    workers = [threading.Thread(target=work, args=pair) for pair in zip(consumers, range(3), strict=True)]
    for worker in workers:
        worker.start()
    moved: list[bytes] = []
    while len(acknowledged) + len(moved) < 200:
        moved += [one.data() for one in receive_all(dead, 50)]
    is_over.set()
    for worker in workers:
        worker.join()
    assert sorted(acknowledged + moved) == sorted(b"hello-%d" % i for i in range(200))


@pytest.mark.parametrize("kind", SINGLY)
@pytest.mark.parametrize("batched", [False, True])
def test_asking_for_everything_moves_what_was_seen_for_the_last_time(client, kind, batched):
    """At once: the letters are there though nobody receives any more. Nothing of it comes again."""
    with client.create_producer("orders", batching_enabled=batched) as producer:
        for i in range(4):
            producer.send_async(b"hello-%d" % i, None)
    consumer = subscribe(client, 2, kind)
    for _ in range(3):
        seen = [consumer.receive(5000) for _ in range(4)]
        consumer.redeliver_unacknowledged_messages()
    assert {one.redelivery_count() for one in seen} == {2}
    assert [one.data() for one in letters(client)] == [b"hello-%d" % i for i in range(4)]
    assert receive_all(consumer) == []


def test_asking_for_everything_moves_nothing_that_was_not_seen(client):
    """What was only fetched ahead for the last time is delivered before it is a dead letter."""
    send(client, 3)
    consumer = subscribe(client, 1)
    for message in [consumer.receive(5000) for _ in range(3)]:
        consumer.negative_acknowledge(message)
    first = consumer.receive(5000)
    consumer.redeliver_unacknowledged_messages()
    assert [one.data() for one in letters(client)] == [first.data()]
    rest = [consumer.receive(5000) for _ in range(2)]
    assert sorted([one.data() for one in rest] + [first.data()]) == [b"hello-0", b"hello-1", b"hello-2"]
    assert [one.redelivery_count() for one in rest] == [1, 1]
