"""Waiting entries by key, and by consumer."""

from __future__ import annotations

from array import array
from functools import partial
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.subscription.state.entry_states import (
    FIRST_OWNER,
    WAITING,
    EntryStates,
    WaitingKeys,
    moving,
)
from tests.strikes import strike

HASHES = [7, 7 + 65536, 9, 11]


class Site:
    """Entries of ledger 1, in the states and in what is tested."""

    def __init__(self, hashes: list[int] | None, number: int = 0) -> None:
        self.states = EntryStates(0, [0] * 256)
        self.states.add(0, (number or len(hashes or ())) - 1, None, hashes and array("I", hashes))
        self.states.move(0, self.states.end, moving(WAITING, FIRST_OWNER))
        self.waiting = WaitingKeys({1: self.states})

    def add(self, *entries: int) -> None:
        self.states.move_some(entries, moving(FIRST_OWNER, WAITING))
        self.waiting.add(1, self.states, entries)

    def remove(self, *entries: int) -> None:
        self.states.move_some(entries, moving(WAITING, FIRST_OWNER))
        self.waiting.remove(1, self.states, entries)

    def lane(self, consumer: int, divisor: int, generation: int) -> list[tuple[int, int]]:
        """Ids and hashes of the waiting entries of a consumer."""
        found = self.waiting.of_consumer(consumer, lambda one: one % divisor, generation)
        return [(entry[1], key_hash) for entry, key_hash in found]


def test_without_keys_there_is_nothing():
    """On Shared."""
    site = Site(None, 4)
    site.add(0, 1)
    site.remove(0)
    waiting = site.waiting
    assert (len(waiting), waiting.number_of(7), waiting.waits_in(7)) == (0, 0, False)


def test_a_slot_is_waited_for_by_all_its_keys():
    """Two hashes share their low bits."""
    site = Site([7, 7 + 65536, 7])
    site.add(0, 1, 2)
    assert (site.waiting.number_of(7), site.waiting.number_of(9)) == (2, 0)
    site.remove(0, 2)
    assert site.waiting.waits_in(7) and not site.waiting.waits_in(9)
    site.remove(1)
    assert not site.waiting.waits_in(7) and not len(site.waiting)


def test_while_others_commands_are_applied_nothing_is_looked_up():
    """Whether a key is free is asked for each of them; what follows from it only for those made here."""
    site = Site([7, 9])
    site.waiting.is_replay = True
    assert not site.waiting.waits_in(9)
    site.add(0)
    assert site.waiting.waits_in(9)
    site.waiting.is_replay = False
    assert not site.waiting.waits_in(9)


def test_changes_that_nobody_asks_for_take_no_room():
    """They are found in the states later on."""
    site = Site([3, 3])
    site.add(0, 1)
    assert site.lane(1, 2, 0) == [(0, 3), (1, 3)]
    for _ in range(1000):
        site.remove(0)
        site.add(0)
        assert len(site.waiting._notes) < 80
    site.remove(0)
    assert site.lane(1, 2, 0) == [(1, 3)]


@given(
    st.lists(st.tuples(st.integers(0, 19), st.integers(0, 2)), max_size=80), st.integers(1, 60), st.randoms()
)
def test_lanes_are_those_of_a_simple_model(steps: list[tuple[int, int]], every: int, chance):
    """Whatever comes and goes, however the keys are divided, and however seldom it is asked."""
    hashes = [chance.choice(HASHES) for _ in range(20)]
    site, there, divisor = Site(hashes), set[int](), 2
    waiting = site.waiting
    for step, (entry, kind) in enumerate(steps):
        if kind == 2:
            divisor = 2 + step % 3
        elif entry in there:
            there.remove(entry)
            site.remove(entry)
        else:
            there.add(entry)
            site.add(entry)
        assert len(waiting) == len(there)
        if step % every:
            continue
        by_hash = {one: sorted(each for each in there if hashes[each] == one) for one in HASHES}
        for consumer in range(divisor):
            expected = [(each, hashes[each]) for each in sorted(there) if hashes[each] % divisor == consumer]
            assert site.lane(consumer, divisor, divisor) == expected
        for one in HASHES:
            assert waiting.number_of(one) == len(by_hash[one])
        assert waiting.waits_in(7) == bool(by_hash[7] or by_hash[7 + 65536])


def test_an_interrupt_takes_no_change_in_twice():
    """An interrupt at any instruction, in the middle of a question: the next one has the right answer."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    for index in count():
        site = Site([7, 9, 11, 7, 9, 11])
        ask = partial(site.lane, 1, 2, generation=1)
        site.add(0, 1, 2)
        assert ask() == [(0, 7), (1, 9), (2, 11)]
        site.add(3, 4)
        site.remove(1)
        try:
            was_struck = strike(ask, interrupt, index, "_engine/subscription/state")
        except KeyboardInterrupt:
            was_struck = True
        site.add(5)
        assert ask() == [(0, 7), (2, 11), (3, 7), (4, 9), (5, 11)], index
        assert [site.waiting.number_of(key_hash) for key_hash in (7, 9, 11)] == [2, 1, 2]
        if not was_struck:
            break
    assert index > 20
