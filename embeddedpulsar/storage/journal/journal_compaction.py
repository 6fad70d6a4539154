"""Writing a new generation of a journal: the steps, in the order that survives a crash between any two.

(a) write the snapshot under another name, (b) flush it, (c) create the journal that starts from it,
flushed, (d) give the snapshot its name, (e) flush the directory. Then `Journal` does (f), the commit
word, and (g) `sweep`. Until (f) the old generation is the state; after (e) both are, and say the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from embeddedpulsar.format.document import document_crc
from embeddedpulsar.format.journal_record import JournalHeader, pack_journal_header, pack_record
from embeddedpulsar.format.record_types import BASE, JournalBase, encode_base
from embeddedpulsar.platform import descriptors, disk, failpoints
from embeddedpulsar.storage.filenames import NEW_SUFFIX, journal_path, snapshot_path, under_construction
from embeddedpulsar.storage.journal.journal_file import generations

Record = tuple[int, bytes]
"""Type and payload of a command."""
_END_MARK: Final = bytes(8)  # bytes a dead writer left further on never look like a record that follows

failpoints.declare("compact:snapshot_written", "compact:snapshot_synced", "compact:journal_created")
failpoints.declare("compact:snapshot_renamed", "compact:directory_synced")


def write_generation(
    directory: str, generation: int, owner_kind: int, snapshot: bytes, base: JournalBase, time_ms: int
) -> tuple[int, int, int]:
    """Steps (a) to (e). Returns (descriptor of the journal, its end offset, the crc its next record
    continues).
    """
    path = snapshot_path(directory, generation)
    building = under_construction(path)
    for stray in (building, path, journal_path(directory, generation)):
        if os.path.lexists(stray):  # of a compaction that died before its step (f)
            disk.DISK.unlink(stray)
    _write_snapshot(building, snapshot)
    fd, end, crc = _create_journal(directory, generation, owner_kind, document_crc(snapshot), base, time_ms)
    try:
        failpoints.hit("compact:journal_created")
        disk.DISK.replace(building, path)
        failpoints.hit("compact:snapshot_renamed")
        disk.DISK.fsync_dir(directory)
        failpoints.hit("compact:directory_synced")
    except BaseException:
        os.close(fd)
        raise
    return fd, end, crc


def _write_snapshot(path: str, snapshot: bytes) -> None:
    fd = disk.DISK.create_exclusive(path)
    try:
        disk.DISK.pwrite_all(fd, [snapshot], 0)
        failpoints.hit("compact:snapshot_written")
        disk.DISK.fsync(fd, path)
        failpoints.hit("compact:snapshot_synced")
    finally:
        os.close(fd)


def _create_journal(
    directory: str, generation: int, owner_kind: int, snapshot_crc: int, base: JournalBase, time_ms: int
) -> tuple[int, int, int]:
    path = journal_path(directory, generation)
    seed = int.from_bytes(os.urandom(4), "little")
    header = pack_journal_header(JournalHeader(generation, seed, snapshot_crc, owner_kind))
    fd = disk.DISK.create_exclusive(path)
    try:
        end, crc = write_records(fd, 0, seed, [(BASE, encode_base(base))], time_ms, header)
        disk.DISK.fsync(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd, end, crc


def write_records(
    fd: int, at: int, crc: int, commands: Sequence[Record], time_ms: int, front: bytes = b""
) -> tuple[int, int]:
    """Write records that continue ``crc``, behind ``front``, and a mark behind them.

    Returns:
        (end offset, crc of the last record).
    """
    parts = [front] if front else []
    for kind, payload in commands:
        record, crc = pack_record(kind, payload, crc, time_ms)
        parts.append(record)
    parts.append(_END_MARK)
    return at + disk.DISK.pwrite_all(fd, parts, at) - len(_END_MARK), crc


def sweep(directory: str, journals: Sequence[int], snapshots: Sequence[int]) -> int:
    """Remove every journal and snapshot but those generations, and what was under construction.

    Returns:
        How many files.
    """
    all_journals, all_snapshots = generations(directory)
    unwanted = [journal_path(directory, each) for each in all_journals if each not in journals]
    unwanted += [snapshot_path(directory, each) for each in all_snapshots if each not in snapshots]
    names = descriptors.names_in(directory)
    unwanted += [os.path.join(directory, name) for name in names if name.endswith(NEW_SUFFIX)]
    for path in unwanted:
        disk.DISK.unlink(path)
    return len(unwanted)
