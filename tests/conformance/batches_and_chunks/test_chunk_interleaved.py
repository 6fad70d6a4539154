"""Parts of several messages, and whole messages, in any order in one topic."""

from __future__ import annotations

import random

import pytest

from embeddedpulsar import Client, ConsumerType, MessageId
from tests.conformance.chunks import (
    LIMIT,
    HalfSent,
    begin_ledger,
    entries_in,
    log_of,
    payload,
)

pytestmark = pytest.mark.usefixtures("small_entries")

TYPES = [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("seed", range(3))
def test_any_order(topic, kind, seed):
    """Messages come in the order of their last parts, each with its own bytes."""
    dice = random.Random(seed)
    consumer = topic.consumer(consumer_type=kind, max_pending_chunked_message=0)
    producers = [topic.producer(chunking_enabled=True) for _ in range(4)]
    open_ones: list[HalfSent] = []
    expected: list[bytes] = []
    for number in range(60):
        step = dice.random()
        if step < 0.3 and len(open_ones) < 12:
            open_ones.append(HalfSent(dice.choice(producers), payload(dice.randint(2, 9) * 500, number)))
        elif step < 0.5:
            expected.append(b"small %d" % number)
            dice.choice(producers).send(expected[-1])
        elif step < 0.55:
            begin_ledger(log_of(topic.client))
        elif open_ones:
            one = dice.choice(open_ones)
            if one.left:
                one.send(1)
            else:
                expected.append(bytes(one.out._packed))
                one.finish()
                open_ones.remove(one)
    # The reader first: housekeeping may remove the ledgers whose messages are acknowledged.
    reader = topic.client.create_reader("topic", MessageId.earliest)
    assert [message.data() for message in reader] == expected
    found = []
    while (message := consumer.receive_nowait()) is not None:
        found.append(message.data())
        consumer.acknowledge(message)
    assert found == expected


def test_producers_do_not_wait_for_each_other(topic, store_url):
    """The topic is locked part by part: another producer gets its message in between."""
    producer = topic.producer(chunking_enabled=True)
    log = log_of(topic.client)
    other_client = Client(store_url)
    other = other_client.create_producer("topic")
    real = log.append_nowait
    held = []

    def append(*arguments):
        found = real(*arguments)
        held.append(log.lock.held)
        if len(held) == 2:
            other.send(b"between")
        return found

    log.append_nowait = append
    try:
        producer.send(payload(3 * LIMIT))
    finally:
        log.append_nowait = real
        other_client.close()
    names = [view.producer_name for view in entries_in(topic.client)]
    assert names.index(other.producer_name()) == 2
    reader = topic.client.create_reader("topic", MessageId.earliest)
    assert [len(message.data()) for message in reader] == [7, 3 * LIMIT]
