"""What tests of the log have: logs as a crash may leave them, a place for ledgers, a disk that fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar._engine.platform import disk
from embeddedpulsar.testing.manual_clock import ManualClock
from tests.ledger_site import LedgerSite
from tests.log_builder import LogBuilder
from tests.support.disks.faulty_disk import FaultyDisk


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    """A topic directory to fill."""
    return LogBuilder(tmp_path / "topic")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LedgerSite]:
    """A place for ledgers, with a clock that the test moves."""
    with LedgerSite(tmp_path, clock=ManualClock()) as place:
        yield place


@pytest.fixture
def faulty() -> Iterator[FaultyDisk]:
    """A disk that counts and fails calls."""
    with disk.use(FaultyDisk()) as used:
        assert isinstance(used, FaultyDisk)
        yield used
