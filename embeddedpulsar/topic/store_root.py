"""The directory of a store, and ``store.meta``, which makes it one: written last, and durably at every level.

The entries of a ``memory://`` store are in the memory of one process (`managed_ledger.memory_log`). Its other
files, which are small, need names: the control words and journals of topics and subscriptions, and locks. The
directory lies on ``/dev/shm`` where there is one, else among the temporary files. Every process that has a
store open holds a shared ``flock`` on its directory. That of a store in memory is removed when the store is
closed; and the next store in memory that any process opens removes what killed processes left.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final

from embeddedpulsar.exceptions import (
    AccessDeniedError,
    AlreadyClosed,
    CorruptionError,
    ForeignFileError,
    StorageError,
    StorageOSError,
    UnsupportedFormatVersion,
)
from embeddedpulsar.format.document import KIND_STORE_META, decode_document, encode_document
from embeddedpulsar.platform import descriptors, disk, filesystem, nofollow
from embeddedpulsar.platform.access import Refusal
from embeddedpulsar.platform.filesystem import DirectoryLease
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic.catalog import root_layout
from embeddedpulsar.topic.catalog.topic_places import remove_tree
from embeddedpulsar.topic.service_url import directory_of

STORE_FORMAT: Final = 1
"""Version of the layout of the directory as a whole. Raised when an old release would misread a new store."""
_ID_SIZE: Final = 16
_RESTORE: Final = "repair the store (embeddedpulsar repair), or restore store.meta from a copy of the store"
SCHEME: Final = "memory://"
SHARED_MEMORY: Final = "/dev/shm"
_ASKED_FOR: Final = "that was asked for"
_ASK_NOT: Final = "open it without read_only (--read-only) to change it"
_PREFIX: Final = "embeddedpulsar-memory-"


class StoreMeta(NamedTuple):
    """Identity of a store: the same for every process, kept by copies."""

    store_id: bytes
    created_ms: int
    format: int = STORE_FORMAT


def read_meta(root: str) -> StoreMeta | None:
    """The store in ``root``; None where there is none yet.

    Raises:
        ForeignFileError: ``root`` holds files of something else.
        CorruptionError: ``store.meta`` is damaged, or missing from a store that has topics.
        UnsupportedFormatVersion: a newer release made this store.
    """
    path = root_layout.in_root(root, root_layout.META)
    try:
        data = disk.DISK.read_file(path)
    except FileNotFoundError:
        _check_absent(root)
        return None
    try:
        fields = decode_document(data, KIND_STORE_META)
        return _from_fields(fields)
    except CorruptionError as e:
        raise CorruptionError(path=path, reason=e.reason, offset=e.offset, remedy=_RESTORE) from None
    except (ForeignFileError, UnsupportedFormatVersion) as e:
        raise e.at(path) from None


def _from_fields(fields: dict[str, object]) -> StoreMeta:
    version, store_id, created_ms = fields.get("format"), fields.get("store_id"), fields.get("created_ms")
    if isinstance(version, int) and version > STORE_FORMAT:
        raise UnsupportedFormatVersion(
            reason=f"this store has layout version {version}; this release knows up to {STORE_FORMAT}",
            remedy="upgrade embeddedpulsar",
        )
    if (
        not isinstance(version, int)
        or not isinstance(store_id, bytes)
        or len(store_id) != _ID_SIZE
        or not isinstance(created_ms, int)
    ):
        raise CorruptionError(reason="fields are missing")
    return StoreMeta(store_id, created_ms, version)


def _check_absent(root: str) -> None:
    """A directory without ``store.meta`` is free for a new store if nothing but our own beginnings is
    there."""
    foreign = sorted(name for name in descriptors.names_in(root) if not root_layout.is_ours(name))
    if foreign:
        shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise ForeignFileError(
            path=root,
            reason=f"the directory is not a store and not empty: it holds {shown}",
            remedy="choose an empty or new directory",
        )
    topics = root_layout.in_root(root, root_layout.TOPICS)
    if os.path.isdir(topics) and descriptors.names_in(topics):
        raise CorruptionError(
            path=root_layout.in_root(root, root_layout.META),
            reason="it is missing, though the store has topics",
            remedy=_RESTORE,
        )


def write_meta(root: str, now_ms: int, store_id: bytes | None = None) -> StoreMeta:
    """Make ``root`` a store, by default a new one: the last step of its creation, under the store lock."""
    meta = StoreMeta(store_id or os.urandom(_ID_SIZE), now_ms)
    path = root_layout.in_root(root, root_layout.META)
    disk.DISK.atomic_write(path, encode_document(KIND_STORE_META, meta._asdict()), durable=True)
    return meta


def is_memory(root: str) -> bool:
    """Whether a root is the URL of a store in memory.

    Example:
        >>> is_memory("memory://"), is_memory("./memory")
        (True, False)
    """
    return root.startswith(SCHEME)


def is_named(root: str) -> bool:
    """Whether a root is the URL of a store in memory that the clients of a process share.

    Example:
        >>> is_named("memory://orders"), is_named("memory://")
        (True, False)
    """
    return is_memory(root) and root != SCHEME


def refuse_child(url: str) -> None:
    """Refuse to use a store in memory in a forked child; does nothing for other stores (``url`` is empty).

    Raises:
        AlreadyClosed: the store is in the memory of the parent.
    """
    if url:
        raise AlreadyClosed(
            f"{url} is in the memory of the process that opened it, and this process was forked from that; "
            "open a client here for a store of its own, or use a directory, which processes share"
        )


def refuse_directory_of_another(root: str) -> None:
    """Refuse to open or read as a directory what is a store in memory.

    Raises:
        ForeignFileError: the URL of one, or the temporary directory of one.
    """
    if is_memory(root) or os.path.basename(os.path.normpath(root)).startswith(_PREFIX):
        raise ForeignFileError(
            path=root,
            reason="the messages of a memory:// store are in the memory of one process, not in files",
            remedy="open the store in a directory, for example on /dev/shm; processes share it, Arrow and "
            "Spark read it",
        )


def root_of(path: str | os.PathLike[str]) -> str:
    """The directory of a store that is to be read, as a path without links, from what the user calls it.

    Raises:
        ForeignFileError: the store is in memory.
        ValueError: see `service_url.directory_of`.
    """
    root = directory_of(path)
    refuse_directory_of_another(root)
    return nofollow.canonical(root)


def create() -> str:
    """Make the directory of a new private store, and remove those that are not in use any more."""
    parent = _parent()
    _sweep(parent)
    path = os.path.join(parent, _PREFIX + os.urandom(12).hex())
    os.mkdir(path, 0o700)
    return path


def _parent() -> str:
    if os.path.isdir(SHARED_MEMORY) and os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        return nofollow.canonical(SHARED_MEMORY)
    from tempfile import gettempdir  # slow to import, and seldom needed

    return nofollow.canonical(gettempdir())


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


def lease_root(
    path: str, allow_network_fs: bool, read_only: bool | None = False
) -> tuple[str, DirectoryLease, Refusal | None]:
    """The directory, made if need be, and the shared hold on it.

    Args:
        path: as the user calls it.
        allow_network_fs: see `Store.open`.
        read_only: whether it is only looked at; None for a store of which this process may not write.

    Returns:
        The path; the hold; and why nothing may be written. With a reason the lease is open and holds
        nothing: those that only look hold up no other process.
    """
    if is_memory(path):
        if read_only:
            raise ValueError(f"{path} is a store in the memory of this process, and cannot be read-only")
        path = create()
        return path, shared_lease(path), None
    refuse_directory_of_another(path)
    if read_only:
        try:
            path = filesystem.readable_root(path, allow_network_fs)
        except FileNotFoundError:
            reason, remedy = "there is no such directory", "name the directory of a store"
            raise StorageOSError(path=path, reason=reason, remedy=remedy, errno=errno.ENOENT) from None
        return path, DirectoryLease.open(path), Refusal(path, _ASKED_FOR, _ASK_NOT)
    try:
        root, lease = filesystem.lease_root(path, allow_network=allow_network_fs)
        return root, _shared(lease, root), None
    except (filesystem.NotWritableError, filesystem.OtherOwnerError, AccessDeniedError) as e:
        if read_only is not None:
            raise
        return *lease_to_look(path, allow_network_fs, e), Refusal.after(nofollow.canonical(path), e)


def lease_to_look(path: str, allow_network_fs: bool, denied: StorageError) -> tuple[str, DirectoryLease]:
    """The directory of a store that cannot be opened for writing, for looking at it.

    Raises:
        StorageError: it cannot be read either; or ``denied``, if there is no store.
    """
    try:
        root = filesystem.readable_root(path, allow_network_fs)
    except FileNotFoundError:
        raise denied from None
    except AccessDeniedError as e:
        remedy = f"{e.remedy}; to write to it: {denied.remedy}"
        raise AccessDeniedError(reason=e.reason, remedy=remedy, errno=e.errno or 0) from denied
    if not os.path.exists(root_layout.in_root(root, root_layout.META)):
        raise denied
    return root, DirectoryLease.open(root)


def shared_lease(path: str) -> DirectoryLease:
    """The shared hold on a directory that is there.

    Raises:
        AlreadyClosed: it is being removed or repaired.
    """
    return _shared(DirectoryLease.open(path), path)


def _shared(lease: DirectoryLease, path: str) -> DirectoryLease:
    if not lease.try_shared():
        lease.close()
        raise AlreadyClosed(f"the store {path} is being removed or repaired")
    return lease
