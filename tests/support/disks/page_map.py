"""The content of a file as 4 KiB pages, holes left out. For `fake_disk`."""

from __future__ import annotations

import errno
import os
from typing import Final

from embeddedpulsar._engine.platform.disk import Disk

PAGE: Final = 4096
SECTOR: Final = 512
_ZERO_PAGE: Final = bytes(PAGE)
_READ_AT_ONCE: Final = 1 << 20
_PLAIN_DISK: Final = Disk()


class PageMap:
    """``size`` bytes: ``pages`` by number, 4096 bytes each; a page that is absent is all zeros. Immutable."""

    __slots__ = ("pages", "size")

    def __init__(self, size: int, pages: dict[int, bytes]) -> None:
        self.size = size
        self.pages = pages

    def page(self, number: int) -> bytes:
        return self.pages.get(number, _ZERO_PAGE)

    def differing(self, other: PageMap) -> list[int]:
        """The numbers of the pages whose bytes are not those of ``other``, in order."""
        mine, theirs = self.pages, other.pages
        if mine is theirs:
            return []
        return sorted(n for n in mine.keys() | theirs.keys() if mine.get(n) != theirs.get(n))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PageMap) and self.size == other.size and self.pages == other.pages

    def __hash__(self) -> int:
        return hash((self.size, len(self.pages)))

    def write_to(self, fd: int) -> None:
        """Write the content into the empty file ``fd``."""
        _PLAIN_DISK.truncate_new(fd, self.size)
        run: list[bytes] = []
        start = 0
        for number in sorted(self.pages):
            if run and number != start + len(run):
                os.pwrite(fd, b"".join(run), start * PAGE)
                run = []
            if not run:
                start = number
            run.append(self.pages[number])
        if run:
            os.pwrite(fd, b"".join(run)[: self.size - start * PAGE], start * PAGE)


EMPTY: Final = PageMap(0, {})


def read_pages(fd: int) -> PageMap:
    """The present content of an open file, with what is dirty in the page cache through maps. Skips holes;
    does not move the file offset of ``fd``."""
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _read(own)
    finally:
        os.close(own)


def read_file(path: str) -> PageMap:
    """As `read_pages`, by name."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return _read(fd)
    finally:
        os.close(fd)


def _read(fd: int) -> PageMap:
    size = os.fstat(fd).st_size
    pages: dict[int, bytes] = {}
    position = 0
    while position < size:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as e:
            if e.errno == errno.ENXIO:  # only a hole is left
                break
            raise
        start -= start % PAGE
        position = min(os.lseek(fd, start, os.SEEK_HOLE), start + _READ_AT_ONCE)
        data = os.pread(fd, position - start, start)
        for offset in range(0, len(data), PAGE):
            page = data[offset : offset + PAGE]
            if page.count(0) != len(page):
                pages[(start + offset) // PAGE] = page.ljust(PAGE, b"\0")
    return PageMap(size, pages)
