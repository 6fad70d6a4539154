"""Offloading by the settings of broker.conf: by size, by age, after the lag, and not at all by default."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from embeddedpulsar import Admin
from embeddedpulsar._engine.platform import timing
from embeddedpulsar.testing.trial_store import assert_clean
from tests.conformance.manual_time import ManualTime
from tests.conformance.pool import write_settings

BASE = {
    "managedLedgerMaxEntriesPerLedger": 1,
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
}
BY_SIZE = {"managedLedgerOffloadAutoTriggerSizeThresholdBytes": 0}
BY_AGE = {"managedLedgerOffloadThresholdInSeconds": 100}
AT_ONCE = {"managedLedgerOffloadDeletionLagMs": 0}


def offloaded(path: Path, settings: dict[str, object], seconds: int = 400) -> tuple[int, int]:
    """Publish five ledgers and let time pass. Returns how many are offloaded, and how many logs are left."""
    write_settings(path, **BASE, **settings)
    time = ManualTime(path)
    with contextlib.closing(time), Admin(path) as admin:
        with time.client.create_producer("orders", batching_enabled=False) as producer:
            for _ in range(5):
                producer.send(bytes(1000))
                time.pass_ms(10)
        until = timing.perf_counter() + 30
        for _ in range(seconds // 100):
            time.pass_ms(100_000)
            while admin.topics().offload_status("orders").status == "RUNNING":
                assert timing.perf_counter() < until
        ledgers = admin.topics().get_internal_stats("orders").ledgers
        found = sum(one.offloaded for one in ledgers)
    assert_clean(path)
    return found, len(list(path.glob("topics/**/*.log")))


def test_by_default(tmp_path: Path):
    """A location alone moves nothing, and a threshold without a location neither."""
    assert offloaded(tmp_path / "a", {"managedLedgerOffloadLocation": tmp_path / "cold"}) == (0, 5)
    assert offloaded(tmp_path / "b", BY_SIZE) == (0, 5)


@pytest.mark.parametrize("rule", [BY_SIZE, BY_AGE])
def test_closed_ledgers_are_moved(tmp_path: Path, rule: dict[str, object]):
    """By size or by age; the log goes after four hours by default."""
    where: dict[str, object] = {"managedLedgerOffloadLocation": tmp_path / "cold"}
    assert offloaded(tmp_path / "a", where | rule) == (4, 5)
    assert offloaded(tmp_path / "b", where | rule | AT_ONCE) == (4, 1)
    assert offloaded(tmp_path / "c", where | rule, seconds=15_000) == (4, 1)


def test_a_ledger_is_moved_once_it_is_old_enough(tmp_path: Path):
    """Not before the time that the setting gives."""
    settings = {
        "managedLedgerOffloadLocation": tmp_path / "cold",
        "managedLedgerOffloadThresholdInSeconds": 1000,
    }
    assert offloaded(tmp_path / "a", settings, seconds=900) == (0, 5)
    assert offloaded(tmp_path / "b", settings, seconds=1300) == (4, 5)
