"""The seam to the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
from pathlib import Path

import pytest

from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar._engine.platform.disk import Disk
from embeddedpulsar._engine.platform.failpoints import InjectedFailure
from embeddedpulsar.exceptions import StorageFullError
from tests.support.disks.faulty_disk import FaultyDisk


@pytest.fixture(params=["native", "portable"])
def real(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The real disk, with all that this system can do, and with nothing of it."""
    if request.param == "portable":
        monkeypatch.setattr(disk, "HAS_POSIX_FALLOCATE", False)
        monkeypatch.setattr(disk, "HAS_FDATASYNC", False)
        monkeypatch.setattr(disk, "HAS_PWRITE", False)
    return Disk()


@pytest.fixture
def fd(tmp_path):
    """An empty file."""
    made = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield made
    os.close(made)


@contextlib.contextmanager
def file_size_limit(size: int):
    """Let this process write no file beyond ``size``."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_fallocate_reserves_and_keeps(real: Disk, fd: int):
    """What is written stays, the rest reads zero and has blocks."""
    os.pwrite(fd, b"kept", 5000)
    real.fallocate(fd, 0, 20_000)
    assert os.fstat(fd).st_size == 20_000
    assert os.fstat(fd).st_blocks * 512 >= 20_000
    assert os.pread(fd, 20_000, 0) == bytes(5000) + b"kept" + bytes(20_000 - 5004)


def test_fallocate_grows_from_the_middle(real: Disk, fd: int):
    """Only the range asked for is touched."""
    os.pwrite(fd, b"a" * 100, 0)
    real.fallocate(fd, 200_000, 100_000)
    assert os.fstat(fd).st_size == 300_000
    assert os.pread(fd, 100, 0) == b"a" * 100
    real.fallocate(fd, 0, 0)
    assert os.fstat(fd).st_size == 300_000


def test_fallocate_says_that_the_disk_is_full(real: Disk, fd: int):
    """With the errno of the system, and without a trace of the range."""
    with file_size_limit(8192), pytest.raises(StorageFullError) as caught:
        real.fallocate(fd, 0, 100_000)
    assert caught.value.errno == errno.EFBIG
    assert "free space" in str(caught.value)


def test_truncate_new_never_shrinks(real: Disk, fd: int):
    """A file that somebody may have mapped only grows."""
    real.truncate_new(fd, 10_000)
    assert os.fstat(fd).st_size == 10_000
    real.truncate_new(fd, 10)
    assert os.fstat(fd).st_size == 10_000


def test_pwrite_all_writes_buffers_one_after_the_other(real: Disk, fd: int):
    """Whatever their kinds and number."""
    assert real.pwrite_all(fd, [b"ab", bytearray(b"cd"), memoryview(b"ef")], 3) == 6
    assert os.pread(fd, 100, 0) == b"\0\0\0abcdef"
    parts = [bytes([i % 256]) * (i % 7) for i in range(3000)]
    assert real.pwrite_all(fd, parts, 0) == sum(map(len, parts))
    assert os.pread(fd, 100_000, 0) == b"".join(parts)


def test_pwrite_all_goes_on_after_a_short_write(real: Disk, fd: int):
    """A write that stops at a limit is continued, and the error of the next try comes out."""
    with file_size_limit(1000), pytest.raises(StorageFullError) as caught:
        real.pwrite_all(fd, [b"x" * 600, b"y" * 600], 0)
    assert caught.value.errno == errno.EFBIG
    assert os.fstat(fd).st_size == 1000


def test_pread_is_short_at_the_end(real: Disk, fd: int):
    """As os.pread is."""
    os.pwrite(fd, b"abcdef", 0)
    assert real.pread(fd, 3, 2) == b"cde"
    assert real.pread(fd, 100, 4) == b"ef"
    assert real.pread(fd, 100, 50) == b""


def test_flushes_are_accepted(real: Disk, fd: int, tmp_path):
    """Of files and directories."""
    real.fsync(fd, str(tmp_path / "file"))
    real.fdatasync(fd, str(tmp_path / "file"))
    real.fsync_dir(str(tmp_path))


def test_full_fsync_goes_through_the_drive(fd: int, monkeypatch: pytest.MonkeyPatch):
    """On macOS both flushes use F_FULLFSYNC, because fsync there stops at the drive's cache."""
    import fcntl

    asked: list[int] = []
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, command: asked.append(command))
    monkeypatch.setattr(disk, "FULL_FSYNC", 51)
    Disk().fsync(fd, "file")
    Disk().fdatasync(fd, "file")
    assert asked == [51, 51]


def test_directories_are_not_flushed_where_that_is_impossible(monkeypatch: pytest.MonkeyPatch):
    """Windows cannot open one."""
    monkeypatch.setattr(disk, "HAS_DIRECTORY_FSYNC", False)
    Disk().fsync_dir("/nowhere/at/all")


def test_open_refuses_links(tmp_path):
    """Nobody can point our files elsewhere."""
    (tmp_path / "target").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic") as caught:
        Disk().open_file(str(tmp_path / "link"), os.O_RDWR)
    assert caught.value.errno == errno.ELOOP


def test_descriptors_are_not_inherited(tmp_path):
    """A program that is executed gets none of our files, and other users cannot read them."""
    fd = Disk().create_exclusive(str(tmp_path / "new"))
    assert not os.get_inheritable(fd)
    assert os.fstat(fd).st_mode & 0o777 == 0o600
    os.close(fd)
    with pytest.raises(FileExistsError):
        Disk().create_exclusive(str(tmp_path / "new"))


@pytest.mark.parametrize("durable", [True, False])
def test_atomic_write_replaces(tmp_path, durable: bool):
    """The new content, and no temporary left."""
    path = str(tmp_path / "document")
    Disk().atomic_write(path, b"one", durable)
    Disk().atomic_write(path, b"two", durable)
    assert (tmp_path / "document").read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["document"]


@pytest.mark.parametrize("step", ["document:written", "document:synced"])
def test_atomic_write_that_fails_leaves_the_old_document(tmp_path, step: str):
    """An error before the rename changes nothing, and the temporary is removed."""
    path = str(tmp_path / "document")
    Disk().atomic_write(path, b"old", True)
    failpoints.set(step, "raise")
    with pytest.raises(InjectedFailure):
        Disk().atomic_write(path, b"new", True)
    failpoints.clear()
    assert (tmp_path / "document").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["document"]


@pytest.mark.parametrize("step", ["document:replaced", "document:directory_synced"])
def test_atomic_write_that_fails_late_has_written(tmp_path, step: str):
    """After the rename the new document is what others see."""
    path = str(tmp_path / "document")
    failpoints.set(step, "raise")
    with pytest.raises(InjectedFailure):
        Disk().atomic_write(path, b"new", True)
    failpoints.clear()
    assert (tmp_path / "document").read_bytes() == b"new"


def test_use_puts_another_disk_in_place():
    """For a block, in tests."""
    other = Disk()
    before = disk.DISK
    with disk.use(other):
        assert disk.DISK is other
    assert disk.DISK is before


@pytest.mark.linux("names of open files, but for macOS")
def test_a_read_that_fails_names_its_file(tmp_path: Path):
    """Although the system is given a descriptor."""
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(IsADirectoryError) as caught:
            disk.DISK.pread(fd, 1, 0)
    finally:
        os.close(fd)
    assert caught.value.filename == str(tmp_path)


@pytest.mark.parametrize("count", [3, 40])
def test_a_failed_flush_of_many_files_is_reported(tmp_path: Path, count: int):
    """However many there are, the file whose bytes did not reach the disk is named."""
    paths = [str(tmp_path / f"{n:02}") for n in range(count)]
    for path in paths:
        Path(path).write_bytes(b"x")
    faulty = FaultyDisk()
    faulty.flush_files(paths)
    assert [path for call, path in faulty.log if call == "fdatasync"] == paths
    faulty.fail("fdatasync", path=paths[-2])
    with pytest.raises(OSError, match=re.escape(paths[-2])) as error:
        faulty.flush_files(paths)
    assert error.value.errno == errno.EIO


@pytest.mark.parametrize(
    ("blocks", "bfree", "bavail", "files", "euid", "expected"),
    [
        (102_400, 20_000, 12_000, 9, 1000, 12_000),
        (102_400, 20_000, 12_000, 9, 0, 20_000 - 2048),  # ext4: root may use its share, not that of ext4
        (102_400, 2_500, 0, 9, 0, 452),
        (102_400, 1_000, 0, 9, 0, 0),
        (102_400, 20_000, 19_999, 9, 0, 19_999),
        (102_400, 20_000, 12_000, 0, 0, 12_000),  # btrfs, which keeps nothing for root
        (60_000_000, 200_000, 100_000, 9, 0, 195_904),
    ],
)
def test_what_root_may_still_store(
    tmp_path: Path, monkeypatch, blocks: int, bfree: int, bavail: int, files: int, euid: int, expected: int
):
    """Some blocks count as free that nobody gets: a log that takes them for free has no room for the
    acknowledgements that would empty it."""
    status = os.statvfs_result((4096, 4096, blocks, bfree, bavail, files, files, files, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda _: status)
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    assert Disk().free_bytes(0) == expected * 4096
