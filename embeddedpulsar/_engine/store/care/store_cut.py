"""The moment of a backup: positions of all topics first, then the ends of all logs, then what was written.

A message that is acknowledged has its effects: an output, a dead letter, a retry letter, a change of a
function's state was stored before. So the positions of all subscriptions, and the tables of the producers,
are taken before the end of any log is read. What was acknowledged by then has its effects before these ends;
what was not comes again. The bytes below the ends do not change, so they are copied afterwards, however long
that takes, and the documents that messages refer to come last.

Transactions have one decision for all topics and subscriptions, so the copy has the decisions of one moment,
before any end of a log is read: what had committed by then has stored all of its messages. What commits later
is not among them, and counts as aborted in the copy: its messages are passed over, and what it acknowledged
comes again. What a transaction acknowledged is in the journals of subscriptions, which say later that it
committed. So the journals that a decision named since the positions were taken are taken again, behind the
moment: then they have all of what committed before it. If a decision names one of them meanwhile, there is
another moment; after some attempts the lock is held, so that nothing is decided.

Two kinds of commits write to several logs, and say in one place that they did: batches of sinks, and runs of
effectively-once functions, whose state topic has positions and outputs in one entry, stored before the
outputs. There is no order of the logs that would suit them. The ends of all logs are read while no such
commit begins: the record of each is read before and after, and where it changed, all ends are read again,
after some attempts under the lock of that sink or function. The ends are words, some 20 us each.

What is trimmed between the positions of its topic and the copy of its log, a topic that is new, a compacted
ledger that is replaced: then the positions of that topic are taken again, and *all* ends are read again. What
was copied is not copied again, so each attempt takes less time than the one before.

The files of one topic in a backup, taken in the steps of `StoreCut` while others write.

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
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.cold.cold_ledger import offloaded_ledger
from embeddedpulsar._engine.filenames import compacted_in
from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.format.control import (
    KIND_SUBSCRIPTION,
    KIND_TOPIC,
    KIND_TRANSACTIONS,
    SubscriptionWord,
    TopicWord,
    split_journal,
    split_tail,
)
from embeddedpulsar._engine.format.document import document_crc
from embeddedpulsar._engine.format.frame import (
    FIRST_FRAME_OFFSET,
    MIN_FRAME_SIZE,
    SEGMENT_HEADER_SIZE,
    SLOT_SIZE,
    SLOTS_OFFSET,
    TRAILER,
    TRAILER_SIZE,
    read_header,
)
from embeddedpulsar._engine.format.journal_record import (
    JOURNAL_HEADER_SIZE,
    JournalHeader,
    pack_journal_header,
)
from embeddedpulsar._engine.format.transaction_record import SUBSCRIPTION, Abort
from embeddedpulsar._engine.log.log_check import trusted_words
from embeddedpulsar._engine.log.segment import ledgers_with_cold, read_segment_header
from embeddedpulsar._engine.log.topic_control import boot_in
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, nofollow, threads
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
from embeddedpulsar._engine.store import root_layout
from embeddedpulsar._engine.store.care.backup_target import BackupTarget
from embeddedpulsar._engine.store.care.store_check import ProgressMeter
from embeddedpulsar._engine.store.topic_journal import JOURNAL_CHECKED
from embeddedpulsar._engine.txn.transaction_view import TransactionView
from embeddedpulsar.exceptions import (
    CorruptionError,
    LockTimeout,
    StorageError,
    TopicNotFound,
)
from embeddedpulsar.records import NamedTuple, Protocol
from embeddedpulsar.topic_name import NON_DURABLE_PREFIX

_ATTEMPTS: Final = 50
_LOOKS: Final = 1000
_OTHERS: Final = (".lock", ".tmp", filenames.NEW_SUFFIX)
_NOT_COPIED: Final = (
    *(filenames.CONTROL, filenames.LOCK, filenames.SUBSCRIPTIONS, filenames.PINS),
    filenames.FOLDED,  # taken with the cut
)
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
        self._folded: bytes | None = None
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
        # A topic that no process has opened since the machine went down: opening recovers its words.
        if not self._is_believed():
            self._open_topic()
        for _ in range(_ATTEMPTS):
            try:
                # The first ledger that is needed, before the journals: what is trimmed from here on is seen
                # by `cut`.
                self._first = self._words()[TopicWord.TRIM]
                if self._is_begun:  # by an attempt before; each search takes as long as there are files
                    self._target.drop(self._relative(self.directory))
                # What was copied before counts again only if it is named again; the bytes themselves stay in
                # the target.
                self._is_begun, self._copied = True, None
                self._take_journals()
                self._take_compaction_record()
                return
            except FileNotFoundError as e:
                # A generation of a journal was replaced, or a subscription ended: the list is read anew.
                self._check_there()
                missing = e  # another generation of a journal; or a subscription ended
        raise self._moving(missing)

    def retake_journals(self) -> None:
        """Take the journals of the subscriptions again, as they are now.

        Raises:
            FileNotFoundError: the topic was deleted, or a subscription ended meanwhile.
        """
        self._target.drop(self._relative(filenames.subscriptions_path(self.directory)))
        self._take_journals()

    def cut(self) -> bool:
        """Read where the log ends, and which ledgers it has.

        Returns:
            False if ledgers were trimmed since the positions were taken, or nothing says where it ends.

        Raises:
            FileNotFoundError: the topic was deleted.
        """
        # What the topic says of transactions that the store has forgotten. Read behind the decisions, which
        # lack them, and before the trim point, since it says nothing of what is trimmed.
        self._folded = self._read(filenames.folded_path(self.directory))
        # A loop without a lock: the tail is of the moment at which the journal's word was the same before and
        # after it. The loop gives up only where a writer commits without a pause.
        for _ in range(_LOOKS):
            journal = self._journal_word(self._words())
            words = self._words()
            if self._journal_word(words) == journal:
                break  # the tail was read while the journal was so
        else:
            return False
        tail, names = words[TopicWord.TAIL], descriptors.names_in(self.directory)
        threads.await_stores()  # what stands before that tail is copied, and not verified
        ledgers = ledgers_with_cold(self.directory, names)
        self.is_of_function = filenames.FUNCTION_LOCK in names
        to = split_tail(tail)[0]
        self._cut = _Cut(tail, journal, tuple(ledger for ledger in ledgers if self._first <= ledger <= to))
        # Ledgers that went since the positions were taken hold messages that these need.
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
        # An attempt before has copied all of it already, and the cut is the same.
        if self._copied == self._cut:
            return True
        for _ in range(_ATTEMPTS):
            try:
                # The compacted ledger first: it may be replaced while ledgers are copied, which
                # `_is_replaced` finds.
                for name in self._compacted:
                    path = os.path.join(self.directory, name)
                    self._target.take_unchanging(self._relative(path), path)
                # Up to the word of the cut, even if the journal has grown since.
                self._take_journal(self.directory, self._cut.journal)
                self._take_ledgers(self._cut.tail, self._cut.ledgers)
                self._copied = self._cut
                return True
            except FileNotFoundError as e:
                self._check_there()
                words = self._words()
                # Two reasons to begin anew, with the positions: trimming and compaction. Anything else that
                # is missing is looked for again.
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
        if self._folded is not None:
            path = filenames.folded_path(self.directory)
            self._target.take_bytes(self._relative(path), self._folded)
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
        # A topic with a journal of producers needs the word that says how far it goes.
        if any(filenames.parse_generation(name) is not None for name in names):
            if self._journal_word(self._words()) is None:
                return False
        return all(trusted_words(subscription, KIND_SUBSCRIPTION) for subscription in self._subscriptions())

    def _subscriptions(self) -> list[str]:
        parent = filenames.subscriptions_path(self.directory)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return [
                os.path.join(parent, name)
                for name in descriptors.names_in(parent)
                if not name.startswith(NON_DURABLE_PREFIX)
                and not filenames.is_gone(name)
                and not _is_of_another(os.path.join(parent, name))
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
        return self._read(filenames.compaction_path(self.directory))

    def _read(self, path: str) -> bytes | None:
        try:
            return disk.DISK.read_file(path)
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
            # No word says which generation holds: all files are copied, and the restored store finds out.
            journals = {
                generation: None
                for name in names
                if (generation := filenames.parse_generation(name)) is not None
            }
        else:
            number, committed = split_journal(word)
            journals = {number: committed} if committed else {}
            # The word says that nothing is committed, but there is a file.
            if not committed and os.path.basename(filenames.journal_path(directory, number)) in names:
                journals = {number: None}  # the file itself says whether it ended, or the word is damaged
            if committed and not self._has(directory, word):
                # The word names more than there is: the file is damaged, and is taken with the damage.
                others = {filenames.parse_generation(name) for name in names} - {None, number}
                journals = {generation: None for generation in others if generation is not None}
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
            # The last ledger ends at the tail, every other one where the next one says.
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
        # Its log is in an offload location: the note is enough.
        if not os.path.exists(path):
            self._take_cold(ledger)
            return
        # Nothing says where it ends: all of it is taken, and the restored store scans it.
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
            # Without its index a ledger is whole: the index is derived again.
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


WAIT_S: Final = 1.0
"""So long a backup waits for the lock of what commits to several logs."""


class SharedRecords(Protocol):
    """Records of a package above the engine that say of several logs at once what was written to them. One
    thread; the store may be in use."""

    @property
    def reason(self) -> str:
        """Why there is no cut if none was current, as a sentence of an error: who committed."""

    def hold(self, locks: contextlib.ExitStack) -> None:
        """Keep those from committing that did during an attempt before. One that commits for longer than
        `WAIT_S` is not waited for."""

    def take_records(self) -> None:
        """Take the records, and what they name of files that are not in a log."""

    def is_current(self) -> bool:
        """Whether none began to commit, came or went since `take_records`."""

    def finish(self, directories: Mapping[str, str]) -> None:
        """Settle which commits that were begun are in the backup.

        Args:
            directories: of the topics in the backup, by full name.
        """


def hold_for(path: str, locks: contextlib.ExitStack) -> bool:
    """Take a file lock until ``locks`` are closed.

    Returns:
        False where that may not be, or its holder keeps it for longer than `WAIT_S`.
    """
    with contextlib.suppress(FileNotFoundError, PermissionError, LockTimeout):
        lock = FileLock(path)
        locks.callback(lock.close)
        locks.callback(lock.release)
        lock.acquire(WAIT_S)
        return True
    return False


_UNLOCKED: Final = 3
"""So often without locks; then those that committed meanwhile wait while the ends are read."""
_FUNCTIONS: Final = "functions committed whenever the ends of the logs were read"
_TOPICS: Final = "topics were made, trimmed or compacted whenever they were copied"

_TRANSACTIONS: Final = "transactions acknowledged messages whenever the positions were taken"
_FIRST_GENERATION: Final = 1


class TransactionMoment:
    """The decisions of a backup: those of one moment, and which subscriptions were named by one since the
    moment before. One thread; the store may be in use, and nothing of it is changed.

    Args:
        root: of the store.
    """

    def __init__(self, root: str) -> None:
        self.directory: Final = root_layout.in_root(root, root_layout.TRANSACTIONS)
        boot = boot_in(self.directory)
        # Whether the owner of an open transaction lives is of no account: what is not decided is not copied.
        self._view: Final = TransactionView(root, boot, SYSTEM_CLOCK, lambda uuid: True)
        self._view.refresh()
        self._word = self._view.word

    @property
    def lock_path(self) -> str:
        """The lock under which transactions are decided."""
        return filenames.lock_path(self.directory)

    def exists(self) -> bool:
        """Whether the store had a transaction."""
        return os.path.isdir(self.directory)

    def advance(self) -> Callable[[str], bool]:
        """Have the decisions be those of now. Returns what says of a topic, by its directory below that of
        all topics, whether one since the moment before may name a subscription of it."""
        before = self._word
        if not self.exists():
            return lambda directory: False
        self._view.refresh()
        self._word = self._view.word
        return self._named_since(before)

    def named_since(self) -> Callable[[str], bool]:
        """As `advance`, of what was decided since the moment, which stays."""
        return self._named_since(self._word) if self.exists() else lambda directory: False

    def _named_since(self, word: int) -> Callable[[str], bool]:
        decided = self._view.decided_since(word)
        if decided is None:
            return lambda directory: True
        # Where one that the decisions have as prepared was aborted behind them, a journal that is taken now
        # says so, and lacks what a commit of the copy needs. The record of an abort names no participants.
        prepared = {each.txn_id: each.participants for each in self._view.prepared()}
        names = {
            facts.name
            for command in decided
            for facts in (
                prepared.get(command.txn_id, ()) if isinstance(command, Abort) else command.participants
            )
            if facts.kind == SUBSCRIPTION
        }
        return lambda directory: any(f"{name}/".startswith(f"{directory}/") for name in names)

    def files(self) -> dict[str, bytes]:
        """The files of the copy, below its root: a journal that starts from the decisions, and has no other.
        To be asked for behind the ends of all logs: ids that these may have are not given out by the copy."""
        if not self.exists():
            return {}
        snapshot = self._view.snapshot()
        seed = int.from_bytes(os.urandom(4), "little")
        header = JournalHeader(_FIRST_GENERATION, seed, document_crc(snapshot), KIND_TRANSACTIONS)
        parts = {
            filenames.journal_path(self.directory, _FIRST_GENERATION): pack_journal_header(header),
            filenames.snapshot_path(self.directory, _FIRST_GENERATION): snapshot,
        }
        return {f"{root_layout.TRANSACTIONS}/{os.path.basename(path)}": data for path, data in parts.items()}

    def close(self) -> None:
        """Unmap."""
        self._view.close()


failpoints.declare("backup:journals_retaken", "backup:transactions_taken")
failpoints.declare("backup:journals_taken", "backup:sinks_taken", "backup:cut", "backup:logs_taken")


class StoreCut:
    """The order above, over the topics of a backup. Invariant: when `take_all` returns, every log that was
    taken ends behind all positions that were. One thread; the store may be in use.

    Args:
        root: of the store, for errors.
        list_topics: the topics of the backup that exist now; the argument says whether it is the first call.
        open_cut: the files of a topic.
        drop: forgets what was taken of a topic.
        shared: records of packages above, of several logs at once.
        transactions: the decisions; of a moment before this is made.
        meter: told which topic is copied.
    """

    def __init__(
        self,
        root: str,
        *,
        list_topics: Callable[[bool], list[TopicEntry]],
        open_cut: Callable[[TopicEntry], TopicCut],
        drop: Callable[[TopicEntry], object],
        shared: Sequence[SharedRecords],
        transactions: TransactionMoment,
        meter: ProgressMeter,
    ) -> None:
        self._root: Final = root
        self._list: Final = list_topics
        self._open: Final = open_cut
        self._drop: Final = drop
        self._shared: Final = shared
        self._transactions: Final = transactions
        self._meter: Final = meter
        self._cuts: dict[TopicEntry, TopicCut | None] = {}  # None: it has no directory
        self._due: list[TopicEntry] = []  # their positions are to be taken
        self._busy: set[TopicEntry] = set()  # functions that committed during an attempt
        self._reason = _TOPICS
        self._missing: FileNotFoundError | None = None

    def take_all(self) -> list[TopicEntry]:
        """Take everything; return the topics that were taken.

        Raises:
            StorageError: something went on in every attempt that allows no cut; or a file is damaged.
        """
        self._follow_list(is_first=True)
        # Positions, then ends, then what was written up to them; begun anew with the topics in which
        # something moved. Each attempt copies less, since what was copied is not copied again.
        for attempt in range(_ATTEMPTS):
            self._take_positions()
            failpoints.hit("backup:journals_taken")
            # Before the ends: what had committed by then has stored all of its messages.
            if not self._take_decisions(with_locks=attempt >= _UNLOCKED):
                continue
            failpoints.hit("backup:transactions_taken")
            # Without locks at first, so that a backup delays no one; then sinks and functions that commit all
            # the time are held for the moment in which the ends are read.
            if self._cut_logs(with_locks=attempt >= _UNLOCKED) and self._take_logs():
                break
        else:
            raise self._error() from self._missing
        # Documents last: messages refer to schemas that were registered before them.
        failpoints.hit("backup:logs_taken")
        self._each(lambda _, cut: cut.take_documents())
        present = {(entry.name, entry.incarnation) for entry in self._list(False)}
        for entry in list(self._cuts):
            if (entry.name, entry.incarnation) not in present:  # deleted while its files were copied
                self._drop_topic(entry)
        return [
            entry if cut is not None else entry._replace(is_made=False) for entry, cut in self._cuts.items()
        ]

    def _follow_list(self, *, is_first: bool = False) -> None:
        entries = self._list(is_first)
        for gone in self._cuts.keys() - set(entries):
            self._drop_topic(gone)
        self._due += [entry for entry in entries if entry not in self._cuts]
        for entry in self._due:
            if entry not in self._cuts:
                self._cuts[entry] = self._open(entry) if entry.is_made else None

    def _take_positions(self) -> None:
        due, self._due = dict.fromkeys(self._due), []
        for entry in due:
            cut = self._cuts.get(entry)
            if cut is not None:
                self._guarded(entry, cut, lambda _, topic_cut: topic_cut.take_positions())

    def _take_decisions(self, *, with_locks: bool) -> bool:
        """Take the decisions of a moment, and again the journals of subscriptions that one named since they
        were taken. False if one names these once more meanwhile."""
        transactions = self._transactions
        with contextlib.ExitStack() as locks:
            is_held = with_locks and transactions.exists() and hold_for(transactions.lock_path, locks)
            is_named = transactions.advance()
            named = {
                entry
                for entry, cut in self._cuts.items()
                if cut is not None and is_named(entry.below_topics())
            }
            for entry in named:
                cut = self._cuts[entry]
                if cut is not None:
                    self._guarded(entry, cut, lambda _, topic_cut: topic_cut.retake_journals())
            # What was taken again must not say that a transaction committed which the decisions do not have.
            if is_held or not named:
                return True
            failpoints.hit("backup:journals_retaken")
            is_named = transactions.named_since()
            self._reason = _TRANSACTIONS
            return not any(is_named(entry.below_topics()) for entry in named)

    def _cut_logs(self, *, with_locks: bool) -> bool:
        """Read the ends of all logs. False if they are no moment: then it is to be done again."""
        # Before and after the ends are read: what committed in between has some of its outputs in them.
        with contextlib.ExitStack() as locks:
            if with_locks:
                for records in self._shared:
                    records.hold(locks)
            for records in self._shared:
                records.take_records()
            failpoints.hit("backup:sinks_taken")
            held = self._hold_functions(locks) if with_locks else set()
            before = self._tails_of_functions()
            # New topics, or ones whose files moved: their positions come before the ends of all logs.
            self._follow_list()
            if self._due:
                self._reason = _TOPICS
                return False
            self._each(self._cut_log)
            failpoints.hit("backup:cut")
            after = self._tails_of_functions()
            moved = {entry for entry in after if after[entry] != before.get(entry)} - held
            self._busy |= moved
            # Each is asked: it holds those back next time that committed in this attempt.
            stale = [records for records in self._shared if not records.is_current()]
            if stale:
                self._reason = stale[0].reason
            elif moved:
                self._reason = _FUNCTIONS
            elif self._due:
                self._reason = _TOPICS
            else:
                return True
            return False

    def _cut_log(self, entry: TopicEntry, cut: TopicCut) -> None:
        if not cut.cut():
            self._due.append(entry)

    def _hold_functions(self, locks: contextlib.ExitStack) -> set[TopicEntry]:
        """Keep functions from committing that did before; returns those that do not."""
        held = set()
        for entry in sorted(self._busy & self._cuts.keys()):
            cut = self._cuts[entry]
            if cut is not None and hold_for(filenames.function_lock_path(cut.directory), locks):
                held.add(entry)
        return held

    def _tails_of_functions(self) -> dict[TopicEntry, int]:
        tails: dict[TopicEntry, int] = {}

        def add_tail(entry: TopicEntry, cut: TopicCut) -> None:
            if cut.is_of_function:
                tails[entry] = cut.tail()

        self._each(add_tail)
        return tails

    def _take_logs(self) -> bool:
        """Copy up to the ends. False if a ledger went before it was copied."""
        # What went once is copied first: it may be trimmed again soon.
        count = len(self._cuts)
        for number, (entry, cut) in enumerate(sorted(self._cuts.items(), key=_copied_last)):
            self._meter.topic(number + 1, count)
            if cut is not None and not self._guarded(entry, cut, lambda _, topic_cut: topic_cut.take_log()):
                cut.went += 1
                self._due.append(entry)
                self._reason = _TOPICS
                return False
        return True

    def _each(self, work: Callable[[TopicEntry, TopicCut], object]) -> None:
        for entry, cut in list(self._cuts.items()):
            if cut is not None:
                self._guarded(entry, cut, work)

    def _guarded(
        self, entry: TopicEntry, cut: TopicCut, work: Callable[[TopicEntry, TopicCut], object]
    ) -> object:
        """Do ``work`` with a topic, which may have been deleted: then there is nothing left to do."""
        with contextlib.suppress(TopicNotFound):
            try:
                return work(entry, cut)
            except FileNotFoundError as e:
                if cut.is_there():  # of a subscription that ended, perhaps
                    self._missing = e
                    self._due.append(entry)
                    return False
        self._cuts[entry] = None  # the list will say whether it was deleted
        self._drop(entry)
        return True

    def _drop_topic(self, entry: TopicEntry) -> None:
        del self._cuts[entry]
        self._drop(entry)

    def _error(self) -> StorageError:
        reason = self._reason
        if self._missing is not None:
            path = self._missing.filename or self._missing
            reason = f"a file is missing whenever it is to be copied: {path}"
        remedy = "check the store, or make the backup when less goes on; the one before is as it was"
        return StorageError(path=self._root, reason=reason, remedy=remedy)


def _is_of_another(path: str) -> bool:
    """Whether it was put beside the directories of subscriptions by another program. A link was not: it may
    stand in the place of a subscription, which a backup must not leave out without a word."""
    return nofollow.kind_of(path) not in (nofollow.NOTHING, nofollow.DIRECTORY, nofollow.LINK)


def _copied_last(item: tuple[TopicEntry, TopicCut | None]) -> int:
    return 0 if item[1] is None else -item[1].went
