"""Any number of threads may use one producer and one consumer."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from embeddedpulsar import MessageId, Result, Timeout
from tests.conformance.conftest import receive_all

THREADS = 4


def in_threads(action: Callable[[int], None]) -> None:
    """Run ``action(0)``, ``action(1)`` and so on at the same time."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            action(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("callbacks", [False, True])
@pytest.mark.parametrize("batching", [False, True])
def test_threads_share_a_producer(topic, batching, callbacks):
    """Every message is stored once, those of one thread in its order, and every callback comes."""
    count = 3000 if batching else 300
    results: list[Result] = []
    answer = (lambda result, message_id: results.append(result)) if callbacks else None
    options = {"batching_enabled": batching, "batching_max_messages": 100, "block_if_queue_full": True}
    with topic.producer(**options) as producer:

        def send(thread: int) -> None:
            for number in range(count):
                key = "k" if number % 3 == 0 else None
                producer.send_async(b"%d %d" % (thread, number), answer, partition_key=key)

        in_threads(send)
    messages = [m.data().split() for m in topic.client.create_reader("topic", MessageId.earliest)]
    for thread in range(THREADS):
        assert [int(n) for t, n in messages if int(t) == thread] == list(range(count))
    assert results == ([Result.Ok] * count * THREADS if callbacks else [])


def test_threads_mix_ways_of_sending(topic):
    """Synchronous sends, callbacks and flushes of several threads do not disturb each other."""
    consumer = topic.consumer()
    answers: list[MessageId] = []
    sent: list[MessageId] = []
    with topic.producer(batching_enabled=True, batching_max_messages=7) as producer:

        def send(thread: int) -> None:
            for number in range(200):
                if (number + thread) % 5 == 0:
                    sent.append(producer.send(b"x"))
                else:
                    producer.send_async(b"y", lambda result, message_id: answers.append(message_id))
                if number % 50 == 0:
                    producer.flush()

        in_threads(send)
    received = receive_all(consumer)
    assert sorted(message.message_id() for message in received) == sorted(sent + answers)
    assert {m.message_id() for m in received if m.data() == b"x"} == set(sent)


@pytest.mark.in_memory
@pytest.mark.parametrize("batching", [False, True])
def test_threads_share_a_consumer(topic, batching):
    """Every message is received by exactly one of the threads, and acknowledged by it."""
    total = 4000 if batching else 400
    with topic.producer(batching_enabled=batching, batching_max_messages=30) as producer:
        for number in range(total):
            producer.send_async(b"%d" % number, None)
    seen: list[int] = []
    with topic.consumer() as consumer:

        def receive(thread: int) -> None:
            while True:
                try:
                    message = consumer.receive(50)
                except Timeout:
                    return
                seen.append(int(message.data()))
                consumer.acknowledge(message if thread % 2 else message.message_id())

        in_threads(receive)
    assert sorted(seen) == list(range(total))
    assert receive_all(topic.consumer()) == []


def test_threads_wait_for_the_same_messages(topic):
    """Threads that wait are woken as messages come; each message goes to one of them."""
    consumer = topic.consumer()
    seen: list[bytes] = []

    def receive(thread: int) -> None:
        for _ in range(50):
            message = consumer.receive(30_000)
            seen.append(message.data())
            consumer.acknowledge(message)

    receivers = threading.Thread(target=in_threads, args=(receive,))
    receivers.start()
    topic.publish(50 * THREADS)
    receivers.join(60)
    assert sorted(seen) == sorted(b"hello-%d" % number for number in range(50 * THREADS))
