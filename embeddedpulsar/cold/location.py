"""A location for offloaded ledgers: a directory, or a bucket of an object store, by its URI."""

from __future__ import annotations

import contextlib
import hashlib
import os
import weakref
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.platform import disk, fork

_CHUNK: Final = 4 << 20
_FLAT: Final = ("s3", "gcs", "abfs")
"""Kinds of file systems without directories."""
_LOCAL: Final = "local"
_MOST_KEPT: Final = 16


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
    """Role: files by their names below a URI. Invariants: nothing relies on a listing. Every failure is a
    `LocationError`, whatever library it comes from. Callers: any thread.

    Args:
        uri: a path, or a URI that pyarrow knows (``file``, ``s3``, ``gs``, ``hdfs``, ``abfs``), or else
            fsspec.

    Raises:
        InvalidConfiguration: no file system has such URIs here.
    """

    def __init__(self, uri: str) -> None:
        self.uri: Final = uri
        self._files, base = filesystem_of(uri)
        self._base: Final = base.rstrip("/")
        self._kind: Final[str] = self._files.type_name

    def write(self, name: str, source: BinaryIO) -> None:
        """Store a file, from the beginning of ``source``."""
        path = self.path(name)
        with _naming(f"cannot write {path}"):
            made = _missing_directories(path) if self._kind == _LOCAL else []
            if self._kind not in _FLAT:
                self._files.create_dir(os.path.dirname(path), recursive=True)
            source.seek(0)
            with self._files.open_output_stream(path) as out:
                while chunk := source.read(_CHUNK):
                    out.write(chunk)
            if self._kind == _LOCAL:
                # The file with its name, and the names of the directories above it, survive a power loss.
                disk.DISK.flush_files([path])
                for one in (path, *made):
                    disk.DISK.fsync_dir(os.path.dirname(one))

    def open(self, name: str) -> Any:
        """A file for reading at any place, as ``pyarrow.NativeFile``."""
        path = self.path(name)
        with _naming(f"cannot read {path}"):
            file = self._files.open_input_file(path)
        if self._kind == _LOCAL:
            _OPEN.files.add(file)
        return file

    def read(self, name: str) -> bytes:
        """A small file."""
        with _naming(f"cannot read {self.path(name)}"), self.open(name) as file:
            found: bytes = file.read()
            return found

    def chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of a file, in pieces of some MiB."""
        with _naming(f"cannot read {self.path(name)}"), self.open(name) as file:
            while chunk := file.read(_CHUNK):
                yield chunk

    def digest(self, name: str) -> tuple[int, str]:
        """Size and SHA-256 of a file, by reading it."""
        found, size = hashlib.sha256(), 0
        for chunk in self.chunks(name):
            found.update(chunk)
            size += len(chunk)
        return size, found.hexdigest()

    def size(self, name: str) -> int | None:
        """Bytes of a file, without reading it; None if there is none."""
        path = self.path(name)
        with _naming(f"cannot look at {path}"):
            found = self._files.get_file_info([path])[0]
            return int(found.size or 0) if found.is_file else None

    def delete(self, name: str) -> None:
        """Remove a file. Does nothing if there is none."""
        path = self.path(name)
        with _naming(f"cannot remove {path}"):
            if self._files.get_file_info([path])[0].type.name != "NotFound":
                self._files.delete_file(path)
                if self._kind == _LOCAL:  # or a power loss brings it back, when the note of it is gone
                    disk.DISK.fsync_dir(os.path.dirname(path))

    def path(self, name: str) -> str:
        """The name of a file in its file system."""
        return f"{self._base}/{name}"


def hadoop_uri(uri: str, name: str) -> str:
    """The URI of a file below a location, as Hadoop and Spark write it.

    Example:
        >>> hadoop_uri("/mnt/cold", "a.parquet"), hadoop_uri("s3://bucket/x?region=eu-west-1", "a.parquet")
        ('file:///mnt/cold/a.parquet', 's3a://bucket/x/a.parquet')
    """
    front = uri.partition("?")[0].rstrip("/")
    if "://" not in front:
        front = f"file://{os.path.abspath(front)}"
    elif front.startswith("s3://"):
        front = f"s3a{front[2:]}"
    return f"{front}/{name}"


def filesystem_of(uri: str) -> tuple[Any, str]:
    """The file system of a URI, and the path in it.

    Raises:
        InvalidConfiguration: there is none.
        ImportError: pyarrow is not installed.
    """
    fs = _pyarrow_fs()
    if "://" not in uri:
        return fs.LocalFileSystem(), os.path.abspath(uri)
    try:
        files, path = fs.FileSystem.from_uri(uri)
    except Exception as error:  # noqa: BLE001 - pyarrow raises what its libraries raise
        return _by_fsspec(fs, uri, error)
    return files, path


def _by_fsspec(fs: Any, uri: str, error: Exception) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs

        found, path = url_to_fs(uri)
    except Exception as other:
        reason = f"{str(error).strip()}; fsspec: {other}"
        raise InvalidConfiguration(
            f"there is no file system for the location {uri}: {reason}; use a path, or a URI as "
            "s3://bucket/path"
        ) from other
    return fs.PyFileSystem(fs.FSSpecHandler(found)), path


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


def _missing_directories(path: str) -> list[str]:
    """The directories of a path that are not there, the innermost first."""
    found = []
    while (path := os.path.dirname(path)) and not os.path.isdir(path):
        found.append(path)
    return found


_opened: Final[dict[tuple[str, int], Location]] = {}


def location_of(uri: str) -> Location:
    """The location of a URI; the same one for the same URI, but another one after a fork: connections belong
    to the parent. Errors as of `Location`."""
    key = uri, fork.GENERATION
    found = _opened.get(key)
    if found is None:
        if len(_opened) >= _MOST_KEPT:
            _opened.clear()
        found = _opened[key] = Location(uri)
    return found
