"""Counts of entries that no dispatch knows."""

from __future__ import annotations

import random

import pytest

from embeddedpulsar._engine.subscription.state.dispatch_state import RestingCounts
from embeddedpulsar.message_id import Position

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


def test_counts_come_in_the_order_of_entries_however_they_were_kept():
    """Beside a plain dict, with departures in any order, reads and acknowledgements between."""
    generator, counts, model = random.Random(7), RestingCounts(), dict[int, int]()
    for _ in range(300):
        added = {generator.randrange(500): generator.randrange(1, 9) for _ in range(generator.randrange(6))}
        counts.keep((7, entry, count) for entry, count in added.items())
        model |= added
        first = generator.randrange(500)
        last = first + generator.randrange(9)
        expected = [(entry, model.pop(entry)) for entry in sorted(model) if first <= entry <= last]
        assert counts.pop_range(7, first, last) == expected
        floor = generator.randrange(9) * generator.randrange(9)
        counts.drop_before(Position(7, floor))
        model = {entry: count for entry, count in model.items() if entry >= floor}
        assert counts.pack() == ([[7, *map(list, sorted(model.items()))]] if model else [])
        assert len(counts) == len(model) and all(counts.count(7, entry) == model[entry] for entry in model)
