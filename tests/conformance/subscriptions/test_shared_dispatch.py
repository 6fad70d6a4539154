"""Shared: every message goes to one consumer; who is ready gets some, better priority levels first."""

from __future__ import annotations

import pytest

from embeddedpulsar import Client, ConsumerType, MessageId
from tests.conformance.conftest import numbers, receive_all
from tests.conformance.pool import acknowledge_all, take, take_turns

SHARED = ConsumerType.Shared


def subscribe(topic, *queue_sizes, **options):
    """Consumers of the Shared subscription with these queue sizes."""
    return [topic.consumer(consumer_type=SHARED, receiver_queue_size=size, **options) for size in queue_sizes]


@pytest.mark.in_memory
def test_every_message_goes_to_one_consumer(topic):
    """Consumers of a Shared subscription divide the messages among them, none twice, none left out."""
    consumers = subscribe(topic, 10, 10, 10)
    topic.publish(300)
    taken = take_turns(consumers)
    assert sorted(number for messages in taken for number in numbers(messages)) == list(range(300))


def test_consumers_that_are_equally_fast_get_equally_much(topic):
    """With queues of one size, and receiving in turns, each gets its part of the messages."""
    consumers = subscribe(topic, 10, 10, 10, 10)
    topic.publish(400)
    assert all(80 <= len(messages) <= 120 for messages in take_turns(consumers))


@pytest.mark.parametrize("size", [10, 1000])
def test_a_small_backlog_is_spread(topic, size):
    """The first to come does not swallow what is there: others would be idle meanwhile."""
    topic.publish(40)
    consumers = subscribe(topic, *[size] * 4)
    assert all(4 <= len(messages) <= 16 for messages in take_turns(consumers))


@pytest.mark.in_memory
def test_a_consumer_alone_gets_everything(topic):
    """Nobody waits for consumers that do not exist."""
    topic.publish(50)
    (consumer,) = subscribe(topic, 1000)
    assert numbers(take(consumer)) == list(range(50))


def test_consumers_of_another_client_take_part(topic, store_url):
    """It is one subscription whoever opens it."""
    with Client(store_url) as other:
        consumers = [
            topic.consumer(consumer_type=SHARED, receiver_queue_size=5),
            other.subscribe("topic", "sub", SHARED, receiver_queue_size=5),
        ]
        topic.publish(60)
        taken = take_turns(consumers)
        assert sorted(numbers(taken[0] + taken[1])) == list(range(60))
        assert all(taken)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_the_queue_size_is_honoured(topic, size):
    """A consumer that stops receiving keeps as many messages from the others as its queue holds."""
    slow, busy = subscribe(topic, size, 1000)
    topic.publish(100)
    assert slow.receive(0)
    kept = 100 - 1 - len(take(busy))
    assert 0 <= kept <= size


def test_a_batch_goes_whole_to_one_consumer(topic):
    """The unit of dispatch is the entry: a batch is not divided, not even for queues smaller than it."""
    consumers = subscribe(topic, 1, 1)
    for _ in range(4):
        topic.publish_batch(5)
    taken = take_turns(consumers)
    entries = [{message.message_id().entry_id() for message in messages} for messages in taken]
    assert not entries[0] & entries[1]
    assert [len(messages) for messages in taken] == [5 * len(one) for one in entries]
    assert sum(len(one) for one in entries) == 4


def test_priority_levels(topic):
    """The worked example: with 2, 1 and 1 permits at level 0, and 2 and 1 at level 1, the first four of seven
    messages go to level 0, though level 1 asks first, and each gets what it has permits for."""
    c1, c2, c3 = subscribe(topic, 2, 1, 1, priority_level=0)
    c4, c5 = subscribe(topic, 2, 1, priority_level=1)
    topic.publish(7)
    fourth = [c4.receive(0), c4.receive(0)]
    fifth = [c5.receive(0)]
    assert sorted(numbers([c1.receive(0), c2.receive(0), c3.receive(0), c1.receive(0)])) == [0, 1, 2, 3]
    assert sorted(numbers(fourth + fifth)) == [4, 5, 6]


def test_a_lower_priority_level_waits(topic):
    """While a better consumer is ready for all there is, the other gets nothing; when it is not, the rest."""
    (better,) = subscribe(topic, 5, priority_level=0)
    (worse,) = subscribe(topic, 1000, priority_level=3)
    topic.publish(5)
    assert take(worse) == []
    topic.publish(10)
    rest = take(worse)
    assert len(rest) == 10
    assert numbers(take(better)) == [0, 1, 2, 3, 4]


def test_what_comes_back_goes_first(topic):
    """Messages to be redelivered come before those nobody had yet, in order of their position."""
    topic.publish(30)
    first, second = subscribe(topic, 10, 1000)
    held = take(first, 10)
    first.close()
    assert numbers(take(second)[:10]) == numbers(held) == list(range(10))


def test_a_message_acknowledged_by_another_consumer(topic):
    """Whoever acknowledges: the message is done, also for the consumer that has it."""
    topic.publish(2)
    first, second = subscribe(topic, 1, 1)
    messages = [first.receive(0), second.receive(0)]
    second.acknowledge(messages[0].message_id())
    second.acknowledge(messages[1])
    first.close()
    second.close()
    assert receive_all(topic.consumer(consumer_type=SHARED)) == []


def test_messages_sent_while_consumers_wait(topic):
    """A consumer that waits is woken by what is sent, and gets it."""
    consumers = subscribe(topic, 1, 1)
    assert [consumer.receive_nowait() for consumer in consumers] == [None, None]
    topic.publish(2)
    taken = take_turns(consumers)
    assert sorted(numbers(taken[0] + taken[1])) == [0, 1]


def test_acknowledgements_in_any_order(topic):
    """A later consumer gets exactly what none of them acknowledged."""
    topic.publish(100)
    consumers = subscribe(topic, 10, 10)
    left = []
    for consumer, messages in zip(consumers, take_turns(consumers), strict=True):
        acknowledge_all(consumer, messages[::2])
        left += numbers(messages[1::2])
        consumer.close()
    assert numbers(receive_all(topic.consumer(consumer_type=SHARED))) == sorted(left)


def test_message_ids_are_those_of_the_topic(topic):
    """Ids say where a message is, not who received it."""
    sent = topic.publish(6)
    consumers = subscribe(topic, 3, 3)
    taken = take_turns(consumers)
    assert sorted(message.message_id() for messages in taken for message in messages) == sent
    reader = topic.client.create_reader("topic", MessageId.earliest)
    assert [reader.read_next(0).message_id() for _ in range(6)] == sent


def test_what_was_looked_at_is_acknowledged_before_it_is_claimed(topic):
    """A message came since the look: the same call gives that; its consumer does not go to sleep over it."""
    options = {"consumer_type": ConsumerType.Shared, "receiver_queue_size": 1}
    consumer, other = topic.consumer(**options), topic.consumer(**options)
    producer = topic.producer()
    producer.send(b"hello-0")
    assert numbers([consumer.receive(1000)]) == [0]
    consumer.redeliver_unacknowledged_messages()
    looked_at = producer.send(b"hello-1")
    assert numbers([consumer.receive(1000)]) == [0]  # given back; the next one was looked at
    other.acknowledge(looked_at)
    other.close()
    producer.send(b"hello-2")
    assert numbers([consumer.receive(0)]) == [2]
