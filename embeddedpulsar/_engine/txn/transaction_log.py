"""The transaction log of a store: which transactions are open, and what became of the others.

A commit is one record in a journal, the decision, and one byte in a mapped table, which makes it visible in
all topics and subscriptions at once. An abort is the byte alone: what has no record is aborted after a
reboot. No process coordinates; one that meets a transaction that cannot go on ends it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial

from embeddedpulsar._engine.filenames import generations_among, journal_path, outcome_path, outcomes_in
from embeddedpulsar._engine.format import transaction_record as record
from embeddedpulsar._engine.format.control import (
    TXN_SLOTS,
    TXN_STATE_BITS,
    TransactionSlotWord,
    TransactionWord,
)
from embeddedpulsar._engine.format.transaction_record import ParticipantFacts
from embeddedpulsar._engine.log.waiter_slots import EACH, OTHERS, OTHERS_POLL_S
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, threads, timing
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.timing import Timer, is_idle
from embeddedpulsar._engine.txn.shared_transactions import SharedTransactions, TransactionOptions
from embeddedpulsar._engine.txn.transaction_state import (
    MASK,
    NO_OWNER,
    NO_SLOT,
    SHIFT,
    Intent,
    OpenTransaction,
    Outcome,
    PreparedTransaction,
    SlotState,
    Step,
    state_word,
)
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    InvalidTxnStatusError,
    LockTimeout,
    NotAllowedError,
    TransactionNotFound,
)
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final

failpoints.declare("txn:lowest_recorded", "txn:lowest_raised", "txn:table_unlinked", "txn:compared")

_ENDED_SINCE: Final = {
    Intent.COMMIT: (Step.REFUSED_FORGOTTEN,),
    Intent.PREPARE: (Step.REFUSED_COMMITTED, Step.REFUSED_ABORTED, Step.REFUSED_FORGOTTEN),
}
"""Answers to a process behind its flush, if others ended meanwhile what it decided or prepared."""
_JOURNAL: Final = TransactionWord.JOURNAL
_NEXT_ID: Final = TransactionWord.NEXT_ID
_LOWEST: Final = TransactionWord.LOWEST
_LONG_JOURNALS: Final = 128 << 10
_BACKSTOP_S: Final = 1.0
"""How often a transaction that is waited for is looked at though no process rang."""
_DEATH_RETRY_S: Final = 5e-3
_MOST_ASKED: Final = 64
_MS: Final = 1000.0
_JOINED: Final = TransactionSlotWord.JOINED
_FLUSH: Final = Step.FLUSH  # to look a member up in its class takes 0.1 us


class Wait(NamedTuple):
    """What a reader that meets an open transaction has to know.

    Attributes:
        outcome: final, or what it is so far; then the process is rung when that changes.
        look_again_s: the longest sleep without a ring, in seconds.
        transaction: its slot, to say who holds the reader up; None if there is none.
    """

    outcome: Outcome
    look_again_s: float = 0.0
    transaction: OpenTransaction | None = None


class _Watches:
    """The owners whose deaths this process hears of, by the transactions that its threads wait for."""

    def __init__(self, mailbox: Mailbox, on_death: Callable[[bytes], None]) -> None:
        self._mailbox: Final = mailbox
        self._on_death: Final = on_death
        self._mutex: Final = threads.RLock()
        self._waits: dict[int, tuple[bytes, int]] = {}  # owner and threads, by id

    def add(self, txn_id: int, owner: bytes) -> None:
        """A thread waits for a transaction of that owner."""
        try:
            self._mutex.acquire()
            count = self._waits.get(txn_id, (owner, 0))[1]
            is_new = all(other != owner for other, _ in self._waits.values())
            self._waits[txn_id] = (owner, count + 1)
        finally:
            self._mutex.release()
        if is_new:
            with contextlib.suppress(OSError):  # no descriptor: the back-stop finds the death
                self._mailbox.watch(owner, self._on_death)

    def remove(self, txn_id: int) -> None:
        """A thread waits no more."""
        try:
            self._mutex.acquire()
            owner, count = self._waits.pop(txn_id, (NO_OWNER, 0))
            if count > 1:
                self._waits[txn_id] = (owner, count - 1)
            is_last = count == 1 and all(other != owner for other, _ in self._waits.values())
        finally:
            self._mutex.release()
        if is_last:
            self._mailbox.unwatch(owner, self._on_death)

    def close(self) -> None:
        """Watch no process any more."""
        for owner in {owner for owner, _ in self._waits.values()}:
            self._mailbox.unwatch(owner, self._on_death)
        self._waits.clear()


class TransactionLog:
    """The transaction log of a store, as one process has it.

    Role: begins and ends transactions, tells their outcomes, wakes those that wait for one, ends what was
    left, and forgets what nothing asks for. What takes part in a transaction it knows by `ParticipantFacts`
    only.
    Durable: at level "flush" a commit when it returns; at every level what is prepared, and the ids that may
    have been used; else what the kernel wrote.
    Callers: any thread, with no lock but those of clients; `outcome` under any lock. Deaths are handled in
    the thread that waits on the mailbox. After a fork, the child's copy raises `AlreadyClosed`.

    Attributes:
        options: as given.
        control: words and slots.
        outcome, range_of: see `SharedTransactions`.
        now_ms: see `SharedTransactions.now_ms`.
        is_flushed: whether a commit is durable by default.
        path: of its directory.
    """

    def __init__(self, shared: SharedTransactions) -> None:
        self.options: Final = shared.options
        self.control: Final = shared.control
        self.outcome: Final = shared.outcome
        self.range_of: Final = shared.range_of
        self.now_ms: Final = shared.now_ms
        self.is_flushed: Final = shared.must_flush
        self.path: Final = shared.directory
        self._shared: Final = shared
        self._words: Final = shared.control.words
        self._waiter_slot = 0
        self._awaited: dict[int, int] = {}  # the groups in which this process is announced, by id
        self._asked: dict[int, OpenTransaction] = {}  # as their slots were; see `end_if_abandoned`
        self._timer: Timer | None = None
        self._watches: Final = _Watches(shared.options.mailbox, self._on_death)

    @staticmethod
    def exists_in(root: str) -> bool:
        """Whether a store ever had a transaction that did something."""
        return SharedTransactions.exists_in(root)

    @classmethod
    def open(cls, root: str, options: TransactionOptions) -> TransactionLog:
        """Open the log of the store in ``root``, making or recovering its files as needed.

        Raises:
            StorageError: the files are of a newer release, are links or no files, or cannot be written.
            LockTimeout: another process stayed in the lock.
        """
        return cls(SharedTransactions.open(root, options))

    # -- ids and slots -----------------------------------------------------------------------------

    def open_slot(self, deadline_ms: int, label: str = "") -> tuple[int, int]:
        """Begin a transaction: its id, and its slot.

        Args:
            deadline_ms: when it is aborted, as `now_ms`; 0 for never.
            label: for people.

        Raises:
            NotAllowedError: as many as may be are open.
            LockTimeout: another process stayed in the lock.
            StorageError: a range of ids could not be reserved.
        """
        opened = self._shared.section(self._shared.open_slot, deadline_ms, label)
        if opened is None:
            raise NotAllowedError(self._too_many())
        return opened

    def _too_many(self) -> str:
        oldest = min(self.open_transactions(), key=lambda each: each.started_ms, default=None)
        text = f"{self._shared.most_open} transactions are open in the store, and no more may be"
        if oldest is not None:
            age_s = max(self.options.clock.wall_ms() - oldest.started_ms, 0) / _MS
            whose = f"process {oldest.pid}" if oldest.pid else "none: it is prepared"
            text += f"; the oldest is (0,{oldest.txn_id}), {age_s:.1f} s old, of {whose}"
        return text + ". End some, or raise maxActiveTransactionsPerCoordinator, at most 1024"

    # -- ends --------------------------------------------------------------------------------------

    def end(
        self,
        intent: Intent,
        txn_id: int,
        slot: int,
        command: record.Decision | None = None,
        *,
        joins: int = -1,
        must_flush: bool | None = None,
    ) -> Step | None:
        """Drive a transaction to an end: COMMIT or PREPARE with a ``command``, STOP, ABORT.

        Args:
            intent: which.
            txn_id, slot: of the transaction; `NO_SLOT` to look for its slot.
            command: what is appended.
            joins: the number of processes that joined, as the caller saw it; -1 if that does not matter.
            must_flush: whether the decision is to be durable; by default the level says.

        Returns:
            DONE, or why not; None if more processes joined meanwhile. A PREPARE is done once it is durable,
            be it that another process has ended the transaction since.

        Raises:
            LockTimeout: another process stayed in the lock: nothing is known of the end.
            StorageError: the decision could not be written, or not made durable.
        """
        shared = self._shared
        step, word = shared.section(self._end, intent, txn_id, slot, command, joins, must_flush)
        if step is not _FLUSH:
            return step
        # It is decided, or prepared. The flush is not under the lock: others append meanwhile, and one flush
        # is for all of them. They may also end what is prepared, and forget what has ended.
        while step is _FLUSH:
            shared.wait_durable(word)
            step, word = shared.section(self._end, intent, txn_id, slot, command, -1, must_flush)
        return Step.DONE if step in _ENDED_SINCE.get(intent, ()) else step

    def _end(
        self,
        intent: Intent,
        txn_id: int,
        slot: int,
        command: record.Decision | None,
        joins: int,
        must_flush: bool | None,
    ) -> tuple[Step | None, int]:
        self._shared.catch_up()
        control, words = self.control, self._words
        at = control.word_of(slot)
        if slot == NO_SLOT or words[at] >> TXN_STATE_BITS != txn_id:
            slot = control.find(txn_id)
            at = control.word_of(slot)
        if joins >= 0 and slot >= 0 and words[at + _JOINED] != joins:
            return None, 0
        return self._shared.drive(intent, txn_id, slot, command, must_flush), words[_JOURNAL]

    def abort(self, txn_id: int) -> None:
        """Abort a transaction of any process. For operators, and for those that joined it.

        Raises:
            TransactionNotFound: there never was one of that id, or it ended long ago.
            InvalidTxnStatusError: it is committed.
        """
        self._check_known(txn_id)
        step = self.end(Intent.ABORT, txn_id, NO_SLOT)
        if step is Step.REFUSED_COMMITTED:
            raise InvalidTxnStatusError(f"the transaction (0,{txn_id}) is committed, and cannot be aborted")

    def _check_known(self, txn_id: int) -> None:
        if not self._words[_LOWEST] <= txn_id < self._words[_NEXT_ID]:
            raise TransactionNotFound(
                f"there is no transaction (0,{txn_id}): none was begun with that id, or it ended long ago"
            )

    # -- waiting for an outcome --------------------------------------------------------------------

    def announce(self, txn_id: int) -> Wait:
        """Look at a transaction that holds a reader up; end it if no process can go on with it, else ask for
        a ring at its end.

        To be followed by `end_wait` if the outcome is not final. Read the generation of the mailbox before;
        then sleep on the mailbox, `look_again_s` at most.

        Raises:
            LockTimeout: another process stayed in the lock.
        """
        peers, own = self.options.peers, self.options.mailbox.uuid
        while True:
            wait, step, word = self._shared.section(self._announce, txn_id)
            owner = NO_OWNER if wait.transaction is None else wait.transaction.owner
            if step is not Step.FLUSH or peers.is_alive(owner):
                break
            self._shared.wait_durable(word)  # it died in its flush
        if owner not in (NO_OWNER, own) and not wait.outcome.is_final:
            self._watches.add(txn_id, owner)
        return wait

    def _drive_on(self, txn_id: int) -> tuple[Step, int]:
        """End a transaction if no process can go on with it: the last step, and its slot. Under the lock."""
        if txn_id >= self._words[_NEXT_ID]:
            self._shared.skip_unknown(txn_id)
        self._shared.catch_up()
        slot = self.control.find(txn_id)
        return self._shared.drive(Intent.TEND, txn_id, slot), slot

    def _announce(self, txn_id: int) -> tuple[Wait, Step, int]:
        words, control = self._words, self.control
        step, slot = self._drive_on(txn_id)
        view = self._shared.view(txn_id >> SHIFT)
        if view is None:
            return Wait(Outcome.FOLDED), step, 0
        outcome = Outcome(view[txn_id & MASK])
        if outcome.is_final:
            return Wait(outcome), step, 0
        transaction = control.read_slot(slot)
        left_s = _BACKSTOP_S
        if transaction is not None and transaction.deadline_ms:
            left_s = min(max(self._left_ms(transaction), 0) / _MS, _BACKSTOP_S)
        # Announced with the outcome undecided, in one section; who decides takes the bit in another.
        waiters = self._shared.waiters
        self._waiter_slot = waiters.claim(self.options.mailbox.uuid, self._waiter_slot)
        group = waiters.group_of(txn_id)
        waiters.announce(self._waiter_slot, group)
        if txn_id in self._awaited:
            self._awaited[txn_id] = group
        if self._waiter_slot == OTHERS:
            left_s = min(left_s, OTHERS_POLL_S)
        return Wait(outcome, left_s, transaction), step, words[_JOURNAL]

    def end_if_abandoned(self, txn_id: int) -> bool:
        """End a transaction if its process is dead, or its deadline has passed: for those that are about to
        answer that there is nothing. As long as it can go on, no lock is taken, and no ring asked for: about
        7 us, 12 to 40 the first time.

        Returns:
            Whether it has ended.

        Raises:
            LockTimeout: another process stayed in the lock.
            StorageError: it was decided by a process that died, and cannot be made durable.
        """
        while not self.outcome(txn_id).is_final:
            transaction = self._asked.get(txn_id)
            state = SlotState.FREE if transaction is None else self.control.state_of(transaction.slot, txn_id)
            if transaction is None or state is not transaction.state:
                slot = self.control.find(txn_id)
                transaction = None if slot == NO_SLOT else self.control.read_slot(slot)
                if transaction is not None and transaction.txn_id == txn_id:
                    if len(self._asked) >= _MOST_ASKED:
                        self._asked.clear()
                    self._asked[txn_id] = transaction
            if transaction is not None and not self._is_abandoned(transaction):
                return False
            step, word = self._shared.section(lambda: (self._drive_on(txn_id)[0], self._words[_JOURNAL]))
            if step is not Step.FLUSH:
                break
            if transaction is not None and self.options.peers.is_alive(transaction.owner):
                return False  # it is about to show what it decided
            self._shared.wait_durable(word)
        self._asked.pop(txn_id, None)
        return self.outcome(txn_id).is_final

    def end_wait(self, txn_id: int) -> None:
        """The caller does not wait any more for what it announced."""
        self._watches.remove(txn_id)

    def wait_for_outcome(self, txn_id: int, timeout_s: float | None = None) -> Outcome:
        """Sleep until a transaction has ended.

        Returns:
            Its outcome; UNDECIDED or PREPARED after the timeout.
        """
        mailbox, monotonic = self.options.mailbox, timing.SYSTEM_CLOCK.monotonic
        ends = None if timeout_s is None else monotonic() + timeout_s
        while True:
            # The generation before the look: a ring between the two ends the sleep at once.
            generation = mailbox.generation
            outcome = self.outcome(txn_id)
            if outcome.is_final or (ends is not None and monotonic() >= ends):
                return outcome
            wait = self.announce(txn_id)
            if wait.outcome.is_final:
                return wait.outcome
            try:
                nap_s = wait.look_again_s
                mailbox.wait(generation, nap_s if ends is None else min(nap_s, max(ends - monotonic(), 0)))
            finally:
                self.end_wait(txn_id)

    def await_end(self, txn_id: int) -> bool:
        """Have this process rung when a transaction ends, which is ended here when no process can go on with
        it; False if it has ended. For those that sleep on the mailbox anyway, and ask again before they do.

        Read the generation of the mailbox before. Asked again, about 2 us.

        Raises:
            LockTimeout: another process stayed in the lock.
        """
        if self.outcome(txn_id).is_final:
            self._forget_awaited(txn_id)
            return False
        group = self._awaited.get(txn_id)
        if group is not None:
            # A ring for another transaction of the group takes the announcement as well.
            key = 0 if group == EACH else txn_id
            uuid = self.options.mailbox.uuid
            if self._shared.waiters.is_announced(self._waiter_slot, group, key, uuid):
                return True
        self._awaited[txn_id] = EACH
        wait = self.announce(txn_id)
        if group is not None:
            self._watches.remove(txn_id)  # it was watched already
        if wait.outcome.is_final:
            self._awaited.pop(txn_id, None)
            return False
        self._look_within(wait.look_again_s)
        return True

    def _forget_awaited(self, txn_id: int) -> None:
        if self._awaited.pop(txn_id, None) is not None:
            self._watches.remove(txn_id)

    def _look_within(self, seconds: float) -> None:
        """Look at what is awaited though no process rings: a deadline passes, or a ring was lost."""
        timer = self._timer
        due = timing.SYSTEM_CLOCK.monotonic() + seconds
        if is_idle(timer) or (timer is not None and timer.due > due):
            if timer is not None:
                timer.cancel()
            with contextlib.suppress(RuntimeError):  # the store is being closed
                self._timer = self.options.call_later(seconds, self._poll_awaited)

    def _poll_awaited(self) -> None:
        self._timer = None
        is_any, pause_s = False, _BACKSTOP_S
        try:
            for txn_id in list(self._awaited):
                is_over = self.outcome(txn_id).is_final
                if not is_over:
                    try:
                        wait = timing.try_now(self.announce, txn_id)
                        self._watches.remove(txn_id)
                        is_over, pause_s = wait.outcome.is_final, min(pause_s, wait.look_again_s)
                    except LockTimeout:
                        pause_s = min(pause_s, _DEATH_RETRY_S)
                if is_over:
                    is_any = True
                    self._forget_awaited(txn_id)
        except AlreadyClosed:
            return
        if is_any:
            self.options.mailbox.ring_self()
        if self._awaited:
            self._look_within(pause_s)

    # -- what others left --------------------------------------------------------------------------

    def _on_death(self, uuid: bytes) -> None:
        """A process is gone that had a transaction for which a thread here waits."""
        try:
            timing.try_now(self.end_those_of, uuid)
        except LockTimeout:
            self.options.call_later(_DEATH_RETRY_S, partial(self._on_death, uuid))
        except AlreadyClosed:
            return

    def end_those_of(self, uuid: bytes) -> int:
        """Abort what a dead process left open, and finish what it had decided. How many slots it had."""
        return self._tend_each([each for each in self.open_transactions() if each.owner == uuid])

    def tend(self) -> int:
        """End what no process can go on with: owners that died, deadlines that have passed. For housekeeping.

        Returns:
            How many were ended.
        """
        # Without the lock first: usually nothing is due.
        return self._tend_each([each for each in self.open_transactions() if self._is_abandoned(each)])

    def _is_abandoned(self, transaction: OpenTransaction) -> bool:
        """Whether no process can go on with it. Lock-free."""
        if transaction.deadline_ms > 0 and self._left_ms(transaction) <= 0:
            return True
        # A prepared one has no owner, and waits; decided, it was ended by a process that may be gone.
        is_prepared = transaction.state is SlotState.PREPARED
        return not is_prepared and not self.options.peers.is_alive(transaction.owner)

    def _left_ms(self, transaction: OpenTransaction) -> int:
        """Until its deadline, which it has."""
        is_prepared = transaction.state is SlotState.PREPARED
        now_ms = self.options.clock.wall_ms() if is_prepared else self.now_ms()
        return transaction.deadline_ms - now_ms

    def _tend_each(self, due: list[OpenTransaction]) -> int:
        control, words = self.control, self._words

        def body() -> tuple[list[Step], int]:
            self._shared.catch_up()
            steps = [
                self._shared.drive(Intent.TEND, each.txn_id, each.slot)
                for each in due
                if control.state_of(each.slot, each.txn_id)
            ]
            return steps, words[_JOURNAL]

        while due:
            steps, word = self._shared.section(body)
            if Step.FLUSH not in steps:
                break
            self._shared.wait_durable(word)
        return len(due)

    # -- looking -----------------------------------------------------------------------------------

    def open_transactions(self) -> list[OpenTransaction]:
        """The slots in use, without the lock."""
        self._shared.check_usable()
        slots = map(self.control.read_slot, self.control.used_slots())
        return [transaction for transaction in slots if transaction is not None]

    def is_any_open(self) -> bool:
        """Whether a slot is in use. One load; a begin that is under way may not count yet."""
        try:
            return bool(self._words[TransactionWord.OPEN])
        except ValueError:
            return True  # closed

    def prepared(self) -> list[PreparedTransaction]:
        """The transactions that wait for their end, by id."""

        def body() -> list[PreparedTransaction]:
            self._shared.catch_up()
            return sorted(self._shared.decisions.prepared.values())

        return self._shared.section(body)

    # -- joining -----------------------------------------------------------------------------------

    def make_token(self, txn_id: int, slot: int) -> bytes:
        """What another process joins a transaction with; b"" if it is not open any more."""
        secret = int.from_bytes(os.urandom(8), "little") | 1

        def body() -> int:
            at = self.control.word_of(slot)
            if self._words[at] != state_word(txn_id, SlotState.OPEN):
                return 0
            if not self._words[at + TransactionSlotWord.SECRET]:
                self._words[at + TransactionSlotWord.SECRET] = secret
            return int(self._words[at + TransactionSlotWord.SECRET])

        known = self._shared.section(body)
        return record.pack_token(record.Token(self.options.store_id, txn_id, slot, known)) if known else b""

    def join(self, token: record.Token) -> Step:
        """Count this process as one that joined. DONE, or why not.

        Raises:
            TransactionNotFound: the token is of another store, or of no transaction of this one.
        """
        _, txn_id, slot, secret = token
        control = self.control
        is_ours = token.store_id == self.options.store_id and 0 <= slot < TXN_SLOTS
        if not is_ours or not 0 < txn_id < self._words[_NEXT_ID]:
            raise TransactionNotFound("the token is not of a transaction of this store")

        def body() -> Step | None:
            self._shared.catch_up()
            at = control.word_of(slot)
            if control.state_of(slot, txn_id) and self._words[at + TransactionSlotWord.SECRET] != secret:
                return None
            step = self._shared.drive(Intent.JOIN, txn_id, slot)
            if step is Step.DONE:
                self._words[at + TransactionSlotWord.JOINED] += 1
            return step

        step = self._shared.section(body)
        if step is None:
            raise TransactionNotFound("the token is not of a transaction of this store")
        return step

    def note_participant(self, txn_id: int, slot: int, participant: ParticipantFacts) -> bool:
        """Record that a process that joined uses a topic or subscription. False if the transaction is not
        open any more."""

        def body() -> bool:
            self._shared.catch_up()
            if self.control.state_of(slot, txn_id) is not SlotState.OPEN:
                return False
            if participant.key not in self._shared.decisions.joined.get(txn_id, {}):
                self._shared.append(record.Join(txn_id, participant))
            return True

        return self._shared.section(body)

    def joined(self, txn_id: int) -> tuple[ParticipantFacts, ...]:
        """What processes that joined a transaction use in it."""

        def body() -> tuple[ParticipantFacts, ...]:
            self._shared.catch_up()
            return tuple(self._shared.decisions.joined.get(txn_id, {}).values())

        return self._shared.section(body)

    # -- after a recovery --------------------------------------------------------------------------

    def recovered(self) -> int:
        """The generation of the journal that a recovery began, if what older ones committed is still to be
        compared with the logs; else 0. Lock-free."""
        return int(self._words[TransactionWord.RECOVERED])

    def note_compared(self, generation: int, torn: int) -> None:
        """Count the committed transactions that are torn, once for each recovery.

        Args:
            generation: as of `recovered` when the comparison began.
            torn: how many there are.
        """

        def body() -> None:
            words = self._words
            if words[TransactionWord.RECOVERED] == generation:
                # A death between the two stores loses the count; in the other order it would count twice.
                words[TransactionWord.RECOVERED] = 0
                if failpoints.ACTIVE:
                    failpoints.hit("txn:compared")
                words[TransactionWord.TEARS] += torn

        self._shared.section(body)

    # -- folding -----------------------------------------------------------------------------------

    def lowest(self) -> int:
        """Outcomes of transactions with lower ids are forgotten: `FoldedOutcomes` knows them. Lock-free."""
        return int(self._words[_LOWEST])

    def next_id(self) -> int:
        """The id that the next transaction gets. Lock-free."""
        return int(self._words[_NEXT_ID])

    def decided(self) -> int:
        """The journal word: another one once anything was decided. Lock-free."""
        return int(self._words[_JOURNAL])

    def lowest_undecided(self) -> int:
        """All transactions with lower ids have ended, and no operation of theirs is admitted from now on.

        One that was admitted before may be under way: it ends with the hold of the lock in which it was.
        """

        def body() -> int:
            self._shared.catch_up()
            return self._lowest_in_use()

        return self._shared.section(body)

    def _lowest_in_use(self) -> int:
        words, control = self._words, self.control
        slots = [words[control.word_of(slot)] >> 4 for slot in control.used_slots()]
        return int(min([words[_NEXT_ID], *slots, *self._shared.decisions.prepared]))

    def raise_lowest(self, lowest_asked: int) -> int:
        """Forget the outcomes that nothing asks for any more.

        Args:
            lowest_asked: no topic asks for a lower id but those whose documents know it, durably, and no
                subscription does.

        Returns:
            The lowest id that is still known: an older one may be open or prepared.
        """

        def body() -> int:
            self._shared.catch_up()
            words = self._words
            lowest = min(lowest_asked, self._lowest_in_use())
            if lowest > words[_LOWEST]:
                # 1. The record, so that the next snapshot is without them. 2. The word: from here on readers
                # ask their ledgers.
                self._shared.append(record.RaiseLowest(lowest))
                if failpoints.ACTIVE:
                    failpoints.hit("txn:lowest_recorded")
                words[_LOWEST] = lowest
                if failpoints.ACTIVE:
                    failpoints.hit("txn:lowest_raised")
            return int(words[_LOWEST])

        lowest = self._shared.section(body)
        # 3. The files, also those that a process left that died here. Without the lock: none is made below.
        directory = self._shared.directory
        for number in outcomes_in(descriptors.names_in(directory)):
            if number < lowest >> SHIFT:
                with contextlib.suppress(FileNotFoundError):  # another process was faster
                    disk.DISK.unlink(outcome_path(directory, number))
                if failpoints.ACTIVE:
                    failpoints.hit("txn:table_unlinked")
        self._shared.forget_tables(lowest)
        self.shrink_journal()
        return lowest

    def shrink_journal(self) -> None:
        """Begin a new generation of the journal, and drop the one before the present one, if they are long.

        For housekeeping, and called twice only when nothing was decided for some time: what transactions did,
        which is compared with the logs after a power loss, goes with the older one.
        """
        directory = self._shared.directory
        journals = generations_among(descriptors.names_in(directory))[0]
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            size = sum(os.path.getsize(journal_path(directory, generation)) for generation in journals)
            if size > _LONG_JOURNALS:
                self._shared.section(self._shared.rewrite)

    def sync(self) -> None:
        """Make everything that was decided so far survive a power loss."""
        self._shared.sync()

    def close(self) -> None:
        """Flush what a timer owes, and unmap. What this process has open is aborted by others once its lease
        is free. Idempotent."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self._watches.close()
        self._shared.close()
