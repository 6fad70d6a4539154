"""Makes a store of a backup, in a directory of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, Final
from zlib import crc32

from embeddedpulsar._engine.format.control import (
    CONTROL_SIZE,
    KIND_STORE,
    KIND_TOPIC,
    ControlHeader,
    StoreWord,
    pack_control_header,
)
from embeddedpulsar._engine.log import filenames
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, filesystem, nofollow
from embeddedpulsar._engine.platform.filesystem import DirectoryLease
from embeddedpulsar._engine.store.care.backup_target import OBJECTS, FileRecord, Manifest, read_manifest
from embeddedpulsar._engine.store.care.store_check import CareProgress, ProgressMeter
from embeddedpulsar._engine.store.catalog import root_layout
from embeddedpulsar._engine.store.catalog.catalog import Catalog
from embeddedpulsar._engine.store.catalog.topic_places import remove_tree, write_meta
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, NotAllowedError
from embeddedpulsar.records import NamedTuple

_CHUNK: Final = 1 << 20
_NOTHING: Final[Any] = None  # in place of a lock, for a catalog to which nothing is appended
_BUILDING: Final = ".restoring"
_ROOM: Final = 1 << 16
"""Ledger ids that the store may have given out since the backup; they do not come twice."""

failpoints.declare("restore:copied", "restore:described", "restore:renamed")


class RestoreReport(NamedTuple):
    """What was restored.

    Attributes:
        path: the directory of the new store.
        created_ms: when the backup was begun, in ms since 1970.
        topics: topics and partitions.
        files: files of the store.
        size: bytes of them.
    """

    path: str
    created_ms: int
    topics: int
    files: int
    size: int


def restore_store(
    source: str, target: str, on_progress: Callable[[CareProgress], object] | None = None
) -> RestoreReport:
    """See `Admin.restore`."""
    source, target = nofollow.canonical(source), nofollow.canonical(target)
    manifest = read_manifest(source)
    if manifest is None:
        raise ForeignFileError(
            path=source, reason="there is no backup", remedy="name a directory as given to backup"
        )
    if os.path.lexists(target) and (not os.path.isdir(target) or os.listdir(target)):
        raise NotAllowedError(f"{target} is there, and not an empty directory; choose another one")
    building = target + _BUILDING
    filesystem.make_directories(os.path.dirname(target))
    origin = DirectoryLease.open(source)
    lease = _begin(building)
    try:
        if not origin.try_shared():
            raise NotAllowedError(f"a backup is being made in {source}; wait for its end")
        meter = ProgressMeter("restoring", on_progress)
        for name in root_layout.DIRECTORIES:
            filesystem.make_directories(root_layout.in_root(building, name), mode=None)
        for record in manifest.files.values():
            _copy(source, building, record, meter)
        failpoints.hit("restore:copied")
        _describe(building, manifest, meter)
        failpoints.hit("restore:described")
        found = list(nofollow.tree(building))
        disk.DISK.flush_files([os.path.join(one.path, name) for one in found for name in one.files])
        for one in found:
            disk.DISK.fsync_dir(one.path)
        disk.DISK.replace(building, target)
        failpoints.hit("restore:renamed")
        disk.DISK.fsync_dir(os.path.dirname(target))
    except BaseException:
        remove_tree(building)
        raise
    finally:
        lease.close()
        origin.close()
    return RestoreReport(target, manifest.created_ms, manifest.topics, len(manifest.files), manifest.size)


def _begin(building: str) -> DirectoryLease:
    """An empty directory to build in, which no other process uses; what a killed one left goes."""
    if os.path.isdir(building):
        lease = DirectoryLease.open(building)
        try:
            if not lease.try_exclusive():
                raise NotAllowedError(f"another process restores into {building}; wait for its end")
            remove_tree(building)
        finally:
            lease.close()
    filesystem.make_directories(building)
    lease = DirectoryLease.open(building)
    if not lease.try_exclusive():
        lease.close()
        raise NotAllowedError(f"another process restores into {building}; wait for its end")
    return lease


def _copy(source: str, building: str, record: FileRecord, meter: ProgressMeter) -> None:
    """Copy a file, verifying its checksum."""
    path = os.path.normpath(os.path.join(building, record.path))
    if not path.startswith(building + os.sep):
        raise CorruptionError(path=source, reason=f"the manifest names {record.path}, outside of the store")
    filesystem.make_directories(os.path.dirname(path), mode=None)
    fd = disk.DISK.create_exclusive(path)
    try:
        crc = _copy_bytes(os.path.join(source, OBJECTS, *record.object.split("/")), fd, record, meter)
        if crc != record.crc:
            raise CorruptionError(
                path=os.path.join(source, OBJECTS, record.object),
                reason=f"the copy of {record.path} is damaged: its checksum is wrong",
                remedy="restore from another backup",
            )
        disk.DISK.truncate_new(fd, record.size)
    finally:
        os.close(fd)


def _copy_bytes(origin: str, fd: int, record: FileRecord, meter: ProgressMeter) -> int:
    crc = at = 0
    if not record.length:
        return crc
    try:
        reading = disk.DISK.open_file(origin, os.O_RDONLY)
    except FileNotFoundError:
        raise CorruptionError(path=origin, reason=f"the copy of {record.path} is missing") from None
    try:
        while at < record.length:
            data = disk.DISK.pread(reading, min(_CHUNK, record.length - at), at)
            if not data:
                break
            crc = crc32(data, crc)
            disk.DISK.pwrite_all(fd, [data], at)
            at += len(data)
            meter.read(len(data))
    finally:
        os.close(reading)
    return crc


def _describe(building: str, manifest: Manifest, meter: ProgressMeter) -> None:
    """Write what a backup does not hold: directories and descriptions of topics, the numbers of the store."""
    path = root_layout.in_root(building, root_layout.CATALOG)
    with contextlib.closing(Catalog(path, _NOTHING, is_read_only=True)) as catalog:
        entries = catalog.topics()
    for number, entry in enumerate(entries):
        meter.topic(number + 1, len(entries))
        if not entry.is_made:
            continue  # its directory is made when it is first opened
        directory = os.path.join(root_layout.in_root(building, root_layout.TOPICS), entry.below_topics())
        filesystem.make_directories(directory, mode=None)
        names = descriptors.names_in(directory)
        if filenames.TOPIC_META not in names:
            write_meta(directory, entry, durable=False)
        if filenames.SUBSCRIPTIONS in names or filenames.ledgers_of(names) or _has_journal(names):
            _write_words(filenames.control_path(directory), KIND_TOPIC, entry.incarnation, {})
    numbers = {
        StoreWord.NEXT_LEDGER_ID: manifest.next_ledger_id + _ROOM,
        StoreWord.NEXT_CLIENT_NUMBER: manifest.next_client_number,
    }
    _write_words(root_layout.in_root(building, root_layout.CONTROL), KIND_STORE, 0, numbers)


def _has_journal(names: list[str]) -> bool:
    return any(filenames.parse_generation(name) is not None for name in names)


def _write_words(path: str, kind: int, incarnation: int, numbers: dict[int, int]) -> None:
    """Write control words of no boot: the next process that opens them derives them from the other files."""
    words = bytearray(CONTROL_SIZE)
    header = pack_control_header(ControlHeader(kind, bytes(16), 0, 0, incarnation))
    words[: len(header)] = header
    for word, number in numbers.items():
        words[8 * word : 8 * word + 8] = number.to_bytes(8, "little")
    disk.DISK.atomic_write(path, bytes(words), durable=False)
