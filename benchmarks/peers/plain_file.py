"""os.pwrite and zlib.crc32: what storing and checking the bytes costs with nothing around it."""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path

from benchmarks.contest import PROCESS, READ_ONLY, Contestant


class Write(Contestant):
    """Checksum a buffer and append it to an allocated file."""

    key = "pwrite"
    name = "os.pwrite + zlib.crc32"
    survives = PROCESS

    def __init__(self, size: int) -> None:
        super().__init__()
        self._payload = os.urandom(size)

    def start(self, place: Path) -> None:
        self._path = place / "file"

    def run(self, operations: int) -> float:
        size = len(self._payload)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size * operations)
            begun = time.perf_counter()
            for i in range(operations):
                zlib.crc32(self._payload)
                os.pwrite(fd, self._payload, i * size)
            seconds = time.perf_counter() - begun
        finally:
            os.close(fd)
        return seconds


class Read(Contestant):
    """Read the same bytes back from the page cache and check them."""

    key = "pread"
    name = "os.pread + zlib.crc32"
    survives = READ_ONLY

    def __init__(self, size: int, messages: int) -> None:
        super().__init__()
        self._size, self._messages = size, messages

    def start(self, place: Path) -> None:
        payload = os.urandom(self._size)
        self._path = place / "file"
        with self._path.open("wb") as file:
            for _ in range(self._messages):
                file.write(payload)

    def run(self, operations: int) -> float:
        fd = os.open(self._path, os.O_RDONLY)
        try:
            begun = time.perf_counter()
            for i in range(operations):
                zlib.crc32(os.pread(fd, self._size, i % self._messages * self._size))
            seconds = time.perf_counter() - begun
        finally:
            os.close(fd)
        return seconds
