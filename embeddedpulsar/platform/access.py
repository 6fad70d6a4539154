"""Errors of the operating system, turned into the errors of the public API."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from embeddedpulsar.exceptions import AccessDeniedError, PulsarException, StorageFullError, StorageOSError

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The file system, or the quota, has no room."""
_REMEDY: Final = (
    "run as the owner of the store, or share it with a group that this user is in: "
    "chgrp -R GROUP STORE, chmod -R g+rwX STORE, and chmod g+s on each of its directories"
)


def explained(error: PermissionError, what: str) -> AccessDeniedError:
    """The error that reports why ``what`` failed with ``error``, which names a file."""
    if isinstance(error, AccessDeniedError):
        return error
    name = error.filename if isinstance(error.filename, str) else ""
    return access_denied(what, name, error.errno or errno.EACCES)


def named(error: Exception) -> Exception:
    """``error`` as a public method raises it.

    An ``OSError`` that the system raised becomes the `StorageError` that says which file, why, and what to
    do; everything else stays as it is.
    """
    if not isinstance(error, OSError) or isinstance(error, PulsarException) or error.errno is None:
        return error
    path = error.filename if isinstance(error.filename, str) else None
    if isinstance(error, PermissionError) and path is not None:
        return explained(error, f"cannot use {path}")
    if isinstance(error, FileNotFoundError):
        remedy = "if the topic or the store was removed, open it anew; otherwise run a check of the store"
    else:
        remedy = "check the disk and the directory of the store, then try again"
    kind = StorageFullError if error.errno in FULL else StorageOSError
    return kind(path=path, reason=os.strerror(error.errno), remedy=remedy, errno=error.errno)


def access_denied(what: str, path: str, code: int) -> AccessDeniedError:
    """The error that names the refused action, the owner of the file, and what to do about it."""
    place, status = _nearest(path)
    owner = f"{place} belongs to user id {status.st_uid}, group id {status.st_gid}"
    mode = f"has mode {stat.S_IMODE(status.st_mode):04o}"
    reason = f"{what}: {os.strerror(code)}: {owner}, and {mode}; {_this_process()}"
    error = AccessDeniedError(reason=reason, remedy=_REMEDY, errno=code)
    error.path = path  # the text has it already
    return error


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
