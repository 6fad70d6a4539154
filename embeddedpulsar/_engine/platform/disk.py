"""Everything that must survive a crash goes through here: creating, growing, writing, flushing, renaming and
unlinking files.

No layer above calls ``os.fsync`` and its like; it calls `DISK`. Tests put a ``FakeDisk`` there (see
``tests/support/disks``), which remembers what a power loss would leave, or a ``FaultyDisk``, which fails the
Nth call.

What the calls promise, on a disk that reports flushes truly:

* `Disk.fdatasync` / `Disk.fsync`: all bytes of the file written so far (by any process, through any
  descriptor or map) and its size survive. They do not make its *name* survive.
* `Disk.fsync_dir`: the names created, replaced and removed in that directory so far survive.
* a failed flush is final: the kernel has dropped the pages, and a second flush reports success without them.

No call follows a symbolic link in a path (see `nofollow`): paths begin with a canonical root.

Owner and rights of a new file are the same as those of the directory it is made in. The directory of a store
decides for everything below it, as an SQLite database does for its journal: owner and group where the process
may give files away (root may; a member of the group may give them to the group), and the bits of the mode,
whatever the umask says. 0700 keeps a store private, 2770 shares it with a group.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence

from embeddedpulsar._engine.platform import descriptors, failpoints, nofollow
from embeddedpulsar._engine.platform.access import FULL, access_denied, irregular
from embeddedpulsar._engine.platform.threads import system
from embeddedpulsar.exceptions import AccessDeniedError, StorageFullError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final


_CREATE: Final = (
    os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
)
_BITS: Final = 0o7777
_FOR_FILES: Final = 0o664  # not writable by others: a user that writes a mapped file may crash the rest
_FOR_DIRECTORIES: Final = 0o2775
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_IS_SUPPORTED: Final = hasattr(os, "fchown")
_NAMES_ONLY: Final = sys.platform in ("linux", "android")
"""Whether the descriptor of `nofollow.named` cannot give rights itself."""
_NO_LINK: Final = {"follow_symlinks": False} if os.chmod in os.supports_follow_symlinks else {}
_UNNAMED: Final = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC if hasattr(os, "O_TMPFILE") else 0
_NO_UNNAMED: Final = (*_NO_LINKS, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EXDEV)
"""Linux gives ENOENT without /proc, and EISDIR where the file system does not know ``O_TMPFILE``."""


class Rights(NamedTuple):
    """Owner, group and mode of new files in a directory."""

    uid: int
    gid: int
    directory_mode: int

    @property
    def file_mode(self) -> int:
        """Mode of a file: that of the directory without the right to search, and without write access for
        others."""
        return self.directory_mode & _FOR_FILES

    @property
    def is_private(self) -> bool:
        """Whether this process can make such a file in one step: no other user or group has rights to it."""
        return not self.directory_mode & 0o077 and self.uid == os.geteuid()


def rights_in(directory: str) -> Rights:
    """The rights of new files in ``directory``."""
    what = f"cannot look at {directory}"
    status = descriptors.calling(what, nofollow.directory_status, directory or os.curdir)
    return Rights(status.st_uid, status.st_gid, status.st_mode & _FOR_DIRECTORIES)


def rights_beside(path: str) -> Rights:
    """The rights of a new file ``path``."""
    end = path.rfind(os.sep) + 1
    directory = path[: end - 1] or os.sep if end else os.curdir
    status = nofollow.held_status(directory)
    if status is None:
        status = descriptors.calling(f"cannot look at {directory}", nofollow.directory_status, directory)
    return Rights(status.st_uid, status.st_gid, status.st_mode & _FOR_DIRECTORIES)


def grant_file(fd: int, rights: Rights) -> None:
    """Give the new file open at ``fd`` its rights, as far as the process may."""
    if _IS_SUPPORTED:
        status = os.fstat(fd)
        mode = rights.directory_mode & _FOR_FILES
        # As it nearly always is: the maker owns the directory, and asked for that mode.
        if (status.st_uid, status.st_gid, status.st_mode & _BITS) != (rights.uid, rights.gid, mode):
            _grant(fd, status, rights, mode)


def grant_fifo(path: str, rights: Rights) -> None:
    """The same for a FIFO, which can be opened only when it has them."""
    if _IS_SUPPORTED:
        _grant_unopened(path, rights, rights.file_mode)


def grant_directory(path: str, rights: Rights) -> None:
    """Give the new directory its rights, as far as the process may."""
    if _IS_SUPPORTED:
        _grant_unopened(path, rights, rights.directory_mode)


def _grant_unopened(path: str, rights: Rights, mode: int) -> None:
    """By a descriptor that only names the file: another user may put a link in its place at any moment."""
    what = f"cannot give {path} its rights"
    status = descriptors.calling(what, nofollow.status, path)
    # Nearly always right from the start: the same user made the directory.
    if (status.st_uid, status.st_gid) == (rights.uid, rights.gid) and status.st_mode & _BITS == mode:
        return
    above, name = descriptors.calling(what, nofollow.parent, path)
    try:
        try:
            fd = descriptors.calling(what, nofollow.named, above, name)
        except AccessDeniedError:
            if _NAMES_ONLY:
                raise
            # A umask took the right to read away, which this system needs for a descriptor.
            os.chmod(name, mode, dir_fd=above, **_NO_LINK)
            fd = descriptors.calling(what, nofollow.named, above, name)
        try:
            # ``chmod`` and ``chown`` by the descriptor or, on Linux, by its name in /proc change the file
            # that the descriptor names, whatever has its name now.
            status, opened = os.fstat(fd), f"/proc/self/fd/{fd}"
            if not _NAMES_ONLY:
                _grant(fd, status, rights, mode)
            elif os.path.exists(opened):
                _grant(opened, status, rights, mode)
            else:  # none of a process that gave up its rights: what it makes is its own
                os.chmod(name, mode, dir_fd=above)
        finally:
            os.close(fd)
    finally:
        os.close(above)


def _grant(target: int | str, status: os.stat_result, rights: Rights, mode: int) -> None:
    # Owner first: ``chown`` may clear bits of the mode, which is set after it.
    if (status.st_uid, status.st_gid) != (rights.uid, rights.gid):
        # A container's root may lack the right, as may a user outside the group: then the file stays with
        # its maker, and `access_denied` explains that to users that cannot open it.
        with contextlib.suppress(PermissionError):
            is_given = status.st_uid != rights.uid and os.geteuid() == 0
            os.chown(target, rights.uid if is_given else -1, rights.gid)
            status = os.stat(target)
    if status.st_mode & _BITS != mode:
        os.chmod(target, mode)


def make_empty(path: str) -> int:
    """Make the empty file ``path`` unless it is there.

    It gets its name when it has its rights, so that a maker that dies half way leaves nothing that shuts
    others out. Where the file system has no hard links, the name comes first. Where it has no files without
    a name, a maker that dies leaves one with another name, which a check of the store finds.

    Returns:
        A descriptor of the new file for reading and writing, the caller's; -1 for it is to be opened.
    """
    rights = rights_beside(path)
    # No other user can open what this process makes, so the file may have its name before its rights.
    if rights.is_private or not _IS_SUPPORTED:
        return _made_in_place(path, rights)
    if _UNNAMED and _make_unnamed(path, rights):
        return -1
    # The order of preference: a file without a name that is linked when it is ready; a file under
    # another name, linked; the name first. Each is for file systems that refuse the one before.
    building = f"{path}.{os.urandom(6).hex()}.tmp"
    try:
        _make_in_place(building, rights)
        try:
            nofollow.link(building, path)
        except FileExistsError:
            return -1  # another process was faster
        except OSError as e:
            if e.errno not in _NO_LINKS:
                raise
            _make_in_place(path, rights)
        return -1
    finally:
        with contextlib.suppress(OSError):
            nofollow.unlink(building)


def _make_unnamed(path: str, rights: Rights) -> bool:
    """`make_empty` by a file that has no name before. Returns False where that is not possible."""
    above, name = descriptors.calling(f"cannot create {path}", nofollow.parent, path)
    fd = -1
    try:
        what = f"cannot create {path}"
        fd = descriptors.opening(what, _open_unnamed, above, rights.file_mode)
        grant_file(fd, rights)
        with contextlib.suppress(FileExistsError):  # another process was faster
            # With ``src_dir_fd`` it follows that symbolic link.
            os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=fd, dst_dir_fd=above)
    except OSError as e:
        if e.errno not in _NO_UNNAMED:
            raise
        return False
    finally:
        if fd >= 0:
            os.close(fd)
        os.close(above)
    return True


def _open_unnamed(above: int, mode: int) -> int:
    return os.open(os.curdir, _UNNAMED, mode, dir_fd=above)


def _make_in_place(path: str, rights: Rights) -> None:
    fd = _made_in_place(path, rights)
    if fd >= 0:
        os.close(fd)


def _made_in_place(path: str, rights: Rights) -> int:
    """A descriptor of the new file; -1 if there is one already."""
    try:
        mode = rights.directory_mode & _FOR_FILES
        fd = descriptors.opening(f"cannot create {path}", nofollow.open_file, path, _CREATE, mode)
    except FileExistsError:
        return -1
    try:
        grant_file(fd, rights)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_access(directory: str, *, to_read: bool = False) -> None:
    """Refuse a directory of a store that this process may not use, or not even read."""
    is_effective = os.access in os.supports_effective_ids
    wanted = os.R_OK | os.X_OK | (0 if to_read else os.W_OK)
    if not os.access(directory, wanted, effective_ids=is_effective):
        what = f"cannot {'read' if to_read else 'use'} the store {directory}"
        raise access_denied(what, directory, errno.EACCES, to_read=to_read)


Buffer = bytes | bytearray | memoryview

# What this system can do. Tests switch these off to run the portable ways.
HAS_POSIX_FALLOCATE = hasattr(os, "posix_fallocate")
HAS_STATVFS = hasattr(os, "fstatvfs")
UNKNOWN_FREE: Final = 1 << 62
HAS_FDATASYNC = hasattr(os, "fdatasync")
HAS_PWRITE = hasattr(os, "pwrite")
HAS_DIRECTORY_FSYNC = os.name == "posix"
FULL_FSYNC: int | None = (
    51 if sys.platform == "darwin" else None
)  # fcntl F_FULLFSYNC: through the drive's cache

FLUSH_MAPS: Callable[[int], object] | None = None
"""Writes what was stored through maps of an open file: `mapped_file` puts it here where
``fsync`` does not."""
_NO_FULL_FSYNC: Final = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY)
_CANNOT_RESERVE: Final = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV)

# O_NONBLOCK says nothing of regular files. Without it, opening a FIFO that lies in the place of one waits for
# a process that writes to it, which never comes.
_OPEN_FLAGS: Final = (
    getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
)
_ZEROS: Final = bytes(64 * 1024)
# The unit in which `_write_zeros` may not overwrite what another process has stored.
_PAGE: Final = 4096
_EXT4_SHARE: Final = 50
_EXT4_MOST: Final = 4096
"""Blocks that ext4 keeps for itself, though `statvfs` calls them free: a fiftieth of all, at most these."""
_READ_STEP: Final = 1 << 20
# Below IOV_MAX, which is 1,024 on Linux.
_BUFFERS_PER_CALL: Final = 512 if hasattr(os, "pwritev") else 0  # macOS before 11 has none
# Beyond so many files, ``sync`` writes them all first, in one go: the flush of each then finds little to do.
_FLUSHED_SINGLY: Final = 16
_seek_mutex = system.allocate_lock()

failpoints.declare("document:written", "document:synced", "document:replaced", "document:directory_synced")


@contextlib.contextmanager
def naming_full(what: str) -> Iterator[None]:
    """Turn "no space", "quota exceeded" and "file too large" into `StorageFullError`."""
    try:
        yield
    except OSError as e:
        if e.errno in FULL and not isinstance(e, StorageFullError):
            raise _storage_full(e, what) from e
        raise


def _raise_if_full(e: OSError, what: str) -> None:
    """As `naming_full`, in an ``except``: a `try` without an error costs nothing, a context some 1.5 us."""
    if e.errno in FULL and not isinstance(e, StorageFullError):
        raise _storage_full(e, what) from e


def _storage_full(e: OSError, what: str) -> StorageFullError:
    return StorageFullError(
        f"{what}: {os.strerror(e.errno or 0)}",
        remedy="nothing was published; free space (or raise the quota) and try again",
        errno=e.errno or errno.ENOSPC,
    )


def path_of(fd: int) -> str | None:
    """The path of an open file, for messages; None where the system does not tell it."""
    return nofollow.name_of(fd) or None


class Disk:
    """The real disk. Thread-safe, without state; all paths are strings, all failures `OSError` or a kind of
    it."""

    def open_file(self, path: str, flags: int, mode: int = 0o600) -> int:
        """Open ``path``, never through a symbolic link in any part of it, and without waiting; return the
        descriptor.

        Raises:
            DescriptorLimitError: the process may not open any more, and can do without none it has.
            AccessDeniedError: the file is another user's.
        """
        what = f"cannot open {path}"
        try:
            return descriptors.opening(what, nofollow.open_file, path, flags | _OPEN_FLAGS, mode)
        except OSError as e:
            _raise_if_full(e, what)
            raise

    def create_exclusive(self, path: str) -> int:
        """Create ``path`` for reading and writing, with the rights of its directory."""
        what = f"cannot create {path}"
        # The rights are looked up in the directory and the file is made there: two calls of one
        # series, so both mean the same directory, whatever is renamed meanwhile.
        directory = nofollow.split(path)[0]
        if nofollow.held_status(directory) is not None:  # of a series that has it already
            return self._create(path)
        fd: int = descriptors.calling(what, nofollow.within, directory, self._create, path)
        return fd

    def _create(self, path: str) -> int:
        rights = rights_beside(path)
        fd = self.open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, rights.file_mode)
        try:
            grant_file(fd, rights)
        # A file with the wrong owner or mode would shut other users out of the store, so none is
        # left.
        except BaseException as e:
            os.close(fd)
            self.unlink(path)
            if isinstance(e, OSError):
                _raise_if_full(e, f"cannot create {path}")
            raise
        return fd

    def read_start(self, path: str, most: int) -> tuple[os.stat_result, bytes]:
        """Return the status and the first ``most`` bytes of a small file. In a process that slept this takes
        half the time of the single steps. Raises the errors of `read_file`."""
        fd = descriptors.calling(f"cannot open {path}", nofollow.open_file, path, os.O_RDONLY | _OPEN_FLAGS)
        try:
            return os.fstat(fd), os.read(fd, most)
        except OSError as e:
            e.filename = path
            raise
        finally:
            os.close(fd)

    def read_file(self, path: str, most: int | None = None) -> bytes:
        """A whole file, or its first ``most`` bytes.

        Raises:
            FileNotFoundError: there is none.
            AccessDeniedError: it is another user's.
            StorageOSError: something else than a file has its name.
        """
        fd = self.open_file(path, os.O_RDONLY)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise irregular(path, status.st_mode)
            size = status.st_size
            end = size if most is None else min(size, most)
            parts: list[bytes] = []
            at = 0
            # A step at most 1 MiB: a file that is shorter than its status said ends the loop with an
            # empty part.
            while at < end and (part := self.pread(fd, min(end - at, _READ_STEP), at)):
                parts.append(part)
                at += len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)
        except OSError as e:
            e.filename = path  # as the caller names it
            raise
        finally:
            os.close(fd)

    def fallocate(self, fd: int, offset: int, length: int, *, in_use: bool = False) -> None:
        """Reserve the blocks of ``[offset, offset + length)``; the file grows if it ends before, and reads
        zeros.

        Keeps what is written there. Where the system cannot reserve, zeros are written.

        Args:
            in_use: whether other processes may write in the range meanwhile. Then zeros are written behind
                the end of the file alone.

        Raises:
            StorageFullError: no room; nothing of the range counts as reserved.
        """
        if length <= 0 or self._reserve(fd, offset, length):
            return
        try:
            if in_use:
                self._append_zeros(fd, offset + length)
            else:
                self._write_zeros(fd, offset, offset + length)
        except OSError as e:
            _raise_if_full(e, f"cannot reserve {length} bytes")
            raise

    def _reserve(self, fd: int, offset: int, length: int) -> bool:
        """`fallocate` by the system. False where it cannot: on macOS, and on ZFS of FreeBSD."""
        if not HAS_POSIX_FALLOCATE:
            return False
        try:
            os.posix_fallocate(fd, offset, length)
        except OSError as e:
            if e.errno in _CANNOT_RESERVE:
                return False
            _raise_if_full(e, f"cannot reserve {length} bytes")
            raise
        return True

    def _append_zeros(self, fd: int, size: int) -> None:
        """Let a file have at least ``size`` bytes. What is appended is never put over anything; if other
        processes do the same meanwhile, the file may become longer than that."""
        missing = size - os.fstat(fd).st_size
        if missing <= 0:
            return
        import fcntl  # here alone, as in `fsync`: Windows has none

        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_APPEND)
            while missing > 0:
                os.write(fd, memoryview(_ZEROS)[:missing])
                missing = size - os.fstat(fd).st_size
        finally:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)

    def _write_zeros(self, fd: int, start: int, end: int) -> None:
        while start < end:
            # Beyond the end of the file there is nothing to keep. Below it, 64 KiB of zeros are written at
            # once; of others, page by page: a page that has anything in it is allocated already and may be
            # in use. Only zeros are written over, which allocates them and changes nothing.
            upto = min(end, start + len(_ZEROS))
            data = self.pread(fd, upto - start, start)
            if not data or data == _ZEROS[: len(data)]:
                self._pwrite_zeros(fd, start, upto)
            else:
                self._write_zero_pages(fd, start, data)
                upto = start + len(data)
            start = upto

    def _write_zero_pages(self, fd: int, start: int, data: bytes) -> None:
        at = 0
        while at < len(data):
            page_end = min(len(data), at + _PAGE - (start + at) % _PAGE)
            if data[at:page_end] == _ZEROS[: page_end - at]:
                self._pwrite_zeros(fd, start + at, start + page_end)
            at = page_end

    def _pwrite_zeros(self, fd: int, start: int, end: int) -> None:
        while start < end:
            start += _pwrite(fd, memoryview(_ZEROS)[: end - start], start)

    def truncate_new(self, fd: int, size: int) -> None:
        """Let the file be at least ``size`` bytes long, the new part a hole. Never shrinks it.

        For a file that no other process grows at the same time (a new one, or under a lock).
        """
        if os.fstat(fd).st_size < size:
            try:
                os.ftruncate(fd, size)
            except OSError as e:
                _raise_if_full(e, f"cannot grow a file to {size} bytes")
                raise

    def pwrite_all(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write all ``buffers``, one after the other, at ``offset``; return the number of bytes.

        Raises:
            StorageFullError: no room; part of the bytes may be there.
        """
        try:
            # One call in nearly all cases. A short write is not an error yet: `_pwrite_each` writes
            # everything again from the start, at the same place, and meets the reason.
            if HAS_PWRITE and len(buffers) <= _BUFFERS_PER_CALL:
                total = sum(map(len, buffers))
                if os.pwritev(fd, buffers, offset) == total:
                    return total
            return _pwrite_each(fd, buffers, offset)
        except OSError as e:
            _raise_if_full(e, "cannot write")
            raise

    def free_bytes(self, fd: int) -> int:
        """How much this process may still store on the file system of a file; `UNKNOWN_FREE` where it does
        not say."""
        if not HAS_STATVFS:
            return UNKNOWN_FREE
        status = os.fstatvfs(fd)
        # Without counts a full disk is noticed by the call that finds no room.
        if not status.f_blocks:  # some file systems count nothing
            return UNKNOWN_FREE
        blocks: int = status.f_bavail
        # Root may use the blocks that are kept for root (5 % of ext4 by default); others may not. Some
        # that ext4 keeps for itself count as free all the same. Of btrfs, which counts no files and
        # keeps none for root, the difference is what metadata have.
        if status.f_files and os.geteuid() == 0:
            blocks = max(blocks, status.f_bfree - min(status.f_blocks // _EXT4_SHARE, _EXT4_MOST))
        return blocks * status.f_frsize

    def pread(self, fd: int, n: int, offset: int) -> bytes:
        """Up to ``n`` bytes at ``offset``; fewer at the end of the file. An error names the file."""
        if HAS_PWRITE:
            try:
                return os.pread(fd, n, offset)
            except OSError as e:
                e.filename = path_of(fd)  # the system names no file where a descriptor was given
                raise
        with _seek_mutex:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.read(fd, n)

    def fsync(self, fd: int, path: str) -> None:
        """Flush bytes and attributes of the file. ``path`` is its present name, for messages and fakes."""
        # On macOS ``fsync`` leaves the bytes in the cache of the drive, and what was stored through maps in
        # memory.
        if FULL_FSYNC is not None:
            if FLUSH_MAPS is not None:
                FLUSH_MAPS(fd)
            _full_fsync(fd, FULL_FSYNC)
        else:
            os.fsync(fd)

    def fdatasync(self, fd: int, path: str) -> None:
        """Flush the bytes of the file and its size."""
        if HAS_FDATASYNC and FULL_FSYNC is None:
            os.fdatasync(fd)
        else:
            self.fsync(fd, path)

    def flush_files(self, paths: Sequence[str]) -> None:
        """Flush the bytes of many files that are complete, of which none is open.

        Raises:
            OSError: some bytes of a file, which is named, are not on the disk.
        """
        # ``sync`` reports no failed write, and does not take it from the files either: each flush below
        # reports it.
        if len(paths) > _FLUSHED_SINGLY and sys.platform == "linux":
            os.sync()
        for path in paths:
            fd = self.open_file(path, os.O_RDWR)
            try:
                self.fdatasync(fd, path)
            except OSError as e:
                e.filename = path
                raise
            finally:
                os.close(fd)

    def fsync_dir(self, path: str) -> None:
        """Flush the names in the directory ``path``. Windows cannot and need not."""
        if not HAS_DIRECTORY_FSYNC:
            return
        fd = descriptors.opening(f"cannot flush {path}", nofollow.open_directory, path, os.O_RDONLY)
        try:
            self._flush_directory(fd)
        finally:
            os.close(fd)

    def _flush_directory(self, fd: int) -> None:
        if FULL_FSYNC is not None:
            _full_fsync(fd, FULL_FSYNC)
        else:
            os.fsync(fd)

    def replace(self, src: str, dst: str) -> None:
        """Rename, replacing ``dst``, in one step."""
        what = f"cannot rename {src}"
        try:
            descriptors.calling(what, nofollow.replace, src, dst)
        except OSError as e:
            _raise_if_full(e, what)
            raise

    def unlink(self, path: str) -> None:
        """Remove the name. Maps and descriptors of the file stay valid."""
        descriptors.calling(f"cannot remove {path}", nofollow.unlink, path)

    def mkdir(self, path: str, mode: int | None = None) -> None:
        """Create a directory, with ``mode`` or, without one, the rights of the directory it is in.

        Raises:
            FileExistsError: something of that name is there.
            AccessDeniedError: the directory above is another user's.
        """
        what = f"cannot create {path}"
        # With a mode given the caller decides, as for the root of a store; without one the directory
        # above does.
        try:
            if mode is not None:
                descriptors.calling(what, nofollow.mkdir, path, mode)
                return
            rights = rights_beside(path)
            descriptors.calling(what, nofollow.mkdir, path, rights.directory_mode)
            grant_directory(path, rights)
        except OSError as e:
            _raise_if_full(e, what)
            raise

    def rmdir(self, path: str) -> None:
        nofollow.rmdir(path)

    def atomic_write(self, path: str, data: Buffer, durable: bool) -> None:
        """Let ``path`` hold ``data``: a reader sees the old file or the new one, never a part.

        ``durable``: it survives a power loss when this returns. A crash may leave a ``*.tmp`` file beside it.
        """
        # Random: a container that starts anew has the pid of the one that died here.
        temporary = f"{path}.{os.urandom(6).hex()}.tmp"
        try:
            fd = self.create_exclusive(temporary)
            try:
                # 1. The bytes. A crash leaves a stray temporary.
                self.pwrite_all(fd, [data], 0)
                if failpoints.ACTIVE:
                    failpoints.hit("document:written")
                # 2. Flush them before the name points at them, or a power loss leaves an empty file of that
                # name.
                if durable:
                    self.fsync(fd, temporary)
                if failpoints.ACTIVE:
                    failpoints.hit("document:synced")
            finally:
                os.close(fd)
            # 3. The name. From here on the new document is what others see.
            self.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise
        if failpoints.ACTIVE:
            failpoints.hit("document:replaced")
        # 4. Flush the name.
        if durable:
            self.fsync_dir(os.path.dirname(path) or ".")
        if failpoints.ACTIVE:
            failpoints.hit("document:directory_synced")


def _full_fsync(fd: int, command: int) -> None:
    """``fsync`` through the cache of the drive, or as far as the file system can."""
    import fcntl

    try:
        fcntl.fcntl(fd, command)
    except OSError as e:
        if e.errno not in _NO_FULL_FSYNC:
            raise
        os.fsync(fd)  # FAT and other foreign file systems have no better


def _pwrite(fd: int, data: Buffer, offset: int) -> int:
    if HAS_PWRITE:
        return os.pwrite(fd, data, offset)
    with _seek_mutex:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, data)


def _pwrite_each(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
    """Write piece by piece: many buffers, no pwritev, or a short write (RLIMIT_FSIZE, a full disk)."""
    start = offset
    for buffer in buffers:
        rest = memoryview(buffer).cast("B")
        # A write of 0 bytes would loop for ever; it is taken for a full disk.
        while rest:
            written = _pwrite(fd, rest, offset)
            if written == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            offset += written
            rest = rest[written:]
    return offset - start


DISK: Disk = Disk()


@contextlib.contextmanager
def use(disk: Disk) -> Iterator[Disk]:
    """Put ``disk`` in the place of `DISK` for a block, in tests. Callers look `DISK` up at each call."""
    global DISK
    before, DISK = DISK, disk
    try:
        yield disk
    finally:
        DISK = before
