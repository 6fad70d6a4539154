"""Calls on files of a store by path, none of which follows a symbolic link in any part of the path.

A store can be used by several users: root, and a group. A user who can write in one of its directories can
put a link in the place of another directory. A process of another user that followed it would read, remove
or give away what lies elsewhere, with rights that the maker of the link does not have. So the directory of
the file is opened first, and the call is made relative to that descriptor. What is swapped later changes
nothing.

A directory was reached without a link exactly if the kernel's name of the open directory is the path that was
asked for. That is one `readlink`, whatever the depth. Where it says otherwise, or cannot be asked (no
``/proc``, a process that gave up its rights), the path is walked from ``/`` step by step, and the walk names
the link that it meets.

So all paths are canonical: those below a store begin with what `canonical` made of the path of its root, when
it was opened. A link *to* a store is followed there, and nowhere else.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat as modes
from collections.abc import Callable, Iterator
from typing import Final

from embeddedpulsar.exceptions import ForeignFileError, StorageOSError
from embeddedpulsar.records import NamedTuple

_SEARCH: Final = getattr(os, "O_PATH", os.O_RDONLY)
_DIRECTORY: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STEP: Final = _SEARCH | _DIRECTORY
_OPEN_NAME: Final = "/proc/self/fd/"
_DELETED: Final = " (deleted)"


def canonical(path: str) -> str:
    """The absolute path of a root (of a store, a backup or a location) without links in it.

    Raises:
        ForeignFileError: a link of it leads nowhere: a disk that is not mounted, say. A directory made there
            would be hidden later.

    Example:
        >>> canonical("/proc/self/../version")
        '/proc/version'
    """
    found = os.path.realpath(path)
    if os.path.islink(path) and not os.path.lexists(found):
        raise ForeignFileError(
            path=path,
            reason=f"it is a symbolic link to {found}, which is not there",
            remedy="mount or make that directory, or remove the link",
        )
    return found


def link_error(path: str) -> StorageOSError:
    """The error that names a symbolic link in the place of a directory of a store."""
    try:
        target = f" to {os.readlink(path)}"
    except OSError:
        target = ""
    return StorageOSError(
        path=path,
        reason=f"it is a symbolic link{target}, and no link inside of a store is followed",
        remedy="remove the link, and put the directory itself there; a link to the whole store may be used",
        errno=errno.ELOOP,
    )


def open_directory(path: str, flags: int = _SEARCH) -> int:
    """A descriptor of the directory ``path``, by default one to be used as ``dir_fd`` only.

    Raises:
        StorageOSError: a part of the path is a symbolic link.
        OSError: it is not there, no directory, or not to be opened.
    """
    try:
        fd = os.open(path, flags | _DIRECTORY)
    except NotADirectoryError:
        return _walk(path, flags)  # which says whether it is a link
    except OSError as e:
        if e.errno != errno.ELOOP:
            raise
        return _walk(path, flags)
    if _is_at(fd, path):
        return fd
    os.close(fd)
    return _walk(path, flags)


def _is_at(fd: int, path: str) -> bool:
    """Whether the open file has that path, links followed. False also where the system does not say."""
    try:
        return os.readlink(f"{_OPEN_NAME}{fd}") == path
    except OSError:
        return False


def _walk(path: str, flags: int) -> int:
    """`open_directory` step by step."""
    fd = os.open(os.sep, _STEP)
    at = ""
    try:
        parts = [part for part in absolute(path).split(os.sep) if part not in ("", os.curdir)]
        for number, part in enumerate(parts, 1):
            at = f"{at}{os.sep}{part}"
            below = _step(fd, part, at, flags | _DIRECTORY if number == len(parts) else _STEP)
            os.close(fd)
            fd = below
    except BaseException:
        os.close(fd)
        raise
    return fd


def _step(fd: int, part: str, path: str, flags: int) -> int:
    if part == os.pardir:
        raise StorageOSError(
            path=path,
            reason="a path in a store leads upwards",
            remedy="run a check of the store: one of its files names another directory",
            errno=errno.EINVAL,
        )
    try:
        return os.open(part, flags, dir_fd=fd)
    except OSError as e:
        if e.errno in (errno.ENOTDIR, errno.ELOOP) and modes.S_ISLNK(
            os.stat(part, dir_fd=fd, follow_symlinks=False).st_mode
        ):
            raise link_error(path) from None
        e.filename = path
        raise


def absolute(path: str) -> str:
    """``path`` below the working directory, if it is relative."""
    return path if path.startswith(os.sep) else os.path.join(os.getcwd(), path)


def split(path: str) -> tuple[str, str]:
    """The directory and the name of ``path``."""
    path = absolute(path)
    end = path.rfind(os.sep)
    return path[:end] or os.sep, path[end + 1 :]


def parent(path: str) -> tuple[int, str]:
    """A descriptor of the directory of ``path``, to be closed by the caller, and the name in it."""
    directory, name = split(path)
    return open_directory(directory), name


def named(above: int, name: str) -> int:
    """A descriptor that only names a file of a directory, whatever it is."""
    return os.open(name, _SEARCH | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)


def open_file(path: str, flags: int, mode: int = 0o600) -> int:
    """``os.open`` of a file. ``flags`` should have ``O_NOFOLLOW`` and, for what may be a FIFO,
    ``O_NONBLOCK``."""
    if not flags & os.O_CREAT:
        # Nothing is made and nothing is read: so the file itself is opened, and its own name tells the rest.
        fd = os.open(path, flags)
        try:
            name = os.readlink(f"{_OPEN_NAME}{fd}")
        except OSError:
            name = ""
        if name in (path, path + _DELETED):  # of which another process has put a newer one in its place
            return fd
        os.close(fd)
    above, name = parent(path)
    try:
        return os.open(name, flags, mode, dir_fd=above)
    except OSError as e:
        e.filename = path
        raise
    finally:
        os.close(above)


def status(path: str) -> os.stat_result:
    """``os.lstat``."""
    above, name = parent(path)
    try:
        return os.stat(name, dir_fd=above, follow_symlinks=False)
    except OSError as e:
        e.filename = path
        raise
    finally:
        os.close(above)


def names_in(path: str) -> list[str]:
    """``os.listdir``."""
    fd = open_directory(absolute(path), os.O_RDONLY)
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


def _beside(call: Callable[..., object], path: str, *args: object, **options: object) -> None:
    """Make a call of ``os`` for a name, relative to its directory. An error names the path."""
    above, name = parent(path)
    try:
        call(name, *args, dir_fd=above, **options)
    except OSError as e:
        e.filename = path
        raise
    finally:
        os.close(above)


def unlink(path: str) -> None:
    """``os.unlink``: of a link, the link itself."""
    _beside(os.unlink, path)


def rmdir(path: str) -> None:
    """``os.rmdir``."""
    _beside(os.rmdir, path)


def mkdir(path: str, mode: int) -> None:
    """``os.mkdir``."""
    _beside(os.mkdir, path, mode)


def mkfifo(path: str, mode: int) -> None:
    """``os.mkfifo``."""
    _beside(os.mkfifo, path, mode)


def utime(path: str, ns: tuple[int, int]) -> None:
    """``os.utime``: of a link, that of the link itself."""
    _beside(os.utime, path, ns=ns, follow_symlinks=False)


def link(src: str, dst: str) -> None:
    """``os.link``, of a file of the same directory."""
    above, name = parent(src)
    try:
        os.link(name, split(dst)[1], src_dir_fd=above, dst_dir_fd=above, follow_symlinks=False)
    except OSError as e:
        e.filename, e.filename2 = src, dst
        raise
    finally:
        os.close(above)


def replace(src: str, dst: str) -> None:
    """``os.replace``."""
    (directory, name), (other, new) = split(src), split(dst)
    above = open_directory(directory)
    try:
        beside = above if other == directory else open_directory(other)
        try:
            os.replace(name, new, src_dir_fd=above, dst_dir_fd=beside)
        finally:
            if beside != above:
                os.close(beside)
    except OSError as e:
        if not isinstance(e, StorageOSError):
            e.filename, e.filename2 = src, dst
        raise
    finally:
        os.close(above)


class Listing(NamedTuple):
    """What is in a directory, by names.

    Attributes:
        path: of the directory.
        directories, links: names of those in it.
        files: names of all else.
    """

    path: str
    directories: list[str]
    links: list[str]
    files: list[str]


def tree(path: str, but: str = "") -> Iterator[Listing]:
    """As ``os.walk``, from the bottom up. What goes meanwhile is left out; so is the directory ``but``."""
    found = Listing(path, [], [], [])
    with contextlib.suppress(FileNotFoundError):
        fd = open_directory(absolute(path), os.O_RDONLY)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        found.directories.append(entry.name)
                    else:
                        (found.links if entry.is_symlink() else found.files).append(entry.name)
        finally:
            os.close(fd)
    for name in found.directories:
        if f"{path}{os.sep}{name}" != but:
            yield from tree(f"{path}{os.sep}{name}", but)
    yield found
