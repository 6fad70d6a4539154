"""Folding: outcomes of transactions that have ended go from the store into the topics that may ask for them.

In this order: the lowest id of a transaction that has not ended; then, topic by topic, the lock of the topic
once, so that what was admitted before is stored, the document of its aborted transactions, durably, and its
subscriptions, which take over what has ended, durably as well; then `TransactionLog.raise_lowest`. A process
that dies in between leaves documents that know more than they are asked for.

Before that, after a recovery: what transactions had committed is compared with the logs, and counted where a
power loss took a part.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.filenames import (
    COLD_SUFFIX,
    control_path,
    ledgers_of,
    lock_path,
    log_path,
    subscriptions_path,
)
from embeddedpulsar._engine.format.control import SubscriptionWord
from embeddedpulsar._engine.log.segment import read_segment_header
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, threads, timing
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.store.housekeeping import PATIENCE_S, SLICE_S, ChoresFailed
from embeddedpulsar._engine.store.root_layout import read_meta
from embeddedpulsar._engine.store.topic_lookup import TornCommit, compare_commits
from embeddedpulsar._engine.store.topic_transactions import (
    Fold,
    FoldedTransactions,
    entries_of_transactions,
    may_have_pending,
)
from embeddedpulsar._engine.txn.transaction_state import SHIFT, Outcome
from embeddedpulsar.damage import LOST_TAIL, Damage
from embeddedpulsar.exceptions import (
    CorruptionError,
    LockTimeout,
    PulsarException,
    SubscriptionNotFound,
    TopicNotFound,
)
from embeddedpulsar.message_id import Position
from embeddedpulsar.topic_name import PERSISTENT

if TYPE_CHECKING:
    from embeddedpulsar._engine.platform.timing import Clock
    from embeddedpulsar._engine.store.open_topics import TopicUse
    from embeddedpulsar._engine.store.store_session import StoreSession
    from embeddedpulsar._engine.store.topic import Topic
    from embeddedpulsar._engine.txn.transaction_log import TransactionLog

failpoints.declare("fold:begun", "fold:topics_done")

_UNDONE: Final = "the outcomes of finished transactions are kept"
_NOT_COMPARED: Final = "what transactions committed is not compared with the logs"

_EVERY_S: Final = 60.0
_NAMES: Final = 64
_MOST_KNOWN: Final = 100_000
_SUBSCRIPTIONS: Final = 64
"""Looked at between two looks at the clock."""
_PAGE: Final = 4096
_WORD: Final = 8 * SubscriptionWord.JOURNAL


class _Overtaken(Exception):
    """Another process has folded what a pass is about."""


class Folder:
    """Lets the store forget outcomes, and counts the transactions that are torn after a recovery.

    Role: begins a pass when a whole table of outcomes can go, or after a recovery, and makes it in slices.
    Invariants: an id is forgotten when each topic that stored something for it has it in its document, if it
    was aborted, and no subscription has anything pending of it. A document that another process wrote
    meanwhile is not replaced by an older one: it is compared and written in one slice, under the housekeeping
    lock.
    Callers: `fold` the thread of housekeeping, under its lock; others any thread. It uses the session that it
    was made with: the lock of the registry is held while it is closed.

    Args:
        session: of the store.
        use_topic: a hold on a topic that exists, to look at it; takes no lock of the store's registry.
        clock: of the store.
    """

    def __init__(self, session: StoreSession, use_topic: Callable[[str], TopicUse], clock: Clock) -> None:
        self._session: Final = session
        self._use_topic: Final = use_topic
        self._clock: Final = clock
        self._lock: Final = threads.RLock()  # held during a slice
        self._is_closed = False
        self._pass: Generator[None] | None = None
        self._undone = _UNDONE
        self._look_at = 0.0
        self._decided = 0  # the journal word at the last look
        self._scanned: dict[str, Position] = {}
        """By topic: up to here nothing is to be folded, though the document does not say so."""
        self._settled: dict[str, bytes] = {}
        """By subscription: its journal word when nothing was pending."""

    def fold(self, log: TransactionLog, done: list[str]) -> bool:
        """Fold some topics; what was forgotten is noted in ``done``. True if there is more to do."""
        try:
            self._lock.acquire()
            began, is_over = self._clock.monotonic(), True
            if self._is_closed or (self._pass is None and not self._begin(log, done, began)):
                return False
            try:
                # The waits for locks of a slice end together: others wait for the housekeeping lock.
                is_over = timing.within(PATIENCE_S, self._do_slice, began)
            except LockTimeout:
                raise  # the next look begins another pass
            except (PulsarException, OSError, ImportError) as e:
                raise ChoresFailed([(e, self._undone)]) from e
            finally:
                if is_over:
                    self._end_pass()
            # A comparison that is over leaves the way free for a look at what can be forgotten.
            return not is_over or self._undone is _NOT_COMPARED
        finally:
            self._lock.release()

    def _begin(self, log: TransactionLog, done: list[str], now: float) -> bool:
        """Begin a pass, if it is time and something can be forgotten, or at once after a recovery."""
        generation = log.recovered()
        if generation:
            # First: a pass and a short journal drop the generations that have what was committed.
            self._pass, self._undone = self._compare(log, generation), _NOT_COMPARED
            return True
        if now < self._look_at:
            return False
        every_s: int = self._session.settings.retentionCheckIntervalInSeconds
        self._look_at = now + min(_EVERY_S, every_s)
        decided = log.decided()
        if decided == self._decided:  # nothing was decided since the last look
            log.shrink_journal()
            decided = log.decided()
        self._decided = decided
        if _is_due(log):
            if len(self._settled) > _MOST_KNOWN:  # of subscriptions and topics that may be gone
                self._settled.clear()
                self._scanned.clear()
            self._pass, self._undone = self._pass_of(log, done), _UNDONE
        return self._pass is not None

    def _do_slice(self, began: float) -> bool:
        """Whether the pass is over."""
        with contextlib.suppress(_Overtaken):
            return not any(self._clock.monotonic() - began > SLICE_S for _ in self._pass or ())
        return True

    def _end_pass(self) -> None:
        steps, self._pass = self._pass, None
        if steps is not None:
            steps.close()  # it gives up the topic that it has

    # -- after a recovery --------------------------------------------------------------------------

    def _compare(self, log: TransactionLog, generation: int) -> Generator[None]:
        """Count and report the transactions of before a recovery of which a part is missing."""
        torn = yield from compare_commits(self._session.root, generation)
        log.note_compared(generation, len({commit.txn_id for commit in torn}))
        by_topic: dict[str, list[TornCommit]] = {}
        for commit in torn:
            by_topic.setdefault(commit.directory, []).append(commit)
        for directory, commits in by_topic.items():
            self._session.damage.enqueue(_damage_of(directory, commits))

    # -- a pass ------------------------------------------------------------------------------------

    def _pass_of(self, log: TransactionLog, done: list[str]) -> Generator[None]:
        """Make a pass; gives way between two steps."""
        # First: what begins from here on has a higher id, and so has all that is stored for it.
        below = log.lowest_undecided()
        before = log.lowest()
        failpoints.hit("fold:begun")
        start, names = "", [""]
        while names:
            names = self._session.catalog.names_from(f"{PERSISTENT}://", start, _NAMES)
            for name in names:
                with contextlib.suppress(TopicNotFound):  # it was deleted meanwhile
                    try:
                        yield from self._fold_name(log, name, below)
                    except FileNotFoundError:
                        if self._directory_of(name):
                            raise  # a file of a topic that is there: nothing may be forgotten without it
                yield
            start = f"{names[-1]}\0" if names else start
        failpoints.hit("fold:topics_done")
        log.raise_lowest(below)
        done.append(f"the outcomes of {below - before:,} finished transactions were folded into their topics")

    def _fold_name(self, log: TransactionLog, name: str, below: int) -> Iterator[None]:
        directory = self._directory_of(name)
        if not directory:
            return
        # What was admitted before is stored by the process that is in the lock.
        lock = FileLock(lock_path(directory))
        try:
            lock.acquire(PATIENCE_S)
        finally:
            lock.release()
            lock.close()
        yield from self._fold_topic(log, name, directory, below)
        yield from self._catch_up_subscriptions(name, directory)

    def _directory_of(self, name: str) -> str:
        """Of a topic that may have entries; empty if there is none."""
        entry = self._session.catalog.find(name)
        if entry is None or not entry.is_made or entry.partitions:
            return ""
        directory = self._session.directories.path(entry)
        return directory if os.path.isdir(directory) else ""

    def _fold_topic(self, log: TransactionLog, name: str, directory: str, below: int) -> Iterator[None]:
        while True:
            lowest, stored = log.lowest(), FoldedTransactions.read(directory)
            folded = stored.known_from(lowest)
            after = max(folded.through, self._scanned.get(directory, folded.through))
            if not _may_have_transactions(directory, after.ledger_id):
                return
            fold = Fold(folded, below, lowest, partial(_final_outcome, log))
            use = self._use_topic(name)
            try:
                ledger = use.topic.ledger
                last = ledger.last_position() or after
                for entries in entries_of_transactions(ledger, directory, after, last):
                    for ledger_id, entry_id, txn_id in entries:
                        fold.add(ledger_id, entry_id, txn_id)
                    yield
                first_retained = ledger.first_position().ledger_id
            finally:
                use.release()
            new = fold.ended(last, first_retained)
            if not fold.has_any:
                self._scanned[directory] = new.through
                return
            # Another process may have made a pass between two slices of this one.
            if FoldedTransactions.read(directory) == stored:
                new.write(directory)
                return

    # -- subscriptions -----------------------------------------------------------------------------

    def _catch_up_subscriptions(self, name: str, directory: str) -> Iterator[None]:
        """Have the subscriptions of a topic follow what has ended."""
        place = subscriptions_path(directory)
        with contextlib.suppress(FileNotFoundError):
            for number, each in enumerate(descriptors.names_in(place)):
                if self._may_ask(os.path.join(place, each)):
                    use = self._use_topic(name)
                    try:
                        _settle_all(use.topic)
                    finally:
                        use.release()
                if number % _SUBSCRIPTIONS == 0:
                    yield

    def _may_ask(self, path: str) -> bool:
        """Whether a subscription may have something pending, and so may ask for an outcome."""
        try:
            word = _journal_word(path)
            if self._settled.get(path) == word:
                return False
            if may_have_pending(path):
                return True
        except NotADirectoryError:  # of another program
            return False
        except FileNotFoundError:
            # It ended meanwhile. Or it has no control words yet, as in a store that was restored, or another
            # generation of its journal by now: then it is opened, and says so itself.
            return os.path.isdir(path)
        self._settled[path] = word
        return False

    def close(self) -> None:
        """Look at nothing from here on. Waits for the slice that is under way."""
        try:
            self._lock.acquire()
            self._is_closed = True
            self._end_pass()
        finally:
            self._lock.release()


def _damage_of(directory: str, torn: list[TornCommit]) -> Damage:
    """One report for a topic, however many transactions are torn in it."""
    first = min(torn)
    entry = read_meta(directory)
    reason = (
        f"{first.missing} of {first.entries} entries are missing of the transaction (0,{first.txn_id}), "
        "which had committed"
    )
    if len(torn) > 1:
        reason += f", and entries of {len(torn) - 1:,} more"
    return Damage(
        log_path(directory, first.ledger_id),
        # No ledger: what else is said of its end is another report.
        reason=reason,
        kind=LOST_TAIL,
        topic="" if entry is None else entry.name,
        done="what is there of it counts",
        remedy="send the rest again; to rule it out, use the level flush",
    )


def _is_due(log: TransactionLog) -> bool:
    """Whether a pass lets a table go: a whole range of ids was given out, and all of them have ended."""
    lowest = log.lowest() >> SHIFT
    return log.next_id() >> SHIFT > lowest and log.lowest_undecided() >> SHIFT > lowest


def _final_outcome(log: TransactionLog, txn_id: int) -> Outcome:
    outcome = log.outcome(txn_id)
    if not outcome.is_final:
        # Nothing that may go on has so low an id: it is aborted by being looked at.
        outcome = log.announce(txn_id).outcome
        log.end_wait(txn_id)
    if outcome not in (Outcome.COMMITTED, Outcome.ABORTED):
        raise _Overtaken
    return outcome


def _may_have_transactions(directory: str, first: int) -> bool:
    """Whether a ledger from ``first`` on may have entries of transactions, by the version of its segment."""
    names = descriptors.names_in(directory)
    ledgers = {*ledgers_of(names), *ledgers_of(names, COLD_SUFFIX)}
    # The last first: once a topic has an entry of a transaction, its later segments are of that version.
    for ledger_id in sorted(ledgers, reverse=True):
        if ledger_id < first:
            return False
        with contextlib.suppress(FileNotFoundError, CorruptionError):  # trimmed, or read by another way
            return read_segment_header(directory, ledger_id).may_have_transactions
    return False


def _journal_word(path: str) -> bytes:
    """The journal word of a subscription: another one once anything was written to it."""
    return disk.DISK.read_file(control_path(path), _PAGE)[_WORD : _WORD + 8]


def _settle_all(topic: Topic) -> None:
    for name in topic.subscriptions():
        with contextlib.suppress(SubscriptionNotFound):
            subscription = topic.use_subscription(name, create=False)
            try:
                subscription.pending_transactions()  # takes the lock, and has it follow what has ended first
                # Durably: after a power loss it would ask again for what the store has forgotten, and what
                # was acknowledged in a committed transaction would be delivered again.
                subscription.sync()
            finally:
                topic.end_use(subscription, name)
