"""Maps that keep no descriptor."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from embeddedpulsar.platform import descriptors, mapped_file
from embeddedpulsar.platform.mapped_file import MappedFile
from tests.children import in_child

pytestmark = pytest.mark.skipif(not mapped_file.is_available(), reason="needs ctypes and 64 bits")


def descriptors_open() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


def maps_of(path: Path) -> int:
    """How many maps of the file this process has."""
    return Path("/proc/self/maps").read_text().count(str(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of two pages."""
    made = tmp_path / "ctl"
    made.write_bytes(bytes(8192))
    return made


@pytest.fixture
def no_easy_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has many topics open."""
    monkeypatch.setattr(mapped_file, "_EASY_MAPS", 0)
    monkeypatch.setattr(mapped_file, "_KEEPS_NO_DESCRIPTOR", False)


@pytest.mark.usefixtures("no_easy_maps")
def test_it_is_shared_and_needs_no_descriptor(path: Path):
    """What is stored in one map is read in another and in the file, also by a forked child."""
    gc.collect()  # what tests before this one left is closed now
    before = descriptors_open()
    one = MappedFile.open(path, writable=True, size=8192, lean=True)
    other = MappedFile.open(path, writable=True, size=8192, lean=True)
    assert descriptors_open() == before
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


@pytest.mark.usefixtures("no_easy_maps")
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


@pytest.mark.usefixtures("no_easy_maps")
def test_one_for_reading(path: Path):
    """It refuses stores, and slices of it are bytes."""
    path.write_bytes(b"12345678" * 1024)
    file = MappedFile.open(path, writable=False, lean=True)
    assert file.view.obj[2:4] == b"34"
    for view in (file.view, file.words, file.slices):
        with pytest.raises(TypeError):
            view[0] = 1
    file.close()
    assert maps_of(path) == 0


@pytest.mark.usefixtures("no_easy_maps")
def test_the_descriptor_comes_back_when_needed(path: Path):
    """For flushes and to reserve blocks; not if the file was removed or replaced."""
    file = MappedFile.open(path, writable=True, size=8192, lean=True)
    gc.collect()  # what tests before this one left is closed now
    before = descriptors_open()
    assert os.fstat(file.fd).st_ino == file.inode
    file.rest()
    file.allocate(8192, start=0)
    assert descriptors_open() == before
    path.rename(path.with_name("gone"))
    with pytest.raises(FileNotFoundError):
        assert file.fd
    path.write_bytes(bytes(8192))
    with pytest.raises(mapped_file.CorruptionError, match="replaced"):
        assert file.fd
    assert descriptors_open() == before
    file.close()
    assert file.fd == -1


def test_the_first_few_are_plain_maps(path: Path, monkeypatch: pytest.MonkeyPatch):
    """A process with few topics never loads what bare maps need; places are given back."""
    monkeypatch.setattr(mapped_file, "_KEEPS_NO_DESCRIPTOR", False)
    monkeypatch.setattr(mapped_file, "_easy_maps", 0)
    monkeypatch.setattr(descriptors, "limit", lambda: 32)
    gc.collect()  # what tests before this one left is closed now
    before = descriptors_open()
    files = [MappedFile.open(path, writable=True, size=8192, lean=True) for _ in range(5)]
    assert descriptors_open() - before == 2
    files[0].close()
    assert mapped_file._easy_maps == 1
    for one in files:
        one.close()
    assert descriptors_open() == before and mapped_file._easy_maps == 0


def test_an_empty_map_is_refused(path: Path):
    """By the system; nothing is left."""
    fd = os.open(path, os.O_RDWR)
    try:
        with pytest.raises(OSError):
            mapped_file.map_bare(fd, 0)
        with pytest.raises(OSError):
            mapped_file.map_bare(-1, 8192)
    finally:
        os.close(fd)


def test_where_there_is_none(monkeypatch: pytest.MonkeyPatch):
    """Without a C library to call, plain maps serve."""
    import ctypes

    monkeypatch.setattr(mapped_file, "_calls", None)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    assert not mapped_file.is_available()
    with pytest.raises(OSError):
        mapped_file.map_bare(0, 8192)
