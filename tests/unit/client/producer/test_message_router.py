"""Routers, beside models that remember everything and know nothing better."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format.entry import partition_hash
from embeddedpulsar.client.arguments import NO_OPTIONS, Options
from embeddedpulsar.client.producer.partitioned_publisher import (
    CustomRouter,
    RoundRobinByBatch,
    RoundRobinByMessage,
    Router,
    make_router,
    random_below,
)
from embeddedpulsar.enums import HashingScheme, PartitionsRoutingMode
from embeddedpulsar.exceptions import UnknownError

JAVA = HashingScheme.JavaStringHash
SINGLE, ROUND_ROBIN = PartitionsRoutingMode.UseSinglePartition, PartitionsRoutingMode.RoundRobinDistribution

counts = st.integers(1, 7)
keys = st.one_of(st.none(), st.text("abc", min_size=1, max_size=3))


def keyed(key: str | None) -> Options | None:
    """Options with a key, or none."""
    return None if key is None else (None, key, None, 0, 0, 0, False)


def router(mode: PartitionsRoutingMode, batching: bool, partitions: int, first: int) -> Router:
    """The router of a producer whose first partition is not left to chance."""
    config: Any = SimpleNamespace(
        message_router=None, routing_mode=mode, batching=batching, hashing_scheme=JAVA
    )
    return make_router(config, partitions, lambda limit: first % limit)


@given(st.sampled_from([(ROUND_ROBIN, False), (ROUND_ROBIN, True), (SINGLE, False)]), counts, st.data())
def test_keys_go_by_their_hash_in_every_mode(kind, partitions, data):
    """Whatever was sent before, and however often the router is asked."""
    made = router(*kind, partitions, data.draw(counts))
    for key in data.draw(st.lists(keys, max_size=20)):
        chosen = made.route(b"x", keyed(key))
        assert 0 <= chosen < partitions
        if key is not None:
            assert chosen == partition_hash(JAVA)(key) % partitions


@given(counts, counts, st.lists(keys, max_size=30))
def test_round_robin_by_message(partitions, first, sent):
    """The messages without a key visit the partitions in turn; those with one take no turn."""
    made = router(ROUND_ROBIN, False, partitions, first)
    turns = [made.route(b"x", keyed(key)) for key in sent]
    visited = [turn for turn, key in zip(turns, sent, strict=True) if key is None]
    assert visited == [(first % partitions + i) % partitions for i in range(len(visited))]


@given(counts, counts, st.lists(st.one_of(st.just("send"), st.integers(0, 6)), max_size=40))
def test_round_robin_by_batch(partitions, first, steps):
    """The turn passes on when a batch of the partition that has it leaves, and at no other time."""
    made = router(ROUND_ROBIN, True, partitions, first)
    expected = first % partitions
    for step in steps:
        if step == "send":
            assert made.route(b"x", None) == made.current == expected
            assert made.route(b"x", NO_OPTIONS) == expected
        else:
            made.batch_left(step)
            if step == expected:
                expected = (expected + 1) % partitions


@given(counts, counts, st.lists(st.integers(0, 6), max_size=10))
def test_a_single_partition_is_for_life(partitions, first, left):
    """Batches that leave change nothing, nor does growth."""
    made = router(SINGLE, True, partitions, first)
    for partition in left:
        made.batch_left(partition)
    made.grow(partitions + 3)
    assert made.route(b"x", None) == made.current == first % partitions


@given(counts, counts, st.integers(0, 5), st.booleans())
def test_growth(partitions, first, more, batching):
    """From then on keys are divided among all partitions, and the turn comes to the new ones."""
    made = router(ROUND_ROBIN, batching, partitions, first)
    made.of_key("abc")  # remembered for the smaller number
    made.grow(partitions + more)
    assert made.of_key("abc") == partition_hash(JAVA)("abc") % (partitions + more)
    visited = []
    for _ in range(2 * (partitions + more)):
        visited.append(made.route(b"x", None))
        made.batch_left(visited[-1])
    assert set(visited) == set(range(partitions + more))
    assert all(after == (before + 1) % (partitions + more) for before, after in pairwise(visited))


def test_the_first_partition_is_random():
    """Every partition is drawn, and nothing else."""
    assert {random_below(3) for _ in range(200)} == {0, 1, 2}


def test_a_custom_router_is_asked_about_everything():
    """It sees payload and options, and its answer becomes an int."""
    seen = []

    def choose(message: Any, partitions: int) -> Any:
        seen.append((message.value(), message.partition_key(), message.ordering_key(), message.properties()))
        return "1" if partitions == 2 else 2.9

    made = CustomRouter(2, JAVA, choose)
    assert made.route(b"x", None) == 1
    made.grow(3)
    assert made.route(b"y", ({"a": "b"}, "k", "o", 0, 0, 0, False)) == 2
    assert seen == [(b"x", "", "", {}), (b"y", "k", "o", {"a": "b"})]


@pytest.mark.parametrize("answer", [-1, 2, 10**9])
def test_an_answer_that_is_no_partition(answer):
    """UnknownError, which names the number."""
    with pytest.raises(UnknownError, match=str(answer)):
        CustomRouter(2, JAVA, lambda message, partitions: answer).route(b"x", None)


def test_what_a_router_sees_of_a_message():
    """All that is known before it is sent; the rest is empty."""
    seen = []
    options: Options = (None, "k", None, 7, 5, 0, True)
    CustomRouter(1, JAVA, lambda message, partitions: seen.append(message) or 0).route(b"", options)
    (message,) = seen
    assert (message.data(), message.has_null_value(), message.event_timestamp()) == (b"", True, 5)
    assert (message.sequence_id(), message.publish_timestamp(), message.redelivery_count()) == (7, 0, 0)
    assert (message.topic_name(), message.producer_name(), message.schema_version()) == ("", "", "")
    assert str(message.message_id()) == "(-1,-1,-1,-1)"


def test_kinds():
    """Each mode has its router."""
    assert type(router(SINGLE, True, 2, 0)) is Router
    assert type(router(ROUND_ROBIN, True, 2, 0)) is RoundRobinByBatch
    assert type(router(ROUND_ROBIN, False, 2, 0)) is RoundRobinByMessage
