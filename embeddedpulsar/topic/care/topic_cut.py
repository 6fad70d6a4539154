"""The files of one topic, as of one moment, taken while others write.

The order makes them agree, without a lock:

1. the journals of the subscriptions and of the topic, up to their commit words, and the documents;
2. the tail word: the cut;
3. the ledgers up to it, none of which changes below it.

So no subscription is ahead of the log, and no producer has stored more than the log has; what was stored
before step 1 is in it. If ledgers were trimmed meanwhile, by what was acknowledged after step 1, all is done
again: what was taken is there already.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Final

from embeddedpulsar.exceptions import StorageError
from embeddedpulsar.format.control import (
    KIND_SUBSCRIPTION,
    KIND_TOPIC,
    SubscriptionWord,
    TopicWord,
    split_journal,
    split_tail,
)
from embeddedpulsar.format.frame import MIN_FRAME_SIZE, TRAILER, TRAILER_SIZE, read_header
from embeddedpulsar.format.index import SLOT_SIZE, SLOTS_OFFSET
from embeddedpulsar.format.journal_record import JOURNAL_HEADER_SIZE
from embeddedpulsar.format.segment_header import FIRST_FRAME_OFFSET, SEGMENT_HEADER_SIZE
from embeddedpulsar.platform import descriptors, disk, failpoints
from embeddedpulsar.storage import filenames
from embeddedpulsar.storage.check import trusted_words
from embeddedpulsar.storage.cold_ledger import ledgers_with_cold, offloaded_ledger
from embeddedpulsar.storage.segment_headers import read_segment_header
from embeddedpulsar.topic.care.backup_target import BackupTarget
from embeddedpulsar.topic.producers.topic_journal import JOURNAL_CHECKED
from embeddedpulsar.topic_name import NON_DURABLE_PREFIX

_ATTEMPTS: Final = 50
_OTHERS: Final = (".lock", ".tmp", filenames.NEW_SUFFIX)
_NOT_COPIED: Final = (filenames.CONTROL, filenames.LOCK, filenames.SUBSCRIPTIONS, filenames.PINS)

failpoints.declare("backup:journals_taken", "backup:cut")


class TopicCut:
    """Takes the files of one topic. One thread; the store may be in use.

    Args:
        root: the directory of the store.
        directory: of the topic.
        target: takes the files.
        open_topic: opens the topic and its subscriptions, so that their control words are believed.
    """

    def __init__(
        self, root: str, directory: str, target: BackupTarget, open_topic: Callable[[], object]
    ) -> None:
        self._root: Final = root
        self._directory: Final = directory
        self._target: Final = target
        self._open_topic: Final = open_topic

    def take(self) -> int:
        """Take all files.

        Returns:
            The tail word of the cut.

        Raises:
            FileNotFoundError: the topic was deleted.
            StorageError: it is trimmed or changed all the time; or a file is damaged.
        """
        if not self._is_believed():
            self._open_topic()
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):
                trimmed = self._words()[TopicWord.TRIM]
                self._target.drop(self._relative(self._directory))
                self._take_journals()
                failpoints.hit("backup:journals_taken")
                words = self._words()
                failpoints.hit("backup:cut")
                self._take_ledgers(words)
                if self._words()[TopicWord.TRIM] == trimmed:
                    return words[TopicWord.TAIL]
            if not os.path.isdir(self._directory):
                raise FileNotFoundError(self._directory)
        raise StorageError(
            path=self._directory,
            reason="files of the topic went away whenever they were to be copied",
            remedy="check the store; a ledger may be missing. Or try again when less is trimmed",
        )

    def tail(self) -> int:
        """The tail word now."""
        return self._words()[TopicWord.TAIL]

    def _relative(self, path: str) -> str:
        return os.path.relpath(path, self._root).replace(os.sep, "/")

    def _words(self) -> tuple[int, ...]:
        words = trusted_words(self._directory, KIND_TOPIC)
        return words or (0,) * 512

    def _is_believed(self) -> bool:
        names = descriptors.names_in(self._directory)
        is_used = filenames.CONTROL in names or bool(filenames.ledgers_of(names))
        if is_used and not trusted_words(self._directory, KIND_TOPIC):
            return False
        return all(trusted_words(one, KIND_SUBSCRIPTION) for one in self._subscriptions())

    def _subscriptions(self) -> list[str]:
        parent = filenames.subscriptions_path(self._directory)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return [
                os.path.join(parent, name)
                for name in descriptors.names_in(parent)
                if not name.startswith(NON_DURABLE_PREFIX) and not filenames.is_gone(name)
            ]
        return []

    # -- 1. journals and documents -----------------------------------------------------------------

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
        words = self._words()
        is_checked = words[JOURNAL_CHECKED] == words[TopicWord.EPOCH] + 1
        self._take_journal(self._directory, words[TopicWord.JOURNAL] if is_checked else None)
        documents = self._documents()
        for name in documents:
            path = os.path.join(self._directory, name)
            self._target.take_unchanging(self._relative(path), path)
        if self._documents() != documents:  # one of them may name a new one
            raise FileNotFoundError(self._directory)

    def _documents(self) -> list[str]:
        """Names of files that are replaced as a whole: description, policies, compacted ledgers."""
        return sorted(name for name in descriptors.names_in(self._directory) if self._is_document(name))

    def _is_document(self, name: str) -> bool:
        if name in _NOT_COPIED or name.endswith(_OTHERS):
            return False
        is_of_journal = filenames.parse_generation(name) is not None
        is_of_journal |= filenames.parse_generation(name, journal=False) is not None
        of_ledgers = (filenames.LOG_SUFFIX, filenames.INDEX_SUFFIX, filenames.COLD_SUFFIX)
        return not is_of_journal and not name.endswith(of_ledgers)

    def _take_journal(self, directory: str, word: int | None) -> None:
        """The generation that the commit word names; all files if it is not to be believed."""
        names = descriptors.names_in(directory)
        journals: dict[int, int | None]
        if word is None:
            journals = {one: None for name in names if (one := filenames.parse_generation(name)) is not None}
        else:
            number, committed = split_journal(word)
            journals = {number: committed} if committed else {}
        for generation, end in journals.items():
            path = filenames.journal_path(directory, generation)
            length = os.path.getsize(path) if end is None else end
            self._target.take_grown(self._relative(path), path, length, JOURNAL_HEADER_SIZE)
            path = filenames.snapshot_path(directory, generation)
            if os.path.basename(path) in names or os.path.exists(path):
                self._target.take_unchanging(self._relative(path), path)

    # -- 3. ledgers --------------------------------------------------------------------------------

    def _take_ledgers(self, words: tuple[int, ...]) -> None:
        tail_ledger, tail_end = split_tail(words[TopicWord.TAIL])
        present = ledgers_with_cold(self._directory, descriptors.names_in(self._directory))
        ledgers = [ledger for ledger in present if words[TopicWord.TRIM] <= ledger <= tail_ledger]
        for number, ledger in enumerate(ledgers):
            end: int | None = tail_end
            entries: int | None = None
            if ledger != tail_ledger:
                end, entries = self._ending(ledger, ledgers[number + 1])
            self._take_ledger(ledger, end, entries)

    def _ending(self, ledger: int, following: int) -> tuple[int | None, int | None]:
        """Where a closed ledger ends, and how many entries it has; None if nothing says it."""
        with contextlib.suppress(StorageError):
            header = read_segment_header(self._directory, following)
            if header.prev_ledger_id == ledger:
                return header.prev_end_offset, header.prev_last_entry_id + 1
        return None, None

    def _take_ledger(self, ledger: int, end: int | None, entries: int | None) -> None:
        path = filenames.log_path(self._directory, ledger)
        if not os.path.exists(path):
            self._take_cold(ledger)
            return
        length = os.path.getsize(path) if end is None else max(end, FIRST_FRAME_OFFSET)
        length = min(length, os.path.getsize(path))
        is_new = self._target.take_grown(self._relative(path), path, length, SEGMENT_HEADER_SIZE)
        index = filenames.index_path(self._directory, ledger)
        if (not is_new and self._target.keep(self._relative(index))) or not os.path.exists(index):
            return
        data = disk.DISK.read_file(index)
        if entries is None:
            entries = _entries(path, length)
        kept = data if entries is None else data[: SLOTS_OFFSET + entries * SLOT_SIZE]
        self._target.take_bytes(self._relative(index), kept, len(data))

    def _take_cold(self, ledger: int) -> None:
        """Take the note and the index of a ledger whose log is in a location. A store made of the copy uses
        the same objects, and does not remove them."""
        note = offloaded_ledger(self._directory, ledger)
        if note is None:
            raise FileNotFoundError(self._directory)
        path = filenames.cold_path(self._directory, ledger)
        self._target.take_bytes(self._relative(path), note._replace(is_shared=True).packed())
        index = filenames.index_path(self._directory, ledger)
        if os.path.exists(index):
            data = disk.DISK.read_file(index)
            kept = data[: SLOTS_OFFSET + note.entries * SLOT_SIZE]
            self._target.take_bytes(self._relative(index), kept, len(data))


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
    except StorageError:
        return None
    finally:
        os.close(fd)
