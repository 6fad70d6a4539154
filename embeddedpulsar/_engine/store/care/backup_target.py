"""The directory that a backup is written into: objects with the bytes of files, and the manifest, written
last.

A file that only grows has one object for life: a later backup appends to it what is new, behind the bytes
that the manifest before it counts. Every other file that changed gets a new object. So the backup before
stays whole until the new manifest is in place.

An object is used again only for the file that it was copied from. Each record has a digest of what tells
lives of a name apart: the inode and the header of a file that grows, the whole content of a small one, inode
and times of a large one that never changes. A checksum would not do: over bytes that end with their own
CRC-32 it is a constant. Inodes are given out again, and a header may come again after a power loss, so the
end of the bytes that are there is compared with the object as well.

The manifest of a backup: which files the store had, and where their bytes are (docs/format/backup.md).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from hashlib import blake2b
from typing import Any, Final
from zlib import crc32

from embeddedpulsar._engine.platform import descriptors, disk, failpoints, filesystem
from embeddedpulsar._engine.platform.filesystem import DirectoryLease
from embeddedpulsar._engine.store.care.store_check import ProgressMeter
from embeddedpulsar.exceptions import (
    CorruptionError,
    ForeignFileError,
    NotAllowedError,
    UnsupportedFormatVersion,
)
from embeddedpulsar.records import NamedTuple

MANIFEST: Final = "manifest"
BACKUP_FORMAT: Final = 1
_FORMAT_NAME: Final = "embeddedpulsar backup"
_REMEDY: Final = "make a new backup into an empty directory"


_OBJECT: Final = re.compile("[0-9a-f]{2}/[0-9a-f]+")


class FileRecord(NamedTuple):
    """One file of the store.

    Attributes:
        path: below the root of the store.
        object: where its bytes are, below ``objects``.
        length: how many of them count.
        size: length of the file; behind the bytes it reads as zeros.
        crc: CRC-32 of the bytes.
        identity: a digest of 64 bits with the highest bit set, of what tells the file from another one of its
            name: see `BackupTarget`. Releases that had a CRC-32 there, or 0, wrote smaller numbers; their
            objects are read, and not used again.
    """

    path: str
    object: str
    length: int
    size: int
    crc: int
    identity: int = 0


class Manifest(NamedTuple):
    """What one backup holds.

    Attributes:
        store_id: of the store, in hexadecimal digits.
        created_ms: when the backup began, in ms since 1970.
        next_ledger_id: at least the next id that the store would have given to a ledger.
        next_client_number: the same for clients.
        topics: how many topics there are.
        files: the files of the store, by their paths.
    """

    store_id: str
    created_ms: int
    next_ledger_id: int
    next_client_number: int
    topics: int
    files: dict[str, FileRecord]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(record.length for record in self.files.values())

    def write(self, target: str) -> None:
        """Let the backup in ``target`` be this one. Durable and atomic: until then it is the one before."""
        lines = [json.dumps(record, separators=(",", ":")) + "\n" for record in self.files.values()]
        body = "".join(lines).encode()
        # Two checksums: the first line must be believed before the count and the checksum in it are.
        head: dict[str, Any] = {"name": _FORMAT_NAME, "format": BACKUP_FORMAT, **self._asdict()}
        head |= {"files": len(self.files), "crc": crc32(body)}
        front = json.dumps(head).encode()
        head_crc = f"{crc32(front):08x}\n".encode()
        # The one step that makes the backup this one: before it the directory holds the backup before, after
        # it the new one. What either no longer names is removed afterwards, or by the next backup.
        disk.DISK.atomic_write(os.path.join(target, MANIFEST), front + b"\n" + head_crc + body, durable=True)


def _is_below(path: str) -> bool:
    parts = path.split("/")
    return not {"", os.curdir, os.pardir} & set(parts) and "\0" not in path


def read_manifest(target: str) -> Manifest | None:
    """The manifest of the backup in a directory; None if there is none.

    Raises:
        CorruptionError: it is damaged.
        ForeignFileError: it is something else.
        UnsupportedFormatVersion: a newer release wrote it.
    """
    path = os.path.join(target, MANIFEST)
    # Read as a whole: records are small, and a manifest that is cut off must not pass for a shorter one.
    try:
        data = disk.DISK.read_file(path)
    except FileNotFoundError:
        return None
    try:
        front, head_crc, body = data.split(b"\n", 2)
        head = json.loads(front)
        # The name and the format come before the checksums: a foreign file is no damaged manifest, and a
        # newer format may count its checksums in another way.
        if head["name"] != _FORMAT_NAME:
            raise ForeignFileError(path=path, reason="it is no manifest of a backup", remedy=_REMEDY)
        if head["format"] > BACKUP_FORMAT:
            reason = f"this backup has format {head['format']}; this release knows up to {BACKUP_FORMAT}"
            raise UnsupportedFormatVersion(path=path, reason=reason, remedy="upgrade embeddedpulsar")
        # Over the records as bytes, so that nothing of them is parsed that was not written so.
        if int(head_crc, 16) != crc32(front) or head["crc"] != crc32(body):
            raise ValueError("its checksum is wrong")
        records = [FileRecord(*json.loads(line)) for line in body.splitlines()]
        # Paths of a manifest become paths of the restored store. One that leads out of it would let a changed
        # backup write anywhere.
        for record in records:
            if not _OBJECT.fullmatch(record.object) or not _is_below(record.path):
                raise ValueError(f"it names the file {record.path!r}, kept as {record.object!r}")
        head["files"] = {record.path: record for record in records}
        return Manifest(*(head[name] for name in Manifest._fields))
    except (ValueError, KeyError, TypeError) as e:
        # What a changed or cut manifest raises depends on where it is damaged.
        raise CorruptionError(path=path, reason=f"the manifest is damaged: {e}", remedy=_REMEDY) from None


OBJECTS: Final = "objects"
_CHUNK: Final = 1 << 20
_LEFTOVER: Final = ".tmp"
_SMALL: Final = 1 << 16
"""Bytes of a file that is compared as a whole."""
_COMPARED: Final = 4096
"""Bytes before the end of an object that are compared with the file."""

failpoints.declare("backup:object_written", "backup:objects_done", "backup:manifest_written", "backup:swept")


class BackupTarget:
    """Takes the files of a store, one after the other. Invariants: bytes that the manifest in place
    counts are never changed. One process at a time writes into a target; a lock on the directory ensures it.
    Callers: one thread.

    Attributes:
        before: the manifest of the backup before; None for the first.
        records: the files that were taken.
        copied: bytes that were copied.
    """

    def __init__(self, path: str, meter: ProgressMeter) -> None:
        self._path: Final = path
        self._meter: Final = meter
        filesystem.make_directories(path)
        self._lease: Final = DirectoryLease.open(path)
        self.records: Final[dict[str, FileRecord]] = {}
        self.copied = 0
        self._taken: Final[dict[str, FileRecord]] = {}  # all that were, also if they were dropped since
        self._made: Final[set[str]] = set()
        self._written: Final[set[str]] = set()
        # A second process, or a restore, in the same target would use objects that this one removes.
        try:
            if not self._lease.try_exclusive():
                raise NotAllowedError(
                    f"another process makes or restores a backup in {path}; wait for its end"
                )
            self.before: Final = read_manifest(path)
            foreign = sorted(set(descriptors.names_in(path)) - {MANIFEST, OBJECTS})
            # A target is never a directory with anything else: its files would be in the way of a restore,
            # and a typing error in the path could make a backup inside of a store.
            foreign = [name for name in foreign if not name.endswith(_LEFTOVER)]
            if foreign:
                reason = f"it is no directory of backups: it holds {foreign[0]}"
                raise ForeignFileError(path=path, reason=reason, remedy="choose an empty or new directory")
            self.discard()  # what a backup left that was killed
        except BaseException:
            self._lease.close()
            raise

    def _known(self, path: str) -> FileRecord | None:
        known = self._taken.get(path)
        if known is None and self.before is not None:
            known = self.before.files.get(path)
        return known

    def take_bytes(self, path: str, data: bytes, size: int = 0) -> None:
        """Take a small file, of which this is the content."""
        # A file may be taken twice in one backup, since topics are copied again that moved; what this backup
        # took counts before the backup before.
        # The content decides for a small file: its times say nothing, because such files are replaced as a
        # whole.
        known, size, identity = self._known(path), max(size, len(data)), _digest(data)
        if known is not None and (known.size, known.identity) == (size, identity) and self._has(known):
            self._record(known)
            return
        record = FileRecord(path, self._new_object(), len(data), size, crc32(data), identity)
        self._write(record.object, 0, data)
        self._finish(record)

    def take_grown(self, path: str, source: str, length: int, head: int) -> bool:
        """Take the first bytes of a file that only grows.

        Args:
            path: below the root of the store.
            source: the file.
            length: how many bytes count; they do not change any more.
            head: how many bytes, at the beginning, no other file has.

        Returns:
            Whether there was anything new.

        Raises:
            FileNotFoundError: it is gone.
            CorruptionError: it is shorter.
        """
        # The case of a segment: what was copied stays as it is, and only what is new is appended to its
        # object.
        known = self._known(path)
        fd = disk.DISK.open_file(source, os.O_RDONLY)
        try:
            status = os.fstat(fd)
            size = status.st_size
            if size < length:
                raise CorruptionError(path=source, reason=f"it has {size} bytes, not {length}")
            header = disk.DISK.pread(fd, min(head, length), 0)
            identity = _digest(f"{status.st_ino} ".encode(), header)
            # Four reasons to copy it anew: it was never copied; it is another file under the name, by inode
            # and header; the manifest counts more bytes than the file has to give, as after a restore from an
            # older backup; or its last bytes are not those of the file.
            if (
                known is None
                or known.identity != identity
                or known.length > length
                or not self._ends_alike(fd, known)
            ):
                known = FileRecord(path, self._new_object(), 0, 0, 0, identity)
            record = known._replace(length=length, size=size)
            # Nothing new. The record is noted all the same, since the size of the file may have changed.
            if known.length == length:
                self._record(record)
                return False
            # The object grows before the manifest counts the new bytes. A kill between leaves bytes behind
            # the length of the manifest in place, which nothing reads and the next backup writes again.
            self._finish(record._replace(crc=self._append(fd, known, length)))
        finally:
            os.close(fd)
        return True

    def take_unchanging(self, path: str, source: str) -> None:
        """Take a file that is never changed under its name, or replaced as a whole.

        Raises:
            FileNotFoundError: it is gone.
        """
        fd = disk.DISK.open_file(source, os.O_RDONLY)
        try:
            status = os.fstat(fd)
            # Inode and times may be the same for two files of one name, so a small file is compared as a
            # whole.
            if status.st_size <= _SMALL:
                self.take_bytes(path, disk.DISK.pread(fd, status.st_size, 0))
                return
            known, identity = self._known(path), _identity_of(status)
            if known is not None and known.identity == identity and self._ends_alike(fd, known):
                self._record(known)
                return
            record = FileRecord(path, self._new_object(), 0, status.st_size, 0, identity)
            crc = self._append(fd, record, status.st_size)
            self._finish(record._replace(length=status.st_size, crc=crc))
        finally:
            os.close(fd)

    def take_derived(self, path: str, source: str, end: int | None, *, is_new: bool) -> None:
        """Take a file that says anew what another one says, its index.

        Args:
            path: below the root of the store.
            source: the file.
            end: how many bytes count; None for all.
            is_new: the other file has grown, or is another: pages of the index that are mapped change without
                a time.

        Raises:
            FileNotFoundError: it is gone.
        """
        known = self._known(path)
        fd = disk.DISK.open_file(source, os.O_RDONLY)
        try:
            status = os.fstat(fd)
            identity = _identity_of(status)
            # An index says what its segment says, so it is copied again whenever the segment has grown; a
            # page of it that is mapped changes without a time.
            if not is_new and known is not None and known.identity == identity and self._has(known):
                self._record(known)
                return
            data = disk.DISK.pread(fd, status.st_size if end is None else end, 0)
        finally:
            os.close(fd)
        size = max(status.st_size, len(data))
        record = FileRecord(path, self._new_object(), len(data), size, crc32(data), identity)
        self._write(record.object, 0, data)
        self._finish(record)

    def _has(self, known: FileRecord) -> bool:
        """Whether the object of a record is there, as long as it says."""
        try:
            return not known.length or os.path.getsize(self._object_path(known.object)) >= known.length
        except FileNotFoundError:
            return False

    def _ends_alike(self, fd: int, known: FileRecord) -> bool:
        """Whether the last bytes of an object are at the same place of a file."""
        if not known.length:
            return True
        # The last bytes alone: the whole of a segment would be read at every backup.
        at = max(0, known.length - _COMPARED)
        try:
            copy = disk.DISK.open_file(self._object_path(known.object), os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            data = disk.DISK.pread(copy, known.length - at, at)
        finally:
            os.close(copy)
        return len(data) == known.length - at and data == disk.DISK.pread(fd, known.length - at, at)

    def drop(self, directory: str) -> None:
        """Forget the files that were taken of a directory. What was copied of them is not copied again."""
        # The topic is copied again, from its beginning; objects stay, so what has not changed is not copied
        # twice.
        for path in [path for path in self.records if path.startswith(f"{directory}/")]:
            del self.records[path]

    def drop_record(self, path: str) -> None:
        """Forget a file that was taken."""
        self.records.pop(path, None)

    def _record(self, record: FileRecord) -> None:
        self.records[record.path] = self._taken[record.path] = record

    def _append(self, fd: int, known: FileRecord, length: int) -> int:
        crc, at = known.crc, known.length
        # A MiB at a time: a segment need not fit into memory, and the meter shows progress.
        while at < length:
            data = disk.DISK.pread(fd, min(_CHUNK, length - at), at)
            # A segment is never shortened; if it is, the copy has a hole and is given up.
            if not data:
                raise CorruptionError(path=known.path, reason="it became shorter while it was read")
            crc = crc32(data, crc)
            self._write(known.object, at, data)
            at += len(data)
            self._meter.read(len(data))
        return crc

    def _new_object(self) -> str:
        name = os.urandom(8).hex()
        return f"{name[:2]}/{name}"

    def _object_path(self, name: str) -> str:
        return os.path.join(self._path, OBJECTS, *name.split("/"))

    def _write(self, name: str, offset: int, data: bytes) -> None:
        path = self._object_path(name)
        directory = os.path.dirname(path)
        if directory not in self._made:
            filesystem.make_directories(directory, mode=None)
            self._made.add(directory)
        fd = disk.DISK.open_file(path, os.O_WRONLY | os.O_CREAT)
        try:
            disk.DISK.pwrite_all(fd, [data], offset)
        finally:
            os.close(fd)
        self.copied += len(data)

    def _finish(self, record: FileRecord) -> None:
        if record.length:
            self._written.add(self._object_path(record.object))
        self._record(record)
        failpoints.hit("backup:object_written")

    def publish(self, manifest: Manifest) -> None:
        """Make the files that were taken the backup, and remove what only the one before needed."""
        # 1. The objects, and their names.
        disk.DISK.flush_files(sorted(self._written))
        for directory in sorted(self._made):
            disk.DISK.fsync_dir(directory)
        if self._made:
            disk.DISK.fsync_dir(os.path.join(self._path, OBJECTS))
        failpoints.hit("backup:objects_done")
        # 2. The manifest. From here on the new backup is what there is.
        manifest.write(self._path)
        failpoints.hit("backup:manifest_written")
        # 3. What is not needed any more. A crash leaves it to the next backup.
        self._sweep({record.object for record in manifest.files.values()})
        failpoints.hit("backup:swept")

    def discard(self) -> None:
        """Remove what the backup in place does not need, so that a full disk has room again."""
        before = {} if self.before is None else self.before.files
        self._sweep({record.object for record in before.values()})

    def _sweep(self, needed: set[str]) -> None:
        objects = os.path.join(self._path, OBJECTS)
        for name in descriptors.names_in(self._path):
            if name.endswith(_LEFTOVER):
                disk.DISK.unlink(os.path.join(self._path, name))
        for folder in descriptors.names_in(objects) if os.path.isdir(objects) else ():
            for name in descriptors.names_in(os.path.join(objects, folder)):
                if f"{folder}/{name}" not in needed:
                    with contextlib.suppress(FileNotFoundError):
                        disk.DISK.unlink(os.path.join(objects, folder, name))

    def close(self) -> None:
        """Let others use the directory. Idempotent."""
        self._lease.close()


def _digest(*parts: bytes) -> int:
    """A digest of 64 bits, the highest set: no number of a release that had 32 equals it."""
    return int.from_bytes(blake2b(b"".join(parts), digest_size=8).digest(), "little") | 1 << 63


def _identity_of(status: os.stat_result) -> int:
    """A digest that changes when a file is replaced, or written to at another time."""
    times = f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
    return _digest(times.encode())
