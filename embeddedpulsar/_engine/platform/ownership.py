"""Owner and rights of a new file of a store: the same as those of the directory it is made in.

The directory of a store decides for everything below it, as an SQLite database does for its journal: owner
and group where the process may give files away (root may; a member of the group may give them to the group),
and the bits of the mode, whatever the umask says. 0700 keeps a store private, 2770 shares it with a group.
"""

from __future__ import annotations

import contextlib
import errno
import os

from embeddedpulsar._engine.platform import descriptors, nofollow
from embeddedpulsar._engine.platform.access import access_denied
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
        fd = descriptors.calling(what, nofollow.named, above, name)
        try:
            # ``chmod`` and ``chown`` by the name in /proc change the file that the descriptor names,
            # whatever has its name now.
            status, opened = os.fstat(fd), f"/proc/self/fd/{fd}"
            if os.path.exists(opened):
                _grant(opened, status, rights, mode)
            else:  # no /proc, or none of a process that gave up its rights: what it makes is its own
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
