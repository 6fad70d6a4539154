"""Timers that run when a test says so."""

from __future__ import annotations

import pytest

from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler


def test_manual_scheduler_runs_what_is_due():
    """Including what a timer makes due at once; the rest waits."""
    clock = ManualClock()
    scheduler = ManualScheduler(clock)
    order: list[str] = []
    scheduler.call_later(2, lambda: order.append("two"))
    scheduler.call_later(
        1, lambda: (order.append("one"), scheduler.call_later(0, lambda: order.append("then")))
    )
    scheduler.call_later(5, lambda: order.append("five"))
    assert scheduler.run_due() == 0
    assert scheduler.next_due() == clock.monotonic() + 1
    clock.advance(2)
    assert scheduler.run_due() == 3
    assert order == ["one", "two", "then"]
    assert scheduler.pending == 1
    scheduler.close()
    with pytest.raises(RuntimeError):
        scheduler.call_later(0, lambda: None)


def test_manual_scheduler_lets_errors_out():
    """A test sees what its timers raise."""
    clock = ManualClock()
    scheduler = ManualScheduler(clock)
    scheduler.call_later(0, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        scheduler.run_due()
