"""Pushed filters: what they may prune, against what they mean."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from embeddedpulsar.spark.log_plan import Pruning, Task, plan_tasks, prune
from embeddedpulsar.spark.options import parse_options
from embeddedpulsar.topic_name import TopicName
from tests.support.log_files import write_topic

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARE = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}


@given(
    filters=st.lists(st.tuples(st.sampled_from(list(COMPARE)), st.integers(-3000, 9000)), max_size=4),
    published=st.integers(0, 8),
)
def test_a_match_is_never_pruned(filters, published):
    """Whatever the filters and however fine their times: an entry that satisfies all of them is read."""
    pushed = [kind(("__publishTime",), EPOCH + timedelta(microseconds=us)) for kind, us in filters]
    pruning = prune(pushed)
    satisfied = all(COMPARE[kind](published * 1000, us) for kind, us in filters)
    kept = (pruning.start_ms is None or published >= pruning.start_ms) and (
        pruning.end_ms is None or published < pruning.end_ms
    )
    assert kept or not satisfied
    if len(filters) <= 1:
        assert kept == satisfied


def test_topics_and_partitions():
    """Equality, membership and prefixes decide which logs are read."""
    orders = TopicName.parse("orders-partition-1")
    full = orders.full
    for pushed, admitted in (
        ([EqualTo(("__topic",), full)], True),
        ([EqualTo(("__topic",), "x")], False),
        ([In(("__topic",), ("x", full))], True),
        ([In(("__topic",), ("x", full)), EqualTo(("__topic",), "x")], False),
        ([StringStartsWith(("__topic",), "persistent://public/default/ord")], True),
        ([StringStartsWith(("__topic",), "non")], False),
        ([EqualTo(("__partition",), 1)], True),
        ([In(("__partition",), (0, 2))], False),
    ):
        assert prune(pushed).admits(orders) is admitted, pushed


def test_other_filters_prune_nothing():
    """What is not understood, or about another column, is left to Spark."""
    assert (
        prune(
            [
                IsNotNull(("__publishTime",)),
                EqualTo(("__key",), "k"),
                In(("__key",), (b"k", 1)),
                GreaterThan(("__key",), b"k"),
                EqualTo(("a", "b"), 1),
                Not(EqualTo(("__topic",), "t")),
                StringContains(("__topic",), "t"),
                EqualTo(("__publishTime",), None),
            ]
        )
        == Pruning()
    )


@given(
    filters=st.lists(
        st.tuples(
            st.sampled_from(["__ledgerId", "__entryId"]), st.sampled_from(list(COMPARE)), st.integers(-1, 12)
        ),
        max_size=4,
    ),
    members=st.lists(st.integers(0, 12), max_size=3),
)
def test_places_that_match_are_never_pruned(tmp_path_factory, filters, members):
    """Against brute force over three ledgers: what satisfies all filters on places is in the plan."""
    root = tmp_path_factory.getbasetemp() / "places"
    if not root.exists():
        write_topic(root, "t", [2] * 20, per_ledger=8)
    pushed = [kind((column,), value) for column, kind, value in filters]
    if members:
        pushed.append(In(("__entryId",), tuple(members)))
    options = parse_options({"path": str(root), "topic": "t"})

    def places(tasks: list[Task]) -> set[tuple[int, int]]:
        ranges = [piece for task in tasks for piece in task]
        assert all(piece.size > 0 for piece in ranges)
        return {
            (piece.ledger_id, entry)
            for piece in ranges
            for entry in range(piece.first_entry, piece.end_entry)
        }

    every = places(plan_tasks(options, Pruning()))
    assert len(every) == 20
    wanted = {
        place
        for place in every
        if all(COMPARE[kind](place[column == "__entryId"], value) for column, kind, value in filters)
        and (not members or place[1] in members)
    }
    kept = places(plan_tasks(options, prune(pushed)))
    assert wanted <= kept <= every
    if not members:
        assert kept == wanted


def test_keys():
    """All filters hold: what is common to them is left; null is no key."""
    assert prune([EqualTo(("__key",), bytearray(b"k"))]).wanted.keys == {b"k"}
    assert prune([In(("__key",), (b"a", b"b", None)), In(("__key",), (b"b", b"c"))]).wanted.keys == {b"b"}
    assert prune([EqualTo(("__key",), b"a"), EqualTo(("__key",), b"b")]).wanted.keys == frozenset()


def test_event_times():
    """In whole milliseconds, which is what messages have."""
    at = EPOCH + timedelta(microseconds=5500)
    found = prune([GreaterThan(("__eventTime",), at), LessThanOrEqual(("__eventTime",), at)]).wanted
    assert (found.start_ms, found.end_ms) == (6, 6)
    assert prune([EqualTo(("__eventTime",), "1970")]).wanted == Pruning().wanted


def test_what_is_pruned_is_counted(tmp_path, caplog):
    """One line of the log says how much filters spare; reads without filters say nothing."""
    write_topic(tmp_path, "t", [1] * 20, per_ledger=8)
    options = parse_options({"path": str(tmp_path), "topic": "t"})
    with caplog.at_level("INFO", logger="embeddedpulsar.spark"):
        plan_tasks(options, Pruning())
        assert not caplog.text
        plan_tasks(options, prune([GreaterThan(("__ledgerId",), 7), LessThan(("__entryId",), 3)]))
        plan_tasks(options, prune([EqualTo(("__key",), b"k")]))
    assert "filters leave 6 of 20 entries to be read; 14 are pruned" in caplog.text
    assert "filters leave 0 of 20 entries to be read; 20 are pruned" in caplog.text
