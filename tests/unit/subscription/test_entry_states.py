"""One byte per entry, and counts of redeliveries that grow beyond one."""

from __future__ import annotations

from embeddedpulsar.format.dispatch_record import FreshRun
from embeddedpulsar.subscription.pending_entries import PendingEntries


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
