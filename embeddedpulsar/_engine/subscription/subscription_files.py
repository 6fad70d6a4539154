"""The directory of one subscription: opened as a whole, looked at without a lock, taken away in the end.

Order of the removal, under the subscription's lock: 1. the word REMOVED says that this directory is not used
again; 2. the directory gets a name that no process looks for; without the lock: 3. its files are removed. A
process that waits for the lock meanwhile, or has it at rest, finds REMOVED in the control words it mapped
before. One that opens the directory finds lock and control words of one and the same life, or opens them
again. A process that dies after 1 leaves the rest to the next one that opens the directory, after 2 to
housekeeping.

What is still known of a subscription of which no file leads to the state any more.

A damaged subscription is kept. It holds the log back from a position behind which everything that was
acknowledged is known to be, and delivers again from there: some messages come again, and none is lost.

The files of `<subscription>/`: its mapped control words, `ctl` (docs/format/control.md), lock and journal;
and what flushes the journal.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from embeddedpulsar._engine.filenames import control_path, gone_path, journal_path, lock_path, snapshot_path
from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.control import (
    ACKED_TABLE_OFFSET,
    CONSUMER_SLOT_SIZE,
    CONSUMER_SLOTS,
    CONSUMER_TABLE_OFFSET,
    GIVEN_TABLE_OFFSET,
    KIND_SUBSCRIPTION,
    SUBSCRIPTION_CONTROL_SIZE,
    ConsumerSlotWord,
    SubscriptionWord,
    split_journal,
)
from embeddedpulsar._engine.format.document import KIND_SUBSCRIPTION_SNAPSHOT, decode_document
from embeddedpulsar._engine.format.journal_record import RECORD_SIZE, JournalRecord
from embeddedpulsar._engine.log.journal_file import JournalFile, choose, generations, note_lost, replay
from embeddedpulsar._engine.log.log_opening import FLUSH, INTERVAL
from embeddedpulsar._engine.log.topic_control import ControlFile, is_deleted
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, nofollow
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar._engine.platform.timing import Clock, SchedulerLike, Timer, is_idle
from embeddedpulsar._engine.subscription.state.dispatch_state import ConsumerRegistry
from embeddedpulsar._engine.subscription.state.entry_states import FIRST_OWNER
from embeddedpulsar._engine.subscription.state.replica import SubscriptionReplica
from embeddedpulsar.damage import Damage, DamageHook
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, StorageError
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, Protocol
from embeddedpulsar.topic_name import NON_DURABLE_PREFIX, subscription_directory_name

if TYPE_CHECKING:
    from typing import Final, Self

    from embeddedpulsar._engine.log.journal import Journal
    from embeddedpulsar._engine.log.log import Log

BITMAP_WORDS: Final = 4
"""Words of a bitmap with a bit for each code of a consumer."""
_WAITERS: Final = SubscriptionWord.WAITERS
_ASSIGNED: Final = SubscriptionWord.ASSIGNED
_SIGN: Final = 1 << 63
_MODULUS: Final = 1 << 64
_HANDED_BITS: Final = 48
HANDED_MASK: Final = (1 << _HANDED_BITS) - 1

_NOTHING_YET: Final = {
    SubscriptionWord.EPOCH: 1,
    SubscriptionWord.VERSION: 1,
    SubscriptionWord.MARK_DELETE_ENTRY: BEFORE_FIRST.entry_id % _MODULUS,
}


class SubscriptionControl(ControlFile):
    """The words of a subscription and the identity of the file they are in.

    Role: what others see of the subscription without its lock: whether it exists, where it stands, and that
    something happened. Everything here is derived from the journal, but for the journal word itself, which is
    the commit, and the waiters.
    Durable: nothing. Callers: any thread reads; writing needs the subscription's lock.
    """

    __slots__ = ("epoch",)
    _kind = KIND_SUBSCRIPTION
    _size = SUBSCRIPTION_CONTROL_SIZE

    def __init__(self, file: MappedFile) -> None:
        epoch = SubscriptionWord.EPOCH
        word = file.words[epoch : epoch + 1]
        self.epoch: Final = word.cast("B").cast("Q", shape=[])  # see `Freshness`
        super().__init__(file)

    @property
    def boot_id(self) -> bytes:
        return b"" if self.header is None else self.header.boot_id

    @property
    def is_removed(self) -> bool:
        """Whether this directory is not used again. Lock-free."""
        try:
            return bool(self.words[SubscriptionWord.REMOVED])
        except ValueError:
            return False  # closed

    @property
    def is_word_known(self) -> bool:
        """Whether something says what the commit word was, be it of another boot or place."""
        words = self.words
        is_stored = self.header is not None and words[SubscriptionWord.EPOCH] > 0
        return is_stored or bool(split_journal(words[SubscriptionWord.JOURNAL])[1])

    def mark_removed(self) -> None:
        """Set REMOVED. Under the lock, when nothing exists here."""
        self.words[SubscriptionWord.REMOVED] = 1

    @classmethod
    def create_first(cls, directory: str, boot: bytes) -> Self:
        """The control words of a directory in which no subscription ever was. They say so, and are believed:
        there is nothing to recover. Under the lock."""
        return cls.create(directory, 0, boot, _NOTHING_YET)

    def clear_words(self) -> None:
        """Clear every word but those that the files are compared with. First step of a recovery.

        A mark-delete position of zeros is behind the true one.
        """
        self.raise_epoch(SubscriptionWord.EPOCH)
        self.raise_epoch(SubscriptionWord.VERSION)
        is_possible = self.is_possible()
        kept = (SubscriptionWord.EPOCH, SubscriptionWord.VERSION)
        self.clear(*kept, *([SubscriptionWord.JOURNAL] if is_possible else []))

    def announce(self) -> None:
        """Make consumers and waiters look: what was read ahead may be void. Before the commit or with it."""
        words = self.words
        words[SubscriptionWord.EPOCH] = (words[SubscriptionWord.EPOCH] + 1) % _MODULUS
        words[SubscriptionWord.VERSION] = (words[SubscriptionWord.VERSION] + 1) % _MODULUS

    def bump(self) -> None:
        """Make waiters look, though nothing they read ahead is void."""
        words = self.words
        words[SubscriptionWord.VERSION] = (words[SubscriptionWord.VERSION] + 1) % _MODULUS

    def publish(self, mark_delete: Position, consumers: int, epoch: int) -> bool:
        """Show where the subscription stands. True if the mark-delete position is in another ledger.

        Words that are right already are not stored: other processes read them all the time, and a store takes
        their line out of the caches of all processors.
        """
        words = self.words
        is_elsewhere = self._show_mark_delete(mark_delete)
        if words[SubscriptionWord.CONSUMERS] != consumers:
            words[SubscriptionWord.CONSUMERS] = consumers
        if words[SubscriptionWord.EPOCH] < epoch:
            words[SubscriptionWord.EPOCH] = epoch
        return is_elsewhere

    def _show_mark_delete(self, mark_delete: Position) -> bool:
        ledger_id, entry_id = mark_delete
        words = self.words
        is_elsewhere = bool(words[SubscriptionWord.MARK_DELETE_LEDGER] != ledger_id)
        if is_elsewhere:
            # A reader between two stores sees a position that is behind the truth, never ahead of it.
            words[SubscriptionWord.MARK_DELETE_ENTRY] = _MODULUS - 1
            words[SubscriptionWord.MARK_DELETE_LEDGER] = ledger_id
        if words[SubscriptionWord.MARK_DELETE_ENTRY] != entry_id % _MODULUS:
            words[SubscriptionWord.MARK_DELETE_ENTRY] = entry_id % _MODULUS
        return is_elsewhere

    def draw_back(self, mark_delete: Position) -> None:
        """Show a mark-delete position before the commit that moves it back. If the process dies right after
        the commit, no other process may take entries behind that position for acknowledged and trim them."""
        if mark_delete < self.mark_delete:
            self._show_mark_delete(mark_delete)

    def publish_dispatch(self, read: Position, next_due_ms: int, waiting: int) -> None:
        """Show where Shared and Key_Shared read on, when the next delayed entry is due (0: none), and how
        many messages wait for a consumer. As `publish`."""
        words = self.words
        if words[SubscriptionWord.READ_LEDGER] != read.ledger_id:
            # A process that reads between two stores sees a position behind the truth, as in `publish`:
            # what is acknowledged from there on is looked up in the log.
            words[SubscriptionWord.READ_ENTRY] = 0
            words[SubscriptionWord.READ_LEDGER] = read.ledger_id
        if words[SubscriptionWord.READ_ENTRY] != read.entry_id % _MODULUS:
            words[SubscriptionWord.READ_ENTRY] = read.entry_id % _MODULUS
        if words[SubscriptionWord.NEXT_DUE_MS] != next_due_ms:
            words[SubscriptionWord.NEXT_DUE_MS] = next_due_ms
        if words[SubscriptionWord.WAITING] != waiting:
            words[SubscriptionWord.WAITING] = waiting

    def note_claim(self) -> None:
        words = self.words
        words[SubscriptionWord.CLAIMS] = (words[SubscriptionWord.CLAIMS] + 1) % _MODULUS

    @property
    def is_published(self) -> bool:
        """Whether these words reflect everything that was committed. Lock-free."""
        words = self.words
        return bool(words[SubscriptionWord.PUBLISHED] == words[SubscriptionWord.JOURNAL])

    def note_published(self) -> None:
        """Note that they do from now on."""
        words = self.words
        words[SubscriptionWord.PUBLISHED] = words[SubscriptionWord.JOURNAL]

    @property
    def identity(self) -> int:
        """Distinguishes this subscription from the others of its topic; the same in every process."""
        return self._file.inode

    @property
    def read_position(self) -> Position:
        """Where Shared and Key_Shared read on: a hint, perhaps of two different moments."""
        words = self.words
        ledger_id, entry_id = words[SubscriptionWord.READ_LEDGER], words[SubscriptionWord.READ_ENTRY]
        return Position(ledger_id, entry_id - _MODULUS if entry_id & _SIGN else entry_id)

    # -- consumers' slots --------------------------------------------------------------------------

    def take_slot(self, code: int, consumer_id: int, granted: int, alive_ms: int) -> None:
        """Give the slot of ``code`` to a consumer. Under the lock."""
        words, base = self.words, slot_of(code)
        words[base + ConsumerSlotWord.GRANTED] = granted
        words[base + ConsumerSlotWord.HANDED] = 0
        words[base + ConsumerSlotWord.ALIVE_MS] = alive_ms
        words[base + ConsumerSlotWord.CONSUMER_ID] = consumer_id

    def slot_word(self, code: int, consumer_id: int, word: int) -> int:
        """A word that a consumer stored in its slot; 0 if the slot is not its own (a recovery cleared it)."""
        words, base = self.words, slot_of(code)
        if words[base + ConsumerSlotWord.CONSUMER_ID] != consumer_id:
            return 0
        return int(words[base + word])

    def given(self) -> int:
        """Messages that the applications of all consumers were given so far, of a non-persistent topic."""
        return sum(self.words[given_word(FIRST_OWNER) : given_word(FIRST_OWNER + CONSUMER_SLOTS)])

    def acked_ms(self, code: int, consumer_id: int) -> int:
        """When a consumer of a persistent topic last wrote an acknowledgement, or one before it did that had
        its code; ms since the epoch, 0 if unknown."""
        is_its_own = self.words[slot_of(code) + ConsumerSlotWord.CONSUMER_ID] == consumer_id
        return int(self.words[acked_word(code)]) if is_its_own else 0

    def handed(self, code: int, consumer_id: int) -> int:
        """Entries that the application of a consumer was given; 0 if unknown."""
        word = self.slot_word(code, consumer_id, ConsumerSlotWord.HANDED)
        return word & HANDED_MASK if word and word & ~HANDED_MASK == handed_tag(consumer_id) else 0

    @property
    def mark_delete(self) -> Position:
        """The mark-delete position, or one a moment older. Lock-free."""
        words = self.words
        while True:
            ledger_id = words[SubscriptionWord.MARK_DELETE_LEDGER]
            entry_id = words[SubscriptionWord.MARK_DELETE_ENTRY]
            if words[SubscriptionWord.MARK_DELETE_LEDGER] == ledger_id:
                return Position(ledger_id, entry_id - _MODULUS if entry_id & _SIGN else entry_id)

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        self.epoch.release()
        super().close()


def handed_tag(consumer_id: int) -> int:
    """What is added to the count of handed entries. It keeps a consumer that was stopped before the store,
    and taken for dead, from reporting a count for the consumer that has its slot now."""
    return consumer_id << _HANDED_BITS & ~HANDED_MASK & _MODULUS - 1


def slot_of(code: int) -> int:
    """Index of the first word of the slot of the consumer with that code (see `entry_states`)."""
    return (CONSUMER_TABLE_OFFSET + (code - FIRST_OWNER) * CONSUMER_SLOT_SIZE) // 8


def acked_word(code: int) -> int:
    """Index of the word with the time at which the consumer with that code last acknowledged."""
    return ACKED_TABLE_OFFSET // 8 + code - FIRST_OWNER


def given_word(code: int) -> int:
    """Index of the word with the messages given to the consumers with that code, all that ever had it."""
    return GIVEN_TABLE_OFFSET // 8 + code - FIRST_OWNER


class Freshness:
    """The epoch of a subscription beside the one that a consumer follows.

    Role: while ``epoch[()]`` equals `seen`, nothing that was read is void. A consumer compares the two for
    each message it gives to the application; where they differ, `Attachment.catch_up` finds out.

    Attributes:
        epoch: the word, a view without dimensions: reading it costs two thirds of ``words[EPOCH]``. Raises
            ValueError when the subscription is closed.
        mark: `seen` as such a view. ``epoch == mark`` makes no number, which halves the comparison; False
            when the subscription is closed.
    """

    __slots__ = ("_seen", "epoch", "mark")

    def __init__(self, epoch: memoryview) -> None:
        self.epoch: Final = epoch
        self._seen: Final = array("Q", [epoch[()]])
        self.mark: Final = memoryview(self._seen).cast("B").cast("Q", shape=[])

    @property
    def seen(self) -> int:
        """What the word was when the consumer last followed the subscription."""
        return self._seen[0]

    @seen.setter
    def seen(self, epoch: int) -> None:
        self._seen[0] = epoch

    @classmethod
    def for_ever(cls) -> Freshness:
        """For entries that cannot become void, or are compared elsewhere.

        Example:
            >>> fresh = Freshness.for_ever()
            >>> fresh.epoch[()] == fresh.seen
            True
        """
        return cls(memoryview(bytes(8)).cast("Q", shape=[]))


class Facts(Protocol):
    """A number for each consumer; a dict has this method, too."""

    def get(self, consumer_id: int, default: int, /) -> int: ...


class Granted:
    """Messages each attached consumer is ready to be assigned, counted from its attachment on."""

    __slots__ = ("_consumers", "_control")

    def __init__(self, control: SubscriptionControl, consumers: ConsumerRegistry) -> None:
        self._control: Final = control
        self._consumers: Final = consumers

    def get(self, consumer_id: int, default: int = 0, /) -> int:
        """The word of one consumer; ``default`` if it is not attached."""
        consumer = self._consumers.get(consumer_id)
        if consumer is None:
            return default
        return self._control.slot_word(consumer.code, consumer_id, ConsumerSlotWord.GRANTED)


class Handed(Granted):
    """Entries each application was given, counted likewise."""

    __slots__ = ()

    def get(self, consumer_id: int, default: int = 0, /) -> int:
        """The word of one consumer; ``default`` if it is not attached."""
        consumer = self._consumers.get(consumer_id)
        return default if consumer is None else self._control.handed(consumer.code, consumer_id)


_SEEK_SIZE: Final = RECORD_SIZE + record.POSITION_BODY.size
_LONGEST_NAME: Final = 512
_BEFORE_SLUG: Final = len("s-" + 26 * "x" + "-")


def name_in(directory: str) -> str:
    """The name of a durable subscription, of which the name of its directory holds a digest.

    Returns:
        The name that has this digest, found in the name of the directory itself or in what is left of its
        files; "" if none is found.
    """
    base = os.path.basename(directory)
    for candidate in _names(directory, base):
        if subscription_directory_name(candidate) == base:
            return candidate
    return ""


def _names(directory: str, base: str) -> Iterator[str]:
    yield base[_BEFORE_SLUG:]
    journals, snapshots = generations(directory)
    for generation in reversed(snapshots):
        path = snapshot_path(directory, generation)
        try:
            data = disk.DISK.read_file(path)
            name = decode_document(data, KIND_SUBSCRIPTION_SNAPSHOT, record.SNAPSHOT_VERSION).get("name")
        except (CorruptionError, ForeignFileError, FileNotFoundError):
            continue
        if isinstance(name, str):
            yield name
    for generation in journals:
        yield from _names_left(disk.DISK.read_file(journal_path(directory, generation), 1 << 12))


def _names_left(data: bytes) -> Iterator[str]:
    """The name in the first record of a journal, whatever else of the record is damaged: where the length of
    the name is, every length is tried."""
    start = 64 + RECORD_SIZE + record.CREATE_HEADER.size
    for length in range(1, min(_LONGEST_NAME, len(data) - start) + 1):
        try:
            yield data[start : start + length].decode()
        except UnicodeDecodeError:
            continue


def words_position(control: SubscriptionControl, word: int) -> Position | None:
    """The mark-delete position in control words whose header is intact; None if they say of no subscription.

    Words of zeros, which a power loss may leave, name no position: ledger 0 is the place before all entries.

    Args:
        control: the words.
        word: what the commit word was before a recovery.
    """
    if control.header is None or not split_journal(word)[1] or not control.is_possible():
        return None
    position = control.mark_delete
    return position if position.ledger_id or position == BEFORE_FIRST else None


def rewound_position(directory: str, reached: Position) -> Position:
    """The lowest position that a lost command may have put a subscription back to.

    Args:
        directory: of the subscription.
        reached: the mark-delete position by the commands that can be read.

    Returns:
        ``reached``, or the position of a command behind the damage that can be read; before the first entry
        if one of the lost commands may have been a seek.
    """
    lowest = reached
    for generation in generations(directory)[0]:
        try:
            journal = JournalFile(directory, generation)
        except FileNotFoundError:
            continue
        for _, stored in journal.records(strict=False):
            if journal.damage:
                lowest = min(lowest, _position_of(stored) or lowest)
        if journal.is_empty or any(
            may_hold(journal.data, lost.offset, lost.end_offset, _SEEK_SIZE) for lost in journal.damage
        ):
            return BEFORE_FIRST
    return lowest


def _position_of(stored: JournalRecord) -> Position | None:
    if stored.type != record.SEEK:
        return None
    command = record.decode(stored.type, stored.payload)
    return Position(command.ledger_id, command.entry_id)


def may_hold(data: bytes, start: int, stop: int, size: int) -> bool:
    """Whether a record of that size may have been among the bytes that do not verify.

    Not if they are too few; nor if they are one record of another size, by its own length and by where the
    next record begins.
    """
    if start < 64:
        return False  # the header; the records behind it are verified by themselves
    lost = (stop or len(data)) - start
    if lost < size:
        return False
    length = int.from_bytes(data[start : start + 4], "little")
    is_single = length == lost or (stop >= len(data) and not any(data[start + length :]))
    return not is_single or length == size


def from_where(position: Position) -> str:
    """From where a subscription with that mark-delete position delivers, in words."""
    if position <= BEFORE_FIRST:
        return "from the first message that is stored"
    return f"from behind {position.ledger_id}:{position.entry_id}"


def complete(
    replica: SubscriptionReplica, directory: str, name: str, known: Position | None, time_ms: int
) -> bool:
    """Give a replica that was built from damaged files the state that loses nothing.

    Args:
        replica: as the readable commands left it.
        directory: of the subscription.
        name: of the subscription; empty if it is not known.
        known: its mark-delete position by its control words, None if they say none.
        time_ms: when; a subscription that is made again counts as active then.

    Returns:
        False if nothing says which subscription it is; then the replica is as it was.
    """
    state = replica.state
    if state.exists:
        lowest = rewound_position(directory, state.mark_delete) if known is None else known
        if lowest < state.mark_delete:
            replica.apply(record.Seek(*lowest))
        return True
    name = name or name_in(directory)
    if name:
        replica.apply(record.Create(name, state.epoch + 1, *(known or BEFORE_FIRST)))
        replica.state.last_active_ms = time_ms
    return bool(name)


def position_at_rest(directory: str) -> Position | None:
    """What `words_position` says of the control file of a directory that no process uses."""
    try:
        control = SubscriptionControl.open(directory)
    except (FileNotFoundError, CorruptionError):
        return None
    try:
        return words_position(control, control.words[SubscriptionWord.JOURNAL])
    finally:
        control.close()


_ATTEMPTS: Final = 4


Outcomes = Callable[[Sequence[record.TransactionId]], Sequence[int]]
"""Tells the outcome of each of some transactions: `record.COMMITTED` or `ABORTED`; any other value stands for
an open one. Called under the lock of a subscription: it must not wait, nor call back."""


def nothing_decided(transactions: Sequence[record.TransactionId]) -> Sequence[int]:
    """The outcomes where nothing says them: all are open."""
    return [record.UNDECIDED] * len(transactions)


class StateOptions(NamedTuple):
    """Surroundings and settings of one `SharedState`.

    Attributes:
        name: the subscription's, to start anew with when nothing else is left; empty if not known.
        peers: to wake others.
        clock: stamps commands.
        scheduler: runs the flushes of level "interval".
        durability: "process", "interval" or "flush".
        interval_s: seconds between flushes at level "interval".
        lock_timeout_s: how long to wait for the lock.
        boot: identity of the boot in which control words are believed.
        compact_bytes: see `_engine.log.journal_file.COMPACT_BYTES`.
        report: called with what could not be read, outside the lock.
        log: of the topic.
        check_in_place: raises if the topic's directory is not the one that was opened.
        outcomes: of the transactions that have acknowledgements pending here; asked only if there are any.
    """

    name: str
    peers: Peers
    clock: Clock
    scheduler: SchedulerLike
    durability: str
    interval_s: float
    lock_timeout_s: float
    boot: bytes
    compact_bytes: int
    report: DamageHook
    log: Log
    check_in_place: Callable[[], object] = int
    outcomes: Outcomes = nothing_decided


class StateFlusher:
    """Role: flushes the journal of one directory: at once, or by a timer. Callers: any thread; without
    the subscription's lock, but for `note_dirty`.

    Args:
        directory: of the subscription.
        journal: in it.
        options: the level, and timers.
        is_removed: tells whether the directory was taken away: then nothing is left to flush.
    """

    def __init__(
        self, directory: str, journal: Journal, options: StateOptions, is_removed: Callable[[], bool]
    ) -> None:
        self.is_immediate: Final = options.durability == FLUSH
        self._is_timed: Final = options.durability == INTERVAL
        self._directory: Final = directory
        self._journal: Final = journal
        self._options: Final = options
        self._is_removed: Final = is_removed
        self._timer: Timer | None = None
        self._names_are_durable = False

    def note_dirty(self) -> None:
        """Note that something was committed. Under the lock."""
        if self._is_timed and is_idle(self._timer):
            self._timer = self._options.scheduler.call_later(self._options.interval_s, self._sync_in_time)

    def _sync_in_time(self) -> None:
        self._timer = None  # first: what is committed from here on asks again
        self.sync()

    def sync(self) -> None:
        """Make everything committed so far survive a power loss; once per process, also the files' names.

        Raises:
            StorageError: the flush failed. What the disk has is unknown; the next change writes all anew.
        """
        if self._is_removed():
            return
        try:
            self._journal.sync()
            if not self._names_are_durable:
                subscriptions = os.path.dirname(self._directory)
                for path in (self._directory, subscriptions, os.path.dirname(subscriptions)):
                    disk.DISK.fsync_dir(path)
                self._names_are_durable = True
        except OSError as e:
            if self._is_removed():
                return  # in the middle of it
            raise StorageError(
                path=self._directory,
                reason=f"a flush failed ({e}), so the last changes may not survive a power loss",
                remedy="check the disk; the next change is written to new files",
            ) from e

    def close(self) -> None:
        """Flush what the timer still owes."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            self.sync()


def damage_reporter(log: Log, name: str, hook: DamageHook) -> DamageHook:
    """Return a `StateOptions.report` that names topic and subscription. It reports nothing of a topic that
    was deleted: its files are being removed."""

    def report(damage: Damage) -> object:
        return None if is_deleted(log.words) else hook(damage._replace(topic=log.name, subscription=name))

    return report


failpoints.declare("removal:marked", "removal:renamed", "removal:half_removed")


class SubscriptionGone(Exception):
    """The directory of a subscription was taken away: it has another one, or none. Internal."""


def open_files(
    directory: str, timeout_s: float, boot: bytes, *, is_fresh: bool = False
) -> tuple[FileLock, SubscriptionControl]:
    """The lock and the control words of a subscription, which belong together.

    Args:
        directory: of the subscription.
        timeout_s: how long to wait for another process that has the lock.
        boot: identity of the boot, for the words of a new directory.
        is_fresh: whether the caller has just made the directory: its files are hardly there.

    Raises:
        FileNotFoundError: there is no such directory, or not any more.
        LockTimeout: another process stayed in the lock.
        StorageError: the files are of a newer release, or cannot be written.
    """
    while True:
        lock = FileLock(lock_path(directory), is_missing=is_fresh)
        gone = ""
        try:
            try:
                lock.acquire(timeout_s)
                if _is_current(lock):
                    is_new = lock.is_new or is_fresh
                    control = _mapped(directory, is_new, boot, is_empty=is_fresh and lock.is_new)
                    if control.is_removed and not is_bare(directory):
                        # The files of a subscription go before this word is set: the word is damaged.
                        control.header = None
                        control.words[SubscriptionWord.REMOVED] = 0
                    if not control.is_removed:
                        return lock, control
                    control.close()
                    gone = _rename(directory)
            finally:
                lock.release()
        except BaseException:
            lock.close()
            raise
        lock.close()
        is_fresh = False
        nofollow.end_series()
        if gone:
            remove_gone(gone)


def _mapped(directory: str, is_new: bool, boot: bytes, *, is_empty: bool) -> SubscriptionControl:
    """The control words, made if there are none. ``is_new``: the lock was not there, so they hardly are.
    ``is_empty``: the caller made the directory and the lock, so nothing else is there, unless another process
    was faster in locking it.

    Words that are lost are derived from the files (`SharedState.open`). Where there are neither, there is
    nothing to derive, and the words are true as they are made.
    """
    has_words = not is_new or os.path.lexists(control_path(directory))
    if is_empty and not has_words:
        return SubscriptionControl.create_first(directory, boot)
    if has_words:
        with contextlib.suppress(FileNotFoundError, CorruptionError):
            return SubscriptionControl.open(directory)
    if is_new and is_bare(directory):
        return SubscriptionControl.create_first(directory, boot)
    return SubscriptionControl.create(directory)


def _is_current(lock: FileLock) -> bool:
    """Whether the file that is locked has the name. As long as it is locked the directory is not renamed."""
    try:
        named = os.stat(lock.path)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(lock.fd))


def is_bare(directory: str) -> bool:
    """Whether nothing is left that belongs to a subscription."""
    return not any(generations(directory))


def is_volatile(directory: str) -> bool:
    """Whether a directory is that of a subscription that ends with its consumers. Nothing is lost with it."""
    return os.path.basename(directory).startswith(NON_DURABLE_PREFIX)


def is_word_damaged(directory: str, control: SubscriptionControl) -> bool:
    """Whether the commit word says that there is no subscription, and the files of its generation say that it
    did not end. A process that dies while it makes one leaves a later generation, one that dies while it ends
    one leaves a journal that says so. Without the lock, a directory that goes meanwhile says nothing."""
    generation, end = split_journal(control.words[SubscriptionWord.JOURNAL])
    damage: list[Damage] = []
    try:
        if end or not generation or is_bare(directory):
            return False
        versions = choose(directory, KIND_SUBSCRIPTION, damage)
    except FileNotFoundError:
        return False
    return versions.newest == generation and (versions.journal is not None or bool(damage))


def may_have_ended(directory: str, *, durable: bool) -> bool:
    """Whether the directory may hold an ended subscription. Takes no lock."""
    try:
        with contextlib.closing(SubscriptionControl.open(directory)) as control:
            return not durable or not split_journal(control.words[SubscriptionWord.JOURNAL])[1]
    except (FileNotFoundError, CorruptionError):
        return True


def take_away(directory: str, control: SubscriptionControl) -> str:
    """Steps 1 and 2, under the lock; returns what `remove_gone` is to remove."""
    control.mark_removed()
    failpoints.hit("removal:marked")
    return _rename(directory)


def _rename(directory: str) -> str:
    gone = gone_path(os.path.dirname(directory), os.urandom(8).hex())
    with contextlib.suppress(FileNotFoundError):  # the directory was removed with its topic
        disk.DISK.replace(directory, gone)
    failpoints.hit("removal:renamed")
    return gone


def remove_gone(directory: str) -> None:
    """Step 3. What cannot be removed stays for housekeeping."""
    with contextlib.suppress(OSError):
        for name in descriptors.names_in(directory):
            with contextlib.suppress(FileNotFoundError):  # another process removes them too
                disk.DISK.unlink(os.path.join(directory, name))
            failpoints.hit("removal:half_removed")
        disk.DISK.rmdir(directory)


def mark_deletes(directories: Sequence[str], boot: bytes) -> list[Position]:
    """The mark-delete positions of the subscriptions in ``directories`` that exist. Takes no lock.

    Some 50 us each, and one descriptor at a time. If no process has opened a subscription since the last
    boot, its journal is read. A returned position is where the subscription is, or one before that.

    Raises:
        StorageError: the position of one of them is unknown: nothing may be trimmed.
        DescriptorLimitError: no descriptor was to be had.
    """
    positions = [_mark_delete(directory, boot) for directory in directories]
    return [position for position in positions if position is not None]


def _mark_delete(directory: str, boot: bytes) -> Position | None:
    attempt = 0
    while True:
        try:
            return _mark_delete_once(directory, boot)
        except (FileNotFoundError, NotADirectoryError, CorruptionError):
            if not os.path.isdir(directory):
                return None  # it ended
            # Two reads without the lock may be of two moments. A file went between them: the journal has a
            # new generation, or the subscription was deleted and made again. Or the words were read before
            # there were any, and the journal when it had no command yet: the subscription was just made.
            attempt += 1
            if attempt == _ATTEMPTS:
                raise


def _mark_delete_once(directory: str, boot: bytes) -> Position | None:
    word, known = None, None
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, CorruptionError):
        control = descriptors.opening(f"cannot look at {directory}", SubscriptionControl.open, directory)
        with closing(control):
            word = control.words[SubscriptionWord.JOURNAL] if control.is_word_known else None
            if word and control.is_trusted(boot) and split_journal(word)[1] and control.is_possible():
                return control.mark_delete
            known = None if word is None else words_position(control, word)
    return _from_files(directory, word, known)


def _from_files(directory: str, word: int | None, known: Position | None) -> Position | None:
    """What snapshot and journal say; if commands are missing, nothing behind ``known``, which the words say.

    Also used if the words say that there is nothing, as they do when all is damaged and no process that knows
    the name has started the subscription anew yet.
    """
    damage: list[Damage] = []
    journal = choose(directory, KIND_SUBSCRIPTION, damage).journal
    is_behind = note_lost(directory, word, journal, damage)
    replica = SubscriptionReplica()
    if journal is not None:
        replay(journal, replica, damage)
    if damage:
        raise CorruptionError(path=damage[0].path, offset=damage[0].offset, reason=damage[0].reason)
    if not replica.state.exists:
        return None
    mark_delete = replica.state.mark_delete
    return min(mark_delete, known) if is_behind and known is not None else mark_delete
