"""The identity of a topic's directory: its path alone may come to name another directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, NamedTuple

from embeddedpulsar.exceptions import StoreGoneError
from embeddedpulsar.storage.filenames import CONTROL

_REMEDY: Final = "nothing is stored there by what is open here; close the client, and open a new one"

_EVERY_S: Final = 0.01


class DirectoryIdentity(NamedTuple):
    """The directory of a topic, and the identity of the ctl in it.

    Invariant: its owner has that ctl mapped, so the inode is not given to another file meanwhile. A
    store that is removed and made again, or a copy in its place, has other ones.
    """

    directory: str
    device: int = 0
    inode: int = 0

    def is_current(self) -> bool:
        """Whether the path still leads to it. About 1.5 us."""
        try:
            status = os.lstat(f"{self.directory}{os.sep}{CONTROL}")
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (status.st_dev, status.st_ino) == (self.device, self.inode)

    def check(self) -> None:
        """Raise if the path leads elsewhere.

        Raises:
            StoreGoneError: the path leads elsewhere.
        """
        if self.inode and not self.is_current():
            raise gone(self.directory)


class ThrottledCheck:
    """Makes a check that is too slow to be made every time: 10 ms late at most. One thread at a time."""

    __slots__ = ("_check", "_looked_at", "_monotonic")

    def __init__(self, check: Callable[[], object], monotonic: Callable[[], float]) -> None:
        self._check: Final = check
        self._monotonic: Final = monotonic
        self._looked_at = -1.0

    def look(self) -> None:
        """Make the check, unless it was made a moment ago."""
        now = self._monotonic()
        if now - self._looked_at >= _EVERY_S or self._looked_at < 0:
            self._check()
            self._looked_at = now


def gone(path: str) -> StoreGoneError:
    """The error that says that ``path``, a store or a topic, is not what was opened."""
    return StoreGoneError(
        path=path,
        reason="it was removed, moved or replaced while it was open in this process",
        remedy=_REMEDY,
    )
