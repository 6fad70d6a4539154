"""Moving one closed ledger to a location, removing its log here, and removing it there.

Each step of `upload` is followed by a failpoint. Whatever dies between two of them leaves the log here, and a
note that says which objects may be in the location; the next attempt removes these and begins again, under
other names. The log goes only after all objects were read back and compared, in `release`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from typing import Any, BinaryIO, Final
from zlib import crc32

from embeddedpulsar._engine.cold.fetching import ENDINGS, FRAMES, MANIFEST, MESSAGES, verify
from embeddedpulsar._engine.cold.frames import read_frames, write_frames
from embeddedpulsar._engine.cold.location import Location, LocationError, make_owner
from embeddedpulsar._engine.format.segment_header import (
    FIRST_FRAME_OFFSET,
    SEGMENT_HEADER_SIZE,
    SLOT_SIZE,
    SLOTS_OFFSET,
)
from embeddedpulsar._engine.log.cold_ledger import OFFLOADED, REMOVING, UPLOADING, ColdLedger, ColdObject
from embeddedpulsar._engine.log.filenames import cold_path, index_path, log_path
from embeddedpulsar._engine.log.segments import ClosedLedger
from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar._engine.platform.ownership import Rights, rights_in
from embeddedpulsar.arrow.damage import raise_damage, raise_gone
from embeddedpulsar.arrow.mapped_segment import open_ahead
from embeddedpulsar.arrow.plan import EntryRange
from embeddedpulsar.arrow.schema import UnreadableMessage
from embeddedpulsar.damage import DamageHook
from embeddedpulsar.exceptions import CorruptionError, CryptoError, StorageError
from embeddedpulsar.offload.message_table import write_messages
from embeddedpulsar.records import NamedTuple

failpoints.declare(
    "offload:noted",
    "offload:encoded",
    "offload:object_written",
    "offload:verified",
    "offload:manifest_written",
    "offload:published",
    "offload:release_noted",
    "offload:log_unlinked",
    "offload:removal_noted",
    "offload:object_removed",
    "offload:note_unlinked",
)

VERSION: Final = 1


class LedgerSource(NamedTuple):
    """The topic whose ledgers are offloaded.

    Attributes:
        directory: of the topic.
        topic: full name.
        partition: -1 for none.
        folder: where its objects lie in a location.
        wall_ms: the time.
        check: raises if the work is to end: the topic is deleted or closed.
        leftovers: the directory ``offloaded`` of the store.
        report: called with damage.
    """

    directory: str
    topic: str
    partition: int
    folder: str
    wall_ms: Callable[[], int]
    check: Callable[[], object]
    leftovers: str
    report: DamageHook

    def rights(self) -> Rights:
        """Owner, group and mode of objects: those of the store."""
        return rights_in(os.path.dirname(self.leftovers))


class _Table(NamedTuple):
    """A file that is to be an object, in a file without a name."""

    ending: str
    file: BinaryIO


def upload(source: LedgerSource, location: Location, ledger: ClosedLedger, log_start: int) -> ColdLedger:
    """Copy a closed ledger to the location; returns the note, of which the log is still here.

    Raises:
        LocationError: the location failed, or gives back something else. Nothing has changed.
        StorageError: the ledger is damaged, or the disk is full. Nothing has changed.
    """
    prefix = f"{source.folder}/{ledger.ledger_id:020d}-{os.urandom(6).hex()}"
    owner, rights = make_owner(source.leftovers, source.report), source.rights()
    noted_ms = source.wall_ms()
    note = ColdLedger(ledger.ledger_id, UPLOADING, source.topic, location.uri, prefix, noted_ms, owner=owner)
    note.write(source.directory)
    failpoints.hit("offload:noted")
    try:
        with contextlib.ExitStack() as opened:
            note, tables = _encoded(source, ledger, log_start, note, opened)
            failpoints.hit("offload:encoded")
            for one, table in zip(note.objects, tables, strict=True):
                source.check()
                location.write(one.name, table.file, rights)
                failpoints.hit("offload:object_written")
        verify(note, location)
        failpoints.hit("offload:verified")
        source.check()
        # The manifest is the last: what has one is whole.
        manifest = _manifest(note)
        with tempfile.TemporaryFile() as file:
            file.write(manifest)
            location.write(prefix + MANIFEST, file, rights)
        if location.read(prefix + MANIFEST, len(manifest) + 1) != manifest:
            raise LocationError(f"{location.path(prefix + MANIFEST)} is not what was stored")
        failpoints.hit("offload:manifest_written")
        source.check()
        note = note._replace(state=OFFLOADED, noted_ms=source.wall_ms())
        note.write(source.directory)
    except Exception:
        # The next attempt removes what is left, unless the topic was deleted, and the note with it.
        with contextlib.suppress(LocationError, StorageError, OSError):
            discard(source, note, location)
        raise
    failpoints.hit("offload:published")
    return note


def _encoded(
    source: LedgerSource, ledger: ClosedLedger, log_start: int, note: ColdLedger, opened: contextlib.ExitStack
) -> tuple[ColdLedger, list[_Table]]:
    """The tables of a ledger, from which its log was put together again as it is; and the note of them."""
    path, end = log_path(source.directory, ledger.ledger_id), ledger.end_offset
    mapped = MappedFile.open(path, writable=False)
    opened.callback(mapped.close)
    if mapped.size < end:
        raise CorruptionError(
            path=path, reason=f"the segment has {mapped.size} bytes, and {end} were committed"
        )
    messages: BinaryIO | None = opened.enter_context(tempfile.TemporaryFile(dir=source.directory))
    frames = opened.enter_context(tempfile.TemporaryFile(dir=source.directory))
    planned = EntryRange(
        *(
            source.topic,
            source.partition,
            ledger.ledger_id,
            path,
            index_path(source.directory, ledger.ledger_id),
        ),
        *(0, ledger.last_entry_id + 1, FIRST_FRAME_OFFSET, end),
        log_start=log_start,
    )
    try:
        rows = write_messages(open_ahead([planned], None, raise_gone), messages, raise_damage)
    except (CryptoError, NotImplementedError, ImportError, UnreadableMessage):  # only a consumer can read it
        messages, rows = None, -1
    with mapped.view[:end] as view:
        digest = write_frames(view, FIRST_FRAME_OFFSET, end, messages is not None, frames)
        header = bytes(view[:SEGMENT_HEADER_SIZE])
    if _digest_of(frames, messages) != digest:
        # Values that a table cannot hold, say of null messages with a payload: then the frames are whole.
        messages, rows = None, -1
        frames = opened.enter_context(tempfile.TemporaryFile(dir=source.directory))
        with mapped.view[:end] as view:
            write_frames(view, FIRST_FRAME_OFFSET, end, False, frames)
        if _digest_of(frames, None) != digest:
            raise CorruptionError(
                path=path, reason="the frames read back from a table are not those of the log"
            )
    tables = [_Table(FRAMES, frames), *([_Table(MESSAGES, messages)] if messages is not None else [])]
    objects = tuple(_object(note.prefix, table) for table in tables)
    note = note._replace(
        header=header.rstrip(b"\0"),
        end_offset=end,
        entries=ledger.last_entry_id + 1,
        last_crc=ledger.last_crc,
        messages=ledger.messages,
        log_digest=digest,
        index_crc=_flushed_index_crc(planned),
        rows=rows,
        objects=objects,
    )
    return note, tables


def _digest_of(frames: BinaryIO, messages: BinaryIO | None) -> str:
    digest = hashlib.sha256()
    try:
        for frame in read_frames(frames, messages):
            digest.update(frame)
    except CorruptionError as error:
        return error.reason
    return digest.hexdigest()


def _object(prefix: str, table: _Table) -> ColdObject:
    digest, size = hashlib.sha256(), 0
    table.file.seek(0)
    while chunk := table.file.read(1 << 20):
        digest.update(chunk)
        size += len(chunk)
    return ColdObject(prefix + table.ending, size, digest.hexdigest())


def _flushed_index_crc(planned: EntryRange) -> int:
    """The checksum of the slots of the index, which the disk has when this returns: without the log, nothing
    could derive them."""
    fd = disk.DISK.open_file(planned.index_path, os.O_RDWR)
    try:
        disk.DISK.fsync(fd, planned.index_path)
        data = disk.DISK.pread(fd, SLOT_SIZE * planned.end_entry, SLOTS_OFFSET)
    finally:
        os.close(fd)
    return crc32(data)


def _manifest(note: ColdLedger) -> bytes:
    fields: dict[str, Any] = note.fields() | {"version": VERSION, "header": note.header.hex()}
    for one in ("state", "released_ms", "is_shared", "index_crc"):
        del fields[one]
    return json.dumps(fields, indent=1).encode()


def release(directory: str, note: ColdLedger, location: Location, now_ms: int, *, is_verified: bool) -> None:
    """Remove the log of an offloaded ledger here, unless its objects are not what was stored.

    Args:
        is_verified: whether they were read a moment ago.

    Raises:
        LocationError: they cannot be read, or are damaged. The log stays.
    """
    if not is_verified:
        verify(note, location)
    if not note.released_ms:
        note._replace(released_ms=now_ms).write(directory)
        failpoints.hit("offload:release_noted")
    with contextlib.suppress(FileNotFoundError):
        disk.DISK.unlink(log_path(directory, note.ledger_id))
    failpoints.hit("offload:log_unlinked")


def discard(source: LedgerSource, note: ColdLedger, location: Location | None) -> None:
    """Remove the objects of a ledger from its location, and then the note of it. May be repeated.

    Args:
        source: the topic.
        note: of the ledger.
        location: None if the objects are to stay, because another store made them or counts on them.

    Raises:
        LocationError: the location failed. The note stays.
    """
    if note.state == OFFLOADED:
        note = note._replace(state=REMOVING)
        note.write(source.directory)
        failpoints.hit("offload:removal_noted")
    if location is not None:
        for ending in ENDINGS:
            location.delete(note.prefix + ending, source.rights())
            failpoints.hit("offload:object_removed")
    with contextlib.suppress(FileNotFoundError):
        disk.DISK.unlink(cold_path(source.directory, note.ledger_id))
    failpoints.hit("offload:note_unlinked")
