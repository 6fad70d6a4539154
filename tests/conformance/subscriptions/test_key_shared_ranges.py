"""Key_Shared, AUTO_SPLIT: how the hash range is divided when consumers come and go; the worked examples.

Whoever gets a key tells who owns its slot: each slot that matters has a key here that hashes into it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from functools import cache

import mmh3
import pytest

from embeddedpulsar import Client, ConsumerType
from tests.conformance.pool import acknowledge_all, take_turns, write_settings

KEY_SHARED = ConsumerType.KeyShared


def slot_of(key: str) -> int:
    """The slot of a key: Murmur3 modulo 65536."""
    return mmh3.hash(key.encode(), 0, signed=False) % 65536


def key_in(first: int, last: int) -> str:
    """A key whose slot is within ``first..last``."""
    return next(key for key in map(str, itertools.count()) if first <= slot_of(key) <= last)


EDGES = [0, 8192, 16384, 24576, 32768, 40960, 49152, 57344]
KEYS = [key_in(edge + 1, edge + 8192) for edge in EDGES]  # one in each eighth of the range


class Group:
    """The consumers of one subscription, by name."""

    def __init__(self, topic) -> None:
        self.topic = topic
        self.producer = topic.producer()
        self.consumers: dict[str, object] = {}

    def add(self, name: str) -> None:
        """A consumer comes."""
        self.consumers[name] = self.topic.consumer(
            consumer_type=KEY_SHARED, consumer_name=name, ack_group_time_ms=0
        )

    def remove(self, name: str) -> None:
        """A consumer leaves."""
        self.consumers.pop(name).close()

    def owners(self, keys=KEYS) -> str:
        """Who gets one message of each key, by the last letter of the consumers' names."""
        for key in keys:
            self.producer.send(b"", partition_key=key)
        found = {}
        taken = take_turns(list(self.consumers.values()))
        for (name, consumer), messages in zip(self.consumers.items(), taken, strict=True):
            found.update({message.partition_key(): name[-1] for message in messages})
            acknowledge_all(consumer, messages)
        return "".join(found[key] for key in keys)


@pytest.fixture
def group(topic):
    """A Key_Shared subscription without consumers."""
    return Group(topic)


def test_the_documented_key():
    """``Order-3459134`` has the hash 3112179635 and so the slot 6067."""
    assert mmh3.hash("Order-3459134", 0, signed=False) == 3112179635
    assert slot_of("Order-3459134") == 6067


def test_newcomers_take_the_lower_half_of_the_largest_range(group):
    """C1; then C2 C1; then C3 C2 C1; then C3 C2 C4 C1, from the lowest slot to the highest; a fifth takes the
    lower half of the first of the largest."""
    expected = {"C1": "11111111", "C2": "22221111", "C3": "33221111", "C4": "33224411", "C5": "53224411"}
    for name, owners in expected.items():
        group.add(name)
        assert group.owners() == owners


def test_ranges_of_those_who_leave_go_to_the_right(group):
    """Of C3 C2 C4 C1: without C4 its range is C1's; without C1, who had the end, that is C2's."""
    for name in ("C1", "C2", "C3", "C4"):
        group.add(name)
    group.remove("C4")
    assert group.owners() == "33221111"
    group.remove("C1")
    assert group.owners() == "33222222"
    group.remove("C3")
    assert group.owners() == "22222222"


def test_the_documented_key_is_the_third_consumers(group):
    """With four consumers ``Order-3459134`` comes to C3, whose range is (0, 16384]."""
    for name in ("C1", "C2", "C3", "C4"):
        group.add(name)
    assert group.owners(["Order-3459134"]) == "3"


def test_bounds_belong_to_the_lower_range(group):
    """A range includes its upper bound: of two consumers, slot 32768 is C2's and 32769 is C1's."""
    group.add("C1")
    group.add("C2")
    assert group.owners([key_in(32768, 32768), key_in(32769, 32769)]) == "21"


def test_all_keys_find_a_consumer(group):
    """Whatever their number, the consumers have the whole range among them, each part of it."""
    keys = [str(number) for number in range(150)]
    for number in range(9):
        group.add(f"C{number}")
    assert set(group.owners(keys)) == set("012345678")


@cache
def ring_of(names: tuple[str, ...], points: int) -> list[tuple[int, str]]:
    """The points ``hash(name + number)`` of all consumers, numbers from 1, on the ring of 31-bit hashes."""
    return sorted(
        (mmh3.hash(f"{name}{number}".encode(), 0, signed=False) & 0x7FFFFFFF, name)
        for name in names
        for number in range(1, points + 1)
    )


def ring_owner(key: str, names: list[str], points: int = 100) -> str:
    """The documented rule: the consumer of the next point on the ring."""
    ring = ring_of(tuple(names), points)
    at = bisect_left(ring, (mmh3.hash(key.encode(), 0, signed=False) & 0x7FFFFFFF, ""))
    return ring[at % len(ring)][1]


@pytest.mark.parametrize("points", [None, 3])
def test_consistent_hashing(store_path, points):
    """With subscriptionKeySharedUseConsistentHashing=true each consumer has 100 points on a ring of hashes,
    or as many as subscriptionKeySharedConsistentHashingReplicaPoints says."""
    settings = {"subscriptionKeySharedUseConsistentHashing": True}
    if points is not None:
        settings["subscriptionKeySharedConsistentHashingReplicaPoints"] = points
    write_settings(store_path, **settings)
    keys = [f"key-{number}" for number in range(120)]
    names = ["orders-1", "orders-2", "orders-3"]
    with Client(store_path) as client:
        group = Group(_Named(client))
        for count in range(1, 4):
            group.add(names[count - 1])
            expected = "".join(ring_owner(key, names[:count], points or 100)[-1] for key in keys)
            assert group.owners(keys) == expected
        group.remove("orders-2")
        assert group.owners(keys) == "".join(
            ring_owner(key, ["orders-1", "orders-3"], points or 100)[-1] for key in keys
        )


def test_consistent_hashing_takes_a_little_from_everyone(store_path):
    """A fourth consumer takes keys of all three; none of theirs changes hands otherwise."""
    write_settings(store_path, subscriptionKeySharedUseConsistentHashing=True)
    keys = [f"key-{number}" for number in range(150)]
    with Client(store_path) as client:
        group = Group(_Named(client))
        for number in (1, 2, 3):
            group.add(f"C{number}")
        before = group.owners(keys)
        group.add("C4")
        after = group.owners(keys)
    moved = [old for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == set("123")
    assert after.count("4") == len(moved)


class _Named:
    """`Topic` for a client of one's own."""

    def __init__(self, client) -> None:
        self._client = client

    def producer(self):
        """A producer of the topic."""
        return self._client.create_producer("topic")

    def consumer(self, **options):
        """A consumer of the subscription."""
        return self._client.subscribe("topic", "sub", **options)
