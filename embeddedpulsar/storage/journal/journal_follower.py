"""Where one process stands in a journal: applying to its replica what others committed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Final

from embeddedpulsar.damage import JOURNAL, Damage
from embeddedpulsar.exceptions import CorruptionError, StorageError
from embeddedpulsar.format.control import journal_word, split_journal
from embeddedpulsar.format.journal_record import FIRST_RECORD_OFFSET, record_at, records
from embeddedpulsar.format.record_types import END
from embeddedpulsar.platform import disk
from embeddedpulsar.storage.filenames import journal_path
from embeddedpulsar.storage.journal.journal_file import JournalDescriptor, JournalFile
from embeddedpulsar.storage.journal.journal_recovery import Replica, choose, replay

WORTH_A_LEAP: Final = 4096
"""Commands of fewer bytes are applied rather than leapt over."""


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

    def __init__(
        self,
        directory: str,
        *,
        words: memoryview,
        word: int,
        owner_kind: int,
        replica: Replica,
        compact_bytes: int,
        leap_word: int,
        check_in_place: Callable[[], object],
    ) -> None:
        self.directory: Final = directory
        self.damage: Final[list[Damage]] = []
        self.on_removed: Callable[[], object] = int
        self.check_in_place: Final = check_in_place
        self.replica: Final = replica
        self.file: Final = JournalDescriptor()
        self._words = words
        self._word = word
        self._leap_word = leap_word
        self._owner_kind = owner_kind
        self._compact_bytes = compact_bytes
        self.compact_at = compact_bytes
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
            self._adopt(JournalFile(self.directory, generation, end), generation, end)
        self.is_settled = self.is_settled and not self.damage
        self.damage.clear()

    def _leap(self, generation: int, end: int) -> None:
        """Go on at the last command that holds the whole state before it, if that is far ahead."""
        if self._leap_word < 0 or not self.is_settled or not self.generation:
            return
        named, at = split_journal(self._words[self._leap_word])
        if named != generation or not FIRST_RECORD_OFFSET <= at < end:
            return
        if generation == self.generation and at - self.end < WORTH_A_LEAP:
            return
        self.is_settled = False
        with contextlib.suppress(CorruptionError, OSError):
            if generation != self.generation:
                path = journal_path(self.directory, generation)
                self.file.use(disk.DISK.open_file(path, os.O_RDWR), path)
                self.check_in_place()
                self.must_leave, self.commands, self.compact_at = False, 0, self._compact_bytes
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
            journal = JournalFile(self.directory, generation, end)
        except FileNotFoundError:
            path = journal_path(self.directory, generation)
            self.damage.append(Damage(path, reason="the journal is missing", kind=JOURNAL))
            self._salvage(generation, end)
            return
        self._adopt(journal, generation, end)
        if not self.is_settled:
            self.on_removed()
        self.must_leave = bool(self.damage)

    def _adopt(self, journal: JournalFile, generation: int, end: int) -> None:
        crc, removed, self.commands = replay(journal, self.replica, self.damage)
        self.file.use(disk.DISK.open_file(journal.path, os.O_RDWR), journal.path)
        self.check_in_place()  # after they were opened: so they are ours
        self.compact_at = max(self._compact_bytes, journal.snapshot_size)
        self.moved(generation, end, crc)
        self.is_settled = not removed  # the next holder of the lock finishes a removal

    def _salvage(self, generation: int, end: int) -> None:
        """The journal that the word names is gone: take what the other files say, and leave that at once."""
        found = choose(self.directory, self._owner_kind, self.damage)
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
