"""The bitmap of one ledger, bit by bit."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.subscription.state.ledger_acks import OPEN, LedgerAcks

SIZE = 300
ENTRIES = st.integers(0, SIZE - 1)


def check(acks: LedgerAcks, expected: set[int]) -> None:
    """Every question about `acks` is answered as the set would."""
    floor = next(entry for entry in range(SIZE + 1) if entry not in expected)
    assert acks.floor == floor
    for entry in range(SIZE):
        assert acks.is_acked(entry) == (entry in expected)
        unacked = next((e for e in range(entry, SIZE) if e not in expected), None)
        if unacked is not None and expected and unacked < max(expected):
            assert acks.next_unacked(entry) == unacked
        else:
            assert acks.next_unacked(entry) not in expected
        assert acks.next_acked(entry) == next((e for e in range(entry, SIZE) if e in expected), -1)
    assert {e for first, last in acks.runs() for e in range(first, last + 1)} == {
        e for e in expected if e > floor
    }


def bits_of(entries: set[int]) -> tuple[int, bytes]:
    first = min(entries)
    window = sum(1 << (entry - first) for entry in entries)
    return first, window.to_bytes((window.bit_length() + 7) // 8, "little")


@given(
    st.lists(st.tuples(st.sampled_from(["range", "bits", "list"]), st.sets(ENTRIES, min_size=1)), max_size=6)
)
def test_every_way_to_acknowledge_sets_the_same_bits(steps: list[tuple[str, set[int]]]):
    """Ranges, bitmaps and lists, overlapping in any way, against a set; and a snapshot in between."""
    acks, expected = LedgerAcks(), set[int]()
    for kind, entries in steps:
        if kind == "range":
            entries = set(range(min(entries), max(entries) + 1))
            acks.add_range(min(entries), max(entries))
        elif kind == "bits":
            acks.add_bits(*bits_of(entries))
        else:
            acks.add_list(min(entries), max(entries), list(entries))
        expected |= entries
        restored = LedgerAcks()
        restored.restore(acks.floor, acks.window())
        assert (restored.floor, restored.window()) == (acks.floor, acks.window())
        check(restored, expected)
    check(acks, expected)


@given(st.sets(ENTRIES), st.integers(0, SIZE), st.sets(ENTRIES))
def test_a_cut_forgets_what_lies_behind(entries: set[int], cut: int, later: set[int]):
    """Entries lost with the power are not acknowledged when their ids are given to nobody, or asked for."""
    acks = LedgerAcks()
    if entries:
        acks.add_list(min(entries), max(entries), list(entries))
    acks.cut(cut)
    left = {entry for entry in entries if entry < cut}
    check(acks, left)
    if later:
        acks.add_bits(*bits_of(later))
    check(acks, left | later)


@given(st.sets(ENTRIES, min_size=1), st.integers(1, SIZE))
def test_a_closed_ledger_has_no_entries_behind_its_end(entries: set[int], size: int):
    """Whatever is acknowledged beyond the end of a closed ledger is ignored."""
    for way in ("range", "bits", "list"):
        acks = LedgerAcks(size)
        if way == "range":
            acks.add_range(min(entries), max(entries))
            inside = set(range(min(entries), max(entries) + 1))
        elif way == "bits":
            acks.add_bits(*bits_of(entries))
            inside = entries
        else:
            acks.add_list(min(entries), max(entries), list(entries))
            inside = entries
        inside = {entry for entry in inside if entry < size}
        assert {entry for entry in range(SIZE) if acks.is_acked(entry)} == inside
        assert acks.complete == (len(inside) == size)


def test_a_batch_is_complete_when_all_its_messages_are():
    """Indexes add up, in any order and more than once; the size that was told first holds."""
    acks = LedgerAcks()
    acks.add_indexes(4, 3, 0b001)
    acks.add_indexes(4, 3, 0b101)
    assert (acks.indexes(4), acks.is_acked(4)) == (0b101, False)
    acks.add_indexes(4, 9, 0b1_0000_0010)
    assert acks.is_acked(4)
    assert acks.partial == {}
    acks.add_indexes(4, 3, 0b001)
    assert acks.partial == {}


def test_acknowledging_the_entry_forgets_its_parts():
    """By a range, a bitmap or a list."""
    acks = LedgerAcks()
    for entry in (0, 5, 6, 90):
        acks.add_indexes(entry, 2, 1)
    acks.add_range(0, 0)
    acks.add_bits(5, b"\x01")
    acks.add_list(6, 80, [6, 80])
    assert list(acks.partial) == [90]


def test_acknowledging_in_order_takes_no_memory():
    """Only the floor moves."""
    acks = LedgerAcks()
    for first in range(0, 100_000, 100):
        acks.add_range(first, first + 99)
    assert acks.floor == 100_000
    assert len(acks.bits) == 0


def test_a_complete_ledger_gives_its_memory_back():
    """A closed ledger of which everything is acknowledged keeps no bitmap."""
    acks = LedgerAcks(250_000)
    order = list(range(250_000))
    random.Random(3).shuffle(order)
    tracemalloc.start()
    for start in range(0, 250_000, 1000):
        group = order[start : start + 1000]
        acks.add_list(min(group), max(group), group)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000
    assert acks.complete
    assert len(acks.bits) == 0


@pytest.mark.parametrize("entries", [OPEN, 0])
def test_a_new_ledger(entries: int):
    """Nothing is acknowledged; a closed ledger without entries is complete at once."""
    acks = LedgerAcks(entries)
    assert (acks.floor, acks.window(), acks.complete) == (0, b"", entries == 0)
    assert acks.next_unacked(7) == 7
    assert acks.next_acked(0) == -1
