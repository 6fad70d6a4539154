"""An interrupt in the middle of a roll."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from embeddedpulsar._engine.log import segment_writer, trimming
from embeddedpulsar._engine.log.log_check import check_topic
from embeddedpulsar._engine.log.segment import Segment
from embeddedpulsar.testing.manual_clock import ManualClock
from tests.ledger_site import LedgerSite, send
from tests.strikes import strike

ENOUGH_LEDGERS = 5
"""So many have been begun when some interrupts came behind the switch to a new tail."""


def test_a_roll_that_is_interrupted_counts_the_ledger_before_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Ctrl-C at each instruction of it. An append after that rolls again if the tail is still the old one."""
    start_ledger = trimming.start_ledger
    sent = 0

    def interrupt() -> None:
        raise KeyboardInterrupt

    def under_fire(*arguments: object, **options: object) -> Segment:
        started: list[Segment] = []
        strike(
            lambda: started.append(start_ledger(*arguments, **options)),
            interrupt,
            sent,
            "_engine/log/trimming.py",
        )
        return started[0]

    with LedgerSite(tmp_path, clock=ManualClock()) as site:
        ledger = site.open(segment_size=64 << 10)
        send(ledger, b"x")
        while ledger.statistics().ledgers < ENOUGH_LEDGERS:
            with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
                patch.setattr(segment_writer, "start_ledger", under_fire)
                ledger.roll()
            sent += 1
            send(ledger, b"x")
            totals = ledger.statistics()
            assert (totals.total_entries, totals.total_messages) == (sent + 1, sent + 1)
        assert sent > 100
        assert check_topic(ledger.directory).is_clean
