"""max_pending_messages: no more messages are sent and not stored; beyond, a sender waits or is refused."""

from __future__ import annotations

import signal
import threading

import pytest

from embeddedpulsar import AlreadyClosed, Interrupted, ProducerQueueIsFull, Result
from embeddedpulsar._engine.platform.file_lock import FileLock
from tests.conformance.held import Answers, entries, held, payloads


@pytest.mark.in_memory
@pytest.mark.parametrize("batching", [False, True])
def test_a_full_queue_refuses(topic, batching):
    """While the topic is locked, so many messages are taken; the next fails at once, the callers go on."""
    answers = Answers()
    producer = topic.producer(max_pending_messages=3, batching_enabled=batching)
    producer.send(b"first")
    with held(topic.client):
        for number in range(5):
            producer.send_async(b"%d" % number, answers.of(number))
        with pytest.raises(ProducerQueueIsFull, match=r"max_pending_messages is 3.*block_if_queue_full"):
            producer.send(b"refused")
    producer.flush()
    refused = Result.ProducerQueueIsFull
    assert sorted(answers.results) == [*((n, Result.Ok) for n in range(3)), (3, refused), (4, refused)]
    assert [name for name, result in answers.results if result == Result.Ok] == [0, 1, 2]
    assert payloads(topic.client) == [b"first", b"0", b"1", b"2"]


def test_without_a_callback_flush_tells(topic):
    """A message nobody asked about that was refused is the error of the next flush."""
    producer = topic.producer(max_pending_messages=1)
    producer.send(b"first")
    with held(topic.client):
        producer.send_async(b"0", None)
        producer.send_async(b"1", None)
    with pytest.raises(ProducerQueueIsFull):
        producer.flush()
    assert entries(topic.client) == [[b"first"], [b"0"]]


@pytest.mark.parametrize("options", [{}, {"partition_key": "k"}], ids=str)
def test_zero_is_no_limit(topic, options):
    """With max_pending_messages=0 everything is taken, and kept in order."""
    answers = Answers()
    producer = topic.producer(max_pending_messages=0)
    with held(topic.client):
        for number in range(1500):
            producer.send_async(b"%d" % number, answers.of(number), **options)
    producer.flush()
    assert answers.results == [(number, Result.Ok) for number in range(1500)]
    assert entries(topic.client) == [[b"%d" % number] for number in range(1500)]


@pytest.mark.parametrize("batching", [False, True])
def test_block_if_queue_full(topic, batching):
    """With block_if_queue_full the sender waits until there is room; nothing fails, nothing is reordered."""
    answers = Answers()
    producer = topic.producer(max_pending_messages=3, batching_enabled=batching, block_if_queue_full=True)
    taken: list[int] = []

    def send() -> None:
        for number in range(10):
            producer.send_async(b"%d" % number, answers.of(number))
            taken.append(number)

    with held(topic.client):
        sender = threading.Thread(target=send)
        sender.start()
        sender.join(0.2)
        assert sender.is_alive()
        assert taken == [0, 1, 2]
    sender.join(30)
    producer.flush()
    assert answers.results == [(number, Result.Ok) for number in range(10)]
    assert payloads(topic.client) == [b"%d" % number for number in range(10)]


def test_ctrl_c_ends_the_wait(topic):
    """A sender who waits for room is interrupted; its message was not taken, those before it are stored."""
    producer = topic.producer(max_pending_messages=1, block_if_queue_full=True)
    producer.send(b"first")
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with held(topic.client):
            producer.send_async(b"0", None)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Interrupted):
                producer.send_async(b"1", None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    producer.send_async(b"2", None)
    producer.flush()
    assert entries(topic.client) == [[b"first"], [b"0"], [b"2"]]


def test_closing_ends_the_wait(topic):
    """Whoever waits for room when the producer is closed gets AlreadyClosed."""
    answers, errors = Answers(), []
    producer = topic.producer(max_pending_messages=1, block_if_queue_full=True)

    def send() -> None:
        producer.send_async(b"0", answers.of(0))
        producer.send_async(b"1", answers.of(1))
        try:
            producer.send_async(b"2", None)
        except AlreadyClosed as error:
            errors.append(error)

    with held(topic.client):
        sender = threading.Thread(target=send)
        sender.start()
        sender.join(0.1)
        closer = threading.Thread(target=producer.close)
        closer.start()
        sender.join(10)
        assert not sender.is_alive()
    closer.join(10)
    topic.client.close()
    assert answers.results == [(0, Result.AlreadyClosed), (1, Result.AlreadyClosed)]
    assert len(errors) == 1


def test_callbacks_may_send_however_full_it_is(topic):
    """A callback is never made to wait for itself."""
    answers = Answers()
    producer = topic.producer(
        max_pending_messages=1, block_if_queue_full=True, durability="flush", batching_enabled=True
    )

    def again(result, message_id):
        for number in range(3):
            producer.send_async(b"more", answers.of(number))

    producer.send_async(b"one", again)
    producer.flush()
    producer.flush()
    assert answers.results == [(number, Result.Ok) for number in range(3)]


@pytest.mark.parametrize("batching", [False, True])
def test_another_thread_in_the_topic_for_a_moment_is_no_reason(topic, monkeypatch, batching):
    """A thread of this process that the interpreter or a busy machine has put aside in the topic's lock has
    its turn before a message is refused; what waits in a batch is stored then, long before its delay ends."""
    options = {"batching_enabled": batching, "batching_max_publish_delay_ms": 60_000}
    producer = topic.producer(max_pending_messages=3, **options)
    producer.send(b"first")
    is_waited_for, wait = threading.Event(), FileLock.keep_threads_out

    def note(lock: FileLock, timeout_s: float = 30.0) -> None:
        assert timeout_s >= 0.25  # many turns of a processor that has many threads to serve
        is_waited_for.set()
        wait(lock, timeout_s)

    monkeypatch.setattr(FileLock, "keep_threads_out", note)
    with held(topic.client, leave=is_waited_for):
        for number in range(5):
            producer.send_async(b"%d" % number, None)
    producer.flush()
    assert payloads(topic.client) == [b"first", *(b"%d" % number for number in range(5))]
