"""Stores of the tests of adapters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from embeddedpulsar.testing.trial_store import assert_clean


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    """A store that is whole in the end."""
    yield str(tmp_path / "store")
    assert_clean(tmp_path / "store")


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    """Closed before the store is checked."""
    with ExitStack() as stack:
        yield stack
