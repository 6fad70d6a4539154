"""Contents as pages."""

from __future__ import annotations

import mmap
import os

import pytest

from tests.support.disks.page_map import PAGE, PageMap, read_file, read_pages


@pytest.fixture
def fd(tmp_path):
    """An empty file."""
    made = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield made
    os.close(made)


@pytest.mark.parametrize("reserve", [True, False])
def test_stores_through_a_map_are_seen(fd: int, reserve: bool):
    """Dirty pages that no system call has written are content too, in holes and in reserved blocks."""
    os.posix_fallocate(fd, 64 * PAGE if not reserve else 0, PAGE if not reserve else 65 * PAGE)
    mapping = mmap.mmap(fd, 65 * PAGE)
    mapping[10 * PAGE + 5] = 7
    pages = read_pages(fd)
    assert pages.size == 65 * PAGE
    assert list(pages.pages) == [10]
    assert pages.page(10)[5] == 7
    assert pages.page(11) == bytes(PAGE)
    mapping.close()


def test_the_file_offset_stays(fd: int):
    """Somebody may be appending through it."""
    os.write(fd, b"abc")
    read_pages(fd)
    os.write(fd, b"def")
    assert os.pread(fd, 10, 0) == b"abcdef"


def test_written_and_read_back(fd: int, tmp_path):
    """Holes, a short last page and long runs."""
    pages = {0: b"a" * PAGE, 1: b"b" * PAGE, 700: b"c" * 100 + bytes(PAGE - 100)}
    original = PageMap(700 * PAGE + 100, pages)
    original.write_to(fd)
    assert read_pages(fd) == original
    assert read_file(str(tmp_path / "file")) == original
    assert os.fstat(fd).st_blocks * 512 < 100 * PAGE


def test_differing_pages():
    """Absent pages are zeros."""
    one = PageMap(3 * PAGE, {0: b"a" * PAGE, 1: b"b" * PAGE})
    two = PageMap(3 * PAGE, {0: b"a" * PAGE, 2: b"c" * PAGE})
    assert one.differing(two) == [1, 2]
    assert one.differing(one) == []
    assert one != two
