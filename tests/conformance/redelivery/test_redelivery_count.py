"""redelivery_count: how often a message was asked for again, on Shared and Key_Shared; 0 elsewhere."""

from __future__ import annotations

import pytest

from embeddedpulsar import ConsumerType, MessageId
from tests.conformance.conftest import Topic, numbers, receive_all
from tests.conformance.pool import take, take_turns

SINGLY = [ConsumerType.Shared, ConsumerType.KeyShared]


def subscribe(time, kind, **options):
    """A consumer on manual time, with a nack delay of half a second."""
    options.setdefault("negative_ack_redelivery_delay_ms", 500)
    return Topic(time.client).consumer(consumer_type=kind, **options)


def counts(messages):
    """The counts of some messages."""
    return [message.redelivery_count() for message in messages]


@pytest.mark.parametrize("kind", SINGLY)
@pytest.mark.parametrize("by_id", [False, True])
def test_each_negative_acknowledgement_counts(time, kind, by_id):
    """Four deliveries of a message that is given back each time have the counts 0, 1, 2 and 3."""
    consumer = subscribe(time, kind)
    Topic(time.client).publish(1)
    found = []
    for _ in range(4):
        (message,) = take(consumer)
        found.append(message.redelivery_count())
        consumer.negative_acknowledge(message.message_id() if by_id else message)
        time.pass_ms(600)
    assert found == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", SINGLY)
def test_only_what_was_given_back_counts(time, kind):
    """One message comes again with count 1; the others do not come again at all."""
    consumer = subscribe(time, kind)
    Topic(time.client).publish(5)
    messages = take(consumer)
    consumer.negative_acknowledge(messages[2])
    time.pass_ms(600)
    again = take(consumer)
    assert (numbers(again), counts(again)) == ([2], [1])


@pytest.mark.parametrize("kind", SINGLY)
def test_the_count_goes_with_the_message(time, kind):
    """Another consumer that gets it sees the same count."""
    first = subscribe(time, kind)
    Topic(time.client).publish(3)
    for message in take(first):
        first.negative_acknowledge(message)
    second = subscribe(time, kind)
    time.pass_ms(600)
    first.close()
    again = take(second)
    assert (numbers(again), counts(again)) == ([0, 1, 2], [1, 1, 1])


@pytest.mark.parametrize("kind", SINGLY)
def test_an_acknowledgement_ends_it(time, kind):
    """A message acknowledged after it came back does not come again."""
    consumer = subscribe(time, kind)
    Topic(time.client).publish(1)
    consumer.negative_acknowledge(take(consumer)[0])
    time.pass_ms(600)
    (again,) = take(consumer)
    consumer.acknowledge(again)
    time.pass_ms(600)
    consumer.redeliver_unacknowledged_messages()
    assert take(consumer) == []


@pytest.mark.parametrize("kind", SINGLY)
def test_counts_outlive_the_consumers(time, kind):
    """When all consumers have left, counts go on where they were; a seek ends them."""
    with subscribe(time, kind) as consumer:
        Topic(time.client).publish(2)
        for message in take(consumer):
            consumer.negative_acknowledge(message)
        time.pass_ms(600)
        assert counts(take(consumer)) == [1, 1]
    with subscribe(time, kind) as consumer:
        assert counts(take(consumer)) == [1, 1]
        consumer.seek(MessageId.earliest)
        assert counts(take(consumer)) == [0, 0]


@pytest.mark.parametrize("kind", SINGLY)
def test_closing_counts_nothing(time, kind):
    """What a consumer held when it closed comes to others with the count it had."""
    first, second = subscribe(time, kind), subscribe(time, kind)
    Topic(time.client).publish(10)
    taken = take_turns([first, second])
    for message in taken[0]:
        first.negative_acknowledge(message)
    time.pass_ms(600)
    taken = take_turns([first, second])
    first.close()
    again = take(second)
    assert sorted(numbers(again)) == sorted(numbers(taken[0]))
    assert set(counts(again)) <= {1}


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_other_types_do_not_count(time, kind):
    """On Exclusive and Failover it is 0, however often a message comes."""
    consumer = subscribe(time, kind)
    Topic(time.client).publish(3)
    for _ in range(3):
        messages = take(consumer)
        assert counts(messages) == [0, 0, 0]
        consumer.negative_acknowledge(messages[0])
        time.pass_ms(600)


def test_readers_do_not_count(topic):
    """Nor do readers, which take no part in subscriptions."""
    topic.publish(2)
    reader = topic.client.create_reader("topic", MessageId.earliest)
    assert counts([reader.read_next(0), reader.read_next(0)]) == [0, 0]


@pytest.mark.parametrize("kind", SINGLY)
def test_messages_of_a_batch_count_together(time, kind):
    """A batch comes again as one: each of its messages has the count of the entry."""
    consumer = subscribe(time, kind)
    Topic(time.client).publish_batch(4)
    messages = take(consumer)
    consumer.negative_acknowledge(messages[1])
    consumer.negative_acknowledge(messages[3])
    time.pass_ms(600)
    again = take(consumer)
    assert (numbers(again), counts(again)) == ([0, 1, 2, 3], [1, 1, 1, 1])


@pytest.mark.parametrize("kind", SINGLY)
def test_counts_beyond_a_byte(topic, kind):
    """More than 255 redeliveries are told truly."""
    consumer = topic.consumer(consumer_type=kind)
    topic.publish(1)
    found = []
    for _ in range(301):
        found += counts(take(consumer))
        consumer.redeliver_unacknowledged_messages()
    assert found == list(range(301))
    assert counts(receive_all(consumer)) == [301]
