"""Ctrl-C ends every blocking call within 250 ms; other signals are handled when they come."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from embeddedpulsar import (
    ConsumerBatchReceivePolicy,
    InitialPosition,
    Interrupted,
    MessageId,
    Result,
    Timeout,
)
from embeddedpulsar._engine.platform import failpoints
from tests.conformance.conftest import numbers, receive_all

DELAY_S = 0.1
MOST_S = 0.25


@contextmanager
def alarm(handler: Callable[..., object]) -> Iterator[None]:
    """Have ``handler`` called as a signal handler after `DELAY_S`."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, DELAY_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def seconds_until_interrupted(block: Callable[[], object]) -> float:
    """Press Ctrl-C in a blocking call; how long it then took to raise Interrupted."""
    with alarm(signal.default_int_handler):
        begun = time.monotonic()
        with pytest.raises(Interrupted):
            block()
        return time.monotonic() - begun - DELAY_S


@pytest.mark.parametrize("timeout", [None, 60_000])
def test_receive(topic, timeout):
    """receive() raises Interrupted, which is a KeyboardInterrupt, and the consumer works on."""
    consumer = topic.consumer()
    assert seconds_until_interrupted(lambda: consumer.receive(timeout)) < MOST_S
    assert issubclass(Interrupted, KeyboardInterrupt)
    topic.publish(1)
    assert numbers([consumer.receive(1000)]) == [0]


def test_batch_receive_loses_nothing(topic):
    """What batch_receive had collected is delivered by the next call."""
    topic.publish(3)
    policy = ConsumerBatchReceivePolicy(10, -1, 60_000)
    consumer = topic.consumer(batch_receive_policy=policy)
    assert seconds_until_interrupted(consumer.batch_receive) < MOST_S
    assert numbers([consumer.receive(1000) for _ in range(3)]) == [0, 1, 2]


def test_read_next(topic):
    """read_next() of a reader raises Interrupted."""
    reader = topic.client.create_reader("topic", MessageId.earliest)
    assert seconds_until_interrupted(reader.read_next) < MOST_S


def test_iteration(topic):
    """A loop over a consumer is interrupted as receive() is."""
    consumer = topic.consumer()
    assert seconds_until_interrupted(lambda: next(iter(consumer))) < MOST_S


def test_flush_waiting_for_callbacks(topic):
    """flush() waits for callbacks, and Ctrl-C ends that wait."""
    release = threading.Event()
    producer = topic.producer(batching_enabled=True)
    producer.send_async(b"x", lambda result, message_id: release.wait(60))
    assert seconds_until_interrupted(producer.flush) < MOST_S
    release.set()
    producer.flush()


def test_waiting_for_the_lock_of_a_topic(topic):
    """A send that waits for another thread or process inside the topic's lock is interrupted."""
    producer = topic.producer()
    producer.send(b"x")
    lock = topic.client._core.store.use_topic("topic").topic.ledger.lock
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            lock.acquire()
            held.set()
            release.wait(60)
        finally:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    assert seconds_until_interrupted(lambda: producer.send(b"x")) < MOST_S
    release.set()
    thread.join()
    producer.send(b"y")


def test_other_signals_are_handled_at_once(topic):
    """A handler that does not raise runs when its signal comes, and the wait goes on."""
    consumer = topic.consumer()
    handled = []

    def handle(*_: object) -> None:
        handled.append(time.monotonic())
        sender.start()

    sender = threading.Thread(target=topic.publish, args=(1,))
    begun = time.monotonic()
    with alarm(handle):
        assert numbers([consumer.receive(10_000)]) == [0]
    sender.join()  # it may still be leaving the topic when its message is here
    assert handled[0] - begun - DELAY_S < MOST_S


def test_interrupted_sends_lose_nothing_that_was_taken(topic, monkeypatch):
    """A storm of Ctrl-C during send_async: every message whose call returned is stored, once, in order."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # for those that hit a finalizer
    producer = topic.producer(batching_enabled=True, batching_max_messages=10)
    returned, interrupted, is_over = [], 0, False

    def strike(*_: object) -> None:
        if not is_over:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0007)
    try:
        for number in range(20_000):
            try:
                producer.send_async(b"%d" % number, None)
                returned.append(number)
            except KeyboardInterrupt:
                interrupted += 1
    except KeyboardInterrupt:
        interrupted += 1  # between the calls
    finally:
        is_over = True  # no call comes before it, so no signal either
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    producer.flush()
    reader = topic.client.create_reader("topic", MessageId.earliest)
    stored = [int(message.data()) for message in reader]
    assert stored == sorted(set(stored))
    assert set(returned) <= set(stored)
    assert interrupted


def test_an_interrupted_close_ends_the_consumer(topic):
    """Ctrl-C while close() detaches the consumer: it is detached all the same, and what it held comes to the
    next."""
    topic.publish(2)
    consumer, shared = topic.consumer(), topic.client._core.store.use_topic("topic").topic.subscription("sub")
    assert numbers([consumer.receive(1000)]) == [0]
    failpoints.set("journal:body_done", "raise:KeyboardInterrupt")
    try:
        with pytest.raises(KeyboardInterrupt):
            consumer.close()
    finally:
        failpoints.clear()
    deadline = time.monotonic() + 10
    while shared.consumers() and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert shared.consumers() == []
    assert numbers([topic.consumer().receive(1000)]) == [0]


POINTS = ["append:owner_set", "append:body_done", "append:tail_stored", "append:owner_cleared"]


@pytest.mark.parametrize("how", ["send", "send_many", "acknowledge"])
@pytest.mark.parametrize("point", POINTS)
def test_a_handler_that_is_interrupted_within_another_call(client, topic, point, how):
    """Ctrl-C strikes a handler that uses the library in the middle of an append: that is no failure of the
    messages that are being stored, and they are stored once."""
    consumer = topic.consumer()
    producer = topic.producer(batching_enabled=True, batching_max_publish_delay_ms=60_000)
    other = client.create_producer("other")
    letters = client.subscribe("other", "sub", initial_position=InitialPosition.Earliest)
    other.send(b"before")
    letter = letters.receive(1000)
    calls = {
        "send": lambda: other.send(b"from the handler"),
        "send_many": lambda: other.send_many([b"from the handler"] * 3),
        "acknowledge": lambda: letters.acknowledge(letter),
    }
    raised: list[BaseException] = []

    def strike() -> None:
        raise KeyboardInterrupt

    def handle() -> None:
        failpoints.set("append:body_done" if how != "acknowledge" else "ack:noted", strike)
        try:
            calls[how]()
        except BaseException as error:
            raised.append(error)
            raise

    answers: list[Result] = []
    for number in range(10):
        producer.send_async(b"hello-%d" % number, lambda result, _: answers.append(result))
    failpoints.set(point, handle)
    with pytest.raises(Interrupted):
        producer.flush()
    failpoints.clear()
    assert [type(error) for error in raised] == [KeyboardInterrupt]
    producer.flush()
    assert answers == [Result.Ok] * 10
    assert numbers([consumer.receive(1000) for _ in range(10)]) == list(range(10))
    with pytest.raises(Timeout):
        consumer.receive(0)


class TooLate(Exception):
    """What the alarm of an application raises."""


@pytest.mark.parametrize(
    "error", [TooLate("too late"), TimeoutError("too late"), Timeout("too late")], ids=repr
)
@pytest.mark.parametrize("how", ["flush", "send", "send in a batch", "send_async"])
@pytest.mark.parametrize("point", POINTS)
def test_a_handler_that_raises(topic, point, how, error):
    """The alarm of an application strikes within an append: its error leaves the call as it is, and is no
    failure of the messages, which are stored once. The one of the call may be stored or not."""
    consumer = topic.consumer()
    is_batching = how != "send"
    producer = topic.producer(
        batching_enabled=is_batching, batching_max_publish_delay_ms=60_000, batching_max_messages=10
    )
    answers: list[Result] = []

    def send(number: int) -> None:
        producer.send_async(b"hello-%d" % number, lambda result, _: answers.append(result))

    for number in range(9 if is_batching else 0):
        send(number)
    calls = {
        "flush": producer.flush,
        "send": lambda: producer.send(b"hello-9"),
        "send in a batch": lambda: producer.send(b"hello-9"),
        "send_async": lambda: send(9),
    }

    def handle(number: int, frame: object) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, handle)
    failpoints.set(point, lambda: signal.raise_signal(signal.SIGALRM))
    try:
        with pytest.raises(type(error)) as caught:
            calls[how]()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert caught.value is error
    failpoints.clear()
    producer.flush()
    assert answers == [Result.Ok] * (len(answers))
    received = numbers(receive_all(consumer))
    assert received in (list(range(len(answers))), [*range(len(answers)), 9])
