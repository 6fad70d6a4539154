"""Which processes are alive: one file per process, locked for the life of its owner.

The lease of a process is ``clients/<uuid hex>``: a FIFO (see `doorbell`) or, where FIFOs do not exist, a
plain file. The owner holds ``flock(LOCK_EX)`` on it; the kernel frees it when the last descriptor of the
owner goes, however the owner ends. A pid proves nothing: it is reused, and it is wrong for zombies and across
containers.

Probing opens the file for *writing* only. A FIFO without a reader refuses that with ENXIO, so the answer
for a dead owner needs no lock at all, and no prober ever stands in as a reader and hides a death from those
that poll.

A cleaner may remove the name while its owner lives. So a process also locks, for life, one byte of a file
that stays, chosen by its id (`Liveness`): an open-file-description lock far beyond the end of the file, which
takes no room. The kernel frees it when the last descriptor of that opening is closed, however the process
ends; asking takes no lock and half a microsecond. Outside Linux there are no such locks, and the name alone
decides.

Only Linux locks FIFOs. Elsewhere the lease is a plain file, which is the doorbell as well; it names the pid
of its owner, for those that want to hear of its end, and for people who look.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import sys

from embeddedpulsar._engine.platform import descriptors, nofollow
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final

HEX_LENGTH: Final = 32
BUILDING: Final = ".new"
"""Ends the name of a lease that is made again: it is locked before it gets its own name."""
# For writing only. A reader would keep the FIFO open beyond its owner's death and hide that from all
# watchers.
_PROBE_FLAGS: Final = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
_GONE: Final = (errno.ENOENT, errno.ENXIO)  # closed in good order; a FIFO without a reader
_SWEEP_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
_FLOCK: Final = struct.Struct("@hhqqi4x")  # struct flock: type, whence, start, length, pid
_ARE_THERE: Final = sys.platform == "linux" and struct.calcsize("P") == 8 and hasattr(fcntl, "F_OFD_SETLK")
_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
TOKEN_SIZE: Final = 8
"""The first bytes of a plain lease; who changes them rings its owner."""
_OWNER: Final = struct.Struct("<q")  # behind these: the pid of the owner
_FIRST: Final = 1 << 62  # beyond every byte of the file
_EVERY: Final = 1 << 61


class Holder(NamedTuple):
    """A producer or consumer that is attached: its name, the lease of its process, and the thread of this
    process that attached it, empty if it is another's or unknown."""

    name: str
    client_uuid: bytes
    thread: str = ""


def lease_path(clients_dir: str, uuid: bytes) -> str:
    """The file that is the lease of ``uuid``."""
    return f"{clients_dir}/{uuid.hex()}"


def open_for_writing(path: str) -> int:
    """Open the lease of another process to ring or watch it; -1 when its owner is gone.

    Raises:
        OSError: it cannot be opened (EACCES, EMFILE, a symbolic link): that says nothing about its owner.
    """
    # ENOENT: the name is gone. ENXIO: a FIFO that no process reads. Both say that the owner is gone,
    # or has no FIFO.
    try:
        fd = descriptors.opening(f"cannot open {path}", nofollow.open_file, path, _PROBE_FLAGS)
    except OSError as e:
        if e.errno in _GONE:
            return -1
        raise
    if not is_lease_mode(os.fstat(fd).st_mode):
        os.close(fd)
        return -1
    return fd


def owner_of(fd: int) -> int:
    """The pid that a plain lease, open for reading at ``fd``, names; 0 for a FIFO, and where none is named.

    A hint: the number may be used again by now, or be of another container.
    """
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return 0
    data = os.pread(fd, _OWNER.size, TOKEN_SIZE)
    return int(_OWNER.unpack(data)[0]) if len(data) == _OWNER.size else 0


def name_owner(fd: int) -> None:
    """Let the plain lease open at ``fd`` name this process."""
    os.pwrite(fd, _OWNER.pack(os.getpid()), TOKEN_SIZE)


def open_for_reading(path: str) -> int:
    """Open a lease to look at it, not to be its owner; -1 when it is gone. Not for a FIFO: a reader would
    hide the death of its owner.

    Raises:
        OSError: it cannot be opened (EACCES, EMFILE, a symbolic link).
    """
    try:
        return descriptors.opening(f"cannot open {path}", nofollow.open_file, path, _SWEEP_FLAGS)
    except FileNotFoundError:
        return -1


def is_lease_mode(mode: int) -> bool:
    """Whether a file of this mode may be a lease: a FIFO or a plain file, never a device or a directory."""
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def is_free(fd: int) -> bool:
    """Whether no process holds the lease open at ``fd``."""
    # Shared, so that two that ask at once do not take each other for the owner.
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


def is_held(path: str) -> bool:
    """Whether the owner of the lease at ``path`` lives. Process-safe; about 4 us.

    Raises:
        OSError: the file cannot be examined (EACCES, EMFILE ...): both answers could be wrong.
    """
    fd = open_for_writing(path)
    if fd < 0:
        return False
    try:
        return not is_free(fd)
    finally:
        os.close(fd)


def identity(directory: str) -> tuple[int, int]:
    """(device, inode) of what is there by that name."""
    status = os.stat(directory)
    return status.st_dev, status.st_ino


def hold_number(fd: int, number: int) -> None:
    """Lock the byte of ``number`` (0 to 2**32 - 1) of the open file ``fd`` until that opening is closed, by
    `close` or because the process ends. Does nothing on a file system without such locks."""
    if _ARE_THERE:
        with contextlib.suppress(OSError):
            lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _FIRST | number, 1, 0)
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)


def is_number_held(fd: int, number: int) -> bool:
    """Whether another opening of the file ``fd`` holds ``number``, in whatever container its process is."""
    return _ARE_THERE and _ask(fd, _FIRST | number, 1)


def seems_to_run(pid: int) -> bool:
    """Whether a process has this number here: a hint, for waits that end anyway.

    It proves nothing: numbers are used again, a process that ended keeps its own until it is reaped, and
    another container counts from 1.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it is another user's
    return True


def try_hold(fd: int, path: str) -> bool:
    """Take the lease just created at ``path``; False when a sweeper was faster (then create another)."""
    # Exclusive and tried: a sweeper may have the file locked at this moment, to remove it.
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    # The lock counts only if the name still leads to this file. A sweeper unlinks under the lock, so
    # the process that gets the lock after it finds no link.
    return os.fstat(fd).st_nlink == 1 and is_same_file(fd, path)


def is_same_file(fd: int, path: str) -> bool:
    """Whether ``path`` still names the file open at ``fd``."""
    try:
        named = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    opened = os.fstat(fd)
    return (opened.st_dev, opened.st_ino) == (named.st_dev, named.st_ino)


def try_lock(fd: int, *, shared: bool) -> bool:
    """Lock the open file ``fd``, with others or alone, without waiting. A hold it has in the other mode is
    given up first, also if this fails."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def remove_if_orphan(path: str) -> bool:
    """Unlink the lease at ``path`` when its owner is gone. The lock is held while it goes, so a process that
    created the same file a moment ago and could not lock it knows to start again.

    The lock is shared: it keeps an owner out as an exclusive one does, and who asks meanwhile whether the
    owner lives, with a shared lock as well, hears that it does not.
    """
    try:
        fd = descriptors.opening(f"cannot open {path}", nofollow.open_file, path, _SWEEP_FLAGS)
    except OSError:
        return False
    try:
        if not is_lease_mode(os.fstat(fd).st_mode):
            return False
        # The lock is held until the file is closed, and the name goes meanwhile: a process that made
        # it and did not lock it yet sees one of the two, and starts again. An exclusive lock would make the
        # dead owner look alive for that moment: its name and its exclusive subscription would look taken.
        if not try_lock(fd, shared=True) or not is_same_file(fd, path):
            return False
        try:
            nofollow.unlink(path)
        except FileNotFoundError:
            return False  # its creator, which could not lock it, was faster
        return True
    finally:
        os.close(fd)


def _byte_of(uuid: bytes) -> int:
    return _FIRST | int.from_bytes(uuid[:8], "little") % _EVERY


def _ask(fd: int, start: int, length: int) -> bool:
    """Whether another opening of the file has a lock there; False on a file system without such locks."""
    return _answer(fd, start, length) or False


def _answer(fd: int, start: int, length: int) -> bool | None:
    """As `_ask`, but None on a file system without such locks."""
    # F_OFD_GETLK tells of a lock that would conflict. Asking takes none, so two that ask do not see
    # each other.
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, question)
    except OSError:
        return None
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def has_any(path: str) -> bool:
    """Whether any process holds its byte of the file ``path``."""
    if not _ARE_THERE:
        return False
    try:
        fd = descriptors.opening(f"cannot open {path}", nofollow.open_file, path, _SWEEP_FLAGS)
    except OSError:
        return False
    try:
        return _ask(fd, _FIRST, _EVERY)
    finally:
        os.close(fd)


def is_locked(path: str) -> bool:
    """Whether a process has the lock file ``path`` locked. Needs the right to read it; two that ask do not
    see each other.

    Raises:
        FileNotFoundError: there is none.
    """
    fd = descriptors.opening(f"cannot open {path}", nofollow.open_file, path, _SWEEP_FLAGS)
    try:
        return not try_lock(fd, shared=True)
    finally:
        os.close(fd)


class Liveness:
    """How one process learns whether others live, and shows that it lives itself.

    Callers: any thread; `close` after all other calls. A forked child closes its copy, which leaves
    the lock to the parent.
    """

    def __init__(self, clients_dir: str, path: str = "") -> None:
        self._clients_dir: Final = clients_dir
        self._fd = -1
        self._is_held = False  # the byte: so the file system has such locks, and all processes hold theirs
        self._dead = b""  # the process whose end was seen last: no id is given again
        if path and _ARE_THERE:
            self._fd = descriptors.opening(f"cannot open {path}", nofollow.open_file, path, _FLAGS)

    def hold(self, uuid: bytes) -> None:
        """Lock the byte of this process, before its lease gets a name."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # a file system without such locks: the name decides
                lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _byte_of(uuid), 1, 0)
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, lock)
                self._is_held = True

    def raise_above(self, fd: int) -> None:
        """Move to a descriptor higher than ``fd``: Linux gives those of a process that dies up from the
        highest on, so a process that sees the end of ``fd`` finds the byte free, and need not ask again."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # none is left above: deaths are confirmed later then
                lower, self._fd = self._fd, fcntl.fcntl(self._fd, fcntl.F_DUPFD_CLOEXEC, fd + 1)
                os.close(lower)

    def is_alive(self, uuid: bytes, freed: int = -1) -> bool:
        """Whether the process ``uuid`` lives; not for this one's own. 0.5 us, 4 us for a dead one.

        Args:
            uuid: of the process.
            freed: its lease, open for writing and found free, if the caller has that: only if another file
                has the name by now, that one is tried. In a process that slept, opening takes ten times as
                long.

        Raises:
            OSError: its lease cannot be examined (EACCES, EMFILE), and it holds no byte.
        """
        if uuid == self._dead:
            return False
        # The byte says "alive" for certain. A free byte says nothing of a process that could not lock
        # one, so the name is asked as well.
        if self._fd >= 0 and _ask(self._fd, _byte_of(uuid), 1):
            return True
        path = lease_path(self._clients_dir, uuid)
        if not (freed >= 0 and is_same_file(freed, path)):
            return is_held(path)
        if self._is_held:
            self._dead = uuid
        return False

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OnlookerLiveness(Liveness):
    """How a process that only looks at a store learns which of its processes live: it needs the right to
    read ``path``, shows nothing of itself, and opens no doorbell where the bytes tell."""

    def __init__(self, clients_dir: str, path: str) -> None:
        super().__init__(clients_dir)
        with contextlib.suppress(FileNotFoundError):  # a copy without it: no process can have it open
            if _ARE_THERE:
                self._fd = descriptors.opening(f"cannot open {path}", nofollow.open_file, path, _SWEEP_FLAGS)

    def hold(self, uuid: bytes) -> None:
        """Do nothing."""

    def is_alive(self, uuid: bytes, freed: int = -1) -> bool:
        """Whether the process ``uuid`` lives. Errors are those of `Liveness.is_alive`."""
        answer = _answer(self._fd, _byte_of(uuid), 1) if self._fd >= 0 else None
        return is_held(lease_path(self._clients_dir, uuid)) if answer is None else answer
