"""Flushing while another process is stopped in its flush, or in the lock of the topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar._engine.filenames import lock_path, sync_lock_path
from embeddedpulsar._engine.platform import disk, timing
from embeddedpulsar.exceptions import LockTimeout, PoisonedSegment
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler
from tests.ledger_site import LedgerSite, send
from tests.support.disks.faulty_disk import FaultyDisk
from tests.support.held_elsewhere import held_elsewhere


def test_the_timer_of_level_interval_tries(tmp_path: Path):
    """It waits for no lock, and flushes within 50 ms of the release."""
    clock = ManualClock()
    timers = ManualScheduler(clock)
    with LedgerSite(tmp_path, clock=clock) as site:
        ledger = site.open(durability="interval", interval_ms=500, scheduler=timers)
        send(ledger, b"x")
        with held_elsewhere(sync_lock_path(site.directory)):
            clock.advance(0.5)
            timers.run_due()
            clock.advance(0.001)
            timers.run_due()
            assert not ledger.statistics().is_synced
            assert timers.pending == 1
            send(ledger, b"y")
            assert timers.pending == 1
        clock.advance(0.05)
        timers.run_due()
        assert ledger.statistics().is_synced
        assert timers.pending == 0


def test_a_flush_that_failed_is_not_forgotten_behind_a_stuck_topic(tmp_path: Path):
    """The topic's lock is not to be had, so the failure cannot be written down yet: no later flush reports
    success, and when the topic is free all processes learn of it."""
    with disk.use(FaultyDisk()) as faulty, LedgerSite(tmp_path, clock=ManualClock()) as site:
        ledger = site.open()
        other = site.open()
        send(ledger, b"before", "flush")
        send(ledger, b"unknown")
        faulty.fail("fdatasync")
        with held_elsewhere(lock_path(site.directory)):
            for _ in range(2):  # the second fdatasync would succeed
                with pytest.raises(LockTimeout):
                    timing.within(0.01, ledger.sync)
                assert not ledger.statistics().is_synced
        with pytest.raises(PoisonedSegment):
            ledger.sync()
        with pytest.raises(PoisonedSegment):
            other.wait_durable(other.tail)
        send(ledger, b"after", "flush")
