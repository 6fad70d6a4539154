"""One byte per entry, and counts of redeliveries that grow beyond one."""

from __future__ import annotations

from array import array

from embeddedpulsar._engine.format.subscription_record import FreshRun
from embeddedpulsar._engine.subscription.state.entry_states import EntryStates, moving
from embeddedpulsar._engine.subscription.state.pending_entries import PendingEntries


def counted(times: int) -> PendingEntries:
    """Two entries, of which the second came back ``times`` times."""
    pending = PendingEntries()
    pending.add(FreshRun(1, 0, 1, None, None))
    states = pending.ledger(1)
    for _ in range(times):
        states.count_redelivery([1])
    return pending


def test_counts_beyond_a_byte():
    """The 256th redelivery is counted like the others, and what is added later begins at 0."""
    pending = counted(300)
    pending.add(FreshRun(1, 2, 3, None, None))
    states = pending.ledger(1)
    assert [states.redeliveries(entry) for entry in range(4)] == [0, 300, 0, 0]
    states.forget_counts(0, 3)
    assert [states.redeliveries(entry) for entry in range(4)] == [0, 0, 0, 0]


def test_counts_in_snapshots():
    """Small and large counts come out of a snapshot as they went in, and canonically."""
    for times in (1, 255, 256, 100_000):
        packed = counted(times).pack({})
        again = PendingEntries()
        again.unpack(packed)
        assert again.ledger(1).redeliveries(1) == times
        assert again.pack({}) == packed


def test_gaps_keep_all_columns_together():
    """Damaged entries are stepped over: nobody's, of no messages, of no key, never redelivered."""
    states = EntryStates(5, [0] * 256)
    states.add(5, 5, array("I", (3,)), array("I", (9,)))
    states.count_redelivery([5])
    states.add(8, 8, None, None)
    assert [states.state(entry) for entry in range(4, 10)] == [0, 1, 0, 0, 1, 0]
    assert list(states.messages or ()) == [3, 0, 0, 1]
    assert list(states.hashes or ()) == [9, 0, 0, 0]
    assert [states.redeliveries(entry) for entry in range(5, 9)] == [1, 0, 0, 0]
    assert states.totals[1] == 4


def test_columns_that_come_late_are_filled_up():
    """Entries before had one message each, and no key."""
    states = EntryStates(0, [0] * 256)
    states.add(0, 1, None, None)
    states.add(2, 2, array("I", (4,)), array("I", (7,)))
    assert (list(states.messages or ()), list(states.hashes or ())) == ([1, 1, 4], [0, 0, 7])


def test_trimming():
    """Never beyond what is known, and nothing if there is nothing to let go of."""
    states = EntryStates(5, [0] * 256)
    states.add(5, 9, None, None)
    states.trim(5)
    states.trim(3)
    assert (states.base, states.end) == (5, 10)
    states.trim(7)
    assert (states.base, states.state(6), states.state(7)) == (7, 0, 1)
    states.trim(99)
    assert (states.base, states.end, bytes(states.states)) == (10, 10, b"")


def test_moving_reports_what_was():
    """From the first known entry on; unknown ones are left out."""
    states = EntryStates(5, [0] * 256)
    states.add(5, 8, array("I", (1, 2, 3, 4)), None)
    assert states.move(0, 6, moving(1, 4)) == b"\1\1"
    assert states.move(20, 30, moving(1, 4)) == b""
    assert states.move_some([4, 5, 8, 9], moving(4, 1)) == [(5, 4)]
    assert (states.totals[1], states.totals[4], states.totals[0]) == (8, 2, 0)
    assert list(states.runs(1)) == [(5, 5), (7, 8)]
    assert list(states.runs(1, 6, 7)) == [(7, 7)]
    assert (states.waiting(6), states.waiting(9)) == ((7, 8), None)
