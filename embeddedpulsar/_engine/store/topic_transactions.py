"""Transactions that stored something in a topic: entries, figures, and those that the store has forgotten.

An outcome is a byte of a table, and a bit in every process. Once all transactions below some id have ended,
the topics take over what they may still be asked for: which of them were aborted. Then bytes and bits go
(`TransactionLog.raise_lowest`), and a store that had a million transactions is as small as one that had none.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Callable, Iterator, Sequence

from embeddedpulsar._engine.filenames import FOLDED, folded_path
from embeddedpulsar._engine.format.control import OUTCOMES_PER_FILE
from embeddedpulsar._engine.format.document import (
    KIND_FOLDED_TRANSACTIONS,
    decode_document,
    document_version,
    encode_document,
)
from embeddedpulsar._engine.format.frame import FLAG_TXN, FORMAT_VERSION
from embeddedpulsar._engine.format.subscription_record import TRANSACTION_ACK
from embeddedpulsar._engine.format.transaction_record import FIRST_TXN_ID
from embeddedpulsar._engine.log.journal_file import JournalFile, generations
from embeddedpulsar._engine.log.segment import read_segment_header
from embeddedpulsar._engine.platform import descriptors, disk, failpoints
from embeddedpulsar._engine.txn.transaction_state import MASK, SHIFT, Outcome
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, UnsupportedFormatVersion
from embeddedpulsar.message_id import BEFORE_FIRST, Isolation, Position
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.log.log import Cursor, Log

failpoints.declare("fold:document_written")

_IDS: Final = "Q"
_REMEDY: Final = (
    "repair the store: the file is moved away, and messages of transactions that were aborted long ago count "
    "as committed"
)
_CHUNK: Final = 1024
"""Entries that the index is asked about at once."""
_ENTRIES: Final = 256
"""Entries that are read at once."""
_BYTES: Final = 1 << 20
_UNLIMITED: Final = 1 << 62
_IN_SLOT: Final = FLAG_TXN >> 16
_IS_FLAGGED: Final = bytes(bool(flags & _IN_SLOT) for flags in range(256))
_HEAD: Final = 16
_COMMITTED: Final = 1
_ABORTED: Final = 2
_OPEN: Final = 3


class FoldedTransactions(NamedTuple):
    """The document of one topic.

    Attributes:
        below: of the transactions with lower ids that stored something in the topic, those in ``ledgers``
            were aborted, and the others committed.
        through: all entries of transactions up to here are of such ids.
        committed, aborted: how many there were, those in ledgers that are trimmed included. A few count twice
            if a process died while it folded.
        ledgers: a ledger, and the ids of those aborted whose last entry is in it, ascending; by ledger.

    Example:
        >>> folded = FoldedTransactions(9, Position(3, 7), 5, 1, ((3, array("Q", [4])),))
        >>> FoldedTransactions.decode(folded.encode()) == folded, folded.ids()
        (True, frozenset({4}))
    """

    below: int = FIRST_TXN_ID
    through: Position = BEFORE_FIRST
    committed: int = 0
    aborted: int = 0
    ledgers: tuple[tuple[int, array[int]], ...] = ()

    def ids(self) -> frozenset[int]:
        """All that were aborted."""
        return frozenset().union(*(ids for _, ids in self.ledgers))

    def known_from(self, lowest: int) -> FoldedTransactions:
        """What of it may be believed, if the store still knows ids from ``lowest`` on.

        A document is written before the store forgets. If the process died in between, the power may have
        gone since, and taken commits that were not on the disk: they count as aborted now.
        """
        if self.below <= lowest:
            return self
        ledgers = [
            (ledger_id, array(_IDS, [txn_id for txn_id in ids if txn_id < lowest]))
            for ledger_id, ids in self.ledgers
        ]
        dropped = sum(len(ids) for _, ids in self.ledgers) - sum(len(ids) for _, ids in ledgers)
        return FoldedTransactions(
            lowest, BEFORE_FIRST, self.committed, self.aborted - dropped, tuple(ledgers)
        )

    def encode(self) -> bytes:
        """The bytes of the file.

        Raises:
            ValueError: more than 8 million were aborted in ledgers that are retained.
        """
        fields = {
            "below": self.below,
            "through": list(self.through),
            "committed": self.committed,
            "aborted": self.aborted,
            "ledgers": [[ledger_id, ids.tobytes()] for ledger_id, ids in self.ledgers],
        }
        return encode_document(KIND_FOLDED_TRANSACTIONS, fields)

    @classmethod
    def decode(cls, data: bytes) -> FoldedTransactions:
        """What `encode` made.

        Raises:
            CorruptionError, ForeignFileError, UnsupportedFormatVersion: the bytes are something else.
        """
        fields = decode_document(data, KIND_FOLDED_TRANSACTIONS)
        try:
            ledgers = tuple([(int(ledger_id), array(_IDS, ids)) for ledger_id, ids in fields["ledgers"]])
            numbers = [int(fields[name]) for name in ("below", "committed", "aborted")]
            ledger_id, entry_id = map(int, fields["through"])
        except (KeyError, TypeError, ValueError) as e:
            raise CorruptionError(
                reason=f"the transactions of a topic have a field of another kind ({e!r})"
            ) from None
        return cls(numbers[0], Position(ledger_id, entry_id), numbers[1], numbers[2], ledgers)

    @classmethod
    def read(cls, directory: str) -> FoldedTransactions:
        """That of a topic; one of nothing if there is none.

        Raises:
            CorruptionError: the file is damaged.
            UnsupportedFormatVersion: a newer release wrote it.
        """
        path = folded_path(directory)
        try:
            return cls.decode(disk.DISK.read_file(path))
        except FileNotFoundError:
            return cls()
        except (CorruptionError, ForeignFileError) as e:
            raise CorruptionError(
                path=path, offset=e.offset, reason=e.reason, remedy=e.remedy or _REMEDY
            ) from None
        except UnsupportedFormatVersion as e:
            raise e.at(path) from None

    def write(self, directory: str) -> None:
        """Replace that of a topic, durably. Under the lock of housekeeping."""
        for name in descriptors.names_in(directory):
            if name.startswith(f"{FOLDED}.") and name.endswith(".tmp"):  # of a process that died here
                with contextlib.suppress(FileNotFoundError):
                    disk.DISK.unlink(os.path.join(directory, name))
        disk.DISK.atomic_write(folded_path(directory), self.encode(), True)
        failpoints.hit("fold:document_written")


class Fold:
    """Makes the next document of a topic of the present one and of the entries behind that.

    Pure, but for ``outcome``. One thread.

    Args:
        folded: the present one, as far as it may be believed.
        below: ids below it have ended, and nothing more is stored for them in the topic.
        known: the lowest id of which ``outcome`` knows anything.
        outcome: of a transaction, COMMITTED or ABORTED.

    Example:
        >>> outcomes = {1: Outcome.COMMITTED, 2: Outcome.ABORTED}
        >>> fold = Fold(FoldedTransactions(), 3, 1, outcomes.__getitem__)
        >>> for entry_id, txn_id in enumerate([1, 2, 1, 3, 2]):
        ...     fold.add(7, entry_id, txn_id)
        >>> folded = fold.ended(Position(7, 4), 0)
        >>> folded.through, folded.committed, folded.aborted, folded.ids()
        (Position(ledger_id=7, entry_id=2), 1, 1, frozenset({2}))
    """

    def __init__(
        self, folded: FoldedTransactions, below: int, known: int, outcome: Callable[[int], Outcome]
    ) -> None:
        self._folded: Final = folded
        self._below: Final = below
        # What is lower was counted when its entries were folded: all of them were there by then.
        self._first: Final = max(folded.below, known)
        self._outcome: Final = outcome
        self._marks: Final = bytearray(max(below - self._first, 0))
        self._last_ledgers: Final[dict[int, int]] = {}  # of those that were aborted
        self._through: Position | None = None
        self.has_any = False

    def add(self, ledger_id: int, entry_id: int, txn_id: int) -> None:
        """The next entry of a transaction, in the order of the log."""
        if txn_id >= self._below:
            if self._through is None:
                self._through = Position(ledger_id, entry_id - 1)
            return
        at = txn_id - self._first
        if at < 0:
            return
        mark = self._marks[at]
        if not mark:
            self.has_any = True
            is_committed = self._outcome(txn_id) is Outcome.COMMITTED
            mark = self._marks[at] = _COMMITTED if is_committed else _ABORTED
        if mark == _ABORTED:
            self._last_ledgers[txn_id] = ledger_id

    def ended(self, through: Position, first_retained: int) -> FoldedTransactions:
        """The next document.

        Args:
            through: where the log ended.
            first_retained: ledgers before it are trimmed, and nothing asks for what was in them.
        """
        by_ledger: dict[int, set[int]] = {}
        for ledger_id, ids in self._folded.ledgers:
            by_ledger[ledger_id] = set(ids)
        for txn_id, ledger_id in self._last_ledgers.items():
            by_ledger.setdefault(ledger_id, set()).add(txn_id)
        ledgers = [
            (ledger_id, array(_IDS, sorted(ids)))
            for ledger_id, ids in sorted(by_ledger.items())
            if ledger_id >= first_retained
        ]
        return FoldedTransactions(
            max(self._folded.below, self._below),
            max(self._folded.through, through if self._through is None else self._through),
            self._folded.committed + self._marks.count(_COMMITTED),
            self._folded.aborted + self._marks.count(_ABORTED),
            tuple(ledgers),
        )


class FoldedOutcomes:
    """Says of transactions that the store has forgotten which of them were aborted, in one topic.

    Role: what a reader asks when the transaction log answers FOLDED. Callers: any thread; a file is read
    after each folding, and no lock is taken.

    Args:
        directory: of the topic.
        lowest: the lowest id that the store knows; see `TransactionLog.lowest`.
    """

    __slots__ = ("_aborted", "_at", "_directory", "_lowest")

    def __init__(self, directory: str, lowest: Callable[[], int]) -> None:
        self._directory: Final = directory
        self._lowest: Final = lowest
        self._at = 0
        self._aborted: frozenset[int] = frozenset()

    def is_aborted(self, txn_id: int) -> bool:
        """Whether a transaction that stored something in the topic was aborted; else it is committed.

        Raises:
            CorruptionError: the document of the topic is damaged.
            UnsupportedFormatVersion: a newer release wrote it.
        """
        # The word first: it was raised behind the documents, so the one read now has all below it.
        lowest = self._lowest()
        if lowest != self._at:
            self._aborted = FoldedTransactions.read(self._directory).ids()
            self._at = lowest
        return txn_id in self._aborted


def entries_of_transactions(
    log: Log, directory: str, after: Position, last: Position
) -> Iterator[list[tuple[int, int, int]]]:
    """The entries of transactions behind ``after``, up to ``last``: ledger, entry and transaction.

    Yields:
        Those of a part of the log at a time, also of one without any, so that the caller may give way.
    """
    cursor = log.cursor(after, inclusive=False, isolation=Isolation.EVERYTHING)
    for ledger_id, entries in log.ledgers():
        if not after.ledger_id <= ledger_id <= last.ledger_id:
            continue
        first = after.entry_id + 1 if ledger_id == after.ledger_id else 0
        end = last.entry_id + 1 if ledger_id == last.ledger_id else entries
        if first < end and _is_of_first_version(directory, ledger_id):
            continue
        while first < end:
            stop = min(first + _CHUNK, end)
            columns = log.columns(Position(ledger_id, first), stop - first)
            at = 0 if columns is None else _first_flagged(columns.flags)
            if at < 0:
                yield []
            else:
                cursor.seek(Position(ledger_id, first + at))
                yield from _read(cursor, ledger_id, stop)
            first = stop


def _is_of_first_version(directory: str, ledger_id: int) -> bool:
    with contextlib.suppress(FileNotFoundError, CorruptionError):
        return not read_segment_header(directory, ledger_id).may_have_transactions
    return False


def _first_flagged(flags: bytes) -> int:
    """The first slot of an entry of a transaction; -1 if there is none.

    Example:
        >>> _first_flagged(b"\\0\\1\\11"), _first_flagged(b"\\0\\1")
        (2, -1)
    """
    return flags.translate(_IS_FLAGGED).find(1)


def _read(cursor: Cursor, ledger_id: int, stop: int) -> Iterator[list[tuple[int, int, int]]]:
    """Read on to an entry of a ledger; what is damaged is stepped over."""
    position = Position(ledger_id, -1)
    while position < Position(ledger_id, stop - 1):
        views = cursor.read(_ENTRIES, _UNLIMITED, _BYTES)
        if not views:
            return
        entries = []
        for view in views:
            position = Position(view.ledger_id, view.entry_id)
            if view.flags & FLAG_TXN and position < Position(ledger_id, stop):
                entries.append((*position, view.transaction_id()))
        yield entries


def may_have_pending(path: str) -> bool:
    """Whether a transaction may have something pending in a subscription, by its files."""
    journals, snapshots = generations(path)
    if not journals:
        return False
    newest = journals[-1]
    journal = JournalFile(path, newest)
    if any(entry.type == TRANSACTION_ACK for _, entry in journal.records(strict=False)):
        return True
    if newest not in snapshots:
        return False
    return document_version(disk.DISK.read_file(journal.snapshot_path, _HEAD)) > FORMAT_VERSION


def journal_figures(directory: str) -> list[tuple[int, int, int]]:
    """The generations of the journal in a directory: number, records and bytes of each, the oldest first."""
    figures = []
    for generation in generations(directory)[0] if os.path.isdir(directory) else ():
        with contextlib.suppress(FileNotFoundError):  # a newer one took its place meanwhile
            journal = JournalFile(directory, generation)
            records = sum(1 for _ in journal.records(strict=False))
            figures.append((generation, records, len(journal.data)))
    return figures


class TopicTransactions(NamedTuple):
    """The transactions that stored something in a topic, at one moment.

    Attributes:
        committed, aborted: how many ended so, since the topic was made.
        opened: those that have not ended, and the first entry of each, in the order of the log.
        readable: the last entry before the first one of a transaction that has not ended; None without any.
        folded_ms: when outcomes were folded into the topic last, in ms since the epoch; 0 for never.
    """

    committed: int
    aborted: int
    opened: tuple[tuple[int, Position], ...]
    readable: Position | None
    folded_ms: int


class TransactionTally:
    """Counts the transactions of a topic: what was folded by its document, and the rest by the entries.

    Role: keeps a byte for each transaction that is not folded, so that a further look reads what is new.
    Callers: one at a time.

    Args:
        directory: of the topic.
        log: of the topic.
        outcome: of a transaction of the store.
    """

    def __init__(self, directory: str, log: Log, outcome: Callable[[int], Outcome]) -> None:
        self._directory: Final = directory
        self._log: Final = log
        self._outcome: Final = outcome
        self._reset()

    def _reset(self) -> None:
        self._folded, self._read, self._seen = FoldedTransactions(), (0, 0), BEFORE_FIRST
        self._marks: dict[int, bytearray] = {}
        self._opened: dict[int, Position] = {}

    def refresh(self) -> TopicTransactions:
        """What there is now. Reads the entries since the last look.

        Raises:
            CorruptionError: the document of the topic is damaged.
        """
        self._follow_document()
        last = self._log.last_position()
        if last is not None and last > self._seen:
            for part in entries_of_transactions(self._log, self._directory, self._seen, last):
                for ledger_id, entry_id, txn_id in part:
                    self._add(Position(ledger_id, entry_id), txn_id)
            self._seen = last
        for txn_id in list(self._opened):
            self._note_end(txn_id)
        committed, aborted = self._folded.committed, self._folded.aborted
        for marks in self._marks.values():
            committed += marks.count(_COMMITTED)
            aborted += marks.count(_ABORTED)
        opened, folded_ms = tuple(self._opened.items()), self._read[1] // 1_000_000
        return TopicTransactions(committed, aborted, opened, self._before(opened, last), folded_ms)

    def _before(self, opened: Sequence[tuple[int, Position]], last: Position | None) -> Position | None:
        if not opened:
            return last
        first = opened[0][1]
        return first.previous() if first.entry_id else self._log.ended_before(first.ledger_id)

    def find(self, txn_id: int) -> Position | None:
        """The first entry of a transaction that is retained. Reads the entries of all transactions."""
        first, last = self._log.first_position().previous(), self._log.last_position()
        for part in entries_of_transactions(self._log, self._directory, first, last or first):
            for ledger_id, entry_id, each in part:
                if each == txn_id:
                    return Position(ledger_id, entry_id)
        return None

    def _follow_document(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(folded_path(self._directory))
            read = status.st_ino, status.st_mtime_ns
            if read != self._read:
                # What it has is counted by it from now on, and all else anew.
                self._reset()
                self._folded, self._read = FoldedTransactions.read(self._directory), read
                self._seen = self._folded.through

    def _add(self, position: Position, txn_id: int) -> None:
        if txn_id < self._folded.below:
            return
        marks = self._marks.get(txn_id >> SHIFT)
        if marks is None:
            marks = self._marks[txn_id >> SHIFT] = bytearray(OUTCOMES_PER_FILE)
        if not marks[txn_id & MASK]:
            marks[txn_id & MASK] = _OPEN
            self._opened[txn_id] = position

    def _note_end(self, txn_id: int) -> None:
        outcome = self._outcome(txn_id)
        if outcome.is_final:
            del self._opened[txn_id]
            # FOLDED: the next look finds the document that counts it.
            mark = _COMMITTED if outcome is Outcome.COMMITTED else _ABORTED
            self._marks[txn_id >> SHIFT][txn_id & MASK] = 0 if outcome is Outcome.FOLDED else mark
