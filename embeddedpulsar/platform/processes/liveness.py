"""Which processes of a store live: by two locks of each, of which one has no name that could be removed.

Each process holds ``flock`` on its file in ``clients/`` (see `lease`). A cleaner may remove that name while
its owner lives. So a process also locks, for life, one byte of a file that stays, chosen by its id: an
open-file-description lock far beyond the end of the file, which takes no room. The kernel frees it when the
last descriptor of that opening is closed, however the process ends; asking takes no lock and half a
microsecond. Where there are no such locks (outside Linux), the name decides alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import sys
from typing import Final

from embeddedpulsar.platform import descriptors
from embeddedpulsar.platform.processes import lease

_FLOCK: Final = struct.Struct("@hhqqi4x")  # struct flock: type, whence, start, length, pid
_ARE_THERE: Final = sys.platform == "linux" and struct.calcsize("P") == 8 and hasattr(fcntl, "F_OFD_SETLK")
_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC
_FIRST: Final = 1 << 62  # beyond every byte of the file
_EVERY: Final = 1 << 61


def _byte_of(uuid: bytes) -> int:
    return _FIRST | int.from_bytes(uuid[:8], "little") % _EVERY


def _ask(fd: int, start: int, length: int) -> bool:
    """Whether another opening of the file has a lock there."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def has_any(path: str) -> bool:
    """Whether any process holds its byte of the file ``path``."""
    if not _ARE_THERE:
        return False
    try:
        fd = descriptors.opening(f"cannot open {path}", os.open, path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return _ask(fd, _FIRST, _EVERY)
    except OSError:
        return False  # a file system without them
    finally:
        os.close(fd)


class Liveness:
    """How one process learns whether others live, and shows that it lives itself.

    Callers: any thread; `close` after all other calls. A forked child closes its copy, which leaves
    the lock to the parent.

    Args:
        clients_dir: where the leases are.
        path: the file whose bytes are locked; empty for none.
    """

    def __init__(self, clients_dir: str, path: str = "") -> None:
        self._clients_dir: Final = clients_dir
        self._fd = -1
        if path and _ARE_THERE:
            self._fd = descriptors.opening(f"cannot open {path}", os.open, path, _FLAGS)

    def hold(self, uuid: bytes) -> None:
        """Lock the byte of this process, before its lease gets a name."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # a file system without such locks: the name decides
                lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _byte_of(uuid), 1, 0)
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, lock)

    def is_alive(self, uuid: bytes) -> bool:
        """Whether the process ``uuid`` lives; not for this one's own. 0.5 us, 4 us for a dead one.

        Raises:
            OSError: its lease cannot be examined (EACCES, EMFILE), and it holds no byte.
        """
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                if _ask(self._fd, _byte_of(uuid), 1):
                    return True
        return lease.is_held(lease.lease_path(self._clients_dir, uuid))

    def close(self) -> None:
        """Unlock the byte. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
