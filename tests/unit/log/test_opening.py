"""Reports of damage reach somebody, once, and outside the lock."""

from __future__ import annotations

from pathlib import Path

from embeddedpulsar._engine.filenames import control_path
from embeddedpulsar._engine.log.log_opening import DamageLog
from embeddedpulsar.damage import Damage
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler
from tests.support.ledger_files import LedgerIds, open_ledger


def report(offset: int) -> Damage:
    """Some damage."""
    return Damage("t/1.log", 1, 0, 0, offset, offset + 8, "broken")


def test_each_stretch_is_told_once():
    """However many readers meet it."""
    told: list[Damage] = []
    log = DamageLog("t", lambda: False, ManualScheduler(ManualClock()).call_later, told.append)
    for offset in (1, 2, 1, 2, 3):
        log.report(report(offset))
    assert [damage.offset for damage in told] == [1, 2, 3] and log.count == 3


def test_nothing_is_told_under_the_lock():
    """What is met inside is told by the timer, or with the next report from outside."""
    told: list[Damage] = []
    locked = [True]
    timers = ManualScheduler(ManualClock())
    log = DamageLog("t", lambda: locked[0], timers.call_later, told.append)
    log.report(report(1))
    assert not told
    timers.run_due()
    assert [damage.offset for damage in told] == [1]
    log.report(report(2))
    locked[0] = False
    log.report(report(2))
    assert [damage.offset for damage in told] == [1, 2]


def test_the_hook_can_be_changed():
    """Reports go to whoever asks at that time."""
    told: list[Damage] = []
    log = DamageLog("t", lambda: False, ManualScheduler(ManualClock()).call_later, lambda _: None)
    log.report(report(1))
    log.hook = told.append
    log.report(report(2))
    assert [damage.offset for damage in told] == [2]


def test_what_an_opening_finds_is_told_by_it(tmp_path: Path):
    """Control words that were derived again under the lock: no timer has to run first."""
    told: list[Damage] = []
    ids, clock = LedgerIds(), ManualClock()
    timers = ManualScheduler(clock)
    open_ledger(tmp_path, ids, clock, timers).close()
    control = Path(control_path(tmp_path))
    control.write_bytes(bytes([control.read_bytes()[0] ^ 1]) + control.read_bytes()[1:])
    open_ledger(tmp_path, ids, clock, timers, damage=told.append).close()
    assert [damage.kind for damage in told] == ["control file"]
