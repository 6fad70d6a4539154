"""What ends a batch: count, bytes, time, flush, a synchronous send, a full queue."""

from __future__ import annotations

from datetime import timedelta

import pytest

from embeddedpulsar import Result
from tests.conformance.held import Answers, entries, held


@pytest.fixture
def producer(time, request):
    """A batching producer whose delay is 10 ms, with the options of the test's ``batching`` mark."""
    options = getattr(request, "param", {})
    made = time.client.create_producer(
        "topic", batching_enabled=True, batching_max_publish_delay_ms=10, **options
    )
    made.send(b"first")  # the topic has its segment
    return made


def sizes(time):
    """The payload sizes of the entries behind the first."""
    return [[len(one) for one in entry] for entry in entries(time.client)[1:]]


@pytest.mark.parametrize("producer", [{"batching_max_messages": 3}], indirect=True)
def test_the_count(time, producer):
    """The message that fills a batch sends it; the next begins another."""
    for size in (1, 2, 3, 4):
        producer.send_async(b"x" * size, None)
    assert sizes(time) == [[1, 2, 3]]


@pytest.mark.parametrize("producer", [{"batching_max_allowed_size_in_bytes": 100}], indirect=True)
def test_the_bytes(time, producer):
    """What would exceed the bytes goes into the next batch; reaching them exactly sends the batch."""
    for size in (60, 50, 50, 99, 1, 10):
        producer.send_async(b"x" * size, None)
    assert sizes(time) == [[60], [50, 50], [99, 1]]


@pytest.mark.parametrize("producer", [{"batching_max_allowed_size_in_bytes": 100}], indirect=True)
def test_an_oversized_message_is_a_batch_of_its_own(time, producer):
    """A message larger than a batch may be sends what waits, and then itself."""
    for size in (10, 500, 10):
        producer.send_async(b"x" * size, None)
    assert sizes(time) == [[10], [500]]


@pytest.mark.parametrize("producer", [{"batching_max_allowed_size_in_bytes": 100}], indirect=True)
def test_only_payloads_count(time, producer):
    """Keys and properties do not count towards the bytes."""
    for _ in range(2):
        producer.send_async(b"x" * 40, None, {"name": "y" * 1000}, "k" * 1000)
    assert sizes(time) == []


def test_the_time(time, producer):
    """The first message of a batch starts the clock, later ones do not move it."""
    producer.send_async(b"1", None)
    time.pass_ms(9)
    producer.send_async(b"22", None)
    assert sizes(time) == []
    time.pass_ms(1)
    assert sizes(time) == [[1, 2]]
    time.pass_ms(100)
    producer.send_async(b"333", None)
    time.pass_ms(9.5)
    assert sizes(time) == [[1, 2]]
    time.pass_ms(0.5)
    assert sizes(time) == [[1, 2], [3]]


def test_flush_and_send(time, producer):
    """flush() and a synchronous send() send what waits."""
    producer.send_async(b"1", None)
    producer.flush()
    producer.send_async(b"22", None)
    producer.send(b"333")
    assert sizes(time) == [[1], [2, 3]]


@pytest.mark.parametrize("producer", [{"max_pending_messages": 2}], indirect=True)
def test_a_full_queue(time, producer):
    """No more wait in a batch than may be pending."""
    for size in (1, 2, 3):
        producer.send_async(b"x" * size, None)
    assert sizes(time) == [[1, 2]]


def test_delayed_messages_go_ahead(time, producer):
    """A message with a delivery time is never batched, and is stored at once; the batch keeps its time."""
    producer.send_async(b"1", None)
    time.pass_ms(6)
    producer.send_async(b"22", None, deliver_after=timedelta(seconds=1))
    producer.send_async(b"333", None, deliver_at=time.now_ms() + 500)
    assert sizes(time) == [[2], [3]]
    time.pass_ms(4)
    assert sizes(time) == [[2], [3], [1]]


@pytest.mark.parametrize(
    "producer", [{"batching_max_messages": 3, "batching_max_allowed_size_in_bytes": 100}], indirect=True
)
def test_limits_hold_for_what_had_to_wait(time, producer):
    """What waits behind a locked topic becomes batches within the same limits, delayed messages ahead."""
    answers = Answers()
    with held(time.client):
        for number, size in enumerate((1, 2, 3, 60, 50, 200, 10, 11)):
            producer.send_async(b"x" * size, answers.of(number))
        producer.send_async(b"later", answers.of("later"), deliver_after=timedelta(seconds=1))
        time.pass_ms(100)
        assert answers == []
    producer.flush()
    # The first batch was full before the delayed message came.
    assert sizes(time) == [[1, 2, 3], [5], [60], [50], [200], [10, 11]]
    assert {result for _, result in answers.results} == {Result.Ok}
    assert [name for name, _ in answers.results if name != "later"] == list(range(8))
