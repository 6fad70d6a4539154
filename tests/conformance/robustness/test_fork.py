"""After a fork the child works on under its own name, and the parent does not notice."""

from __future__ import annotations

import multiprocessing
import pickle

import pytest

from embeddedpulsar import AlreadyClosed, Client, InitialPosition, MessageId
from tests.children import in_child
from tests.conformance.conftest import numbers, receive_all


@pytest.mark.in_memory
def test_both_send_and_both_are_stored(topic):
    """Parent and child send through the same producer object; the child's has a fresh name."""
    producer = topic.producer()
    producer.send(b"hello-0")

    def send() -> str:
        producer.send(b"hello-1")
        producer.close()
        return producer.producer_name()

    name = in_child(send)
    producer.send(b"hello-2")
    messages = receive_all(topic.consumer())
    assert numbers(messages) == [0, 1, 2]
    assert [message.producer_name() for message in messages] == [
        producer.producer_name(),
        name,
        producer.producer_name(),
    ]
    assert name != producer.producer_name()


def test_what_waits_in_a_batch_stays_with_the_parent(topic):
    """A message in the batch of the parent is stored once, by the parent."""
    producer = topic.producer(batching_enabled=True, batching_max_publish_delay_ms=60_000)
    producer.send_async(b"hello-0", None)

    def send() -> str:
        results = []
        producer.send_async(b"hello-1", lambda result, message_id: results.append(str(result)))
        producer.flush()
        return results[0]

    assert in_child(send) == "Result.Ok"
    producer.flush()
    assert numbers(receive_all(topic.consumer())) == [1, 0]


@pytest.mark.in_memory
def test_consumers_and_readers_stay_with_the_parent(topic):
    """In the child they raise AlreadyClosed, which says what to do; the parent goes on."""
    topic.publish(2)
    consumer = topic.consumer()
    reader = topic.client.create_reader("topic", MessageId.earliest)
    message = consumer.receive()

    def use() -> str:
        texts = []
        for call in (
            consumer.receive,
            lambda: consumer.receive(10),
            lambda: consumer.acknowledge(message),
            consumer.close,
            reader.read_next,
            reader.has_message_available,
        ):
            with pytest.raises(AlreadyClosed, match="parent of this forked process") as caught:
                call()
            texts.append(str(caught.value))
        return texts[0]

    assert "in the child, subscribe again" in in_child(use)
    consumer.acknowledge(message)
    assert numbers([consumer.receive(1000)]) == [1]
    assert numbers(list(reader)) == [0, 1]


@pytest.mark.in_memory
def test_the_child_may_subscribe(topic):
    """A new consumer in the child works, with the client of the parent."""
    topic.publish(3)

    def consume() -> list[int]:
        with topic.client.subscribe("topic", "child", initial_position=InitialPosition.Earliest) as consumer:
            return numbers(receive_all(consumer))

    assert in_child(consume) == "[0, 1, 2]"
    assert numbers(receive_all(topic.consumer())) == [0, 1, 2]


def test_the_parents_subscription_stays_taken(topic):
    """The child's exit does not free the parent's consumer; the child cannot take its subscription."""
    consumer = topic.consumer()

    def subscribe() -> str:
        from embeddedpulsar import ConsumerBusy

        with pytest.raises(ConsumerBusy):
            topic.consumer()
        return "refused"

    assert in_child(subscribe) == "refused"
    topic.publish(1)
    assert numbers([consumer.receive(1000)]) == [0]


def consume_in_spawned_process(client: Client) -> list[int]:
    """What another process receives with a client that was pickled to it."""
    with client, client.subscribe("topic", "spawned", initial_position=InitialPosition.Earliest) as consumer:
        return numbers(receive_all(consumer, wait_ms=200))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_client_goes_to_another_process(topic, method):
    """A client may be the argument of a spawned process."""
    topic.publish(3)
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(consume_in_spawned_process, (topic.client,)) == [0, 1, 2]


def test_a_pickled_client_opens_the_same_store(topic, store_path):
    """URL and options travel; the copy is a client of its own."""
    topic.publish(1)
    with Client(store_path, durability="interval", durability_interval_ms=50) as client:
        with pickle.loads(pickle.dumps(client)) as copy:
            assert copy is not client
            assert copy._core.config == client._core.config
            assert numbers(list(copy.create_reader("topic", MessageId.earliest))) == [0]
    with Client("memory://") as private, pytest.raises(TypeError, match="belongs to this process"):
        pickle.dumps(private)
