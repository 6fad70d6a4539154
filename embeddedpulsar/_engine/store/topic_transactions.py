"""The transactions that stored something in a topic: their entries, and how many there are of which kind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.filenames import folded_path
from embeddedpulsar._engine.format.control import OUTCOMES_PER_FILE
from embeddedpulsar._engine.format.document import document_version
from embeddedpulsar._engine.format.frame import FLAG_TXN, FORMAT_VERSION
from embeddedpulsar._engine.format.subscription_record import TRANSACTION_ACK
from embeddedpulsar._engine.log.journal_file import JournalFile, generations
from embeddedpulsar._engine.log.position import BEFORE_FIRST, Isolation, Position
from embeddedpulsar._engine.log.segment import read_segment_header
from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.txn.folded_transactions import FoldedTransactions
from embeddedpulsar._engine.txn.transaction_files import MASK, SHIFT
from embeddedpulsar._engine.txn.transaction_state import Outcome
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import NamedTuple

if TYPE_CHECKING:
    from embeddedpulsar._engine.log.log import Cursor, Log

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
        found = []
        for view in views:
            position = Position(view.ledger_id, view.entry_id)
            if view.flags & FLAG_TXN and position < Position(ledger_id, stop):
                found.append((*position, view.transaction_id()))
        yield found


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
        self._forget()

    def _forget(self) -> None:
        self._folded, self._read, self._seen = FoldedTransactions(), (0, 0), BEFORE_FIRST
        self._marks: dict[int, bytearray] = {}
        self._opened: dict[int, Position] = {}

    def look(self) -> TopicTransactions:
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
                self._forget()
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
