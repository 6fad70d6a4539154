"""send_timeout_millis: when the oldest has waited so long, all that wait fail, and are never stored."""

from __future__ import annotations

import pytest

from embeddedpulsar import Result, Timeout
from tests.conformance.held import Answers, entries, held, payloads


@pytest.mark.parametrize("batching", [False, True])
def test_all_fail_when_the_oldest_is_too_old(time, batching):
    """The clock starts when a message cannot be stored; later ones fail with it, in order."""
    answers = Answers()
    producer = time.client.create_producer(
        "topic", batching_enabled=batching, batching_max_messages=2, send_timeout_millis=5000
    )
    producer.send(b"first")
    with held(time.client):
        for number in range(3):
            producer.send_async(b"%d" % number, answers.of(number), partition_key="k" if number else None)
        time.pass_ms(3000)
        producer.send_async(b"3", answers.of(3))
        time.pass_ms(1990)
        producer._publisher.queue.completions.wait()
        assert answers == []
        time.pass_ms(11)
        producer._publisher.queue.completions.wait()
        assert answers.results == [(number, Result.Timeout) for number in range(4)]
    time.pass_ms(60_000)
    producer.send_async(b"4", answers.of(4))
    producer.flush()
    assert answers.results[4:] == [(4, Result.Ok)]
    assert payloads(time.client) == [b"first", b"4"]


def test_the_text_says_what_to_do(time):
    """A failure without a callback comes out of flush, and names the producer, the limit and the remedy."""
    producer = time.client.create_producer("topic", "till", send_timeout_millis=1000)
    with held(time.client):
        producer.send_async(b"0", None)
        time.pass_ms(1000)
    with pytest.raises(Timeout, match=r"1 messages of till.*send_timeout_millis=1000.*send them again"):
        producer.flush()
    assert entries(time.client) == []


def test_in_time_is_in_time(time):
    """A lock that is free again before the time is over costs nothing; the next wait has the whole time."""
    answers = Answers()
    producer = time.client.create_producer("topic", send_timeout_millis=1000)
    for number in range(3):
        with held(time.client):
            producer.send_async(b"%d" % number, answers.of(number))
            time.pass_ms(900)
        producer.flush()
    time.pass_ms(2000)
    assert answers.results == [(number, Result.Ok) for number in range(3)]
    assert entries(time.client) == [[b"0"], [b"1"], [b"2"]]


def test_zero_waits_for_ever(time):
    """With send_timeout_millis=0 messages wait as long as it takes."""
    answers = Answers()
    producer = time.client.create_producer("topic", send_timeout_millis=0)
    with held(time.client):
        producer.send_async(b"0", answers.of(0))
        time.pass_ms(24 * 3600 * 1000)
    producer.flush()
    assert answers.results == [(0, Result.Ok)]


def test_who_waits_for_room_may_send_after_a_timeout(time):
    """Failed messages make room."""
    answers = Answers()
    producer = time.client.create_producer("topic", send_timeout_millis=1000, max_pending_messages=1)
    with held(time.client):
        producer.send_async(b"0", answers.of(0))
        producer.send_async(b"1", answers.of(1))
        time.pass_ms(1000)
        producer.send_async(b"2", answers.of(2))
    producer.flush()
    expected = [(0, Result.Timeout), (1, Result.ProducerQueueIsFull), (2, Result.Ok)]
    assert sorted(answers.results) == expected
    assert entries(time.client) == [[b"2"]]


@pytest.mark.parametrize("batching", [False, True])
def test_a_send_that_waits_takes_the_others_along(topic, batching):
    """A synchronous send fails with the messages before it when the oldest of them is too old."""
    answers = Answers()
    producer = topic.producer(send_timeout_millis=100, batching_enabled=batching)
    producer.send(b"first")
    with held(topic.client):
        producer.send_async(b"0", answers.of(0))
        with pytest.raises(Timeout):
            producer.send(b"1")
    producer.flush()
    assert answers.results == [(0, Result.Timeout)]
    assert entries(topic.client) == [[b"first"]]
