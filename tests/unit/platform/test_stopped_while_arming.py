"""A thread that is stopped while it arms a timer, for so long that the timer runs before it is stored.

A laptop that sleeps, a debugger, SIGSTOP and a machine under load do that. What is armed later must be.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from embeddedpulsar._engine.platform.package_log import DamageChannel
from embeddedpulsar._engine.platform.timing import BackgroundWork, SchedulerClosed, Timer, call_logged
from embeddedpulsar._engine.store.housekeeping import Housekeeping
from embeddedpulsar._engine.subscription.subscription_files import StateFlusher
from embeddedpulsar.client.consumer.due_entries import DueEntries
from embeddedpulsar.exceptions import LockTimeout
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler
from tests.ledger_site import LedgerSite, send


class OvertakenScheduler(ManualScheduler):
    """The first timer runs before `call_later` returns it."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.is_first = True

    def call_later(self, delay_s: float, function: Callable[[], object]) -> Timer:
        """As of `Scheduler`, and that long passes before it returns."""
        timer = super().call_later(delay_s, function)
        if self.is_first:
            self.is_first = False
            self.clock.advance(max(0.0, delay_s))
            self.run_due()
        return timer


@pytest.fixture
def scheduler() -> OvertakenScheduler:
    return OvertakenScheduler(ManualClock())


def test_background_work_is_done_again(scheduler: OvertakenScheduler):
    """What is asked for after the timer ran has a timer of its own."""
    done: list[float] = []
    work = BackgroundWork(scheduler.call_later, lambda: done.append(scheduler.clock.monotonic()))
    work.after(1.0)
    work.after(1.0)
    scheduler.clock.advance(1.0)
    scheduler.run_due()
    assert len(done) == 2


def test_housekeeping_looks_again(scheduler: OvertakenScheduler, tmp_path: Path):
    """At each topic that becomes due later."""
    looks: list[str] = []

    def do_chores(done: list[str]) -> bool:
        looks.append("look")
        return False

    topic = SimpleNamespace(name="t", do_chores=do_chores, chores_every_s=lambda: 0.0, is_deleted=False)
    owner = SimpleNamespace(chores=scheduler, check_in_place=int, damage=DamageChannel())
    housekeeping = Housekeeping(str(tmp_path / "lock"), owner, 120, scheduler.clock.monotonic)
    housekeeping.look_at(topic)
    housekeeping.look_at(topic)
    scheduler.clock.advance(1.0)
    scheduler.run_due()
    assert len(looks) == 2


def test_entries_of_level_interval_are_flushed(tmp_path: Path):
    """The timer of the first is overtaken."""
    clock = ManualClock()
    with LedgerSite(tmp_path, clock=clock) as site:
        scheduler = OvertakenScheduler(clock)
        ledger = site.open(scheduler=scheduler)
        for _ in range(2):
            send(ledger, b"x", "interval")
        clock.advance(60.0)
        scheduler.run_due()
        assert ledger.statistics().is_synced


def test_a_subscription_is_flushed(scheduler: OvertakenScheduler):
    """Between two commits, its journal of level interval."""
    flushes: list[str] = []
    journal = SimpleNamespace(sync=lambda: flushes.append("flush"))
    options = SimpleNamespace(durability="interval", scheduler=scheduler, interval_s=1.0)
    upkeep = StateFlusher("", journal, options, lambda: len(flushes) > 0)  # type: ignore[arg-type]
    upkeep._names_are_durable = True
    upkeep.note_dirty()
    upkeep.note_dirty()
    assert scheduler.next_due() is not None


class OvertakenEntries(DueEntries):
    """Says when its timer runs."""

    __slots__ = ("runs",)

    def _take_due(self) -> list[tuple[int, int]]:
        self.runs.set()
        return super()._take_due()


def test_a_negative_acknowledgement_is_redelivered():
    """Its timer runs before it is stored, and the subscription's lock is held: it is tried again later."""
    clock = ManualClock()
    scheduler = ManualScheduler(clock)
    redelivered: list[tuple[int, int]] = []
    threads: list[threading.Thread] = []

    def call_later(delay_s: float, function: Callable[[], object]) -> Timer:
        timer = scheduler.call_later(delay_s, function)
        if not threads:
            clock.advance(delay_s)
            threads.append(threading.Thread(target=scheduler.run_due))
            threads[0].start()
            assert entries.runs.wait(30)
        return timer

    def redeliver(positions: list[tuple[int, int]]) -> None:
        if threading.current_thread() in threads:
            raise LockTimeout("held")
        redelivered.extend(positions)

    entries = OvertakenEntries(10, lambda _: 100, redeliver, call_later, clock.monotonic)
    entries.runs = threading.Event()
    entries.schedule((1, 2))
    threads[0].join()
    clock.advance(5.0)
    scheduler.run_due()
    assert redelivered == [(1, 2)]


def test_an_entry_whose_timer_an_interrupt_prevented(scheduler: OvertakenScheduler):
    """The application gives it back again."""
    redelivered: list[tuple[int, int]] = []
    interrupts = [KeyboardInterrupt]

    def call_later(delay_s: float, function: Callable[[], object]) -> Timer:
        if interrupts:
            raise interrupts.pop()
        return ManualScheduler.call_later(scheduler, delay_s, function)

    entries = DueEntries(10, lambda _: 100, redelivered.extend, call_later, scheduler.clock.monotonic)
    with pytest.raises(KeyboardInterrupt):
        entries.schedule((1, 2))
    entries.schedule((1, 2))
    scheduler.clock.advance(5.0)
    scheduler.run_due()
    assert redelivered == [(1, 2)]


def test_arming_again_while_the_client_closes_is_not_logged(
    scheduler: OvertakenScheduler, caplog: pytest.LogCaptureFixture
):
    """It is no failure."""
    scheduler.close()

    def arm_again() -> None:
        with pytest.raises(SchedulerClosed):
            scheduler.call_later(1.0, arm_again)
        scheduler.call_later(1.0, arm_again)

    call_logged(arm_again)
    assert caplog.records == []
