"""Key_Shared: each key with one consumer at a time, in order, and a bounded look-ahead."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.subscription_record import FLAG_CLASSIC, FLAG_OUT_OF_ORDER
from embeddedpulsar._engine.subscription.dispatch import dispatchers
from embeddedpulsar._engine.subscription.dispatch.dispatch_rules import Assignment, Claim, FreshEntry
from embeddedpulsar._engine.subscription.dispatch.dispatchers import CLAIM_DISPATCHERS, dispatcher_for
from embeddedpulsar._engine.subscription.state.dispatch_state import Consumer
from embeddedpulsar._engine.subscription.state.sticky_key_selector import HASH_RANGE, STICKY
from embeddedpulsar.enums import ConsumerType
from tests.unit.subscription.state.dispatch_states import LEDGER, StateSite, entries

LOW, HIGH = 5, 60_000  # the new_consumer takes the lower half of the slots
LOW_TOO = LOW + 65536  # another key of the same slot


class KeySite(StateSite):
    """A Key_Shared subscription divided by hash range."""

    def __init__(self) -> None:
        super().__init__(ConsumerType.KeyShared)

    def join(self, name: str = "c", priority: int = 0, **rules) -> int:
        return super().join(name, priority, **{"selector": HASH_RANGE, **rules})


def test_each_key_goes_to_its_consumer():
    """Whoever claims gives fresh entries to everybody who is ready."""
    site = KeySite()
    high, low = site.join(), site.join()
    found = site.claim(high, entries(0, 3, (LOW, HIGH, HIGH, LOW)))
    assert found == {low: [(0, 0), (3, 3)], high: [(1, 2)]}


def test_a_key_is_held_back_while_another_consumer_has_it():
    """A new consumer gets the keys of its range once what is in flight of them is acknowledged, and others at
    once."""
    site = KeySite()
    high = site.join()
    assert site.claim(high, entries(0, 1, (LOW, HIGH))) == {high: [(0, 1)]}
    low = site.join()
    assert site.claim(low, entries(2, 4, (LOW, LOW + 1, LOW_TOO))) == {low: [(3, 3)]}
    assert site.ack(high, 1) & 16 == 0
    assert site.claim(low) == {}
    assert site.ack(high, 0) & 16
    assert site.claim(low) == {low: [(2, 2), (4, 4)]}


def test_order_within_a_key_is_kept_while_its_consumer_is_full():
    """Nothing overtakes an entry that is held back, also not when there is room again."""
    site = KeySite()
    high, low = site.join(), site.join()
    granted = {high: 9, low: 1}
    found = site.claim(high, entries(0, 3, (LOW, LOW, HIGH, LOW)), granted=granted)
    assert found == {low: [(0, 0)], high: [(2, 2)]}
    assert site.claim(high, entries(4, 5, (LOW, HIGH)), granted={high: 9, low: 9}) == {high: [(5, 5)]}
    assert site.claim(low, entries(6, 6, (LOW,)), granted={low: 9}) == {low: [(1, 1), (3, 4), (6, 6)]}


def test_what_came_back_goes_before_later_entries_of_its_key():
    """A nack of the first of three: it waits until its consumer has room, in front of fresh ones."""
    site = KeySite()
    one = site.join()
    site.claim(one, entries(0, 2, (LOW, LOW, HIGH)))
    site.nack(one, 0, handed=3)
    assert site.claim(one, entries(3, 3, (LOW,))) == {one: [(0, 0), (3, 3)]}


def test_entries_of_a_dead_consumer_go_in_order():
    """All that it had, whoever has the keys now."""
    site = KeySite()
    high, low = site.join(), site.join()
    site.claim(high, entries(0, 3, (LOW, HIGH, LOW, HIGH)))
    site.leave(low, record.DETACH_DEAD, handed=1)
    assert site.claim(high, entries(4, 4, (LOW,))) == {high: [(0, 0), (2, 2), (4, 4)]}
    assert [site.count(entry) for entry in range(5)] == [1, 0, 0, 0, 0]


def test_the_classic_rule():
    """A new consumer gets only what stood before it joined, until all of that is acknowledged."""
    site = KeySite()
    high = site.join(flags=FLAG_CLASSIC)
    site.claim(high, entries(0, 1, (LOW, HIGH)))
    low = site.join(flags=FLAG_CLASSIC)
    assert site.claim(low, entries(2, 3, (LOW + 1, HIGH))) == {high: [(3, 3)]}
    site.nack(high, 0, handed=2)
    assert site.claim(low) == {low: [(0, 0)]}
    site.ack(low, 0)
    assert site.claim(low) == {}
    assert site.ack(high, 1) & 16
    assert site.claim(low) == {low: [(2, 2)]}


def test_the_classic_rule_does_not_hold_where_nothing_is_unacknowledged():
    """Nor out of order."""
    site = KeySite()
    high = site.join(flags=FLAG_CLASSIC)
    site.claim(high, entries(0, 0, (LOW,)))
    site.ack(high, 0)
    site.join(flags=FLAG_CLASSIC)
    assert not site.dispatch.joined
    site = KeySite()
    high = site.join(flags=FLAG_CLASSIC | FLAG_OUT_OF_ORDER)
    site.claim(high, entries(0, 0, (LOW,)))
    site.join(flags=FLAG_CLASSIC | FLAG_OUT_OF_ORDER)
    assert not site.dispatch.joined


@pytest.mark.parametrize("rules", [{"flags": FLAG_OUT_OF_ORDER}, {"selector": STICKY}])
def test_out_of_order_nothing_is_held_back(rules: dict[str, int]):
    """A key in flight elsewhere is no reason to wait; nor with fixed ranges."""
    site = KeySite()
    ranges = {"ranges": ((0, 65535),)} if "selector" in rules else {}
    high = site.join(**rules, **ranges)
    site.claim(high, entries(0, 0, (LOW,)))
    if not ranges:
        low = site.join(**rules)
        assert site.claim(low, entries(1, 1, (LOW,))) == {low: [(1, 1)]}
    else:
        assert site.claim(high, entries(1, 2, (LOW, LOW)), granted={high: 2}) == {high: [(1, 1)]}
        assert site.claim(high, entries(2, 3, (LOW, LOW)), granted={high: 9}) == {high: [(2, 3)]}


def test_uncovered_slots_wait():
    """Fixed ranges may leave slots to nobody; entries of these wait for who takes them."""
    site = KeySite()
    low = site.join(selector=STICKY, ranges=((0, 100),))
    assert site.claim(low, entries(0, 2, (LOW, HIGH, LOW))) == {low: [(0, 0), (2, 2)]}
    high = site.join(selector=STICKY, ranges=((101, 65535),))
    assert site.claim(high) == {high: [(1, 1)]}


def test_the_look_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """So many entries a consumer are held back, then nothing more is read; who is woken could go on."""
    monkeypatch.setattr(dispatchers, "LOOK_AHEAD_PER_CONSUMER", 2)
    site = KeySite()
    high, low = site.join(), site.join()
    log = entries(0, 9, (LOW, LOW, HIGH, LOW, LOW, LOW, HIGH, LOW, HIGH, LOW))
    granted = {high: 99, low: 1}
    assert site.claim(high, log, granted=granted) == {low: [(0, 0)], high: [(2, 2)]}
    assert site.dispatch.read == (LEDGER, 6)
    assert site.claim(high, log[6:], granted=granted) == {}

    def leaves_more(granted: dict[int, int]) -> bool:
        claim = Claim(low, 9, (), 0, granted, {}, 0)
        dispatcher = CLAIM_DISPATCHERS[ConsumerType.KeyShared]
        return dispatcher.leaves_more(site.state.consumers, site.dispatch, claim, has_beyond=True)

    assert not leaves_more(granted)
    assert site.claim(low, log[6:], granted={low: 3}) == {low: [(1, 1), (3, 3)]}
    assert leaves_more(granted)
    assert not leaves_more({high: 1})
    assert site.claim(high, log[6:], granted=granted) == {high: [(6, 6), (8, 8)]}


def test_all_together_get_no_more_than_they_may_hold():
    """Waiting entries and fresh ones."""
    site = KeySite()
    one = site.join(max_unacked_in_all=3)
    assert site.claim(one, entries(0, 5, (LOW, HIGH) * 3)) == {one: [(0, 2)]}
    assert site.claim(one, entries(3, 5, (HIGH, LOW, HIGH))) == {}
    site.nack(one, 0, 1, 2, handed=3)
    site.ack(one, 2)
    assert site.claim(one, entries(3, 5, (HIGH, LOW, HIGH))) == {one: [(0, 1), (3, 3)]}


def test_delayed_entries_hold_no_key_back():
    """Later entries of the key go before it."""
    site = KeySite()
    one = site.join()
    log = [FreshEntry(LEDGER, 0, 1, LOW, 50), FreshEntry(LEDGER, 1, 1, LOW, 0)]
    assert site.claim(one, log, cutoff_ms=10) == {one: [(1, 1)]}
    site.due(50)
    assert site.claim(one) == {one: [(0, 0)]}


def new_consumer(**rules) -> Consumer:
    given = record.ConsumerRules(**{"selector": HASH_RANGE, **rules})
    return Consumer(99, "n", ConsumerType.KeyShared, 0, bytes(16), 0, 0, 9, given)


@pytest.mark.parametrize(
    ("there", "new", "text"),
    [
        ({}, {}, ""),
        ({}, {"selector": STICKY}, "different key_shared mode"),
        ({"selector": STICKY, "ranges": ((0, 9),)}, {}, "different key_shared mode"),
        ({"flags": FLAG_OUT_OF_ORDER}, {}, "allows out of order delivery"),
        ({}, {"flags": FLAG_OUT_OF_ORDER}, "does not allow out of order delivery"),
    ],
)
def test_who_is_refused(there: dict[str, object], new: dict[str, object], text: str):
    """All consumers divide the keys in one way."""
    site = KeySite()
    site.join(**there)
    dispatcher = CLAIM_DISPATCHERS[ConsumerType.KeyShared]
    refusal = dispatcher.refusal(site.state.consumers, new_consumer(**new), site.dispatch)
    assert (text in refusal) if text else not refusal


def ranges_refusal(site: KeySite, ranges: Sequence[tuple[int, int]]) -> str:
    return dispatcher_for(ConsumerType.KeyShared).key_refusal(
        new_consumer(selector=STICKY, ranges=tuple(ranges)), site.dispatch
    )


def test_keys_that_cannot_be_divided():
    """Ranges that overlap; of the first consumer, too, ranges that are none."""
    site = KeySite()
    assert ranges_refusal(site, [])
    assert not ranges_refusal(site, [(0, 9)])
    site.join(selector=STICKY, ranges=((0, 9),))
    assert ranges_refusal(site, [(9, 12)])
    assert not ranges_refusal(site, [(10, 12)])
    before = site.dispatch.selector.pack()
    assert site.dispatch.selector.pack() == before


def test_acknowledging_what_is_held_back_makes_room():
    """Somebody else may do it; then more can be read, and those who sleep are told."""
    site = KeySite()
    high, low = site.join(), site.join()
    site.claim(high, entries(0, 1, (LOW, HIGH)), granted={high: 9})
    assert site.owners(1) == [1, high]
    assert site.ack(high, 1) & 16 == 0
    assert site.ack(high, 0) & 16
    assert not site.dispatch.holds(low)


@pytest.mark.parametrize("seed", range(40))
def test_dealing_in_one_step_gives_what_one_by_one_gives(seed: int, monkeypatch: pytest.MonkeyPatch):
    """Whatever is in flight, whoever is full, and whatever a first claim left waiting."""
    rng = random.Random(seed)
    out_of_order = {"flags": FLAG_OUT_OF_ORDER} if rng.random() < 0.2 else {}
    commands = []
    for is_dealt in (True, False):
        site, turn = KeySite(), random.Random(seed)
        ids = [site.join(**out_of_order) for _ in range(turn.choice((1, 2, 4)))]
        with monkeypatch.context() as patch:
            if not is_dealt:
                patch.setattr(dispatchers._Round, "_deal", lambda *_: None)
            first = 0
            for _ in range(4):
                count = turn.choice((3, 9, 60))
                keys = [turn.randrange(1, 1 << 31) for _ in range(count)]
                fresh = entries(first, first + count - 1, keys)
                if turn.random() < 0.2:
                    at = turn.randrange(count)
                    fresh[at] = fresh[at]._replace(**turn.choice(({"messages": 3}, {"deliver_at": 9})))
                granted = {
                    one: site.dispatch.assigned_by_consumer[one].messages + turn.choice((0, 5, 20, 1000))
                    for one in ids
                }
                claim = Claim(turn.choice(ids), 1000, fresh, count, granted, {}, 0)
                command = dispatcher_for(ConsumerType.KeyShared).assign(
                    site.state.consumers, site.dispatch, claim
                )
                commands.append((is_dealt, command))
                if command is not None:
                    site.apply(command)
                    first = site.dispatch.read.entry_id
                if turn.random() < 0.3:
                    ids.append(site.join(**out_of_order))
                for entry in turn.sample(range(first), first // 3):
                    site.ack(ids[0], entry)
    half = len(commands) // 2
    assert [one for _, one in commands[:half]] == [one for _, one in commands[half:]]


def test_dealing_takes_few_steps(monkeypatch: pytest.MonkeyPatch):
    """A thousand entries of a hundred keys for four consumers: none is looked at alone."""
    site = KeySite()
    ids = [site.join() for _ in range(4)]
    monkeypatch.setattr(Assignment, "give", None)
    log = entries(0, 999, [number % 100 * 650 for number in range(1000)])
    assert set(site.claim(ids[0], log)) == set(ids)
    assert 0 not in site.owners(999)
