"""Unit tests of embeddedpulsar._engine.platform.mapped_file: who removes a file that others may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar._engine.platform import mapped_file
from embeddedpulsar._engine.platform.file_lock import flock
from embeddedpulsar._engine.platform.mapped_file import HeldFile, is_held, remove_if_free


def test_of_two_that_remove_one_leaves_what_came_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was removed, made again and is held, between the opening and the locking of the second."""
    path = str(tmp_path / "7")
    HeldFile.open(path).close()
    held: list[HeldFile] = []

    def late(fd: int, operation: int) -> Any:
        monkeypatch.setattr(mapped_file, "flock", flock)
        assert remove_if_free(path)
        held.append(HeldFile.open(path))
        return flock(fd, operation)

    monkeypatch.setattr(mapped_file, "flock", late)
    assert not remove_if_free(path)
    assert is_held(path)
    held[0].close()
    assert remove_if_free(path) and remove_if_free(path)
