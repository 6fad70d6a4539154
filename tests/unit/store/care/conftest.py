"""Copies of a store that a module makes once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.store_copies import copy_store


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    """A copy of the store that the module calls `original`, for one test."""
    return copy_store(original, tmp_path / "store")
