"""Logs as a crash may leave them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.log_builder import LogBuilder


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    """A topic directory to fill."""
    return LogBuilder(tmp_path / "topic")
