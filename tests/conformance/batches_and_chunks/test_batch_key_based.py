"""KeyBased batches: one entry per key, all of a batch sent together."""

from __future__ import annotations

import pytest

from embeddedpulsar import BatchingType, Result
from tests.conformance.conftest import receive_all
from tests.conformance.held import Answers, entries, held

KEYED = {
    "batching_enabled": True,
    "batching_type": BatchingType.KeyBased,
    "batching_max_publish_delay_ms": 60_000,
}


def send(producer, text, answers=None, **more):
    """Send messages like ``a1`` under the key ``a``; ``-1`` has no key."""
    for word in text.split():
        key = None if word[0] == "-" else word[0]
        callback = None if answers is None else answers.of(word)
        producer.send_async(word.encode(), callback, partition_key=key, **more)


def test_one_entry_per_key_by_first_message(topic):
    """A flush stores one entry per key, in the order of their first messages; no key is a key."""
    with topic.producer(**KEYED) as producer:
        send(producer, "b1 a2 -3 a4 b5 -6 c7")
    assert entries(topic.client) == [[b"b1", b"b5"], [b"a2", b"a4"], [b"-3", b"-6"], [b"c7"]]


def test_the_ordering_key_decides(topic):
    """The ordering key, if there is one, else the partition key."""
    with topic.producer(**KEYED) as producer:
        producer.send_async(b"0", None, partition_key="a", ordering_key="x")
        producer.send_async(b"1", None, partition_key="a")
        producer.send_async(b"2", None, partition_key="b", ordering_key="x")
    assert entries(topic.client) == [[b"0", b"2"], [b"1"]]


@pytest.mark.parametrize(
    "limit", [{"batching_max_messages": 4}, {"batching_max_allowed_size_in_bytes": 8}], ids=str
)
def test_limits_hold_for_all_keys_together(topic, limit):
    """Count and bytes are those of all keys together."""
    producer = topic.producer(**KEYED, **limit)
    send(producer, "a1 b2 c3")
    assert entries(topic.client) == []
    send(producer, "a4")
    assert entries(topic.client) == [[b"a1", b"a4"], [b"b2"], [b"c3"]]


@pytest.mark.parametrize("is_locked", [False, True])
def test_callbacks_and_ids(topic, is_locked):
    """Callbacks come by entry, with batch indexes from 0 in each; ids are those consumers see."""
    answers = Answers()
    consumer = topic.consumer()
    producer = topic.producer(**KEYED)
    if is_locked:
        with held(topic.client):
            send(producer, "b1 a2 b3", answers)
    else:
        send(producer, "b1 a2 b3", answers)
    producer.flush()
    assert answers.results == [("b1", Result.Ok), ("b3", Result.Ok), ("a2", Result.Ok)]
    ids = [message_id for _, _, message_id in answers]
    assert [one.batch_index() for one in ids] == [0, 1, 0]
    assert [message.message_id() for message in receive_all(consumer)] == ids


def test_sequence_ids_are_in_the_order_of_storing(topic):
    """Messages are numbered entry by entry: a topic that drops duplicates drops what has a lower id."""
    consumer = topic.consumer()
    with topic.producer(**KEYED) as producer:
        send(producer, "b1 a2 b3 a4")
    found = {message.data(): message.sequence_id() for message in receive_all(consumer)}
    assert found == {b"b1": 0, b"b3": 1, b"a2": 2, b"a4": 3}
    assert producer.last_sequence_id() == 3


def test_the_key_of_an_entry_is_that_of_its_first_message(topic):
    """An entry of mixed keys, as the default makes, is dispatched by the key of its first message."""
    with topic.producer(batching_enabled=True, batching_max_publish_delay_ms=60_000) as producer:
        send(producer, "b1 a2")
    with topic.producer() as producer:
        producer.send(b"alone", partition_key="b")
    ledger = topic.client._core.store.use_topic("topic").topic.ledger
    views = ledger.cursor(ledger.first_position(), inclusive=True).read(10, 1 << 20, 1 << 20)
    assert views[0].key_hash == views[1].key_hash
