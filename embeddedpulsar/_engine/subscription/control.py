"""The mapped control words of one subscription: `<subscription>/ctl` (docs/format/control.md)."""

from __future__ import annotations

from array import array
from typing import Final, Protocol, Self

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
from embeddedpulsar._engine.log.position import BEFORE_FIRST, Position
from embeddedpulsar._engine.log.topic_control import ControlFile
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar._engine.subscription.state.dispatch_state import ConsumerRegistry
from embeddedpulsar._engine.subscription.state.entry_states import FIRST_OWNER

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

    def forget(self) -> None:
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
        return word & HANDED_MASK if word & ~HANDED_MASK == handed_tag(consumer_id) else 0

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
    each message it gives to the application; where they differ, `Attachment.look` finds out.

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
