"""The directory of a store, and ``store.meta``, which makes it one: written last, and durably at every level.

Every process that has a store open holds a shared ``flock`` on its directory.

A store in memory is a store in a directory on ``/dev/shm`` or, where that is missing or nearly full, among
the temporary files. Nothing in it is flushed. Each process that has it open holds a shared ``flock`` on the
directory, and the last of them removes it. What killed processes leave has no such hold; the next store in
memory that any process of the same user opens removes that.

Others may write to both places. The directory is therefore made under a random name, for its owner alone, and
is used only if the one that was opened is the one that was made.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import zlib

from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.format.document import KIND_STORE_META, decode_document, encode_document
from embeddedpulsar._engine.format.frame import FORMAT_VERSION, REVISED_VERSION
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, filesystem, nofollow, peers
from embeddedpulsar._engine.platform.access import Refusal, access_denied
from embeddedpulsar._engine.platform.filesystem import PRIVATE, DirectoryLease
from embeddedpulsar._engine.store import root_layout
from embeddedpulsar._engine.store.root_layout import remove_tree
from embeddedpulsar.error_text import nearest
from embeddedpulsar.exceptions import (
    AccessDeniedError,
    AlreadyClosed,
    CorruptionError,
    ForeignFileError,
    NotAllowedError,
    StorageError,
    StorageOSError,
    StoreGoneError,
    UnsupportedFormatVersion,
    UnsupportedVersionError,
)
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final

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


def create_in_memory(url: str = SCHEME, settings: str = "") -> tuple[str, DirectoryLease]:
    """Make the directory of a new store in memory, and remove those that no process has open any more.

    Args:
        url: its name is part of the directory's, so that others can tell it (`find_in_memory`).
        settings: the text of its ``broker.conf``; empty for none.

    Returns:
        The directory, and the hold on it.

    Raises:
        ForeignFileError: another user put something in its place while it was made.
        StorageOSError: no place can be written to.
    """
    places = _places()
    if not places:
        tried = ", ".join((SHARED_MEMORY, *_TEMPORARY_PLACES))
        raise StorageOSError(
            path=url,
            reason=f"there is no directory for a store in memory: this process may write neither to {tried} "
            "nor to its working directory",
            remedy="set TMPDIR to a directory that it may write to",
            errno=errno.EROFS,
        )
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
                    remove_in_memory(path, lease)
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


def remove_in_memory(root: str, lease: DirectoryLease) -> None:
    """Remove the directory if no other process has the store open. The hold of this process is given up.

    Of processes that end at once, one removes it: `flock` gives up the shared hold before it asks for the
    exclusive one, so the last that asks meets none.
    """
    if lease.try_exclusive():
        remove_tree(root)


def find_in_memory(url: str) -> str:
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
    if not os.path.exists("/proc/self/fd"):
        return _find_by_leases(url, label, pid)
    while pid > 1:
        for path in _open_directories(pid):
            name = os.path.basename(path)
            if name.startswith(label) and len(name) == len(label) + 24 and is_temporary(path):
                return path
        pid = _parent_of(pid)
    raise _not_open(url)


def _not_open(url: str) -> NotAllowedError:
    return NotAllowedError(
        f"neither this process nor one that started it has {url} open; keep a client of it open while it is "
        "read"
    )


def _find_by_leases(url: str, label: str, pid: int) -> str:
    """As `find_in_memory`, where the system does not list open files: by the pids that leases name."""
    owners: dict[int, str] = {}
    for place in _places():
        for name in os.listdir(place):
            if name.startswith(label) and len(name) == len(label) + 24:
                path = os.path.join(place, name)
                with contextlib.suppress(OSError):
                    facts = peers.lease_holders(root_layout.in_root(path, root_layout.CLIENTS))
                    owners |= dict.fromkeys((process.pid for process in facts.values()), path)
    while owners and pid > 1:
        if pid in owners:
            return owners[pid]
        text = peers.listed_processes("ppid=", {pid}).get(pid, "")
        pid = int(text) if text.isdigit() else 0
    raise _not_open(url)


def room_in_memory(root: str) -> int:
    """How many bytes the file system of a store has, free or not."""
    status = os.statvfs(root)
    return status.f_blocks * status.f_frsize


def store_gone(root: str) -> StoreGoneError:
    """The error for a store in memory whose directory was removed."""
    return StoreGoneError(
        f"{root} was a store in memory, and was removed when the last process that used it closed it",
        remedy="keep a client of it open in one of the processes, or use a directory",
    )


def _places() -> list[str]:
    """Where directories of stores in memory may lie, the one for the next first; empty if nothing may be
    written anywhere."""
    temporary = [nofollow.canonical(path) for path in _temporary()]
    if not _is_usable(SHARED_MEMORY):
        return temporary
    shared = nofollow.canonical(SHARED_MEMORY)
    return [shared, *temporary] if _free(shared) >= LEAST_FREE else [*temporary, shared]


def _temporary() -> list[str]:
    """As `tempfile.gettempdir`, whose module takes long to import; empty where that fails."""
    candidates = [os.environ.get(name) for name in _TEMPORARY]
    for path in (*candidates, *_TEMPORARY_PLACES, os.curdir):
        if path and _is_usable(path):
            return [path]
    return []


def _is_usable(path: str) -> bool:
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)


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
                remove_in_memory(path, lease)
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


_CLUSTER_SCHEMES = ("pulsar", "pulsar+ssl", "http", "https")
_WINDOWS_PATH = r"[A-Za-z]:|.*\\"
_OF_MEMORY_NAMES = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_HOST_AND_PORT = r"[\w.-]+:\d+$"
_PATH_STARTS = ("/", "./", "../", "~")


class ServiceUrl(NamedTuple):
    """A parsed service URL.

    Attributes:
        text: the URL as it was given, for `repr` and pickling; a path is made absolute, so that it means the
            same after a change of directory.
        root: absolute path of the store; None for a store in memory.
    """

    text: str
    root: str | None

    @classmethod
    def parse(cls, service_url: str | os.PathLike[str]) -> ServiceUrl:
        """Read a path object, a string that looks like a path, ``file:///path``, ``memory://`` or
        ``memory://name``; the two may have settings behind a question mark, ``memory://?name=value&...``.

        Raises:
            ValueError: anything else, with the texts of ``pulsar-client`` and a hint.

        >>> ServiceUrl.parse("file:///srv/my%20data").root
        '/srv/my data'
        >>> ServiceUrl.parse("memory://").root is None
        True
        >>> ServiceUrl.parse("data")
        Traceback (most recent call last):
        ValueError: The scheme part is missing: data (for a directory write ./data)
        >>> ServiceUrl.parse("C:/data")
        Traceback (most recent call last):
        ValueError: The scheme part is missing: C:/data (...
        """
        # A path object is a path, whatever it looks like.
        if not isinstance(service_url, str):
            path = os.path.abspath(_expanded(os.fsdecode(service_url)))
            return cls(path, path)
        # A text that begins like a path is one. A plain name, "data", is refused below: with pulsar-client it
        # would be an address, and a typing error in one would make a directory.
        if service_url.startswith(_PATH_STARTS) or service_url in (".", ".."):
            path = os.path.abspath(_expanded(service_url))
            return cls(path, path)
        scheme, separator, rest = service_url.partition("://")
        # Not a path, and no URL: the hint says what may have been meant, a directory, a path of Windows or an
        # address.
        if not separator:
            import re  # for this error alone

            hint = f"for a directory write ./{service_url}"
            if re.match(_WINDOWS_PATH, service_url):
                hint = _windows_hint(service_url)
            elif re.match(_HOST_AND_PORT, service_url):
                hint += f"; for a cluster, connect('pulsar://{service_url}')"
            raise ValueError(f"The scheme part is missing: {service_url} ({hint})")
        # The other forms by their schemes: a directory, a store in memory, an address of a cluster, or a
        # mistake.
        if scheme == "file":
            return cls(service_url, _file_path(service_url, rest))
        if scheme == "memory":
            # The name becomes the name of a directory on /dev/shm.
            name, _, settings = rest.partition("?")
            if not _OF_MEMORY_NAMES.issuperset(name):
                raise ValueError(
                    f"{service_url}: the name of a memory:// store has letters, digits, '-', '_' and '.' only"
                )
            # The settings themselves are checked when the store is opened; here only whether they are any.
            if not all("=" in setting for setting in settings.split("&") if setting):
                raise ValueError(
                    f"{service_url}: settings are written as in broker.conf, with & between them: "
                    "memory://name?maxMessageSize=1000&brokerDeduplicationEnabled=true"
                )
            return cls(service_url, None)
        # The likeliest mistake of a program that was written for a cluster.
        if scheme in _CLUSTER_SCHEMES:
            raise ValueError(
                f"Invalid scheme: {scheme}: {service_url} is a Pulsar cluster, and this client opens a "
                "directory; use embeddedpulsar.connect(url), which returns the client of pulsar-client for it"
            )
        near = nearest(scheme, ("file", "memory", *_CLUSTER_SCHEMES), 0.7)
        hint = "write a directory as ./data or file:///srv/data, or memory://"
        if near:
            hint = f"did you mean {near}://?"
        raise ValueError(f"Invalid scheme: {scheme}: {service_url} is not a store; {hint}")

    @property
    def store(self) -> str:
        """What `Store.open` is given: the path, or the URL of a store in memory."""
        return self.root or self.text


def directory_of(path: str | os.PathLike[str]) -> str:
    """The directory that a path names, or a URL with the scheme ``file``; ``~`` is the home of the user.

    Raises:
        ValueError: the URL names another host or no directory, the text is empty, or the user has no home.

    >>> directory_of("file:///srv/my%20data"), directory_of("data")
    ('/srv/my data', 'data')
    """
    text = os.fsdecode(path)
    if text.startswith("file://"):
        return _file_path(text, text.removeprefix("file://"))
    if not text:  # of a variable of the shell that is not set
        raise ValueError("an empty text names no directory; write . for the working directory")
    return _expanded(text)


def _expanded(path: str) -> str:
    expanded = os.path.expanduser(path)
    user = path.partition("/")[0]
    if user.startswith("~") and expanded == path and not os.path.exists(user):
        who = f"there is no user {user[1:]!r}, or it has no home" if user != "~" else "this user has no home"
        raise ValueError(f"{path}: {who}; write the path without ~, or ./{path} for a directory of that name")
    return expanded


def _windows_hint(path: str) -> str:
    if os.name == "nt":
        return f"give a path with a drive as a path object: pathlib.Path({path!r})"
    return "a path of Windows; here a directory is written /srv/data, ./data or ~/data"


def _file_path(url: str, rest: str) -> str:
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost"):
        raise ValueError(f"{url} names the host {host!r}; a local path has three slashes: file:///path")
    if not slash or not path:
        raise ValueError(f"No service url is provided yet: {url} names no directory; write file:///path")
    if "%" in path:
        from urllib.parse import unquote_to_bytes  # 15 ms, for the few URLs that need it

        path = os.fsdecode(unquote_to_bytes(path))
    if "\0" in path:
        raise ValueError(f"{url} has a NUL, which no path has")
    return os.path.abspath("/" + path)


NEW_STORE_FORMAT: Final = FORMAT_VERSION
"""Version of the layout of the directory as a whole: that of a new store."""
STORE_FORMAT: Final = REVISED_VERSION
"""The newest one that is known: that of a store with entries that a release of version 1 would misread."""
_ID_SIZE: Final = 16

failpoints.declare("format:raised")
_RESTORE: Final = "repair the store (embeddedpulsar repair), or restore store.meta from a copy of the store"
_ASKED_FOR: Final = "that was asked for"
_ASK_NOT: Final = "open it without read_only (--read-only) to change it"


class StoreMeta(NamedTuple):
    """Identity of a store: the same for every process, kept by copies."""

    store_id: bytes
    created_ms: int
    format: int = NEW_STORE_FORMAT


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


_NAME_IT: Final = "name the directory of a store, as given to Client"


def why_no_store(root: str) -> str:
    """Why a directory is not a store that this release reads, for a user who named it; "" if it is one.

    Raises:
        OSError: it cannot be read, for another reason than that its owner does not allow it.
    """
    if not os.path.exists(root):
        return f"{root} does not exist; {_NAME_IT}"
    if not os.path.isdir(root):
        return f"{root} is a file; {_NAME_IT}"
    # Without the file that describes the store, the catalog tells whether there is one: a store that lost it
    # is a case for a check, which says what is missing. Everything else gets the reason, in the words of a
    # user who named the wrong directory.
    has_catalog = os.path.exists(root_layout.in_root(root, root_layout.CATALOG))
    try:
        if read_meta(root) is not None or has_catalog:
            return ""
    except UnsupportedVersionError as e:
        return str(e)
    except AccessDeniedError as e:
        denied = access_denied(f"cannot read the store {root}", e.path or root, e.errno or 0, to_read=True)
        return f"{denied.reason}; {denied.remedy}"
    except StorageError as e:
        if has_catalog:
            return ""  # it is a store, and a check reports what is wrong
        # A topic has such a description, too; of another kind, so it could not be read as that of a store.
        if os.path.exists(filenames.topic_meta_path(root)):
            return f"{root} is a directory of one topic; name the directory of its store, two levels up"
        return f"{root} is not a store: {e.reason}; {_NAME_IT}"
    return f"{root} is not a store: it holds no {root_layout.META}"


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


def write_meta(
    root: str, now_ms: int, store_id: bytes | None = None, version: int = NEW_STORE_FORMAT
) -> StoreMeta:
    """Make ``root`` a store, by default a new one: the last step of its creation, under the store lock."""
    meta = StoreMeta(store_id or os.urandom(_ID_SIZE), now_ms, version)
    path = root_layout.in_root(root, root_layout.META)
    disk.DISK.atomic_write(path, encode_document(KIND_STORE_META, meta._asdict()), durable=True)
    return meta


def raise_format(root: str, version: int) -> StoreMeta:
    """Let ``store.meta`` say that the store needs releases that know ``version``. Under the store lock.

    It is durable when this returns: what needs the version is written afterwards. A crash between leaves a
    store that needs a newer release than it has use for, which is harmless.

    Raises:
        FileNotFoundError: the store is gone.
        CorruptionError, ForeignFileError, UnsupportedFormatVersion: see `read_meta`.
    """
    path = root_layout.in_root(root, root_layout.META)
    try:
        fields = decode_document(disk.DISK.read_file(path), KIND_STORE_META)
        meta = _from_fields(fields)
    except (CorruptionError, ForeignFileError, UnsupportedFormatVersion) as e:
        raise e.at(path) from None
    if meta.format >= version:
        return meta
    fields["format"] = version  # names that this release does not know stay
    disk.DISK.atomic_write(path, encode_document(KIND_STORE_META, fields), durable=True)
    failpoints.hit("format:raised")
    return meta._replace(format=version)


def root_of(path: str | os.PathLike[str]) -> str:
    """The directory of a store that is to be read, as a path without links, from what the user calls it.

    Raises:
        NotAllowedError: it is in memory, and neither this process nor one that started it has it open.
        ValueError: see `service_url.directory_of`.
    """
    text = os.fsdecode(path)
    if is_memory(text):
        return find_in_memory(text)
    return nofollow.canonical(directory_of(text))


def lease_root(
    path: str, allow_network_fs: bool, read_only: bool | None = False
) -> tuple[str, DirectoryLease, Refusal | None]:
    """The directory, made if need be, and the shared hold on it.

    Args:
        path: as the user calls it; a store in memory is a new one.
        allow_network_fs: see `Store.open`.
        read_only: whether it is only looked at; None for a store of which this process may not write.

    Returns:
        The path; the hold; and why nothing may be written. With a reason the lease is open and holds
        nothing: those that only look hold up no other process.
    """
    if is_memory(path):
        url, settings = split_settings(path)
        if read_only:
            raise ValueError(f"{url} is a new store in memory, and cannot be read-only")
        return *create_in_memory(url, settings), None
    if is_temporary(path) and not os.path.exists(path):
        raise store_gone(path)  # a process that comes late does not make it again
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
        StoreGoneError: it was a store in memory, and is removed.
    """
    try:
        return _shared(DirectoryLease.open(path), path)
    except FileNotFoundError:
        if is_temporary(path):
            raise store_gone(path) from None
        raise


def _shared(lease: DirectoryLease, path: str) -> DirectoryLease:
    if not lease.try_shared():
        lease.close()
        raise AlreadyClosed(f"the store {path} is being removed or repaired")
    return lease
