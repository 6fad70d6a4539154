"""What the server knows of the engine; no other module of the package imports from it.

The server shows and changes a store by an Admin and a client. Its health is what neither tells: where the
store lies, and whether the locks that all its processes need are free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.platform import threads, timing
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.store.root_layout import CATALOG_LOCK, STORE_LOCK, in_root
from embeddedpulsar.exceptions import LockTimeout

if TYPE_CHECKING:
    from embeddedpulsar.admin.admin import Admin

# That of housekeeping is held for as long as the work of one process takes, so it says nothing.
_LOCKS: Final = (STORE_LOCK, CATALOG_LOCK)


def root_of(admin: Admin) -> str:
    """The directory of a store; of one in memory, that on ``/dev/shm``."""
    return admin._open_store().root


def held_locks(root: str, timeout_s: float) -> list[str]:
    """The names of the locks of a store that were not free within a time, together.

    A lock that this process may not open is left out: a process that may not write waits for none.
    """
    held = []
    end = timing.SYSTEM_CLOCK.monotonic() + timeout_s
    for name in _LOCKS:
        try:
            # An instance of its own: it waits for threads of this process as for those of others.
            lock = FileLock(in_root(root, name))
        except PermissionError:
            continue
        try:
            lock.acquire(max(end - timing.SYSTEM_CLOCK.monotonic(), 0.0))
        except LockTimeout:
            held.append(name)
        finally:
            lock.release()
            lock.close()
    return held
