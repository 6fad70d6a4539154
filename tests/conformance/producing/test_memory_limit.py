"""memory_limit_bytes: the payloads of all producers of a client that are sent and not stored."""

from __future__ import annotations

import pickle
import threading

import pytest

from embeddedpulsar import Client, MemoryBufferIsFull, Result
from tests.conformance.held import Answers, entries, held


@pytest.fixture
def limited(store_url):
    """A client with a limit of 100 bytes."""
    with Client(store_url, memory_limit_bytes=100) as client:
        yield client
        assert client._core.memory.used == 0


@pytest.mark.parametrize("batching", [False, True])
def test_the_limit_is_that_of_all_producers(limited, batching):
    """What waits for one topic counts for the others, too; beyond the limit messages fail."""
    answers = Answers()
    one = limited.create_producer("topic", batching_enabled=batching)
    other = limited.create_producer("other")
    one.send(b"first")
    with held(limited):
        one.send_async(b"x" * 60, answers.of(0))
        one.send_async(b"x" * 60, answers.of(1), partition_key="k")
        other.send_async(b"x" * 40, answers.of(2))
        with pytest.raises(MemoryBufferIsFull, match="memory_limit_bytes=100"):
            other.send(b"x" * 41)
        one.send_async(b"x" * 40, answers.of(3))
        with pytest.raises(MemoryBufferIsFull):
            other.send(b"x")
    one.flush()
    other.send(b"x" * 100)
    full = Result.MemoryBufferIsFull
    assert sorted(answers.results) == [(0, Result.Ok), (1, full), (2, Result.Ok), (3, Result.Ok)]


def test_a_larger_message_goes_alone(limited):
    """A message beyond the whole limit is taken while nothing else is on its way."""
    producer = limited.create_producer("topic")
    assert producer.send(b"x" * 500).entry_id() == 0


def test_blocking(limited):
    """With block_if_queue_full senders wait for memory."""
    producer = limited.create_producer("topic", block_if_queue_full=True)
    answers = Answers()

    def send() -> None:
        for number in range(5):
            producer.send_async(b"%d" % number * 60, answers.of(number))

    with held(limited):
        sender = threading.Thread(target=send)
        sender.start()
        sender.join(0.1)
        assert sender.is_alive()
    sender.join(30)
    producer.flush()
    assert answers.results == [(number, Result.Ok) for number in range(5)]


@pytest.mark.parametrize("durability", ["process", "flush"])
def test_everything_is_given_back(store_url, durability):
    """Whatever becomes of messages, their bytes count no longer: stored, too big, timed out, closed."""
    with Client(store_url, memory_limit_bytes=10_000_000, durability=durability) as client:
        memory = client._core.memory
        with client.create_producer("topic", batching_enabled=True) as producer:
            for number in range(50):
                producer.send_async(b"x" * number, None, partition_key="k")
            producer.send_async(b"x" * 6_000_000, lambda result, message_id: None)
            producer.send(b"x")
            producer.flush()
            assert memory.used == 0
        producer = client.create_producer("topic", send_timeout_millis=50)
        with held(client):
            producer.send_async(b"x" * 100, lambda result, message_id: None)
            assert memory.used == 100
            with pytest.raises(TimeoutError):
                producer.send(b"y" * 10)
        producer = client.create_producer("topic", batching_enabled=True)
        producer.send_async(b"x" * 10, None)
        producer.close()
        assert memory.used == 0


def test_off_by_default(client):
    """Without the argument nothing is counted; a pickled client keeps its limit."""
    assert client._core.memory is None
    assert entries(client) == []


def test_pickling(limited):
    """The limit goes along to another process."""
    with pickle.loads(pickle.dumps(limited)) as copy:
        assert copy._core.memory.limit == 100
