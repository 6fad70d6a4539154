"""A shared lock on a directory, held by every process that uses it: the last one sees that it is the last.

The open descriptor also keeps the inode number of the directory from being given to another one, so that
(device, inode) identifies it while it is in use.
"""

from __future__ import annotations

import fcntl
import os
from typing import Final

from embeddedpulsar.platform import descriptors

_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class DirectoryLease:
    """``flock`` on a directory: shared by default, exclusive for the process that wants to remove it.

    Attributes:
        device, inode: the identity of the directory.
    """

    __slots__ = ("_fd", "device", "inode")

    def __init__(self, fd: int) -> None:
        status = os.fstat(fd)
        self._fd = fd
        self.device: Final = status.st_dev
        self.inode: Final = status.st_ino

    @classmethod
    def open(cls, path: str) -> DirectoryLease:
        """Open the directory; nothing is locked yet."""
        return cls(descriptors.opening(f"cannot open {path}", os.open, path, _FLAGS))

    @property
    def key(self) -> tuple[int, int]:
        """(device, inode)."""
        return self.device, self.inode

    def try_shared(self) -> bool:
        """Show that this process uses the directory. False while another one removes it."""
        return self._try(fcntl.LOCK_SH)

    def try_exclusive(self) -> bool:
        """Whether this process is the only one that uses it; from then on no other one can. If not, a shared
        hold of this process is lost."""
        return self._try(fcntl.LOCK_EX)

    def _try(self, mode: int) -> bool:
        try:
            fcntl.flock(self._fd, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Close the directory; in a forked child the parent's hold stays. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
