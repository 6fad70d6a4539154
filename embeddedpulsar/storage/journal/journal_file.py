"""One generation of a journal as files: writing it in the order that survives a crash, and reading it.

(a) write the snapshot under another name, (b) flush it, (c) create the journal that starts from it,
flushed, (d) give the snapshot its name, (e) flush the directory. Then `Journal` does (f), the commit
word, and (g) `sweep`. Until (f) the old generation is the state; after (e) both are, and say the same.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from embeddedpulsar._engine.format.document import document_crc
from embeddedpulsar._engine.format.journal_record import (
    BASE,
    END,
    FIRST_RECORD_OFFSET,
    MAX_RECORD_SIZE,
    RECORD_SIZE,
    JournalBase,
    JournalHeader,
    JournalRecord,
    decode_base,
    encode_base,
    pack_journal_header,
    pack_record,
    parse_journal_header,
    read_record,
)
from embeddedpulsar._engine.platform import descriptors, disk, failpoints
from embeddedpulsar.damage import JOURNAL, Damage
from embeddedpulsar.exceptions import (
    CorruptionError,
    ForeignFileError,
    UnsupportedFormatVersion,
)
from embeddedpulsar.storage.filenames import (
    NEW_SUFFIX,
    journal_path,
    parse_generation,
    snapshot_path,
    under_construction,
)

_PREV_CRC: Final = struct.Struct("<I")
Record = tuple[int, bytes]
"""Type and payload of a command."""
_SECTOR: Final = 512  # what a disk writes as a whole
_END_MARK: Final = bytes(8)  # bytes a dead writer left further on never look like a record that follows

failpoints.declare("compact:snapshot_written", "compact:snapshot_synced", "compact:journal_created")
failpoints.declare("compact:snapshot_renamed", "compact:directory_synced")


class JournalFile:
    """The contents of one `journal.<generation>`, read at once.

    Role: what loading and recovery work on; appending is `Journal`'s. Changes nothing on disk. A header
    that does not verify leaves `header` None; the records behind it are still read, each by its own
    checksum. Callers: the holder of the lock of the directory.

    Args:
        directory: of the topic or subscription.
        generation: which journal.
        end: bytes that count, from the commit word; None for all there are (recovery).
    """

    def __init__(self, directory: str, generation: int, end: int | None = None) -> None:
        self.directory: Final = directory
        self.generation: Final = generation
        self.path: Final = journal_path(directory, generation)
        self.snapshot_path: Final = snapshot_path(directory, generation)
        self.data: Final = disk.DISK.read_file(self.path, end)
        self.damage: list[Damage] = []
        self.snapshot_size = 0
        self.header: JournalHeader | None = None
        self.is_empty: Final = not any(self.data)
        try:
            header = parse_journal_header(self.data)
            if header.generation != generation:
                raise CorruptionError(
                    reason=f"the header is that of generation {header.generation}", offset=8
                )
            self.header = header
        except UnsupportedFormatVersion as e:
            raise e.at(self.path) from None
        except (CorruptionError, ForeignFileError) as e:
            self.damage.append(Damage(self.path, offset=e.offset or 0, reason=e.reason, kind=JOURNAL))
        if end is not None and len(self.data) < end:
            self._note(len(self.data), f"the file ends {end - len(self.data)} bytes before its commit word")

    def _note(self, offset: int, reason: str, end_offset: int = 0) -> None:
        reason = f"commands are lost: {reason}"
        self.damage.append(
            Damage(self.path, offset=offset, end_offset=end_offset, reason=reason, kind=JOURNAL)
        )

    def records(self, *, strict: bool) -> Iterator[tuple[int, JournalRecord]]:
        """(end offset, record) in order.

        Args:
            strict: stop where the chain breaks (recovery: what follows was never committed). Otherwise
                step over what does not verify to the next record that does, and note the damage.
        """
        data, at = self.data, FIRST_RECORD_OFFSET
        crc = None if self.header is None else self.header.chain_seed
        while at + RECORD_SIZE <= len(data):
            try:
                record = read_record(data, at, len(data), _prev_crc(data, at) if crc is None else crc)
            except CorruptionError as e:
                if strict:
                    return
                following = self._next_intact(at)
                self._note(at, f"{e.reason}; reading continues at offset {following}", following)
                at, crc = following, None
                continue
            at += record.length
            crc = record.crc
            yield at, record

    def _next_intact(self, at: int) -> int:
        """Offset of the next record that verifies by itself, or the end."""
        data = self.data
        for candidate in range(at + 8, len(data) - RECORD_SIZE + 1, 8):
            try:
                read_record(data, candidate, len(data), _prev_crc(data, candidate))
            except CorruptionError:
                continue
            return candidate
        return len(data)

    def base(self) -> JournalBase | None:
        """The generation this one continues; None for the first, or when that is not known any more."""
        for _, record in self.records(strict=True):
            return decode_base(record.payload) if record.type == BASE else None
        return None

    def cut_at_break(self) -> tuple[JournalFile, int, bool]:
        """This journal without what lies behind the first break of its chain.

        Also the number of commands that are left, and whether the last says that the owner was removed.
        """
        chain = list(self.records(strict=True))
        end = chain[-1][0] if chain else min(FIRST_RECORD_OFFSET, len(self.data))
        commands = sum(record.type != BASE for _, record in chain)
        removed = bool(chain) and chain[-1][1].type == END
        return JournalFile(self.directory, self.generation, end), commands, removed

    def damage_behind(self, end: int) -> str:
        """What stands behind the unbroken chain, if it is neither nothing nor what a power loss leaves.

        A power loss, or a writer that died, leaves zeros; or the beginning of a command, up to the end of the
        file or of a sector that was written, and zeros from there on.

        Args:
            end: where the chain ends.

        Returns:
            Why it is damage; "" if it is none.
        """
        data = self.data
        if len(data) < end + RECORD_SIZE or not any(data[end : end + 8]):
            return ""
        length = int.from_bytes(data[end : end + 4], "little")
        if len(data) < end + length <= end + MAX_RECORD_SIZE:
            return ""
        for sector in range(end // _SECTOR * _SECTOR + _SECTOR, end + length, _SECTOR):
            if not any(data[sector:]):
                return ""
        try:
            read_record(data, end, len(data), _prev_crc(data, end))
        except CorruptionError as e:
            return e.reason
        return "the chain is broken"

    def read_snapshot(self) -> bytes | None:
        """The snapshot this generation starts from; None when it starts from nothing."""
        header = self.header
        if self.base() is None if header is None else header.snapshot_crc == 0:
            return None
        path = self.snapshot_path
        try:
            data = disk.DISK.read_file(path)
        except FileNotFoundError:
            raise CorruptionError(path=path, reason="the snapshot is missing") from None
        if header is not None and (len(data) < 16 or document_crc(data) != header.snapshot_crc):
            raise CorruptionError(path=path, reason="the snapshot is not the one its journal starts from")
        self.snapshot_size = len(data)
        return data


def generations(directory: str) -> tuple[list[int], list[int]]:
    """Generations of the journals and of the snapshots in a directory, ascending."""
    return _generations(descriptors.names_in(directory))


def _generations(names: Sequence[str]) -> tuple[list[int], list[int]]:
    journals = [parse_generation(name) for name in names]
    snapshots = [parse_generation(name, journal=False) for name in names]
    return (
        sorted(generation for generation in journals if generation is not None),
        sorted(generation for generation in snapshots if generation is not None),
    )


def _prev_crc(data: bytes, at: int) -> int:
    return int(_PREV_CRC.unpack_from(data, at + 8)[0])


class JournalDescriptor:
    """One file that may be closed at any time and is opened again when it is needed.

    Role: lets a process have more subscriptions than descriptors.
    Callers: the holder of the directory's lock; `flush` any thread.
    """

    __slots__ = ("_fd", "_flags", "_path", "_rests")

    def __init__(self, flags: int = os.O_RDWR) -> None:
        self._flags: Final = flags
        self._fd = -1
        self._path = ""
        self._rests = 0

    @property
    def is_set(self) -> bool:
        """Whether there is a file, resting or not."""
        return bool(self._path)

    def use(self, fd: int, path: str) -> None:
        """Keep this file from now on; the one before is closed."""
        self.close()
        self._fd, self._path = fd, path

    def get(self) -> int:
        """The descriptor.

        Raises:
            FileNotFoundError: it rested, and the file was removed meanwhile.
        """
        if self._fd < 0:
            self._fd = disk.DISK.open_file(self._path, self._flags)
        return self._fd

    def open(self, path: str) -> None:
        """Open this file, and keep it from now on; the one before is closed."""
        self.use(disk.DISK.open_file(path, self._flags), path)

    def rest(self) -> None:
        """Give the descriptor back; `get` opens the file again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._rests += 1  # first, so that a flush under way knows that it may have met another file
            os.close(fd)

    def close(self) -> None:
        """Close the file, and have none from now on. Idempotent."""
        self.rest()
        self._path = ""

    def flush(self) -> None:
        """Make the file's bytes survive a power loss, also while another thread lets it rest."""
        fd, path, rests = self._fd, self._path, self._rests
        if fd >= 0:
            try:
                disk.DISK.fdatasync(fd, path)
            except OSError:
                if rests == self._rests:
                    raise
            if rests == self._rests:
                return
        if not path:
            return
        own = disk.DISK.open_file(path, os.O_RDWR)
        try:
            disk.DISK.fdatasync(own, path)
        finally:
            os.close(own)


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
    names = descriptors.names_in(directory)
    all_journals, all_snapshots = _generations(names)
    unwanted = [journal_path(directory, each) for each in all_journals if each not in journals]
    unwanted += [snapshot_path(directory, each) for each in all_snapshots if each not in snapshots]
    unwanted += [os.path.join(directory, name) for name in names if name.endswith(NEW_SUFFIX)]
    for path in unwanted:
        disk.DISK.unlink(path)
    return len(unwanted)
