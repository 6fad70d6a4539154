"""Errors of the operating system, turned into the errors of the public API."""

from __future__ import annotations

import errno
import os
import stat
import sys

from embeddedpulsar.exceptions import (
    AccessDeniedError,
    PulsarException,
    ReadOnlyStoreError,
    StorageError,
    StorageFullError,
    StorageOSError,
)
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final

# What the caller can do is the same for all three: free space, raise the quota, or raise the limit of
# a file's size (RLIMIT_FSIZE, which Python reports as EFBIG because it ignores SIGXFSZ).
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The file system, or the quota, has no room."""
_NETBSD_EFTYPE: Final = 79
WRITE_BITS: Final = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
LINK_CODES: Final = frozenset(
    (errno.ELOOP,)
    if sys.platform in ("linux", "android", "darwin")
    else (errno.ELOOP, errno.EMLINK, *((_NETBSD_EFTYPE,) if sys.platform.startswith("netbsd") else ()))
)
"""What ``open`` says of a symbolic link that is not to be followed: on FreeBSD EMLINK, on NetBSD EFTYPE."""
_OF_ANOTHER_KIND: Final = LINK_CODES | frozenset(
    (errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.ENXIO, errno.ESPIPE, errno.EINVAL)
)
"""What the system says of a path that leads to something else than a file, or through something else than
directories."""
_KINDS: Final = {
    stat.S_IFDIR: ("a directory", errno.EISDIR),
    stat.S_IFLNK: ("a symbolic link", errno.ELOOP),
    stat.S_IFIFO: ("a FIFO", errno.ENXIO),
    stat.S_IFSOCK: ("a socket", errno.ENXIO),
}
_REMEDIES: Final = {
    errno.ENOENT: "if the topic or the store was removed, open it anew; otherwise run a check of the store",
    errno.EIO: "check the disk (dmesg, smartctl); then copy the store to another disk, or restore a backup",
    errno.ENAMETOOLONG: "choose a shorter path for the store: below it are some 170 characters more, and the "
    "system allows 1,024 on macOS and the BSDs, and 4,096 on Linux",
    errno.ESTALE: "mount the file system of the store again",
}
_REMEDY: Final = (
    "run as the owner of the store, or share it with a group that this user is in: "
    "chgrp -R GROUP STORE, chmod -R g+rwX STORE, and chmod g+s on each of its directories"
)


_READ_REMEDY: Final = (
    "to look at the store, run as its owner, or let its owner give the right to read: "
    "chmod -R g+rX STORE for its group, chmod -R o+rX STORE for every user"
)


class Refusal(NamedTuple):
    """Why a store is open read-only.

    Attributes:
        root: the directory of the store.
        reason: why nothing may be written.
        remedy: what to do to write.
    """

    root: str
    reason: str
    remedy: str

    @classmethod
    def after(cls, root: str, error: StorageError) -> Refusal:
        """That of a store whose opening for writing was refused with ``error``."""
        return cls(root, error.reason, error.remedy)

    def error(self) -> ReadOnlyStoreError:
        """The error of a call that would change the store."""
        reason = f"the store is open read-only, and this call would change it: {self.reason}"
        return ReadOnlyStoreError(path=self.root, reason=reason, remedy=self.remedy)


def explained(error: PermissionError, what: str) -> AccessDeniedError:
    """The error that reports why ``what`` failed with ``error``, which names a file."""
    # It has a text already, made where more was known.
    if isinstance(error, AccessDeniedError):
        return error
    name = error.filename if isinstance(error.filename, str) else ""
    return access_denied(what, name, error.errno or errno.EACCES)


def named(error: Exception) -> Exception:
    """``error`` as a public method raises it.

    An ``OSError`` that the system raised becomes the `StorageError` that says which file, why, and what to
    do; everything else stays as it is.
    """
    # A `PulsarException` that is an OSError too has been named below. One without a number was raised
    # by Python code, and its text says what the system's numbers cannot.
    if not isinstance(error, OSError) or isinstance(error, PulsarException) or error.errno is None:
        return error
    path = error.filename if isinstance(error.filename, str) else None
    # From the special to the general: who may, then what lies there, then what the number says.
    if isinstance(error, PermissionError) and path is not None:
        return explained(error, f"cannot use {path}")
    if error.errno in _OF_ANOTHER_KIND and path is not None:
        return _of_another_kind(path, error.errno)
    remedy = _REMEDIES.get(error.errno, "check the disk and the directory of the store, then try again")
    kind = StorageFullError if error.errno in FULL else StorageOSError
    return kind(path=path, reason=os.strerror(error.errno), remedy=remedy, errno=error.errno)


def irregular(path: str, mode: int) -> StorageOSError:
    """The error for something that lies in the place of a file: nothing of it was read, so it is no damage.

    Args:
        path: the place.
        mode: as of ``os.lstat``, or its kind alone (`nofollow.kind_of`).
    """
    what, code = _KINDS.get(stat.S_IFMT(mode), ("a device", errno.ENXIO))
    remedy = (
        "put the file that it points to in its place"
        if code == errno.ELOOP
        else "move it away, and put the file back, from a backup if need be"
    )
    return StorageOSError(path=path, reason=f"it is {what}, not a regular file", remedy=remedy, errno=code)


def _of_another_kind(path: str, code: int) -> StorageOSError:
    """The error for a path that leads to something else than the caller expects: the lowest part of it that
    is neither a directory nor the file."""
    place = path
    # ENOTDIR names the whole path, and its cause is some part above. The walk goes upwards and stops
    # at the lowest part that is there and is no directory.
    while code == errno.ENOTDIR and place != (above := os.path.dirname(place)):
        if os.path.lexists(place) and not os.path.isdir(place):
            reason = "it is a symbolic link" if os.path.islink(place) else "it is no directory"
            remedy = "move it away, and put the directory back, from a backup if need be"
            return StorageOSError(path=place, reason=reason, remedy=remedy, errno=code)
        place = above
    # It may have been replaced since the call failed. Then the number alone has to do.
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        mode = 0
    if mode and not stat.S_ISREG(mode):
        return irregular(path, mode)
    remedy = _REMEDIES.get(code, "check the disk and the directory of the store, then try again")
    return StorageOSError(path=path, reason=os.strerror(code), remedy=remedy, errno=code)


def access_denied(what: str, path: str, code: int, *, to_read: bool = False) -> AccessDeniedError:
    """The error that names the refused action, the owner of the file, and what to do about it.

    Args:
        what: the action.
        path: of the file.
        code: of the system.
        to_read: nothing was to be written.
    """
    # The file itself may be out of reach: then the directory that refuses is described, because its
    # rights decide.
    place, status = _nearest(path)
    owner = f"{place} belongs to user id {status.st_uid}, group id {status.st_gid}"
    mode = f"has mode {stat.S_IMODE(status.st_mode):04o}"
    reason = f"{what}: {os.strerror(code)}: {owner}, and {mode}; {_this_process()}"
    error = AccessDeniedError(reason=reason, remedy=_remedy_for(place, status, to_read), errno=code)
    error.path = path  # the text has it already
    return error


def _remedy_for(place: str, status: os.stat_result, to_read: bool) -> str:
    # Root is refused by something else than modes (a read-only mount, an immutable file, a security
    # module), so `chmod` would not help. The owner can help itself. Everybody else needs the owner.
    user = os.geteuid() if hasattr(os, "geteuid") else -1
    if user == 0 and status.st_mode & WRITE_BITS:
        return (
            f"not even root may do this at {place}: choose a path on another file system, or take away what "
            "protects it (lsattr, mount, the rules of a security module)"
        )
    if user in (0, status.st_uid):
        return (
            f"its owner may change that: chmod {'u+rwx' if stat.S_ISDIR(status.st_mode) else 'u+rw'} {place}"
        )
    return _READ_REMEDY if to_read else _REMEDY


def _nearest(path: str) -> tuple[str, os.stat_result]:
    """The file, or the lowest directory above it that can be looked at."""
    while True:
        try:
            return path, os.stat(path)
        except OSError:
            above = os.path.dirname(os.path.abspath(path))
            if above == path:
                raise
            path = above


def _this_process() -> str:
    if not hasattr(os, "geteuid"):
        return "this process runs as another user"
    groups = ", ".join(map(str, sorted({os.getegid(), *os.getgroups()})))
    return f"this process runs as user id {os.geteuid()} with the groups {groups}"
