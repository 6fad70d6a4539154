"""What a lock of a store is in a process that may only look at the store."""

from __future__ import annotations

import os
from collections.abc import Callable

from embeddedpulsar.platform.file_lock import FileLock


class RefusedLock(FileLock):
    """A lock that is always refused: everything that changes a file of a store takes a lock of it first.

    Role: in a store that is open read-only, it stands in the place of each lock. No file is opened or made.
    A change is refused where it begins, so nothing is changed by half. Callers: any thread.

    Args:
        path: of the lock file.
        refusal: makes the error of `acquire`.
    """

    __slots__ = ("_refusal",)

    def __init__(self, path: str | os.PathLike[str], refusal: Callable[[], Exception]) -> None:
        # Not that of `FileLock`, which opens the file.
        self.path = os.fspath(path)  # type: ignore[misc]
        self._refusal = refusal
        self.describe = None
        self.on_rest = None
        self.check_reopened = int
        self.fd = -1
        self.device = self.inode = 0
        self.release = int

    @property
    def held(self) -> bool:
        """False."""
        return False

    def acquire(self, timeout_s: float = 30.0) -> None:
        """Refuse.

        Raises:
            ReadOnlyStoreError: always.
        """
        raise self._refusal()

    def keep_threads_out(self, timeout_s: float = 30.0) -> None:
        """Do nothing: no thread changes anything."""

    def try_acquire(self) -> bool:
        """Return False: what is done only if the lock is free is not done."""
        return False

    def enter_alone(self) -> bool:
        """Return False."""
        return False

    def rest(self) -> bool:
        """Return True: there is no descriptor."""
        return True

    def close(self) -> None:
        """Do nothing."""

    def after_fork_in_child(self) -> None:
        """Do nothing."""
