"""Waiting entries by key, and by consumer."""

from __future__ import annotations

from array import array
from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar.subscription.state.entry_states import EntryStates
from embeddedpulsar.subscription.state.waiting_keys import WaitingKeys

HASHES = [7, 7 + 65536, 9, 11]


def states_of(hashes: list[int]) -> EntryStates:
    states = EntryStates(0, [0] * 256)
    states.add(0, len(hashes) - 1, None, array("I", hashes))
    return states


def firsts(waiting: WaitingKeys, consumer: int, divisor: int, generation: int) -> list[tuple[int, int]]:
    """Ids and hashes of the first entries of a consumer's keys."""
    with closing(waiting.in_order(consumer, lambda key_hash: key_hash % divisor, generation)) as found:
        return [(entry[1], key_hash) for entry, key_hash in found]


def test_without_keys_there_is_nothing():
    """On Shared."""
    waiting, states = WaitingKeys(), EntryStates(0, [0] * 256)
    states.add(0, 3, None, None)
    waiting.add(1, states, [0, 1])
    waiting.remove(1, states, [0])
    assert (len(waiting), waiting.entries_of(7), waiting.waits_in(7)) == (0, [], False)


def test_a_slot_is_waited_for_by_all_its_keys():
    """Two hashes share their low bits."""
    waiting, states = WaitingKeys(), states_of([7, 7 + 65536, 7])
    waiting.add(1, states, [0, 1, 2])
    assert 7 in waiting and 9 not in waiting
    waiting.remove(1, states, [0, 2])
    assert waiting.waits_in(7)
    waiting.remove(1, states, [1])
    assert not waiting.waits_in(7) and not len(waiting)


def test_going_through_them_changes_nothing():
    """Also if it is given up half way."""
    waiting, states = WaitingKeys(), states_of([3, 5, 3, 4])
    waiting.add(1, states, range(4))
    with closing(waiting.in_order(1, lambda key_hash: key_hash % 2, 0)) as found:
        assert next(found) == ((1, 0), 3)
    assert firsts(waiting, 1, 2, 0) == [(0, 3), (1, 5)]
    assert firsts(waiting, 0, 2, 0) == [(3, 4)]
    assert firsts(waiting, 7, 2, 0) == []


def test_stale_firsts_do_not_pile_up():
    """A key whose first entry comes and goes takes no more and more room."""
    waiting, states = WaitingKeys(), states_of([3, 3])
    waiting.add(1, states, [0, 1])
    firsts(waiting, 1, 2, 0)
    for _ in range(1000):
        waiting.remove(1, states, [0])
        waiting.add(1, states, [0])
        if len(waiting._lanes[1]) > 200:
            assert firsts(waiting, 1, 2, 0) == [(0, 3)]
    assert len(waiting._lanes[1]) < 210
    assert firsts(waiting, 1, 2, 0) == [(0, 3)]


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 2)), max_size=80), st.randoms())
def test_firsts_are_those_of_a_simple_model(steps: list[tuple[int, int]], chance):
    """Whatever comes and goes, and however the keys are divided."""
    hashes = [chance.choice(HASHES) for _ in range(20)]
    waiting, states, there, divisor = WaitingKeys(), states_of(hashes), set(), 2
    for generation, (entry, kind) in enumerate(steps):
        if kind == 2:
            divisor = 2 + generation % 3
        elif entry in there:
            there.remove(entry)
            waiting.remove(1, states, [entry])
        else:
            there.add(entry)
            waiting.add(1, states, [entry])
        by_hash = {one: sorted(each for each in there if hashes[each] == one) for one in HASHES}
        for consumer in range(divisor):
            expected = sorted(
                (each[0], one) for one, each in by_hash.items() if each and one % divisor == consumer
            )
            assert firsts(waiting, consumer, divisor, divisor) == expected
        for one in HASHES:
            assert waiting.entries_of(one) == [(1, each) for each in by_hash[one]]
            assert (one in waiting) == bool(by_hash[one])
        assert waiting.waits_in(7) == bool(by_hash[7] or by_hash[7 + 65536])
        assert len(waiting) == len(there)
