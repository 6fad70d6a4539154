"""Unit tests of embeddedpulsar.cold.location: what a power loss and a fork leave of a local location."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from embeddedpulsar.cold.location import location_of
from embeddedpulsar.platform import disk, fork
from tests.children import in_child


def test_a_file_and_its_directories_survive_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of new directories are flushed in those above them, and a removal is flushed, too."""
    flushed: list[str] = []
    monkeypatch.setattr(type(disk.DISK), "fsync_dir", lambda self, path: flushed.append(path))
    location = location_of(str(tmp_path))
    location.write("a/b/first", io.BytesIO(b"1"))
    assert flushed == [str(tmp_path / "a" / "b"), str(tmp_path / "a"), str(tmp_path)]
    flushed.clear()
    location.write("a/b/second", io.BytesIO(b"2"))
    assert flushed == [str(tmp_path / "a" / "b")]
    location.delete("a/b/first")
    location.delete("a/b/first")
    assert flushed == 2 * [str(tmp_path / "a" / "b")]


def test_a_forked_child_has_connections_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One location for a URI, and another one after a fork."""
    before = location_of(str(tmp_path))
    assert location_of(str(tmp_path)) is before
    monkeypatch.setattr(fork, "GENERATION", fork.GENERATION + 1)
    assert location_of(str(tmp_path)) is not before


def test_a_forked_child_closes_what_is_open(tmp_path: Path) -> None:
    """Its number is another file's before long. The parent reads on."""
    location = location_of(str(tmp_path))
    location.write("table", io.BytesIO(b"12345678"))
    with location.open("table") as file:
        assert file.read(2) == b"12"
        assert in_child(lambda: file.closed) == "True"
        assert file.read(2) == b"34"
