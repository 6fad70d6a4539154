"""The directory of a ``memory://`` store: where it lies, who holds it, how it is found, and its removal.

A store in memory is a store in a directory on ``/dev/shm`` or, where that is missing or nearly full, among
the temporary files. Nothing in it is flushed. Each process that has it open holds a shared ``flock`` on the
directory, and the last of them removes it. What killed processes leave has no such hold; the next store in
memory that any process of the same user opens removes that.

Others may write to both places. The directory is therefore made under a random name, for its owner alone, and
is used only if the one that was opened is the one that was made.
"""

from __future__ import annotations

import contextlib
import os
import stat
import zlib
from typing import Final

from embeddedpulsar._engine.platform import disk, nofollow
from embeddedpulsar._engine.platform.filesystem import PRIVATE, DirectoryLease
from embeddedpulsar._engine.store.catalog import root_layout
from embeddedpulsar._engine.store.catalog.topic_places import remove_tree
from embeddedpulsar.exceptions import ForeignFileError, NotAllowedError, StoreGoneError

SCHEME: Final = "memory://"
SHARED_MEMORY: Final = "/dev/shm"
LEAST_FREE: Final = 4 << 20
"""Bytes that have to be free on ``/dev/shm``. An empty store takes 0.1 MiB."""
_TEMPORARY: Final = ("TMPDIR", "TEMP", "TMP")
_TEMPORARY_PLACES: Final = ("/tmp", "/var/tmp")
_PREFIX: Final = "embeddedpulsar-memory-"
_LONGEST_LABEL: Final = 100
_ATTEMPTS: Final = 100

ROOTS: Final[dict[str, str]] = {}
"""The directories of the stores with a name that this process has open, by URL."""
_swept: Final[set[str]] = set()


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


def is_private(root: str) -> bool:
    """Whether a root is the URL of a store in memory that one client has.

    Example:
        >>> is_private("memory://?maxMessageSize=1000"), is_private("memory://orders")
        (True, False)
    """
    return root.partition("?")[0] == SCHEME


def split_settings(url: str) -> tuple[str, str]:
    """The URL of a store in memory without its settings, and these as the text of a ``broker.conf``.

    Example:
        >>> split_settings("memory://orders?maxMessageSize=1000&brokerDeduplicationEnabled=true")
        ('memory://orders', 'maxMessageSize=1000\\nbrokerDeduplicationEnabled=true\\n')
    """
    name, _, query = url.partition("?")
    if "%" in query:
        from urllib.parse import unquote  # 15 ms, for the few URLs that need it

        return name, "".join(f"{unquote(setting)}\n" for setting in query.split("&"))
    return name, "".join(f"{setting}\n" for setting in query.split("&") if setting)


def is_temporary(root: str) -> bool:
    """Whether a directory is that of a store in memory: it goes with the last process that has it open."""
    if _PREFIX not in root:  # nearly always
        return False
    directory, name = os.path.split(root)
    return name.startswith(_PREFIX) and directory in _places()


def create(url: str = SCHEME, settings: str = "") -> tuple[str, DirectoryLease]:
    """Make the directory of a new store in memory, and remove those that no process has open any more.

    Args:
        url: its name is part of the directory's, so that others can tell it (`find`).
        settings: the text of its ``broker.conf``; empty for none.

    Returns:
        The directory, and the hold on it.

    Raises:
        ForeignFileError: another user put something in its place while it was made.
    """
    places = _places()
    for place in places:
        _sweep(place)
    for _ in range(_ATTEMPTS):
        path = os.path.join(places[0], _label(url) + os.urandom(12).hex())
        disk.DISK.mkdir(path, PRIVATE)  # an error if something of that name is there, were it a link
        lease = _lease_new(path)
        if lease is not None:
            if settings:
                try:
                    disk.DISK.atomic_write(
                        root_layout.in_root(path, root_layout.SETTINGS), settings.encode(), durable=False
                    )
                except BaseException:
                    remove(path, lease)
                    lease.close()
                    raise
            return path, lease
    raise StoreGoneError(f"the directories made in {places[0]} for a store in memory are removed at once")


def _lease_new(path: str) -> DirectoryLease | None:
    """The hold on a directory that was just made; None if a process that sweeps took it for an abandoned one.

    Between the two steps the directory has no hold, so it may be swept: then the next attempt makes another.
    """
    try:
        lease = DirectoryLease.open(path)
    except FileNotFoundError:
        return None
    status = lease.status
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        lease.close()
        raise ForeignFileError(
            path=path,
            reason="it is not the directory that was made for the store in memory: it was replaced meanwhile",
            remedy="let no other user rename files there: chmod +t " + os.path.dirname(path),
        )
    if lease.try_shared() and os.fstat(lease.fd).st_nlink:
        return lease
    lease.close()
    return None


def remove(root: str, lease: DirectoryLease) -> None:
    """Remove the directory if no other process has the store open. The hold of this process is given up.

    Of processes that end at once, one removes it: `flock` gives up the shared hold before it asks for the
    exclusive one, so the last that asks meets none.
    """
    if lease.try_exclusive():
        remove_tree(root)


def find(url: str) -> str:
    """The directory of the store of that name that this process has open, or a process that started it.

    A worker that Spark starts is a descendant of the process that has the store, and finds it by the files
    that its ancestors have open.

    Raises:
        NotAllowedError: there is none, or the URL has no name.
    """
    url = split_settings(url)[0]
    root = ROOTS.get(url)
    if root is not None:
        return root
    if not is_named(url):
        raise NotAllowedError(
            f"each client of {SCHEME} has a store of its own; give both the same name: {SCHEME}name"
        )
    label = _label(url)
    pid = os.getppid()
    while pid > 1:
        for path in _open_directories(pid):
            name = os.path.basename(path)
            if name.startswith(label) and len(name) == len(label) + 24 and is_temporary(path):
                return path
        pid = _parent_of(pid)
    raise NotAllowedError(
        f"neither this process nor one that started it has {url} open; keep a client of it open while it is "
        "read"
    )


def room(root: str) -> int:
    """How many bytes the file system of a store has, free or not."""
    status = os.statvfs(root)
    return status.f_blocks * status.f_frsize


def gone(root: str) -> StoreGoneError:
    """The error for a store in memory whose directory was removed."""
    return StoreGoneError(
        f"{root} was a store in memory, and was removed when the last process that used it closed it",
        remedy="keep a client of it open in one of the processes, or use a directory",
    )


def _places() -> list[str]:
    """Where directories of stores in memory may lie, the one for the next first."""
    temporary = nofollow.canonical(_temporary())
    if not (os.path.isdir(SHARED_MEMORY) and os.access(SHARED_MEMORY, os.W_OK | os.X_OK)):
        return [temporary]
    shared = nofollow.canonical(SHARED_MEMORY)
    return [shared, temporary] if _free(shared) >= LEAST_FREE else [temporary, shared]


def _temporary() -> str:
    """As `tempfile.gettempdir`, whose module takes long to import."""
    candidates = [os.environ.get(name) for name in _TEMPORARY]
    for path in (*candidates, *_TEMPORARY_PLACES):
        if path and os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK):
            return path
    return os.curdir


def _free(path: str) -> int:
    status = os.statvfs(path)
    return (status.f_bfree if os.geteuid() == 0 else status.f_bavail) * status.f_frsize


def _label(url: str) -> str:
    """How the name of the directory of a store begins; a long name is cut, and told from others by a sum."""
    name = url.removeprefix(SCHEME)
    if len(name) > _LONGEST_LABEL:
        name = f"{name[:_LONGEST_LABEL]}-{zlib.crc32(name.encode()):08x}"
    return f"{_PREFIX}{name}-" if name else _PREFIX


def _sweep(place: str) -> None:
    """Remove the directories of this user that no process has open."""
    if place != SHARED_MEMORY:  # other places may have many files, and seldom one of ours
        if place in _swept:
            return
        _swept.add(place)
    for name in os.listdir(place):
        if not name.startswith(_PREFIX):
            continue
        path = os.path.join(place, name)
        with contextlib.suppress(OSError):
            if os.stat(path, follow_symlinks=False).st_uid != os.geteuid():
                continue
            lease = DirectoryLease.open(path)
            try:
                remove(path, lease)
            finally:
                lease.close()


def _open_directories(pid: int) -> list[str]:
    """The paths of the files that another process of this user has open."""
    directory = f"/proc/{pid}/fd"
    paths = []
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            with contextlib.suppress(OSError):
                paths.append(os.readlink(f"{directory}/{name}"))
    return paths


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
