"""A disk with room for so many bytes, for tests: what stands below a directory counts."""

from __future__ import annotations

import errno as errno_codes
import os
from collections.abc import Sequence
from pathlib import Path

from embeddedpulsar._engine.platform.disk import Buffer, Disk
from embeddedpulsar.exceptions import StorageFullError


class SmallDisk(Disk):
    """The real disk, on which the files below `root` may take `size` bytes.

    A removed file counts no more, also while it is mapped.
    """

    def __init__(self, root: Path, size: int) -> None:
        self.root = root
        self.size = size

    def used(self) -> int:
        """Bytes of all blocks that the files take."""
        total = 0
        for directory, _, names in os.walk(self.root):
            for name in names:
                try:
                    total += os.lstat(os.path.join(directory, name)).st_blocks * 512
                except FileNotFoundError:
                    continue
        return total

    def free_bytes(self, fd: int) -> int:
        return max(0, self.size - self.used())

    def _take(self, count: int) -> None:
        if count > 0 and self.used() + count > self.size:
            raise StorageFullError("the small disk is full", errno=errno_codes.ENOSPC)

    def fallocate(self, fd: int, offset: int, length: int, *, in_use: bool = False) -> None:
        self._take(length)
        super().fallocate(fd, offset, length, in_use=in_use)

    def pwrite_all(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        self._take(offset + sum(map(len, buffers)) - os.fstat(fd).st_blocks * 512)
        return super().pwrite_all(fd, buffers, offset)
