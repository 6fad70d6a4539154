"""Keys for encrypted messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import CryptoKeyReader


@pytest.fixture
def keys(tmp_path: Path) -> CryptoKeyReader:
    """A key pair in files."""
    from tests.support.key_files import key_files  # it needs the extra `crypto`

    return key_files(tmp_path, "ec")
