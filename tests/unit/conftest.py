"""What several folders of unit tests stand on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ledger_site import LedgerSite


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LedgerSite]:
    """The log of one topic, without a client."""
    with LedgerSite(tmp_path) as made:
        yield made
