"""The temporary directories of stores in memory: made, removed, swept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embeddedpulsar.platform.filesystem import DirectoryLease
from embeddedpulsar.topic import store_root
from embeddedpulsar.topic.store import Store


@pytest.fixture
def parent(tmp_path: Path, monkeypatch) -> Path:
    """Stands in for /dev/shm."""
    monkeypatch.setattr(store_root, "SHARED_MEMORY", str(tmp_path))
    return tmp_path


def test_a_store_lies_in_shared_memory_or_among_the_temporary_files(parent: Path, monkeypatch):
    """The fallback is used where there is no /dev/shm."""
    store = Store.open("memory://")
    assert Path(store.root).parent == parent
    store.release()
    monkeypatch.setattr(store_root, "SHARED_MEMORY", str(parent / "absent"))
    store = Store.open("memory://")
    assert Path(store.root).parent != parent
    store.release()
    assert not os.path.exists(store.root)


def test_whoever_comes_next_removes_what_killed_processes_left(parent: Path):
    """Only directories whose lease is free, that were finished, and are one's own."""
    left = Path(store_root.create())
    (left / "store.meta").write_bytes(b"x")
    (left / "topics").mkdir()
    in_use = Path(store_root.create())
    assert not left.exists()
    (in_use / "store.meta").write_bytes(b"x")
    lease = DirectoryLease.open(str(in_use))
    assert lease.try_shared()
    unfinished = Path(store_root.create())
    third = Path(store_root.create())
    assert in_use.exists() and unfinished.exists() and third.exists()
    lease.close()
    store_root.create()
    assert not in_use.exists()
