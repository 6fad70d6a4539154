"""Counts of entries that no dispatch knows."""

from __future__ import annotations

import pytest

from embeddedpulsar._engine.log.position import Position
from embeddedpulsar._engine.subscription.state.dispatch_state import RestingCounts

KEPT = [(7, 3, 2), (7, 9, 1), (9, 0, 300)]


def kept() -> RestingCounts:
    counts = RestingCounts()
    counts.keep(KEPT)
    return counts


@pytest.mark.parametrize(("first", "last"), [(0, 3), (3, 3), (3, 1 << 20)])
def test_what_is_read_is_given_up(first: int, last: int):
    """Runs short and long; what is not in them stays."""
    counts = kept()
    expected = [(entry, count) for ledger, entry, count in KEPT if ledger == 7 and first <= entry <= last]
    assert counts.pop_range(7, first, last) == expected
    assert counts.pop_range(7, first, last) == []
    assert counts.pop_range(8, 0, 9) == []
    assert len(counts) == len(KEPT) - len(expected)


@pytest.mark.parametrize(
    ("position", "left"),
    [((7, 3), 3), ((7, 4), 2), ((7, 10), 1), ((8, 0), 1), ((9, 0), 1), ((9, 1), 0), ((10, -1), 0)],
)
def test_what_is_acknowledged_is_dropped(position: tuple[int, int], left: int):
    """Everything before a position, whole ledgers included."""
    counts = kept()
    counts.drop_before(Position(*position))
    assert len(counts) == left


def test_snapshots():
    """The same contents give the same list, and nonsense is refused."""
    packed = kept().pack()
    other = RestingCounts()
    other.keep(reversed(KEPT))
    assert other.pack() == packed == RestingCounts.unpack(packed).pack()
    for wrong in ([[-1, [0, 1]]], [[7, [0, 0]]], [[7, [-1, 1]]], [[7, 5]]):
        with pytest.raises((ValueError, TypeError)):
            RestingCounts.unpack(wrong)
