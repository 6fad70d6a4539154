"""Acknowledgement of batch indexes: only the rest of a batch comes again."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import Client, InitialPosition
from tests.conformance.conftest import numbers, receive_all


@pytest.fixture
def subscribe(topic):
    """Subscribe with acknowledgement of batch indexes."""
    return lambda: topic.consumer(batch_index_ack_enabled=True)


def test_acknowledged_indexes_do_not_come_again(topic, subscribe):
    """After 0 and 1 of 5 are acknowledged, the next consumer gets 2, 3 and 4."""
    topic.publish_batch(5)
    with subscribe() as consumer:
        for message in receive_all(consumer)[:2]:
            consumer.acknowledge(message)
    with subscribe() as consumer:
        messages = receive_all(consumer)
        assert numbers(messages) == [2, 3, 4]
        for message in messages:
            consumer.acknowledge(message.message_id())
    assert receive_all(subscribe()) == []


def test_in_any_order(topic, subscribe):
    """The indexes need not be acknowledged in order."""
    topic.publish_batch(5)
    with subscribe() as consumer:
        messages = receive_all(consumer)
        for index in (4, 1):
            consumer.acknowledge(messages[index])
    assert numbers(receive_all(subscribe())) == [0, 2, 3]


@pytest.mark.in_memory
def test_cumulative_in_the_middle(topic, subscribe):
    """A cumulative acknowledgement in the middle of a batch is exact."""
    topic.publish_batch(5)
    with subscribe() as consumer:
        consumer.acknowledge_cumulative(receive_all(consumer)[2])
    assert numbers(receive_all(subscribe())) == [3, 4]


def test_redelivery_within_one_consumer(topic, subscribe):
    """redeliver_unacknowledged_messages leaves out what is acknowledged within the batch."""
    topic.publish_batch(4)
    consumer = subscribe()
    messages = receive_all(consumer)
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[2])
    consumer.redeliver_unacknowledged_messages()
    assert numbers(receive_all(consumer)) == [1, 3]


def test_a_nack_brings_only_the_rest(topic):
    """A nacked batch comes back without the acknowledged indexes."""
    topic.publish_batch(3)
    consumer = topic.consumer(batch_index_ack_enabled=True, negative_ack_redelivery_delay_ms=100)
    messages = receive_all(consumer)
    consumer.acknowledge(messages[1])
    consumer.negative_acknowledge(messages[0])
    assert numbers([consumer.receive(5000), consumer.receive(5000)]) == [0, 2]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_switch_of_the_broker(store_path: Path, enabled: bool):
    """Switched off in broker.conf, a batch comes again whole until all of it is acknowledged."""
    store_path.mkdir(mode=0o700)
    setting = f"acknowledgmentAtBatchIndexLevelEnabled={str(enabled).lower()}\n"
    (store_path / "broker.conf").write_text(setting, "utf-8")

    def subscribe():
        earliest = InitialPosition.Earliest
        return client.subscribe("t", "s", batch_index_ack_enabled=True, initial_position=earliest)

    with Client(store_path) as client:
        with client.create_producer("t", batching_enabled=True) as producer:
            for number in range(3):
                producer.send_async(b"hello-%d" % number, None)
        with subscribe() as consumer:
            consumer.acknowledge(receive_all(consumer)[1])
        with subscribe() as consumer:
            messages = receive_all(consumer)
            assert numbers(messages) == ([0, 2] if enabled else [0, 1, 2])
            for message in messages:
                consumer.acknowledge(message)
        with subscribe() as consumer:
            assert receive_all(consumer) == []
