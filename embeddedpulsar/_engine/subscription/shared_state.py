"""The state of a subscription, shared by all processes: one lock, one journal, one replica each.

What follows a commit to the journal of a subscription: summaries.

The open range of a consumer that is alone: it reads on without claims, and what it took is assigned later. A
claim costs a lock, a command and the publication of its outcome, and decides which consumer gets an entry.
While a single consumer is attached to a Shared or Key_Shared subscription there is nothing to decide. So its
entries are assigned afterwards: by the next transaction on the subscription, in whatever process, before that
decides anything.
"""

from __future__ import annotations

import contextlib
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.acknowledgement import Ack
from embeddedpulsar._engine.format.control import KIND_SUBSCRIPTION, SubscriptionWord, split_journal
from embeddedpulsar._engine.format.entry import sticky_key_hash
from embeddedpulsar._engine.format.subscription_record import Assign, FreshRun
from embeddedpulsar._engine.log.journal import Journal
from embeddedpulsar._engine.log.journal_file import JournalPlace
from embeddedpulsar._engine.log.topic_control import ThrottledCheck
from embeddedpulsar._engine.platform import failpoints, fork, nofollow, package_log, threads, timing
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.timing import Clock
from embeddedpulsar._engine.subscription import subscription_files as files
from embeddedpulsar._engine.subscription.ack_ring import RingSweep
from embeddedpulsar._engine.subscription.dispatch.dispatchers import CLAIM_DISPATCHERS
from embeddedpulsar._engine.subscription.dispatch.look_ahead import NO_KEY
from embeddedpulsar._engine.subscription.dispatch.wakeups import Wakeups
from embeddedpulsar._engine.subscription.state import replica
from embeddedpulsar._engine.subscription.state.replica import (
    CLAIMABLE,
    MEMBERS,
    NONE,
    REWOUND,
    SubscriptionReplica,
    SubscriptionState,
    checkpoint_of,
)
from embeddedpulsar._engine.subscription.subscription_files import (
    HANDED_MASK,
    StateFlusher,
    StateOptions,
    SubscriptionControl,
    SubscriptionGone,
    complete,
    from_where,
    handed_tag,
    name_in,
    words_position,
)
from embeddedpulsar.damage import CONTROL, JOURNAL, Damage
from embeddedpulsar.exceptions import AlreadyClosed, NotAllowedError, StorageFullError
from embeddedpulsar.message_id import BEFORE_FIRST, Isolation, Position
from embeddedpulsar.records import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.log.log import Log


_OWNER: Final = SubscriptionWord.RANGE_OWNER
_TAKEN: Final = SubscriptionWord.RANGE_TAKEN
CLOSING: Final = 1 << 63
_STORES_ARRIVE_S: Final = 1e-4
"""A store of another processor is seen after a microsecond at most; a process that is interrupted has no
store under way. See `OpenRange.close_for_others`."""
_AT_ONCE: Final = 256
_MANY_BYTES: Final = 1 << 30
_HARMLESS: Final = frozenset(
    (record.Assign, record.Redeliver, record.Checkpoint, record.Summary, record.Expired, record.OpenRange)
)
"""Commands that neither move the read position nor acknowledge anything behind it; an assignment is made by
the consumer itself, or of what it took."""


class OpenRange:
    """The two words of the open range of a subscription, and what they mean.

    Role: while RANGE_OWNER is the id of the only consumer, the entries from the read position on are its own,
    as many as RANGE_TAKEN says. Invariants:

    * The owner stores RANGE_TAKEN first, then compares RANGE_OWNER, then gives the entries to its
      application. Who closes the range stores RANGE_OWNER first, then loads RANGE_TAKEN. So of the two, one
      sees the other: either the entries are assigned to the owner, or it drops them and claims.
    * What was taken lies behind the read position in one ledger, without a gap; each entry is due, no part of
      a chunked message, and not acknowledged. So a count says which they are.
    * The range is closed before a command is committed that moves the read position, acknowledges
      something behind it, or changes the consumers.

    Crash order of closing: the word is marked with CLOSING, then the assignment is committed, then the word
    is cleared. A process that finds the mark goes on there; the owner finds another word than its id from
    the mark on. Of an owner that was killed, the words tell what it took, as HANDED tells what of that its
    application was given. After a power loss they are void, and what was taken is delivered again.
    Callers: the holder of the subscription's lock; the owner's reading thread uses the words without it.

    Attributes:
        consumer_id: of the owner, if the range was opened through this object; else 0.
    """

    __slots__ = ("_control", "_log", "_words", "consumer_id")

    def __init__(self, control: SubscriptionControl, log: Log) -> None:
        self._control: Final = control
        self._words: Final = control.words
        self._log: Final = log
        self.consumer_id = 0

    @property
    def owner(self) -> int:
        """Id of the consumer that reads on without claims, also if its range is being closed; 0 for none."""
        return int(self._words[_OWNER] & ~CLOSING)

    @property
    def is_own(self) -> bool:
        """Whether the owner reads in this process, so that the interpreter orders its stores and ours."""
        return bool(self.consumer_id and self._words[_OWNER] == self.consumer_id)

    def open(self, consumer_id: int, taken: int) -> None:
        """Let a consumer read on. What it was assigned so far are ``taken`` entries."""
        words = self._words
        words[_TAKEN] = handed_tag(consumer_id) | taken
        words[_OWNER] = self.consumer_id = consumer_id

    def mark_closing(self) -> None:
        """First step of closing: from here on the owner takes nothing more that would count.

        An owner in another process passes a fence between its store and its comparison, as this one does
        between the mark and the load of RANGE_TAKEN: so of the two, one sees the other. The pause is for an
        owner of an older release, whose store may still be under way on machines that reorder.
        """
        is_own = self.is_own
        self._words[_OWNER] |= CLOSING
        self.consumer_id = 0
        if not is_own:
            threads.fence()
            timing.sleep(_STORES_ARRIVE_S)

    def clear(self) -> None:
        """Last step of closing: what the owner took is assigned to it."""
        self._words[_OWNER] = self.consumer_id = 0

    def admits(self, commands: Sequence[record.Command], state: SubscriptionState) -> bool:
        """Whether the range may stay open while these are committed."""
        read = state.dispatch.read
        for command in commands:
            if type(command) in _HARMLESS:
                continue
            if type(command) in _ENDS and state.pending_acks.last_touched < read:
                continue  # what it acknowledges, or gives back, lies before what was taken
            if type(command) is record.TransactionAck and command.through is None:
                command = command.ack
            if type(command) is not Ack:
                return False
            ends = [(group.ledger_id, group.last) for group in command.groups]
            ends += [(batch.ledger_id, batch.entry_id) for batch in command.batches]
            if ends and max(ends) >= read:
                return False
        return True

    def assignment(self, state: SubscriptionState) -> Assign | None:
        """The assignment of what the owner took since the last one; None if that is nothing."""
        owner, taken = self.owner, self._words[_TAKEN]
        consumer = state.consumers.get(owner)
        assigned = state.dispatch.assigned_by_consumer.get(owner)
        if consumer is None or assigned is None or taken & ~HANDED_MASK != handed_tag(owner):
            return None  # detached, or never attached: the words of an earlier life
        count = (taken & HANDED_MASK) - assigned.end
        if count <= 0:
            return None
        ledger_id, first = state.dispatch.read
        keys_matter = CLAIM_DISPATCHERS[consumer.consumer_type].keys_matter
        run = self._run(Position(ledger_id, first), count, keys_matter)
        handed = self._control.handed(consumer.code, owner)
        return Assign(
            (ledger_id, first + count),
            0,
            (run,),
            (),
            ((owner, ledger_id, first, first + count - 1),),
            ((owner, handed),) if handed else (),
        )

    def _run(self, start: Position, count: int, keys_matter: bool) -> FreshRun:
        """What dispatch needs to know of the entries: by the index, or where that does not say, by the
        frames. Of an entry that was damaged since it was taken it is one message without a key."""
        no_key = sticky_key_hash(NO_KEY)
        columns = self._log.columns(start, count)
        # A count of 0 is an entry that the index does not describe; then the frames of all are read. An entry
        # without a readable frame keeps what the lists begin with.
        if columns is not None and 0 not in columns.counts:
            counts, hashes = columns.counts, [key_hash or no_key for key_hash in columns.key_hashes]
        else:
            counts, hashes = [1] * count, [no_key] * count
            cursor = self._log.cursor(start, inclusive=True, isolation=Isolation.EVERYTHING)
            end = start.entry_id + count
            while cursor.position < (start.ledger_id, end):
                views = cursor.read(_AT_ONCE, _AT_ONCE, _MANY_BYTES)
                if not views:
                    break
                for view in views:
                    if view.ledger_id == start.ledger_id and view.entry_id < end:
                        counts[view.entry_id - start.entry_id] = view.count
                        hashes[view.entry_id - start.entry_id] = view.key_hash or no_key
        return FreshRun(
            start.ledger_id,
            start.entry_id,
            start.entry_id + count - 1,
            None if counts.count(1) == count else array("I", counts),
            array("I", hashes) if keys_matter else None,
        )


EVERY_BYTES: Final = 2048
"""Bytes of commands between two summaries, some 20 commands: applying them costs as much as a summary."""

failpoints.declare("summary:committed")


class Summaries:
    """Writes the summaries of one subscription, from this process.

    Role: called after each commit; the word SUMMARY says where the last one stands, whichever process wrote
    it. Crash order: the command is committed and published before the word names it. Callers:
    the holder of the subscription's lock, on the published state.
    """

    def __init__(
        self, control: SubscriptionControl, journal: Journal, replica: SubscriptionReplica, clock: Clock
    ) -> None:
        self._control: Final = control
        self._journal: Final = journal
        self._replica: Final = replica
        self._clock: Final = clock
        self._bytes = 0  # of the last one that this process wrote

    def write_if_due(self) -> None:
        """Write a summary after a commit if the last one is far behind."""
        if not replica.is_worth_it(self._replica.state):
            return
        words, here = self._control.words, self._journal.seen
        generation, end = split_journal(here)
        named, last = split_journal(words[SubscriptionWord.SUMMARY])
        if named == generation and end - last < self._bytes + EVERY_BYTES:
            return
        command = record.Summary(replica.pack_summary(self._replica.state))
        self._journal.append(
            [record.encode(command)], self._clock.wall_ms(), apply=lambda: self._replica.apply(command)
        )
        if failpoints.ACTIVE:
            failpoints.hit("summary:committed")
        self._control.note_published()  # what was published before it holds after it
        if self._journal.generation == generation:  # it may have been the last of its generation
            words[SubscriptionWord.SUMMARY] = here
        self._bytes = len(command.content)


CHECKPOINT_EVERY: Final = 1000
"""Commands between checkpoints, by which replicas notice that they disagree."""
_ENDS: Final = (record.TransactionEnd, record.TransactionCommits)
_VOIDING: Final = frozenset(
    (record.Create, record.Attach, record.Detach, record.Seek, record.Limits, record.TransactionEnd)
)
"""Commands after which what consumers have read ahead may be void; the end of a transaction only if
`rewinds_with` says so."""
_PASSED: Final = 1 << 8  # beside MEMBERS of the state's effects

R = TypeVar("R")

_RANGE_OWNER: Final = SubscriptionWord.RANGE_OWNER
_JOURNAL: Final = SubscriptionWord.JOURNAL
_new: Final = tuple.__new__  # as a call of the class, without another one

failpoints.declare("subscription:announced", "subscription:published", "subscription:unlocked")
failpoints.declare("range:opened", "range:closing", "range:assigned")
failpoints.declare("transactions:settled")


class SharedState:
    """One process's view of the replicated state of one subscription.

    Role: everything that changes a subscription is a `transact`: lock, catch up, decide on the state,
    commit commands, publish, unlock, and only then wake others, flush, and report damage. Only it touches
    lock, journal and control words. Invariants: a decision is made on a replica that has applied everything
    committed; the control words are those of the replica whenever the lock is free, or the next holder makes
    them so. Commands that void what consumers read ahead raise EPOCH before they are committed. Durable: as
    `durability` says, when `transact` returns. Callers: any thread, but not a signal handler that
    interrupted a call to the same subscription. In a forked child it is closed.
    """

    def __init__(
        self, directory: str, control: SubscriptionControl, lock: FileLock, options: StateOptions
    ) -> None:
        self.directory: Final = directory
        self.control: Final = control
        self.wakeups: Final = Wakeups(control, options.peers)
        self.open_range: Final = OpenRange(control, options.log)
        self._range_generation = -1  # of the journal that says that the range is open
        self.divergences = 0  # how often this replica was built anew because it disagreed with another
        self._lock, self._options, self._clock = lock, options, options.clock
        self.lock: Final = lock
        """For words that a rate has."""
        self._timeout_s = options.lock_timeout_s
        self._fork_generation: Final = fork.GENERATION
        self._replica: Final = SubscriptionReplica()
        self.on_members: Callable[[], object] = int
        """Called without the lock when consumers came or went."""
        self.on_passed: Callable[[], object] = int
        """Called without the lock when it may need a ledger no more: it went on, or was deleted."""
        self._news = 0  # what to call
        self._notes: deque[str] = deque()  # what to log
        self._rings: Final = RingSweep(directory)
        self._gone = ""  # a directory to be removed
        self.is_damaged = False
        """Whether something is left of a subscription, and nothing says which it is. It is kept."""
        self._is_published = True
        # Ends of transactions that are applied to the replica, and written by the next commit. They are of no
        # use once the commit word is another than it was then.
        self._ends: Sequence[record.Command] = ()
        self._ends_word = 0
        place = JournalPlace(
            directory,
            control.words,
            SubscriptionWord.JOURNAL,
            KIND_SUBSCRIPTION,
            options.compact_bytes,
            SubscriptionWord.SUMMARY,
            options.check_in_place,
        )
        self._journal: Final = Journal(place, self._replica)
        self._summaries: Final = Summaries(control, self._journal, self._replica, options.clock)
        self._flusher: Final = StateFlusher(directory, self._journal, options, lambda: self.is_removed)
        lock.close_others, lock.check_reopened = self._journal.close_descriptor, options.check_in_place
        self._look: Final = ThrottledCheck(options.check_in_place, options.clock.monotonic).check_if_due

    @classmethod
    def open(
        cls,
        directory: str,
        options: StateOptions,
        log_end: Callable[[], Position | None],
        *,
        is_fresh: bool = False,
    ) -> SharedState:
        """Map the control words, making or recovering them as needed. The directory must exist.

        Args:
            directory, options: of the subscription.
            log_end: the last position of the topic; a recovery forgets acknowledgements beyond it.
            is_fresh: whether the caller has just made the directory.

        Raises:
            FileNotFoundError: there is no such directory, or not any more.
            StorageError: the files are of a newer release, or cannot be written.
            LockTimeout: another process stayed in the lock.
        """
        return nofollow.within(directory, cls._open, directory, options, log_end, is_fresh)

    @classmethod
    def _open(
        cls,
        directory: str,
        options: StateOptions,
        log_end: Callable[[], Position | None],
        is_fresh: bool,
    ) -> SharedState:
        lock, control = files.open_files(directory, options.lock_timeout_s, options.boot, is_fresh=is_fresh)
        with contextlib.ExitStack() as stack:
            stack.callback(lock.close)
            stack.callback(control.close)
            shared = cls(directory, control, lock, options)
            if shared._is_to_be_believed():
                shared._journal.preload()
            else:
                shared._recover(log_end() or BEFORE_FIRST)
            stack.pop_all()
        return shared

    @property
    def is_foreign(self) -> bool:
        """Whether the parent of this forked process made it."""
        return self._fork_generation != fork.GENERATION

    @property
    def exists(self) -> bool:
        """Whether the subscription exists. Reads one word."""
        try:
            return self._journal.exists
        except ValueError:
            raise self._closed() from None

    @property
    def is_removed(self) -> bool:
        """Whether the subscription ended and took its directory along. Reads one word."""
        return self.control.is_removed

    @property
    def state(self) -> SubscriptionState:
        """The replica as it was when last caught up. Inside `transact` it is the truth."""
        return self._replica.state

    # -- transactions ------------------------------------------------------------------------------

    def transact(
        self, body: Callable[[SubscriptionState], R], *, is_flushed: bool = True, most_ended: int = 0
    ) -> R:
        """Run ``body`` on the caught-up state, under the lock; what it changes it passes to `commit`.

        ``body`` must not block, log, or call back into the subscription. At level "flush" what it changed is
        durable on return, unless the caller says that it is flushed with more: not ``is_flushed``. With less
        than ``most_ended`` pending, some may have committed: if it matters, call `apply_ends`.

        Raises:
            AlreadyClosed: closed, or made by the parent of this forked process.
            NotAllowedError: called from a signal handler inside another call to this subscription.
            LockTimeout: another process stayed in the lock.
            StorageError: the journal cannot be read or written; nothing of the last `commit` was committed.
        """
        if self._fork_generation != fork.GENERATION or self._lock.held:
            self._check_usable()
        if self.control.is_removed:
            return body(SubscriptionState())  # the directory is gone: nothing exists here, nor will
        try:
            try:
                self._lock.acquire(self._timeout_s)
                self._look()
                self._catch_up()
                if self.control.words[_RANGE_OWNER]:
                    self._assign_taken()
                pending = self._replica.state.pending_acks
                if not pending.transactions or not self._settle_transactions(not is_flushed, most_ended):
                    result = body(self._replica.state)
                else:
                    result = self._run_ahead(body)
            finally:
                self._lock.release()
        except ValueError:
            if self.control.closed:
                raise self._closed() from None
            raise
        finally:
            self._act()
        if self._flusher.is_immediate and is_flushed:
            self._flusher.sync()
        return result

    def apply_ends(self) -> None:
        """Have the state follow the ends of transactions. In the body of a `transact` with ``most_ended``."""
        self._settle_transactions(may_lead=False, most_ended=0)

    def _ends_of_transactions(self) -> list[record.Command]:
        """The ends of transactions that ended meanwhile, aborts first. They are looked up here and nowhere
        below: the commands carry them. What is not written, as the process dies, is asked for again."""
        ids, now_ms = list(self._replica.state.pending_acks.transactions), self._clock.wall_ms()
        ended: dict[int, list[record.TransactionId]] = {record.ABORTED: [], record.COMMITTED: []}
        for transaction, outcome in zip(ids, self._options.outcomes(ids), strict=True):
            if outcome in ended:
                ended[outcome].append(transaction)
        ends: list[record.Command] = [
            _new(record.TransactionEnd, (transaction, record.ABORTED, now_ms))
            for transaction in ended[record.ABORTED]
        ]
        committed = ended[record.COMMITTED]
        if len(committed) == 1:
            ends.append(_new(record.TransactionEnd, (committed[0], record.COMMITTED, now_ms)))
        elif committed:
            ends.append(record.TransactionCommits(tuple(committed), now_ms))
        return ends

    def _settle_transactions(self, may_lead: bool, most_ended: int) -> bool:
        """Have the state follow the ends of transactions. Inside `transact`.

        The ends are applied, and written with what is decided on the state behind them, by one commit word:
        the order in which other replicas apply them. Whatever strikes before the word is stored has the
        replica thrown away. Not for an abort, which may have to be announced before it is applied, nor if the
        range of a lone consumer has to be closed.

        Args:
            may_lead: whether the caller commits something.
            most_ended: as of `transact`. Those that are open are looked at, and aborts followed, in any case.

        Returns:
            Whether the ends are applied and not written.
        """
        ends, state = self._ends_of_transactions(), self._replica.state
        if not ends:
            return False
        words, has_aborted = self.control.words, getattr(ends[0], "outcome", 0) == record.ABORTED
        pending = state.pending_acks
        if not has_aborted and len(pending.transactions) < most_ended and pending.cumulative is None:
            return False
        if (
            may_lead
            and not has_aborted
            and not (words[_RANGE_OWNER] and not self.open_range.admits(ends, state))
        ):
            self._journal.lead()  # first: from here on an interrupt makes the replica void
            self._is_published = False
            self._ends, self._ends_word = ends, words[_JOURNAL]
            self._replica.apply_all(ends, 0)
            return True
        with contextlib.suppress(StorageFullError):  # the entries stay where they are until there is room
            self.commit(ends)
        if failpoints.ACTIVE:
            failpoints.hit("transactions:settled")
        return False

    def _run_ahead(self, body: Callable[[SubscriptionState], R]) -> R:
        """Run ``body`` on a state whose last commands are not written. If it commits nothing, or refuses,
        they are written alone."""
        try:
            result = body(self._replica.state)
        except Exception:
            self._write_ends()
            raise
        self._write_ends()
        return result

    def _write_ends(self) -> None:
        if self._ends and self.control.words[_JOURNAL] == self._ends_word:
            with contextlib.suppress(StorageFullError):  # they are asked for again
                self.commit(())

    @property
    def has_pending_transactions(self) -> bool:
        """Whether a transaction has something pending here, as this replica has seen it."""
        return bool(self._replica.state.pending_acks.transactions)

    @property
    def has_ended_transactions(self) -> bool:
        """Whether a transaction that has something pending here has ended, unseen by this replica. Ends those
        with which no process can go on. Without any pending, one look at a dict."""
        return bool(self._replica.state.pending_acks.transactions and self._ends_of_transactions())

    def end_transaction(self, transaction: record.TransactionId, outcome: int) -> bool:
        """Have the state follow the end of a transaction, which is decided: `record.COMMITTED` or `ABORTED`.

        Nothing is lost if this is not called, or fails: the next process that takes the lock does the same.

        Returns:
            Whether anything was pending of it; False as well if another process was faster.
        """

        def body(state: SubscriptionState) -> bool:
            if transaction not in state.pending_acks.transactions:
                return False
            self.commit([record.TransactionEnd(transaction, outcome, self._clock.wall_ms())])
            return True

        # A power loss that takes it loses nothing: the outcome is asked for again.
        return self.transact(body, is_flushed=False)

    def in_lock(self, body: Callable[[], R]) -> R:
        """Run ``body`` under the lock on whatever this replica has seen: it changes nothing but the words of
        the consumers of this process. Errors as of `transact`."""
        self._check_usable()
        try:
            try:
                self._lock.acquire(self._timeout_s)
                return body()
            finally:
                self._lock.release()
        except ValueError:
            if self.control.closed:
                raise self._closed() from None
            raise

    def _check_usable(self) -> None:
        if self._fork_generation != fork.GENERATION:
            raise self._closed()
        if self._lock.held:
            raise NotAllowedError(
                f"the subscription in {self.directory} was called from a signal handler (or finalizer) that "
                "interrupted another call to it; let the handler set a flag instead"
            )

    def commit(self, commands: Sequence[record.Command]) -> int:
        """Commit commands, apply them and publish the outcome; returns their effects. Inside `transact`."""
        replica = self._replica
        if self.control.words[_RANGE_OWNER] and not self.open_range.admits(commands, replica.state):
            self.close_range()
        ends = self._ends
        if ends and self.control.words[_JOURNAL] != self._ends_word:
            self._ends = ends = ()
        if not ends:
            replica.effects = NONE
        self._is_published = False
        before = replica.state.commands - len(ends)
        records = [record.encode(command) for command in (*ends, *commands)]
        announce = None
        self._rings.begin()
        for command in commands:
            if type(command) in _VOIDING:
                if type(command) is record.TransactionEnd and (
                    command.outcome == record.COMMITTED or not replica.state.rewinds_with(command)
                ):
                    continue
                announce = self._announce
                if type(command) is record.Detach:
                    self._rings.record_leaver(command)
                if type(command) is record.Seek:
                    self.control.draw_back(Position(command.ledger_id, command.entry_id))
        now_ms = self._clock.wall_ms()
        apply = partial(replica.apply_all, commands, 0 if announce is None else now_ms)
        self._journal.append(records, now_ms, announce=announce, apply=apply, ahead=len(ends))
        if ends:
            self._ends = ()
        effects = replica.effects
        self._publish(effects)
        replica.effects = NONE
        if ends and failpoints.ACTIVE:
            failpoints.hit("transactions:settled")
        self._flusher.note_dirty()
        if before // CHECKPOINT_EVERY != replica.state.commands // CHECKPOINT_EVERY:
            with contextlib.suppress(ValueError):  # a state too large for a snapshot has no checkpoints
                self.commit([checkpoint_of(replica.state)])
        else:
            self._summaries.write_if_due()
        if self.open_range.consumer_id:
            self._journal_range()
        return effects

    # -- the range of a consumer that is alone -----------------------------------------------------

    def let_read_on(self, consumer_id: int, taken: int) -> None:
        """Let the only consumer take entries without claims; it was assigned ``taken`` so far. Inside
        `transact`."""
        open_range = self.open_range
        if not open_range.is_own:
            open_range.consumer_id, self._range_generation = consumer_id, -1
            self._journal_range()  # before the word: a process of an older release that attaches must refuse
        open_range.open(consumer_id, taken)
        if failpoints.ACTIVE:
            failpoints.hit("range:opened")

    def _journal_range(self) -> None:
        """Have the journal say that a range is open, also the next generation of it."""
        while self._range_generation != self._journal.generation:
            try:
                self._range_generation = self._journal.generation
                self.commit([record.OpenRange(self.open_range.consumer_id)])
            except BaseException:
                self._range_generation = -1
                raise

    def close_range(self) -> None:
        """Have the owner of the range claim again; what it took is assigned to it. Inside `transact`."""
        owner = self.open_range.owner
        self.open_range.mark_closing()
        if failpoints.ACTIVE:
            failpoints.hit("range:closing")
        self._commit_taken()
        if failpoints.ACTIVE:
            failpoints.hit("range:assigned")
        self.open_range.clear()
        # While it reads on, its bit says that it sleeps: it looks again, and then either sleeps or claims.
        self.wakeups.consumers(self._replica.state, (owner,))

    def _assign_taken(self) -> None:
        """Bring the state up to what a lone consumer took. The range of another process is closed: only the
        owner's own commands are known not to concern what it takes meanwhile."""
        if self.open_range.is_own:
            self._commit_taken()
        else:
            self.close_range()

    def _commit_taken(self) -> None:
        command = self.open_range.assignment(self._replica.state)
        if command is not None:
            self.commit([command])

    def create(self, command: record.Create, *others: record.Command) -> None:
        """Bring the subscription into being, and commit ``others`` with it: by one word, so there is never
        one without the other. Inside `transact`, on a state that does not exist; `state` is another one
        afterwards.

        Raises:
            SubscriptionGone: not here: its directory was taken away.
        """
        if self.control.is_removed:
            raise SubscriptionGone(f"{self.directory} was taken away")
        self._announce()
        self.control.draw_back(Position(command.ledger_id, command.entry_id))
        now_ms = self._clock.wall_ms()
        commands = (command, *others)
        apply = partial(self._replica.apply_all, commands, now_ms)
        self._journal.create([record.encode(command) for command in commands], now_ms, apply)
        self._rings.note_made()
        passed = self._news & _PASSED
        self._publish(self._replica.take_effects())
        self._news = self._news & ~_PASSED | passed  # it begins to need ledgers, and stops to need none
        self._flusher.note_dirty()

    def remove(self) -> None:
        """End the subscription; its files go. Inside `transact`."""
        self._announce()
        self._journal.remove(self._clock.wall_ms())
        self.wakeups.everybody()
        self._news |= _PASSED
        self._publish(REWOUND | MEMBERS)
        self._gone = files.take_away(self.directory, self.control)

    def clear_away(self) -> bool:
        """Remove the files of a subscription that does not exist. False if it does, or they may be needed."""

        def body(state: SubscriptionState) -> bool:
            if state.exists or self.is_removed:
                return self.is_removed
            if not files.is_bare(self.directory):  # a process was killed while it made or ended it
                if self._journal.exists or not self.control.is_trusted(self._options.boot):
                    return False
                if files.is_word_damaged(self.directory, self.control):
                    return False
                self._journal.clear_away()
            self._gone = files.take_away(self.directory, self.control)
            return True

        return self.transact(body)

    def _announce(self) -> None:
        self.control.announce()
        if failpoints.ACTIVE:
            failpoints.hit("subscription:announced")

    def _catch_up(self) -> None:
        if not self._journal.catch_up() and self._is_published:
            return
        self._ends = ()
        replica = self._replica
        if replica.has_diverged:
            # All replicas must agree. The files decide which of them is right.
            self.divergences += 1
            self._journal.discard()
            self._journal.catch_up()
            replica.has_diverged = False
        if self._journal.damage or (not replica.state.exists and self._journal.exists):
            self._make_good()
        if self.control.is_published and self._is_published:
            self._news |= replica.effects & MEMBERS
        else:
            # The process that committed died before it did; or was interrupted, if it was this one.
            self._publish(replica.effects)
        replica.take_effects()

    def _is_to_be_believed(self) -> bool:
        """Whether the control words are of this boot and place, and no damage shows in them."""
        control = self.control
        is_whole = control.is_trusted(self._options.boot) and control.is_possible()
        return is_whole and not files.is_word_damaged(self.directory, control)

    def _recover(self, log_end: Position) -> None:
        """Believe the files, not the words: after a reboot, in a copied store, when the ctl is damaged."""
        damaged = ""
        try:
            self._lock.acquire(self._timeout_s)
            self.control.reload()
            is_trusted = self.control.is_trusted(self._options.boot)
            if self._is_to_be_believed():
                return  # another process was faster; a header that it was writing is not damaged
            if self.control.is_damaged or is_trusted:
                damaged = "its words are damaged" if is_trusted else "its header is damaged"
            is_known = self.control.is_word_known or files.is_volatile(self.directory)
            known = words_position(self.control, self.control.words[SubscriptionWord.JOURNAL])
            self.control.clear_words()
            word = self.control.words[SubscriptionWord.JOURNAL]
            if known is not None:
                known = min(known, log_end)
            complete = partial(self._complete, known)
            self._journal.recover(self._clock.wall_ms(), complete, is_word_known=is_known)
            state = self._replica.state
            if not state.exists and (self._journal.exists or self._journal.damage):
                # The process that opens it by name must not find a subscription that never was.
                self.control.words[SubscriptionWord.JOURNAL] = word
                self.is_damaged = True
                return
            if state.exists and state.last_touched() > log_end:
                self.commit([record.Clamp(*log_end)])
            self.control.announce()
            self._publish(REWOUND)
            self.control.adopt(0, self._options.boot)
        finally:
            self._lock.release()
            self._act()
            if damaged:
                self._options.report(Damage(self.control.path, reason=damaged, kind=CONTROL))

    def _complete(self, known: Position | None) -> bool:
        """Give a replica that damaged files led to the state that loses nothing: see
        `subscription_files.complete`."""
        replica, before = self._replica, self._replica.state.mark_delete
        had_state = replica.state.exists
        if not complete(replica, self.directory, self._options.name, known, self._clock.wall_ms()):
            return False
        if had_state and replica.state.mark_delete == before:
            return True
        replica.state.epoch = max(replica.state.epoch, self.control.words[SubscriptionWord.EPOCH] + 1)
        self._note_start(replica.state.name, replica.state.mark_delete)
        return True

    def _make_good(self) -> None:
        """Do the same where the commit word holds: what was lost is not in the replica, and it is left with
        the next command."""
        state = self._replica.state
        known = words_position(self.control, self._journal.seen) or BEFORE_FIRST
        if state.exists:
            if known < state.mark_delete:  # a command that put it back is lost
                self.commit([record.Seek(*known)])
                self._note_start(state.name, known)
            return
        name = self._options.name or name_in(self.directory)
        if name:  # else the process that opens it by name does
            epoch = self.control.words[SubscriptionWord.EPOCH] + 1
            self.create(record.Create(name, epoch, *known))
            self._note_start(name, known)

    def _note_start(self, name: str, position: Position) -> None:
        reason = f"acknowledgements of subscription {name!r} are lost"
        done = f"the subscription delivers again {from_where(position)}"
        self._journal.damage.append(Damage(self.directory, reason=reason, kind=JOURNAL, done=done))

    def _publish(self, effects: int) -> None:
        state = self._replica.state
        if self.control.publish(state.mark_delete, len(state.consumers), state.epoch):
            self._news |= _PASSED
        dispatch = state.dispatch
        if dispatch.assigned_by_consumer:
            next_due_ms = dispatch.delayed.next_due() or 0
            self.control.publish_dispatch(dispatch.read, next_due_ms, dispatch.waiting)
        if effects & MEMBERS:
            self._news |= MEMBERS
        if effects & CLAIMABLE:
            self.control.bump()
        self.wakeups.after(state, effects)
        self.control.note_published()
        self._is_published = True
        if failpoints.ACTIVE:
            failpoints.hit("subscription:published")

    # -- after the lock ----------------------------------------------------------------------------

    def log_later(self, text: str) -> None:
        """Log something when the lock is free again. Inside `transact`."""
        self._notes.append(text)

    def note_damage(self, damage: Damage) -> None:
        """Report damage when the lock is free again. Inside `transact`."""
        self._journal.damage.append(damage)

    def _act(self) -> None:
        """Do what was decided under the lock and needs none."""
        if self.wakeups.has_any:
            if failpoints.ACTIVE:
                failpoints.hit("subscription:unlocked")
            self.wakeups.ring()
        news, self._news = self._news, 0
        if news & MEMBERS:
            self.on_members()
        if news & _PASSED:
            self.on_passed()
        while self._notes:
            try:
                note = self._notes.popleft()
                about = {"topic": self._options.log.name, "subscription": self._replica.state.name}
                package_log.info("%s: %s", self.directory, note, **about)
            except IndexError:
                break  # another thread was faster
        if self._gone:
            gone, self._gone = self._gone, ""
            files.remove_gone(gone)
        if self._rings.has_leavers:
            self._rings.sweep(self._replica.state)
        while self._journal.damage:
            self._options.report(self._journal.damage.pop(0))

    def sync(self) -> None:
        """Make everything committed so far survive a power loss; see `StateFlusher.sync`."""
        self._flusher.sync()

    def close(self) -> None:
        """Flush what level "interval" still owes, and give files and map back. Idempotent."""
        if self.control.closed:
            return
        try:
            self._flusher.close()
        finally:
            self._journal.close()
            self.control.close()
            self._lock.close()

    def _closed(self) -> AlreadyClosed:
        of_parent = "belongs to the parent of this forked process; subscribe in the child"
        state = of_parent if self.is_foreign else "is closed"
        return AlreadyClosed(f"the subscription in {self.directory} {state}")
