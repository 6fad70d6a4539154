"""The directory that a backup is written into: objects with the bytes of files, and the manifest, written
last.

A file that only grows has one object for life: a later backup appends to it what is new, behind the bytes
that the manifest before it counts. Every other file that changed gets a new object. So the backup before
stays whole until the new manifest is in place.
"""

from __future__ import annotations

import os
from typing import Final
from zlib import crc32

from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, NotAllowedError
from embeddedpulsar.platform import descriptors, disk, failpoints, filesystem
from embeddedpulsar.platform.filesystem import DirectoryLease
from embeddedpulsar.topic.care.backup_manifest import MANIFEST, FileRecord, Manifest, read_manifest
from embeddedpulsar.topic.care.care_progress import ProgressMeter

OBJECTS: Final = "objects"
_CHUNK: Final = 1 << 20
_LEFTOVER: Final = ".tmp"

failpoints.declare("backup:object_written", "backup:objects_done", "backup:manifest_written", "backup:swept")


class BackupTarget:
    """Role: takes the files of a store, one after the other. Invariants: bytes that the manifest in place
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
        try:
            if not self._lease.try_exclusive():
                raise NotAllowedError(
                    f"another process makes or restores a backup in {path}; wait for its end"
                )
            self.before: Final = read_manifest(path)
            foreign = sorted(set(descriptors.names_in(path)) - {MANIFEST, OBJECTS})
            foreign = [name for name in foreign if not name.endswith(_LEFTOVER)]
            if foreign:
                reason = f"it is no directory of backups: it holds {foreign[0]}"
                raise ForeignFileError(path=path, reason=reason, remedy="choose an empty or new directory")
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
        known, crc = self._known(path), crc32(data)
        size = max(size, len(data))
        if known is not None and (known.length, known.size, known.crc) == (len(data), size, crc):
            self._note(known)
            return
        record = FileRecord(path, self._new_object(), len(data), size, crc)
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
        known = self._known(path)
        fd = disk.DISK.open_file(source, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            if size < length:
                raise CorruptionError(path=source, reason=f"it has {size} bytes, not {length}")
            identity = crc32(disk.DISK.pread(fd, min(head, length), 0))
            if known is None or known.identity != identity or known.length > length:
                known = FileRecord(path, self._new_object(), 0, 0, 0, identity)
            record = known._replace(length=length, size=size)
            if known.length == length:
                self._note(record)
                return False
            self._finish(record._replace(crc=self._append(fd, known, length)))
        finally:
            os.close(fd)
        return True

    def take_unchanging(self, path: str, source: str) -> None:
        """Take a file that is never changed under its name.

        Raises:
            FileNotFoundError: it is gone.
        """
        known = self._known(path)
        fd = disk.DISK.open_file(source, os.O_RDONLY)
        try:
            status = os.fstat(fd)
            identity = crc32(f"{status.st_mtime_ns} {status.st_ino} {status.st_size}".encode()) or 1
            if known is not None and known.identity == identity:
                self._note(known)
                return
            record = FileRecord(path, self._new_object(), 0, status.st_size, 0, identity)
            crc = self._append(fd, record, status.st_size)
            self._finish(record._replace(length=status.st_size, crc=crc))
        finally:
            os.close(fd)

    def keep(self, path: str) -> bool:
        """Take a file as the backup before has it; returns whether it has it."""
        known = self._known(path)
        if known is not None:
            self._note(known)
        return known is not None

    def drop(self, directory: str) -> None:
        """Forget the files that were taken of a directory. What was copied of them is not copied again."""
        for path in [path for path in self.records if path.startswith(f"{directory}/")]:
            del self.records[path]

    def forget(self, path: str) -> None:
        """Forget a file that was taken."""
        self.records.pop(path, None)

    def _note(self, record: FileRecord) -> None:
        self.records[record.path] = self._taken[record.path] = record

    def _append(self, fd: int, known: FileRecord, length: int) -> int:
        crc, at = known.crc, known.length
        while at < length:
            data = disk.DISK.pread(fd, min(_CHUNK, length - at), at)
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
        self._note(record)
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

    def _sweep(self, needed: set[str]) -> None:
        objects = os.path.join(self._path, OBJECTS)
        for name in descriptors.names_in(self._path):
            if name.endswith(_LEFTOVER):
                disk.DISK.unlink(os.path.join(self._path, name))
        for folder in descriptors.names_in(objects) if os.path.isdir(objects) else ():
            for name in descriptors.names_in(os.path.join(objects, folder)):
                if f"{folder}/{name}" not in needed:
                    disk.DISK.unlink(os.path.join(objects, folder, name))

    def close(self) -> None:
        """Let others use the directory. Idempotent."""
        self._lease.close()
