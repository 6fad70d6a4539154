"""Pushed filters: what they may prune, against what they mean."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

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

from embeddedpulsar.spark.filters import Pruning, prune
from embeddedpulsar.topic_name import TopicName

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
                EqualTo(("__key",), b"k"),
                EqualTo(("a", "b"), 1),
                Not(EqualTo(("__topic",), "t")),
                StringContains(("__topic",), "t"),
                EqualTo(("__publishTime",), None),
            ]
        )
        == Pruning()
    )
