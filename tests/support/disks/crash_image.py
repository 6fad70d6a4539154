"""What a disk may hold after the power went: one moment of a `FakeDisk`, from which images are drawn."""

from __future__ import annotations

import os
import random
from typing import Final

from tests.support.disks.page_map import EMPTY, PAGE, SECTOR, PageMap

_FEW_PAGES: Final = 0.1


class FileState:
    """One file: its content as of its last flush, and now."""

    __slots__ = ("current", "durable")

    def __init__(self, durable: PageMap = EMPTY, current: PageMap = EMPTY) -> None:
        self.durable = durable
        self.current = current


class DirectoryState:
    """One directory: its names as of its last flush."""

    __slots__ = ("durable",)

    def __init__(self) -> None:
        self.durable: dict[str, FileState | DirectoryState] = {}


class Change:
    """One step in one directory since its last flush: names, and what they point to (None: nothing).

    ``needs``: a step without which this one cannot have reached the disk (the far side of a move between two
    directories: no file system loses both names).
    """

    __slots__ = ("directory", "names", "needs")

    def __init__(
        self,
        directory: DirectoryState,
        names: dict[str, FileState | DirectoryState | None],
        needs: Change | None = None,
    ) -> None:
        self.directory = directory
        self.names = names
        self.needs = needs


class CrashState:
    """One moment: the tree as flushed, and everything since that may or may not be on the disk.

    Any number of images can be drawn from it; drawing changes nothing.
    """

    def __init__(self, root: DirectoryState, changes: list[Change]) -> None:
        self._root = root
        self._changes = changes

    def write_image(self, rng: random.Random, target_dir: str) -> None:
        """Write one possible disk into the new or empty directory ``target_dir``.

        The same ``rng`` state gives the same image. Nothing kept, everything kept and a prefix in time are
        drawn more often than chance would, because they are what disks really leave.
        """
        survivors = self._surviving(rng)
        by_directory: dict[int, list[Change]] = {}
        for change in survivors:
            by_directory.setdefault(id(change.directory), []).append(change)
        os.makedirs(target_dir, exist_ok=True)
        self._write_directory(self._root, target_dir, by_directory, _PageLottery(rng), set())

    def _surviving(self, rng: random.Random) -> list[Change]:
        """The steps that reached the disk, in the order in which they were made."""
        changes = self._changes
        mode = rng.randrange(4)
        if mode == 0:
            return []
        if mode == 1:
            return changes
        if mode == 2:
            return changes[: rng.randrange(len(changes) + 1)]
        chosen: list[Change] = []
        for change in changes:
            if rng.random() < 0.5 and (change.needs is None or change.needs in chosen):
                chosen.append(change)
        return chosen

    def _write_directory(
        self,
        directory: DirectoryState,
        path: str,
        changes: dict[int, list[Change]],
        lottery: _PageLottery,
        above: set[int],
    ) -> None:
        entries = dict(directory.durable)
        for change in changes.get(id(directory), ()):
            for name, node in change.names.items():
                if node is None:
                    entries.pop(name, None)
                else:
                    entries[name] = node
        for name, node in sorted(entries.items()):
            below = f"{path}/{name}"
            if isinstance(node, FileState):
                fd = os.open(below, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                try:
                    lottery.draw(node).write_to(fd)
                finally:
                    os.close(fd)
            elif id(node) not in above:
                os.mkdir(below, 0o700)
                self._write_directory(node, below, changes, lottery, above | {id(node)})


class _PageLottery:
    """Decides for every page that is not flushed whether it reached the disk."""

    __slots__ = ("_rng", "_share", "_unit")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._unit = rng.choice((PAGE, SECTOR))
        self._share = rng.choice((0.0, 1.0, _FEW_PAGES, 1.0 - _FEW_PAGES, rng.random()))

    def draw(self, file: FileState) -> PageMap:
        durable, current = file.durable, file.current
        size = durable.size
        if current.size != durable.size and self._hits():
            size = current.size
        pages = dict(durable.pages)
        for number in current.differing(durable):
            page = self._mix(durable.page(number), current.page(number))
            if number * PAGE < size:
                pages[number] = page
        return PageMap(size, {n: page for n, page in pages.items() if n * PAGE < size})

    def _hits(self) -> bool:
        return self._rng.random() < self._share

    def _mix(self, old: bytes, new: bytes) -> bytes:
        if self._unit == PAGE:
            return new if self._hits() else old
        return b"".join(
            (new if self._hits() else old)[start : start + SECTOR] for start in range(0, PAGE, SECTOR)
        )
