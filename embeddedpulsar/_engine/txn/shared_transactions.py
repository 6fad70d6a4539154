"""The transactions of a store as its processes share them: files, the lock, and what happens under it.

Write orders, each step with a failpoint (docs/format/transactions.md has what a crash behind each leaves):

* an id: word NEXT_ID, slot. Before the first id of a range: RESERVE record, flushed; table of outcomes; word;
* a commit: see `transaction_state`; at level "flush" the journal is flushed between slot and byte, once for
  all who wait.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial

from embeddedpulsar._engine.filenames import (
    TRANSACTIONS,
    lock_path,
    outcome_path,
    outcomes_in,
    sync_lock_path,
)
from embeddedpulsar._engine.format import transaction_record as record
from embeddedpulsar._engine.format.control import (
    KIND_TRANSACTIONS,
    OUTCOMES_PER_FILE,
    TXN_SLOTS,
    TXN_STATE_BITS,
    TransactionSlotWord,
    TransactionWord,
    split_journal,
)
from embeddedpulsar._engine.format.transaction_record import FIRST_TXN_ID, MAX_TXN_ID
from embeddedpulsar._engine.log.journal import Journal
from embeddedpulsar._engine.log.journal_file import JournalPlace
from embeddedpulsar._engine.log.log_opening import FLUSH, INTERVAL, PROCESS
from embeddedpulsar._engine.log.topic_control import ThrottledCheck
from embeddedpulsar._engine.log.waiter_slots import WaiterSlots
from embeddedpulsar._engine.platform import (
    descriptors,
    disk,
    failpoints,
    filesystem,
    fork,
    nofollow,
    threads,
    timing,
)
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar._engine.platform.timing import CallLater, Clock, Timer, is_idle
from embeddedpulsar._engine.txn.transaction_state import (
    COMMIT_OF_OPEN,
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
    control_of,
    read_outcomes,
    state_word,
    steps_towards,
)
from embeddedpulsar.damage import CONTROL, JOURNAL, Damage, DamageHook
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    CorruptionError,
    DescriptorLimitError,
    LockTimeout,
    NotAllowedError,
    StorageError,
    StorageFullError,
)
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from typing import Final

R = TypeVar("R")

failpoints.declare("txn:reserve_recorded", "txn:reserved", "txn:id_taken", "txn:slot_filled")
failpoints.declare("txn:recovered", "txn:before_flush", "txn:flushed")

_OUTCOMES: Final = (Outcome.UNDECIDED, Outcome.COMMITTED, Outcome.ABORTED, Outcome.PREPARED)
_POINTS: Final = {
    Step.APPEND_COMMIT: "txn:commit_recorded",
    Step.APPEND_PREPARE: "txn:prepare_recorded",
    Step.APPEND_ABORT: "txn:abort_recorded",
    Step.MOVE_ENDING: "txn:ending",
    Step.MOVE_PREPARED: "txn:slot_prepared",
    Step.MOVE_DECIDED: "txn:slot_decided",
    Step.FREE_SLOT: "txn:slot_freed",
    Step.SHOW_COMMITTED: "txn:commit_shown",
    Step.SHOW_ABORTED: "txn:abort_shown",
    Step.SHOW_PREPARED: "txn:prepare_shown",
}
failpoints.declare(*_POINTS.values())

_JOURNAL: Final = TransactionWord.JOURNAL
_SYNCED: Final = TransactionWord.SYNCED
_OWNER: Final = TransactionWord.OWNER
_NEXT_ID: Final = TransactionWord.NEXT_ID
_RESERVED: Final = TransactionWord.RESERVED
_LOWEST: Final = TransactionWord.LOWEST
_OPEN: Final = TransactionWord.OPEN
_HINT: Final = TransactionWord.HINT
_UNFLUSHED: Final = TransactionWord.UNFLUSHED
_WAITERS: Final = TransactionWord.WAITERS
_COMMITS: Final = TransactionWord.COMMITS
_DEADLINE_MS: Final = TransactionSlotWord.DEADLINE_MS
_DECIDED: Final = TransactionSlotWord.DECIDED
_TABLE: Final = TransactionControl.word_of(0)
_SLOT_WORDS: Final = TransactionControl.word_of(1) - _TABLE

# Of the usual commit; to look a member up in its class takes 0.1 us.
_COMMIT: Final = Intent.COMMIT
_APPEND_COMMIT, _MOVE_DECIDED = Step.APPEND_COMMIT, Step.MOVE_DECIDED
_SHOW_COMMITTED, _FREE_SLOT = Step.SHOW_COMMITTED, Step.FREE_SLOT
_OPEN_STATE, _DECIDED_STATE = int(SlotState.OPEN), int(SlotState.DECIDED)
_COMMITTED: Final = int(Outcome.COMMITTED)

COMPACT_BYTES: Final = 8 << 20
"""A generation of the journal is followed by the next at some 8,000 decisions, which takes some 40 ms to
replay, or at this length."""
_BACKSTOP_S: Final = 1.0
"""How often a transaction that is waited for is looked at though no process rang."""
_FULL_LOOK_S: Final = 0.1
_DEATH_RETRY_S: Final = 5e-3
_MS: Final = 1000.0
_new: Final = tuple.__new__
_NO_FLUSH: Final = (DescriptorLimitError, LockTimeout)
_DURABILITIES: Final = (PROCESS, INTERVAL, FLUSH)


class TransactionOptions(NamedTuple):
    """Surroundings and settings of one `TransactionLog`.

    Attributes:
        boot: identity of the boot in which control words are believed.
        store_id: 16 bytes that identify the store, for tokens.
        mailbox, peers: the lease of this process, its waits, and the doorbells of others.
        clock: stamps records, and measures deadlines.
        call_later: runs the flushes of level "interval", and what could not be done at once after a death.
        durability: "process", "interval" or "flush": when a decision is on the disk. What is prepared always
            is.
        interval_s: seconds between flushes at level "interval".
        lock_timeout_s: how long to wait for the transaction lock.
        most_open: transactions that may be open at once in the store, at most; 0 for as many as there are
            slots, 1,024.
        longest_timeout_ms: of a transaction. Readers wait for one that is open; one that may take longer is
            to be prepared.
        compact_bytes: see `COMPACT_BYTES`.
        report: called with what could not be read, outside the lock.
        check_in_place: raises if the store is not the one that was opened.
        before_first: called before the first file is made; for what has to be stored elsewhere before.
    """

    boot: bytes
    store_id: bytes
    mailbox: Mailbox
    peers: Peers
    clock: Clock
    call_later: CallLater
    durability: str = PROCESS
    interval_s: float = 1.0
    lock_timeout_s: float = timing.LONGEST_S
    most_open: int = 0
    longest_timeout_ms: int = 900_000
    compact_bytes: int = COMPACT_BYTES
    report: DamageHook = lambda damage: None
    check_in_place: Callable[[], object] = int
    before_first: Callable[[], object] = int


class SharedTransactions:
    """The files of the transactions of a store, used by one process under their lock.

    Role: opens and recovers the files, gives out ids and slots, drives a transaction by `next_step`, tells
    outcomes, and makes decisions durable. `TransactionLog` has what is done with these.
    Invariants: an id is given out once in the life of the store. A byte of an outcome that is final never
    changes. A transaction is committed if and only if the journal has its COMMIT. Nothing exists on disk
    before the first slot is opened.
    Durable: what `wait_durable` waited for; and the ids that may have been used.
    Callers: any thread, with no lock but those of clients; `outcome` under any lock. What says "under the
    lock" is called in the ``body`` of `section`. After a fork, the child's copy raises `AlreadyClosed`.

    Attributes:
        directory, options: as given.
        control: words and slots.
        decisions: the replica, true in a `section` behind `catch_up`.
        waiters: the processes that wait for outcomes.
        most_open: so many transactions may be open.
        must_flush: whether a commit is durable by default.
    """

    def __init__(
        self, directory: str, lock: FileLock, control: TransactionControl, options: TransactionOptions
    ) -> None:
        if options.durability not in _DURABILITIES:
            raise ValueError(f"durability {options.durability!r}; use one of {', '.join(_DURABILITIES)}")
        self.directory: Final = directory
        self.control: Final = control
        self.options: Final = options
        self._words: Final = control.words
        self._lock: Final = lock
        self._timeout_s: Final = options.lock_timeout_s
        self._wall_ms: Final = options.clock.wall_ms
        self._monotonic: Final = options.clock.monotonic
        self._offset_ms: Final = timing.monotonic_offset_ms()
        self.must_flush: Final = options.durability == FLUSH
        self._is_timed: Final = options.durability == INTERVAL
        self.most_open: Final = min(options.most_open or TXN_SLOTS, TXN_SLOTS)
        self._check: Final = ThrottledCheck(options.check_in_place, options.clock.monotonic).check_if_due
        place = JournalPlace(
            directory,
            control.words,
            _JOURNAL,
            KIND_TRANSACTIONS,
            options.compact_bytes,
            check_in_place=options.check_in_place,
        )
        self.decisions: Final = Decisions()
        self._journal: Final = Journal(place, self.decisions)
        # The descriptors of the lock and of the journal are closed together, when there are too few, or after
        # a fork.
        lock.close_others, lock.check_reopened = self._journal.close_descriptor, options.check_in_place
        self._sync_lock: FileLock | None = None
        self.waiters: Final = WaiterSlots(control.words, _WAITERS, options.peers)
        self._tables: Final[dict[int, OutcomeTable]] = {}
        self._views: Final[dict[int, memoryview]] = {}
        self._rings: list[bytes] = []
        self._damage: list[Damage] = []
        self._timer: Timer | None = None
        self._full_at = -1.0
        self._owner_word: Final = os.getpid() << 32 | 1
        self._fork_generation: Final = fork.GENERATION
        self._is_closed = False

    # -- opening -----------------------------------------------------------------------------------

    @classmethod
    def exists_in(cls, root: str) -> bool:
        """Whether a store ever had a transaction that did something."""
        # The directory: a copy, or a store that lost its control file, has decisions without one.
        return os.path.lexists(os.path.join(root, TRANSACTIONS))

    @classmethod
    def open(cls, root: str, options: TransactionOptions) -> SharedTransactions:
        """Open the log of the store in ``root``, making or recovering its files as needed.

        Raises:
            StorageError: the files are of a newer release, are links or no files, or cannot be written.
            LockTimeout: another process stayed in the lock.
        """
        directory = os.path.join(root, TRANSACTIONS)
        if not os.path.lexists(directory):
            options.check_in_place()
            options.before_first()
            with contextlib.suppress(FileExistsError):
                disk.DISK.mkdir(directory, None)
            disk.DISK.fsync_dir(root)
        return nofollow.within(directory, cls._open, directory, options)

    @classmethod
    def _open(cls, directory: str, options: TransactionOptions) -> SharedTransactions:
        filesystem.check_owner(directory, nofollow.directory_status(directory))
        lock = FileLock(lock_path(directory))
        with contextlib.ExitStack() as stack:
            stack.callback(lock.close)
            try:
                lock.acquire(options.lock_timeout_s)
                control = control_of(directory, options.boot)
            finally:
                lock.release()
            stack.callback(control.close)
            log = cls(directory, lock, control, options)
            if log._is_to_be_believed():
                log._journal.preload()
            else:
                log._recover()
            lock.describe = log._describe_owner
            stack.pop_all()
        return log

    def _is_to_be_believed(self) -> bool:
        control = self.control
        is_whole = control.is_trusted(self.options.boot) and control.is_possible()
        return is_whole and self._words[_LOWEST] > 0 and self._journal.exists

    def _recover(self) -> None:
        """Believe the journal, not the words: after a reboot, in a copied store, when the ctl is damaged.

        What has neither COMMIT nor PREPARE is aborted.
        """
        words, control = self._words, self.control
        try:
            self._lock.acquire(self._timeout_s)
            control.reload()
            if self._is_to_be_believed():
                return  # another process was faster
            is_known = control.header is not None and control.is_possible()
            if control.is_damaged or (control.header is not None and not is_known):
                self._damage.append(Damage(control.path, reason="its words are damaged", kind=CONTROL))
            # 1. The words, as if nothing were open. Those that count are kept for people. Without LOWEST none
            # is believed; it is stored last.
            words[_LOWEST] = 0
            kept = (_JOURNAL, TransactionWord.COMMITS, TransactionWord.ABORTS, TransactionWord.TEARS)
            control.clear(*(kept if is_known else ()))
            # 2. The journal, with a new generation, durable; or the first one.
            journal, now_ms = self._journal, self._wall_ms()
            journal.recover(now_ms, self._complete, is_word_known=is_known)
            reserved = self.decisions.reserved
            numbers = outcomes_in(descriptors.names_in(self.directory))
            if numbers:  # the name of a table is made when its ids are reserved, and says so as well
                reserved = max(reserved, (numbers[-1] + 1) << SHIFT)
            if not journal.exists:
                journal.create([record.RECORDS.encode(record.Reserve(reserved))], now_ms)
                journal.sync()
                disk.DISK.fsync_dir(self.directory)
            elif journal.seen:
                # What older generations committed may be torn. The logs are compared with it later: an
                # opening does not wait for that.
                words[TransactionWord.RECOVERED] = split_journal(journal.seen)[0]
            words[_SYNCED] = journal.seen
            # 3. What processes that joined used in transactions that ended with the boot.
            for txn_id in list(self.decisions.joined):
                self.append(record.Abort(txn_id))
            # 4. Ids that no process ever had. NEXT_ID follows RESERVED, so the first one reserves a range.
            words[_RESERVED] = max(reserved, FIRST_TXN_ID)
            words[_NEXT_ID] = words[_RESERVED]
            for prepared in sorted(self.decisions.prepared.values()):
                self._fill_prepared(control.free_slot(), prepared)
            # 5. The words are true.
            failpoints.hit("txn:recovered")
            words[_LOWEST] = min(self.decisions.lowest, words[_NEXT_ID])
            control.adopt(0, self.options.boot)
            self._take_damage()
        finally:
            self._lock.release()
            self._act()

    def _complete(self) -> bool:
        """What the tables of outcomes know that a damaged journal does not."""
        if self._journal.damage:
            self._make_good()
        return True

    def _make_good(self) -> None:
        """Take the decisions that the journal lost from the tables of outcomes, as far as these have them.

        A byte that says "committed" was stored behind its record, whatever became of both.
        """
        for number in outcomes_in(descriptors.names_in(self.directory)):
            data = read_outcomes(self.directory, number)
            at = data.find(Outcome.COMMITTED)
            while at >= 0:
                self.decisions.note_committed(number << SHIFT | at)
                at = data.find(Outcome.COMMITTED, at + 1)

    def _take_damage(self) -> None:
        self._damage += self._journal.damage
        self._journal.damage.clear()

    def _describe_owner(self) -> str:
        with contextlib.suppress(ValueError):
            pid = self._words[_OWNER] >> 32
            return f"process {pid}" if pid else ""
        return ""

    # -- the locked section ------------------------------------------------------------------------

    def section(self, body: Callable[..., R], *arguments: object) -> R:
        """Call ``body(*arguments)`` under the transaction lock, and ring and report afterwards.

        ``body`` refuses by what it returns: an exception in it counts as a death in the section.
        """
        if self._is_closed or self._fork_generation != fork.GENERATION:
            self.check_usable()
        words = self._words
        try:
            try:
                self._lock.acquire(self._timeout_s)
                self._check()
                if words[_OWNER]:
                    self._mend()
                words[_OWNER] = self._owner_word
                result = body(*arguments)
                words[_OWNER] = 0
            finally:
                self._lock.release()
        except ValueError:
            if self._is_closed:
                raise self._closed() from None
            raise
        finally:
            if self._rings or self._damage:
                self._act()
        return result

    def check_usable(self) -> None:
        """Raise `AlreadyClosed` if this is closed, or the parent's of this forked process."""
        if self._fork_generation != fork.GENERATION:
            raise AlreadyClosed("the transactions of the parent of this forked process are not the child's")
        if self._is_closed:
            raise self._closed()

    def _closed(self) -> AlreadyClosed:
        return AlreadyClosed("the store of the transaction is closed")

    def _act(self) -> None:
        """What was decided under the lock."""
        rings, self._rings = self._rings, []
        for uuid in rings:
            self.options.peers.ring(uuid)
        damage, self._damage = self._damage, []
        for each in damage:
            self.options.report(each)

    def catch_up(self) -> None:
        """Follow what other processes decided; where that cannot be read, the tables know it."""
        self._journal.catch_up()
        if self._journal.damage:
            self._make_good()
            self._take_damage()
            self._journal.compact(self._wall_ms())

    def _mend(self) -> None:
        """Finish what a process that died in the lock began: step by step, as its steps say.

        Raises:
            NotAllowedError: a call of this thread is in the lock, which a signal handler interrupted.
        """
        if self._lock.is_nested:
            raise NotAllowedError("a signal handler cannot use transactions inside a call that changes one")
        self.catch_up()
        words, control = self._words, self.control
        used = control.used_slots()
        words[_OPEN] = len(used)
        for slot in used:
            self.drive(Intent.TEND, words[control.word_of(slot)] >> 4, slot)
        for txn_id in list(self.decisions.prepared):  # its slot was about to be filled
            if control.find(txn_id) == NO_SLOT:
                self.drive(Intent.TEND, txn_id, NO_SLOT)

    # -- driving -----------------------------------------------------------------------------------

    def drive(
        self,
        intent: Intent,
        txn_id: int,
        slot: int,
        command: record.Decision | None = None,
        must_flush: bool | None = None,
    ) -> Step:
        """Follow `steps_towards` to the end, or to a flush. Under the lock, caught up.

        Args:
            intent: of the caller.
            txn_id, slot: of the transaction; `NO_SLOT` if it has none.
            command: what is appended for a COMMIT or PREPARE; by default a COMMIT of unknown content.
            must_flush: whether the decision is shown only when it is durable; by default the level says.
        """
        if must_flush is None:
            must_flush = self.must_flush
        view = self._views.get(txn_id >> SHIFT)
        if view is None:
            view = self.view(txn_id >> SHIFT)
            if view is None:
                return Step.REFUSED_FORGOTTEN if intent is not Intent.TEND else Step.DONE  # folded
        words, decisions, at = self._words, self.decisions, _TABLE + _SLOT_WORDS * slot
        if (
            intent is _COMMIT
            and command is not None
            and slot >= 0
            and words[at] == txn_id << TXN_STATE_BITS | _OPEN_STATE
            and not view[txn_id & MASK]
            and not (decisions.prepared or decisions.joined or decisions.is_committed(txn_id))
            and not 0 < words[at + _DEADLINE_MS] <= self.now_ms()
        ):
            steps = COMMIT_OF_OPEN[must_flush]  # nearly all; as the standing below would give them
        else:
            is_owned = command is not None or intent is Intent.STOP
            steps = steps_towards(intent, self._standing(txn_id, slot, view, is_owned), must_flush)
        return self._make(steps, txn_id, slot, view, command, must_flush)

    def _standing(self, txn_id: int, slot: int, view: memoryview, is_owned: bool) -> Standing:
        words, control = self._words, self.control
        state = control.state_of(slot, txn_id)
        is_durable, is_late = True, False
        if state is not SlotState.FREE:
            at = control.word_of(slot)
            is_durable = words[_SYNCED] >= words[at + TransactionSlotWord.DECIDED]
            if state is not SlotState.PREPARED:
                is_late = 0 < words[at + TransactionSlotWord.DEADLINE_MS] <= self.now_ms()
                is_owned = is_owned or self.options.peers.is_alive(control.owner_of(slot))
        outcome = _OUTCOMES[view[txn_id & MASK]]
        return self.decisions.standing(
            txn_id, state, outcome, self._wall_ms, is_durable=is_durable, is_late=is_late, is_owned=is_owned
        )

    def _make(
        self,
        steps: tuple[Step, ...],
        txn_id: int,
        slot: int,
        view: memoryview,
        command: record.Decision | None,
        must_flush: bool,
    ) -> Step:
        """Make all steps but the last, which is the answer, and is returned."""
        words, at = self._words, _TABLE + _SLOT_WORDS * slot
        # One store decides in each of these; what else is written in it is a count, which a crash may lose,
        # or stands before that store and means nothing without it. In the order of a commit.
        for step in steps[:-1]:
            if step is _APPEND_COMMIT:
                self.append(command if isinstance(command, record.Commit) else record.Commit(txn_id))
            elif step is _MOVE_DECIDED:
                words[at + _DECIDED] = words[_JOURNAL] if must_flush else 0
                if threads.REORDERS:
                    threads.fence()
                words[at] = txn_id << TXN_STATE_BITS | _DECIDED_STATE
            elif step is _SHOW_COMMITTED:
                view[txn_id & MASK] = _COMMITTED
                words[_COMMITS] += 1
                if words[_WAITERS]:
                    self._rings += self.waiters.take_all_of(txn_id)
            elif step is _FREE_SLOT:
                words[at] = 0
                words[_OPEN] = max(words[_OPEN], 1) - 1
                words[_HINT] = slot
            elif step is Step.MOVE_PREPARED:
                slot = slot if self.control.state_of(slot, txn_id) else self.control.free_slot()
                at = _TABLE + _SLOT_WORDS * slot
                self._fill_prepared(slot, self.decisions.prepared[txn_id])
            else:
                self._make_other(step, txn_id, at, view, command)
            if failpoints.ACTIVE:
                failpoints.hit(_POINTS[step])
        return steps[-1]

    def _make_other(
        self, step: Step, txn_id: int, at: int, view: memoryview, command: record.Decision | None
    ) -> None:
        """Make a step that is none of a commit; ``at`` is the first word of the slot."""
        if step is Step.SHOW_ABORTED:
            view[txn_id & MASK] = Outcome.ABORTED
            self._words[TransactionWord.ABORTS] += 1
            if self._words[_WAITERS]:
                self._rings += self.waiters.take_all_of(txn_id)
        elif step is Step.APPEND_ABORT:
            self.append(record.Abort(txn_id))
        elif step is Step.APPEND_PREPARE:
            self.append(command if isinstance(command, record.Prepare) else record.Prepare(txn_id))
        elif step is Step.SHOW_PREPARED:
            view[txn_id & MASK] = Outcome.PREPARED
        elif step is Step.MOVE_ENDING:
            self._words[at] = state_word(txn_id, SlotState.ENDING)

    def append(self, command: record.Decision) -> None:
        apply = partial(self.decisions.commit, command.txn_id) if type(command) is record.Commit else None
        self._journal.append([record.RECORDS.encode(command)], self._wall_ms(), apply=apply)
        if self._is_timed and is_idle(self._timer):
            self._timer = self.options.call_later(self.options.interval_s, self._sync_in_time)

    def _fill_prepared(self, slot: int, prepared: PreparedTransaction) -> None:
        words, control = self._words, self.control
        if slot == NO_SLOT:
            raise StorageFullError(
                path=control.path,
                reason=f"all {TXN_SLOTS} slots of open transactions are in use",
                remedy="commit or abort some of those that are prepared",
            )
        at = control.word_of(slot)
        if not words[at]:
            words[_OPEN] += 1
            started_ms = prepared.prepared_ms
        else:
            started_ms = words[at + TransactionSlotWord.STARTED_MS]
            words[at] = 0  # its words are about to change, under the eyes of others
        transaction = OpenTransaction(
            prepared.txn_id,
            SlotState.PREPARED,
            slot,
            NO_OWNER,
            0,
            started_ms,
            prepared.deadline_ms,
            0,
            prepared.label,
        )
        control.fill(slot, transaction, 0)
        words[at + TransactionSlotWord.DECIDED] = words[_JOURNAL]

    # -- ids and slots -----------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Milliseconds on the machine's monotonic clock, the same in all processes of a boot."""
        return int(self._monotonic() * _MS) + self._offset_ms

    def open_slot(self, deadline_ms: int, label: str) -> tuple[int, int] | None:
        words, control = self._words, self.control
        if words[_OPEN] >= self.most_open:
            self.end_overdue()
            if words[_OPEN] >= self.most_open:
                return None
        slot = control.free_slot()
        if slot == NO_SLOT:
            return None
        txn_id = words[_NEXT_ID]
        if txn_id >= words[_RESERVED]:
            txn_id = self._reserve(txn_id)
        # 1. The id is used up. 2. The slot.
        words[_NEXT_ID] = txn_id + 1
        if failpoints.ACTIVE:
            failpoints.hit("txn:id_taken")
        owner, pid = self.options.mailbox.uuid, self._owner_word >> 32
        control.fill(
            slot,
            # As `OpenTransaction(...)`, which takes another call.
            _new(
                OpenTransaction,
                (txn_id, SlotState.OPEN, slot, owner, pid, self._wall_ms(), deadline_ms, 0, label),
            ),
            0,
        )
        words[_OPEN] += 1
        words[_HINT] = slot + 1
        if failpoints.ACTIVE:
            failpoints.hit("txn:slot_filled")
        return txn_id, slot

    def _reserve(self, next_id: int) -> int:
        """Reserve the range of ids from ``next_id``, which begins one, or the next one. Under the lock."""
        self.catch_up()
        number = (next_id + MASK) >> SHIFT if next_id > FIRST_TXN_ID else 0
        end = (number + 1) << SHIFT
        if end > MAX_TXN_ID:
            raise StorageFullError(
                path=self.control.path,
                reason="all ids of transactions are used",
                remedy="copy the messages into a new store",
            )
        # 1. Durably: after a power loss no id below is given out again. 2. The bytes. 3. The word. A crash
        # between two of them leaves a range that is not used, or is begun again here.
        self._record_reserved(end)
        failpoints.hit("txn:reserve_recorded")
        self._use_table(OutcomeTable.create(self.directory, number, self.options.boot))
        disk.DISK.fsync_dir(self.directory)
        self._words[_RESERVED] = end
        failpoints.hit("txn:reserved")
        return max(number << SHIFT, FIRST_TXN_ID)

    def _record_reserved(self, end: int) -> None:
        """Make it durable that ids below ``end`` may be given out."""
        if self.decisions.reserved < end:
            self.append(record.Reserve(end))
            try:
                self._journal.sync()
            except _NO_FLUSH:
                raise
            except OSError:
                self._words[_UNFLUSHED] = 1  # in other processes a flush would report success
                raise

    # -- outcomes ----------------------------------------------------------------------------------

    def outcome(self, txn_id: int) -> Outcome:
        """What became of a transaction: a load from mapped memory, once its table is mapped. Lock-free.

        FOLDED: the ledger that asks has a list of the aborted ones.

        Raises:
            CorruptionError: the byte is none.
        """
        view = self._views.get(txn_id >> SHIFT)
        if view is None:
            view = self._map_table(txn_id)
            if view is None:
                return Outcome.FOLDED
        try:
            return _OUTCOMES[view[txn_id & MASK]]
        except IndexError:
            path = outcome_path(self.directory, txn_id >> SHIFT)
            raise CorruptionError(
                path=path,
                offset=txn_id & MASK,
                reason="this outcome of a transaction is none",
                remedy="close the store in all processes and remove the file: it is derived from the journal",
            ) from None
        except ValueError:
            raise self._closed() from None

    def range_of(self, txn_id: int) -> tuple[int, memoryview] | None:
        """The outcomes of all ids of a range, for those that look many up at once. Lock-free, as `outcome`.

        Returns:
            The first id of the range that has ``txn_id``, and a byte for each, which go on changing; None if
            they were folded.
        """
        number = txn_id >> SHIFT
        view = self._views.get(number)
        if view is None:
            view = self._map_table(txn_id)
        return None if view is None else (number << SHIFT, view)

    def view(self, number: int) -> memoryview | None:
        """The bytes of a table, under the lock; None for one that was folded."""
        view = self._views.get(number)
        if view is None and number >= self._words[_LOWEST] >> SHIFT:
            table = OutcomeTable.open(self.directory, number, self.options.boot)
            self._use_table(table or self._derive_table(number))
            view = self._views[number]
        return view

    def _use_table(self, table: OutcomeTable) -> None:
        self._tables[table.number] = table
        self._views[table.number] = table.bytes

    def _derive_table(self, number: int) -> OutcomeTable:
        """Make a table of the journal, the slots and the next id. Under the lock."""
        self.catch_up()
        words, control = self._words, self.control
        outcomes = self.decisions.outcomes_of(number)
        for slot in control.used_slots():
            txn_id = words[control.word_of(slot)] >> 4
            if txn_id >> SHIFT == number and outcomes[txn_id & MASK] == Outcome.ABORTED:
                outcomes[txn_id & MASK] = Outcome.UNDECIDED
        unused = min(max(words[_NEXT_ID] - (number << SHIFT), 0), OUTCOMES_PER_FILE)
        outcomes[unused:] = bytes(OUTCOMES_PER_FILE - unused)
        return OutcomeTable.create(self.directory, number, self.options.boot, bytes(outcomes))

    def _map_table(self, txn_id: int) -> memoryview | None:
        self.check_usable()
        number = txn_id >> SHIFT
        if txn_id < self._words[_LOWEST] or not 0 < txn_id <= MAX_TXN_ID:
            return None
        table = OutcomeTable.open(self.directory, number, self.options.boot)
        if table is not None:
            self._use_table(table)
            return table.bytes
        if txn_id >= self._words[_NEXT_ID]:
            self.section(self.skip_unknown, txn_id)
        return self.section(self.view, number)

    def skip_unknown(self, txn_id: int) -> None:
        """Give out no id up to one that was never given out here, and is in a log: the files of the
        transactions are an older copy. Under the lock."""
        words = self._words
        if txn_id < words[_NEXT_ID]:
            return
        self.catch_up()
        end = ((txn_id >> SHIFT) + 1) << SHIFT
        self._record_reserved(end)
        first, words[_RESERVED] = words[_NEXT_ID], end
        words[_NEXT_ID] = end
        reason = f"it knows nothing of the transactions from (0,{first}) to (0,{txn_id}), which a log has"
        done = "these count as aborted; no id up to there is given out again"
        self._damage.append(Damage(self.directory, reason=reason, kind=JOURNAL, done=done))
        # The table of the first has zeros behind what was given out. It is changed in its place: others have
        # it mapped. Those behind it are derived when they are asked for.
        view = self.view(first >> SHIFT)
        if view is not None:
            view[first & MASK :] = bytes([Outcome.ABORTED]) * (OUTCOMES_PER_FILE - (first & MASK))

    def forget_tables(self, lowest: int) -> None:
        """Use no table any more of which all ids are below ``lowest``; its last reader unmaps it."""
        for number in [number for number in self._views if number < lowest >> SHIFT]:
            self._views.pop(number, None)
            self._tables.pop(number, None)

    # -- what others left --------------------------------------------------------------------------

    def end_overdue(self) -> None:
        """`tend`, under the lock, where there is no slot; not at every try."""
        now = self._monotonic()
        if 0 <= self._full_at and now - self._full_at < _FULL_LOOK_S:
            return
        self._full_at = now
        self.catch_up()
        for slot in self.control.used_slots():
            self.drive(Intent.TEND, self._words[self.control.word_of(slot)] >> 4, slot)

    # -- durability --------------------------------------------------------------------------------

    def wait_durable(self, word: int) -> None:
        """Return once everything before ``word``, a journal word, survives a power loss. One flush is for all
        threads and processes that wait.

        Raises:
            LockTimeout: another process stayed in its flush.
            StorageError: nothing can be flushed. What is not shown yet is not shown, and may survive or not.
        """
        words = self._words
        if words[_SYNCED] >= word:
            return
        lock = self._sync_lock_of()
        try:
            lock.acquire(self._timeout_s)
            if words[_SYNCED] >= word:
                return  # who had the lock flushed for this one
            if self._journal.seen < word:
                self.section(self.catch_up)  # what this process has open may be an older generation
            # A flush that failed is final: the kernel dropped the pages, and would report success the second
            # time. All that is known is written again, to files of a new generation.
            if failpoints.ACTIVE:
                failpoints.hit("txn:before_flush")
            if not words[_UNFLUSHED]:
                try:
                    self._raise_synced(self._journal.sync_for_all())
                except _NO_FLUSH:
                    raise  # no flush was tried that could have lost a page
                except OSError:
                    words[_UNFLUSHED] = 1
            if words[_UNFLUSHED]:
                self.section(self.rewrite)
            if failpoints.ACTIVE:
                failpoints.hit("txn:flushed")
        except (*_NO_FLUSH, StorageError):
            raise
        except OSError as e:
            raise StorageError(
                path=self.directory,
                reason=f"a flush failed ({e}), so the last decisions may not survive a power loss",
                remedy="check the disk; what was decided is shown when it could be written to new files",
            ) from e
        finally:
            lock.release()

    def _raise_synced(self, word: int) -> None:
        if word > self._words[_SYNCED]:
            self._words[_SYNCED] = word

    def rewrite(self) -> None:
        """Store the state in a new generation of the journal, durably. Under the lock."""
        self.catch_up()
        self._journal.compact(self._wall_ms())
        self._words[_UNFLUSHED] = 0
        self._raise_synced(self._words[_JOURNAL])

    def _sync_lock_of(self) -> FileLock:
        if self._sync_lock is None:
            lock = FileLock(sync_lock_path(self.directory))
            lock.check_reopened = self.options.check_in_place
            # In one step: of two threads that make one, the first one's is that of both.
            self._sync_lock = vars(self).setdefault("_first_sync_lock", lock)
            if self._sync_lock is not lock:
                lock.close()
        return self._sync_lock

    def _sync_in_time(self) -> None:
        self._timer = None  # first: what is committed from here on asks again
        try:
            timing.try_now(self.sync)
        except LockTimeout:  # another process is in its flush, or stopped there
            if is_idle(self._timer):
                self._timer = self.options.call_later(self.options.interval_s, self._sync_in_time)

    def sync(self) -> None:
        """Make everything that was decided so far survive a power loss."""
        if not self._is_closed:
            self.wait_durable(self._words[_JOURNAL])

    # -- closing -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush what a timer owes, and unmap. What this process has open is aborted by others once its lease
        is free. Idempotent."""
        if self._is_closed:
            return
        timer, self._timer = self._timer, None
        if timer is not None and self._fork_generation == fork.GENERATION:
            timer.cancel()
            with contextlib.suppress(StorageError, LockTimeout):
                self.sync()
        self._is_closed = True
        self._journal.close()
        self._views.clear()
        while self._tables:
            self._tables.popitem()[1].close()
        self._lock.close()
        if self._sync_lock is not None:
            self._sync_lock.close()
        self.control.close()
