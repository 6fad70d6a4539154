"""Consumers of processes that the test moves on, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.subscription.virtual_site import VirtualSite


@pytest.fixture
def site(tmp_path: Path) -> Iterator[VirtualSite]:
    """A subscription of virtual processes."""
    with VirtualSite(tmp_path) as made:
        yield made
