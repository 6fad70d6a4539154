"""Maps keep no descriptor."""

from __future__ import annotations

import gc
import mmap
import os
import sys
from pathlib import Path

import pytest

from embeddedpulsar._engine.platform import mapped_file
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from tests.children import in_child
from tests.support.process_state import open_descriptors

pytestmark = pytest.mark.skipif(not mapped_file.is_available(), reason="needs _ctypes and 64 bits")


def maps_of(path: Path) -> int:
    """How many maps of the file this process has."""
    return Path("/proc/self/maps").read_text().count(str(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of two pages."""
    made = tmp_path / "ctl"
    made.write_bytes(bytes(8192))
    return made


def test_it_is_shared_and_needs_no_descriptor(path: Path):
    """What is stored in one map is read in another and in the file, also by a forked child."""
    gc.collect()  # what tests before this one left is closed now
    before = open_descriptors()
    one = MappedFile.open(path, writable=True, size=8192, lean=True)
    other = MappedFile.open(path, writable=True, size=8192, lean=True)
    assert open_descriptors() == before
    one.words[7] = 2**64 - 2
    one.view[80:84] = b"word"
    assert other.words[7] == 2**64 - 2 and bytes(other.view[80:84]) == b"word"
    assert path.read_bytes()[80:84] == b"word"
    assert in_child(lambda: other.words[7]) == str(2**64 - 2)
    with pytest.raises(IndexError):
        one.words[1024]
    one.close()
    other.close()
    assert one.closed


def test_one_that_keeps_its_descriptor_has_one(path: Path):
    """The map itself has none, so closing the object closes that one."""
    gc.collect()
    before = open_descriptors()
    file = MappedFile.open(path, writable=True, size=8192)
    assert open_descriptors() == before + 1
    file.close()
    assert open_descriptors() == before and maps_of(path) == 0


def test_closing_unmaps_unless_a_slice_is_held(path: Path):
    """Access afterwards raises; a slice that somebody holds stays good, and goes with its holder."""
    file = MappedFile.open(path, writable=True, size=8192, lean=True)
    words, held = file.words, file.view[8:16]
    file.words[1] = 5
    file.close()
    file.close()
    with pytest.raises(ValueError):
        words[1]
    assert maps_of(path) == 1
    assert held[0] == 5
    held.release()
    del held
    gc.collect()
    assert maps_of(path) == 0


def test_one_for_reading(path: Path):
    """It refuses stores, and slices of it are bytes."""
    path.write_bytes(b"12345678" * 1024)
    file = MappedFile.open(path, writable=False, lean=True)
    assert file.slices[2:4] == b"34"
    for view in (file.view, file.words, file.slices):
        with pytest.raises(TypeError):
            view[0] = 1
    file.close()
    assert maps_of(path) == 0


def test_the_descriptor_comes_back_when_needed(path: Path):
    """For flushes and to reserve blocks; not if the file was removed or replaced."""
    file = MappedFile.open(path, writable=True, size=8192, lean=True)
    gc.collect()  # what tests before this one left is closed now
    before = open_descriptors()
    assert os.fstat(file.fd).st_ino == file.inode
    file.close_descriptor()
    file.allocate(8192, start=0)
    assert open_descriptors() == before
    path.rename(path.with_name("gone"))
    with pytest.raises(FileNotFoundError):
        assert file.fd
    path.write_bytes(bytes(8192))
    with pytest.raises(mapped_file.CorruptionError, match="replaced"):
        assert file.fd
    assert open_descriptors() == before
    file.close()
    assert file.fd == -1


@pytest.mark.parametrize("is_reused", [False, True])
def test_a_number_that_somebody_closed_is_left_alone(path: Path, is_reused: bool):
    """It is neither written to nor closed, whether another file has it by now or none."""
    file = MappedFile.open(path, writable=True, size=8192)
    stolen, other = file.fd, path.with_name("other")
    os.close(stolen)
    if is_reused:
        stranger = os.open(other, os.O_RDWR | os.O_CREAT)
        os.dup2(stranger, stolen)
        if stranger != stolen:
            os.close(stranger)
    file.pwrite([b"ours"], 100)
    file.allocate(8192, start=0)
    file.flush()
    assert file.fd != stolen or not is_reused
    assert path.read_bytes()[100:104] == b"ours"
    file.close()
    if is_reused:
        assert other.read_bytes() == b"" and os.fstat(stolen).st_ino == other.stat().st_ino
        os.close(stolen)


@pytest.mark.parametrize("is_reused", [False, True])
def test_nor_when_it_is_closed(path: Path, is_reused: bool):
    """Closing the object closes no file of another."""
    file = MappedFile.open(path, writable=True, size=8192)
    stolen = file.fd
    os.close(stolen)
    if is_reused:
        os.dup2(2, stolen)
    file.close()
    if is_reused:
        os.close(stolen)
    with pytest.raises(OSError):
        os.fstat(stolen)


def test_an_empty_map_is_refused(path: Path):
    """By the system; nothing is left."""
    fd = os.open(path, os.O_RDWR)
    try:
        with pytest.raises((OSError, ValueError)):
            mapped_file.map_file(fd, 0)
    finally:
        os.close(fd)
    before = Path("/proc/self/maps").read_text().count("\n")
    for _ in range(50):
        with pytest.raises(OSError) as refused:
            mapped_file.map_file(fd, 8192)
        assert refused.value.errno == 9
    assert Path("/proc/self/maps").read_text().count("\n") - before < 10


def test_a_map_that_may_not_be_written_to(path: Path):
    """The error of the system comes out."""
    fd = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(PermissionError):
            mapped_file.map_file(fd, 8192)
        assert bytes(mapped_file.map_file(fd, 8192, writable=False)[:2]) == b"\0\0"
    finally:
        os.close(fd)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="mmap itself can do without")
def test_where_there_is_none(path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without a C library to call, plain maps serve."""
    monkeypatch.setattr(mapped_file, "_calls", None)
    monkeypatch.setitem(sys.modules, "_ctypes", None)
    assert not mapped_file.is_available()
    file = MappedFile.open(path, writable=True, size=8192)
    assert isinstance(file.slices, mmap.mmap)
    file.words[3] = 7
    assert path.read_bytes()[24] == 7
    file.close()
