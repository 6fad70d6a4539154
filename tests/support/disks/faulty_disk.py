"""A disk whose Nth call fails, for tests.

Run a script once and read `FaultyDisk.count`; then run it again for every N up to that count with the Nth
call
failing: that is how SQLite tests its errors, and it finds the clean-up that was forgotten.
"""

from __future__ import annotations

import errno as errno_codes
import os
from collections.abc import Callable, Sequence
from typing import Final

from embeddedpulsar._engine.platform.disk import Buffer, Disk, naming_full, path_of

ANY: Final = "*"


class _Fault:
    """One planned failure."""

    __slots__ = ("call", "errno", "left", "path", "times")

    def __init__(self, call: str, nth: int, errno: int, times: int, path: str) -> None:
        self.call = call
        self.left = nth
        self.errno = errno
        self.times = times
        self.path = path

    def is_due(self, call: str, path: str) -> bool:
        if self.call not in (ANY, call) or self.path not in path:
            return False
        self.left -= 1
        return -self.times < self.left <= 0


class FaultyDisk(Disk):
    """The real disk, except that it counts its calls and fails those it was told to.

    For one process, in tests. Calls on behalf of others are counted too: an `atomic_write` is also a
    ``create_exclusive``, an ``open_file``, a ``pwrite_all`` and so on.

    Attributes:
        count: calls so far.
        log: their names and paths (empty path where a call has none).
        on_call: called with the name and the path before each call; what it raises comes out of the call.
    """

    def __init__(self) -> None:
        self.count = 0
        self.log: list[tuple[str, str]] = []
        self.on_call: Callable[[str, str], object] | None = None
        self._faults: list[_Fault] = []

    def fail(
        self, call: str = ANY, nth: int = 1, errno: int = errno_codes.EIO, *, times: int = 1, path: str = ""
    ) -> None:
        """Let the ``nth`` call named ``call`` (counted from now) fail with ``errno``, and ``times - 1`` after
        it.

        Args:
            call: a method of `Disk`, or ``"*"`` for any.
            path: only calls whose path contains this are counted.
        """
        self._faults.append(_Fault(call, nth, errno, times, path))

    def heal(self) -> None:
        """Let nothing fail any more."""
        self._faults.clear()

    def _step(self, call: str, path: str = "") -> None:
        self.count += 1
        self.log.append((call, path))
        if self.on_call is not None:
            self.on_call(call, path)
        for fault in self._faults:
            if fault.is_due(call, path):
                raise OSError(fault.errno, os.strerror(fault.errno), path or None)

    def open_file(self, path: str, flags: int, mode: int = 0o600) -> int:
        with naming_full(f"cannot open {path}"):
            self._step("open_file", path)
            return super().open_file(path, flags, mode)

    def create_exclusive(self, path: str) -> int:
        with naming_full(f"cannot create {path}"):
            self._step("create_exclusive", path)
            return super().create_exclusive(path)

    def fallocate(self, fd: int, offset: int, length: int, *, in_use: bool = False) -> None:
        with naming_full(f"cannot reserve {length} bytes"):
            self._step("fallocate")
            super().fallocate(fd, offset, length, in_use=in_use)

    def truncate_new(self, fd: int, size: int) -> None:
        with naming_full(f"cannot grow a file to {size} bytes"):
            self._step("truncate_new")
            super().truncate_new(fd, size)

    def pwrite_all(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        with naming_full("cannot write"):
            try:
                self._step("pwrite_all")
            except OSError:
                # A disk that fills up takes the first part.
                data = b"".join(buffers)
                super().pwrite_all(fd, [data[: len(data) // 2]], offset)
                raise
            return super().pwrite_all(fd, buffers, offset)

    def pread(self, fd: int, n: int, offset: int) -> bytes:
        self._step("pread", path_of(fd) or "")
        return super().pread(fd, n, offset)

    def fsync(self, fd: int, path: str) -> None:
        self._step("fsync", path)
        super().fsync(fd, path)

    def fdatasync(self, fd: int, path: str) -> None:
        self._step("fdatasync", path)
        super().fdatasync(fd, path)

    def fsync_dir(self, path: str) -> None:
        self._step("fsync_dir", path)
        super().fsync_dir(path)

    def replace(self, src: str, dst: str) -> None:
        with naming_full(f"cannot rename {src}"):
            self._step("replace", dst)
            super().replace(src, dst)

    def unlink(self, path: str) -> None:
        self._step("unlink", path)
        super().unlink(path)

    def mkdir(self, path: str, mode: int | None = None) -> None:
        with naming_full(f"cannot create {path}"):
            self._step("mkdir", path)
            super().mkdir(path, mode)

    def rmdir(self, path: str) -> None:
        self._step("rmdir", path)
        super().rmdir(path)
