"""One generation of a journal as files: writing it in the order that survives a crash, and reading it.

(a) write the snapshot under another name, (b) flush it, (c) create the journal that starts from it,
flushed, (d) give the snapshot its name, (e) flush the directory. Then `Journal` does (f), the commit
word, and (g) `sweep`. Until (f) the old generation is the state; after (e) both are, and say the same.

Where one process stands in a journal: choosing the generation to read, and applying what others committed.

What a crash can leave:

* a torn command behind the end: the chain of checksums ends before it;
* a compaction cut short before its snapshot had a name: a journal without commands and without snapshot;
* one cut short later: two whole generations that say the same. If the older one went on, the newer was never
  switched to; its base record tells;
* a removal cut short: a journal whose last record is an END.

A bad sector can leave a snapshot that does not verify. The generation before is still there and leads
to the same state.

A journal as an onlooker follows it: without the lock, and without writing.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator, Sequence

from embeddedpulsar._engine.filenames import (
    NEW_SUFFIX,
    generations_among,
    journal_path,
    snapshot_path,
    under_construction,
)
from embeddedpulsar._engine.format.control import journal_word, split_journal
from embeddedpulsar._engine.format.document import document_crc
from embeddedpulsar._engine.format.journal_record import (
    BASE,
    END,
    FIRST_RECORD_OFFSET,
    RECORD_SIZE,
    JournalBase,
    JournalHeader,
    JournalRecord,
    damage_behind,
    decode_base,
    encode_base,
    next_intact,
    pack_journal_header,
    pack_record,
    parse_journal_header,
    read_record,
    record_at,
    records,
)
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, threads
from embeddedpulsar.damage import JOURNAL, Damage
from embeddedpulsar.exceptions import (
    CorruptionError,
    ForeignFileError,
    StorageError,
    UnsupportedFormatVersion,
)
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing import Final

_PREV_CRC: Final = struct.Struct("<I")
Record = tuple[int, bytes]
"""Type and payload of a command."""
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
            self._report_lost(
                len(self.data), f"the file ends {end - len(self.data)} bytes before its commit word"
            )

    def _report_lost(self, offset: int, reason: str, end_offset: int = 0) -> None:
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
        # Without a header the seed of the chain is unknown: the first record is believed by its own
        # checksum.
        data, at = self.data, FIRST_RECORD_OFFSET
        crc = None if self.header is None else self.header.chain_seed
        while at + RECORD_SIZE <= len(data):
            try:
                record = read_record(data, at, len(data), _prev_crc(data, at) if crc is None else crc)
            except CorruptionError as e:
                if strict:
                    return
                # Behind the damage the chain begins anew with the next record that verifies by
                # itself.
                following = next_intact(data, at + 8, len(data))
                self._report_lost(at, f"{e.reason}; reading continues at offset {following}", following)
                at, crc = following, None
                continue
            at += record.length
            crc = record.crc
            yield at, record

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

    def read_snapshot(self) -> bytes | None:
        """The snapshot this generation starts from; None when it starts from nothing."""
        # Without a header the base record tells whether there was a generation before, and so a
        # snapshot.
        header = self.header
        if self.base() is None if header is None else header.snapshot_crc == 0:
            return None
        path = self.snapshot_path
        try:
            data = disk.DISK.read_file(path)
        except FileNotFoundError:
            raise CorruptionError(path=path, reason="the snapshot is missing") from None
        # The header names the checksum of its snapshot: one of another generation under this name is
        # refused.
        if header is not None and (len(data) < 16 or document_crc(data) != header.snapshot_crc):
            raise CorruptionError(path=path, reason="the snapshot is not the one its journal starts from")
        self.snapshot_size = len(data)
        return data


def generations(directory: str) -> tuple[list[int], list[int]]:
    """Generations of the journals and of the snapshots in a directory, ascending."""
    return generations_among(descriptors.names_in(directory))


def _prev_crc(data: bytes, at: int) -> int:
    return int(_PREV_CRC.unpack_from(data, at + 8)[0])


class JournalDescriptor:
    """One file that may be closed at any time and is opened again when it is needed.

    Role: lets a process have more subscriptions than descriptors.
    Callers: the holder of the directory's lock; `flush` any thread.
    """

    __slots__ = ("_closings", "_fd", "_flags", "_path")

    def __init__(self, flags: int = os.O_RDWR) -> None:
        self._flags: Final = flags
        self._fd = -1
        self._path = ""
        self._closings = 0

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

    def close_descriptor(self) -> None:
        """Give the descriptor back; `get` opens the file again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._closings += 1  # first, so that a flush under way knows that it may have met another file
            os.close(fd)

    def close(self) -> None:
        """Close the file, and have none from now on. Idempotent."""
        self.close_descriptor()
        self._path = ""

    def flush(self) -> None:
        """Make the file's bytes survive a power loss, also while another thread lets it rest."""
        # Without the lock, so another thread may close the descriptor, and its number may be that of
        # another file. The count tells: if it changed, the flush is made again by a descriptor of its
        # own.
        fd, path, closings = self._fd, self._path, self._closings
        if fd >= 0:
            try:
                disk.DISK.fdatasync(fd, path)
            except OSError:
                if closings == self._closings:
                    raise
            if closings == self._closings:
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
    # All three are of the number that is about to be made, which no commit word ever named.
    for stray in (building, path, journal_path(directory, generation)):
        if os.path.lexists(stray):  # of a compaction that died before its step (f)
            disk.DISK.unlink(stray)
    _write_snapshot(building, snapshot)
    fd, end, crc = _create_journal(directory, generation, owner_kind, document_crc(snapshot), base, time_ms)
    try:
        failpoints.hit("compact:journal_created")
        # The snapshot gets its name only when its journal is durable: a snapshot with a name and an
        # empty journal is damage.
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
    # The mark is zeros behind the last record: what a dead writer left further on never follows the
    # chain by chance. The next append overwrites it.
    parts = [front] if front else []
    for kind, payload in commands:
        record, crc = pack_record(kind, payload, crc, time_ms)
        parts.append(record)
    parts.append(_END_MARK)
    return at + disk.DISK.pwrite_all(fd, parts, at) - len(_END_MARK), crc


def sweep(directory: str, journals: Sequence[int], snapshots: Sequence[int]) -> int:
    """Remove every journal and snapshot but those generations, and snapshots under construction.

    Returns:
        How many files.
    """
    names = descriptors.names_in(directory)
    all_journals, all_snapshots = generations_among(names)
    # What a crash leaves of these the next call removes: it is older than what is kept, or was never
    # committed.
    paths = [journal_path(directory, each) for each in all_journals if each not in journals]
    paths += [snapshot_path(directory, each) for each in all_snapshots if each not in snapshots]
    # Only snapshots: a compaction and the renewal of an index build their files in the directory of a topic,
    # too, each under a lock of its own.
    building = generations_among(name.removesuffix(NEW_SUFFIX) for name in names if name.endswith(NEW_SUFFIX))
    paths += [under_construction(snapshot_path(directory, each)) for each in building[1]]
    for path in paths:
        disk.DISK.unlink(path)
    return len(paths)


COMPACT_BYTES: Final = 1 << 20
"""A generation this long, or as long as its snapshot if that is more, is followed by a new one."""
WORTH_A_LEAP: Final = 4096
"""Commands of fewer bytes are applied rather than leapt over."""


class Replica(Protocol):
    """One process's copy of a replicated state. Called under the lock of the directory.

    The same commands in the same order must give the same state in every process.
    """

    def reset(self, snapshot: bytes | None) -> None:
        """Take over a snapshot; with None, start from nothing."""

    def replay(self, kind: int, payload: bytes, time_ms: int) -> None:
        """Apply one committed command."""

    def leap(self, kind: int, payload: bytes) -> bool:
        """Take over the state that a committed command holds, from an earlier state.

        Returns:
            False, and nothing is changed, if that cannot be done: the command holds no state, or
            something happened in between that it does not cover.

        Raises:
            CorruptionError: this is no command. The state may be distorted then.
        """

    def snapshot(self) -> bytes:
        """The state as a document (_engine/format/document.py); equal states give equal bytes."""


class JournalPlace(NamedTuple):
    """Where a journal is, and whose.

    Attributes:
        directory: of the topic or subscription.
        words: of its mapped ctl.
        word: the index of the commit word in them.
        owner_kind: kind of ctl file (_engine/format/control.py), written into the headers.
        compact_bytes: see `COMPACT_BYTES`.
        leap_word: index of the word that says where a command is that a replica may leap to; -1 for none.
        check_in_place: raises if the directory is not the one that was opened.
    """

    directory: str
    words: memoryview
    word: int
    owner_kind: int
    compact_bytes: int = COMPACT_BYTES
    leap_word: int = -1
    check_in_place: Callable[[], object] = int


class Choice(NamedTuple):
    """The journal recovery continues from, cut where its chain ends; None if there is no state.

    `newest` is the highest generation number any file has.
    """

    journal: JournalFile | None
    newest: int


class Replayed(NamedTuple):
    """What `replay` found: the checksum the next record continues, whether the owner was removed, and how
    many commands there were."""

    crc: int
    removed: bool
    commands: int


def choose(directory: str, owner_kind: int, damage: list[Damage]) -> Choice:
    """Pick the generation that holds the state, from the files alone.

    Damage is noted for all that is there and does not lead to the state, unless a crash or power loss leaves
    it: then the state may have been another. Without a journal and without damage there is no state.

    Raises:
        UnsupportedFormatVersion: the newest journal is not one this release may touch.
        CorruptionError: a journal of another kind of owner.
    """
    journals, snapshots = generations(directory)
    if not journals and not snapshots:
        return Choice(None, 0)
    newest = max([*journals, *snapshots])
    unread: list[Damage] = []
    # From the newest on. The first with commands holds the state; one without any holds it if its
    # snapshot is whole and the generation before did not go on.
    for generation in reversed(journals):
        journal = JournalFile(directory, generation)
        if journal.header is not None and journal.header.owner_kind != owner_kind:
            raise CorruptionError(
                path=journal.path, reason="this journal belongs to something else", offset=20
            )
        cut, commands, removed = journal.cut_at_break()
        # The state was ended, and the removal of its files was cut short: there is none, whatever
        # older files say.
        if removed:
            return Choice(None, newest)
        broken = "" if journal.is_empty else damage_behind(journal.data, len(cut.data))
        if broken:
            reason = f"commands are lost: {broken}"
            damage.append(Damage(journal.path, offset=len(cut.data), reason=reason, kind=JOURNAL))
        # Without commands: it was made by a compaction that may have died before its word. If the
        # generation before went on, this one was never switched to.
        if commands or (_is_whole(cut) and not _went_on(cut)):
            return Choice(cut, newest)
        # Damage only if nothing older leads to the state. An empty file is what a power loss leaves
        # of one that was made.
        if not journal.is_empty:
            if journal.header is None:
                damage.extend(journal.damage)
            unread.append(Damage(journal.path, reason="no command in it can be read", kind=JOURNAL))
        elif generation in snapshots:  # the snapshot has its name once the journal is flushed
            damage.append(Damage(journal.path, reason="it is empty, and its snapshot is there", kind=JOURNAL))
    if not damage:
        # The state has not ended. A crash leaves no generation without commands beside none with commands.
        paths = [snapshot_path(directory, number) for number in snapshots if number not in journals]
        unread += [Damage(path, reason="its journal is missing", kind=JOURNAL) for path in paths]
        damage.extend(unread)
    return Choice(None, newest)


def note_lost(directory: str, word: int | None, chosen: JournalFile | None, damage: list[Damage]) -> bool:
    """Note damage if commands were committed, and the files lead to another state or to none.

    Where there was nothing, the word has no end; where the state was removed, there is no file, or one that
    says so. A power loss may take the last commands of a generation and leave the word: that is no damage.

    Args:
        directory: of the topic or subscription.
        word: the commit word that was stored last, in whatever boot and place; None if nothing says it.
        chosen: what `choose` gave.
        damage: a list; if it has something, nothing is added.

    Returns:
        Whether commands that were committed are missing, damage or not.
    """
    if damage:
        return True
    if word is None:
        # The control file is new or gone. An empty journal may be one that had commands: nothing says
        # that it did not.
        journals = generations(directory)[0]
        journal = JournalFile(directory, journals[-1]) if journals and chosen is None else None
        if journal is not None and journal.is_empty:
            reason = "it is empty, and nothing says that it never had a command"
            damage.append(Damage(journal.path, reason=reason, kind=JOURNAL))
        return bool(damage)
    generation, end = split_journal(word)
    # A newer generation than the word names says the same state. In the same one, fewer bytes are
    # what a power loss takes.
    if chosen is not None and chosen.generation >= generation:
        return chosen.generation == generation and len(chosen.data) < end
    if not end:
        return False
    # The word names commands, and no file leads to them. A file that is gone is no damage here: the
    # state was removed.
    with contextlib.suppress(FileNotFoundError):
        if not JournalFile(directory, generation).cut_at_break()[2]:
            reason = f"none of the commands in its {end} bytes can be read"
            damage.append(Damage(journal_path(directory, generation), reason=reason, kind=JOURNAL))
    return bool(damage)


def _is_whole(journal: JournalFile) -> bool:
    """Whether a generation without commands ever was one: it names its snapshot, and that is there."""
    if journal.header is None:
        return False
    try:
        return journal.read_snapshot() is not None
    except CorruptionError:
        return False


def _went_on(journal: JournalFile) -> bool:
    """Whether the generation before has commands that this one lacks."""
    base = journal.base()
    if base is None:
        return False
    try:
        before = JournalFile(journal.directory, base.generation)
    except FileNotFoundError:
        return False
    return len(before.cut_at_break()[0].data) > base.end


def replay(journal: JournalFile, replica: Replica, damage: list[Damage]) -> Replayed:
    """Build the replica from a generation, stepping over what is damaged.

    Raises:
        CorruptionError: a command is intact and yet not one of this release.
    """
    _restore(journal, replica, damage)
    crc = 0 if journal.header is None else journal.header.chain_seed
    removed, commands = False, 0
    for _, record in journal.records(strict=False):
        crc = record.crc
        removed = record.type == END
        if record.type not in (BASE, END):
            commands += 1
            try:
                replica.replay(record.type, record.payload, record.time_ms)
            except (CorruptionError, UnsupportedFormatVersion) as e:
                raise e.at(journal.path) from None
    damage.extend(journal.damage)
    journal.damage.clear()
    return Replayed(crc, removed, commands)


def _restore(journal: JournalFile, replica: Replica, damage: list[Damage]) -> None:
    """Put the replica where the generation starts: its snapshot, else the generation before, else nothing."""
    try:
        replica.reset(journal.read_snapshot())
    except UnsupportedFormatVersion as e:
        raise e.at(journal.snapshot_path) from None
    except (CorruptionError, ForeignFileError) as e:
        outcome = _restore_from_older(journal, replica, damage)
        damage.append(Damage(journal.snapshot_path, reason=e.reason, kind=JOURNAL, done=outcome))


def _restore_from_older(journal: JournalFile, replica: Replica, damage: list[Damage]) -> str:
    base = journal.base()
    try:
        before = None if base is None else JournalFile(journal.directory, base.generation, base.end)
    except FileNotFoundError:
        before = None
    if before is None:
        replica.reset(None)
        return "the generation before is gone: the state starts anew, what is stored is delivered again"
    # The generation before, exactly up to where the snapshot was taken. The checksum in the header
    # proves the result.
    replay(before, replica, damage)
    if journal.header is not None and document_crc(replica.snapshot()) == journal.header.snapshot_crc:
        return "it was made anew from the generation before, exactly as it was"
    return "it was made anew from the generation before"


class JournalFollower:
    """The reading half of a `Journal`.

    Role: keeps the replica, and knows how far it has followed. Invariants: a replica that is not settled is
    thrown away: an interrupt struck while it was changed. Callers: the holder of the directory's lock.

    Attributes:
        damage: what could not be read.
        on_removed: called when the journal turns out to end with the removal of its owner.
        file: the journal of `generation`.
        generation: the generation that the replica follows.
        seen: the commit word up to which it has followed.
        end, crc: the same as an offset, and the checksum that the next record continues.
        commands: in this generation, as far as is known.
        compact_at: length at which the generation is to be followed by a new one.
        is_settled: False while the replica is being changed.
        must_leave: something of this generation is unreadable, or was not flushed.
    """

    def __init__(self, place: JournalPlace, replica: Replica, *, writable: bool = True) -> None:
        self.place: Final = place
        self._words: Final = place.words
        self._word: Final = place.word
        self.damage: Final[list[Damage]] = []
        self.on_removed: Callable[[], object] = int
        self.replica: Final = replica
        self.file: Final = JournalDescriptor(os.O_RDWR if writable else os.O_RDONLY)
        self.compact_at = place.compact_bytes
        self.commands = 0
        self.generation = self.seen = self.end = self.crc = 0
        self.is_settled = True
        self.must_leave = False

    def catch_up(self) -> bool:
        """Apply what others committed. True if there was anything; if not, it costs one read of a word.

        Raises:
            StorageError: the journal cannot be read at all.
        """
        word = self._words[self._word]
        if word == self.seen and self.is_settled:
            return False
        generation, end = split_journal(word)
        self._leap(generation, end)
        # Read on in the same file, if the replica is at a place before the end of it; else everything
        # is read again.
        if generation == self.generation and self.end <= end and self.is_settled and self.file.is_set:
            self._replay_up_to(end)
        else:
            self._load(generation, end)
        return True

    def preload(self) -> None:
        """`catch_up` without the lock, before this object is shared; it makes good what goes wrong here."""
        generation, end = split_journal(self._words[self._word])
        if not end:
            return  # nothing exists
        # Errors and damage are met again by `catch_up`, under the lock, and reported there.
        with contextlib.suppress(StorageError, OSError):
            self._adopt(JournalFile(self.place.directory, generation, end), generation, end)
        self.is_settled = self.is_settled and not self.damage
        self.damage.clear()

    def _leap(self, generation: int, end: int) -> None:
        """Go on at the last command that holds the whole state before it, if that is far ahead."""
        if self.place.leap_word < 0 or not self.is_settled or not self.generation:
            return
        named, at = split_journal(self._words[self.place.leap_word])
        if named != generation or not FIRST_RECORD_OFFSET <= at < end:
            return
        if generation == self.generation and at - self.end < WORTH_A_LEAP:
            return
        self.is_settled = False
        with contextlib.suppress(CorruptionError, OSError):
            if generation != self.generation:
                path = journal_path(self.place.directory, generation)
                self.file.open(path)
                self.place.check_in_place()
                self.must_leave, self.commands, self.compact_at = False, 0, self.place.compact_bytes
            # The word that names the place is a hint, and may be of any moment: what is read there
            # has to verify as a record.
            record = record_at(disk.DISK.pread(self.file.get(), end - at, at))
            if self.replica.leap(record.type, record.payload):
                self.moved(generation, at, record.prev_crc)
            # Refused and unchanged: the commands are applied one by one. In another generation the
            # replica is built anew.
            elif generation == self.generation:
                self.is_settled = True

    def _replay_up_to(self, end: int) -> None:
        crc = self.crc
        self.is_settled = False
        try:
            # Below the commit word bytes never change, so they are read in one piece and must chain.
            data = disk.DISK.pread(self.file.get(), end - self.end, self.end)
            for _, record in records(data, 0, end - self.end, crc):
                # The process that wrote it died before it removed the files: this one finishes, if it
                # may write.
                if record.type == END:
                    self.on_removed()
                    return
                self.replica.replay(record.type, record.payload, record.time_ms)
                crc = record.crc
                self.commands += 1
        except UnsupportedFormatVersion as e:
            raise e.at(journal_path(self.place.directory, self.generation)) from None
        except (CorruptionError, FileNotFoundError):
            self._load(self.generation, end)  # reads with more patience, and says what is lost
            return
        self.moved(self.generation, end, crc)

    def moved(self, generation: int, end: int, crc: int, word: int = 0) -> None:
        """Note how far the replica has followed; ``word``: the commit word that says so, if it is known."""
        self.generation, self.end, self.crc = generation, end, crc
        self.seen = word or journal_word(generation, end)
        self.is_settled = True

    def _load(self, generation: int, end: int) -> None:
        """Throw the replica away and build it from a generation's snapshot and journal."""
        self.is_settled = False
        self.close()
        if end == 0:
            self.replica.reset(None)
            self.moved(generation, 0, 0)
            return
        try:
            journal = JournalFile(self.place.directory, generation, end)
        except FileNotFoundError:
            path = journal_path(self.place.directory, generation)
            self.damage.append(Damage(path, reason="the journal is missing", kind=JOURNAL))
            self._salvage(generation, end)
            return
        self._adopt(journal, generation, end)
        if not self.is_settled:
            self.on_removed()
        self.must_leave = bool(self.damage)

    def _adopt(self, journal: JournalFile, generation: int, end: int) -> None:
        # The file is opened by its name after it was read, and the place is proved after that: both
        # are of one directory.
        crc, removed, self.commands = replay(journal, self.replica, self.damage)
        self.file.open(journal.path)
        self.place.check_in_place()  # after they were opened: so they are ours
        self.compact_at = max(self.place.compact_bytes, journal.snapshot_size)
        self.moved(generation, end, crc)
        self.is_settled = not removed  # the next holder of the lock finishes a removal

    def _salvage(self, generation: int, end: int) -> None:
        """The journal that the word names is gone: take what the other files say, and leave that at once."""
        choice = choose(self.place.directory, self.place.owner_kind, self.damage)
        if choice.journal is None:
            self.replica.reset(None)
        else:
            replay(choice.journal, self.replica, self.damage)
        self.moved(generation, end, 0)
        self.must_leave = True

    def close(self) -> None:
        """Give descriptor and replica up. Idempotent; `catch_up` begins again."""
        self.seen = 0
        self.file.close()


_ATTEMPTS: Final = 20
"""Each fails only if a new generation began, or the state ended, during it."""


class JournalView:
    """The state that the commit word leads to, at one moment.

    Role: what is committed never changes, so the files below the commit word can be read while others append.
    The generation may be replaced meanwhile; then it is read again. Nothing is repaired, recovered or
    removed.
    Callers: one thread at a time. Between two calls no descriptor is open.

    Attributes:
        damage: what could not be read in the last call.
        is_behind: whether commands that were committed are missing all the same, as after a power loss.
    """

    def __init__(self, place: JournalPlace, replica: Replica) -> None:
        self._place: Final = place
        self._replica: Final = replica
        self._has_ended = False
        self._follower: Final = JournalFollower(place, replica, writable=False)
        self._follower.on_removed = self._note_end
        self.damage: list[Damage] = []
        self.is_behind = False

    def _note_end(self) -> None:
        self._has_ended = True

    def refresh(self, *, is_trusted: bool, is_word_known: bool = True) -> bool:
        """Bring the replica up to date.

        Args:
            is_trusted: whether the commit word may be believed. If not, as in a copied store, the files alone
                are asked, all of them again.
            is_word_known: see `Journal.recover`.

        Returns:
            Whether the state exists.

        Raises:
            StorageError: the journal is of a newer release, or cannot be read at all.
        """
        self.is_behind = False
        if not is_trusted:
            return self._read_files(self._word if is_word_known else None)
        follower = self._follower
        try:
            # Without the lock a generation may be replaced while it is read. A result counts if it is
            # whole, or if the word did not change: then what is missing is damage.
            for attempt in range(_ATTEMPTS):
                word = self._word
                self._has_ended = False
                follower.damage.clear()
                with contextlib.suppress(FileNotFoundError):
                    follower.catch_up()
                    is_whole = not follower.damage and (follower.is_settled or self._has_ended)
                    # The word may be seen before the bytes.
                    if is_whole or (word == self._word and not (attempt == 0 and threads.await_stores())):
                        break
                follower.is_settled = False  # another generation meanwhile: it is read anew
        finally:
            follower.file.close_descriptor()
        self.damage = list(follower.damage)
        return bool(split_journal(self._word)[1]) and not self._has_ended

    @property
    def _word(self) -> int:
        return int(self._place.words[self._place.word])

    @property
    def followed(self) -> int:
        """The commit word that the replica is of; 0 if it is to be built anew."""
        return self._follower.seen if self._follower.is_settled else 0

    def read_again(self) -> None:
        """Have the next `refresh` build the replica anew."""
        self._follower.is_settled = False

    def _read_files(self, word: int | None) -> bool:
        # The word is not believed, so no later call may start from what was read here.
        self._follower.seen, self._follower.is_settled = 0, False
        self.damage = []
        try:
            journal = choose(self._place.directory, self._place.owner_kind, self.damage).journal
            self.is_behind = note_lost(self._place.directory, word, journal, self.damage)
        except (FileNotFoundError, NotADirectoryError):
            return False  # it ended
        if journal is None:
            return False
        return not replay(journal, self._replica, self.damage).removed
