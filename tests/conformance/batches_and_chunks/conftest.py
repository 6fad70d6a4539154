"""Stores whose entries hold little, so that short messages are sent in parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.chunks import use_small_entries
from tests.conformance.manual_time import ManualTime


@pytest.fixture
def small_entries(store_path: Path) -> None:
    """Entries hold `LIMIT` bytes. To be asked for before the client."""
    use_small_entries(store_path)


@pytest.fixture
def clocked(store_path: Path, time: ManualTime) -> ManualTime:
    """A store with such entries on a clock that the test moves."""
    time.close()
    use_small_entries(store_path)
    time.reopen()
    return time
