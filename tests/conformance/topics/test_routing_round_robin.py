"""RoundRobinDistribution: without a key, each message or each batch goes to the next partition."""

from __future__ import annotations

from itertools import chain

import pytest

from embeddedpulsar import BatchingType
from tests.conformance.manual_time import ManualTime
from tests.conformance.partitioned import PartitionedTopic, hello


@pytest.fixture
def topic(client):
    """A topic of three partitions."""
    return PartitionedTopic(client, 3)


def turns(first: int, count: int) -> list[int]:
    """The partitions in turn, of three."""
    return [(first + i) % 3 for i in range(count)]


@pytest.mark.parametrize("is_async", [False, True])
def test_each_message_goes_to_the_next_partition(topic, is_async):
    """Without batching, one message to each in turn, from a random one on."""
    with topic.producer() as producer:
        if is_async:
            partitions: list[int] = []
            for i in range(9):
                producer.send_async(hello(i), lambda result, sent: partitions.append(sent.partition()))
            producer.flush()
        else:
            partitions = [producer.send(hello(i)).partition() for i in range(9)]
    assert partitions == turns(partitions[0], 9)
    assert [topic.numbers(index) for index in partitions[:3]] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_what_makes_no_difference_to_the_turn(topic):
    """Properties, an ordering key, a null value and a delay change nothing; a key takes no turn."""
    with topic.producer() as producer:
        first = producer.send(b"x").partition()
        assert producer.send(b"x", {"a": "b"}).partition() == (first + 1) % 3
        producer.send(b"x", partition_key="a")
        assert producer.send(b"x", ordering_key="a").partition() == (first + 2) % 3
        assert producer.send(None).partition() == first
        assert producer.send(b"x", deliver_at=1).partition() == (first + 1) % 3


def test_each_full_batch_goes_to_the_next_partition(topic):
    """With batching a partition is kept until its batch is full."""
    sent = []
    with topic.batching(batching_max_messages=4) as producer:
        for i in range(24):
            producer.send_async(hello(i), lambda result, message_id: sent.append(message_id))
    assert [one.partition() for one in sent] == [
        index for index in turns(sent[0].partition(), 6) for _ in range(4)
    ]
    assert [one.batch_index() for one in sent] == [0, 1, 2, 3] * 6
    assert topic.batches(sent[0].partition()) == [[0, 1, 2, 3], [12, 13, 14, 15]]


def test_a_batch_is_full_at_its_bytes(topic):
    """The message that would exceed the byte limit begins a batch on the next partition."""
    sent = []
    with topic.batching(batching_max_messages=100, batching_max_allowed_size_in_bytes=1000) as producer:
        for size in (400, 400, 400, 10, 995, 1500, 10):
            producer.send_async(b"x" * size, lambda result, message_id: sent.append(message_id))
        producer.flush()
    # 800; then 410; then 995; then one that is too long for any batch; then the last.
    steps = [(one.partition() - sent[0].partition()) % 3 for one in sent]
    assert steps == [0, 0, 1, 1, 2, 0, 1]
    assert [one.batch_index() for one in sent] == [0, 1, 0, 1, 0, 0, 0]


def test_the_turn_passes_when_the_publish_delay_has(store_url):
    """Messages that come in less time than that share a partition, later ones go to the next."""
    time = ManualTime(store_url)
    topic = PartitionedTopic(time.client, 3)
    sent = []
    with topic.batching(batching_max_publish_delay_ms=20) as producer:
        for i in range(6):
            producer.send_async(hello(i), lambda result, message_id: sent.append(message_id))
            if i % 2:
                time.pass_ms(20)
        producer.flush()
    first = sent[0].partition()
    assert [one.partition() for one in sent] == [index for index in turns(first, 3) for _ in range(2)]
    time.close()


def test_flush_passes_the_turn_on_once(topic):
    """What a flush published was a batch; a flush of nothing changes nothing."""
    sent = []
    with topic.batching() as producer:
        for i in range(6):
            producer.send_async(hello(i), lambda result, message_id: sent.append(message_id.partition()))
            producer.flush()
            producer.flush()
    assert sent == turns(sent[0], 6)


def test_a_synchronous_send_is_a_batch(topic):
    """send() publishes its batch at once, so the next one goes on."""
    with topic.batching() as producer:
        partitions = [producer.send(hello(i)).partition() for i in range(5)]
    assert partitions == turns(partitions[0], 5)


def test_keyed_messages_keep_their_order_among_the_others(topic):
    """On each partition, messages with and without a key are stored as they were sent."""
    with topic.batching(batching_max_messages=10) as producer:
        for i in range(200):
            producer.send_async(hello(i), None, partition_key=f"key-{i % 7}" if i % 3 else None)
    stored = topic.all_numbers()
    assert sorted(chain(*stored)) == list(range(200))
    assert all(numbers == sorted(numbers) for numbers in stored)


def test_key_based_batches_hold_one_key(topic):
    """Key-based batching works on each partition as on a topic without."""
    with topic.batching(batching_type=BatchingType.KeyBased) as producer:
        for i in range(60):
            producer.send_async(hello(i), None, partition_key=f"key-{i % 6}")
    for index in range(3):
        for batch in topic.batches(index):
            assert len({i % 6 for i in batch}) == 1
        assert len(topic.batches(index)) == len({i % 6 for i in topic.numbers(index)})
    assert sorted(chain(*topic.all_numbers())) == list(range(60))


def test_one_partition_takes_all(client):
    """With one partition there is no choice."""
    topic = PartitionedTopic(client, 1)
    with topic.producer() as producer:
        assert {producer.send(b"x", partition_key=key).partition() for key in (None, "a", "b")} == {0}
