"""One transaction, as the process that began it has it; and as one that joined it has it.

What takes part, a topic or a subscription, is a `Participant`: its name, and four functions. The order of a
commit: no further operation is admitted; operations of processes that joined are waited for (`drain`); at
level "flush" the participants are flushed, side by side; the decision; then each participant hears of it
(`on_end`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import partial

from embeddedpulsar._engine.format import transaction_record as record
from embeddedpulsar._engine.format.control import TXN_STATE_BITS, TransactionSlotWord
from embeddedpulsar._engine.format.transaction_record import ParticipantFacts
from embeddedpulsar._engine.platform import fork, threads, timing
from embeddedpulsar._engine.txn.transaction_log import TransactionLog
from embeddedpulsar._engine.txn.transaction_state import (
    NO_SLOT,
    Intent,
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
    PulsarException,
    TransactionHasOperationFailed,
    TransactionNotFound,
    TransactionTimeout,
)
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final, NoReturn

DEFAULT_TIMEOUT_MS: Final = 60_000
_WHAT: Final = "a transaction"


class TransactionState(enum.Enum):
    """State of a transaction, with the names of Pulsar's clients; and PREPARED."""

    OPEN = "OPEN"
    COMMITTING = "COMMITTING"
    PREPARED = "PREPARED"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"
    TIME_OUT = "TIME_OUT"

    @property
    def is_final(self) -> bool:
        """Whether it never changes."""
        return self in (TransactionState.COMMITTED, TransactionState.ABORTED, TransactionState.TIME_OUT)


_REFUSED: Final = {
    Step.REFUSED_COMMITTED: (TransactionState.COMMITTED, "it is committed"),
    Step.REFUSED_ABORTED: (
        TransactionState.ABORTED,
        "it was aborted: by an operator, by a process that joined it, or because its process was found dead",
    ),
    Step.REFUSED_LATE: (TransactionState.TIME_OUT, "its timeout has passed, and it was aborted"),
    Step.REFUSED_PREPARED: (TransactionState.PREPARED, "it is prepared, and waits for its end only"),
    Step.REFUSED_ENDING: (TransactionState.COMMITTING, "it is being committed"),
}


# Of the usual begin and commit; to look a member up in its class takes 0.1 us.
_OPEN: Final = TransactionState.OPEN
_COMMITTING: Final = TransactionState.COMMITTING
_COMMITTED: Final = TransactionState.COMMITTED
_COMMIT: Final = Intent.COMMIT
_DONE: Final = Step.DONE
_OPEN_STATE: Final = int(SlotState.OPEN)
_JOINED: Final = TransactionSlotWord.JOINED

_REASONS: Final = dict(_REFUSED.values()) | {TransactionState.ABORTED: "it was aborted"}


class Participant(NamedTuple):
    """A topic or subscription that takes part in a transaction. No function is called under a lock of the
    transaction log, and none needs to be quick.

    Attributes:
        key: which, as `ParticipantFacts.key`.
        facts: what the transaction did there, for the record of its commit; by default nothing is known.
        flush: makes that durable. What it raises aborts the transaction.
        drain: takes and releases the lock under which operations are admitted: those that were admitted
            before have finished then.
        on_end: called with the outcome, to put it to use there at once. The next to come there would do so as
            well, so what it raises is logged.
    """

    key: tuple[int, int, str]
    facts: Callable[[], ParticipantFacts] | None = None
    flush: Callable[[], object] = int
    drain: Callable[[], object] = int
    on_end: Callable[[Outcome], object] = lambda outcome: None


def _urgency(error: BaseException | None) -> int:
    """Which error of several flushes counts, the lowest first: an interrupt; what could not be flushed, which
    aborts the transaction; a lock, which may be free the next time; none."""
    if error is None:
        return 3
    if isinstance(error, LockTimeout):
        return 2
    return 1 if isinstance(error, (PulsarException, OSError)) else 0


Resolve = Callable[[ParticipantFacts], "Participant | None"]
"""Finds a participant that another process named; None if it is gone."""


class Transaction:
    """A transaction that this process began, or resumed.

    Role: what the client gives to sends and acknowledgements. Nothing is stored before `id` is first asked
    for: an empty transaction costs nothing. Before it calls `commit`, the client waits for what it has under
    way in the transaction.
    Invariants: `is_open` under the lock of a topic or subscription, with the operation stored in the same
    section, admits nothing that a commit does not include.
    Durable: see `TransactionLog`. Callers: any thread; one ends it at a time, others wait. Only this process
    may commit. A forked child has a dead copy.

    Args:
        log: of the store.
        timeout_ms: how long it may stay open.
        label: says to people what it is for.
        resolve: finds participants that other processes named.

    Raises:
        ValueError: the timeout is not positive, or longer than the options of the log allow.
    """

    __slots__ = (
        "_deadline_ms",
        "_failure",
        "_fork_generation",
        "_id",
        "_is_appended",
        "_label",
        "_log",
        "_mutex",
        "_open_word",
        "_participants",
        "_resolve",
        "_slot",
        "_state",
        "_word",
        "_words",
    )

    def __init__(
        self,
        log: TransactionLog,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        label: str = "",
        resolve: Resolve = lambda facts: None,
    ) -> None:
        if not 0 < timeout_ms <= log.options.longest_timeout_ms:
            raise ValueError(
                f"a timeout of {timeout_ms} ms; it has to be positive, and at most "
                f"{log.options.longest_timeout_ms}: readers wait for an open transaction. Prepare one that "
                "takes longer, or raise transactionMaxTimeoutInSeconds"
            )
        self._log: Final = log
        self._words: Final = log.control.words
        self._label: Final = label
        self._resolve: Final = resolve
        self._deadline_ms: Final = log.now_ms() + timeout_ms
        self._mutex: Final = threads.RLock()
        self._fork_generation: Final = fork.GENERATION
        self._participants: dict[tuple[int, int, str], Participant] = {}
        self._state = TransactionState.OPEN
        self._failure: BaseException | None = None
        self._id = 0
        self._is_appended = False
        self._slot = NO_SLOT
        self._word = self._open_word = 0

    @classmethod
    def resume(
        cls, log: TransactionLog, prepared: PreparedTransaction, resolve: Resolve = lambda facts: None
    ) -> Transaction:
        """A transaction that is prepared, to commit or abort it."""
        self = cls(log, log.options.longest_timeout_ms, prepared.label, resolve)
        self._id = prepared.txn_id
        self._state = TransactionState.PREPARED
        self._use(prepared.participants)
        return self

    # -- operations --------------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """The id, never 0. The first call stores the slot; not to be made under a lock of a topic.

        Raises:
            InvalidTxnStatusError: it has ended, or its timeout has passed.
            NotAllowedError: too many transactions are open.
        """
        return self._id or self._begin()

    def _begin(self) -> int:
        try:
            if not self._mutex.acquire(False):  # as `timing.enter`, without its call
                timing.enter(self._mutex, _WHAT)
            if self._fork_generation != fork.GENERATION:
                self._check_own()
            if self._id:
                return self._id
            if self._state is not _OPEN:
                raise self._refusal(_REASONS[self._state])
            log = self._log
            if log.now_ms() >= self._deadline_ms:
                self._state = TransactionState.TIME_OUT
                raise self._refusal(_REFUSED[Step.REFUSED_LATE][1])
            txn_id, slot = log.open_slot(self._deadline_ms, self._label)
            self._slot, self._word = slot, log.control.word_of(slot)
            self._open_word = txn_id << TXN_STATE_BITS | _OPEN_STATE
            self._id = txn_id  # last: another thread that sees it finds the rest
            return txn_id
        finally:
            self._mutex.release()

    def check_open(self) -> None:
        """Raise if no operation is admitted any more. One load; under any lock.

        Raises:
            InvalidTxnStatusError: it has ended, or is about to; `TransactionTimeout` if that is why.
            AlreadyClosed: its store was closed.
        """
        try:
            is_open = self._words[self._word] == self._open_word
        except ValueError:
            raise AlreadyClosed("the store of the transaction is closed") from None
        if not is_open or self._state is not _OPEN or self._fork_generation != fork.GENERATION:
            self._check_own()
            self._refuse_operation()

    def _refuse_operation(self) -> NoReturn:
        if not self._id:
            raise self._refusal("it has no id yet")  # a caller that did not ask for one
        if self._state is not TransactionState.OPEN:
            raise self._refusal(_REASONS[self._state])
        outcome = self._log.outcome(self._id)
        if outcome is Outcome.ABORTED:
            is_late = self._log.now_ms() >= self._deadline_ms
            step = Step.REFUSED_LATE if is_late else Step.REFUSED_ABORTED
        else:
            step = Step.REFUSED_COMMITTED if outcome is Outcome.COMMITTED else Step.REFUSED_ENDING
        raise self._refused(step)

    def enlist(self, participant: Participant) -> None:
        """Add a topic or subscription, before the first operation there. Again: nothing happens."""
        self._participants.setdefault(participant.key, participant)

    def is_enlisted(self, key: tuple[int, int, str]) -> bool:
        """Whether a topic or subscription takes part already."""
        return key in self._participants

    def fail(self, error: BaseException) -> None:
        """Note that an operation failed: a commit becomes an abort."""
        self._failure = self._failure or error

    @property
    def is_unbegun(self) -> bool:
        """Whether nothing was done in it, and something may be."""
        return not self._id and self._state is _OPEN and self._fork_generation == fork.GENERATION

    @property
    def is_appended(self) -> bool:
        """Whether it was committed without an id, by `commit_by_append`."""
        return self._is_appended

    # -- looking -----------------------------------------------------------------------------------

    @property
    def state(self) -> TransactionState:
        """How far it is, also by what other processes did."""
        state = self._state
        if not self._id or state.is_final:
            is_late = state is TransactionState.OPEN and self._log.now_ms() >= self._deadline_ms
            return TransactionState.TIME_OUT if is_late else state
        outcome = self._log.outcome(self._id)
        if outcome is Outcome.COMMITTED:
            return TransactionState.COMMITTED
        is_late = self._log.now_ms() >= self._deadline_ms and state is not TransactionState.PREPARED
        if outcome is Outcome.ABORTED:
            return TransactionState.TIME_OUT if is_late else TransactionState.ABORTED
        return TransactionState.TIME_OUT if is_late and state is TransactionState.OPEN else state

    def __str__(self) -> str:
        return f"(0,{self._id})" if self._id else "(no id)" if self._is_appended else "(not begun)"

    def __repr__(self) -> str:
        return f"<Transaction {self} {self._state.value}>"

    @property
    def token(self) -> bytes:
        """What another process joins it with; see `JoinedTransaction`.

        Raises:
            InvalidTxnStatusError: it has ended.
        """
        txn_id = self.id
        token = self._log.make_token(txn_id, self._slot)
        if not token:
            self._refuse_operation()
        return token

    # -- ends --------------------------------------------------------------------------------------

    def commit(self, *, must_flush: bool | None = None) -> None:
        """Make all of it visible at once. Of one that is committed: nothing happens.

        Args:
            must_flush: whether it is durable when this returns; by default the level of the log says.

        Raises:
            TransactionHasOperationFailed: an operation failed, or could not be made durable: it is aborted.
            TransactionTimeout: its timeout has passed: it is aborted.
            InvalidTxnStatusError: it was aborted by another one.
            LockTimeout: another process stayed in the lock. Call it again, or `abort`; `state` tells.
            StorageError: the decision could not be written or flushed. As for `LockTimeout`.
        """
        try:
            if not self._mutex.acquire(False):  # as `timing.enter`, without its call
                timing.enter(self._mutex, _WHAT)
            if self._fork_generation != fork.GENERATION:
                self._check_own()
            if self._state is _COMMITTED:
                return
            if self._state is not _OPEN or not self._id:
                self._check_may_end()
            if self._failure is not None:
                self._abort_for(self._failure)
            if not self._id:
                self._state = _COMMITTED  # nothing was done in it
                return
            self._finish(_COMMIT, partial(record.Commit, self._id), must_flush)
            self._state = _COMMITTED
        finally:
            self._mutex.release()
        if self._participants:
            self._tell(Outcome.COMMITTED)

    def commit_by_append(self, append: Callable[..., bool | BaseException], *arguments: object) -> bool:
        """Commit one without an id, by an append of the caller that is all of it: its tail word is decision
        and visibility in one.

        Args:
            append: calls `check_appendable`, and makes the append. Returns True, or what it failed with;
                False if it takes more than one.
            arguments: for ``append``.

        Returns:
            Whether it is committed. False: nothing was done, and `commit` is to be called.

        Raises:
            As `commit`.
        """
        try:
            if not self._mutex.acquire(False):  # as `timing.enter`, without its call
                timing.enter(self._mutex, _WHAT)
            if self._fork_generation != fork.GENERATION:
                self._check_own()
            if self._id or self._failure is not None or self._state is not _OPEN:
                return False
            answer = append(*arguments)
            if answer is True:
                self._is_appended = True
                self._state = _COMMITTED
                return True
            if answer is False:
                return False
            if isinstance(answer, InvalidTxnStatusError | LockTimeout):
                raise answer  # its time was up; or it may be called again
            self.fail(answer)
            self._abort_for(answer)
        finally:
            self._mutex.release()
        return False

    def check_appendable(self) -> None:
        """Raise if an append must not commit it any more. For the caller of the append, before each try: no
        other process knows of it, so that it need not be under the topic's lock.

        Raises:
            InvalidTxnStatusError: it has an id by now, or has ended; `TransactionTimeout` if that is why.
        """
        is_over = self._id or self._state is not _OPEN or self._fork_generation != fork.GENERATION
        if is_over or self._log.now_ms() >= self._deadline_ms:
            self._check_own()
            if self._id:
                raise self._refusal("something else was done in it")
            self._check_may_end()
            raise self._refusal(_REASONS[self._state])

    def note_appended(self) -> None:
        """What is all of it is stored. Also called for a commit that was interrupted."""
        self._is_appended = True
        self._state = _COMMITTED

    def abort_unbegun(self) -> bool:
        """Abort it if it has no id. Returns whether it has none, and has ended."""
        try:
            timing.enter(self._mutex, _WHAT)
            self._check_own()
            if self._id or self._state is not _OPEN:
                return False
            self._state = TransactionState.ABORTED
            return True
        finally:
            self._mutex.release()

    def id_of_appended(self) -> int:
        """The id of one that was committed by its append, which gets one by this call.

        Raises:
            NotAllowedError: too many transactions are open.
        """
        try:
            timing.enter(self._mutex, _WHAT)
            self._check_own()
            if not self._id:
                txn_id, slot = self._log.open_slot(0, self._label)
                self._log.end(_COMMIT, txn_id, slot, record.Commit(txn_id))
                self._id = txn_id
            return self._id
        finally:
            self._mutex.release()

    def prepare(self, label: str = "", deadline_ms: int = 0) -> PreparedTransaction:
        """Have it wait for `commit` or `abort`, of whatever process, also after a reboot. Others may end it
        before this returns.

        Args:
            label: what identifies it to those that end it.
            deadline_ms: when it is aborted, in ms since the epoch; 0 for never. Readers wait until then.

        Returns:
            What `TransactionLog.prepared` lists, and `resume` takes; without participants if it was ended
            meanwhile.

        Raises:
            As `commit`; `ValueError` for a label that is too long; `TransactionNotFound` if it was prepared
            before, and has ended.
        """
        try:
            timing.enter(self._mutex, _WHAT)
            self._check_own()
            is_known = self._state is TransactionState.PREPARED
            if not is_known:
                txn_id = self.id
                self._check_may_end()
                if self._failure is not None:
                    self._abort_for(self._failure)
                record.RECORDS.encode(record.Prepare(txn_id, deadline_ms, label))  # refuses what does not fit
                self._finish(Intent.PREPARE, partial(record.Prepare, txn_id, deadline_ms, label), True)
                self._state = TransactionState.PREPARED
        finally:
            self._mutex.release()
        for prepared in self._log.prepared():
            if prepared.txn_id == self._id:
                return prepared
        if is_known:
            raise TransactionNotFound(f"the transaction {self} was ended by another process meanwhile")
        # It was prepared, durably, and any process that lists it may have ended it before this one goes on.
        return PreparedTransaction(self._id, label, self._log.options.clock.wall_ms(), deadline_ms, ())

    def abort(self) -> None:
        """Undo all of it. Of one that is aborted, or timed out: nothing happens.

        Raises:
            InvalidTxnStatusError: it is committed.
            LockTimeout: another process stayed in the lock; it is aborted at its timeout at the latest.
        """
        try:
            timing.enter(self._mutex, _WHAT)
            self._check_own()
            if self._state in (TransactionState.ABORTED, TransactionState.TIME_OUT):
                return
            if self._state is TransactionState.COMMITTED:
                raise self._refusal(_REASONS[self._state])
            if self._id:
                self._find_joined()
                step = self._log.end(Intent.ABORT, self._id, self._slot)
                if step is Step.REFUSED_COMMITTED or (
                    step is Step.REFUSED_FORGOTTEN and self._state is not TransactionState.OPEN
                ):
                    raise self._refused(step)
            self._state = TransactionState.ABORTED
        finally:
            self._mutex.release()
        self._tell(Outcome.ABORTED)

    def _find_joined(self) -> None:
        """Note what processes that joined used, which hears of the abort."""
        try:
            is_joined = self._word and self._words[self._word + _JOINED]
        except ValueError:
            raise AlreadyClosed("the store of the transaction is closed") from None
        if is_joined:
            self._use(self._log.joined(self._id))

    def _check_own(self) -> None:
        if self._fork_generation != fork.GENERATION:
            raise AlreadyClosed("the transaction is that of the parent of this forked process")

    def _check_may_end(self) -> None:
        if self._state not in (TransactionState.OPEN, TransactionState.COMMITTING, TransactionState.PREPARED):
            raise self._refusal(_REASONS[self._state])
        if not self._id and self._log.now_ms() >= self._deadline_ms:
            self._state = TransactionState.TIME_OUT
            raise self._refusal(_REFUSED[Step.REFUSED_LATE][1])

    def _finish(
        self,
        intent: Intent,
        command: Callable[..., record.Decision],
        must_flush: bool | None,
    ) -> None:
        """Store the decision, once all that it covers is there."""
        is_first = self._state is TransactionState.OPEN
        if is_first:
            self._state = TransactionState.COMMITTING
        log, flushed = self._log, set[tuple[int, int, str]]()
        flushes = must_flush if must_flush is not None else log.is_flushed
        flushes = flushes and self._state is not TransactionState.PREPARED  # they were, when it was prepared
        while True:
            # A process that joins behind this look is seen by the decision, which then refuses.
            try:
                joins = self._words[self._word + _JOINED] if self._word else 0
            except ValueError:
                raise AlreadyClosed("the store of the transaction is closed") from None
            if joins:
                self._wait_for_joined()
            if flushes:
                self._flush([each for each in self._participants.values() if each.key not in flushed])
                flushed.update(self._participants)
            facts = [
                ParticipantFacts(*key) if participant.facts is None else participant.facts()
                for key, participant in self._participants.items()
            ]
            decision, joins = command(participants=tuple(facts)), joins if self._word else -1
            step = log.end(intent, self._id, self._slot, decision, joins=joins, must_flush=must_flush)
            if step is _DONE:
                return
            if step is Step.REFUSED_FORGOTTEN and is_first:
                step = Step.REFUSED_ABORTED  # only this process could have decided anything else
            if step is not None:
                raise self._refused(step)

    def _wait_for_joined(self) -> None:
        """Let the operations of processes that joined end, and no others begin. Of one that has ended, or is
        decided, the slot may be that of another transaction by now: the next step answers."""
        if self._log.end(Intent.STOP, self._id, self._slot) is not Step.DONE:
            return
        self._use(self._log.joined(self._id))
        for participant in self._participants.values():
            participant.drain()

    def _use(self, named: tuple[ParticipantFacts, ...]) -> None:
        for facts in named:
            if facts.key not in self._participants:
                participant = self._resolve(facts)
                if participant is None:
                    participant = Participant(facts.key)
                self._participants[facts.key] = participant._replace(
                    facts=participant.facts or partial(ParticipantFacts, *facts)
                )

    def _flush(self, participants: list[Participant]) -> None:
        """Make durable what they have, side by side, for each waits for the disk. The decision follows."""
        errors = threads.side_by_side([each.flush for each in participants if each.flush is not int])
        errors.sort(key=_urgency)
        del errors[1:]
        # No name for the error: its frames, which would refer to it, hold what it is about.
        if errors and errors[0] is not None:
            if _urgency(errors[0]) == 1:
                self._abort_for(errors.pop())  # type: ignore[arg-type]
            raise errors.pop()  # type: ignore[misc]

    def _abort_for(self, failure: BaseException) -> None:
        """Abort, since an operation failed. Returns if a commit before, which did not answer, has decided it:
        the next step answers."""
        if self._id:
            self._find_joined()
            step = self._log.end(Intent.ABORT, self._id, self._slot)
            if step is not Step.DONE and self._state is not TransactionState.OPEN:
                return
        self._state = TransactionState.ABORTED
        self._tell(Outcome.ABORTED)
        raise TransactionHasOperationFailed(
            f"the transaction {self} was aborted in the place of its commit: an operation failed ({failure})"
        ) from failure

    def _refused(self, step: Step) -> PulsarException:
        if step is Step.REFUSED_FORGOTTEN:
            return TransactionNotFound(
                f"the transaction {self} has ended, so long ago that its outcome is forgotten"
            )
        state, reason = _REFUSED[step]
        if step is Step.REFUSED_ABORTED and self._log.now_ms() >= self._deadline_ms:
            state, reason = _REFUSED[Step.REFUSED_LATE]
        if step is not Step.REFUSED_ENDING:
            self._state = state
        return self._refusal(reason)

    def _refusal(self, reason: str) -> InvalidTxnStatusError:
        kind = TransactionTimeout if self._state is TransactionState.TIME_OUT else InvalidTxnStatusError
        return kind(f"the transaction {self} cannot be used: {reason}")

    def _tell(self, outcome: Outcome) -> None:
        if not self._participants:
            return
        participants, self._participants = self._participants, {}
        for participant in participants.values():
            timing.call_logged(partial(participant.on_end, outcome))


class JoinedTransaction:
    """A transaction that another process began.

    Role: lets this process send and acknowledge in it. The process that began it commits, once it knows,
    by means of the application, that the work here is done. Callers: any thread.

    Args:
        log: of the store.
        token: as `Transaction.token` of the other process.

    Raises:
        ValueError: this is no token.
        TransactionNotFound: the token is of another store.
        InvalidTxnStatusError: it has ended, or is about to.
    """

    __slots__ = (
        "_fork_generation",
        "_log",
        "_open_word",
        "_participants",
        "_slot",
        "_word",
        "_words",
        "id",
    )
    is_appended = False

    def __init__(self, log: TransactionLog, token: bytes) -> None:
        parsed = record.parse_token(token)
        if parsed is None:
            raise ValueError("this is no token of a transaction of this release")
        self._log: Final = log
        self._words: Final = log.control.words
        self._participants: Final = dict[tuple[int, int, str], Participant]()
        self._fork_generation: Final = fork.GENERATION
        self.id: Final = parsed.txn_id
        self._slot: Final = parsed.slot
        step = log.join(parsed)
        if step is not Step.DONE:
            reason = _REFUSED[step][1] if step in _REFUSED else "it has ended"
            raise InvalidTxnStatusError(f"the transaction {self} cannot be joined: {reason}")
        self._word: Final = log.control.word_of(parsed.slot)
        self._open_word: Final = state_word(parsed.txn_id, SlotState.OPEN)

    def __str__(self) -> str:
        return f"(0,{self.id})"

    def check_open(self) -> None:
        """As `Transaction.check_open`."""
        try:
            is_open = self._words[self._word] == self._open_word
        except ValueError:
            raise AlreadyClosed("the store of the transaction is closed") from None
        if self._fork_generation != fork.GENERATION:
            raise AlreadyClosed("the transaction is that of the parent of this forked process")
        if not is_open:
            raise InvalidTxnStatusError(
                f"the transaction {self} cannot be used: it has ended, or is about to"
            )

    def enlist(self, participant: Participant) -> None:
        """As `Transaction.enlist`; the process that began it hears of it. Not to be called under a lock.

        Raises:
            InvalidTxnStatusError: it has ended, or is about to.
        """
        if participant.key in self._participants:
            return
        if not self._log.note_participant(self.id, self._slot, ParticipantFacts(*participant.key)):
            self.check_open()
            raise InvalidTxnStatusError(f"the transaction {self} cannot be used: it is about to end")
        self._participants[participant.key] = participant

    def is_enlisted(self, key: tuple[int, int, str]) -> bool:
        """Whether a topic or subscription takes part already, of this process."""
        return key in self._participants

    def fail(self, error: BaseException) -> None:
        """An operation failed: the transaction is aborted, so that the other process cannot commit it."""
        self.abort()

    def abort(self) -> None:
        """Abort it, for all processes."""
        self._log.abort(self.id)
        for participant in self._participants.values():
            timing.call_logged(partial(participant.on_end, Outcome.ABORTED))

    @property
    def state(self) -> TransactionState:
        """How far it is; after its timeout it is ABORTED."""
        outcome = self._log.outcome(self.id)
        if outcome is Outcome.COMMITTED:
            return TransactionState.COMMITTED
        if outcome is Outcome.ABORTED:
            return TransactionState.ABORTED
        return TransactionState.PREPARED if outcome is Outcome.PREPARED else TransactionState.OPEN

    def commit(self) -> NoReturn:
        """Raise `NotAllowedError`: the process that began the transaction commits."""
        raise NotAllowedError(
            f"the transaction {self} was begun by another process, and only that one can commit it"
        )
