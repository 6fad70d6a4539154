"""Empty files that get their name when they have their rights."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from embeddedpulsar._engine.platform import disk


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """The path of a file in a directory that a group shares."""
    tmp_path.chmod(0o2770)
    return tmp_path / "lock"


def test_the_file_has_the_rights_of_its_directory(lock: Path):
    """A second call leaves it as it is."""
    disk.make_empty(str(lock))
    assert lock.stat().st_mode & 0o7777 == 0o660 and os.listdir(lock.parent) == ["lock"]
    lock.write_bytes(b"x")
    disk.make_empty(str(lock))
    assert lock.read_bytes() == b"x" and os.listdir(lock.parent) == ["lock"]


@pytest.mark.skipif(not disk._UNNAMED, reason="the system has no files without a name")
@pytest.mark.parametrize("step", ["link", "fstat"])
def test_a_maker_that_dies_leaves_no_file(lock: Path, step: str):
    """No other process looks for one, unless the store is checked."""

    def make() -> None:
        setattr(os, step, lambda *_, **__: os._exit(7))
        disk.make_empty(str(lock))

    pid = os.fork()
    if not pid:
        make()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert os.listdir(lock.parent) == []


@pytest.mark.linux("files without a name")
@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL])
def test_without_such_files(lock: Path, monkeypatch: pytest.MonkeyPatch, code: int):
    """An old kernel, or NFS: by another name."""
    real = os.open

    def refuse(path: str, flags: int, mode: int = 0o777, **options: int) -> int:
        if flags & disk._UNNAMED == disk._UNNAMED:
            raise OSError(code, os.strerror(code))
        return real(path, flags, mode, **options)

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(disk, "_UNNAMED", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC)
    test_the_file_has_the_rights_of_its_directory(lock)


def test_without_proc_or_links(lock: Path, monkeypatch: pytest.MonkeyPatch):
    """The name comes first."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    test_the_file_has_the_rights_of_its_directory(lock)


def test_what_else_fails_is_reported(lock: Path):
    """A directory that is gone, for one."""
    with pytest.raises(FileNotFoundError, match="none"):
        disk.make_empty(str(lock.parent / "none" / "lock"))
