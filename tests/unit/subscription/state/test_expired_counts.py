"""Unit tests of embeddedpulsar._engine.subscription.state.replica."""

from __future__ import annotations

from typing import Any

import pytest

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.subscription.state.replica import (
    NOTHING_EXPIRED,
    ExpiredCounts,
    SubscriptionState,
    adopt_summary,
    checkpoint_of,
    decode_snapshot,
    encode_snapshot,
    pack_summary,
)


def made() -> SubscriptionState:
    """A state in which nothing expired."""
    state = SubscriptionState()
    state.apply(record.Create("s", 1, 7, -1))
    return state


def test_the_rate_is_that_of_the_last_minute():
    """To the millisecond; the total keeps all."""
    counts = NOTHING_EXPIRED.plus(60, 1_000).plus(120, 31_000)
    assert [counts.a_second(now_ms) for now_ms in (31_000, 60_999, 61_000, 90_999, 91_000)] == [3, 3, 2, 2, 0]
    assert counts.plus(6, 91_000) == ExpiredCounts(186, 91_000, ((91_000, 6),))


def test_many_expiries_in_a_minute_stay_small():
    """They are added up; none is lost."""
    counts = NOTHING_EXPIRED
    for at_ms in range(1000):
        counts = counts.plus(3, at_ms)
    assert len(counts.lately) == 60
    assert counts.total == 3000 and counts.a_second(1000) == 50.0
    assert len(counts.plus(1, 10_000_000).lately) == 1


def test_they_are_in_snapshots_and_summaries_and_not_compared():
    """A state without any has the same bytes as before there were such counts."""
    state, other = made(), made()
    before = encode_snapshot(state), pack_summary(state)
    assert b"expired" not in b"".join(before)
    state.apply(record.Expired(5, 1000))
    assert (
        decode_snapshot(encode_snapshot(state)).expired
        == state.expired
        == ExpiredCounts(5, 1000, ((1000, 5),))
    )
    assert adopt_summary(other, pack_summary(state))
    assert other.expired == state.expired
    state.expired = NOTHING_EXPIRED
    assert checkpoint_of(state) == checkpoint_of(other)
    assert adopt_summary(other, before[1]) is False  # it is older


@pytest.mark.parametrize(
    "packed", [[1, 2], [1, 2, [[1]]], [-1, 2, []], [1, 2, [[1, "x"]]], [True, 2, []], None]
)
def test_what_is_none(packed: Any):
    """It is refused, as other distorted snapshots are."""
    with pytest.raises((TypeError, ValueError)):
        ExpiredCounts.unpack(packed)
