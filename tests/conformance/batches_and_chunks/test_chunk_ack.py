"""Acknowledging a chunked message acknowledges all its entries, and nothing of other messages."""

from __future__ import annotations

from typing import Any

import pytest

from embeddedpulsar import Client, ConsumerType, MessageId, NotConnected, Timeout
from embeddedpulsar.message_id import BEFORE_FIRST
from tests.conformance.chunks import (
    LIMIT,
    HalfSent,
    begin_ledger,
    entries_in,
    log_of,
    payload,
    subscription_of,
)

pytestmark = pytest.mark.usefixtures("small_entries")


def flushed(consumer: Any) -> Any:
    """The mark-delete position once every acknowledgement is written."""
    consumer._acks.flush()
    return subscription_of(consumer).mark_delete


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared])
def test_all_entries_go_together(topic, kind):
    """Before, the mark-delete position stands in front of the first part; afterwards behind the last."""
    consumer = topic.consumer(consumer_type=kind)
    producer = topic.producer(chunking_enabled=True)
    producer.send(payload(3 * LIMIT))
    message = consumer.receive(1000)
    before = flushed(consumer)
    assert before.entry_id == -1
    consumer.acknowledge(message)
    assert flushed(consumer) == log_of(topic.client).last_position()


def test_it_is_one_command(topic):
    """A death can leave all entries acknowledged or none: they are one record of the journal."""
    consumer = topic.consumer()
    topic.producer(chunking_enabled=True).send(payload(3 * LIMIT))
    message = consumer.receive(1000)
    shared = subscription_of(consumer)._shared
    committed: list[Any] = []
    real = shared.commit
    shared.commit = lambda commands: (
        committed.append([type(one).__name__ for one in commands]) or real(commands)
    )
    consumer.acknowledge(message)  # written at once: a ring would have one entry after the other
    assert committed[-1][-1] == "Ack"
    assert sum(names.count("Ack") for names in committed) == 1


def test_by_id(topic, store_url):
    """An id that was stored and comes back, in whatever process, does the same."""
    consumer = topic.consumer()
    topic.producer(chunking_enabled=True).send(payload(3 * LIMIT))
    stored = consumer.receive(1000).message_id().serialize()
    consumer.close()
    consumer = topic.consumer()
    consumer.acknowledge(MessageId.deserialize(stored))
    assert flushed(consumer) == log_of(topic.client).last_position()
    consumer.close()
    with Client(store_url) as other, other.subscribe("topic", "sub") as consumer, pytest.raises(Timeout):
        consumer.receive(20)


def test_without_an_acknowledgement_it_comes_again(topic):
    """Closing and opening gives the whole message again."""
    producer = topic.producer(chunking_enabled=True)
    for kind in (ConsumerType.Exclusive, ConsumerType.Shared):
        consumer = topic.consumer(consumer_type=kind)
        if kind == ConsumerType.Exclusive:
            producer.send(payload(3 * LIMIT))
        assert consumer.receive(1000).data() == payload(3 * LIMIT)
        consumer.close()


def test_cumulatively(topic):
    """A cumulative acknowledgement of the message covers its parts, and what came before."""
    consumer = topic.consumer()
    producer = topic.producer(chunking_enabled=True)
    producer.send(b"small")
    producer.send(payload(3 * LIMIT))
    producer.send(b"last")
    consumer.receive(1000)
    consumer.acknowledge_cumulative(consumer.receive(1000))
    last = log_of(topic.client).last_position()
    assert flushed(consumer) == last.previous()


@pytest.mark.parametrize("batched", [False, True])
def test_cumulatively_within_a_message(topic, batched):
    """A message that lies between the parts of another one: those parts stay, and the other one comes."""
    consumer = topic.consumer(batch_index_ack_enabled=True)
    slow = HalfSent(topic.producer(chunking_enabled=True), payload(4 * LIMIT)).send(2)
    topic.publish(1)
    slow.send(1)
    if batched:
        topic.publish_batch(3)
    else:
        topic.publish(1)
    slow.finish()
    topic.publish(1)
    consumer.receive(1000)
    message = consumer.receive(1000)
    consumer.acknowledge_cumulative(message)
    assert flushed(consumer).entry_id == -1, "the first part is not acknowledged"
    assert subscription_of(consumer).backlog() == (4 if batched else 2)
    consumer.close()
    consumer = topic.consumer(batch_index_ack_enabled=True)
    rest = [consumer.receive(1000).data() for _ in range(4 if batched else 2)]
    assert rest[-2:] == [payload(4 * LIMIT), b"hello-0"]
    assert len(rest) == (4 if batched else 2)


def test_parts_of_an_acknowledged_message_may_be_trimmed(topic):
    """The ledgers of a message are kept as long as it is not acknowledged, and no longer."""
    consumer = topic.consumer()
    producer = topic.producer(chunking_enabled=True)
    log = log_of(topic.client)
    slow = HalfSent(producer, payload(3 * LIMIT)).send(2)
    begin_ledger(log)
    topic.publish(1)
    message = consumer.receive(1000)
    consumer.acknowledge_cumulative(message)
    mark_delete = flushed(consumer)
    trim_before(log, mark_delete.ledger_id)
    slow.finish()
    message = consumer.receive(1000)
    assert message.data() == payload(3 * LIMIT)
    consumer.acknowledge(message)
    mark_delete = flushed(consumer)
    assert mark_delete == log.last_position()
    assert trim_before(log, mark_delete.ledger_id) == 1


def trim_before(log, ledger_id):
    """Remove the ledgers before one; how many went."""
    log.trimming.give_up(ledger_id, log.trimming.rewind_count())
    return log.trimming.remove(100, 1.0)


def test_a_message_of_a_reader(topic):
    """A reader's message may be acknowledged by a consumer; what is left of it is acknowledged in time."""
    consumer = topic.consumer()
    topic.producer(chunking_enabled=True).send(payload(3 * LIMIT))
    message = topic.client.create_reader("topic", MessageId.earliest).read_next(1000)
    consumer.acknowledge(message.message_id())
    assert flushed(consumer) == log_of(topic.client).last_position()


KINDS = [ConsumerType.Exclusive, ConsumerType.Shared]


@pytest.mark.parametrize("expire_ms", [0, 60_000])
@pytest.mark.parametrize("kind", KINDS)
def test_an_id_made_of_its_numbers(topic, kind, expire_ms):
    """It names the last part alone, and nobody was given the message: the log knows the others."""
    sent = topic.producer(chunking_enabled=True).send(payload(3 * LIMIT))
    topic.publish(1)
    consumer = topic.consumer(
        consumer_type=kind,
        receiver_queue_size=1,
        expire_time_of_incomplete_chunked_message_ms=expire_ms,
    )
    consumer.acknowledge(MessageId(-1, sent.ledger_id(), sent.entry_id()))
    assert flushed(consumer) == (sent.ledger_id(), sent.entry_id())


def test_ids_among_many_others(topic):
    """Chunked messages here and there among plain ones, in several ledgers, acknowledged in one go."""
    log = log_of(topic.client)
    producer = topic.producer(chunking_enabled=True)
    ids = []
    for size in (10, 3 * LIMIT, 10, 10, 5 * LIMIT):
        begin_ledger(log)
        ids += [producer.send(payload(size)), producer.send(b"x")]
    consumer = topic.consumer(consumer_type=ConsumerType.Shared)
    for one in reversed(ids):
        consumer.acknowledge(MessageId(-1, one.ledger_id(), one.entry_id()))
    assert flushed(consumer) == log.last_position()


def test_ids_of_a_log_that_grows(topic):
    """What was looked at before, and held nothing of chunked messages, may go on with them."""
    log = log_of(topic.client)
    producer = topic.producer(chunking_enabled=True)
    consumer = topic.consumer(consumer_type=ConsumerType.Shared, receiver_queue_size=1)
    for size in (10, 10, 3 * LIMIT, 10, 3 * LIMIT, 10):
        one = producer.send(payload(size))
        consumer.acknowledge(MessageId(-1, one.ledger_id(), one.entry_id()))
        assert flushed(consumer) == log.last_position()


@pytest.mark.parametrize("giver", ["a reader", "another consumer"])
def test_a_message_somebody_else_was_given(topic, giver):
    """Messages and not ids of theirs do the same."""
    topic.producer(chunking_enabled=True).send(payload(3 * LIMIT))
    if giver == "a reader":
        message = topic.client.create_reader("topic", MessageId.earliest).read_next(1000)
        consumer = topic.consumer(consumer_type=ConsumerType.Shared)
    else:
        other = topic.consumer(consumer_type=ConsumerType.Shared)
        message = other.receive(1000)
        consumer = topic.consumer(consumer_type=ConsumerType.Shared)
    consumer.acknowledge(message)
    assert flushed(consumer) == log_of(topic.client).last_position()


def test_what_others_acknowledged_is_forgotten(topic):
    """A consumer whose messages all are acknowledged elsewhere remembers no more than some of them."""
    producer = topic.producer(chunking_enabled=True)
    mine = topic.consumer(consumer_type=ConsumerType.Shared)
    for _ in range(150):
        producer.send(payload(2 * LIMIT))
    messages = [mine.receive(1000) for _ in range(150)]
    other = topic.consumer(consumer_type=ConsumerType.Shared)
    for message in messages[:149]:
        other.acknowledge(message)
    flushed(other)
    delivered = mine._core.session.attachment.chunks.delivered
    assert len(delivered) == 150
    mine.acknowledge(messages[149])
    assert flushed(mine) == log_of(topic.client).last_position()
    assert not delivered


def test_what_waits_behind_a_part_in_flight(topic):
    """Single acknowledgements of later messages leave the parts of an open message alone."""
    consumer = topic.consumer(consumer_type=ConsumerType.Shared)
    slow = HalfSent(topic.producer(chunking_enabled=True), payload(3 * LIMIT)).send(2)
    topic.publish(2)
    for _ in range(2):
        consumer.acknowledge(consumer.receive(1000))
    assert flushed(consumer).entry_id == -1
    slow.finish()
    consumer.acknowledge(consumer.receive(1000))
    assert flushed(consumer) == log_of(topic.client).last_position()
    assert [view.count for view in entries_in(topic.client)].count(1) == 3


def test_again_after_a_void_acknowledgement(topic):
    """The subscription was moved before the acknowledgement: another one, under the new epoch, takes the
    parts with it, though the message came to another consumer by then."""
    consumer = topic.consumer(consumer_type=ConsumerType.Shared, ack_receipt_enabled=True)
    topic.producer(chunking_enabled=True).send(payload(3 * LIMIT))
    message = consumer.receive(1000)
    other = topic.consumer(consumer_type=ConsumerType.Shared)
    subscription_of(consumer).seek(BEFORE_FIRST, inclusive=False)
    with pytest.raises(NotConnected):
        consumer.acknowledge(message)
    assert other.receive_nowait().data() == payload(3 * LIMIT)
    assert consumer.receive_nowait() is None
    consumer.acknowledge(message)
    assert flushed(consumer) == log_of(topic.client).last_position()


def test_a_void_cumulative_acknowledgement_forgets_no_parts(topic):
    """They are not acknowledged, so the consumer still knows what belongs to the message."""
    consumer = topic.consumer(ack_receipt_enabled=True)
    last = topic.producer(chunking_enabled=True).send(payload(3 * LIMIT))
    message = consumer.receive(1000)
    subscription_of(consumer).seek(BEFORE_FIRST, inclusive=False)
    with pytest.raises(NotConnected):
        consumer.acknowledge_cumulative(message)
    place = (last.ledger_id(), last.entry_id())
    assert len(consumer._core.session.attachment.chunks.with_parts([place])) == last.entry_id() + 1
    assert consumer.receive(1000).data() == payload(3 * LIMIT)
    consumer.acknowledge_cumulative(message)
    assert flushed(consumer) == log_of(topic.client).last_position()
