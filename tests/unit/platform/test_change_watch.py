"""Waiting for files, sockets and calls."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar._engine.platform.change_watch import ChangeWatch

LONG_S = 30.0


@pytest.fixture
def watch() -> Iterator[ChangeWatch]:
    """One that gives its descriptors back."""
    before = set(os.listdir("/proc/self/fd"))
    made = ChangeWatch()
    yield made
    made.close()
    made.close()
    made.wake()
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_a_call_ends_one_wait(watch: ChangeWatch):
    """Also one that came before, and however many came."""
    for _ in range(100_000):
        watch.wake()
    assert watch.wait(LONG_S)
    assert not watch.wait(0)


@pytest.mark.linux("inotify")
@pytest.mark.parametrize("name", ["app.db", "app.db-wal", "app.db-journal"])
def test_changes_of_a_file_and_those_beside_it(watch: ChangeWatch, tmp_path: Path, name: str):
    """Writing, making and removing one; a file of another name changes nothing."""
    assert watch.watch_files(str(tmp_path / "app.db"))
    (tmp_path / name).write_text("a")
    assert watch.wait(LONG_S)
    assert not watch.wait(0)
    (tmp_path / "other.db").write_text("a")
    assert not watch.wait(0.01)
    with open(tmp_path / name, "r+") as file:
        file.write("b")
        file.flush()
        assert watch.wait(LONG_S)
    watch.wait(0)
    os.unlink(tmp_path / name)
    assert watch.wait(LONG_S)
    watch.unwatch()
    (tmp_path / name).write_text("c")
    assert not watch.wait(0)


def test_a_file_in_a_directory_that_is_not_there(watch: ChangeWatch, tmp_path: Path):
    """The caller looks from time to time."""
    assert not watch.watch_files(str(tmp_path / "gone" / "app.db"))


@pytest.mark.linux("inotify")
def test_a_link_is_followed(watch: ChangeWatch, tmp_path: Path):
    """The changes are those of the file."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "app.db")
    assert watch.watch_files(str(tmp_path / "link.db"))
    (tmp_path / "real" / "app.db").write_text("a")
    assert watch.wait(LONG_S)


def test_data_at_a_socket(watch: ChangeWatch):
    """Until it is read; the caller reads it."""
    ours, theirs = socket.socketpair()
    watch.watch_socket(ours.fileno())
    assert not watch.wait(0)
    theirs.send(b"x")
    assert watch.wait(LONG_S)
    ours.recv(1)
    assert not watch.wait(0)
    ours.close()
    watch.unwatch()
    theirs.close()
