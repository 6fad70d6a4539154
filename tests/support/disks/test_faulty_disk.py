"""The disk whose Nth call fails."""

from __future__ import annotations

import errno
import os

import pytest

from embeddedpulsar.exceptions import StorageFullError
from tests.support.disks.faulty_disk import FaultyDisk


def test_the_nth_call_fails_once(tmp_path):
    """Calls before and after it work."""
    faulty = FaultyDisk()
    faulty.fail("mkdir", nth=2, errno=errno.EACCES)
    faulty.mkdir(str(tmp_path / "a"))
    with pytest.raises(PermissionError):
        faulty.mkdir(str(tmp_path / "b"))
    faulty.mkdir(str(tmp_path / "b"))
    assert faulty.count == 3


def test_several_calls_fail_in_a_row(tmp_path):
    """As on a disk that stays full."""
    faulty = FaultyDisk()
    faulty.fail("mkdir", times=2, errno=errno.ENOSPC)
    for _ in range(2):
        with pytest.raises(StorageFullError):
            faulty.mkdir(str(tmp_path / "a"))
    faulty.mkdir(str(tmp_path / "a"))


def test_only_the_path_meant_is_counted(tmp_path):
    """A fault can name a file."""
    faulty = FaultyDisk()
    faulty.fail("mkdir", path="second")
    faulty.mkdir(str(tmp_path / "first"))
    with pytest.raises(OSError, match="Input/output"):
        faulty.mkdir(str(tmp_path / "second"))


def test_heal_forgets_the_plan(tmp_path):
    """Nothing fails any more."""
    faulty = FaultyDisk()
    faulty.fail(times=100)
    faulty.heal()
    faulty.mkdir(str(tmp_path / "a"))


def test_a_full_disk_takes_the_first_half(tmp_path):
    """A failing write may have written something."""
    faulty = FaultyDisk()
    fd = faulty.create_exclusive(str(tmp_path / "file"))
    faulty.fail("pwrite_all", errno=errno.ENOSPC)
    with pytest.raises(StorageFullError) as caught:
        faulty.pwrite_all(fd, [b"abcd", b"efgh"], 0)
    assert caught.value.errno == errno.ENOSPC
    assert os.pread(fd, 100, 0) == b"abcd"
    os.close(fd)


def test_every_call_of_a_script_can_fail(tmp_path):
    """Count once, then fail each in turn: what the tests of the layers above do."""

    def script(disk: FaultyDisk) -> None:
        disk.atomic_write(str(tmp_path / "document"), b"x", True)
        fd = disk.open_file(str(tmp_path / "document"), os.O_RDWR)
        try:
            disk.fallocate(fd, 0, 4096)
            disk.truncate_new(fd, 8192)
            disk.fdatasync(fd, str(tmp_path / "document"))
            disk.pread(fd, 10, 0)
        finally:
            os.close(fd)
        disk.mkdir(str(tmp_path / "directory"))
        disk.rmdir(str(tmp_path / "directory"))
        disk.unlink(str(tmp_path / "document"))

    counting = FaultyDisk()
    script(counting)
    assert counting.count == len(counting.log) > 10
    for nth in range(1, counting.count + 1):
        faulty = FaultyDisk()
        faulty.fail(nth=nth)
        with pytest.raises(OSError, match="Input/output"):
            script(faulty)
        for left in tmp_path.iterdir():
            left.rmdir() if left.is_dir() else left.unlink()


def test_on_call_sees_every_call(tmp_path):
    """A test can look at the disk before each call."""
    seen: list[tuple[str, str]] = []
    faulty = FaultyDisk()
    faulty.on_call = lambda call, path: seen.append((call, path))
    faulty.mkdir(str(tmp_path / "a"))
    assert seen == [("mkdir", str(tmp_path / "a"))]
