"""What a consumer of many topics costs, in calls rather than in time: the benchmark
``many_topics_consumer`` has the times."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from embeddedpulsar import Client, InitialPosition
from embeddedpulsar._engine.log.segments import SegmentCache
from embeddedpulsar._engine.subscription.liveness_monitor import LivenessMonitor
from embeddedpulsar._engine.subscription.shared_state import SharedState
from embeddedpulsar.message_id import BEFORE_FIRST
from tests.conformance.conftest import receive_all

FEW, MANY = 20, 80


def counted(action: Callable[[], object]) -> Counter[str]:
    """How often each function was called; those that are written in C by their names alone."""
    calls: Counter[str] = Counter()

    def note(frame: Any, event: str, function: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            calls[function.__name__] += 1

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


class Topics:
    """Some topics with a producer each, and one consumer of all."""

    def __init__(self, client: Client, prefix: str, count: int) -> None:
        self.names = [f"{prefix}-{number}" for number in range(count)]
        self.consumer: Any = client.subscribe(self.names, "sub", initial_position=InitialPosition.Earliest)
        self.producers = [client.create_producer(name) for name in self.names]
        self.send(self.producers)
        receive_all(self.consumer)

    def send(self, producers: list[Any], text: bytes = b"x") -> None:
        """One message for each."""
        for producer in producers:
            producer.send(text)

    def receive(self, count: int) -> Counter[str]:
        """What it calls to receive so many messages."""
        return counted(lambda: [self.consumer.receive(1000) for _ in range(count)])


def test_a_message_costs_the_same_among_more_topics(client):
    """One message in each of ten topics: each of these is read once, the others not at all, and the words of
    all topics are compared once."""
    costs = []
    for prefix, count in (("few", FEW), ("many", MANY)):
        topics = Topics(client, prefix, count)
        topics.send(topics.producers[:10])
        costs.append(topics.receive(10))
    for cost in costs:
        assert cost["EntryCursor.read"] == 10
        assert not cost["lstat"]  # the place of the topic is checked when nothing is found
    few, many = (sum(cost.values()) for cost in costs)
    per_comparison = MANY - FEW  # those that sleep are compared one by one while they are few
    assert many <= few + 2 * per_comparison


def test_a_topic_without_more_is_not_asked_again(client):
    """Its end was seen when its messages were fetched."""
    topics = Topics(client, "topic", FEW)
    for _ in range(3):
        topics.send(topics.producers)
    assert topics.receive(3 * FEW)["EntryCursor.read"] == FEW


def test_acknowledgements_are_written_without_a_look_at_the_log(client):
    """The consumer has read the entries itself: no segment or index is looked for, nor mapped."""
    topics = Topics(client, "topic", FEW)
    consumer: Any = client.subscribe(
        topics.names, "slow", initial_position=InitialPosition.Earliest, ack_group_time_ms=600_000
    )
    for _ in range(FEW):
        consumer.acknowledge(consumer.receive(1000))
    trackers = [child.acks for child in consumer._core.children.values()]
    cost = counted(lambda: [tracker.flush() for tracker in trackers])
    assert cost[SharedState.commit.__qualname__] == FEW
    assert not cost[SegmentCache.get.__qualname__] + cost["pread"] + cost["mmap"]


def test_topics_take_turns(client):
    """One with many messages does not keep the others waiting for longer than sixteen of them."""
    topics = Topics(client, "topic", 3)
    for _ in range(100):
        topics.producers[0].send(b"many")
    topics.send(topics.producers[1:], b"few")
    received = [message.data() for message in receive_all(topics.consumer)]
    assert received.count(b"many") == 100
    assert received.count(b"few") == 2
    assert received.index(b"few") <= 16


def test_what_comes_while_messages_are_fetched_is_found(client):
    """To a topic whose messages wait in the line, and that is not asked again by itself."""
    topics = Topics(client, "topic", 4)
    topics.send(topics.producers, b"1")
    received = [topics.consumer.receive(1000).data()]
    topics.send(topics.producers, b"2")
    received += [topics.consumer.receive(1000).data() for _ in range(7)]
    assert sorted(received) == [b"1"] * 4 + [b"2"] * 4


def test_a_subscription_that_is_moved_while_its_messages_are_fetched(client):
    """By another process, say: what was fetched is void, and comes once, from the new position on."""
    topics = Topics(client, "topic", 4)
    topics.send(topics.producers, b"1")
    received = [topics.consumer.receive(1000).data()]
    for name in topics.names:
        use = client._core.store.use_topic(name)
        subscription = use.topic.use_subscription("sub")
        subscription.seek(BEFORE_FIRST, inclusive=False)
        use.topic.end_use(subscription, "sub")
        use.release()
    received += [message.data() for message in receive_all(topics.consumer)]
    assert sorted(received) == [b"1"] * 5 + [b"x"] * 4


def test_subscribing_costs_the_same_for_each_topic(client):
    """However many there are; and no timer for each."""
    costs = []
    for prefix, count in (("many", MANY), ("more", 3 * MANY)):  # parsed names of 64 topics are remembered
        names = [f"{prefix}-{number}" for number in range(count)]
        client.subscribe(names, "sub").close()
        client._core.store._topics.close_idle()
        timers = client._core.store._present().scheduler.pending
        found: list[Any] = []
        cost = counted(lambda names=names, found=found: found.append(client.subscribe(names, "sub")))
        assert client._core.store._present().scheduler.pending <= timers + 1
        costs.append(sum(cost.values()) / count)
        found[0].close()
    assert costs[1] <= 1.05 * costs[0]


def test_the_collector_rests_while_many_topics_are_attached(client):
    """Nothing of what is made can go, and there are hundreds of objects for each topic."""
    runs: list[str] = []

    def note(phase: str, _: dict[str, int]) -> None:
        runs.append(phase)

    names = [f"topic-{number}" for number in range(MANY)]
    client.subscribe(names, "sub").close()
    gc.collect()
    gc.callbacks.append(note)
    try:
        consumer = client.subscribe(names, "sub")
        assert not [phase for phase in runs if phase == "start"][1:]
    finally:
        gc.callbacks.remove(note)
    assert gc.isenabled()
    consumer.close()


def test_an_idle_consumer_costs_next_to_nothing_for_each_topic(client):
    """A sign of life: no lock of a file, no lease is tried while there is nobody else."""
    topics = Topics(client, "topic", MANY)
    scheduler = client._core.store._present().scheduler
    vigils = [one for beat in scheduler._beats.values() for one in beat._functions]
    assert len(vigils) == MANY
    cost = counted(lambda: [vigil() for vigil in vigils])
    assert cost[LivenessMonitor._on_beat.__qualname__] == MANY
    assert sum(cost.values()) <= 40 * MANY
    assert not cost["flock"] + cost["FileLock.acquire"] + cost["Peers.is_alive"]
    topics.consumer.close()
