"""The doorbell where FIFOs do not exist: a small file that is written to ring it and read to notice that.

Slower (a look every 50 us at first, every 20 ms after a second of silence) and not quite free when idle,
but it needs nothing but files and ``flock``.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from typing import Final

from embeddedpulsar.platform import descriptors, filesystem, nofollow, ownership
from embeddedpulsar.platform.natives import system
from embeddedpulsar.platform.processes import lease
from embeddedpulsar.platform.processes.lease import Liveness

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_SHORTEST_NAP_S: Final = 50e-6
_LONGEST_NAP_S: Final = 0.02
_GROWTH: Final = 1.25
_PROBE_EVERY_S: Final = 0.05
TOKEN_SIZE: Final = 8


def means_no_fifos(error: Exception) -> bool:
    """Whether ``error`` of ``mkfifo`` says that this platform or file system has none."""
    if isinstance(error, AttributeError):
        return True
    return isinstance(error, OSError) and error.errno in (
        errno.EPERM,
        errno.ENOTSUP,
        errno.EOPNOTSUPP,
        errno.ENOSYS,
    )


def ring_file(fd: int) -> None:
    """Ring the polling doorbell open at ``fd``: any new content will do, so concurrent ringers cannot undo
    one another."""
    os.pwrite(fd, os.urandom(TOKEN_SIZE), 0)


def _make(path: str) -> int:
    """Make the file and lock it; -1 when a sweeper was faster."""
    rights = ownership.rights_in(os.path.dirname(path))
    what = f"cannot create the doorbell {path}"
    fd = descriptors.opening(what, nofollow.open_file, path, _FLAGS, rights.file_mode)
    if lease.try_hold(fd, path):
        ownership.grant_file(fd, rights)
        return fd
    os.close(fd)
    with contextlib.suppress(FileNotFoundError):
        nofollow.unlink(path)
    return -1


class PollingDoorbell:
    """Same contract as `FifoDoorbell`; the file is the lease too."""

    loop_fd: Final = -1

    def __init__(self, path: str, uuid: bytes, fd: int, liveness: Liveness) -> None:
        self.path = path
        self.uuid = uuid
        self.dead: deque[bytes] = deque()
        self.liveness = liveness
        self._clients_dir = os.path.dirname(path)
        self._home = lease.identity(os.path.dirname(self._clients_dir))
        self._fd = fd
        self._heard = b""
        self._watched: dict[bytes, None] = {}
        self._probed_at = 0.0

    @classmethod
    def create(cls, clients_dir: str, liveness: Liveness | None = None) -> PollingDoorbell:
        liveness = liveness or Liveness(clients_dir)
        while True:
            uuid = os.urandom(16)
            path = lease.lease_path(clients_dir, uuid)
            liveness.hold(uuid)
            fd = _make(path)
            if fd >= 0:
                return cls(path, uuid, fd, liveness)

    def ring(self) -> None:
        if self._fd >= 0:
            ring_file(self._fd)

    def wait(self, timeout_s: float | None) -> bool:
        """Look, nap, look again, ever more slowly, until there is news or the timeout."""
        deadline = None if timeout_s is None else system.monotonic() + timeout_s
        nap = _SHORTEST_NAP_S
        while self._fd >= 0:
            if self._listen() or self._probe():
                return True
            if deadline is not None:
                left = deadline - system.monotonic()
                if left <= 0:
                    return False
                nap = min(nap, left)
            system.sleep(nap)
            nap = min(nap * _GROWTH, _LONGEST_NAP_S)
        return False

    def _listen(self) -> bool:
        token = os.pread(self._fd, TOKEN_SIZE, 0)
        if token == self._heard:
            return False
        self._heard = token
        return True

    def _probe(self) -> bool:
        now = system.monotonic()
        if not self._watched or now - self._probed_at < _PROBE_EVERY_S:
            return False
        self._probed_at = now
        gone = [uuid for uuid in list(self._watched) if not self.liveness.is_alive(uuid)]
        self.dead.extend(gone)
        for uuid in gone:
            self._watched.pop(uuid, None)
        return bool(gone)

    def watch(self, uuid: bytes) -> bool:
        if not self.liveness.is_alive(uuid):
            return False
        self._watched[uuid] = None
        return True

    def unwatch(self, uuid: bytes) -> None:
        self._watched.pop(uuid, None)

    def mend(self) -> bool:
        if self._fd < 0 or lease.is_same_file(self._fd, self.path):
            return False
        building = self.path + lease.BUILDING
        try:
            if lease.identity(os.path.dirname(self._clients_dir)) != self._home:
                return False  # another store is there
            filesystem.make_directories(self._clients_dir, None)
            with contextlib.suppress(FileNotFoundError):
                nofollow.unlink(building)
            fd = _make(building)
            if fd < 0:
                return False
            nofollow.replace(building, self.path)
            os.dup2(fd, self._fd, inheritable=False)
            os.close(fd)
        except OSError:
            return False  # the store was removed, or no descriptor is to be had: tried again
        return True

    def close(self) -> None:
        try:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                nofollow.unlink(self.path)
        finally:
            self.abandon()

    def abandon(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        self.liveness.close()
