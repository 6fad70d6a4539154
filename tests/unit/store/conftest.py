"""A store without a client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar._engine.store.store import Store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    """An open store, closed at the end unless the test did so."""
    opened = Store.open(root)
    yield opened
    if not opened.closed:
        opened.release()
