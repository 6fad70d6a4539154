"""Reading a log file that cannot be trusted, a piece at a time."""

from __future__ import annotations

import os
import stat
from typing import Final
from zlib import crc32

from embeddedpulsar._engine.format.entry_decoder import METADATA
from embeddedpulsar._engine.format.frame import (
    HEADER_SIZE,
    MIN_FRAME_SIZE,
    TRAILER_SIZE,
    FrameHeader,
    read_header,
)
from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.platform.access import irregular
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.storage.cold_ledger import with_log

WINDOW: Final = 1 << 20


class LogWindow:
    """Bounded positional reads of a log file; nothing of it is mapped, so no bad sector or hole can kill.

    Attributes:
        size: bytes in the file when it was opened.
    """

    __slots__ = ("_base", "_data", "_fd", "path", "size")

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self._fd = with_log(path, lambda found: disk.DISK.open_file(found, os.O_RDONLY))
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise irregular(path, status.st_mode)
        self.size: Final = status.st_size
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
                try:
                    part = disk.DISK.pread(self._fd, want, pos)
                except OSError as e:
                    e.filename = e.filename or self.path
                    raise
                if not part:
                    break
                parts.append(part)
                pos += len(part)
                want -= len(part)
            self._data = parts[0] if len(parts) == 1 else b"".join(parts)
            self._base = base
            start = 0
        return self._data, start

    def frame_at(self, pos: int, end: int) -> tuple[bytes, int]:
        """A buffer that holds the frame at `pos`, if one is there below `end`, and its offset in it."""
        buf, at = self.at(pos, MIN_FRAME_SIZE)
        length = int.from_bytes(buf[at : at + 4], "little")
        if MIN_FRAME_SIZE <= length <= end - pos and at + length > len(buf):
            buf, at = self.at(pos, length)
        return buf, at

    def header_at(self, pos: int, end: int) -> FrameHeader:
        """The intact header of the frame at `pos`, ending at or before `end`; the body is not looked at."""
        buf, at = self.frame_at(pos, end)
        return read_header(buf, at, min(at + end - pos, len(buf)))

    def read_frame(self, pos: int, end: int) -> tuple[FrameHeader, int]:
        """Header and key hash of the frame at `pos`, both checksums verified."""
        buf, at = self.frame_at(pos, end)
        header = read_header(buf, at, min(at + end - pos, len(buf)))
        body = memoryview(buf)[at + HEADER_SIZE : at + header.length - TRAILER_SIZE]
        if crc32(body) != header.body_crc:
            raise CorruptionError(reason=f"body checksum mismatch in entry {header.entry_id}", offset=pos)
        return header, METADATA.unpack_from(buf, at + HEADER_SIZE)[2]

    def is_empty_behind(self, pos: int, end: int) -> bool:
        """Whether there is nothing but zeros in [pos, end)."""
        while pos < end:
            data = self.next_data(pos)
            if data < 0 or data >= end:
                return True
            pos = max(pos, data)
            buf, at = self.at(pos, min(WINDOW, end - pos))
            part = buf[at : at + end - pos]
            if not part:
                return True
            if part.count(0) != len(part):
                return False
            pos += len(part)
        return True

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
