"""Key_Shared, STICKY: each consumer says which slots it takes."""

from __future__ import annotations

import pytest

from embeddedpulsar import ConsumerAssignError, ConsumerKeySharedPolicy, ConsumerType, KeySharedMode
from tests.conformance.conftest import numbers
from tests.conformance.pool import acknowledge_all, take, take_turns
from tests.conformance.subscriptions.test_key_shared_ranges import key_in, slot_of

WHOLE = (0, 65535)


def sticky(*ranges):
    """The policy with these ranges."""
    return ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=list(ranges))


def subscribe(topic, *ranges, **options):
    """A consumer of these ranges."""
    return topic.consumer(consumer_type=ConsumerType.KeyShared, key_shared_policy=sticky(*ranges), **options)


@pytest.mark.in_memory
def test_messages_go_to_the_consumer_of_their_slot(topic):
    """The worked example: with [0, 16383] and [32768, 49151] for C1 and the others for C2, the key
    ``Order-3459134`` (slot 6067) is C1's, and every other key goes where its slot says."""
    one = subscribe(topic, (0, 16383), (32768, 49151))
    two = subscribe(topic, (16384, 32767), (49152, 65535))
    keys = ["Order-3459134", *(f"key-{number}" for number in range(100))]
    with topic.producer() as producer:
        for key in keys:
            producer.send(b"", partition_key=key)
    mine, theirs = ([message.partition_key() for message in taken] for taken in take_turns([one, two]))
    assert mine == [key for key in keys if slot_of(key) // 16384 in (0, 2)]
    assert theirs == [key for key in keys if slot_of(key) // 16384 in (1, 3)]
    assert mine[0] == "Order-3459134"


def test_both_ends_are_included(topic):
    """A range [a, b] has the slots a and b."""
    one, two = subscribe(topic, (0, 30000)), subscribe(topic, (30001, 65535))
    with topic.producer() as producer:
        for slot in (30000, 30001):
            producer.send(b"", partition_key=key_in(slot, slot))
    assert [len(messages) for messages in take_turns([one, two])] == [1, 1]


def test_two_consumers_share_ten_messages(topic):
    """Messages without a key have one slot, so one of the two gets all ten."""
    consumers = [subscribe(topic, (0, 30000)), subscribe(topic, (30001, 65535))]
    topic.publish(10)
    assert sorted(len(messages) for messages in take_turns(consumers)) == [0, 10]


@pytest.mark.parametrize("ranges", [[(0, 100)], [(50, 60)], [(100, 200)], [(200, 300), (0, 0)], [WHOLE]])
def test_overlap_with_another_consumer(topic, ranges):
    """It is refused with ConsumerAssignError, the consumer is not added, and the first one goes on."""
    first = subscribe(topic, (0, 100))
    with pytest.raises(ConsumerAssignError):
        subscribe(topic, *ranges)
    second = subscribe(topic, (101, 65535))
    topic.publish(5)
    assert sum(map(len, take_turns([first, second]))) == 5


def test_ranges_are_free_again_when_their_consumer_leaves(topic):
    """Another consumer may have them then."""
    subscribe(topic, WHOLE).close()
    assert subscribe(topic, WHOLE)


def test_slots_of_nobody_wait(topic):
    """Messages no consumer covers wait, without holding up others, for one who does."""
    low = subscribe(topic, (0, 32767), ack_group_time_ms=0)
    keys = [f"key-{number}" for number in range(60)]
    with topic.producer() as producer:
        for number, key in enumerate(keys):
            producer.send(b"hello-%d" % number, partition_key=key)
    got = take(low)
    acknowledge_all(low, got)
    assert numbers(got) == [number for number, key in enumerate(keys) if slot_of(key) < 32768]
    middle = subscribe(topic, (32768, 50000))
    assert numbers(take(middle)) == [n for n, key in enumerate(keys) if 32768 <= slot_of(key) <= 50000]
    high = subscribe(topic, (50001, 65535))
    assert numbers(take(high)) == [n for n, key in enumerate(keys) if slot_of(key) > 50000]


def test_what_nobody_covers_stays_in_the_backlog(topic):
    """It comes to whoever covers it, also after all consumers left."""
    key = key_in(40000, 65535)
    with subscribe(topic, (0, 100)) as consumer, topic.producer() as producer:
        producer.send(b"hello-0", partition_key=key)
        assert take(consumer) == []
    assert numbers(take(subscribe(topic, WHOLE))) == [0]


def test_ranges_the_policy_lets_pass(topic):
    """Equal pairs and inverted ones pass the policy, and are refused on subscribing."""
    with pytest.raises(ConsumerAssignError):
        subscribe(topic, (7, 3))
    with pytest.raises(ConsumerAssignError):
        subscribe(topic, (0, 65535), (0, 65535))
    consumer = subscribe(topic, (0, 65535))
    topic.publish(1)
    assert numbers(take(consumer)) == [0]


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ([], "must not be empty"),
        ([(0, 65536)], r"must be \[0, 65535\]"),
        ([(-1, 5)], r"must be \[0, 65535\]"),
        ([(0, 100), (50, 150)], "with overlap"),
        (None, "must also provide sticky_ranges"),
    ],
)
def test_wrong_policies(ranges, text):
    """The policy refuses what can be seen without others, with the texts of pulsar-client."""
    with pytest.raises(ValueError, match=text):
        ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=ranges)


def test_ranges_are_ignored_with_auto_split(topic):
    """A policy with ranges and AutoSplit is one with AutoSplit."""
    policy = ConsumerKeySharedPolicy(KeySharedMode.AutoSplit, sticky_ranges=[(0, 10)])
    consumer = topic.consumer(consumer_type=ConsumerType.KeyShared, key_shared_policy=policy)
    topic.publish(3)
    assert numbers(take(consumer)) == [0, 1, 2]
