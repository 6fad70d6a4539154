"""Keys in flight."""

from __future__ import annotations

from array import array

from embeddedpulsar._engine.subscription.state.entry_states import SETTLE, EntryStates, KeyHolds, moving


def states_of(*hashes: int) -> EntryStates:
    states = EntryStates(10, [0] * 256)
    states.add(10, 9 + len(hashes), None, array("I", hashes))
    return states


def test_a_key_is_held_until_its_last_entry_is_gone():
    """Keys of one slot count together."""
    holds, states = KeyHolds(), states_of(7, 7 + 65536, 8)
    holds.hold(states.slots(10, 3), 5)
    assert (holds.holder(7), holds.number(7), len(holds)) == (5, 2, 2)
    assert holds.release([7]) == []
    assert holds.release([7, 8]) == [7, 8]
    assert (holds.holder(7), holds.number(7), len(holds)) == (0, 0, 0)


def test_what_was_not_in_flight_frees_nothing():
    """Its slot is nobody's."""
    holds = KeyHolds()
    holds.deal([7, 9, 9], bytes((5, 6, 6)))
    assert holds.release([8]) == []
    assert holds.pack() == {7: (5, 1), 9: (6, 2)}


def test_a_snapshot_tells_what_is_in_flight():
    """From the states alone; on Shared nothing is held."""
    holds, states = KeyHolds(), states_of(7, 7, 8, 9)
    states.move(10, 11, moving(1, 5))
    states.move(12, 12, moving(1, 6))
    states.move(13, 13, SETTLE)
    holds.learn(states)
    assert holds.pack() == {7: (5, 2), 8: (6, 1)}
    without = EntryStates(0, [0] * 256)
    without.add(0, 1, None, None)
    without.move(0, 1, moving(1, 5))
    holds.learn(without)
    assert len(holds) == 2
