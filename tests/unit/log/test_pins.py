"""Pins: which of them count, and when they go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embeddedpulsar._engine.filenames import lock_path
from embeddedpulsar._engine.log.trimming import (
    LEASE_S,
    pin_for_commit,
    pin_for_plan,
    pin_for_reading,
    pinned_from,
    pinned_word,
    unpin,
)
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.mapped_file import remove_if_free
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
from embeddedpulsar.message_id import Position

NOW = 1_800_000_000_000
LATER = NOW + LEASE_S * 1000 + 1
LATEST = LATER + LEASE_S * 1000 + 1


def test_a_reader_pins_while_it_lives_and_for_a_lease(tmp_path: Path):
    """Its file may be shared; the lease counts from the last use, and from when it was seen in use."""
    directory = str(tmp_path)
    assert pinned_from(directory, NOW, removes=True) is None
    first = pin_for_reading(directory, 7, NOW)
    second = pin_for_reading(directory, 7, NOW)
    third = pin_for_reading(directory, 9, NOW)
    assert first and second and third
    first.close()
    third.close()
    assert pinned_from(directory, LATER, removes=True) == Position(7, -1)
    assert len(os.listdir(tmp_path / "pins")) == 1
    second.close()
    assert pinned_from(directory, LATER + 1, removes=True) == Position(7, -1)
    assert pinned_from(directory, LATEST, removes=False) is None
    assert os.listdir(tmp_path / "pins")
    assert pinned_from(directory, LATEST, removes=True) is None
    assert not os.listdir(tmp_path / "pins")


def test_a_new_pin_shows(tmp_path: Path):
    """A trimming that looked before notices that a pin came, also one that revives another."""
    directory = str(tmp_path)
    words = [pinned_word(directory)]
    for _ in range(3):
        held = pin_for_reading(directory, 7, NOW)
        assert held
        held.close()
        words.append(pinned_word(directory))
    assert len(set(words)) == 4


def test_a_pin_of_a_commit_lasts_as_long_as_its_document(tmp_path: Path):
    """Whatever time has passed; before the document is there, the lease counts."""
    directory, pending = str(tmp_path / "topic"), tmp_path / "sinks" / "key" / "pending"
    os.makedirs(directory)
    pending.parent.mkdir(parents=True)
    pin_for_commit(directory, 5, "key", str(pending), NOW)
    assert pinned_from(directory, NOW, removes=True) == Position(5, -1)
    pending.write_bytes(b"")
    (tmp_path / "moved").mkdir()
    os.rename(directory, tmp_path / "moved" / "topic")
    os.rename(tmp_path / "sinks", tmp_path / "moved" / "sinks")
    moved = str(tmp_path / "moved" / "topic")
    assert pinned_from(moved, LATER, removes=True) == Position(5, -1)
    reader = pin_for_reading(moved, 3, NOW)
    assert pinned_from(moved, NOW, removes=True) == Position(3, -1)
    assert pinned_from(moved, NOW, removes=True, with_readers=False) == Position(5, -1)
    assert reader
    reader.close()
    os.unlink(f"{moved}/pins/{3:020d}")
    unpin(moved, "key")
    assert pinned_from(moved, NOW, removes=True) is None
    for missing in (
        tmp_path / "none",
        tmp_path / "moved" / "sinks" / "key" / "none",
        tmp_path / "moved" / "sinks",
    ):
        pin_for_commit(moved, 5, "key", str(missing), NOW)
        assert pinned_from(moved, LATER, removes=True) is None
    (tmp_path / "elsewhere").write_bytes(b"")
    pin_for_commit(moved, 5, "key", str(tmp_path / "elsewhere"), NOW)
    assert pinned_from(moved, LATER, removes=True) is None  # it names no document of its sink
    assert not os.listdir(f"{moved}/pins")


def test_a_file_that_is_removed_as_it_is_taken_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The pin that a reader holds is the one that has the name."""
    from embeddedpulsar._engine.platform import mapped_file

    taken, real = [], mapped_file.flock

    def flock(fd: int, operation: int) -> object:
        if operation == mapped_file._SHARED and not taken:
            taken.append(fd)
            os.unlink(tmp_path / "pins" / f"{7:020d}")
        return real(fd, operation)

    monkeypatch.setattr(mapped_file, "flock", flock)
    held = pin_for_reading(str(tmp_path), 7, NOW)
    assert held and taken
    assert not remove_if_free(str(tmp_path / "pins" / f"{7:020d}"))
    held.close()


def test_a_reader_that_may_not_write_reads_unpinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """There is no error."""
    monkeypatch.setattr(os, "mkdir", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "no")))
    assert pin_for_reading(str(tmp_path), 7, NOW) is None


def test_a_plan_pins_before_it_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It takes the lock of the topic once, behind the pin: a trimming that did not see the pin is then over.
    One that holds the lock for long is not waited for."""
    directory = str(tmp_path)
    seen: list[bool] = []
    real = FileLock.acquire

    def acquire(lock: FileLock, timeout_s: float = 30.0) -> None:
        seen.append(bool(os.listdir(tmp_path / "pins")))
        real(lock, timeout_s)

    monkeypatch.setattr(FileLock, "acquire", acquire)
    held = pin_for_plan(directory, 7)
    assert held and seen == [True]
    held.close()
    monkeypatch.undo()
    monkeypatch.setattr("embeddedpulsar._engine.log.trimming._PATIENCE_S", 0.01)
    lock = FileLock(lock_path(directory))
    try:
        lock.acquire()
        busy = pin_for_plan(directory, 9)
    finally:
        lock.release()
        lock.close()
    assert busy and pinned_from(directory, SYSTEM_CLOCK.wall_ms(), removes=False) == Position(7, -1)
    busy.close()


def test_a_deleted_topic_is_not_pinned(tmp_path: Path):
    """Nothing is made in its place."""
    assert pin_for_plan(str(tmp_path / "gone"), 7) is None
    assert not os.listdir(tmp_path)
