"""The limit on open files, met: make room and try again, or say what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final, TypeVar

from embeddedpulsar.exceptions import StorageError

_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE)

Result = TypeVar("Result")


def within_limit(action: Callable[[], Result], make_room: Callable[[], object], what: str) -> Result:
    """Do something that opens files; if there are no descriptors left, make room and do it once more.

    Args:
        action: what to do; may run twice.
        make_room: closes what nobody uses.
        what: says in a few words what was to be opened.

    Raises:
        StorageError: no descriptors were left the second time either.
    """
    try:
        return action()
    except OSError as e:
        if e.errno not in _EXHAUSTED:
            raise
    make_room()
    try:
        return action()
    except OSError as e:
        if e.errno not in _EXHAUSTED:
            raise
        raise StorageError(f"{what} cannot be opened: {_reason(e.errno)}") from e


def _reason(code: int) -> str:
    if code == errno.ENFILE:
        return "the system has no file descriptors left (ENFILE); raise fs.file-max or close other programs"
    return (
        f"this process has as many files open as it may ({_limit()}, EMFILE). A topic in use takes 9 file "
        "descriptors and a subscription 3; close producers, consumers and readers that are not needed, or "
        "raise the limit (ulimit -n, RLIMIT_NOFILE)"
    )


def _limit() -> str:
    try:
        return str(os.sysconf("SC_OPEN_MAX"))
    except (AttributeError, ValueError, OSError):
        return "limit unknown"
