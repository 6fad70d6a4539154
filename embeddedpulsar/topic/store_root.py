"""The directory of a store, and of ``memory://``, a private store that goes with its last process.

The latter lies on ``/dev/shm`` where there is one, else among the temporary files. Every process that
uses it holds a shared ``flock`` on the directory itself, so the kernel knows whether it is in use: the last
process that closes it removes it, and the next store that is made removes what killed processes left behind.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from embeddedpulsar.exceptions import AlreadyClosed
from embeddedpulsar.platform import filesystem
from embeddedpulsar.platform.filesystem import DirectoryLease
from embeddedpulsar.topic.catalog.topic_directories import remove_tree

SCHEME: Final = "memory://"
SHARED_MEMORY: Final = "/dev/shm"
_PREFIX: Final = "embeddedpulsar-memory-"


def is_memory(root: str) -> bool:
    """Whether a root asks for a private store in memory.

    Example:
        >>> is_memory("memory://"), is_memory("./memory")
        (True, False)
    """
    return root.startswith(SCHEME)


def create() -> str:
    """Make the directory of a new private store, and remove those that are not in use any more."""
    parent = _parent()
    _sweep(parent)
    path = os.path.join(parent, _PREFIX + os.urandom(12).hex())
    os.mkdir(path, 0o700)
    return path


def remove_if_last(path: str, lease: DirectoryLease) -> bool:
    """Remove the store unless another process (a forked child) still uses it; ``lease`` is given up either
    way."""
    if not lease.try_exclusive():
        lease.close()
        return False
    remove_tree(path)
    lease.close()
    return True


def _parent() -> str:
    if os.path.isdir(SHARED_MEMORY) and os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        return SHARED_MEMORY
    from tempfile import gettempdir  # slow to import, and seldom needed

    return gettempdir()


def _sweep(parent: str) -> None:
    for name in os.listdir(parent):
        if not name.startswith(_PREFIX):
            continue
        path = os.path.join(parent, name)
        with contextlib.suppress(OSError):
            if os.stat(path, follow_symlinks=False).st_uid != os.getuid() or not _is_finished(path):
                continue
            lease = DirectoryLease.open(path)
            try:
                if lease.try_exclusive():
                    remove_tree(path)
            finally:
                lease.close()


def _is_finished(path: str) -> bool:
    """Whether its maker holds its lease: until then it only looks abandoned."""
    return os.path.exists(os.path.join(path, "store.meta"))


def lease_root(path: str, is_memory: bool, allow_network_fs: bool) -> tuple[str, DirectoryLease]:
    """The directory, made if need be, and the shared hold on it."""
    if is_memory:
        path = create()
    else:
        path = filesystem.prepare_root(path, allow_network=allow_network_fs)
    return path, shared_lease(path)


def shared_lease(path: str) -> DirectoryLease:
    """The shared hold on a directory that is there.

    Raises:
        AlreadyClosed: it is being removed.
    """
    lease = DirectoryLease.open(path)
    if not lease.try_shared():
        lease.close()
        raise AlreadyClosed(f"the store {path} is being removed")
    return lease
