"""Ids of chunked messages: what they hold, and going back to them."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

from embeddedpulsar import ConsumerType, MessageId
from tests.conformance.chunks import LIMIT, HalfSent, payload
from tests.conformance.conftest import receive_all

pytestmark = pytest.mark.usefixtures("small_entries")

KINDS = [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared]


def labels(messages: list[Any]) -> list[str]:
    """``big`` or the payload."""
    return [
        "big" if message.data() == payload(3 * LIMIT) else message.data().decode() for message in messages
    ]


def published(topic: Any) -> list[Any]:
    """A small message, a chunked one with another between its parts, and one more; their ids."""
    producer = topic.producer(chunking_enabled=True)
    before = producer.send(b"before")
    slow = HalfSent(producer, payload(3 * LIMIT)).send(2)
    between = producer.send(b"between")
    slow.finish()
    after = producer.send(b"after")
    reader = topic.client.create_reader("topic", before, start_message_id_inclusive=True)
    big = [reader.read_next(1000) for _ in range(3)][-1].message_id()
    return [before, between, big, after]


def test_the_id_is_that_of_the_last_part(topic):
    """It remembers the first, prints both, and is the same wherever it comes from."""
    sent = topic.producer(chunking_enabled=True).send(payload(3 * LIMIT))
    received = topic.consumer().receive(1000).message_id()
    assert received == sent
    ledger, last = sent.ledger_id(), sent.entry_id()
    assert last > 2
    assert str(sent) == str(received) == f"({ledger},0,-1,-1);({ledger},{last},-1,-1)"


def test_it_survives_storing(topic):
    """The binary form has both ids, as the other clients write them."""
    sent = topic.producer(chunking_enabled=True).send(payload(3 * LIMIT))
    again = MessageId.deserialize(sent.serialize())
    assert (again, str(again)) == (sent, str(sent))
    theirs = pulsar.MessageId.deserialize(sent.serialize())
    assert str(theirs) == str(sent)
    assert theirs.serialize() == sent.serialize()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", [False, True])
def test_seeking_to_it(topic, kind, stored):
    """Exclusive: goes on behind it. Inclusive: with it, and with what came between its parts."""
    _, _, big, _ = published(topic)
    if stored:
        big = MessageId.deserialize(big.serialize())
    consumer = topic.consumer(consumer_type=kind)
    receive_all(consumer)
    consumer.seek(big)
    assert labels(receive_all(consumer)) == ["after"]
    consumer.close()
    consumer = topic.consumer(consumer_type=kind, start_message_id_inclusive=True)
    consumer.seek(big)
    assert labels(receive_all(consumer)) == ["between", "big", "after"]


@pytest.mark.parametrize("inclusive", [False, True])
def test_a_reader_that_starts_there(topic, inclusive):
    """The same for readers, at the start and when they seek."""
    before, _, big, _ = published(topic)
    expected = ["between", "big", "after"] if inclusive else ["after"]
    reader = topic.client.create_reader("topic", big, start_message_id_inclusive=inclusive)
    assert labels(list(reader)) == expected
    reader.seek(before)
    assert labels(list(reader))[-3:] == ["between", "big", "after"]
    reader.seek(big)
    assert labels(list(reader)) == expected


def test_an_id_that_forgot_the_first_part(topic):
    """Made of numbers, it is still enough to get the message: the last part names the others."""
    _, _, big, _ = published(topic)
    bare = MessageId(-1, big.ledger_id(), big.entry_id())
    reader = topic.client.create_reader("topic", bare, start_message_id_inclusive=True)
    assert labels(list(reader)) == ["big", "after"]


@pytest.mark.in_memory
def test_seeking_between_the_parts(topic):
    """Behind some of its parts the message still comes, whole."""
    _, between, _, _ = published(topic)
    consumer = topic.consumer()
    consumer.seek(between)
    assert labels(receive_all(consumer)) == ["big", "after"]


def test_seeking_by_time(topic):
    """To the beginning, everything comes once."""
    published(topic)
    consumer = topic.consumer()
    assert len(receive_all(consumer)) == 4
    consumer.seek(1)
    assert labels(receive_all(consumer)) == ["before", "between", "big", "after"]
