"""What became of transactions, for those that only look: nothing is written, recovered or waited for.

A transaction that no process can go on with counts as what the next process that may write makes of it: the
same steps are followed, and not stored. What transactions committed, for those that compare it with the logs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from embeddedpulsar._engine.filenames import TRANSACTIONS
from embeddedpulsar._engine.format import transaction_record as record
from embeddedpulsar._engine.format.control import (
    KIND_TRANSACTIONS,
    TransactionSlotWord,
    TransactionWord,
    split_journal,
)
from embeddedpulsar._engine.log.journal_file import JournalFile, JournalPlace, JournalView, generations
from embeddedpulsar._engine.platform import threads, timing
from embeddedpulsar._engine.platform.timing import Clock
from embeddedpulsar._engine.txn.transaction_state import (
    MASK,
    NO_OWNER,
    NO_SLOT,
    SHIFT,
    Decisions,
    Intent,
    OpenTransaction,
    Outcome,
    OutcomeTable,
    PreparedTransaction,
    SlotState,
    Standing,
    Step,
    TransactionControl,
    after,
    next_step,
)
from embeddedpulsar.damage import Damage
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final

_MS: Final = 1000.0
_NOT_COMMITTED: Final = bytes(
    outcome if outcome == Outcome.COMMITTED else Outcome.UNDECIDED for outcome in range(256)
)
"""Translates bytes that were derived: what the journal does not have as committed may be open."""


_DECISIONS: Final = (record.COMMIT, record.PREPARE, record.ABORT)


class _Words(NamedTuple):
    """The control words that can be believed, if there are such."""

    control: TransactionControl | None
    next_id: int
    lowest: int


class TransactionCounts(NamedTuple):
    """Transactions that ended, and those that had committed and lost a part."""

    committed: int
    aborted: int
    torn: int


class TransactionView:
    """The outcomes of a store's transactions at the last `refresh`, and what has become final since.

    Role: for read-only stores, checks and backups. Callers: one thread at a time. Between two calls no
    descriptor is open.

    Args:
        root: of the store.
        boot: identity of the boot in which control words are believed.
        clock: measures deadlines.
        is_alive: whether the process of a lease lives.

    Attributes:
        damage: what could not be read in the last `refresh`.
        is_behind: whether decisions that were made are missing, as after a power loss.
    """

    def __init__(self, root: str, boot: bytes, clock: Clock, is_alive: Callable[[bytes], bool]) -> None:
        self.directory: Final = os.path.join(root, TRANSACTIONS)
        self._boot: Final = boot
        self._clock: Final = clock
        self._is_alive: Final = is_alive
        self._offset_ms: Final = timing.monotonic_offset_ms()
        self._decisions: Final = Decisions()
        self._words = _Words(None, 0, 0)
        self._journal: JournalView | None = None  # of words that are believed
        self._tables: Final[dict[int, OutcomeTable | None]] = {}
        self.damage: list[Damage] = []
        self.is_behind = False

    def refresh(self) -> bool:
        """Read what was decided so far.

        Returns:
            Whether the store has transactions.

        Raises:
            StorageError: the files are of a newer release, or cannot be read.
        """
        self.close()
        control = self._open_control()
        if control is None and not os.path.isdir(self.directory):
            return False
        is_trusted = control is not None and control.is_trusted(self._boot) and control.is_possible()
        is_trusted = is_trusted and control is not None and control.words[TransactionWord.LOWEST] > 0
        # Without words that may be believed the files alone are asked, as a recovery would; a store that lost
        # its control file still has a journal.
        words = memoryview(bytes(8 * (TransactionWord.JOURNAL + 1))).cast("Q")
        if control is not None:
            words = control.words
        is_known = control is not None and control.header is not None and control.is_possible()
        place = JournalPlace(self.directory, words, TransactionWord.JOURNAL, KIND_TRANSACTIONS)
        journal = JournalView(place, self._decisions)
        self._decisions.reset(None)
        self._journal = journal if is_trusted else None
        is_there = journal.refresh(is_trusted=is_trusted, is_word_known=is_known)
        self.damage, self.is_behind = journal.damage, journal.is_behind
        if is_trusted:
            lowest = words[TransactionWord.LOWEST]
            self._words = _Words(control, words[TransactionWord.NEXT_ID], lowest)
        else:
            self._words = _Words(None, self._decisions.reserved, self._decisions.lowest)
            if control is not None:
                control.close()
        return is_there

    def _open_control(self) -> TransactionControl | None:
        try:
            return TransactionControl.open(self.directory, writable=False)
        except (FileNotFoundError, CorruptionError):
            return None

    def outcome(self, txn_id: int) -> Outcome:
        """What became of a transaction, or will when a process looks that may write."""
        outcome = self._judged(txn_id)
        # That no process can commit it any more follows from several loads. It may have been committed
        # between two of them, or before, by a record behind the last `refresh`. What its owner did before it
        # was seen dead, or late with no process in the lock, is in the journal by now: the second answer is
        # final.
        if outcome is Outcome.ABORTED and self._journal is not None:
            threads.await_stores()
            outcome = self._byte(txn_id)
            if not outcome.is_final:
                self._journal.refresh(is_trusted=True)
                outcome = self._judged(txn_id)
        return outcome

    def frozen(self) -> FrozenOutcomes:
        """The outcomes of this moment: of what ends later, they say that it is undecided."""
        control, next_id, lowest = self._words
        return FrozenOutcomes(self, control is not None, next_id, lowest)

    def has_begun(self, txn_id: int) -> bool:
        """Whether a transaction has a slot or an outcome. Only with control words that can be believed."""
        control = self._words.control
        # The slot first: it is freed after the byte was stored.
        return control is not None and (
            control.find(txn_id) != NO_SLOT or self._byte(txn_id) is not Outcome.UNDECIDED
        )

    def _judged(self, txn_id: int) -> Outcome:
        control, next_id, lowest = self._words
        if txn_id < lowest:
            return Outcome.FOLDED
        if txn_id >= next_id and control is None:
            return Outcome.ABORTED  # no process can have it open
        slot = NO_SLOT if control is None else control.find(txn_id)
        # The slot first: it is freed after the byte was stored.
        outcome = self._byte(txn_id)
        if outcome.is_final:
            return outcome
        standing = self._standing(txn_id, control, slot, outcome)
        if standing.is_late and control is not None and control.words[TransactionWord.OWNER]:
            # The process in the lock may have looked at the clock a moment ago, and decide it still.
            standing = standing._replace(is_late=False)
        while not (step := next_step(Intent.TEND, standing)).is_last:
            if step is not Step.FLUSH:
                standing = after(step, standing)
            elif standing.is_owned:
                return Outcome.UNDECIDED  # its process is about to show it
            else:
                standing = standing._replace(is_durable=True)
        return standing.outcome

    def _standing(
        self, txn_id: int, control: TransactionControl | None, slot: int, outcome: Outcome
    ) -> Standing:
        state, is_durable, is_late, is_owned = SlotState.FREE, True, False, False
        transaction = None if control is None or slot < 0 else control.read_slot(slot)
        if transaction is not None and transaction.txn_id == txn_id and control is not None:
            state = transaction.state
            at = control.word_of(slot) + TransactionSlotWord.DECIDED
            is_durable = control.words[TransactionWord.SYNCED] >= control.words[at]
            now_ms = int(self._clock.monotonic() * _MS) + self._offset_ms
            is_late = state is not SlotState.PREPARED and 0 < transaction.deadline_ms <= now_ms
            is_owned = transaction.owner != NO_OWNER and self._is_alive(transaction.owner)
        return self._decisions.standing(
            txn_id,
            state,
            outcome,
            self._clock.wall_ms,
            is_durable=is_durable,
            is_late=is_late,
            is_owned=is_owned,
        )

    def _byte(self, txn_id: int) -> Outcome:
        table = None if self._words.control is None else self._table(txn_id >> SHIFT)
        return Outcome.UNDECIDED if table is None else Outcome(table.bytes[txn_id & MASK])

    def _table(self, number: int) -> OutcomeTable | None:
        if number not in self._tables:
            self._tables[number] = OutcomeTable.open(self.directory, number, self._boot, writable=False)
        return self._tables[number]

    def tables(self) -> dict[int, bytes]:
        """A copy of the bytes of all ids that may have been given out at the last `refresh`, by the number of
        their range; none where control words cannot be believed."""
        control, next_id, lowest = self._words
        copies: dict[int, bytes] = {}
        for number in range(lowest >> SHIFT, next_id + MASK >> SHIFT) if control is not None else ():
            table = self._table(number)
            if table is not None:
                copies[number] = bytes(table.bytes)
            else:  # it is gone, and derived from what the journal had at the last `refresh`
                copies[number] = bytes(self._decisions.outcomes_of(number).translate(_NOT_COMMITTED))
        return copies

    def is_in_use(self) -> bool:
        """Whether there are control words by now that can be believed."""
        control = self._open_control()
        if control is None:
            return False
        try:
            return control.is_trusted(self._boot)
        finally:
            control.close()

    @property
    def next_id(self) -> int:
        """The id that the next transaction gets, at the least."""
        return self._words.next_id

    @property
    def lowest(self) -> int:
        """Outcomes of transactions with lower ids are forgotten."""
        return self._words.lowest

    def counted(self) -> TransactionCounts:
        """What was counted since the words were made; zeros where they cannot be believed."""
        control = self._words.control
        if control is None:
            return TransactionCounts(0, 0, 0)
        words = control.words
        return TransactionCounts(
            int(words[TransactionWord.COMMITS]),
            int(words[TransactionWord.ABORTS]),
            int(words[TransactionWord.TEARS]),
        )

    def left_ms(self, transaction: OpenTransaction) -> int | None:
        """Until the deadline of a transaction, in ms; None if it has none."""
        if not transaction.deadline_ms:
            return None
        if transaction.state is SlotState.PREPARED:
            return transaction.deadline_ms - self._clock.wall_ms()
        return transaction.deadline_ms - int(self._clock.monotonic() * _MS) - self._offset_ms

    def open_transactions(self) -> list[OpenTransaction]:
        """The slots in use; none where the control words cannot be believed."""
        control = self._words.control
        slots = () if control is None else map(control.read_slot, control.used_slots())
        return [transaction for transaction in slots if transaction is not None]

    def prepared(self) -> list[PreparedTransaction]:
        """The transactions that waited for their end at the last `refresh`, by id."""
        return sorted(self._decisions.prepared.values())

    @property
    def word(self) -> int:
        """The journal word of the last `refresh`; 0 where no word can be believed."""
        return 0 if self._journal is None else self._journal.followed

    def decided_since(self, word: int) -> list[record.Commit | record.Prepare | record.Abort] | None:
        """What was committed, prepared, or aborted by a record, between a journal word, of an earlier
        `refresh`, and now; None where that is not known: the words are not believed, or the journal from then
        is gone."""
        control = self._words.control
        if not word or control is None:
            return None
        first, at = split_journal(word)
        last, end = split_journal(control.words[TransactionWord.JOURNAL])
        decided: list[record.Commit | record.Prepare | record.Abort] = []
        for generation in range(first, last + 1):
            try:
                journal = JournalFile(self.directory, generation, end if generation == last else None)
            except FileNotFoundError:
                return None
            for offset, entry in journal.records(strict=False):
                if (generation > first or offset > at) and entry.type in _DECISIONS:
                    decided.append(record.RECORDS.decode(entry.type, entry.payload))
            if journal.damage:
                return None
        return decided

    def snapshot(self) -> bytes:
        """The decisions of the last `refresh` as a snapshot of a journal. Ids that were given out by now are
        not given out again by processes that start from it."""
        control = self._open_control()  # there may have been none before
        if control is not None:
            if control.is_trusted(self._boot):
                reserved = control.words[TransactionWord.RESERVED]
                self._decisions.reserved = max(self._decisions.reserved, reserved)
            control.close()
        return self._decisions.snapshot()

    def commits(self, before: int = 0) -> Iterator[record.Commit]:
        """What was committed, with its participants, as far as the generations of the journal that are there
        have it. What cannot be read is left out: `refresh` reports it.

        Args:
            before: older generations than this one alone; 0 for all.
        """
        for generation in generations(self.directory)[0] if os.path.isdir(self.directory) else ():
            if before and generation >= before:
                continue
            try:
                journal = JournalFile(self.directory, generation)
            except FileNotFoundError:
                continue  # a newer one took its place meanwhile
            for _, entry in journal.records(strict=False):
                if entry.type == record.COMMIT:
                    command = record.RECORDS.decode(entry.type, entry.payload)
                    if self._decisions.is_committed(command.txn_id):
                        yield command

    def close(self) -> None:
        """Unmap. Idempotent; `refresh` begins again."""
        control, *_ = self._words
        self._words, self._journal = _Words(None, 0, 0), None
        while self._tables:
            table = self._tables.popitem()[1]
            if table is not None:
                table.close()
        if control is not None:
            control.close()


class FrozenOutcomes:
    """The outcomes of a store's transactions at one moment.

    Role: for what has to hold whole transactions. A transaction that is committed in it has stored all of its
    entries and acknowledgements, so whatever is read or copied afterwards has all of them. One that commits
    later is undecided in it. Each is looked up as it was; between two transactions there is no order: of two,
    the one that committed later may be in it without the other.
    Callers: one thread at a time, as long as the view is not refreshed or closed.

    Args:
        view: refreshed a moment ago.
        has_words: whether the store had transactions, and control words that can be believed.
        next_id: ids from there on had not been given out.
        lowest: ids below were folded.
    """

    def __init__(self, view: TransactionView, has_words: bool, next_id: int, lowest: int) -> None:
        self._view: Final = view
        self._has_words: Final = has_words
        self._next_id: Final = next_id
        self._lowest: Final = lowest
        # Slots before bytes, since a slot is freed when the byte was stored: what has neither was open at no
        # time between the two.
        self._open: Final = {each.txn_id: view.outcome(each.txn_id) for each in view.open_transactions()}
        self._tables: Final = view.tables()

    def outcome(self, txn_id: int) -> Outcome:
        """What had become of a transaction: UNDECIDED or PREPARED if it had no end."""
        if txn_id < self._lowest:
            return Outcome.FOLDED
        if txn_id >= self._next_id:
            # Either it began since, or it was never given out: then the store is a copy without processes.
            in_use = self._has_words or self._view.is_in_use()
            return Outcome.UNDECIDED if in_use else Outcome.ABORTED
        table = self._tables.get(txn_id >> SHIFT)
        if table is None:
            return self._view.outcome(txn_id)  # by the journal alone, as it was at the refresh
        outcome = Outcome(table[txn_id & MASK])
        if outcome.is_final:
            return outcome
        known = self._open.get(txn_id)
        if known is not None:
            return known
        # Its slot was filled behind its id, so it may have come after the slots were read. By now, with an
        # entry in a log, it has a slot or a byte; without both it can never be committed.
        return Outcome.UNDECIDED if self._view.has_begun(txn_id) else Outcome.ABORTED
