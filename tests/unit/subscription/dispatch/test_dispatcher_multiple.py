"""Shared: priorities, permits, small backlogs, limits."""

from __future__ import annotations

import pytest

from embeddedpulsar._engine.subscription.dispatch.dispatch_rules import Claim, FreshEntry
from embeddedpulsar._engine.subscription.dispatch.dispatchers import CLAIM_DISPATCHERS
from embeddedpulsar._engine.subscription.state.sticky_key_selector import HASH_RANGE
from embeddedpulsar.enums import ConsumerType
from tests.unit.subscription.state.dispatch_states import LEDGER, StateSite, entries


def sizes(found: dict[int, list[tuple[int, int]]]) -> dict[int, int]:
    """How many entries each consumer got."""
    return {one: sum(last - first + 1 for first, last in ranges) for one, ranges in found.items()}


def test_lower_priorities_are_served_when_better_ones_are_full():
    """The documented example: C1 to C3 of priority 0 have 2, 1 and 1 permits, C4 and C5 of priority 1 have 2
    and 1. Seven messages go 2, 1, 1, 2, 1, whoever of the last two asks first."""
    for asks_first in (3, 4):
        site = StateSite()
        ids = [site.join(f"C{i}", priority) for i, priority in enumerate((0, 0, 0, 1, 1), 1)]
        granted = dict(zip(ids, (2, 1, 1, 2, 1), strict=True))
        log = entries(0, 6)
        got = sizes(site.claim(ids[asks_first], log, room=9, granted=granted))
        for one in (ids[3], ids[4], ids[3]):
            more = sizes(site.claim(one, log[sum(got.values()) :], room=9, granted=granted))
            got = {each: got.get(each, 0) + more.get(each, 0) for each in ids}
        assert [got[one] for one in ids] == [2, 1, 1, 2, 1]


def test_better_levels_take_turns():
    """One entry for each in turn, as C1 C2 C3 C1 has it."""
    site = StateSite()
    ids = [site.join(priority=priority) for priority in (0, 0, 0, 1)]
    found = site.claim(ids[3], entries(0, 3), granted={ids[0]: 2, ids[1]: 1, ids[2]: 1, ids[3]: 0})
    assert found == {ids[0]: [(0, 0), (3, 3)], ids[1]: [(1, 1)], ids[2]: [(2, 2)]}


def test_a_small_backlog_is_spread():
    """Who asks takes its part of what there is, not all it has room for; who is full gets no part."""
    site = StateSite()
    ids = [site.join() for _ in range(4)]
    granted = {ids[0]: 100, ids[1]: 100, ids[2]: 100, ids[3]: 0}
    assert sizes(site.claim(ids[0], entries(0, 9), granted=granted)) == {ids[0]: 4}
    assert sizes(site.claim(ids[1], entries(4, 9), granted=granted)) == {ids[1]: 2}


def test_what_came_back_goes_first_in_order():
    """Before fresh entries, by position."""
    site = StateSite()
    one, other = site.join(), site.join()
    site.claim(one, entries(0, 5), granted={one: 6})
    site.nack(one, 4, 1, handed=6)
    assert site.claim(other, entries(6, 7), granted={other: 99}) == {other: [(1, 1), (4, 4), (6, 7)]}


def test_a_batch_goes_whole():
    """Permits may be overdrawn by the rest of a batch, and no more."""
    site = StateSite()
    one = site.join()
    assert site.claim(one, entries(0, 5, messages=4), granted={one: 5}) == {one: [(0, 1)]}
    assert site.dispatch.holds(one) == 8


def test_room_is_that_of_the_claim():
    """Not what was granted to it once."""
    site = StateSite()
    one = site.join()
    assert site.claim(one, entries(0, 5), room=2) == {one: [(0, 1)]}


def test_nobody_gets_more_than_it_may_hold():
    """The limit of a consumer cuts its share, and it is blocked until it has half."""
    site = StateSite()
    one = site.join(max_unacked=4)
    assert site.claim(one, entries(0, 9)) == {one: [(0, 3)]}
    site.ack(one, 0)
    assert site.claim(one, entries(4, 9)) == {}
    site.ack(one, 1)
    assert site.claim(one, entries(4, 9)) == {one: [(4, 5)]}


def test_all_together_get_no_more_than_they_may_hold():
    """The limit of the subscription holds for what came back, for fresh entries, and for better levels."""
    site = StateSite()
    better = site.join(priority=0, max_unacked_in_all=5)
    one = site.join(priority=1, max_unacked_in_all=5)
    site.read(0, 1)
    found = site.claim(one, entries(2, 9), granted={better: 3, one: 100})
    assert found == {better: [(0, 2)], one: [(3, 4)]}
    assert site.claim(one, entries(5, 9)) == {}
    site.ack(one, 3, 4)
    assert site.claim(one, entries(5, 9)) == {}
    site.ack(better, 0)
    assert site.claim(one, entries(5, 9)) == {better: [(5, 7)]}


def test_delayed_entries_are_passed_over():
    """They wait in the state, and those behind them go on."""
    site = StateSite()
    one = site.join()
    log = [
        FreshEntry(LEDGER, 0, 1, 0, 500),
        FreshEntry(LEDGER, 1, 1, 0, 400),
        FreshEntry(LEDGER, 2, 1, 0, 100),
    ]
    assert site.claim(one, log, cutoff_ms=100) == {one: [(2, 2)]}
    assert site.dispatch.delayed.next_due() == 400
    assert site.claim(one, (), cutoff_ms=400) == {}
    site.due(400)
    assert site.claim(one, ()) == {one: [(1, 1)]}


def test_who_is_not_attached_gets_nothing():
    """A claim of a consumer that was detached meanwhile."""
    site = StateSite()
    site.join()
    assert site.claim(99, entries(0, 1)) == {}


def test_others_are_woken_if_they_could_have_what_is_left():
    """Something came back or stands behind, and another consumer, of whatever level, is ready."""
    site = StateSite()
    one, other = site.join(), site.join(priority=1)
    site.read(0, 1)
    dispatcher = CLAIM_DISPATCHERS[ConsumerType.Shared]

    def leaves_more(granted: int, has_beyond: bool) -> bool:
        claim = Claim(one, 9, (), 0, {one: 99, other: granted}, {}, 0)
        return dispatcher.leaves_more(site.state.consumers, site.dispatch, claim, has_beyond)

    assert leaves_more(1, has_beyond=False)
    assert not leaves_more(0, has_beyond=True)
    site.assign((one, 0, 1))
    assert leaves_more(1, has_beyond=True)
    assert not leaves_more(1, has_beyond=False)


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_a_claim_asks_few_of_many(kind: ConsumerType):
    """One entry, and a hundred consumers that are ready: what a claim costs does not grow with them."""
    site = StateSite(kind)
    rules = {"selector": HASH_RANGE} if kind == ConsumerType.KeyShared else {}
    ids = [site.join(**rules) for _ in range(100)]
    asked: list[int] = []

    class Asked(dict[int, int]):
        def get(self, consumer_id, default=0):
            asked.append(consumer_id)
            return super().get(consumer_id, default)

    granted = Asked(dict.fromkeys(ids, 1))
    assert sum(sizes(site.claim(ids[50], entries(0, 0, (5,)), granted=granted)).values()) == 1
    assert len(asked) <= 4


@pytest.mark.parametrize(("turn", "taken"), [(0, 3), (2, 3), (7, 7), (50, 12)])
def test_a_consumer_takes_a_turn_at_least(turn: int, taken: int):
    """Of a small backlog it leaves its part to each other consumer, or else what is beyond its turn."""
    site = StateSite()
    ids = [site.join() for _ in range(4)]
    claim = Claim(ids[0], 1000, entries(0, 11), 12, dict.fromkeys(ids, 1000), {}, 0, turn)
    command = CLAIM_DISPATCHERS[ConsumerType.Shared].assign(site.state.consumers, site.dispatch, claim)
    assert command is not None
    assert command.ranges == ((ids[0], LEDGER, 0, taken - 1),)
