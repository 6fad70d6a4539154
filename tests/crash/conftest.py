"""Fixtures of the crash tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_IN_MEMORY = "/dev/shm"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    """An empty directory for thousands of small files and flushes: in memory where there is such a thing."""
    if not os.access(_IN_MEMORY, os.W_OK):
        yield tmp_path
        return
    path = tempfile.mkdtemp(prefix="storm-", dir=_IN_MEMORY)
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)
