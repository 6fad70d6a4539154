"""Delayed entries: the order in which they become due, what they cost, and how they are packed."""

from __future__ import annotations

import random
import struct
import tracemalloc
from array import array
from bisect import bisect_right, insort
from collections.abc import Iterable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from embeddedpulsar._engine.subscription.state import pending_entries
from embeddedpulsar._engine.subscription.state.pending_entries import (
    DelayedBucket,
    DelayedDeliveryTracker,
)
from tests.strikes import strike

LAST = 2**32 - 1
ENTRIES = st.tuples(st.integers(-3, 40), st.integers(0, 4), st.integers(0, 12))


def add_all(tracker: DelayedDeliveryTracker, entries: Iterable[tuple[int, int, int]]) -> None:
    """Add entries given as (time, ledger, entry)."""
    for entry in entries:
        tracker.add(*entry)


def tracker_of(entries: list[tuple[int, int, int]]) -> DelayedDeliveryTracker:
    """A tracker with these entries, added in this order."""
    tracker = DelayedDeliveryTracker()
    add_all(tracker, entries)
    return tracker


def positions(entries: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Ledgers and entries without the times."""
    return [(ledger_id, entry_id) for _, ledger_id, entry_id in entries]


def packed(entries: list[tuple[int, int, int]]) -> bytes:
    """The documented layout of entries, which are in order."""
    times = b"".join(struct.pack("<q", time) for time, _, _ in entries)
    return times + b"".join(struct.pack("<II", entry, ledger) for _, ledger, entry in entries)


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets of a few entries, so that a few hundred entries fill many."""
    monkeypatch.setattr(pending_entries, "_FULL", 8)
    monkeypatch.setattr(pending_entries, "_PIECE", 3)


class TrackerAgainstList(RuleBasedStateMachine):
    """A tracker with small buckets beside a sorted list."""

    def __init__(self) -> None:
        super().__init__()
        self.full, self.piece = pending_entries._FULL, pending_entries._PIECE

    @initialize()
    def start(self) -> None:
        pending_entries._FULL, pending_entries._PIECE = 8, 3
        self.tracker = DelayedDeliveryTracker()
        self.model: list[tuple[int, int, int]] = []

    def teardown(self) -> None:
        pending_entries._FULL, pending_entries._PIECE = self.full, self.piece

    @rule(entry=ENTRIES)
    def add(self, entry: tuple[int, int, int]) -> None:
        self.tracker.add(*entry)
        insort(self.model, entry)

    @rule(entries=st.lists(ENTRIES, max_size=40))
    def add_many(self, entries: list[tuple[int, int, int]]) -> None:
        add_all(self.tracker, entries)
        self.model = sorted(self.model + entries)

    @rule(cutoff=st.integers(-4, 41), limit=st.none() | st.integers(0, 12))
    def pop_due(self, cutoff: int, limit: int | None) -> None:
        count = bisect_right(self.model, (cutoff, 99, 99))
        count = count if limit is None else min(count, limit)
        assert self.tracker.pop_due(cutoff, limit) == positions(self.model[:count])
        del self.model[:count]

    @rule(ledger_id=st.integers(-1, 5), entry_id=st.integers(-1, 13))
    def drop_before(self, ledger_id: int, entry_id: int) -> None:
        self.tracker.drop_before(ledger_id, entry_id)
        self.model = [entry for entry in self.model if entry[1:] >= (ledger_id, entry_id)]

    @rule()
    def clear(self) -> None:
        self.tracker.clear()
        self.model.clear()

    @rule()
    def go_on_with_a_copy(self) -> None:
        self.tracker = DelayedDeliveryTracker.unpack(self.tracker.pack())

    @rule()
    def pack(self) -> None:
        assert self.tracker.pack() == packed(self.model)

    @invariant()
    def agrees(self) -> None:
        assert len(self.tracker) == len(self.model)
        assert self.tracker.next_due() == (self.model[0][0] if self.model else None)


test_any_history_against_a_sorted_list = TrackerAgainstList.TestCase
test_any_history_against_a_sorted_list.__doc__ = "Adding, popping, dropping, copying, in any order."


def test_the_order_is_time_then_ledger_then_entry():
    """Whatever was added first."""
    tracker = tracker_of([(20, 1, 1), (10, 2, 0), (10, 1, 9), (10, 1, 10), (20, 1, 0), (5, 9, 9)])
    assert tracker.pop_due(20) == [(9, 9), (1, 9), (1, 10), (2, 0), (1, 0), (1, 1)]


def test_an_entry_is_due_at_its_time_and_not_before():
    """A millisecond decides; `next_due` says when to ask again."""
    tracker = tracker_of([(1_700_000_000_500, 3, 7), (1_700_000_002_000, 3, 5)])
    assert tracker.next_due() == 1_700_000_000_500
    assert tracker.pop_due(1_700_000_000_499) == []
    assert tracker.pop_due(1_700_000_000_500) == [(3, 7)]
    assert tracker.next_due() == 1_700_000_002_000
    assert tracker.pop_due(1_700_000_002_000) == [(3, 5)]
    assert tracker.next_due() is None
    assert tracker.pop_due(2**63 - 1) == []


def test_an_earlier_entry_overtakes():
    """Also one that is added when the first bucket is in order already, and one that is overdue."""
    tracker = tracker_of([(10, 1, 1), (30, 1, 3)])
    assert tracker.pop_due(10) == [(1, 1)]
    add_all(tracker, [(20, 1, 2), (30, 1, 2), (5, 1, 9)])
    assert tracker.next_due() == 5
    assert tracker.pop_due(30) == [(1, 9), (1, 2), (1, 2), (1, 3)]


def test_a_limit_leaves_the_rest_due():
    """Entries come in portions without a gap, whatever the borders of buckets."""
    entries = [(at // 3000, 1, at) for at in range(10_000)]
    tracker = tracker_of(entries[::-1])
    assert tracker.pop_due(2, limit=0) == []
    portions = []
    while portion := tracker.pop_due(2, limit=700):
        portions.append(portion)
    assert [len(portion) for portion in portions] == [*[700] * 12, 600]
    assert [entry for portion in portions for entry in portion] == positions(entries[:9000])
    assert (len(tracker), tracker.next_due()) == (1000, 3)


@pytest.mark.parametrize("order", ["random", "ascending", "descending", "same time"])
def test_many_buckets(order: str):
    """20,000 entries, in the orders that fill buckets differently, come out in order."""
    draw = random.Random(5)
    entries = [(draw.randrange(1 << 40), draw.randrange(1 << 32), at) for at in range(20_000)]
    if order == "same time":
        entries = [(77, ledger_id, entry_id) for _, ledger_id, entry_id in entries]
    elif order != "random":
        entries.sort(reverse=order == "descending")
    tracker = tracker_of(entries)
    expected = sorted(entries)
    assert tracker.pack() == packed(expected)
    assert tracker.next_due() == expected[0][0]
    assert tracker.pop_due(expected[9_999][0], limit=10_000) == positions(expected[:10_000])
    assert tracker.pop_due(2**63 - 1) == positions(expected[10_000:])


def test_the_ends_of_what_can_be_told():
    """Times of 64 bits with sign, ids of 32."""
    entries = [(-(2**63), LAST, LAST), (0, 0, 0), (2**63 - 1, LAST, 0)]
    tracker = tracker_of(entries)
    assert tracker.next_due() == -(2**63)
    copy = DelayedDeliveryTracker.unpack(tracker.pack())
    copy.drop_before(0, 1)
    assert copy.pop_due(2**63 - 2) == [(LAST, LAST)]
    assert copy.next_due() == 2**63 - 1
    assert copy.pop_due(2**63 - 1) == [(LAST, 0)]


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize(
    "entry", [(1, LAST + 1, 0), (1, 0, LAST + 1), (1, -1, 0), (1, 0, -1), (2**63, 0, 0), (-(2**63) - 1, 0, 0)]
)
def test_an_entry_that_cannot_be_is_refused(entry: tuple[int, int, int], is_ordered: bool):
    """And leaves no trace, in a first bucket that is in order or not."""
    tracker = tracker_of([(at, 2, 2) for at in range(5000)])
    if is_ordered:
        tracker.pop_due(0)
    before = len(tracker), tracker.next_due(), tracker.pack()
    with pytest.raises((ValueError, OverflowError)):
        tracker.add(*entry)
    assert (len(tracker), tracker.next_due(), tracker.pack()) == before


def test_what_lies_before_a_position_is_forgotten():
    """Ledgers before it as a whole, and the entries of its ledger below it."""
    tracker = tracker_of([(10, 1, 500), (20, 2, 3), (30, 2, 4), (40, 3, 0), (5, 2, 2)])
    tracker.drop_before(2, 3)
    assert (len(tracker), tracker.next_due()) == (3, 20)
    tracker.drop_before(1, 0)
    tracker.drop_before(2, -1)
    assert tracker.pop_due(99) == [(2, 3), (2, 4), (3, 0)]
    tracker.add(1, 0, 0)
    tracker.drop_before(9, 0)
    assert (len(tracker), tracker.next_due(), tracker.pack()) == (0, None, b"")


def test_dropping_looks_at_nothing_where_there_is_nothing_to_drop(monkeypatch: pytest.MonkeyPatch):
    """The mark-delete position may move at every acknowledgement without a price."""
    tracker = tracker_of([(at, 1, at) for at in range(10_000)])
    tracker.pop_due(100)
    tracker.drop_before(1, 101)
    looked_at: list[int] = []
    monkeypatch.setattr(DelayedBucket, "drop_below", lambda _, limit: looked_at.append(limit))
    tracker.drop_before(1, 101)
    assert not looked_at
    tracker.pop_due(200)
    tracker.drop_before(1, 150)
    assert len(looked_at) == 1  # the bucket the entries were taken from


@pytest.mark.usefixtures("small_buckets")
def test_what_is_left_of_buckets_is_put_together():
    """Dropping most entries again and again leaves no trail of tiny buckets."""
    tracker = DelayedDeliveryTracker()
    for ledger_id in range(50):
        add_all(tracker, [(at, ledger_id, at) for at in range(100)])
        tracker.drop_before(ledger_id, 99)
    assert len(tracker) == 1
    assert len(tracker._buckets) == 1


@given(st.lists(ENTRIES, max_size=60), st.randoms(use_true_random=False), st.lists(ENTRIES, max_size=20))
@pytest.mark.usefixtures("small_buckets")
def test_equal_contents_pack_alike(
    entries: list[tuple[int, int, int]], draw: random.Random, others: list[tuple[int, int, int]]
):
    """In whatever order entries came, with others that came and went in between; packing changes nothing."""
    expected = packed(sorted(entries))
    shuffled = entries[:]
    draw.shuffle(shuffled)
    detour = DelayedDeliveryTracker()
    add_all(detour, [(time - 100, ledger_id, entry_id) for time, ledger_id, entry_id in others])
    add_all(detour, shuffled)
    detour.pop_due(-50)
    for tracker in (tracker_of(entries), tracker_of(shuffled), detour):
        assert tracker.pack() == expected
        assert tracker.pack() == expected
        assert DelayedDeliveryTracker.unpack(expected).pack() == expected


@pytest.mark.parametrize("size", [0, 1, 2047, 2048, 2049, 4096, 4097, 9000])
def test_an_unpacked_tracker_goes_on(size: int):
    """At the borders of buckets too, it takes new entries and gives all of them in order."""
    entries = [(at // 5, 3, at) for at in range(size)]
    tracker = DelayedDeliveryTracker.unpack(packed(entries))
    assert len(tracker) == size
    more = [(at, 2, at) for at in range(0, 2000, 7)]
    add_all(tracker, more)
    assert tracker.pop_due(2**60) == positions(sorted(entries + more))


@pytest.mark.parametrize(
    "data",
    [
        b"12345678",
        bytes(17),
        packed([(2, 0, 0), (1, 0, 0)]),
        packed([(1, 0, 1), (1, 0, 0)]),
        packed([(1, 1, 0), (1, 0, 1)]),
        packed([(1, 0, at) for at in range(2048)] + [(1, 0, 2046)]),
        packed([(1, 0, at) for at in range(2048)] + [(0, 0, 2048)]),
    ],
)
def test_what_no_tracker_packs_is_refused(data: bytes):
    """Halves of entries, and entries out of order, across the border of two buckets as well."""
    with pytest.raises(ValueError, match="delayed entries"):
        DelayedDeliveryTracker.unpack(data)


@pytest.mark.parametrize("order", ["random", "ascending"])
def test_an_entry_costs_less_than_twenty_bytes(order: str):
    """No object is kept for an entry, not while they come and not when buckets are cut."""
    draw = random.Random(7)
    times = array("q", (draw.randrange(1 << 40) for _ in range(50_000)))
    if order == "ascending":
        times = array("q", sorted(times))
    tracker = DelayedDeliveryTracker()
    tracemalloc.start()
    for at in range(50_000):
        tracker.add(times[at], 1, at)
    kept, peak = tracemalloc.get_traced_memory()
    tracker.pop_due(-1)
    tracker.pack()
    packed_once, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 20 * 50_000
    assert peak < 20 * 50_000 + 700_000  # the bucket that is being cut
    assert packed_once < 20 * 50_000


def test_entries_that_were_popped_cost_nothing():
    """A tracker that is empty again is as small as a new one."""
    tracker = tracker_of([(at, 1, at) for at in range(20_000)])
    assert len(tracker.pop_due(19_999)) == 20_000
    assert len(tracker._buckets) == 1
    assert tracker.pack() == b""


def test_an_interrupted_packing_changes_no_entry(monkeypatch):
    """An interrupt at any instruction, while entries are put in order."""
    monkeypatch.setattr(pending_entries, "_FULL", 6)  # so that there are buckets without order
    monkeypatch.setattr(pending_entries, "_PIECE", 3)
    entries = [(90 - 7 * number, 4 - number % 3, number) for number in range(14)]

    def interrupt() -> None:
        raise KeyboardInterrupt

    for index in count():
        tracker = DelayedDeliveryTracker()
        add_all(tracker, entries)
        try:
            was_struck = strike(tracker.pack, interrupt, index, "_engine/subscription/state")
        except KeyboardInterrupt:
            was_struck = True
        assert tracker.pop_due(100) == [entry[1:] for entry in sorted(entries)], index
        if not was_struck:
            break
    assert index > 20
