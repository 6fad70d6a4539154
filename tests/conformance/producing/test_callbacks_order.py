"""Callbacks come in the order of the sends, on the client's thread; what they raise is logged."""

from __future__ import annotations

import logging
import threading

import pytest

from embeddedpulsar import Result
from tests.conformance.held import Answers, held, payloads


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
def test_the_order_of_the_sends(topic, batching, keyed):
    """Stored at once or held up, with and without keys: one order."""
    answers = Answers()
    producer = topic.producer(batching_enabled=batching, batching_max_messages=7)

    def send(numbers):
        for number in numbers:
            key = "k" if keyed and number % 3 else None
            producer.send_async(b"%d" % number, answers.of(number), partition_key=key)

    send(range(20))
    with held(topic.client):
        send(range(20, 120))
    send(range(120, 140))
    producer.flush()
    assert answers.results == [(number, Result.Ok) for number in range(140)]
    ids = [message_id for _, _, message_id in answers]
    assert ids == sorted(ids)
    assert payloads(topic.client) == [b"%d" % number for number in range(140)]
    assert producer.last_sequence_id() == 139


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, BaseException])
@pytest.mark.parametrize("batching", [False, True])
def test_what_callbacks_raise_is_logged(topic, batching, error, caplog):
    """An exception of any kind in a callback hurts neither the thread nor the callbacks after it."""
    answers = Answers()

    def fail(result, message_id):
        raise error("of a callback")

    producer = topic.producer(batching_enabled=batching)
    with caplog.at_level(logging.ERROR, "embeddedpulsar"):
        for number in range(3):
            producer.send_async(b"x", fail)
            producer.send_async(b"x", answers.of(number))
        producer.flush()
    assert answers.results == [(number, Result.Ok) for number in range(3)]
    assert caplog.text.count("A send callback failed") == 3


def test_callbacks_may_have_attributes_of_any_name(topic):
    """What an application calls a member of its callback is its own business."""

    class Counting:
        failed = 0

        def __call__(self, result, message_id):
            self.failed += result != Result.Ok

    counting = Counting()
    producer = topic.producer()
    producer.send_async(b"x" * (6 << 20), counting)
    producer.flush()
    assert counting.failed == 1


def test_one_thread_for_all(topic):
    """Callbacks of all producers of a client run on one thread, which is not the sender's."""
    threads = set()
    for batching in (False, True):
        producer = topic.producer(batching_enabled=batching)
        for _ in range(10):
            producer.send_async(b"x", lambda *_: threads.add(threading.current_thread()))
        producer.flush()
    assert len(threads) == 1
    assert threading.current_thread() not in threads


def test_a_callback_may_send_and_flush(topic):
    """Nothing of ours is locked while a callback runs."""
    answers = Answers()
    producer = topic.producer(batching_enabled=True)

    def again(result, message_id):
        producer.send_async(b"1", answers.of(1))
        producer.flush()
        producer.send(b"2")

    producer.send_async(b"0", again)
    producer.flush()
    producer.flush()
    assert answers.results == [(1, Result.Ok)]
    assert payloads(topic.client) == [b"0", b"1", b"2"]
