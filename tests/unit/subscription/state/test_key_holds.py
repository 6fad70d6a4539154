"""Keys in flight."""

from __future__ import annotations

from array import array

from embeddedpulsar.subscription.state.entry_states import SETTLE, EntryStates, moving
from embeddedpulsar.subscription.state.waiting_keys import KeyHolds


def states_of(*hashes: int) -> EntryStates:
    states = EntryStates(10, [0] * 256)
    states.add(10, 9 + len(hashes), None, array("I", hashes))
    return states


def test_a_key_is_held_until_its_last_entry_is_gone():
    """Keys of one slot count together."""
    holds, states = KeyHolds(), states_of(7, 7 + 65536, 8)
    holds.hold(states, [10, 11, 12], 5)
    assert (holds.holder(7), holds.number(7), len(holds)) == (5, 2, 2)
    assert holds.release(states, [(10, 5)]) == []
    assert holds.release(states, [(11, 5), (12, 5)]) == [7, 8]
    assert (holds.holder(7), holds.number(7), len(holds)) == (0, 0, 0)


def test_what_was_not_in_flight_frees_nothing():
    """Waiting and delayed entries are nobody's."""
    holds, states = KeyHolds(), states_of(7)
    holds.hold(states, [10], 5)
    assert holds.release(states, [(10, 1), (10, 2), (10, 0)]) == []
    assert holds.number(7) == 1


def test_without_keys_nothing_is_held():
    """On Shared."""
    holds, states = KeyHolds(), EntryStates(0, [0] * 256)
    states.add(0, 1, None, None)
    holds.hold(states, [0], 5)
    assert (holds.release(states, [(0, 5)]), len(holds)) == ([], 0)


def test_a_snapshot_tells_what_is_in_flight():
    """From the states alone."""
    holds, states = KeyHolds(), states_of(7, 7, 8, 9)
    states.move(10, 11, moving(1, 5))
    states.move(12, 12, moving(1, 6))
    states.move(13, 13, SETTLE)
    holds.learn(states)
    assert holds.pack() == {7: 5 << 32 | 2, 8: 6 << 32 | 1}
