"""CustomPartition: the application chooses the partition of every message."""

from __future__ import annotations

import pytest

from embeddedpulsar import Message, PartitionsRoutingMode, Result, UnknownError
from embeddedpulsar.schema import StringSchema
from tests.conformance.partitioned import PartitionedTopic, hello


@pytest.fixture
def topic(client):
    """A topic of three partitions."""
    return PartitionedTopic(client, 3)


def by_size(message: Message, partitions: int) -> int:
    """The longer, the later."""
    return len(message.data()) % partitions


@pytest.mark.parametrize("mode", list(PartitionsRoutingMode))
@pytest.mark.parametrize("batching", [False, True])
def test_the_router_decides(topic, mode, batching):
    """A router alone sets the mode; keys do not matter to it unless it looks."""
    with topic.producer(
        message_router=by_size, message_routing_mode=mode, batching_enabled=batching
    ) as producer:
        for size in range(7):
            producer.send_async(b"x" * size, None, partition_key="key" if size % 2 else None)
        assert producer.send(b"four").partition() == 1
    assert [sorted(len(one.data()) for one in topic.messages(index)) for index in range(3)] == [
        [0, 3, 6],
        [1, 4, 4],
        [2, 5],
    ]


def test_what_it_is_told(topic):
    """The message with its options, as bytes also where there is a schema; and the number of partitions."""
    told = []

    def router(message: Message, partitions: int) -> int:
        told.append((message.value(), message.partition_key(), message.properties(), partitions))
        return 0

    with topic.producer(message_router=router, schema=StringSchema()) as producer:
        producer.send("größe", {"a": "b"}, "key")
        topic.grow(4)
        producer.send_async("x", None)
    assert told == [("größe".encode(), "key", {"a": "b"}, 3), (b"x", "", {}, 4)]


def test_its_answer_becomes_an_int(topic):
    """As in pulsar-client, by ``int()``."""
    with topic.producer(message_router=lambda message, partitions: message.data().decode()) as producer:
        assert producer.send(b"2").partition() == 2
        with pytest.raises(ValueError, match="invalid literal"):
            producer.send(b"two")


@pytest.mark.parametrize("answer", [-1, 3])
@pytest.mark.parametrize("batching", [False, True])
def test_no_such_partition(topic, answer, batching):
    """UnknownError: raised by send(), given to the callback by send_async(); the producer works on."""
    answers = [0, answer, answer, 0]
    results = []
    with topic.producer(
        message_router=lambda message, partitions: answers.pop(0), batching_enabled=batching
    ) as producer:
        producer.send(hello(0))
        with pytest.raises(UnknownError, match=f"partition {answer} of 3"):
            producer.send(hello(1))
        producer.send_async(hello(2), lambda result, message_id: results.append(result))
        producer.send(hello(3))
    assert results == [Result.UnknownError]
    assert topic.all_numbers() == [[0, 3], [], []]


def test_an_unheard_failure_is_raised_by_flush(topic):
    """Without a callback, what was wrong with a message is told by the next flush, once."""
    producer = topic.producer(message_router=lambda message, partitions: 7)
    producer.send_async(b"x", None)
    with pytest.raises(UnknownError):
        producer.flush()
    producer.flush()
    producer.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_router_that_fails(topic, is_async):
    """Its exception goes to whoever sends."""

    def router(message: Message, partitions: int) -> int:
        raise KeyError("no idea")

    with topic.producer(message_router=router) as producer:
        send = (lambda: producer.send_async(b"x", None)) if is_async else (lambda: producer.send(b"x"))
        with pytest.raises(KeyError, match="no idea"):
            send()
