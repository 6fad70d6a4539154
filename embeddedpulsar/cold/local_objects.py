"""Objects of offloaded ledgers in a directory of this machine.

Their owner, group and mode are those of the store: a user that may not read the store reads no object. What
lies in the place of an object is not waited for (a FIFO) and not followed (a link). Directories above may be
reached by links, as the location itself; they are the operator's.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
from typing import BinaryIO, Final

from embeddedpulsar._engine.platform import descriptors, disk, ownership
from embeddedpulsar._engine.platform.ownership import Rights

_CHUNK: Final = 4 << 20
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def write(path: str, source: BinaryIO, rights: Rights) -> None:
    """Write a new file, durably: it and the names of it and of new directories survive a power loss.

    Raises:
        OSError: it is there already, or cannot be written.
    """
    directory = os.path.realpath(os.path.dirname(path))
    path = os.path.join(directory, os.path.basename(path))
    made = _missing(directory)
    _check_place(os.path.dirname(made[-1]) if made else directory, rights)
    for place in reversed(made):
        with contextlib.suppress(FileExistsError):
            disk.DISK.mkdir(place, rights.directory_mode)
            ownership.grant_directory(place, rights)
    fd = disk.DISK.open_file(path, _NEW, rights.file_mode)
    try:
        ownership.grant_file(fd, rights)  # before there is anything to be read
        offset = 0
        while chunk := source.read(_CHUNK):
            offset += disk.DISK.pwrite_all(fd, [chunk], offset)
        disk.DISK.fsync(fd, path)
    finally:
        os.close(fd)
    for place in (path, *made):
        disk.DISK.fsync_dir(os.path.dirname(place))


def _missing(directory: str) -> list[str]:
    """Itself and the directories above it that are not there, the innermost first."""
    found = []
    while directory and not os.path.isdir(directory):
        found.append(directory)
        directory = os.path.dirname(directory)
    return found


def _check_place(directory: str, rights: Rights) -> None:
    """Refuse to do as root what the owner of the store may not do: the location is the owner's choice."""
    if os.geteuid() or not rights.uid:
        return
    status = os.stat(directory)
    is_shared = status.st_mode & stat.S_IWGRP and status.st_gid == rights.gid
    if status.st_uid != rights.uid and not is_shared and not status.st_mode & stat.S_IWOTH:
        raise PermissionError(
            f"{directory} belongs to user id {status.st_uid}, and the store to user id {rights.uid}: root "
            "writes and removes nothing there for the store; give the directory to the owner of the store"
        )


def opened(path: str) -> io.FileIO:
    """A file for reading.

    Raises:
        OSError: there is none, or something else than a file.
    """
    _check_file(path, os.lstat(path))  # first: opening a device may do something
    fd = descriptors.opening(f"cannot read {path}", os.open, path, _READ)
    try:
        _check_file(path, os.fstat(fd))
        return io.FileIO(fd)
    except BaseException:
        os.close(fd)
        raise


def _check_file(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kinds = {
            stat.S_IFDIR: "a directory",
            stat.S_IFIFO: "a FIFO",
            stat.S_IFLNK: "a symbolic link",
            stat.S_IFSOCK: "a socket",
        }
        raise OSError(f"{path} is {kinds.get(stat.S_IFMT(status.st_mode), 'a device')}, and no file")


def size(path: str) -> int | None:
    """Bytes of a file; None if there is none, or something else."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def delete(path: str, rights: Rights) -> None:
    """Remove a file, durably. Does nothing if there is none.

    Args:
        path: of the file.
        rights: of the store. A process of root removes nothing that the owner of the store may not.
    """
    directory = os.path.realpath(os.path.dirname(path))
    path = os.path.join(directory, os.path.basename(path))
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    _check_place(directory, rights)
    with contextlib.suppress(FileNotFoundError):
        disk.DISK.unlink(path)
    disk.DISK.fsync_dir(directory)  # or a power loss brings it back, when the note of it is gone
