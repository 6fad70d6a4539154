"""What a thread sends while another is in the middle of storing, at chosen steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from embeddedpulsar import CompressionType, MessageId, ProducerQueueIsFull, Result
from embeddedpulsar.client.producer.send_queue import SendQueue
from tests.conformance.robustness.test_threads import THREADS, in_threads

NEVER_MS = 3_600_000
SOON = timedelta(milliseconds=1)


def in_thread(action: Callable[[], object]) -> None:
    """Run ``action`` on another thread, to its end."""
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def stored(topic: Any) -> list[bytes]:
    """The payloads in the log."""
    return [message.data() for message in topic.client.create_reader("topic", MessageId.earliest)]


def before_encoding(producer: Any, monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Run ``action`` on another thread when the producer, having counted what waits, encodes it."""
    encode_group = SendQueue._encode_group
    actions = [action]

    def encode(queue: SendQueue, least: int) -> Any:
        if actions and queue is producer._publisher.queue:
            in_thread(actions.pop())
        return encode_group(queue, least)

    monkeypatch.setattr(SendQueue, "_encode_group", encode)


@pytest.mark.parametrize("others", [1, 3, 200])
def test_a_flush_stores_its_messages_behind_those_that_overtake_them(topic, monkeypatch, others):
    """Delayed messages of another thread go ahead of the batch; they do not take its place in the flush."""
    mine = [b"mine %d" % number for number in range(3)]
    with topic.producer(batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS) as producer:
        for value in mine:
            producer.send_async(value, None)
        before_encoding(
            producer,
            monkeypatch,
            lambda: [producer.send_async(b"other", None, deliver_after=SOON) for _ in range(others)],
        )
        producer.flush()
        assert stored(topic) == [b"other"] * others + mine


def test_a_send_is_answered_behind_messages_that_overtake_its_batch(topic, monkeypatch):
    """The same for `send`, which returns the id of its message."""
    with topic.producer(batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS) as producer:
        producer.send_async(b"before", None)  # otherwise the next one would be stored at once
        before_encoding(
            producer,
            monkeypatch,
            lambda: [producer.send_async(b"other", None, deliver_after=SOON) for _ in range(3)],
        )
        sent = producer.send(b"mine")
        assert (sent.entry_id(), sent.batch_index()) == (3, 1)
        assert stored(topic) == [b"other"] * 3 + [b"before", b"mine"]


@pytest.mark.parametrize("compression", ["NONE", "ZLib"])
@pytest.mark.parametrize("keyed", [False, True])
def test_large_messages_that_come_while_a_thread_stores_keep_to_the_limits(topic, keyed, compression):
    """A batch of them all would be larger than a message may be."""
    results: list[Result] = []
    size, count = 100_000, 70
    with topic.producer(
        batching_enabled=True,
        batching_max_publish_delay_ms=NEVER_MS,
        compression_type=getattr(CompressionType, compression),
    ) as producer:

        def send() -> None:
            for number in range(count):
                producer.send_async(
                    b"%06d" % number + bytes(size),
                    lambda result, sent: results.append(result),
                    partition_key="k" if keyed else None,
                )

        try:
            producer._publisher.queue.lock.acquire()
            in_thread(send)
        finally:
            producer._publisher.queue.lock.release()
        producer.flush()
        assert results == [Result.Ok] * count
    messages = list(topic.client.create_reader("topic", MessageId.earliest))
    assert [int(message.data()[:6]) for message in messages] == list(range(count))
    assert all(message.message_id().batch_index() <= 0 for message in messages)  # 128 KiB hold one


def test_a_large_message_is_counted_before_its_sender_could_say_so(topic):
    """Another thread is between the append and the note that sizes have to be added up."""
    with topic.producer(batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS) as producer:
        producer.send_async(b"small", None)
        producer._publisher.queue.items.extend(b"%06d" % number + bytes(100_000) for number in range(70))
        producer.flush()
        assert [value[:6] for value in stored(topic)] == [b"small", *(b"%06d" % n for n in range(70))]


def test_a_send_does_not_overtake_what_its_thread_sent_before(topic, monkeypatch):
    """Not even if it looks at the moment in which another thread lets the hot path go on."""
    producer = topic.producer()
    producer.send(b"zero")
    queue = producer._publisher.queue
    lock, singles = queue.lock, SendQueue.__dict__["singles"]
    is_queued, is_open, is_waiting = threading.Event(), threading.Event(), threading.Event()

    def send() -> None:
        producer.send_async(b"first", None)
        is_queued.set()
        assert is_open.wait(30)
        producer.send(b"second")

    other = threading.Thread(target=send)

    class WatchedQueue(SendQueue):
        __slots__ = ()

        @property
        def singles(self) -> list[Any]:
            if self.alone_max >= 0 and threading.current_thread() is not other and not is_open.is_set():
                is_open.set()
                assert is_waiting.wait(30)
            return singles.__get__(self)

    class WatchedLock:
        release = staticmethod(lock.release)

        def acquire(self, *how: Any) -> bool:
            if is_open.is_set():
                is_waiting.set()
            return lock.acquire(*how)

    monkeypatch.setattr(SendQueue, "hold_up", lambda queue: None)  # the flusher keeps out
    try:
        lock.acquire()
        other.start()
        assert is_queued.wait(30)
        queue.__class__ = WatchedQueue
        queue.lock = WatchedLock()
        queue.reopen()
    finally:
        lock.release()
    other.join()
    queue.__class__ = SendQueue
    queue.lock = lock
    monkeypatch.undo()
    producer.close()
    assert is_waiting.is_set()
    assert stored(topic) == [b"zero", b"first", b"second"]


@pytest.mark.parametrize("callbacks", [False, True])
@pytest.mark.parametrize("batching", [False, True])
def test_what_is_not_stored_was_refused(topic, batching, callbacks):
    """Threads that send faster than is stored fill the queue: what goes beyond it fails, and says so."""
    count, limit = 40, 100
    results: dict[bytes, list[Result]] = {}
    options = {"batching_enabled": batching, "batching_max_publish_delay_ms": NEVER_MS}
    producer = topic.producer(max_pending_messages=limit, **options)

    def answer(value: bytes) -> Callable[..., object] | None:
        taken = results.setdefault(value, [])
        return (lambda result, sent: taken.append(result)) if callbacks else None

    def send(thread: int) -> None:
        for number in range(count):
            value = b"%d %d" % (thread, number)
            producer.send_async(value, answer(value))

    try:
        producer._publisher.queue.lock.acquire()
        in_thread(lambda: in_threads(send))
    finally:
        producer._publisher.queue.lock.release()
    if callbacks:
        producer.flush()
    else:
        with pytest.raises(ProducerQueueIsFull):
            producer.flush()
    producer.close()
    found = stored(topic)
    assert limit <= len(found) < limit + THREADS
    assert len(results) == count * THREADS
    if callbacks:
        for value, told in results.items():
            assert told == [Result.Ok if value in found else Result.ProducerQueueIsFull]
