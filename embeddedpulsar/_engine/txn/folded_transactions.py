"""The transactions of one topic whose outcomes the store has forgotten: `transactions` in its directory.

An outcome is a byte of a table, and a bit in every process. Once all transactions below some id have ended,
the topics take over what they may still be asked for: which of them were aborted. Then bytes and bits go
(`TransactionLog.raise_lowest`), and a store that had a million transactions is as small as one that had none.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Callable
from typing import Final

from embeddedpulsar._engine.filenames import FOLDED, folded_path
from embeddedpulsar._engine.format.document import (
    KIND_FOLDED_TRANSACTIONS,
    decode_document,
    encode_document,
)
from embeddedpulsar._engine.format.transaction_record import FIRST_TXN_ID
from embeddedpulsar._engine.log.position import BEFORE_FIRST, Position
from embeddedpulsar._engine.platform import descriptors, disk, failpoints
from embeddedpulsar._engine.txn.transaction_state import Outcome
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, UnsupportedFormatVersion
from embeddedpulsar.records import NamedTuple

failpoints.declare("fold:document_written")

_IDS: Final = "Q"
_COMMITTED: Final = 1
_ABORTED: Final = 2
_REMEDY: Final = (
    "repair the store: the file is moved away, and messages of transactions that were aborted long ago count "
    "as committed"
)


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
