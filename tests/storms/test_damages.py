"""Damage does what it says it did."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.storms.damages import KINDS, Damage, damage_file


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 100, 4096, 5 * 4096 + 7])
def test_only_what_is_told_changes(kind, size: int):
    """Bytes outside the ranges are what they were."""
    for seed in range(20):
        before = os.urandom(size)
        data = bytearray(before)
        done = kind(data, random.Random(seed))
        assert isinstance(done, Damage)
        for i, (old, new) in enumerate(zip(before, data, strict=False)):
            assert old == new or done.touches(i, i + 1)
        for i in range(len(data), size):
            assert done.touches(i, i + 1)


def test_files_are_damaged_in_place(tmp_path: Path):
    """The same inode; what lies behind `within` is mostly left alone."""
    path = tmp_path / "file"
    spared = 0
    for seed in range(60):
        before = os.urandom(9000)
        path.write_bytes(before)
        inode = path.stat().st_ino
        done = damage_file(str(path), random.Random(seed), 5000)
        assert path.stat().st_ino == inode
        data = path.read_bytes()
        assert data != before or done.name in ("a zeroed page", "swapped pages", "zeros", "a duplicated page")
        spared += data[5000:9000] == before[5000:]
    assert spared > 40
