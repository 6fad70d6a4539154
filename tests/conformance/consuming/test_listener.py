"""Message listeners: messages come to a function, one at a time and in order."""

from __future__ import annotations

import logging
import threading

import pytest

from embeddedpulsar import InvalidConfiguration
from tests.conformance.conftest import numbers


class Listener:
    """Collects messages, acknowledges them, and lets the test wait for a number of them."""

    def __init__(self) -> None:
        self.messages = []
        self.threads = set()
        self.consumers = set()
        self._arrived = threading.Condition()

    def __call__(self, consumer, message) -> None:
        consumer.acknowledge(message)
        with self._arrived:
            self.threads.add(threading.get_ident())
            self.consumers.add(consumer)
            self.messages.append(message)
            self._arrived.notify_all()

    def wait(self, count: int, seconds: float = 10) -> bool:
        """Whether ``count`` messages have come in time."""
        with self._arrived:
            return self._arrived.wait_for(lambda: len(self.messages) >= count, seconds)


@pytest.mark.in_memory
def test_it_gets_all_messages_in_order(topic):
    """Those that were there and those that come, on one thread, with the consumer itself."""
    topic.publish(5)
    listener = Listener()
    consumer = topic.consumer(message_listener=listener)
    topic.publish(5)
    assert listener.wait(10)
    assert numbers(listener.messages) == [*range(5), *range(5)]
    assert len(listener.threads) == 1
    assert threading.get_ident() not in listener.threads
    assert listener.consumers == {consumer}


def test_receive_is_refused(topic):
    """The listener gets the messages; receive raises InvalidConfiguration."""
    consumer = topic.consumer(message_listener=Listener())
    for receive in (consumer.receive, lambda: consumer.receive(10), consumer.batch_receive):
        with pytest.raises(InvalidConfiguration):
            receive()


def test_pause_and_resume(topic):
    """Paused, nothing comes; resumed, everything comes in order."""
    listener = Listener()
    consumer = topic.consumer(message_listener=listener)
    consumer.pause_message_listener()
    topic.publish(3)
    assert not listener.wait(1, 0.2)
    consumer.resume_message_listener()
    assert listener.wait(3)
    assert numbers(listener.messages) == [0, 1, 2]


def test_pausing_needs_a_listener(topic):
    """Without a listener there is nothing to pause."""
    consumer = topic.consumer()
    for method in (consumer.pause_message_listener, consumer.resume_message_listener):
        with pytest.raises(InvalidConfiguration):
            method()


def test_pausing_a_closed_consumer(topic):
    """It changes nothing, and is no error, also if its client was closed."""
    consumer = topic.consumer(message_listener=lambda consumer, message: None)
    consumer.close()
    consumer.pause_message_listener()
    consumer.resume_message_listener()
    consumer = topic.consumer(message_listener=lambda consumer, message: None)
    topic.client.close()
    consumer.pause_message_listener()
    consumer.resume_message_listener()


def test_an_exception_is_logged(topic, caplog):
    """A failing listener is logged; the next message comes, and nothing is acknowledged for it."""
    done = threading.Event()
    seen = []

    def listen(consumer, message) -> None:
        seen.append(message)
        if len(seen) == 2:
            done.set()
        raise KeyError("defect")

    with caplog.at_level(logging.ERROR, "embeddedpulsar"):
        consumer = topic.consumer(message_listener=listen)
        topic.publish(2)
        assert done.wait(10)
        consumer.close()
    assert "defect" in caplog.text
    assert numbers([topic.consumer().receive(1000)]) == [0]


def test_a_listener_may_close_its_consumer(topic):
    """Closing from within the listener ends the delivery."""
    closed = threading.Event()
    seen = []

    def listen(consumer, message) -> None:
        seen.append(message)
        consumer.acknowledge(message)
        consumer.close()
        closed.set()

    topic.publish(3)
    topic.consumer(message_listener=listen)
    assert closed.wait(10)
    assert numbers(seen) == [0]
    assert numbers([topic.consumer().receive(1000)]) == [1]


def test_several_consumers_share_the_thread(topic):
    """One listener thread serves all consumers of the client."""
    listeners = [Listener() for _ in range(3)]
    for index, listener in enumerate(listeners):
        topic.client.subscribe("topic", f"sub-{index}", message_listener=listener)
    topic.publish(50)
    assert all(listener.wait(50) for listener in listeners)
    assert len(set.union(*(listener.threads for listener in listeners))) == 1
