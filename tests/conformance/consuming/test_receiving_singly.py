"""Ways to receive on Shared and Key_Shared: with a timeout, in batches, by listeners, paused."""

from __future__ import annotations

import queue
import threading
import time as real_time

import pytest

from embeddedpulsar import (
    AlreadyClosed,
    ConsumerBatchReceivePolicy,
    ConsumerType,
    Timeout,
)
from tests.conformance.conftest import numbers
from tests.conformance.consuming.test_listener import Listener
from tests.conformance.pool import take

SINGLY = [ConsumerType.Shared, ConsumerType.KeyShared]
pytestmark = pytest.mark.parametrize("kind", SINGLY)


def test_a_timeout(topic, kind):
    """receive(timeout_millis) waits so long, raises Timeout, and has lost nothing."""
    consumer = topic.consumer(consumer_type=kind)
    begun = real_time.monotonic()
    with pytest.raises(Timeout):
        consumer.receive(timeout_millis=100)
    assert 0.1 <= real_time.monotonic() - begun < 2
    topic.publish(1)
    assert numbers([consumer.receive(timeout_millis=0)]) == [0]


def test_all_that_wait_share_what_comes(topic, kind):
    """Consumers that wait in threads of their own get every message once."""
    consumers = [topic.consumer(consumer_type=kind, receiver_queue_size=1) for _ in range(3)]
    received: queue.SimpleQueue[object] = queue.SimpleQueue()

    def work(consumer) -> None:
        while True:
            try:
                message = consumer.receive(5_000)
                consumer.acknowledge(message)
                received.put(message)
            except AlreadyClosed:
                return

    threads = [threading.Thread(target=work, args=(consumer,)) for consumer in consumers]
    for thread in threads:
        thread.start()
    with topic.producer() as producer:
        for number in range(60):
            producer.send(b"hello-%d" % number, partition_key=str(number))
    messages = [received.get(timeout=10) for _ in range(60)]
    for consumer in consumers:
        consumer.close()
    for thread in threads:
        thread.join(10)
    assert sorted(numbers(messages)) == list(range(60))
    assert received.empty()


def test_batch_receive(topic, kind):
    """Its policy holds as on other types; what it returns may be given back one by one."""
    policy = ConsumerBatchReceivePolicy(max_num_message=4, max_num_bytes=-1, timeout_ms=50)
    consumer = topic.consumer(consumer_type=kind, batch_receive_policy=policy)
    topic.publish(10)
    assert [len(consumer.batch_receive()) for _ in range(4)] == [4, 4, 2, 0]


def test_listeners_share_the_messages(topic, kind):
    """Each message comes to one listener, on its thread."""
    received: queue.SimpleQueue[object] = queue.SimpleQueue()
    for _ in range(2):
        topic.consumer(
            consumer_type=kind, message_listener=lambda _, one: received.put(one), receiver_queue_size=2
        )
    with topic.producer() as producer:
        for number in range(40):
            producer.send(b"hello-%d" % number, partition_key=str(number))
    assert sorted(numbers([received.get(timeout=10) for _ in range(40)])) == list(range(40))
    assert received.empty()


def test_a_paused_listener_keeps_no_more_than_its_queue(topic, kind):
    """Paused, it keeps from others what its queue holds (and on Key_Shared the keys that are its own)."""
    listener = Listener()
    paused = topic.consumer(consumer_type=kind, message_listener=listener, receiver_queue_size=3)
    paused.pause_message_listener()
    other = topic.consumer(consumer_type=kind)
    topic.publish(20)
    seen = numbers(take(other))
    assert len(seen) >= (17 if kind == ConsumerType.Shared else 0)
    paused.resume_message_listener()
    assert listener.wait(20 - len(seen))
    assert sorted(seen + numbers(listener.messages)) == list(range(20))


def test_an_exception_of_a_listener_acknowledges_nothing(topic, kind, caplog):
    """It is logged, and the message stays unacknowledged: the next consumer gets it."""
    came = threading.Event()

    def fail(_, message) -> None:
        came.set()
        raise LookupError(message.data())

    consumer = topic.consumer(consumer_type=kind, message_listener=fail)
    topic.publish(1)
    assert came.wait(10)
    consumer.close()
    assert numbers(take(topic.consumer(consumer_type=kind))) == [0]


def test_iteration(topic, kind):
    """``for message in consumer`` receives until it is closed."""
    topic.publish(3)
    consumer = topic.consumer(consumer_type=kind)
    found = []
    for message in consumer:
        found.append(message)
        consumer.acknowledge(message)
        if len(found) == 3:
            consumer.close()
    assert numbers(found) == [0, 1, 2]
