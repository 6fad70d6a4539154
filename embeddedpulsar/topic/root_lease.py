"""The shared hold on the root of a store: as long as any process has it, the directory is not removed."""

from __future__ import annotations

from embeddedpulsar.exceptions import AlreadyClosed
from embeddedpulsar.platform import filesystem
from embeddedpulsar.platform.filesystem import DirectoryLease
from embeddedpulsar.topic import memory_root


def lease_root(path: str, is_memory: bool, allow_network_fs: bool) -> tuple[str, DirectoryLease]:
    """The directory, made if need be, and the shared hold on it."""
    if is_memory:
        path = memory_root.create()
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
