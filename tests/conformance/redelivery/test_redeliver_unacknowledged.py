"""redeliver_unacknowledged_messages: everything a consumer holds comes again, at once."""

from __future__ import annotations

import pytest

from embeddedpulsar import ConsumerType
from tests.conformance.conftest import Topic, numbers
from tests.conformance.pool import acknowledge_all, take, take_turns

SINGLY = [ConsumerType.Shared, ConsumerType.KeyShared]


@pytest.mark.parametrize("kind", SINGLY)
def test_what_was_received_comes_again_counted(topic, kind):
    """Unacknowledged messages come again in order with count 1, acknowledged ones do not."""
    consumer = topic.consumer(consumer_type=kind)
    topic.publish(6)
    messages = take(consumer)
    acknowledge_all(consumer, messages[1:3])
    consumer.redeliver_unacknowledged_messages()
    again = take(consumer)
    assert numbers(again) == [0, 3, 4, 5]
    assert {message.redelivery_count() for message in again} == {1}


@pytest.mark.parametrize("kind", SINGLY)
def test_what_was_only_fetched_is_not_counted(topic, kind):
    """Messages that lay in the queue go back too, but nobody has seen them: their count stays 0."""
    consumer = topic.consumer(consumer_type=kind)
    topic.publish(6)
    assert len(take(consumer, 2)) == 2
    consumer.redeliver_unacknowledged_messages()
    again = take(consumer)
    assert numbers(again) == list(range(6))
    assert [message.redelivery_count() for message in again] == [1, 1, 0, 0, 0, 0]


@pytest.mark.in_memory
def test_other_consumers_may_get_them(topic):
    """On a Shared subscription whoever is ready gets what comes again."""
    first = topic.consumer(consumer_type=ConsumerType.Shared)
    topic.publish(10)
    assert len(take(first)) == 10
    second = topic.consumer(consumer_type=ConsumerType.Shared)
    first.redeliver_unacknowledged_messages()
    taken = take_turns([second, first])
    assert sorted(numbers(taken[0] + taken[1])) == list(range(10))
    assert taken[0]


@pytest.mark.parametrize("kind", SINGLY)
def test_messages_of_other_consumers_stay_there(topic, kind):
    """A consumer asks for what it holds itself, not for what others hold."""
    consumers = [topic.consumer(consumer_type=kind) for _ in range(2)]
    with topic.producer() as producer:
        for number in range(40):
            producer.send(b"hello-%d" % number, partition_key=str(number))
    taken = take_turns(consumers)
    consumers[0].redeliver_unacknowledged_messages()
    again = take_turns(consumers)
    assert sorted(numbers(again[0] + again[1])) == sorted(numbers(taken[0]))


@pytest.mark.parametrize("kind", SINGLY)
def test_a_pending_nack_is_settled_with_it(time, kind):
    """What was given back and comes again at once does not come a second time when the delay is over."""
    consumer = Topic(time.client).consumer(consumer_type=kind, negative_ack_redelivery_delay_ms=1000)
    Topic(time.client).publish(1)
    consumer.negative_acknowledge(take(consumer)[0])
    consumer.redeliver_unacknowledged_messages()
    assert len(take(consumer)) == 1
    time.pass_ms(2000)
    assert take(consumer) == []


@pytest.mark.parametrize("kind", list(ConsumerType.__members__.values()))
def test_closed(topic, kind):
    """Ignored on a closed consumer: what it had has come to others, and comes once."""
    topic.publish(2)
    consumer = topic.consumer(consumer_type=kind)
    assert len(take(consumer)) == 2
    consumer.close()
    other = topic.consumer(consumer_type=kind)
    assert len(take(other)) == 2
    consumer.redeliver_unacknowledged_messages()
    assert take(other) == []
