"""The descriptor of a journal: kept for the next append, given back when the process runs short of them."""

from __future__ import annotations

import os

from embeddedpulsar.platform import disk


class JournalDescriptor:
    """One file that may be closed at any time and is opened again when it is needed.

    Role: lets a process have more subscriptions than descriptors.
    Callers: the holder of the directory's lock; `flush` any thread.
    """

    __slots__ = ("_fd", "_path", "_rests")

    def __init__(self) -> None:
        self._fd = -1
        self._path = ""
        self._rests = 0

    @property
    def is_set(self) -> bool:
        """Whether there is a file, resting or not."""
        return bool(self._path)

    def use(self, fd: int, path: str) -> None:
        """Keep this file from now on; the one before is closed."""
        self.close()
        self._fd, self._path = fd, path

    def get(self) -> int:
        """The descriptor.

        Raises:
            FileNotFoundError: it rested, and the file was removed meanwhile.
        """
        if self._fd < 0:
            self._fd = disk.DISK.open_file(self._path, os.O_RDWR)
        return self._fd

    def rest(self) -> None:
        """Give the descriptor back; `get` opens the file again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._rests += 1  # first, so that a flush under way knows that it may have met another file
            os.close(fd)

    def close(self) -> None:
        """Close the file, and have none from now on. Idempotent."""
        self.rest()
        self._path = ""

    def flush(self) -> None:
        """Make the file's bytes survive a power loss, also while another thread lets it rest.

        Raises:
            OSError: the flush failed.
        """
        fd, path, rests = self._fd, self._path, self._rests
        if fd >= 0:
            try:
                disk.DISK.fdatasync(fd, path)
            except OSError:
                if rests == self._rests:
                    raise
            if rests == self._rests:
                return
        if not path:
            return
        own = disk.DISK.open_file(path, os.O_RDWR)
        try:
            disk.DISK.fdatasync(own, path)
        finally:
            os.close(own)
