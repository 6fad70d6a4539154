"""A disk that can lose power, for tests.

`FakeDisk` works on real files, so that descriptors, maps and other processes behave as ever, and keeps beside
them what a power loss would leave: for every file the bytes as of its last flush, for every directory the
names as of its last flush. `FakeDisk.capture` compares that with the files as they are now (stores made
through a map count like any write), and `CrashState.write_image` writes one possible state of the disk after
the loss:

* of the pages (or sectors) that differ, any subset has reached the disk; the size of a file may be old or
  new;
* of the names created, replaced and removed since the flush of their directory, any subset has; a rename
  within a directory is one step;
* a flush that failed leaves its pages clean but not written: a later flush that succeeds does not write them,
  unless they were written again.

That is what POSIX allows, not what one file system happens to do. Nothing is really flushed, which makes it
fast. Linux only (it reads descriptors through /proc and skips holes).
"""

from __future__ import annotations

import os
import random
import stat
import threading
from collections.abc import Sequence

from embeddedpulsar._engine.platform.disk import Buffer, path_of
from tests.support.disks.crash_image import Change, CrashState, DirectoryState, FileState
from tests.support.disks.faulty_disk import FaultyDisk
from tests.support.disks.page_map import EMPTY, PAGE, PageMap, read_file, read_pages


class _File:
    """What is known of one file, whatever its names."""

    __slots__ = ("durable", "failed_pages", "final")

    def __init__(self, durable: PageMap = EMPTY) -> None:
        self.durable = durable
        self.final: PageMap | None = None  # its content when its last name went
        self.failed_pages: dict[int, bytes] = {}  # pages whose flush failed, as they were then

    def flush(self, current: PageMap) -> None:
        pages = dict(current.pages)
        still_failing = {n: page for n, page in self.failed_pages.items() if current.page(n) == page}
        for number in still_failing:
            if number in self.durable.pages:
                pages[number] = self.durable.pages[number]
            else:
                pages.pop(number, None)
        self.failed_pages = still_failing
        self.durable = PageMap(current.size, pages)

    def doom(self, current: PageMap) -> None:
        for number in current.differing(self.durable):
            self.failed_pages[number] = current.page(number)


class _Directory:
    """Names as they are and as they were at the last flush."""

    __slots__ = ("current", "durable")

    def __init__(self) -> None:
        self.current: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}


_Node = _File | _Directory


class _Step:
    """One unflushed step in one directory (see `crash_image.Change`)."""

    __slots__ = ("directory", "names", "needs")

    def __init__(
        self, directory: _Directory, names: dict[str, _Node | None], needs: _Step | None = None
    ) -> None:
        self.directory = directory
        self.names = names
        self.needs = needs


class FakeDisk(FaultyDisk):
    """Remembers what is durable below ``root``; elsewhere it is the plain disk. For one process.

    What lies below ``root`` when it is made counts as flushed. Files that appear or go without this disk
    being asked (by another process, a plain ``open``) are noticed at the next flush of their directory or
    capture.

    Thread-safe.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__()
        self.root = os.path.realpath(root)
        self._mutex = threading.RLock()
        self._has_failed = False  # whether any flush has
        self._steps: list[_Step] = []
        self._inodes: dict[tuple[int, int], _Node] = {}
        self._device = os.stat(self.root).st_dev
        self._top = self._adopt(self.root)

    # -- flushing -----------------------------------------------------------------------------------------

    def fsync(self, fd: int, path: str) -> None:
        self._flush("fsync", fd, path)

    def fdatasync(self, fd: int, path: str) -> None:
        self._flush("fdatasync", fd, path)

    def _flush(self, call: str, fd: int, path: str) -> None:
        with self._mutex:
            file = self._file_of(fd, path)
            try:
                self._step(call, path)
            except OSError:
                if file is not None:
                    self._has_failed = True
                    file.doom(read_pages(fd))
                raise
            if file is not None:
                file.flush(read_pages(fd))

    def pwrite_all(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        with self._mutex:
            size = super().pwrite_all(fd, buffers, offset)
            file = self._file_of(fd, path_of(fd) or "") if self._has_failed else None
            # What is written again is part of the next flush, whatever it was before.
            if file is not None:
                for number in range(offset // PAGE, (offset + size + PAGE - 1) // PAGE):
                    file.failed_pages.pop(number, None)
            return size

    def fsync_dir(self, path: str) -> None:
        with self._mutex:
            self._step("fsync_dir", path)
            directory = self._lookup(path)
            if isinstance(directory, _Directory):
                self._notice(directory, os.path.realpath(path))
                directory.durable = dict(directory.current)
                self._steps = [step for step in self._steps if step.directory is not directory]

    # -- names --------------------------------------------------------------------------------------------

    def open_file(self, path: str, flags: int, mode: int = 0o600) -> int:
        fd = super().open_file(path, flags, mode)
        if flags & os.O_CREAT:
            with self._mutex:
                directory, name = self._parent(path)
                if directory is not None and self._is_news(directory, name, fd):
                    self._link(directory, name, _File(), os.fstat(fd))
        return fd

    def mkdir(self, path: str, mode: int | None = None) -> None:
        super().mkdir(path, mode)
        with self._mutex:
            directory, name = self._parent(path)
            if directory is not None:
                self._link(directory, name, _Directory(), os.stat(path))

    def replace(self, src: str, dst: str) -> None:
        with self._mutex:
            source, old_name = self._parent(src)
            target, new_name = self._parent(dst)
            self._remember_content(target, new_name, dst)
            super().replace(src, dst)
            node = source.current.pop(old_name, None) if source is not None else None
            if node is None and target is not None:
                node = _File()  # from outside the root, or made behind our back: nobody flushed it here
                status = os.stat(dst)
                self._inodes[(status.st_dev, status.st_ino)] = node
            if target is not None and node is not None:
                target.current[new_name] = node
            if source is target and source is not None:
                self._steps.append(_Step(source, {new_name: node, old_name: None}))
                return
            arrival = None if target is None else _Step(target, {new_name: node})
            if arrival is not None:
                self._steps.append(arrival)
            if source is not None:
                self._steps.append(_Step(source, {old_name: None}, needs=arrival))

    def unlink(self, path: str) -> None:
        with self._mutex:
            directory, name = self._parent(path)
            self._remember_content(directory, name, path)
            super().unlink(path)
            if directory is not None:
                directory.current.pop(name, None)
                self._steps.append(_Step(directory, {name: None}))

    def rmdir(self, path: str) -> None:
        with self._mutex:
            super().rmdir(path)
            directory, name = self._parent(path)
            if directory is not None:
                directory.current.pop(name, None)
                self._steps.append(_Step(directory, {name: None}))

    # -- crashing -----------------------------------------------------------------------------------------

    def capture(self) -> CrashState:
        """The moment now, from which any number of images can be drawn later."""
        with self._mutex:
            contents: dict[int, PageMap] = {}
            self._read_tree(self._top, self.root, contents)
            states: dict[int, FileState | DirectoryState] = {}
            top = self._state_of(self._top, contents, states)
            assert isinstance(top, DirectoryState)
            changes: dict[int, Change] = {}
            for step in self._steps:
                directory = self._state_of(step.directory, contents, states)
                assert isinstance(directory, DirectoryState)
                changes[id(step)] = Change(
                    directory,
                    {
                        name: None if node is None else self._state_of(node, contents, states)
                        for name, node in step.names.items()
                    },
                    None if step.needs is None else changes.get(id(step.needs)),
                )
            return CrashState(top, list(changes.values()))

    def crash_image(self, rng: random.Random, target_dir: str) -> None:
        """Write one disk that a power loss now might leave into ``target_dir`` (new or empty)."""
        self.capture().write_image(rng, target_dir)

    def is_durable(self, path: str) -> bool:
        """Whether the name and the present content of ``path`` would survive a power loss now."""
        with self._mutex:
            self._read_tree(self._top, self.root, {})
            node: _Node | None = self._top
            for part in self._parts(path) or ():
                node = node.durable.get(part) if isinstance(node, _Directory) else None
            if isinstance(node, _File):
                return node is self._lookup(path) and node.durable == read_file(path)
            return node is not None

    def _read_tree(self, directory: _Directory, path: str, contents: dict[int, PageMap]) -> None:
        self._notice(directory, path)
        for name, node in directory.current.items():
            below = f"{path}/{name}"
            if isinstance(node, _Directory):
                self._read_tree(node, below, contents)
            else:
                contents[id(node)] = read_file(below)

    def _state_of(
        self, node: _Node, contents: dict[int, PageMap], states: dict[int, FileState | DirectoryState]
    ) -> FileState | DirectoryState:
        state = states.get(id(node))
        if state is not None:
            return state
        if isinstance(node, _File):
            current = contents.get(id(node)) or node.final or node.durable
            state = states[id(node)] = FileState(node.durable, current)
            return state
        directory = states[id(node)] = DirectoryState()
        for name, child in node.durable.items():
            directory.durable[name] = self._state_of(child, contents, states)
        return directory

    # -- the tree -----------------------------------------------------------------------------------------

    def _adopt(self, path: str) -> _Directory:
        """Take what is there as flushed."""
        directory = _Directory()
        for entry in os.scandir(path):
            node = self._node_for(entry, durable=True)
            if node is not None:
                directory.current[entry.name] = node
        directory.durable = dict(directory.current)
        return directory

    def _node_for(self, entry: os.DirEntry[str], *, durable: bool) -> _Node | None:
        """A node for something found on the disk; None for FIFOs, links and the like, which are not kept."""
        node: _Node
        if entry.is_dir(follow_symlinks=False):
            node = self._adopt(entry.path) if durable else _Directory()
        elif entry.is_file(follow_symlinks=False):
            node = _File(read_file(entry.path)) if durable else _File()
        else:
            return None
        status = entry.stat(follow_symlinks=False)
        self._inodes[(status.st_dev, status.st_ino)] = node
        return node

    def _notice(self, directory: _Directory, path: str) -> None:
        """Bring the names up to date with what others did."""
        found = {entry.name: entry for entry in os.scandir(path)}
        for name in [name for name in directory.current if name not in found]:
            del directory.current[name]
            self._steps.append(_Step(directory, {name: None}))
        for name, entry in found.items():
            known = directory.current.get(name)
            if known is None or self._inodes.get((self._device, entry.inode())) is not known:
                node = self._node_for(entry, durable=False)
                if node is not None:
                    directory.current[name] = node
                    self._steps.append(_Step(directory, {name: node}))

    def _link(self, directory: _Directory, name: str, node: _Node, status: os.stat_result) -> None:
        directory.current[name] = node
        self._inodes[(status.st_dev, status.st_ino)] = node
        self._steps.append(_Step(directory, {name: node}))

    def _is_news(self, directory: _Directory, name: str, fd: int) -> bool:
        status = os.fstat(fd)
        known = directory.current.get(name)
        return known is None or self._inodes.get((status.st_dev, status.st_ino)) is not known

    def _remember_content(self, directory: _Directory | None, name: str, path: str) -> None:
        node = directory.current.get(name) if directory is not None else None
        if isinstance(node, _File) and os.path.exists(path):
            node.final = read_file(path)

    def _file_of(self, fd: int, path: str) -> _File | None:
        status = os.fstat(fd)
        node = self._inodes.get((status.st_dev, status.st_ino))
        if node is None and self._parts(path) is not None and stat.S_ISREG(status.st_mode):
            directory, _ = self._parent(path)
            if directory is not None:
                self._notice(directory, os.path.dirname(os.path.realpath(path)))
            node = self._inodes.get((status.st_dev, status.st_ino))
        return node if isinstance(node, _File) else None

    def _parts(self, path: str) -> list[str] | None:
        """The names below the root that lead to ``path``; None outside."""
        directory, name = os.path.split(os.path.abspath(path))
        real = os.path.join(os.path.realpath(directory), name)
        if real == self.root:
            return []
        return real[len(self.root) + 1 :].split("/") if real.startswith(self.root + "/") else None

    def _lookup(self, path: str) -> _Node | None:
        parts = self._parts(path)
        if parts is None:
            return None
        node: _Node | None = self._top
        for part in parts:
            node = node.current.get(part) if isinstance(node, _Directory) else None
        return node

    def _parent(self, path: str) -> tuple[_Directory | None, str]:
        node = self._lookup(os.path.dirname(os.path.abspath(path)))
        return (node if isinstance(node, _Directory) else None), os.path.basename(path)
