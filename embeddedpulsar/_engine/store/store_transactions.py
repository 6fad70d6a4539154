"""The transactions of a store, as one of its processes has them: the log, once the process needs it.

A store that never had a transaction has no log, and nothing here opens one before `StoreTransactions.log` is
called. A topic or a subscription asks for outcomes by the bound methods of the one instance of the session.
"""

from __future__ import annotations

import contextlib
from functools import partial

from embeddedpulsar._engine.filenames import TRANSACTIONS
from embeddedpulsar._engine.format.frame import REVISED_VERSION
from embeddedpulsar._engine.log.log_opening import PROCESS
from embeddedpulsar._engine.platform import threads, timing
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.platform.timing import is_idle
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, NotAllowedError, StorageError
from embeddedpulsar.records import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Final

    from embeddedpulsar._engine.platform.access import Refusal
    from embeddedpulsar._engine.platform.mailbox import Mailbox
    from embeddedpulsar._engine.platform.package_log import DamageChannel
    from embeddedpulsar._engine.platform.peers import Peers
    from embeddedpulsar._engine.platform.timing import Clock, SchedulerLike, Timer
    from embeddedpulsar._engine.store.store_root import StoreMeta
    from embeddedpulsar._engine.store.topic_transactions import FoldedOutcomes
    from embeddedpulsar._engine.txn.transaction_log import TransactionLog
    from embeddedpulsar._engine.txn.transaction_state import Outcome, PreparedTransaction
    from embeddedpulsar._engine.txn.transaction_view import TransactionView
    from embeddedpulsar.settings import BrokerSettings

R = TypeVar("R")
_TEND_EVERY_S: Final = 10.0
_LOOK_AT_OWNERS_S: Final = 0.01
"""Outcomes are asked for under locks; the owners of what is open are watched a little later, without one."""
_MOST_SEEN: Final = 4096
_MOST_WATCHED: Final = 64
"""Each owner takes a descriptor. Housekeeping finds the deaths of the others."""
_REFRESH_S: Final = 0.05
_PATIENCE_S: Final = 0.2
_ASK_AGAIN_S: Final = 1.0
_DEATH_RETRY_S: Final = 5e-3
_ABORTED: Final = 2
_FINAL: Final = (1, _ABORTED)
_FOLDED: Final = 4
"""As `Outcome`, and as the records of subscriptions; only processes that have transactions import these."""


class TransactionHost(Protocol):
    """What transactions need of their store; see `StoreSession`."""

    root: str
    boot: bytes
    meta: StoreMeta
    settings: BrokerSettings
    mailbox: Mailbox
    peers: Peers
    scheduler: SchedulerLike
    chores: SchedulerLike
    damage: DamageChannel
    refusal: Refusal | None

    def check_in_place(self) -> None: ...
    def raise_format(self, version: int) -> None: ...


class StoreTransactions:
    """The transactions of a store in this process.

    Role: opens the transaction log with its first use, looks after it, and tells outcomes to those that know
    ids only. A topic gets it as ``session.transactions``, with its session:

    * `outcome` tells what became of an id, under any lock; it opens the log if the store has one;
    * `log` is the log itself, for `TransactionLog.announce` and the others; `existing` does not make one;
    * `outcomes` is what subscriptions ask, for pairs of numbers, of which the second is the id.

    In a store that is open read-only, outcomes are those of a `TransactionView`, and there is no log.
    Invariants: the log is opened once in the life of a session. A store without transactions gets no files.
    Callers: any thread, also under the locks of topics and subscriptions.

    Args:
        host: the session of the store.
        clock: of the store.
        look_after: called when the log was opened: it has chores from then on.

    Attributes:
        durability, interval_s: the default level of the store, for decisions too; set before the first use.
        on_ended: called, with no lock held, when transactions may have ended that a dead process left open,
            or whose timeout has passed, whichever process ended them.
        fold: lets the log forget outcomes, for some milliseconds: whether there is more to do. Called by
            housekeeping, under its lock, with the log, and with what notes what was done.
    """

    is_deleted: Final = False
    name: Final = TRANSACTIONS

    def __init__(
        self, host: TransactionHost, clock: Clock, look_after: Callable[[StoreTransactions], object] = id
    ) -> None:
        self._look_after: Final = look_after
        self._host: Final = host
        self._clock: Final = clock
        self.durability, self.interval_s = PROCESS, 1.0
        self._mutex: Final = threads.RLock()  # guards the opening, and the view
        self._log: TransactionLog | None = None
        self._view: TransactionView | None = None
        self._refreshed_at = -1.0
        self._exists = False
        self._is_closed = False
        # Of the thread of chores, but for the adding of ids.
        self._seen: set[int] = {*()}  # without a call, of which each opening of a store pays
        self._watched: set[bytes] = {*()}
        self._timer: Timer | None = None
        self._blocked: dict[int, None] = {}
        self._blocked_timer: Timer | None = None
        self._late: Timer | None = None
        self._ask_again_at = -1.0
        self.on_ended: Callable[[], object] = int
        self.fold: Callable[[TransactionLog, list[str]], bool] = lambda log, done: False

    # -- the log -----------------------------------------------------------------------------------

    @property
    def is_in_use(self) -> bool:
        """Whether there is anything to close."""
        return self._log is not None or self._view is not None

    @property
    def exists(self) -> bool:
        """Whether the store ever had a transaction that did something. One look at the directory, as long as
        it had none."""
        if not self._exists:
            with late_imports():
                from embeddedpulsar._engine.txn.transaction_log import TransactionLog
            self._exists = TransactionLog.exists_in(self._host.root)
        return self._exists

    def existing(self) -> TransactionLog | None:
        """The log; None in a store that never had a transaction. Errors are those of `log`."""
        return self._log or (self.log() if self.exists else None)

    def log(self) -> TransactionLog:
        """The log, made if there is none.

        Raises:
            ReadOnlyStoreError: the store is open read-only.
            StorageError: its files are of a newer release, or cannot be used.
            LockTimeout: another process stayed in the lock of transactions.
            AlreadyClosed: the store is closed.
        """
        return self._log or self._open()

    def _open(self) -> TransactionLog:
        with late_imports():
            from embeddedpulsar._engine.txn.shared_transactions import TransactionOptions
            from embeddedpulsar._engine.txn.transaction_log import TransactionLog
        host = self._host
        if host.refusal is not None:
            raise host.refusal.error()
        try:
            timing.enter(self._mutex, "the transactions of the store")
            if self._is_closed:
                raise AlreadyClosed(f"the store {host.root} is closed")
            if self._log is None:
                options = TransactionOptions(
                    boot=host.boot,
                    store_id=host.meta.store_id,
                    mailbox=host.mailbox,
                    peers=host.peers,
                    clock=self._clock,
                    call_later=host.scheduler.call_later,
                    durability=self.durability,
                    interval_s=self.interval_s,
                    most_open=host.settings.maxActiveTransactionsPerCoordinator,
                    longest_timeout_ms=host.settings.transactionMaxTimeoutInSeconds * 1000,
                    report=host.damage.enqueue,  # outcomes are asked for under locks
                    check_in_place=host.check_in_place,
                    # Releases that know nothing of transactions are not to open the store.
                    before_first=partial(host.raise_format, REVISED_VERSION),
                )
                self._log = TransactionLog.open(host.root, options)
                self._look_after(self)
            return self._log
        finally:
            self._mutex.release()

    def prepared(self) -> list[PreparedTransaction]:
        """The transactions that wait for their end, by id."""
        if self._host.refusal is not None:
            return self._seen_by(lambda view: view.prepared(), is_anew=True)
        log = self.existing()
        return [] if log is None else log.prepared()

    # -- outcomes ----------------------------------------------------------------------------------

    def outcome(self, txn_id: int) -> Outcome:
        """What became of a transaction. Usually one load from mapped memory.

        Raises:
            StorageError: the files cannot be read.
            LockTimeout: the log was to be opened, and another process stayed in its lock.
        """
        log = self._log
        if log is not None:
            return log.outcome(txn_id)
        if self._host.refusal is None:
            return self.log().outcome(txn_id)
        outcome = self._seen_by(lambda view: view.outcome(txn_id))
        if not outcome.is_final and self._clock.monotonic() - self._refreshed_at >= _REFRESH_S:
            outcome = self._seen_by(lambda view: view.outcome(txn_id), is_anew=True)
        return outcome

    def _seen_by(self, look: Callable[[TransactionView], R], *, is_anew: bool = False) -> R:
        """What a view says, of a store that is open read-only."""
        with late_imports():
            from embeddedpulsar._engine.txn.transaction_view import TransactionView
        try:
            timing.enter(self._mutex, "the transactions of the store")
            if self._view is None:
                host = self._host
                self._view = TransactionView(host.root, host.boot, self._clock, host.peers.is_alive)
                is_anew = True
            if is_anew:
                self._view.refresh()
                self._refreshed_at = self._clock.monotonic()
            return look(self._view)
        finally:
            self._mutex.release()

    def open_view(self) -> TransactionView:
        """What there is now, without a lock and without the log; to be closed by the caller.

        Raises:
            StorageError: the files cannot be read.
        """
        with late_imports():
            from embeddedpulsar._engine.txn.transaction_view import TransactionView
        host = self._host
        view = TransactionView(host.root, host.boot, self._clock, host.peers.is_alive)
        view.refresh()
        return view

    def lowest(self) -> int:
        """Outcomes of transactions with lower ids are forgotten: those of their topics are asked."""
        log = self._log
        if log is None and self._host.refusal is not None:
            return self._seen_by(lambda view: view.lowest)
        return (log or self.log()).lowest()

    def outcomes(self, transactions: Sequence[tuple[int, int]]) -> list[int]:
        """The outcomes of transactions that acknowledged something in a subscription; see
        `subscription_files.Outcomes`. Called under the lock of a subscription.

        The first number of an id is that of a coordinator, of which a store has none; the second is unique.
        """
        outcomes: list[int] = []
        ask = self.outcome if self._log is None else self._log.outcome
        for _, txn_id in transactions:
            outcome = int(ask(txn_id))
            if outcome not in _FINAL:
                if outcome == _FOLDED:
                    # What is pending keeps its id from being folded, so this is a subscription that is older
                    # than the log, from a backup: the messages are delivered again.
                    outcome = _ABORTED
                elif self.end_if_abandoned(txn_id):
                    outcome = int(self.outcome(txn_id))
                elif txn_id not in self._seen:
                    self._note_open(txn_id)
            outcomes.append(outcome)
        return outcomes

    def range_of(self, txn_id: int) -> tuple[int, memoryview] | None:
        """See `SharedTransactions.range_of`; None as long as the log is not open."""
        log = self._log
        return None if log is None else log.range_of(txn_id)

    def is_any_open(self) -> bool:
        """Whether a transaction may be undecided. One load, once the log is open."""
        log = self._log
        return log is None or log.is_any_open()

    def await_end(self, txn_id: int) -> bool:
        """See `TransactionLog.await_end`. A process that may not write looks again and again instead."""
        if self._host.refusal is None:
            return self.log().await_end(txn_id)
        return not self.outcome(txn_id).is_final

    def end_if_abandoned(self, txn_id: int) -> bool:
        """End a transaction if no process can go on with it, and return whether it has ended. For those that
        are about to answer that there is nothing, also under the locks of topics and subscriptions, which
        come before that of transactions. Waits 0.2 s at most, and only if it is to be ended, for callers too
        that otherwise only try: another thread may be about to end it.
        """
        if self._host.refusal is not None or self._clock.monotonic() < self._ask_again_at:
            return False  # read-only: `outcome` told already, of a dead process as well
        try:
            if not timing.anew(_PATIENCE_S, self.log().end_if_abandoned, txn_id):
                return False
        except LockTimeout:  # a process is stopped in the lock: this does not wait for it each time
            self._ask_again_at = self._clock.monotonic() + _ASK_AGAIN_S
            return False
        except (AlreadyClosed, NotAllowedError, StorageError, OSError):
            return False  # those that wait, and housekeeping, try again, and report it
        with contextlib.suppress(RuntimeError):  # the store is being closed
            self._host.chores.call_later(0.0, self._call_on_ended)
        return True

    def note_blocked(self, txn_id: int) -> None:
        """A reader stopped at a transaction: look at that a little later, for readers that only poll."""
        if self._host.refusal is None:
            self._blocked[txn_id] = None
            if is_idle(self._blocked_timer):
                with contextlib.suppress(RuntimeError):  # the store is being closed
                    self._blocked_timer = self._host.chores.call_later(
                        _LOOK_AT_OWNERS_S, self._look_at_blocked
                    )

    def _look_at_blocked(self) -> None:
        self._blocked_timer = None
        log = self._log
        while self._blocked and log is not None and not self._is_closed:
            txn_id, _ = self._blocked.popitem()
            try:
                timing.try_now(log.await_end, txn_id)
            except LockTimeout:
                self.note_blocked(txn_id)
                return
            except AlreadyClosed:
                return

    # -- the ends of others ------------------------------------------------------------------------

    def _note_open(self, txn_id: int) -> None:
        """Something in a subscription waits for the end of a transaction: have its owner watched."""
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen.add(txn_id)
        if is_idle(self._timer) and self._host.refusal is None:
            with contextlib.suppress(RuntimeError):  # the store is being closed
                self._timer = self._host.chores.call_later(_LOOK_AT_OWNERS_S, self._watch_owners)

    def _watch_owners(self) -> None:
        """Watch those whose transactions something in a subscription waits for, and look again when the first
        of them times out."""
        self._timer = None
        log, mailbox = self._log, self._host.mailbox
        if log is None or self._is_closed:
            return
        with contextlib.suppress(AlreadyClosed):
            left_ms = [
                max(transaction.deadline_ms - log.now_ms(), 0) + 1
                for transaction in log.open_transactions()
                if transaction.deadline_ms and any(transaction.owner)
            ]
            if left_ms and is_idle(self._late):
                self._late = self._host.chores.call_later(min(left_ms) / 1000, self._end_late)
            for transaction in log.open_transactions():
                owner = transaction.owner
                if owner in self._watched or owner == mailbox.uuid or not any(owner):
                    continue
                if len(self._watched) >= _MOST_WATCHED:
                    return
                with contextlib.suppress(OSError):  # no descriptor: housekeeping finds the death
                    self._watched.add(owner)
                    mailbox.watch(owner, self._on_death)

    def _end_late(self) -> None:
        self._late = None
        log = self._log
        if log is not None and not self._is_closed:
            with contextlib.suppress(AlreadyClosed, LockTimeout):  # housekeeping does it later
                timing.anew(_PATIENCE_S, log.tend)
            self.on_ended()  # another process may have ended them
            self._watch_owners()

    def _on_death(self, uuid: bytes) -> None:
        self._watched.discard(uuid)
        self.end_those_of(uuid)

    def end_those_of(self, uuid: bytes) -> None:
        """End what a process left open that is dead. Waits for no lock."""
        log = self._log
        if log is None or self._is_closed:
            return
        with contextlib.suppress(AlreadyClosed, RuntimeError):
            try:
                timing.try_now(log.end_those_of, uuid)
            except LockTimeout:
                self._host.chores.call_later(_DEATH_RETRY_S, partial(self.end_those_of, uuid))
                return
            # Subscriptions follow, on a thread that may wait for their locks, whichever process ended them.
            self._host.chores.call_later(0.0, self._call_on_ended)

    def _call_on_ended(self) -> None:
        self.on_ended()

    # -- housekeeping ------------------------------------------------------------------------------

    def chores_every_s(self) -> float:
        """How often to look."""
        return min(_TEND_EVERY_S, self._host.settings.retentionCheckIntervalInSeconds)

    def do_chores(self, done: list[str]) -> bool:
        """End what no process can go on with, and forget outcomes. As of `housekeeping.Chore`."""
        log = None if self._is_closed else self.existing()
        if log is not None:
            ended = log.tend()
            if ended:
                done.append(f"{ended} transactions were ended that their processes had left")
            self.on_ended()  # those that other processes ended, too
            return self.fold(log, done)
        return False

    def close(self) -> None:
        """Close the log. What is open in it is aborted by others. Idempotent."""
        try:
            self._mutex.acquire()
            self._is_closed = True
            log, self._log = self._log, None
            view, self._view = self._view, None
        finally:
            self._mutex.release()
        while self._watched:
            self._host.mailbox.unwatch(self._watched.pop(), self._on_death)
        if view is not None:
            view.close()
        if log is not None:
            log.close()


class TopicOutcomes:
    """What became of transactions, as the log of one topic asks: `log_view.Outcomes`.

    Callers: any thread, also under the lock of the topic.

    Args:
        transactions: of the store.
        directory: of the topic, which knows the outcomes that the store has forgotten.
    """

    __slots__ = (
        "_directory",
        "_folded",
        "_transactions",
        "await_end",
        "end_if_abandoned",
        "is_any_open",
        "note_blocked",
        "range_of",
    )

    def __init__(self, transactions: StoreTransactions, directory: str) -> None:
        self._transactions: Final = transactions
        self._directory: Final = directory
        self._folded: FoldedOutcomes | None = None
        self.await_end: Final = transactions.await_end
        self.end_if_abandoned: Final = transactions.end_if_abandoned
        self.is_any_open: Final = transactions.is_any_open
        self.note_blocked: Final = transactions.note_blocked
        self.range_of: Final = transactions.range_of

    def outcome(self, txn_id: int) -> int:
        """As `StoreTransactions.outcome`, and never FOLDED.

        Raises:
            CorruptionError: the topic's document of those that are folded is damaged.
        """
        outcome = self._transactions.outcome(txn_id)
        return self._outcome_folded(txn_id) if outcome == _FOLDED else outcome

    def _outcome_folded(self, txn_id: int) -> int:
        if self._folded is None:
            with late_imports():
                from embeddedpulsar._engine.store.topic_transactions import FoldedOutcomes
            self._folded = FoldedOutcomes(self._directory, self._transactions.lowest)
        return _ABORTED if self._folded.is_aborted(txn_id) else _FINAL[0]
