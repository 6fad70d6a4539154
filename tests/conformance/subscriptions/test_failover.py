"""Failover: one consumer is active, the others stand by and take over everything unacknowledged, in order."""

from __future__ import annotations

import threading

import pytest

from embeddedpulsar import Client, ConsumerType, InitialPosition
from embeddedpulsar._engine.log.segments import SEGMENTS
from tests.conformance.conftest import numbers, receive_all
from tests.conformance.pool import acknowledge_all, take, write_settings

FAILOVER = ConsumerType.Failover


def subscribe(topic, name, **options):
    """A consumer of the Failover subscription."""
    return topic.consumer(consumer_type=FAILOVER, consumer_name=name, **options)


def test_the_first_to_subscribe_is_active(topic):
    """On one topic the order of subscription decides, not the names."""
    consumers = [subscribe(topic, name) for name in ("c", "a", "b")]
    topic.publish(10)
    assert [numbers(take(consumer)) for consumer in consumers] == [list(range(10)), [], []]


@pytest.mark.in_memory
def test_the_next_takes_over(topic):
    """When the active consumer closes, the next in order of subscription gets all that is unacknowledged,
    in order and with count 0, and then what is new."""
    consumers = [subscribe(topic, name) for name in ("c", "a", "b")]
    topic.publish(10)
    messages = take(consumers[0])
    acknowledge_all(consumers[0], [messages[i] for i in (0, 1, 4)])
    consumers[0].close()
    again = take(consumers[1])
    assert numbers(again) == [2, 3, 5, 6, 7, 8, 9]
    assert {message.redelivery_count() for message in again} == {0}
    assert take(consumers[2]) == []
    topic.publish(2)
    assert numbers(take(consumers[1])) == [0, 1]
    consumers[1].close()
    assert numbers(take(consumers[2])) == [2, 3, 5, 6, 7, 8, 9, 0, 1]


def test_what_was_prefetched_is_taken_over_too(topic):
    """Messages in the queue of a consumer that closes were received by nobody."""
    first, second = subscribe(topic, "a"), subscribe(topic, "b")
    topic.publish(10)
    assert numbers([first.receive(0)]) == [0]
    first.close()
    assert numbers(take(second)) == list(range(10))


def test_a_standby_that_waits_is_woken(topic):
    """receive of a standby returns when the active consumer leaves."""
    first, second = subscribe(topic, "a"), subscribe(topic, "b")
    topic.publish(1)
    assert first.receive(0)
    received = []
    waiting = threading.Thread(target=lambda: received.append(second.receive(10_000)))
    waiting.start()
    first.close()
    waiting.join(10)
    assert numbers(received) == [0]


def test_a_better_priority_level_takes_over_at_once(topic):
    """A consumer of a smaller number is active as soon as it is there; the other stands by again."""
    first = subscribe(topic, "a", priority_level=1, ack_group_time_ms=0)
    topic.publish(4)
    messages = take(first)
    acknowledge_all(first, messages[:2])
    better = subscribe(topic, "b", priority_level=0)
    assert take(first) == []
    assert numbers(take(better)) == [2, 3]
    better.close()
    assert numbers(take(first)) == [2, 3]


def test_a_worse_priority_level_stands_by(topic):
    """Of two that stand by, the better takes over, though it came later."""
    active = subscribe(topic, "a", priority_level=0)
    worse, better = subscribe(topic, "b", priority_level=2), subscribe(topic, "c", priority_level=1)
    topic.publish(3)
    active.close()
    assert take(worse) == []
    assert numbers(take(better)) == [0, 1, 2]


def test_acknowledgements_of_the_former_active_consumer_count(topic):
    """What it received while it was active, it may acknowledge afterwards."""
    first = subscribe(topic, "a", priority_level=1)
    topic.publish(4)
    messages = take(first)
    second = subscribe(topic, "b", priority_level=0)
    acknowledge_all(first, messages[:3])
    first.close()
    second.close()
    assert numbers(receive_all(subscribe(topic, "c"))) == [3]


def test_a_standby_cannot_ask_for_redelivery(topic):
    """redeliver_unacknowledged_messages of a consumer that is not active is ignored."""
    first, second = subscribe(topic, "a"), subscribe(topic, "b")
    topic.publish(3)
    assert len(take(first)) == 3
    second.redeliver_unacknowledged_messages()
    assert take(first) == []
    assert take(second) == []
    first.redeliver_unacknowledged_messages()
    assert numbers(take(first)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("partition", "order"), [(0, "ABCD"), (1, "BACD"), (2, "CABD"), (4, "ABCD"), (5, "BACD")]
)
def test_partitions_are_divided_by_name(client, partition, order):
    """On a partition the consumers are sorted by name and the number of the partition chooses:
    ``mod(partition, consumers)``. P0 is A's, P1 is B's, however they came."""
    topic = f"t-partition-{partition}"
    consumers = {
        name: client.subscribe(
            topic, "sub", FAILOVER, consumer_name=name, initial_position=InitialPosition.Earliest
        )
        for name in "CADB"
    }
    client.create_producer(topic).send(b"hello-0")
    assert [name for name in "ABCD" if take(consumers[name])] == [order[0]]


def test_partitions_when_their_consumers_leave(client):
    """The worked example: with A and B gone, P0 is C's and P1 is D's."""
    consumers = {
        (name, partition): client.subscribe(
            f"t-partition-{partition}",
            "sub",
            FAILOVER,
            consumer_name=name,
            initial_position=InitialPosition.Earliest,
        )
        for name in "ABCD"
        for partition in (0, 1)
    }
    for partition in (0, 1):
        client.create_producer(f"t-partition-{partition}").send(b"hello-0")
        for name in "AB":
            consumers[name, partition].close()
    assert [take(consumers[name, 0]) != [] for name in "CD"] == [True, False]
    assert [take(consumers[name, 1]) != [] for name in "CD"] == [False, True]


def test_nine_partitions_and_three_consumers(client):
    """P0, P3 and P6 are A's, P1, P4 and P7 B's, P2, P5 and P8 C's."""
    found: dict[str, list[int]] = {name: [] for name in "ABC"}
    for partition in range(9):
        topic = f"t-partition-{partition}"
        consumers = {name: client.subscribe(topic, "sub", FAILOVER, consumer_name=name) for name in "CBA"}
        client.create_producer(topic).send(b"hello-0")
        for name in "ABC":
            if take(consumers[name]):
                found[name].append(partition)
    assert found == {"A": [0, 3, 6], "B": [1, 4, 7], "C": [2, 5, 8]}


def test_consumers_of_several_topics_share_them(client):
    """Where consumers subscribe to several topics, a ring of the hashes of their names chooses per topic:
    topics 1 to 3 are con-2's, topic 4 is con-1's."""
    topics = [f"topic-{number}" for number in range(1, 5)]
    one, two = (
        client.subscribe(
            topics, "sub", FAILOVER, consumer_name=name, initial_position=InitialPosition.Earliest
        )
        for name in ("con-1", "con-2")
    )
    for topic in topics:
        client.create_producer(topic).send(topic.encode())
    assert sorted(message.data() for message in take(two)) == [b"topic-1", b"topic-2", b"topic-3"]
    assert [message.data() for message in take(one)] == [b"topic-4"]


def test_the_ring_may_be_asked_for(store_path):
    """With activeConsumerFailoverConsistentHashing=true the ring chooses for every topic, as brokers do since
    2.10: topics 1 to 3 are con-2's, topic 4 is con-1's, whoever came first."""
    write_settings(store_path, activeConsumerFailoverConsistentHashing=True)
    found = []
    with Client(store_path) as client:
        for number in range(1, 5):
            topic = f"topic-{number}"
            one, two = (
                client.subscribe(topic, "sub", FAILOVER, consumer_name=name) for name in ("con-1", "con-2")
            )
            client.create_producer(topic).send(b"hello-0")
            found.append((len(take(one)), len(take(two))))
    assert found == [(0, 1), (0, 1), (0, 1), (1, 0)]


def test_a_standby_has_mapped_what_it_would_read_first(store_path):
    """A takeover opens no segment. Until then the standby reads nothing."""
    with Client(store_path) as client:
        topic = client.create_producer("t")
        for number in range(3):
            topic.send(b"%d" % number)
        earliest = InitialPosition.Earliest
        first = client.subscribe("t", "sub", FAILOVER, consumer_name="a", initial_position=earliest)
        assert [message.data() for message in take(first)] == [b"0", b"1", b"2"]
        SEGMENTS.drop_all()
        before = len(SEGMENTS)
        second = client.subscribe("t", "sub", FAILOVER, consumer_name="b")
        assert len(SEGMENTS) == before + 1
        assert take(second) == []
        first.close()
        assert [message.data() for message in take(second)] == [b"0", b"1", b"2"]
