"""When a consumer closes or its process dies: what it had not acknowledged comes to others."""

from __future__ import annotations

import threading

import pytest

from embeddedpulsar import AlreadyClosed, Client, ConsumerType, Timeout
from tests.children import start_python
from tests.conformance.conftest import numbers
from tests.conformance.pool import acknowledge_all, take, take_turns

TYPES = [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared]
SINGLY = TYPES[2:]

DYING = """
import sys
from embeddedpulsar import Client, ConsumerType, InitialPosition
client = Client(sys.argv[1])
consumer = client.subscribe("topic", "sub", ConsumerType[sys.argv[2]], ack_group_time_ms=0,
                            initial_position=InitialPosition.Earliest, consumer_name="a")
messages = [consumer.receive(30_000) for _ in range(4)]
consumer.acknowledge(messages[1])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", SINGLY)
def test_closing_gives_to_others(topic, kind):
    """Both what was received and what was only fetched, in order of position, and without counting."""
    first = topic.consumer(consumer_type=kind)
    topic.publish(10)
    messages = take(first, 4)
    acknowledge_all(first, messages[:1])
    second = topic.consumer(consumer_type=kind)
    first.close()
    again = take(second)
    assert numbers(again) == list(range(1, 10))
    assert {message.redelivery_count() for message in again} == {0}


@pytest.mark.parametrize("kind", SINGLY)
def test_who_waits_is_woken_by_it(topic, kind):
    """A consumer that waits for messages gets what another one leaves behind, at once."""
    first = topic.consumer(consumer_type=kind)
    topic.publish(1)
    assert first.receive(0)
    second = topic.consumer(consumer_type=kind)
    received = []
    waiting = threading.Thread(target=lambda: received.append(second.receive(10_000)))
    waiting.start()
    first.close()
    waiting.join(10)
    assert numbers(received) == [0]


@pytest.mark.parametrize("kind", TYPES)
def test_the_last_one_leaves_everything(topic, kind):
    """The next consumer begins at the first unacknowledged message, in order, with count 0."""
    topic.publish(10)
    with topic.consumer(consumer_type=kind) as consumer:
        acknowledge_all(consumer, take(consumer, 6)[2:5])
    again = take(topic.consumer(consumer_type=kind))
    assert numbers(again) == [0, 1, 5, 6, 7, 8, 9]
    assert {message.redelivery_count() for message in again} == {0}


@pytest.mark.parametrize("kind", TYPES[1:])
def test_a_death_gives_to_others(topic, store_path, kind):
    """A killed process is noticed by those who wait: they get everything it had not acknowledged; where
    counts are kept, what its application had received counts as redelivered, the rest does not."""
    topic.publish(8)
    child = start_python(DYING, str(store_path), kind.name)
    try:
        assert child.stdout.readline() == "ready\n"
        consumer = topic.consumer(consumer_type=kind, consumer_name="b")
        with pytest.raises(Timeout):
            consumer.receive(50)
        child.kill()
        again = [consumer.receive(10_000) for _ in range(7)]
    finally:
        child.kill()
        child.communicate(timeout=30)
    assert numbers(again) == [0, 2, 3, 4, 5, 6, 7]
    counts = [message.redelivery_count() for message in again]
    assert counts == ([1, 1, 1, 0, 0, 0, 0] if kind in SINGLY else [0] * 7)


@pytest.mark.parametrize("kind", TYPES)
def test_a_closed_consumer_refuses(topic, kind):
    """receive, acknowledge, seek, unsubscribe and close raise AlreadyClosed; giving back is ignored."""
    consumer = topic.consumer(consumer_type=kind)
    topic.publish(2)
    message = consumer.receive(0)
    consumer.close()
    for call in (
        consumer.receive,
        consumer.receive_nowait,
        consumer.batch_receive,
        consumer.close,
        consumer.unsubscribe,
        lambda: consumer.receive(10),
        lambda: consumer.acknowledge(message),
        lambda: consumer.acknowledge(message.message_id()),
        lambda: consumer.acknowledge_cumulative(message),
        lambda: consumer.seek(message.message_id()),
    ):
        with pytest.raises(AlreadyClosed):
            call()
    consumer.negative_acknowledge(message)
    consumer.redeliver_unacknowledged_messages()
    assert not consumer.is_connected()


@pytest.mark.parametrize("kind", TYPES)
def test_a_waiting_receive_is_ended(topic, kind):
    """close() by another thread lets a receive that waits raise AlreadyClosed."""
    consumer = topic.consumer(consumer_type=kind)
    errors = []

    def wait() -> None:
        with pytest.raises(AlreadyClosed) as caught:
            consumer.receive()
        errors.append(caught.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    consumer.close()
    waiting.join(10)
    assert len(errors) == 1


@pytest.mark.parametrize("kind", SINGLY)
def test_closing_the_client_closes_its_consumers(topic, store_url, kind):
    """Consumers of other clients get what those had."""
    topic.publish(6)
    with Client(store_url) as other:
        gone = topic.consumer(consumer_type=kind)
        assert len(take(gone, 3)) == 3
        consumer = other.subscribe("topic", "sub", kind)
        topic.client.close()
        assert numbers(take(consumer)) == list(range(6))


def test_turns_after_one_left(topic):
    """Those who stay divide what the leaver had."""
    consumers = [topic.consumer(consumer_type=ConsumerType.Shared, receiver_queue_size=4) for _ in range(3)]
    topic.publish(30)
    taken = take_turns(consumers, 4)
    consumers[0].close()
    rest = take_turns(consumers[1:])
    assert sorted(numbers(taken[1] + taken[2] + rest[0] + rest[1])) == list(range(30))
    assert all(rest)
