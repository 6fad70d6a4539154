"""The files of one topic in a backup, taken in the steps of `StoreCut` while others write.

1. `take_positions`: the journals of the subscriptions, up to their commit words, and what says which
   compacted ledger holds.
2. `cut`: the tail word, the commit word of the topic's journal at that moment, and which ledgers there are.
   None of this changes below the words.
3. `take_log`: the journal and the ledgers up to them, and the compacted ledger.
4. `take_documents`: schemas, policies and other documents that messages refer to.

So no subscription is ahead of the log, no compacted ledger holds what the log has not, and every message has
its schema. Producers are as of the end of the log: an older journal would not know that a name came back,
whose messages deduplication would take a second time, and a newer one would drop messages that the log lacks.
What is trimmed between the steps was acknowledged since the first one: then the positions are void, and the
caller begins anew with them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Final

from embeddedpulsar._engine.format.control import (
    KIND_SUBSCRIPTION,
    KIND_TOPIC,
    SubscriptionWord,
    TopicWord,
    split_journal,
    split_tail,
)
from embeddedpulsar._engine.format.frame import MIN_FRAME_SIZE, TRAILER, TRAILER_SIZE, read_header
from embeddedpulsar._engine.format.journal_record import JOURNAL_HEADER_SIZE
from embeddedpulsar._engine.format.segment_header import (
    FIRST_FRAME_OFFSET,
    SEGMENT_HEADER_SIZE,
    SLOT_SIZE,
    SLOTS_OFFSET,
)
from embeddedpulsar._engine.log import filenames
from embeddedpulsar._engine.log.cold_ledger import ledgers_with_cold, offloaded_ledger
from embeddedpulsar._engine.log.filenames import compacted_in
from embeddedpulsar._engine.log.log_check import trusted_words
from embeddedpulsar._engine.log.segment import read_segment_header
from embeddedpulsar._engine.platform import descriptors, disk
from embeddedpulsar.exceptions import CorruptionError, StorageError
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic.care.backup_target import BackupTarget
from embeddedpulsar.topic.producers.topic_journal import JOURNAL_CHECKED
from embeddedpulsar.topic_name import NON_DURABLE_PREFIX

_ATTEMPTS: Final = 50
_LOOKS: Final = 1000
_OTHERS: Final = (".lock", ".tmp", filenames.NEW_SUFFIX)
_NOT_COPIED: Final = (filenames.CONTROL, filenames.LOCK, filenames.SUBSCRIPTIONS, filenames.PINS)
_NO_COMMAND: Final = b"\x40\0\0\0\1\1\1\1"  # where a record may begin: a length, and a wrong checksum
_OF_LEDGERS: Final = (filenames.LOG_SUFFIX, filenames.INDEX_SUFFIX, filenames.COLD_SUFFIX)


class _Cut(NamedTuple):
    """A moment of a log.

    Attributes:
        tail: the tail word.
        journal: the commit word of the topic's journal; None where it is not to be believed.
        ledgers: up to the tail.
    """

    tail: int = 0
    journal: int | None = None
    ledgers: tuple[int, ...] = ()


class TopicCut:
    """Takes the files of one topic. One thread; the store may be in use.

    Args:
        root: the directory of the store.
        directory: of the topic.
        target: takes the files.
        open_topic: opens the topic and its subscriptions, so that their control words are believed.

    Attributes:
        directory: of the topic.
        went: how often a ledger went before it was copied.
        is_of_function: whether it holds the state of a function; known from the first `cut` on.
    """

    def __init__(
        self, root: str, directory: str, target: BackupTarget, open_topic: Callable[[], object]
    ) -> None:
        self._root: Final = root
        self.directory: Final = directory
        self._target: Final = target
        self._open_topic: Final = open_topic
        self._first = 0  # the ledger from which on the positions need the log
        self._record: bytes | None = None
        self._compacted: list[str] = []
        self._cut = _Cut()
        self._copied: _Cut | None = None  # up to which the log was taken
        self.is_of_function = False
        self.went = 0
        self._is_begun = False

    def take_positions(self) -> None:
        """Take the journals, and which compacted ledger holds.

        Raises:
            FileNotFoundError: the topic was deleted.
            StorageError: it is changed all the time; or a file is damaged.
        """
        if not self._is_believed():
            self._open_topic()
        for _ in range(_ATTEMPTS):
            try:
                self._first = self._words()[TopicWord.TRIM]
                if self._is_begun:  # by an attempt before; each search takes as long as there are files
                    self._target.drop(self._relative(self.directory))
                self._is_begun, self._copied = True, None
                self._take_journals()
                self._take_compaction_record()
                return
            except FileNotFoundError as e:
                self._check_there()
                missing = e  # another generation of a journal; or a subscription ended
        raise self._moving(missing)

    def cut(self) -> bool:
        """Read where the log ends, and which ledgers it has.

        Returns:
            False if ledgers were trimmed since the positions were taken, or nothing says where it ends.

        Raises:
            FileNotFoundError: the topic was deleted.
        """
        for _ in range(_LOOKS):
            journal = self._journal_word(self._words())
            words = self._words()
            if self._journal_word(words) == journal:
                break  # the tail was read while the journal was so
        else:
            return False
        tail, names = words[TopicWord.TAIL], descriptors.names_in(self.directory)
        ledgers = ledgers_with_cold(self.directory, names)
        self.is_of_function = filenames.FUNCTION_LOCK in names
        to = split_tail(tail)[0]
        self._cut = _Cut(tail, journal, tuple(one for one in ledgers if self._first <= one <= to))
        words = self._words()
        return words[TopicWord.TRIM] == self._first and (tail > 0 or not ledgers)

    def tail(self) -> int:
        """The tail word now."""
        return self._words()[TopicWord.TAIL]

    def take_log(self) -> bool:
        """Take the ledgers up to the cut, and the compacted ledger, unless they are taken.

        Returns:
            False if some were trimmed or replaced before they could be copied.

        Raises:
            FileNotFoundError: the topic was deleted.
            StorageError: files are missing all the time, or damaged.
        """
        if self._copied == self._cut:
            return True
        for _ in range(_ATTEMPTS):
            try:
                for name in self._compacted:
                    path = os.path.join(self.directory, name)
                    self._target.take_unchanging(self._relative(path), path)
                self._take_journal(self.directory, self._cut.journal)
                self._take_ledgers(self._cut.tail, self._cut.ledgers)
                self._copied = self._cut
                return True
            except FileNotFoundError as e:
                self._check_there()
                words = self._words()
                is_trimmed = words[TopicWord.TRIM] != self._first
                if is_trimmed or self._is_replaced(words):
                    return False
                missing = e  # a ledger was offloaded meanwhile, or fetched back
        raise self._moving(missing)

    def _is_replaced(self, words: tuple[int, ...]) -> bool:
        """Whether a compaction, or a new generation of the journal, took the place of files of the cut."""
        if self._compaction_record() != self._record:
            return True
        before, now = self._cut.journal, self._journal_word(words)
        return before is None or now is None or split_journal(before)[0] != split_journal(now)[0]

    def take_documents(self) -> None:
        """Take the documents that are replaced as a whole: description, policies, schemas and the like.

        Raises:
            FileNotFoundError: the topic was deleted.
        """
        for _ in range(_ATTEMPTS):
            names = filter(self._is_document, descriptors.names_in(self.directory))
            try:
                for name in sorted(names):
                    path = os.path.join(self.directory, name)
                    self._target.take_unchanging(self._relative(path), path)
                return
            except FileNotFoundError as e:
                self._check_there()
                missing = e
        raise self._moving(missing)

    def is_there(self) -> bool:
        """Whether the directory is there."""
        return os.path.isdir(self.directory)

    def _check_there(self) -> None:
        if not self.is_there():
            raise FileNotFoundError(self.directory)

    def _moving(self, missing: FileNotFoundError) -> StorageError:
        return StorageError(
            path=self.directory,
            reason=f"a file of the topic is missing whenever it is to be copied: {missing.filename}",
            remedy="check the store; or try again when less is trimmed. The backup before is as it was",
        )

    def _relative(self, path: str) -> str:
        return os.path.relpath(path, self._root).replace(os.sep, "/")

    def _words(self) -> tuple[int, ...]:
        words = trusted_words(self.directory, KIND_TOPIC)
        return words or (0,) * 512

    def _journal_word(self, words: tuple[int, ...]) -> int | None:
        is_checked = words[JOURNAL_CHECKED] == words[TopicWord.EPOCH] + 1
        return words[TopicWord.JOURNAL] if is_checked else None

    def _is_believed(self) -> bool:
        names = descriptors.names_in(self.directory)
        is_used = filenames.CONTROL in names or bool(filenames.ledgers_of(names))
        if is_used and not trusted_words(self.directory, KIND_TOPIC):
            return False
        if any(filenames.parse_generation(one) is not None for one in names):
            if self._journal_word(self._words()) is None:
                return False
        return all(trusted_words(one, KIND_SUBSCRIPTION) for one in self._subscriptions())

    def _subscriptions(self) -> list[str]:
        parent = filenames.subscriptions_path(self.directory)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return [
                os.path.join(parent, name)
                for name in descriptors.names_in(parent)
                if not name.startswith(NON_DURABLE_PREFIX) and not filenames.is_gone(name)
            ]
        return []

    # -- 1. positions ------------------------------------------------------------------------------

    def _take_journals(self) -> None:
        for directory in self._subscriptions():
            if os.path.isdir(directory):  # else it ended
                words = trusted_words(directory, KIND_SUBSCRIPTION)
                try:
                    self._take_journal(directory, words[SubscriptionWord.JOURNAL] if words else None)
                    path = filenames.compacted_start_path(directory)
                    if os.path.exists(path):
                        self._target.take_unchanging(self._relative(path), path)
                except FileNotFoundError:
                    if os.path.isdir(directory):
                        raise
                    self._target.drop(self._relative(directory))  # it ended meanwhile

    def _take_compaction_record(self) -> None:
        """Take the record of the last compaction: its horizon is not behind a tail that is read later."""
        while True:
            self._record = self._compaction_record()
            self._compacted = sorted(
                name
                for name, number in compacted_in(descriptors.names_in(self.directory)).items()
                if number > 0
            )
            if self._compaction_record() == self._record:
                break  # else a compaction ended meanwhile, which replaced a file
        if self._record is not None:
            path = filenames.compaction_path(self.directory)
            self._target.take_bytes(self._relative(path), self._record)

    def _compaction_record(self) -> bytes | None:
        try:
            return disk.DISK.read_file(filenames.compaction_path(self.directory))
        except FileNotFoundError:
            return None

    def _is_document(self, name: str) -> bool:
        if name in _NOT_COPIED or name == filenames.COMPACTION or name.endswith((*_OTHERS, *_OF_LEDGERS)):
            return False
        is_of_journal = filenames.parse_generation(name) is not None
        is_of_journal |= filenames.parse_generation(name, journal=False) is not None
        return not is_of_journal and not compacted_in([name])

    def _take_journal(self, directory: str, word: int | None) -> None:
        """The generation that the commit word names; all files if it is not to be believed."""
        names = descriptors.names_in(directory)
        journals: dict[int, int | None]
        if word is None:
            journals = {one: None for name in names if (one := filenames.parse_generation(name)) is not None}
        else:
            number, committed = split_journal(word)
            journals = {number: committed} if committed else {}
            if not committed and os.path.basename(filenames.journal_path(directory, number)) in names:
                journals = {number: None}  # the file itself says whether it ended, or the word is damaged
            if committed and not self._has(directory, word):
                found = {filenames.parse_generation(name) for name in names} - {None, number}
                journals = {one: None for one in found if one is not None}
                self._take_short(directory, number, committed)
        for generation, end in journals.items():
            path = filenames.journal_path(directory, generation)
            length = os.path.getsize(path) if end is None else end
            self._target.take_grown(self._relative(path), path, length, JOURNAL_HEADER_SIZE)
            path = filenames.snapshot_path(directory, generation)
            if os.path.basename(path) in names or os.path.exists(path):
                self._target.take_unchanging(self._relative(path), path)

    def _take_short(self, directory: str, generation: int, end: int) -> None:
        """Take a damaged journal that does not have all that its commit word names.

        A restored store has no such word. What is missing is filled with bytes that are no command, so that
        it finds the damage, too; what a power loss leaves would look the same.
        """
        path, snapshot = (
            filenames.journal_path(directory, generation),
            filenames.snapshot_path(directory, generation),
        )
        data = disk.DISK.read_file(path) if os.path.exists(path) else b""
        filler = _NO_COMMAND * (max(end - len(data), 512) // len(_NO_COMMAND) + 1)
        self._target.take_bytes(self._relative(path), data + filler[len(data) % len(_NO_COMMAND) :])
        if os.path.exists(snapshot):
            self._target.take_unchanging(self._relative(snapshot), snapshot)

    def _has(self, directory: str, word: int) -> bool:
        """Whether the journal that a commit word names is there, as long as it says.

        Raises:
            FileNotFoundError: it is not, and the word is another meanwhile; or the directory is gone.
        """
        number, committed = split_journal(word)
        try:
            return os.path.getsize(filenames.journal_path(directory, number)) >= committed
        except FileNotFoundError:
            if directory == self.directory:
                is_named = self._journal_word(self._words()) == word
            else:
                words = trusted_words(directory, KIND_SUBSCRIPTION)
                is_named = bool(words) and words[SubscriptionWord.JOURNAL] == word
            if not is_named or not os.path.isdir(directory):
                raise
            return False

    # -- 3. ledgers --------------------------------------------------------------------------------

    def _take_ledgers(self, tail: int, ledgers: tuple[int, ...]) -> None:
        tail_ledger, tail_end = split_tail(tail)
        for number, ledger in enumerate(ledgers):
            end: int | None = tail_end
            entries: int | None = None
            if ledger != tail_ledger:
                end, entries = self._ending(ledger, ledgers[number + 1])
            self._take_ledger(ledger, end, entries)

    def _ending(self, ledger: int, following: int) -> tuple[int | None, int | None]:
        """Where a closed ledger ends, and how many entries it has; None if nothing says it."""
        with contextlib.suppress(CorruptionError):
            header = read_segment_header(self.directory, following)
            if header.prev_ledger_id == ledger:
                return header.prev_end_offset, header.prev_last_entry_id + 1
        return None, None

    def _take_ledger(self, ledger: int, end: int | None, entries: int | None) -> None:
        path = filenames.log_path(self.directory, ledger)
        if not os.path.exists(path):
            self._take_cold(ledger)
            return
        length = os.path.getsize(path) if end is None else max(end, FIRST_FRAME_OFFSET)
        length = min(length, os.path.getsize(path))
        is_new = self._target.take_grown(self._relative(path), path, length, SEGMENT_HEADER_SIZE)
        if entries is None:
            entries = _entries(path, length)
        self._take_index(ledger, entries, is_new=is_new)

    def _take_index(self, ledger: int, entries: int | None, *, is_new: bool) -> None:
        """Take the slots of so many entries; None for all that there are."""
        path = filenames.index_path(self.directory, ledger)
        end = None if entries is None else SLOTS_OFFSET + entries * SLOT_SIZE
        try:
            self._target.take_derived(self._relative(path), path, end, is_new=is_new)
        except FileNotFoundError:
            if self._words()[TopicWord.TRIM] != self._first:
                raise  # it was trimmed meanwhile, with its log; else a restored store derives it

    def _take_cold(self, ledger: int) -> None:
        """Take the note and the index of a ledger whose log is in a location. A store made of the copy uses
        the same objects, and does not remove them."""
        note = offloaded_ledger(self.directory, ledger)
        if note is None:
            raise FileNotFoundError(self.directory)
        path = filenames.cold_path(self.directory, ledger)
        self._target.take_bytes(self._relative(path), note._replace(is_shared=True).packed())
        self._take_index(ledger, note.entries, is_new=False)


def _entries(path: str, end: int) -> int | None:
    """The number of entries of a log that ends there; None if the last one cannot be read."""
    if end <= FIRST_FRAME_OFFSET:
        return 0
    fd = disk.DISK.open_file(path, os.O_RDONLY)
    try:
        zero, length = TRAILER.unpack(disk.DISK.pread(fd, TRAILER_SIZE, end - TRAILER_SIZE))
        if zero or not MIN_FRAME_SIZE <= length <= end - FIRST_FRAME_OFFSET:
            return None
        frame = disk.DISK.pread(fd, length, end - length)
        return read_header(frame, 0, length).entry_id + 1
    except CorruptionError:
        return None
    finally:
        os.close(fd)
