"""A location for offloaded ledgers: a directory, or a bucket of an object store, by its URI.

Objects of offloaded ledgers in a directory of this machine.

Their owner, group and mode are those of the store: a user that may not read the store reads no object. What
lies in the place of an object is not waited for (a FIFO) and not followed (a link). Directories above may be
reached by links, as the location itself; they are the operator's.

Which objects in locations a store made, so that it may remove them: ``offloaded/owner`` of the store.

A store may be copied, restored, or be a snapshot of a disk; then two stores name the same objects in
their notes. So the notes carry an identity that a copy does not have: it counts only where it was made.
That place is known by the empty file ``offloaded/place``: its device, its number and the time of its
last change. No copy, extraction or restore has the same. A store in another place makes another identity
when it offloads; objects of other identities are only read.

What is not noticed: an image of a whole disk that is used on two machines (docs/cold-data.md).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
import tempfile
import weakref
from collections.abc import Iterator

from embeddedpulsar._engine.cold.cold_ledger import ColdLedger, ColdObject
from embeddedpulsar._engine.format.document import KIND_OBJECT_OWNER, decode_document, encode_document
from embeddedpulsar._engine.platform import (
    descriptors,
    disk,
    failpoints,
    fork,
    nofollow,
    package_log,
)
from embeddedpulsar._engine.platform.disk import Rights
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.damage import TOPIC_FILES, Damage, DamageHook
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, InvalidConfiguration, StorageError
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, BinaryIO, Final

_CHUNK: Final = 4 << 20
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def write(path: str, source: BinaryIO, rights: Rights) -> None:
    """Write a new file, durably: it and the names of it and of new directories survive a power loss.

    Raises:
        OSError: it is there already, or cannot be written.
    """
    # Links above are the operator's and are followed once, here; below this line the path has none.
    directory = os.path.realpath(os.path.dirname(path))
    path = os.path.join(directory, os.path.basename(path))
    # Checked where the first new directory is made: the ones above exist, and their owner decides.
    missing = _missing(directory)
    _check_place(os.path.dirname(missing[-1]) if missing else directory, rights)
    for place in reversed(missing):
        with contextlib.suppress(FileExistsError):
            disk.DISK.mkdir(place, rights.directory_mode)
            disk.grant_directory(place, rights)
    # Exclusive: an object is never overwritten. Each attempt has names of its own.
    fd = disk.DISK.open_file(path, _NEW, rights.file_mode)
    try:
        disk.grant_file(fd, rights)  # before there is anything to be read
        offset = 0
        while chunk := source.read(_CHUNK):
            offset += disk.DISK.pwrite_all(fd, [chunk], offset)
        disk.DISK.fsync(fd, path)
    finally:
        os.close(fd)
    # Each new name is flushed in the directory that has it, from the inside out.
    for place in (path, *missing):
        disk.DISK.fsync_dir(os.path.dirname(place))


def _missing(directory: str) -> list[str]:
    """Itself and the directories above it that are not there, the innermost first."""
    missing = []
    while directory and not os.path.isdir(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    return missing


def _check_place(directory: str, rights: Rights) -> None:
    """Refuse to do as root what the owner of the store may not do: the location is the owner's choice."""
    # Only root needs this: for any other user the system decides.
    if os.geteuid() or not rights.uid:
        return
    status = os.stat(directory)
    is_shared = status.st_mode & stat.S_IWGRP and status.st_gid == rights.gid
    if status.st_uid != rights.uid and not is_shared and not status.st_mode & stat.S_IWOTH:
        raise PermissionError(
            f"{directory} belongs to user id {status.st_uid}, and the store to user id {rights.uid}: root "
            "writes and removes nothing there for the store; give the directory to the owner of the store"
        )


def opened(path: str) -> io.FileIO:
    """A file for reading.

    Raises:
        OSError: there is none, or something else than a file.
    """
    # Before opening by the name, and after it by the descriptor: something else may have been put
    # there between.
    _check_file(path, os.lstat(path))  # first: opening a device may do something
    fd = descriptors.opening(f"cannot read {path}", os.open, path, _READ)
    try:
        _check_file(path, os.fstat(fd))
        return io.FileIO(fd)
    except BaseException:
        os.close(fd)
        raise


def _check_file(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kinds = {
            stat.S_IFDIR: "a directory",
            stat.S_IFIFO: "a FIFO",
            stat.S_IFLNK: "a symbolic link",
            stat.S_IFSOCK: "a socket",
        }
        raise OSError(f"{path} is {kinds.get(stat.S_IFMT(status.st_mode), 'a device')}, and no file")


def object_size(path: str) -> int | None:
    """Bytes of a file; None if there is none, or something else."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def delete(path: str, rights: Rights) -> None:
    """Remove a file, durably. Does nothing if there is none.

    Args:
        path: of the file.
        rights: of the store. A process of root removes nothing that the owner of the store may not.
    """
    directory = os.path.realpath(os.path.dirname(path))
    path = os.path.join(directory, os.path.basename(path))
    try:
        # Nothing there is success: the deletion is repeated after a crash.
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    _check_place(directory, rights)
    with contextlib.suppress(FileNotFoundError):
        disk.DISK.unlink(path)
    disk.DISK.fsync_dir(directory)  # or a power loss brings it back, when the note of it is gone


_FLAT: Final = ("s3", "gcs", "abfs")
"""Kinds of file systems without directories."""
_LOCAL: Final = "local"
_MOST_KEPT: Final = 16
MOST_IN_MEMORY: Final = 256 << 20
"""Bytes of an object that is read as a whole; a larger one goes through a temporary file."""


class LocationError(Exception):
    """A location refused an operation, or gave something else than was stored. The text says what."""


class _OpenFiles:
    """The files of this machine that are open for reading. A forked child closes its copies at once, while
    their numbers are still theirs."""

    def __init__(self) -> None:
        self.files: weakref.WeakSet[Any] = weakref.WeakSet()
        fork.register(self)

    def after_fork_in_child(self) -> None:
        for file in list(self.files):
            file.close()


_OPEN: Final = _OpenFiles()


class Location:
    """Files by their names below a URI.

    Invariants: nothing relies on a listing; bytes reach no parser before they were compared (`verified`).
    Every failure is a `LocationError`, whatever library it comes from. Callers: any thread.

    Args:
        uri: an absolute path, or a URI that pyarrow knows (``file``, ``s3``, ``gs``, ``hdfs``, ``abfs``), or
            else fsspec.

    Raises:
        InvalidConfiguration: no file system has such URIs here, or the path is relative.
    """

    def __init__(self, uri: str) -> None:
        self.uri: Final = uri
        self._files, base = filesystem_of(uri)
        self._base: Final = base.rstrip("/")
        self._kind: Final[str] = self._files.type_name

    def write(self, name: str, source: BinaryIO, rights: Rights) -> None:
        """Store a file, from the beginning of ``source``.

        Args:
            name: of the file.
            source: has the bytes.
            rights: owner, group and mode, in a directory, of the file and of the directories that are made.
        """
        path = self.path(name)
        with _naming(f"cannot write {path}"):
            source.seek(0)
            # Local files go through the package's own calls, which flush and set rights; pyarrow does
            # neither.
            if self._kind == _LOCAL:
                write(path, source, rights)
                return
            # Object stores have no directories; in others one is made.
            if self._kind not in _FLAT:
                self._files.create_dir(os.path.dirname(path), recursive=True)
            with self._files.open_output_stream(path) as out:
                while chunk := source.read(_CHUNK):
                    out.write(chunk)

    def _source(self, path: str) -> Any:
        if self._kind != _LOCAL:
            return self._files.open_input_file(path)
        file = opened(path)
        _OPEN.files.add(file)
        return file

    def read(self, name: str, most: int) -> bytes:
        """A small file, or its first ``most`` bytes."""
        path = self.path(name)
        with _naming(f"cannot read {path}"), self._source(path) as file:
            data: bytes = file.read(most)
            return data

    def chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of a file, in pieces of some MiB."""
        path = self.path(name)
        with _naming(f"cannot read {path}"), self._source(path) as file:
            while chunk := file.read(_CHUNK):
                yield chunk

    def digest(self, name: str) -> tuple[int, str]:
        """Size and SHA-256 of a file, by reading it."""
        digest, size = hashlib.sha256(), 0
        for chunk in self.chunks(name):
            digest.update(chunk)
            size += len(chunk)
        return size, digest.hexdigest()

    def verified(self, stored: ColdObject) -> Any:
        """An object for reading at any place, as ``pyarrow.NativeFile``: a copy of its bytes, which were
        compared with what was stored. What others do to the object meanwhile changes nothing.

        An object of up to `MOST_IN_MEMORY` bytes is in memory, a larger one in a temporary file.

        Raises:
            LocationError: it is missing, no file, or has other bytes.
        """
        path, digest, size = self.path(stored.name), hashlib.sha256(), 0
        with contextlib.ExitStack() as undo:
            held: Any = None
            # The copy is made before anything is parsed: a parser never sees bytes that were not
            # compared.
            if stored.size > MOST_IN_MEMORY:
                held = undo.enter_context(tempfile.TemporaryFile())
                _OPEN.files.add(held)
            parts: list[bytes] = []
            for chunk in self.chunks(stored.name):
                size += len(chunk)
                if size > stored.size:
                    break  # it may have no end
                digest.update(chunk)
                if held is None:
                    parts.append(chunk)
                else:
                    held.write(chunk)
            # An object that is too long was cut above, so its digest says nothing; its size does.
            if (size, digest.hexdigest()) != (stored.size, stored.digest):
                raise LocationError(
                    f"{path} is not what was stored: it has "
                    + (
                        f"{size} bytes with SHA-256 {digest.hexdigest()[:16]}..."
                        if size <= stored.size
                        else f"more than {stored.size} bytes"
                    )
                    + f", where {stored.size} bytes with {stored.digest[:16]}... were stored"
                )
            import pyarrow as pa

            if held is None:
                return pa.BufferReader(parts[0] if len(parts) == 1 else b"".join(parts))
            held.seek(0)
            undo.pop_all()
            return pa.PythonFile(held, mode="r")

    def size(self, name: str) -> int | None:
        """Bytes of a file, without reading it; None if there is none."""
        path = self.path(name)
        with _naming(f"cannot look at {path}"):
            if self._kind == _LOCAL:
                return object_size(path)
            info = self._files.get_file_info([path])[0]
            return int(info.size or 0) if info.is_file else None

    def delete(self, name: str, rights: Rights) -> None:
        """Remove a file. Does nothing if there is none.

        Args:
            name: of the file.
            rights: of the store; see the function `delete`.
        """
        path = self.path(name)
        with _naming(f"cannot remove {path}"):
            if self._kind == _LOCAL:
                delete(path, rights)
            elif self._files.get_file_info([path])[0].type.name != "NotFound":
                self._files.delete_file(path)

    def path(self, name: str) -> str:
        """The name of a file in its file system."""
        return f"{self._base}/{name}"


def absolute_location(location: str, root: str) -> str:
    """A location as it is kept: the same place for every process and user.

    Args:
        location: a path, relative to the working directory of this process, with ``~`` for its user's home;
            or a URI.
        root: canonical path of the store.

    Raises:
        InvalidConfiguration: the location is in the store, or makes no sense.

    Example:
        >>> absolute_location("/mnt/../mnt/cold", "/data"), absolute_location("s3://bucket/cold", "/data")
        ('/mnt/cold', 's3://bucket/cold')
        >>> absolute_location("/data/cold", "/data")
        Traceback (most recent call last):
        embeddedpulsar.exceptions.InvalidConfiguration: ...the location /data/cold is in the store /data...
    """
    # An empty text, of a variable of the shell that is not set, would be the working directory.
    if not location:
        raise InvalidConfiguration("the location is an empty text; write the path of a directory, or a URI")
    # Made absolute when it is set, by the process that sets it: others have other working directories
    # and homes.
    if "://" not in location:
        expanded = os.path.expanduser(location)
        if expanded.startswith("~"):
            raise InvalidConfiguration(
                f"the location {location}: there is no home directory for {expanded.partition(os.sep)[0]}; "
                "write the whole path"
            )
        if location.startswith("file:"):
            raise InvalidConfiguration(f"the location {location}: write the path alone, or file:///path")
        location = os.path.abspath(expanded)
    check_location(location, root)
    return location


def check_location(location: str, root: str) -> None:
    """Refuse a location that means another place in each process, or one inside of the store.

    Raises:
        InvalidConfiguration: as it says.
    """
    path = local_path(location)
    if path is None:
        return
    if not os.path.isabs(path):
        raise InvalidConfiguration(relative_text(location))
    # With links resolved: a link beside the store may lead into it.
    place = os.path.realpath(path)
    if place == root or place.startswith(f"{root}{os.sep}"):
        raise InvalidConfiguration(
            f"the location {location} is in the store {root}: a copy or a removal of the store would be one "
            "of the objects, too; name a directory beside it (set_offload_policies of the topic or its "
            "namespace, or managedLedgerOffloadLocation in broker.conf)"
        )


def local_path(location: str) -> str | None:
    """The path of a location that is a directory; None for any other."""
    if "://" not in location:
        return location
    scheme, _, rest = location.partition("://")
    if scheme != "file":
        return None
    from urllib.parse import unquote

    host, slash, path = unquote(rest).partition("/")
    return slash + path if host in ("", "localhost") else rest


def relative_text(location: str) -> str:
    """Why a relative location is refused, and what to do."""
    return (
        f"the location {location} is a relative path, which means another place in each process: set an "
        "absolute one (set_offload_policies of the topic or its namespace, managedLedgerOffloadLocation in "
        "broker.conf); for ledgers that were offloaded there, "
        f"Admin.topics().adopt_offloaded(topic, moved={{{location!r}: '/where/they/are'}})"
    )


def hadoop_uri(uri: str, name: str) -> str:
    """The URI of a file below a location, as Hadoop and Spark write it.

    Example:
        >>> hadoop_uri("/mnt/cold", "a.parquet"), hadoop_uri("s3://bucket/x?region=eu-west-1", "a.parquet")
        ('file:///mnt/cold/a.parquet', 's3a://bucket/x/a.parquet')
    """
    front = uri.partition("?")[0].rstrip("/")
    if "://" not in front:
        front = f"file://{front}"
    elif front.startswith("s3://"):
        front = f"s3a{front[2:]}"
    return f"{front}/{name}"


def filesystem_of(uri: str) -> tuple[Any, str]:
    """The file system of a URI, and the path in it.

    Raises:
        InvalidConfiguration: there is none, or the path is relative.
        ImportError: pyarrow is not installed.
    """
    fs = _pyarrow_fs()
    if "://" not in uri:
        if not os.path.isabs(uri):
            raise InvalidConfiguration(relative_text(uri))
        return fs.LocalFileSystem(), os.path.normpath(uri)
    try:
        # pyarrow first, which needs no package more; then fsspec with whatever is installed for it.
        files, path = fs.FileSystem.from_uri(uri)
    except Exception as error:  # noqa: BLE001 - pyarrow raises what its libraries raise
        return _by_fsspec(fs, uri, error)
    return files, path


def _by_fsspec(fs: Any, uri: str, error: Exception) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs

        filesystem, path = url_to_fs(uri)
    except Exception as other:
        reason = f"{str(error).strip()}; fsspec: {other}"
        raise InvalidConfiguration(
            f"there is no file system for the location {uri}: {reason}; use a path, or a URI as "
            "s3://bucket/path"
        ) from other
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), path


def _pyarrow_fs() -> Any:
    try:
        from pyarrow import fs
    except ImportError as error:
        raise ImportError('offloading needs pyarrow: pip install "embeddedpulsar[arrow]"') from error
    return fs


@contextlib.contextmanager
def _naming(what: str) -> Iterator[None]:
    try:
        yield
    except LocationError:
        raise
    except Exception as error:
        raise LocationError(f"{what}: {str(error).strip() or type(error).__name__}") from error


_opened: Final[dict[tuple[str, int], Location]] = {}


def location_of(uri: str) -> Location:
    """The location of a URI; the same one for the same URI, but another one after a fork: connections belong
    to the parent. Errors as of `Location`."""
    # Connections and threads of the libraries below do not survive a fork.
    key = uri, fork.GENERATION
    location = _opened.get(key)
    if location is None:
        if len(_opened) >= _MOST_KEPT:
            _opened.clear()
        location = _opened[key] = Location(uri)
    return location


OWNER: Final = "owner"
PLACE: Final = "place"
_LOCK: Final = "lock"
_LOCK_S: Final = 30.0

failpoints.declare("owner:place_made", "owner:written")


def is_own(note: ColdLedger, leftovers: str) -> bool:
    """Whether this store made the objects of a ledger, in this place, and no other store counts on them.

    Args:
        note: of the ledger.
        leftovers: the directory ``offloaded`` of the store.
    """
    return bool(note.owner) and not note.is_shared and note.owner == known_owner(leftovers)


def known_owner(leftovers: str) -> str:
    """The identity of the store in this place; "" if it has none, or that is unknown."""
    try:
        return _owner(leftovers)
    except (NotADirectoryError, StorageError):
        return ""


def _owner(leftovers: str) -> str:
    """As `known_owner`, raising an error if the document is damaged or cannot be read."""
    path = os.path.join(leftovers, OWNER)
    try:
        fields = decode_document(disk.DISK.read_file(path), KIND_OBJECT_OWNER)
        # The identity counts only in its place. A copied store has the document and another
        # ``place``.
        status = nofollow.status(os.path.join(leftovers, PLACE))
    except FileNotFoundError:
        return ""
    except StorageError as e:
        raise e.at(path) from None
    owner = fields.get("owner")
    return owner if isinstance(owner, str) and fields.get("place") == _place(status) else ""


def _place(status: os.stat_result) -> list[int]:
    return [status.st_dev, status.st_ino, status.st_ctime_ns]


def _damage(error: StorageError) -> Damage:
    return Damage(
        error.path or "",
        offset=error.offset or 0,
        reason=error.reason,
        kind=TOPIC_FILES,
        done="another identity takes its place",
        remedy="remove by hand, from their locations, objects of ledgers that were trimmed: they stay there",
    )


def make_owner(leftovers: str, report: DamageHook = package_log.damage) -> str:
    """The identity of the store in this place, made if it has none. Durable, before an object is written.

    Args:
        leftovers: the directory ``offloaded`` of the store.
        report: called with a document that is damaged: another identity takes its place, and the objects of
            the one before stay in their locations.

    Raises:
        LockTimeout: another process is at it, and was stopped there.
        StorageError: what there is cannot be read, or a newer release wrote it.
    """
    # Without the lock: an identity that counts never changes.
    owner = known_owner(leftovers)
    if owner:
        return owner
    with contextlib.suppress(FileExistsError):
        disk.DISK.mkdir(leftovers)
        disk.DISK.fsync_dir(os.path.dirname(leftovers))
    lock = FileLock(os.path.join(leftovers, _LOCK))
    try:
        lock.acquire(_LOCK_S)
        # Under the lock and strictly: what cannot be read now must not be replaced; what is damaged
        # is.
        try:
            owner = _owner(leftovers)
        except (CorruptionError, ForeignFileError) as e:
            report(_damage(e))
        if owner:
            return owner  # another process was faster
        # 1. The place. A crash, here or before the next step is durable, leaves no identity, or one of
        # another place: no object has it.
        place, identity = os.path.join(leftovers, PLACE), os.urandom(16).hex()
        with contextlib.suppress(FileNotFoundError):
            disk.DISK.unlink(place)
        fd = disk.DISK.create_exclusive(place)
        try:
            disk.DISK.fsync(fd, place)
            fields = {"owner": identity, "place": _place(os.fstat(fd))}
        finally:
            os.close(fd)
        failpoints.hit("owner:place_made")
        # 2. The identity, durably with both names.
        path = os.path.join(leftovers, OWNER)
        disk.DISK.atomic_write(path, encode_document(KIND_OBJECT_OWNER, fields), durable=True)
        failpoints.hit("owner:written")
        return identity
    finally:
        lock.release()
        lock.close()
