"""Files mapped into memory."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import threading
from pathlib import Path

import pytest

from embeddedpulsar._engine.platform import disk, mapped_file
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar.exceptions import CorruptionError, StorageFullError, StorageOSError
from tests.support.disks.faulty_disk import FaultyDisk
from tests.support.process_state import open_descriptors

SEGMENT = 1 << 20


@pytest.fixture(
    params=[
        pytest.param(True, id="native", marks=pytest.mark.linux("posix_fallocate")),
        pytest.param(False, id="portable"),
    ]
)
def path(request: pytest.FixtureRequest, tmp_path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a file may be made, with and without posix_fallocate."""
    monkeypatch.setattr(disk, "HAS_POSIX_FALLOCATE", request.param)
    return str(tmp_path / "file")


def test_two_maps_of_a_file_share_their_words(path: str):
    """What one stores the other loads, in either view."""
    one = MappedFile.open(path, writable=True, size=8192, create=True)
    two = MappedFile.open(path, writable=True)
    assert (one.created, two.created) == (True, False)
    one.words[16] = 2**63 + 5
    assert two.words[16] == 2**63 + 5
    two.view[8:12] = b"abcd"
    assert bytes(one.view[8:12]) == b"abcd"
    assert (one.device, one.inode) == (two.device, two.inode)
    one.close()
    two.close()


def test_a_read_only_map_refuses_stores(path: str):
    """With an exception, not a signal."""
    MappedFile.open(path, writable=True, size=4096, create=True).close()
    mapped = MappedFile.open(path, writable=False)
    with pytest.raises(TypeError):
        mapped.words[0] = 1
    assert mapped.words[0] == 0
    mapped.close()


def test_a_small_file_is_reserved_whole(path: str):
    """A ctl file can be touched anywhere at once."""
    mapped = MappedFile.open(path, writable=True, size=8192, create=True)
    assert mapped.allocated == 8192
    assert os.fstat(mapped.fd).st_blocks * 512 >= 8192
    mapped.close()


def test_a_large_file_is_reserved_in_steps(path: str):
    """Disk space is taken as it is needed."""
    mapped = MappedFile.open(path, writable=True, size=SEGMENT, create=True)
    assert mapped.size == len(mapped.view) == SEGMENT
    assert os.fstat(mapped.fd).st_blocks * 512 < 64 * 1024
    mapped.allocate(128 * 1024)
    assert mapped.allocated == 128 * 1024
    assert os.fstat(mapped.fd).st_blocks * 512 >= 128 * 1024
    mapped.view[100_000] = 1
    mapped.allocate(64 * 1024)
    assert mapped.allocated == 128 * 1024
    mapped.allocate(192 * 1024, start=128 * 1024)
    assert mapped.view[100_000] == 1
    with pytest.raises(ValueError, match="are mapped"):
        mapped.allocate(SEGMENT + 1)
    mapped.close()


def test_creating_again_keeps_the_content(path: str):
    """The second creator maps what the first one made, grows it if need be, and never shrinks it."""
    first = MappedFile.open(path, writable=True, size=4096, create=True)
    first.words[0] = 7
    second = MappedFile.open(path, writable=True, size=8192, create=True)
    third = MappedFile.open(path, writable=True, size=4096, create=True)
    assert (second.words[0], third.words[0]) == (7, 7)
    assert not second.created
    assert os.stat(path).st_size == 8192
    for mapped in (first, second, third):
        mapped.close()


def test_many_creators_at_once(path: str):
    """One makes the file, all map it."""
    made: list[MappedFile] = []

    def create() -> None:
        made.append(MappedFile.open(path, writable=True, size=8192, create=True))

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(mapped.created for mapped in made) == 1
    assert len({mapped.inode for mapped in made}) == 1
    for mapped in made:
        mapped.close()


@pytest.mark.parametrize("content", [b"", b"x" * 100])
def test_a_file_shorter_than_expected_is_damaged(path: str, content: bytes):
    """It is not mapped: a load beyond its end would kill the process."""
    with open(path, "wb") as file:
        file.write(content)
    with pytest.raises(CorruptionError, match=f"holds {len(content)} bytes, expected 4096"):
        MappedFile.open(path, writable=True, size=4096)


def test_an_empty_file_cannot_be_mapped(path: str):
    """Whatever size was asked for."""
    open(path, "wb").close()
    with pytest.raises(CorruptionError, match="holds 0 bytes"):
        MappedFile.open(path, writable=False)


def test_a_missing_file_is_missing(path: str):
    """Only `create` makes one."""
    with pytest.raises(FileNotFoundError):
        MappedFile.open(path, writable=True, size=4096)
    with pytest.raises(ValueError, match="with a size and for writing"):
        MappedFile.open(path, writable=True, create=True)
    with pytest.raises(ValueError, match="with a size and for writing"):
        MappedFile.open(path, writable=False, create=True, size=4096)


@pytest.mark.parametrize("kind", ["link", "directory", "fifo"])
@pytest.mark.parametrize("create", [True, False])
def test_only_plain_files_are_mapped(tmp_path, kind: str, create: bool):
    """A link, directory or FIFO is refused, and nothing blocks on it."""
    path = tmp_path / "odd"
    if kind == "link":
        (tmp_path / "target").write_bytes(bytes(4096))
        path.symlink_to(tmp_path / "target")
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    gc.collect()  # what tests before this one left is closed now
    before = open_descriptors()
    with pytest.raises(StorageOSError):
        MappedFile.open(path, writable=True, size=4096 if create else None, create=create)
    assert open_descriptors() == before


def test_close_gives_everything_back(path: str):
    """Descriptors of the file and of the map; twice is once."""
    gc.collect()  # what tests before this one left is closed now
    before = open_descriptors()
    mapped = MappedFile.open(path, writable=True, size=8192, create=True)
    mapped.close()
    mapped.close()
    assert mapped.closed
    assert open_descriptors() == before
    with pytest.raises(ValueError, match="released"):
        mapped.words[0]
    assert "closed" in repr(mapped)


def test_close_leaves_exported_slices_alone(path: str):
    """A message that still refers to the map keeps it; the descriptor of the file goes at once."""
    gc.collect()  # what tests before this one left is closed now
    before = open_descriptors()
    mapped = MappedFile.open(path, writable=True, size=8192, create=True)
    mapped.view[0:4] = b"kept"
    piece = mapped.view[0:4]
    mapped.close()
    assert bytes(piece) == b"kept"
    del piece
    del mapped
    assert open_descriptors() == before


def test_an_unlinked_file_stays_mapped(path: str):
    """That is how segments are retired."""
    mapped = MappedFile.open(path, writable=True, size=8192, create=True)
    mapped.words[0] = 9
    assert mapped.is_current()
    os.unlink(path)
    assert mapped.words[0] == 9
    assert not mapped.is_current()
    MappedFile.open(path, writable=True, size=8192, create=True).close()
    assert not mapped.is_current()
    mapped.close()


@pytest.mark.parametrize("call", ["create_exclusive", "fallocate"])
def test_a_full_disk_leaks_nothing(path: str, call: str):
    """The error says what is full, and no descriptor stays open."""
    faulty = FaultyDisk()
    faulty.fail(call, errno=errno.ENOSPC)
    gc.collect()  # what tests before this one left is closed now
    before = open_descriptors()
    with disk.use(faulty), pytest.raises(StorageFullError):
        MappedFile.open(path, writable=True, size=8192, create=True)
    assert open_descriptors() == before
    MappedFile.open(path, writable=True, size=8192, create=True).close()


def test_reading_ahead_is_a_hint(path: str):
    """Any range is accepted, before and after close."""
    mapped = MappedFile.open(path, writable=True, size=SEGMENT, create=True)
    mapped.will_need(5000, 100_000)
    mapped.will_need(0, 2 * SEGMENT)
    mapped.will_need(10, 5)
    mapped.close()
    mapped.will_need(0, 10)


def test_the_small_file_limit_fits_a_control_file():
    """Every ctl file is 8192 bytes."""
    assert mapped_file.SMALL_FILE >= 8192


@pytest.mark.linux("MADV_POPULATE_WRITE")
@pytest.mark.parametrize("is_known", [True, False])
def test_pages_are_mapped_ahead_where_the_system_can(tmp_path, monkeypatch, is_known):
    """Their content stays; a kernel that knows no such advice says so, and nothing else happens."""
    mapped = MappedFile.open(str(tmp_path / "file"), writable=True, size=1 << 16, create=True)
    mapped.allocate(1 << 16)
    mapped.view[5000:5003] = b"abc"
    if not is_known:
        monkeypatch.setattr(mapped_file, "_MADV_POPULATE_WRITE", 12345)
    assert mapped.populate(4100, 1 << 16) is is_known
    assert mapped.view[5000:5003] == b"abc"
    mapped.close()
    assert not mapped.populate(0, 4096)


def test_a_number_that_is_another_files_is_noticed(tmp_path: Path):
    """The descriptor is proved by its position: if other code gave its number to another file, the file is
    opened again, and nothing is written to the other. A position that was moved is put back."""
    path = tmp_path / "file"
    mapped = MappedFile.open(path, writable=True, size=8192, create=True)
    fd = mapped.fd
    position = os.lseek(fd, 0, os.SEEK_CUR)
    assert mapped.fd == fd and position > 1 << 40
    os.lseek(fd, 0, os.SEEK_SET)  # by code that uses the number as if it were its own
    assert mapped.fd == fd and os.lseek(fd, 0, os.SEEK_CUR) > position
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    os.dup2(other, fd)
    try:
        mapped.pwrite([b"mine"], 0)
        assert mapped.fd != fd
        assert path.read_bytes()[:4] == b"mine" and os.fstat(other).st_size == 0
        assert os.lseek(other, 0, os.SEEK_CUR) == 0
    finally:
        os.close(fd)
        os.close(other)
        mapped.close()


class _CountingDisk(disk.Disk):
    """The real disk, which says how much is free and notes what is reserved."""

    def __init__(self, free: int, most: int = 1 << 40) -> None:
        self.free, self.most = free, most
        self.ends: list[int] = []

    def free_bytes(self, fd: int) -> int:
        return self.free

    def fallocate(self, fd: int, offset: int, length: int) -> None:
        if length > self.most:
            raise StorageFullError("a quota", errno=errno.EDQUOT)
        self.ends.append(offset + length)
        super().fallocate(fd, offset, length)


@pytest.mark.parametrize(
    ("upto", "page", "end"),
    [
        (8192, 4096, 8192),
        (12288, 4096, 16384),
        (28672, 4096, 32768),
        (28672, 65536, 65536),
        (300_000, 4096, 524_288),
        (700_000, 4096, SEGMENT),
        (SEGMENT, 65536, SEGMENT),
    ],
)
def test_what_is_reserved_ends_where_pieces_do(tmp_path, monkeypatch, upto: int, page: int, end: int):
    """A piece of memory that begins below the end of what is reserved does not reach over it: else the first
    store there would need more of the disk. The words of topics say what was asked for."""
    monkeypatch.setattr(mmap, "PAGESIZE", page)
    file = MappedFile.open(tmp_path / "file", writable=True, size=SEGMENT, create=True)
    with disk.use(_CountingDisk(1 << 40)) as counting:
        assert isinstance(counting, _CountingDisk)
        file.allocate(upto)
        assert counting.ends == [end]
    assert file.allocated == upto
    file.close()


@pytest.mark.parametrize(("free", "most"), [(1 << 20, 1 << 40), (1 << 40, 300_000)], ids=["full", "quota"])
def test_the_last_of_a_disk_is_reserved_to_the_byte(tmp_path, free: int, most: int):
    """Where there is no room for more, or a quota does not allow it."""
    file = MappedFile.open(tmp_path / "file", writable=True, size=SEGMENT, create=True)
    with disk.use(_CountingDisk(free, most)) as counting:
        assert isinstance(counting, _CountingDisk)
        file.allocate(300_000)
        assert counting.ends == [300_000]
        counting.most = 10
        with pytest.raises(StorageFullError, match="a quota"):
            file.allocate(400_000)
    assert file.allocated == 300_000
    file.close()


def test_a_page_that_cannot_be_had_is_an_error(tmp_path, monkeypatch):
    """What would be SIGBUS at the first store is found before, and the error says what to do."""

    class Refusing(mmap.mmap):
        def madvise(self, option: int, start: int = 0, length: int | None = None) -> None:
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))

    monkeypatch.setattr(mmap, "mmap", Refusing)
    file = MappedFile.open(tmp_path / "file", writable=True, size=SEGMENT, create=True)
    with disk.use(_CountingDisk(1 << 20)), pytest.raises(StorageFullError, match="free space"):
        file.allocate(300_000)
    assert file.allocated == 0
    file.close()
