"""All entries that were read and are not acknowledged."""

from __future__ import annotations

from array import array
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format.acknowledgement import group_entries
from embeddedpulsar._engine.format.subscription_record import FreshRun
from embeddedpulsar._engine.subscription.state.entry_states import DELAYED, FIRST_OWNER, NONE, WAITING
from embeddedpulsar._engine.subscription.state.pending_entries import PendingEntries

A, B = FIRST_OWNER, FIRST_OWNER + 1


def fresh(ledger: int, first: int, last: int, messages=None, hashes=None) -> FreshRun:
    return FreshRun(
        ledger,
        first,
        last,
        None if messages is None else array("I", messages),
        None if hashes is None else array("I", hashes),
    )


def test_unknown_entries_are_left_alone():
    """Ledgers and entries that were not read, or are long gone."""
    pending = PendingEntries()
    group = group_entries([(3, 0)])[0]
    assert not pending.acknowledge(group) and not pending.acknowledge_range(3, 0, 9)
    assert pending.assign(3, 0, 9, A) == 0
    assert pending.give_back(A, group) == []
    pending.delay(3, 0), pending.come_due(3, 0), pending.trim(3, 5)
    pending.give_back_all(A, [(3, 0, 1)], counted=True)
    assert (pending.state(3, 0), pending.ledger(3)) == (NONE, None)
    assert list(pending.waiting_runs()) == []
    assert pending.pack({}) == []


def test_an_entry_is_read_once():
    """The read position only rises; a run that does not fit changes nothing."""
    pending = PendingEntries()
    pending.add(fresh(3, 5, 9))
    pending.add(fresh(3, 9, 12))
    assert list(pending.waiting_runs()) == [(3, 5, 9)]
    pending.add(fresh(3, 12, 12))
    assert list(pending.waiting_runs()) == [(3, 5, 9), (3, 12, 12)]


def test_runs_come_in_order_of_ledgers():
    """Whatever was read first."""
    pending = PendingEntries()
    pending.add(fresh(3, 0, 1))
    pending.add(fresh(5, 0, 3))
    pending.assign(5, 1, 1, A)
    assert list(pending.waiting_runs()) == [(3, 0, 1), (5, 0, 0), (5, 2, 3)]
    assert list(pending.ledger(5).runs(A, 0, 9)) == [(1, 1)]


def test_what_a_dead_consumer_had_counts_but_for_what_it_did_not_see():
    """In all ledgers."""
    pending = PendingEntries()
    pending.add(fresh(3, 0, 3))
    pending.add(fresh(5, 0, 3))
    for ledger in (3, 5):
        pending.assign(ledger, 0, 2, A)
        pending.assign(ledger, 3, 3, B)
    pending.give_back_all(A, [(3, 2, 2), (5, 0, 9), (9, 0, 0)], counted=True)
    counts = [pending.ledger(ledger).redeliveries(entry) for ledger in (3, 5) for entry in range(4)]
    assert counts == [1, 1, 0, 0, 0, 0, 0, 0]
    assert (pending.totals[WAITING], pending.totals[A], pending.totals[B]) == (6, 0, 2)


def test_trimming_lets_go_of_whole_ledgers_and_of_many_entries():
    """Less is not worth the trouble."""
    pending = PendingEntries()
    pending.add(fresh(3, 0, 3, hashes=[1, 2, 3, 4]))
    pending.assign(3, 0, 3, A)
    pending.add(fresh(5, 0, 4999))
    pending.trim(5, 10)
    assert (pending.ledger(3), len(pending.keys), pending.totals[A]) == (None, 0, 0)
    assert pending.ledger(5).base == 0
    pending.acknowledge_range(5, 0, 4399)
    pending.trim(5, 4400)
    assert pending.ledger(5).base == 4400
    assert list(pending.waiting_runs()) == [(5, 4400, 4999)]


@pytest.mark.parametrize(
    "packed",
    [
        [[-1, 0, b"\1", b"", b"", []]],
        [[1, -1, b"\1", b"", b"", []]],
        [[1, 0, b"\1", b"\0" * 8, b"", []]],
        [[1, 0, b"\1", b"\0" * 3, b"", []]],
    ],
)
def test_a_distorted_snapshot_is_refused(packed: list[list[object]]):
    """Positions that are none, and columns of another length."""
    with pytest.raises(ValueError):
        PendingEntries().unpack(packed)


def test_hashes_of_zero_are_kept():
    """That keys matter must not be forgotten because the only key there is hashes to 0."""
    pending, other = PendingEntries(), PendingEntries()
    pending.add(fresh(3, 0, 1, hashes=[0, 0]))
    pending.assign(3, 0, 0, A)
    other.unpack(pending.pack({}))
    assert other.keys.number(0) == 1
    assert other.waiting_keys.number_of(0) == 1


def test_changes_show_in_the_checksum():
    """Whatever is done, and to what; but not how far back entries are remembered."""
    sums = set()
    for first, last, code in ((0, 1, A), (0, 2, A), (1, 2, A)):
        pending = PendingEntries()
        pending.add(fresh(3, 0, 9))
        assert pending.take_moves() == 0
        pending.assign(3, first, last, code)
        pending.acknowledge(group_entries([(3, 1), (3, 5), (3, 8)])[0])
        sums.add(pending.take_moves())
        assert pending.take_moves() == 0
    assert len(sums) == 3
    long, short = PendingEntries(), PendingEntries()
    long.add(fresh(3, 0, 9))
    long.acknowledge_range(3, 0, 4)
    long.take_moves()
    short.add(fresh(3, 5, 9))
    long.acknowledge_range(3, 2, 7), short.acknowledge_range(3, 2, 7)
    assert long.take_moves() == short.take_moves() != 0


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["read", "assign", "ack", "ack some", "delay", "due", "back", "all back", "pack"]),
        st.integers(0, 24),
        st.integers(0, 6),
        st.sampled_from([A, B]),
    ),
    max_size=60,
)


class Simple:
    """The same with one dict."""

    def __init__(self) -> None:
        self.states: dict[int, int] = {}
        self.counts: Counter[int] = Counter()
        self.end = 0

    def move(self, entries, before: int | None, after: int) -> list[int]:
        moved = [e for e in entries if e in self.states and before in (None, self.states[e])]
        for entry in moved:
            self.states[entry] = after
            if after == NONE:
                del self.states[entry]
                self.counts.pop(entry, None)
        return moved


@given(STEPS, st.booleans(), st.randoms())
def test_it_agrees_with_a_simple_model(steps, has_keys: bool, chance):
    """Every entry in one place, totals and keys recounted, a snapshot now and then."""
    pending, simple = PendingEntries(), Simple()
    sizes = [chance.randrange(1, 4) for _ in range(400)]
    hashes = [chance.choice((0, 7, 7 + 65536, 9)) for _ in range(400)]
    for name, first, length, code in steps:
        last = first + length
        span = range(first, last + 1)
        scattered = sorted({first, last, (first + last) // 2})
        match name:
            case "read":
                start = simple.end + (first % 3 == 0)
                simple.end = start + length + 1
                simple.states.update(dict.fromkeys(range(start, simple.end), WAITING))
                keys = hashes[start : simple.end] if has_keys else None
                pending.add(fresh(3, start, simple.end - 1, sizes[start : simple.end], keys))
            case "assign":
                moved = simple.move(span, WAITING, code)
                assert pending.assign(3, first, last, code) == sum(sizes[e] for e in moved)
            case "ack":
                simple.move(span, None, NONE)
                pending.acknowledge_range(3, first, last)
            case "ack some":
                simple.move(scattered, None, NONE)
                pending.acknowledge(group_entries([(3, e) for e in scattered])[0])
            case "delay":
                simple.move([first], WAITING, DELAYED)
                pending.delay(3, first)
            case "due":
                simple.move([first], DELAYED, WAITING)
                pending.come_due(3, first)
            case "back":
                moved = simple.move(scattered, code, WAITING)
                simple.counts.update(moved)
                assert pending.give_back(code, group_entries([(3, e) for e in scattered])[0]) == moved
            case "all back":
                moved = simple.move(range(400), code, WAITING)
                simple.counts.update(e for e in moved if e not in span)
                pending.give_back_all(code, [(3, first, last)], counted=True)
            case _:
                floor = min(simple.states, default=simple.end)
                packed, pending = pending.pack({3: floor}), PendingEntries()
                pending.unpack(packed)
                assert pending.pack({3: floor}) == packed
        check(pending, simple, sizes, hashes if has_keys else None)


def check(pending: PendingEntries, simple: Simple, sizes: list[int], hashes: list[int] | None) -> None:
    assert {e: pending.state(3, e) for e in range(400) if pending.state(3, e)} == simple.states
    for code in (WAITING, DELAYED, A, B):
        mine = [e for e, state in simple.states.items() if state == code]
        assert pending.totals[code] == sum(sizes[e] for e in mine)
        states = pending.ledger(3)
        runs = [] if states is None else states.runs(code, 0, 399)
        assert [e for first, last in runs for e in range(first, last + 1)] == sorted(mine)
    states = pending.ledger(3)
    for entry in simple.states:
        assert states.redeliveries(entry) == simple.counts[entry]
        assert states.messages_of(entry) == sizes[entry]
    if hashes is not None:
        held = Counter(hashes[e] & 0xFFFF for e, state in simple.states.items() if state >= FIRST_OWNER)
        assert {slot: pending.keys.number(slot) for slot in held} == held
        assert len(pending.keys) == len(held)
        for one in set(hashes):
            waiting = sum(state == WAITING and hashes[e] == one for e, state in simple.states.items())
            assert pending.waiting_keys.number_of(one) == waiting
