"""Files that say by a shared lock that a process uses them: the kernel ends it with the process."""

from __future__ import annotations

import contextlib
import os
from typing import Final

from embeddedpulsar.platform import descriptors, disk, fork, nofollow
from embeddedpulsar.platform.file_lock import LOCK_EX_NB, flock

_SHARED: Final = 1  # LOCK_SH, the same on every system that has flock
_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_LOOK_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class HeldFile:
    """A file that this process holds; several may at a time.

    Callers: any thread; `close` ends the hold. A forked child gives its copy back, which leaves the parent's
    hold.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        fork.register(self)

    @classmethod
    def open(cls, path: str) -> HeldFile:
        """Hold ``path``, which is made if it is not there.

        Raises:
            OSError: this process may not write there.
        """
        while True:
            with contextlib.suppress(FileExistsError):
                os.close(disk.DISK.create_exclusive(path))
            try:
                fd = descriptors.opening(f"cannot open {path}", nofollow.open_file, path, _FLAGS)
            except FileNotFoundError:
                continue  # removed meanwhile
            held = cls(fd)
            try:
                flock(fd, _SHARED)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(fd), nofollow.status(path)):
                        return held
            except BaseException:
                held.close()
                raise
            held.close()  # `remove_if_free` was faster

    def close(self) -> None:
        """Hold it no more. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    after_fork_in_child = close


def is_held(path: str) -> bool:
    """Whether a process holds ``path``.

    Raises:
        FileNotFoundError: it is not there.
    """
    fd = descriptors.opening(f"cannot open {path}", nofollow.open_file, path, _LOOK_FLAGS)
    try:
        flock(fd, LOCK_EX_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def remove_if_free(path: str) -> bool:
    """Remove ``path`` unless a process holds it; returns whether it is gone."""
    try:
        fd = descriptors.opening(f"cannot open {path}", nofollow.open_file, path, _FLAGS)
    except FileNotFoundError:
        return True
    try:
        flock(fd, LOCK_EX_NB)
        if not os.path.samestat(os.fstat(fd), nofollow.status(path)):
            return False  # another call removed the file, and a process made one of that name since
        disk.DISK.unlink(path)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    finally:
        os.close(fd)
    return True
