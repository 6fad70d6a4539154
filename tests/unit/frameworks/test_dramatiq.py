"""The broker and the result back end of dramatiq."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dramatiq", reason="the extra is not installed")

import dramatiq
from dramatiq import Message, QueueJoinTimeout, QueueNotFound, Worker
from dramatiq.errors import ConnectionClosed
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits import Barrier, WindowRateLimiter
from dramatiq.results import ResultFailure, ResultMissing, Results, ResultTimeout

from embeddedpulsar import Client
from embeddedpulsar.frameworks.dramatiq import (
    EmbeddedPulsarBackend,
    EmbeddedPulsarBroker,
    EmbeddedPulsarRateLimiterBackend,
)
from embeddedpulsar.testing.manual_clock import ManualClock
from embeddedpulsar.testing.trial_store import assert_clean

WAIT_MS = 20_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedPulsarBroker]:
    """A broker, on a store that is whole in the end."""
    broker = EmbeddedPulsarBroker(tmp_path / "store")
    broker.declare_queue("jobs")
    yield broker
    broker.close()
    assert_clean(tmp_path / "store")


@contextmanager
def working(broker: EmbeddedPulsarBroker) -> Iterator[None]:
    """A worker of dramatiq in this process."""
    worker = Worker(broker, worker_threads=2, worker_timeout=50)
    worker.start()
    try:
        yield
    finally:
        worker.stop()


def job(number: int) -> Message[Any]:
    """A message of no actor."""
    return Message("jobs", "job", (number,), {}, {})


def numbers(consumer: Any, count: int) -> list[int]:
    """The arguments of the next messages, which are acknowledged."""
    arguments = []
    for _ in range(count):
        message = next(consumer)
        arguments.append(message.args[0])
        consumer.ack(message)
    return arguments


def test_actors_and_their_results(broker: EmbeddedPulsarBroker, tmp_path: Path):
    """Values come back, exceptions after the last retry."""
    results = EmbeddedPulsarBackend(tmp_path / "store")
    broker.add_middleware(Results(backend=results))
    attempts = []

    @dramatiq.actor(broker=broker, store_results=True)
    def double(number: int) -> int:
        return 2 * number

    @dramatiq.actor(broker=broker, store_results=True, max_retries=1, min_backoff=1, max_backoff=1)
    def fail() -> None:
        attempts.append(1)
        raise ValueError("no")

    with working(broker):
        doubled, failed = double.send(21), fail.send()
        assert results.get_result(doubled, block=True, timeout=WAIT_MS) == 42
        broker.join("default", timeout=WAIT_MS)
        with pytest.raises(ResultFailure, match="no"):
            results.get_result(failed)
    assert len(attempts) == 2
    assert [message.message_id for message in broker.dead_letters("default")] == [failed.message_id]
    results.close()


def test_results_that_are_not_there(broker: EmbeddedPulsarBroker, tmp_path: Path):
    """An error at once, or when the time is over; one that outlives the topic is refused."""
    broker.enqueue(job(1))
    results = EmbeddedPulsarBackend(tmp_path / "store", max_result_ttl=1000)
    with pytest.raises(ResultMissing):
        results.get_result(job(1))
    with pytest.raises(ResultTimeout):
        results.get_result(job(1), block=True, timeout=1)
    with pytest.raises(ValueError, match="make the back end with max_result_ttl"):
        results.store_result(job(1), 1, ttl=1001)
    results.close()


def test_delays(broker: EmbeddedPulsarBroker):
    """Delayed messages come when they are due, the earliest first, and are counted until then."""
    for number, delay in ((1, 300), (2, 100), (3, None), (4, 0)):
        broker.enqueue(job(number), delay=delay)
    with pytest.raises(QueueJoinTimeout):
        broker.join("jobs", timeout=1, interval=1)
    consumer = broker.consume("jobs", timeout=WAIT_MS)
    assert numbers(consumer, 4) == [3, 4, 2, 1]
    broker.join("jobs", timeout=WAIT_MS)
    consumer.close()


def test_prefetch(broker: EmbeddedPulsarBroker):
    """A consumer holds so many messages and no more; what it does not hold others get."""
    for number in range(4):
        broker.enqueue(job(number))
    first, second = (broker.consume("jobs", prefetch=2, timeout=1) for _ in range(2))
    held = [next(first), next(first)]
    assert next(first) is None
    assert [next(second).args[0], next(second).args[0]] == [2, 3]
    first.ack(held[0])
    broker.enqueue(job(4))
    assert next(first).args == (4,)
    for consumer in (first, second):
        consumer.close()


def test_messages_that_are_given_back(broker: EmbeddedPulsarBroker):
    """Those that are requeued, and those of a consumer that is closed, go to others; acknowledged ones do
    not."""
    for number in range(3):
        broker.enqueue(job(number))
    first = broker.consume("jobs", prefetch=3, timeout=WAIT_MS)
    held = [next(first) for _ in range(3)]
    first.ack(held[1])
    second = broker.consume("jobs", timeout=WAIT_MS)
    first.requeue([held[0]])
    assert numbers(second, 1) == [0]
    first.close()
    assert numbers(second, 1) == [2]
    second.close()
    broker.join("jobs", timeout=WAIT_MS)


def test_dead_letters(broker: EmbeddedPulsarBroker):
    """A rejected message is in ``jobs.XQ`` with its reason, and can be sent again."""
    broker.enqueue(job(1))
    consumer = broker.consume("jobs", timeout=WAIT_MS)
    message = next(consumer)
    message.stuff_exception(ValueError("no such mailbox"))
    consumer.nack(message)
    topic = broker.topic("jobs.XQ")
    letters = broker.store.admin.dead_letters(broker.topic("jobs"), "workers", topic)
    (letter,) = letters.peek(10)
    assert letter.properties()["DEAD_LETTER_REASON"] == "ValueError: no such mailbox"
    assert [dead.args for dead in broker.dead_letters("jobs")] == [(1,)]
    assert broker.store.admin.topics().get_retention(topic) == (7 * 24 * 60, -1)
    assert letters.replay_all() == 1
    assert numbers(consumer, 1) == [1]
    consumer.close()
    assert broker.dead_letters("jobs") == [] and broker.dead_letters("other") == []


def test_what_is_no_message(broker: EmbeddedPulsarBroker, caplog: pytest.LogCaptureFixture):
    """It becomes a dead letter, and the consumer goes on."""
    broker.store.create_queue(broker.topic("jobs"))
    with Client(broker.store.service_url) as client:
        client.create_producer(broker.topic("jobs")).send(b"text")
    broker.enqueue(job(1))
    consumer = broker.consume("jobs", timeout=WAIT_MS)
    assert next(consumer) is None
    assert "A message on queue 'jobs' is no message of dramatiq" in caplog.text
    assert numbers(consumer, 1) == [1]
    consumer.close()
    letters = broker.store.admin.dead_letters(broker.topic("jobs"), "workers", broker.topic("jobs.XQ"))
    assert [letter.data() for letter in letters.peek(10)] == [b"text"]


def test_flushing(broker: EmbeddedPulsarBroker):
    """All messages go, delayed ones too, and not those that come later."""
    for delay in (None, 60_000):
        broker.enqueue(job(1), delay=delay)
    broker.flush_all()
    broker.join("jobs", timeout=WAIT_MS)
    broker.enqueue(job(2))
    consumer = broker.consume("jobs", timeout=WAIT_MS)
    assert numbers(consumer, 1) == [2]
    consumer.close()


def test_queues_that_are_not_declared(broker: EmbeddedPulsarBroker):
    """They cannot be consumed or joined; what is sent to one waits for its workers."""
    broker.enqueue(Message("later", "job", (1,), {}, {}))
    for call in (broker.consume, broker.join):
        with pytest.raises(QueueNotFound):
            call("later")
    broker.declare_queue("later")
    assert broker.get_declared_queues() == {"jobs", "later"} and broker.get_declared_delay_queues() == set()
    consumer = broker.consume("later", timeout=WAIT_MS)
    assert numbers(consumer, 1) == [1]
    consumer.close()


def test_a_closed_broker(broker: EmbeddedPulsarBroker):
    """Its consumers end as those of a lost connection, so that a worker begins anew."""
    consumer = broker.consume("jobs", timeout=1)
    broker.close()
    with pytest.raises(ConnectionClosed):
        next(consumer)
    consumer.close()
    broker.enqueue(job(1))
    again = broker.consume("jobs", timeout=WAIT_MS)
    assert numbers(again, 1) == [1]
    again.close()


def test_wrong_arguments():
    """Errors of the constructors name the argument."""
    with pytest.raises(ValueError, match="dead_message_ttl"):
        EmbeddedPulsarBroker("memory://x", dead_message_ttl=0)
    with pytest.raises(ValueError, match="max_result_ttl"):
        EmbeddedPulsarBackend("memory://x", max_result_ttl=0)


def limits_of(root: str, closing: ExitStack) -> EmbeddedPulsarRateLimiterBackend:
    """Counters with a store of their own, as another process has."""
    backend = EmbeddedPulsarRateLimiterBackend(root)
    closing.callback(backend.close)
    return backend


def test_counters_of_two_processes(root: str, closing: ExitStack):
    """Each sees what the other counted, and neither goes beyond the limits; counters expire."""
    with ManualClock() as clock:
        mine, other = limits_of(root, closing), limits_of(root, closing)
        assert mine.add("a", 2, 1000) and not other.add("a", 9, 1000)
        assert other.incr("a", 3, 5, 1000) and not mine.incr("a", 1, 5, 1000)
        assert mine.decr("a", 5, 0, 1000) and not other.decr("a", 1, 0, 1000)
        assert mine.incr_and_sum("b", lambda: ["a", "b"], 2, 3, 1000)
        assert not other.incr_and_sum("a", lambda: ["a", "b"], 2, 3, 1000)
        assert not other.incr_and_sum("a", list, 4, 3, 1000)
        assert other.incr_and_sum("a", lambda: ["a", "b"], 1, 3, 1000)
        clock.advance(1.0)
        assert other.add("a", 1, 1000) and mine.incr("b", 3, 3, 1000)


def test_limiters_and_barriers(root: str, closing: ExitStack):
    """Limits hold for all threads and processes; who waits for a barrier is woken by the last party."""
    mine, other = limits_of(root, closing), limits_of(root, closing)
    window = [WindowRateLimiter(backend, "orders", limit=3, window=60) for backend in (mine, other)]
    with ThreadPoolExecutor(4) as pool:

        def is_acquired(number: int) -> bool:
            with window[number % 2].acquire(raise_on_failure=False) as acquired:
                return bool(acquired)

        assert sum(pool.map(is_acquired, range(8))) == 3
        parties = [Barrier(backend, "guests", ttl=60_000) for backend in (mine, other)]
        assert parties[0].create(2) and not parties[1].create(2)
        waiting = pool.submit(parties[0].wait, timeout=20_000)
        while mine._table.get("guests") != b"1":
            threading.Event().wait(0.001)
        assert parties[1].wait(block=False) and waiting.result(20)
        assert not Barrier(mine, "nobody", ttl=1000).backend.wait("nobody@events", 1)


def test_groups_call_back(broker: EmbeddedPulsarBroker, tmp_path: Path, closing: ExitStack):
    """When all messages of a group were processed, once."""
    broker.add_middleware(GroupCallbacks(limits_of(str(tmp_path / "store"), closing)))
    calls: queue.Queue[str] = queue.Queue()

    @dramatiq.actor(broker=broker)
    def serve(dish: str) -> None:
        calls.put(dish)

    @dramatiq.actor(broker=broker)
    def pay() -> None:
        calls.put("paid")

    group = dramatiq.group([serve.message("soup"), serve.message("tea")], broker=broker)
    group.add_completion_callback(pay.message())
    with working(broker):
        group.run()
        received = [calls.get(timeout=20) for _ in range(3)]
    assert sorted(received[:2]) == ["soup", "tea"] and received[2] == "paid" and calls.empty()
