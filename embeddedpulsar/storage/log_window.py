"""Reading a log file that cannot be trusted, a piece at a time."""

from __future__ import annotations

import os
from typing import Final

from embeddedpulsar.platform import disk

WINDOW: Final = 1 << 20


class LogWindow:
    """Bounded positional reads of a log file; nothing of it is mapped, so no bad sector or hole can kill.

    Attributes:
        size: bytes in the file when it was opened.
    """

    __slots__ = ("_base", "_data", "_fd", "path", "size")

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self._fd = disk.DISK.open_file(path, os.O_RDONLY)
        self.size: Final = os.fstat(self._fd).st_size
        self._base = 0
        self._data = b""

    def at(self, pos: int, size: int) -> tuple[bytes, int]:
        """A buffer that holds bytes [pos, pos+size), as far as the file does, and the offset of pos in it."""
        start = pos - self._base
        if start < 0 or start + size > len(self._data):
            want = min(max(size, WINDOW), self.size - pos)
            parts = []
            base = pos
            while want > 0:
                part = disk.DISK.pread(self._fd, want, pos)
                if not part:
                    break
                parts.append(part)
                pos += len(part)
                want -= len(part)
            self._data = parts[0] if len(parts) == 1 else b"".join(parts)
            self._base = base
            start = 0
        return self._data, start

    def next_data(self, pos: int) -> int:
        """The first offset at or behind `pos` that may hold something other than zeros; -1 for none."""
        try:
            return os.lseek(self._fd, pos, os.SEEK_DATA) if pos < self.size else -1
        except OSError:
            return -1  # ENXIO: a hole up to the end
        except AttributeError:
            return pos  # no such call here: read the zeros

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
