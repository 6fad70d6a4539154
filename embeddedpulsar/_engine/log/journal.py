"""The journal: how the processes of a store keep one small state, a topic's or a subscription's, in step.

Commands are appended to `journal.<generation>` under the lock of the directory; one word of its ctl,
(generation, end offset), is the commit. Every process keeps a replica of the state and applies what it
has not seen before it decides anything. When a generation has grown, the state is written as
`snapshot.<generation + 1>` and a new journal starts from it. The generation before stays, to repair from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from embeddedpulsar._engine.filenames import journal_path
from embeddedpulsar._engine.format.control import journal_word, split_journal
from embeddedpulsar._engine.format.journal_record import END, JournalBase, JournalHeader, pack_journal_header
from embeddedpulsar._engine.log.journal_file import (
    JournalFollower,
    JournalPlace,
    Record,
    Replica,
    choose,
    note_lost,
    replay,
    sweep,
    write_generation,
    write_records,
)
from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar.records import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing import Final

COMPACT_COMMANDS: Final = 3000
"""The same by number of commands, some 10 us each to replay; or one per KiB of a larger snapshot."""

T = TypeVar("T")

failpoints.declare("journal:file_created", "journal:created", "journal:body_done", "journal:word_stored")
failpoints.declare("compact:word_stored", "compact:unlinked")
failpoints.declare("journal:end_stored", "journal:word_cleared", "journal:older_unlinked", "journal:unlinked")


class Journal:
    """The journal of one directory, and where this process stands in it.

    Role: one per process and directory. Order of an append: bytes, commit word, replica. A process that dies
    or is interrupted between any two leaves to others, and to itself, a state to continue from: the word
    decides, and a replica that was interrupted half way is thrown away; so is one that is ahead of the word
    (`lead`) until the word follows.
    Invariants: bytes below the commit word never change; nothing is appended to a generation made from a
    snapshot before its files and their names are durable; a number is never used for two committed
    generations.
    Durable: after a compaction everything; after `sync` what was committed before (the owner flushes the
    names of the files, once); else what the kernel wrote. Callers: the holder of the directory's lock;
    `exists` and `sync` any thread.
    """

    def __init__(self, place: JournalPlace, replica: Replica) -> None:
        self.place: Final = place
        self._words: Final = place.words
        self._word: Final = place.word
        self._at: Final = JournalFollower(place, replica)
        self._at.on_removed = self._finish_removal
        self.damage: Final = self._at.damage
        """What could not be read. The owner reports it once it holds no lock, and empties the list."""
        self._synced = 0  # the commit word up to which everything is durable, as far as this process knows
        self.catch_up: Final = self._at.catch_up
        self.preload: Final = self._at.preload

    @property
    def exists(self) -> bool:
        """Whether the state exists. Reads one word."""
        return self._words[self._word] & 0xFFFFFFFF != 0

    @property
    def generation(self) -> int:
        return self._at.generation

    @property
    def seen(self) -> int:
        """The commit word up to which the replica has followed."""
        return self._at.seen

    # -- following ---------------------------------------------------------------------------------

    def discard(self) -> None:
        """Throw the replica away: the next `catch_up` builds it from the files."""
        self._at.is_settled = False

    def recover(
        self, time_ms: int, complete: Callable[[], bool] = bool, *, is_word_known: bool = True
    ) -> None:
        """Find the state from the files alone: after a reboot, in a copied store, when the ctl is damaged.

        Ends with a new generation, durable, and the commit word on it; or with a word that says that nothing
        exists. May be interrupted and begun again.

        Args:
            time_ms: when.
            complete: called on the replica as the readable commands leave it, if something is damaged or the
                commit word names commands that are not there. Gives it the state that is to hold, and returns
                False if that is not known; then the files stay.
            is_word_known: False if nothing says what the commit word was: the control file is new or damaged.

        Raises:
            StorageError: the files are of a newer release, or nothing can be written.
        """
        # From here on a replica is void until the end: an interrupt leaves it to be built again.
        self._at.is_settled = False
        self.close()
        before = len(self.damage)
        choice = choose(self.place.directory, self.place.owner_kind, self.damage)
        word = self._words[self._word] if is_word_known else None
        is_behind = False
        if choice.newest or word or self.damage:  # else a directory without a file, and no word of any
            is_behind = note_lost(self.place.directory, word, choice.journal, self.damage)
        # Three cases: the state ended (a removal is finished), it never was (a word without an end),
        # or it was and is damaged.
        if choice.journal is None:
            self._at.generation = choice.newest
            if choice.newest and not self.damage:
                self._finish_removal()
                return
            self._at.replica.reset(None)
            # Without a state that is known the word says that there is none. The files stay for a
            # repair, and their numbers are not used again.
            if not (self.damage and complete()):
                self._words[self._word] = journal_word(choice.newest, 0)
                self._at.moved(choice.newest, 0, 0)
                return
            self._at.moved(choice.newest, 0, 0)
        else:
            crc = replay(choice.journal, self._at.replica, self.damage).crc
            self._at.moved(choice.journal.generation, len(choice.journal.data), crc)
            # The caller may know what the missing commands did, from another file.
            if is_behind or len(self.damage) > before:
                complete()
        self._start_generation(choice.newest + 1, time_ms)

    # -- changing ----------------------------------------------------------------------------------

    def create(
        self, commands: Sequence[Record], time_ms: int, apply: Callable[[], object] | None = None
    ) -> None:
        """Bring a state that does not exist into being, by its first commands.

        Args:
            commands: they.
            time_ms: when.
            apply: applies the commands to the replica; default `Replica.replay` of each.
        """
        self.place.check_in_place()
        generation = split_journal(self._words[self._word])[0] + 1
        while (
            is_left := os.path.lexists(path := journal_path(self.place.directory, generation))
        ) and self.damage:
            generation += 1  # what is left of a damaged state keeps its name
        # 1. Remove what a creator that died left; but what is left of a damaged state is kept. Of the first
        # generation that is this file alone: no other is written before the word names one.
        if (is_left or generation > 1) and not self.exists and not self.damage:
            sweep(self.place.directory, (), ())
        # 2. The file. No process looks at it yet.
        seed = int.from_bytes(os.urandom(4), "little")
        fd = disk.DISK.create_exclusive(path)
        try:
            failpoints.hit("journal:file_created")
            header = pack_journal_header(JournalHeader(generation, seed, 0, self.place.owner_kind))
            end, crc = write_records(fd, 0, seed, commands, time_ms, header)
            failpoints.hit("journal:created")
        except BaseException:
            os.close(fd)
            raise
        self._at.seen = 0
        self._at.file.use(fd, path)
        self._at.must_leave = False
        self._at.compact_at = self.place.compact_bytes
        self._at.commands = len(commands)
        # 3. The word.
        self._at.is_settled = False
        self._at.replica.reset(None)
        self._commit(generation, end, crc, apply or (lambda: self._replay_all(commands, time_ms)))

    def append(
        self,
        commands: Sequence[Record],
        time_ms: int,
        *,
        announce: Callable[[], object] | None = None,
        apply: Callable[[], T] | None = None,
        ahead: int = 0,
    ) -> T | None:
        """Commit commands that were decided on the caught-up replica, and apply them to it.

        Args:
            ahead: so many of the commands, the first ones, were applied since `lead`.
            announce: called between the bytes and the commit word. What others watch without the lock must
                change no later than the commit, or a writer that dies there would leave them unaware of it.
            apply: applies the commands to the replica; default `Replica.replay` of each.

        Returns:
            What ``apply`` returned.

        Raises:
            StorageFullError: no room; nothing was committed.
        """
        at = self._at
        if at.must_leave:
            self._start_generation(at.generation + 1, time_ms)
            commands = commands[ahead:]  # the snapshot has the others
        # 1. The bytes, behind the end. After a crash, the next append overwrites them.
        end, crc = write_records(at.file.get(), at.end, at.crc, commands, time_ms)
        if failpoints.ACTIVE:
            failpoints.hit("journal:body_done")
        if announce is not None:
            announce()
        # 2. The word: THE commit. 3. The replica.
        result: T | None = None
        if apply is None:
            self._commit(at.generation, end, crc, partial(self._replay_all, commands, time_ms))
        else:
            result = self._commit(at.generation, end, crc, apply)
        at.commands = count = at.commands + len(commands)
        if end > at.compact_at or (count > COMPACT_COMMANDS and count > at.compact_at >> 10):
            self._compact_if_possible(time_ms)
        return result

    def lead(self) -> None:
        """Let the caller apply commands to the replica before it appends them, as the first ones of the next
        `append`. If that does not come, or fails, `catch_up` throws the replica away."""
        self._at.is_settled = False

    def _commit(self, generation: int, end: int, crc: int, apply: Callable[[], T]) -> T:
        self._at.is_settled = False
        self._words[self._word] = word = journal_word(generation, end)
        if failpoints.ACTIVE:
            failpoints.hit("journal:word_stored")
        result = apply()
        self._at.moved(generation, end, crc, word)
        return result

    def _replay_all(self, commands: Sequence[Record], time_ms: int) -> None:
        for kind, payload in commands:
            self._at.replica.replay(kind, payload, time_ms)

    def remove(self, time_ms: int) -> None:
        """End the state. Durable when this returns; the word remembers the generation number."""
        self.place.check_in_place()
        # 1. The last record. From here on a process that finds the journal continues the removal.
        self.append([(END, b"")], time_ms, apply=lambda: None)
        self._at.file.flush()
        failpoints.hit("journal:end_stored")
        self._finish_removal()

    def _finish_removal(self) -> None:
        generation = self._at.generation
        # 2. No process finds it any more.
        self._words[self._word] = journal_word(generation, 0)
        failpoints.hit("journal:word_cleared")
        self.close()
        self._remove_files(generation)
        self._at.replica.reset(None)
        self._at.moved(generation, 0, 0)

    def _remove_files(self, generation: int) -> None:
        # 3. All but the journal that says so, then that one. In any other order a power loss could bring
        # an older generation back.
        if sweep(self.place.directory, (generation,), ()):
            disk.DISK.fsync_dir(self.place.directory)
        failpoints.hit("journal:older_unlinked")
        path = journal_path(self.place.directory, generation)
        if os.path.lexists(path):
            disk.DISK.unlink(path)
            disk.DISK.fsync_dir(self.place.directory)
        failpoints.hit("journal:unlinked")

    def clear_away(self) -> None:
        """Remove the files that a process left which was killed while it made or ended the state. For a state
        that does not exist by a word that can be trusted."""
        self._remove_files(split_journal(self._words[self._word])[0])

    # -- compaction and durability -----------------------------------------------------------------

    def compact(self, time_ms: int) -> None:
        """Start a new generation from a snapshot of the caught-up replica; without room keep the old one."""
        self._start_generation(self._at.generation + 1, time_ms)

    def _compact_if_possible(self, time_ms: int) -> None:
        try:
            self.compact(time_ms)
        except (OSError, ValueError):
            # The disk is full, or the state too large for a document. The commands are committed all the
            # same; try again when there are more.
            self._at.compact_at = self._at.end + self.place.compact_bytes
            self._at.commands = 0

    def _start_generation(self, generation: int, time_ms: int) -> None:
        self.place.check_in_place()
        snapshot = self._at.replica.snapshot()
        base = JournalBase(self._at.generation, self._at.crc, self._at.end)
        directory, kind = self.place.directory, self.place.owner_kind
        fd, end, crc = write_generation(directory, generation, kind, snapshot, base, time_ms)
        keep = (self._at.generation, generation)
        self._at.seen = 0
        self._at.file.use(fd, journal_path(directory, generation))
        # (f) The word: all processes go over to the new generation.
        self._commit(generation, end, crc, lambda: None)
        failpoints.hit("compact:word_stored")
        self._at.must_leave = False
        self._synced = self._at.seen
        self._at.compact_at = end + max(self.place.compact_bytes, len(snapshot))
        self._at.commands = 0
        # (g) Drop what is older than the generation before.
        sweep(directory, keep, keep)
        failpoints.hit("compact:unlinked")

    def sync(self) -> None:
        """Make everything committed so far survive a power loss. Thread-safe, without the lock.

        Raises:
            OSError: the flush failed. What the disk has is unknown; the next append starts a new generation.
        """
        seen, generation = self._at.seen, self._at.generation
        if seen == self._synced or not self._at.file.is_set:
            return
        try:
            self._at.file.flush()
        except OSError:
            if generation != self._at.generation:
                return  # a compaction closed it meanwhile, and has flushed the whole state
            self._at.must_leave = True
            raise
        self._synced = max(self._synced, seen)

    def sync_for_all(self) -> int:
        """`sync`, also of what other processes committed to this generation. Thread-safe, without the lock.

        Returns:
            The commit word up to which everything is durable.

        Raises:
            OSError: as `sync`.
        """
        # The word first: what is committed during the flush may miss it. Another generation by now is durable
        # up to where it began, so what this process knows is.
        seen, generation = self._at.seen, self._at.generation
        word = int(self._words[self._word])
        try:
            self._at.file.flush()
        except OSError:
            if generation == self._at.generation:
                self._at.must_leave = True
                raise
        self._synced = max(self._synced, seen)
        return word if word >> 32 == generation else seen

    def close_descriptor(self) -> None:
        """Give the descriptor back until it is needed. Under the directory's lock, as far as threads go."""
        self._at.file.close_descriptor()

    def close(self) -> None:
        """Give descriptor and replica up. Idempotent; `catch_up` begins again."""
        self._at.close()
