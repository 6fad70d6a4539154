"""What a consumer was assigned, in order, and may not have seen."""

from __future__ import annotations

import pytest

from embeddedpulsar._engine.subscription.state.dispatch_state import AssignedEntries


def test_assignments_that_touch_are_one_range():
    """Entries that follow each other need no room of their own."""
    assigned = AssignedEntries(4)
    assigned.assign(7, 0, 2, messages=3)
    assigned.assign(7, 3, 3, messages=5)
    assigned.assign(7, 5, 5, messages=1)
    assigned.assign(9, 6, 6, messages=1)
    assert list(assigned.ranges) == [(7, 0, 3), (7, 5, 5), (9, 6, 6)]
    assert (assigned.end, assigned.messages) == (6, 10)


@pytest.mark.parametrize(
    ("handed", "left", "start"),
    [
        (0, [(7, 0, 3), (8, 0, 1)], 0),
        (2, [(7, 2, 3), (8, 0, 1)], 2),
        (4, [(8, 0, 1)], 4),
        (5, [(8, 1, 1)], 5),
        (6, [], 6),
        (99, [], 6),
    ],
)
def test_what_was_handed_out_is_forgotten(handed: int, left: list[tuple[int, int, int]], start: int):
    """Entries are numbered in the order of assignment; what is forgotten is no more than there is."""
    assigned = AssignedEntries(4)
    assigned.assign(7, 0, 3, messages=4)
    assigned.assign(8, 0, 1, messages=2)
    assert list(assigned.behind(handed)) == left
    assigned.drop_handed(handed)
    assert (list(assigned.ranges), assigned.start, assigned.end) == (left, start, 6)
    assigned.drop_handed(0)
    assert assigned.start == start


def test_numbers_stay_when_entries_are_dropped():
    """What was given back before it was fetched leaves a hole, so that what follows keeps its number."""
    assigned = AssignedEntries(4)
    assigned.assign(7, 0, 9, messages=10)
    assigned.drop(7, [])
    assigned.drop(6, [1, 2])
    assigned.drop(7, [20])
    assert list(assigned.ranges) == [(7, 0, 9)]
    assigned.drop(7, [3, 4, 8])
    ranges = [one for one in assigned.behind(0) if one[0] == 7]
    assert ranges == [(7, 0, 2), (7, 5, 7), (7, 9, 9)]
    assert [one for one in assigned.behind(6) if one[0] == 7] == [(7, 6, 7), (7, 9, 9)]
    assigned.assign(8, 0, 0, messages=1)
    assigned.drop(7, [9])
    assigned.drop_handed(10)
    assert (list(assigned.ranges), assigned.end) == ([(8, 0, 0)], 11)


def test_clearing_keeps_the_numbers():
    """What is assigned afterwards is numbered on, and `messages` stays a sum."""
    assigned = AssignedEntries(4)
    assigned.assign(7, 0, 3, messages=8)
    assigned.clear()
    assigned.assign(7, 2, 2, messages=2)
    assert (assigned.start, assigned.end, assigned.messages, list(assigned.ranges)) == (4, 5, 10, [(7, 2, 2)])


def test_a_snapshot_comes_back():
    """With holes, counts and all."""
    assigned = AssignedEntries(9)
    assigned.assign(7, 0, 3, messages=8)
    assigned.drop(7, [1])
    assigned.drop_handed(1)
    assigned.is_blocked = True
    other = AssignedEntries.unpack(assigned.pack())
    assert other.pack() == assigned.pack()
    assert (other.code, other.start, other.end, other.is_blocked) == (9, 1, 4, True)


def test_a_snapshot_that_does_not_add_up_is_refused():
    """The numbers must be those of the ranges."""
    with pytest.raises(ValueError, match="do not add up"):
        AssignedEntries.unpack([4, 0, 5, 5, False, [[7, 0, 3]]])
