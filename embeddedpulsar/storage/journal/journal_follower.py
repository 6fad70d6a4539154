"""Where one process stands in a journal: choosing the generation to read, and applying what others committed.

What a crash can leave:

* a torn command behind the end: the chain of checksums ends before it;
* a compaction cut short before its snapshot had a name: a journal without commands and without snapshot;
* one cut short later: two whole generations that say the same. If the older one went on, the newer was never
  switched to; its base record tells;
* a removal cut short: a journal whose last record is an END.

A bad sector can leave a snapshot that does not verify. The generation before is still there and leads
to the same state.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Final, Protocol

from embeddedpulsar._engine.format.control import journal_word, split_journal
from embeddedpulsar._engine.format.document import document_crc
from embeddedpulsar._engine.format.journal_record import BASE, END, FIRST_RECORD_OFFSET, record_at, records
from embeddedpulsar._engine.platform import disk
from embeddedpulsar.damage import JOURNAL, Damage
from embeddedpulsar.exceptions import (
    CorruptionError,
    ForeignFileError,
    StorageError,
    UnsupportedFormatVersion,
)
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.storage.filenames import journal_path, snapshot_path
from embeddedpulsar.storage.journal.journal_file import JournalDescriptor, JournalFile, generations

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
    newest = max([*journals, *snapshots, 0])
    left: list[Damage] = []
    for generation in reversed(journals):
        journal = JournalFile(directory, generation)
        if journal.header is not None and journal.header.owner_kind != owner_kind:
            raise CorruptionError(
                path=journal.path, reason="this journal belongs to something else", offset=20
            )
        cut, commands, removed = journal.cut_at_break()
        if removed:
            return Choice(None, newest)
        broken = "" if journal.is_empty else journal.damage_behind(len(cut.data))
        if broken:
            reason = f"commands are lost: {broken}"
            damage.append(Damage(journal.path, offset=len(cut.data), reason=reason, kind=JOURNAL))
        if commands or (_is_whole(cut) and not _went_on(cut)):
            return Choice(cut, newest)
        if not journal.is_empty:
            if journal.header is None:
                damage.extend(journal.damage)
            left.append(Damage(journal.path, reason="no command in it can be read", kind=JOURNAL))
        elif generation in snapshots:  # the snapshot has its name once the journal is flushed
            damage.append(Damage(journal.path, reason="it is empty, and its snapshot is there", kind=JOURNAL))
    if not damage:
        # The state has not ended. A crash leaves no generation without commands beside none with commands.
        paths = [snapshot_path(directory, one) for one in snapshots if one not in journals]
        left += [Damage(path, reason="its journal is missing", kind=JOURNAL) for path in paths]
        damage.extend(left)
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
        found = generations(directory)[0]
        journal = JournalFile(directory, found[-1]) if found and chosen is None else None
        if journal is not None and journal.is_empty:
            reason = "it is empty, and nothing says that it never had a command"
            damage.append(Damage(journal.path, reason=reason, kind=JOURNAL))
        return bool(damage)
    generation, end = split_journal(word)
    if chosen is not None and chosen.generation >= generation:
        return chosen.generation == generation and len(chosen.data) < end
    if not end:
        return False
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
        if generation == self.generation and self.end <= end and self.is_settled and self.file.is_set:
            self._follow(end)
        else:
            self._load(generation, end)
        return True

    def preload(self) -> None:
        """`catch_up` without the lock, before this object is shared; it makes good what goes wrong here."""
        generation, end = split_journal(self._words[self._word])
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
            record = record_at(disk.DISK.pread(self.file.get(), end - at, at))
            if self.replica.leap(record.type, record.payload):
                self.moved(generation, at, record.prev_crc)
            elif generation == self.generation:
                self.is_settled = True

    def _follow(self, end: int) -> None:
        crc = self.crc
        self.is_settled = False
        try:
            data = disk.DISK.pread(self.file.get(), end - self.end, self.end)
            for _, record in records(data, 0, end - self.end, crc):
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

    def moved(self, generation: int, end: int, crc: int) -> None:
        self.generation, self.end, self.crc = generation, end, crc
        self.seen = journal_word(generation, end)
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
        crc, removed, self.commands = replay(journal, self.replica, self.damage)
        self.file.open(journal.path)
        self.place.check_in_place()  # after they were opened: so they are ours
        self.compact_at = max(self.place.compact_bytes, journal.snapshot_size)
        self.moved(generation, end, crc)
        self.is_settled = not removed  # the next holder of the lock finishes a removal

    def _salvage(self, generation: int, end: int) -> None:
        """The journal that the word names is gone: take what the other files say, and leave that at once."""
        found = choose(self.place.directory, self.place.owner_kind, self.damage)
        if found.journal is None:
            self.replica.reset(None)
        else:
            replay(found.journal, self.replica, self.damage)
        self.moved(generation, end, 0)
        self.must_leave = True

    def close(self) -> None:
        """Give descriptor and replica up. Idempotent; `catch_up` begins again."""
        self.seen = 0
        self.file.close()
