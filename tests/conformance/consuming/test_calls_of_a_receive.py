"""How many Python functions, in how many files, a message passes from the log to its application."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from embeddedpulsar import ConsumerType, MessageId
from tests.conformance.conftest import Topic
from tests.conformance.producing.test_calls_of_a_send import calls_of, files_of


def fewest(prepare: Callable[[], object], receive: Callable[[], object]) -> list[tuple[str, str]]:
    """Of several times: a look now and then does what is due every 10 ms."""
    rounds = []
    for _ in range(8):
        prepare()
        rounds.append(calls_of(receive)[1:])
    return min(rounds, key=len)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_a_message_of_an_active_consumer_passes_few_functions(topic: Topic, kind: ConsumerType):
    """The next message behind the tail: at most 25 calls in at most 14 files."""
    with topic.producer() as producer:
        consumer = topic.consumer(consumer_type=kind)
        producer.send(b"warm")
        consumer.acknowledge(consumer.receive(1000))
        calls = fewest(lambda: producer.send(b"x"), lambda: consumer.acknowledge(consumer.receive(1000)))
        assert len(calls) <= 25 + 1, calls  # and the acknowledgement
        assert len(files_of(calls)) <= 14, files_of(calls)


def test_a_message_of_a_reader_passes_few_functions(topic: Topic):
    """The next message behind the tail: at most 25 calls in at most 14 files."""
    with topic.producer() as producer:
        reader = topic.client.create_reader(topic.name, MessageId.latest)
        producer.send(b"warm")
        reader.read_next(1000)
        calls = fewest(lambda: producer.send(b"x"), lambda: reader.read_next(1000))
        assert len(calls) <= 25, calls
        assert len(files_of(calls)) <= 14, files_of(calls)


@pytest.mark.parametrize(("kind", "most"), [(ConsumerType.Shared, 60), (ConsumerType.KeyShared, 70)])
def test_a_message_of_a_lone_consumer_passes_few_functions(topic: Topic, kind: ConsumerType, most: int):
    """It claims nothing: at most 60 calls, 70 with keys, in at most 20 files."""
    with topic.producer() as producer:
        consumer = topic.consumer(consumer_type=kind)
        for number in range(4):
            producer.send(b"warm", partition_key=f"key-{number}")
            consumer.acknowledge(consumer.receive(1000))
        calls = fewest(
            lambda: producer.send(b"x", partition_key="key"),
            lambda: consumer.acknowledge(consumer.receive(1000)),
        )
        assert len(calls) <= most, calls
        assert len(files_of(calls)) <= 20, files_of(calls)


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_the_end_of_the_log_is_determined_once_for_a_claim(topic: Topic, kind: ConsumerType):
    """By the hint whether there is work, and by the look-ahead that follows, together: each consumer that
    looks reads the frame before the tail once."""
    with topic.producer() as producer:
        # Two of them: one that is alone may read on without a claim.
        consumers = [topic.consumer(consumer_type=kind) for _ in range(2)]
        counts = []
        for number in range(20):
            producer.send(b"x", partition_key=f"key-{number}")
            for consumer in consumers:
                names = [name for _, name in calls_of(consumer.receive_nowait)]
                counts.append(names.count("LogView._last_frame"))
        # A consumer that looks for the first time, or after a while, has to find its place in the log.
        assert sorted(counts)[len(counts) // 2] <= 1 and max(counts[10:]) <= 2, counts
