"""A subscription as an onlooker sees it: whole and up to date, without its lock, and nothing is changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.control import (
    KIND_SUBSCRIPTION,
    SUBSCRIPTION_CONTROL_SIZE,
    SubscriptionWord,
)
from embeddedpulsar._engine.format.entry_decoder import EntryView
from embeddedpulsar._engine.log.journal_file import JournalPlace, JournalView
from embeddedpulsar._engine.platform import threads, timing
from embeddedpulsar._engine.subscription.attachment.active_attachment import unacked_entries
from embeddedpulsar._engine.subscription.dispatch.dispatchers import ACTIVE_DISPATCHERS
from embeddedpulsar._engine.subscription.log_queries import (
    Acknowledged,
    PendingTransaction,
    acknowledged_in,
    pending_transactions,
)
from embeddedpulsar._engine.subscription.shared_state import OpenRange
from embeddedpulsar._engine.subscription.state.dispatch_state import Consumer, ConsumerRegistry
from embeddedpulsar._engine.subscription.state.entry_states import DELAYED
from embeddedpulsar._engine.subscription.state.replica import (
    ExpiredCounts,
    SubscriptionReplica,
    SubscriptionState,
    decode_snapshot,
    encode_snapshot,
)
from embeddedpulsar._engine.subscription.subscription_files import (
    Facts,
    Granted,
    Outcomes,
    SubscriptionControl,
    complete,
    is_volatile,
    is_word_damaged,
    nothing_decided,
    words_position,
)
from embeddedpulsar.damage import DamageHook
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.log.log import Log

R = TypeVar("R")

_SENT_BEFORE: Final = SubscriptionWord.SENT_BEFORE
_MADE_MS: Final = SubscriptionWord.MADE_MS


class ConsumerFacts(NamedTuple):
    """A consumer that is attached, and whose process lives.

    Attributes:
        consumer: what it attached as.
        held: messages assigned to it and not acknowledged; 0 if its type assigns none.
        is_blocked: it holds too many of them.
        permits: messages it could be assigned now, were it not blocked; None if its type assigns none.
        assigned: messages assigned to it since it attached; None likewise.
        oldest: the first entry of those that it holds; None if it holds none, or its type assigns none.
        acked_ms: when it last wrote an acknowledgement, ms since the epoch; 0 for never, or unknown.
    """

    consumer: Consumer
    held: int
    is_blocked: bool
    permits: int | None
    assigned: int | None
    oldest: Position | None = None
    acked_ms: int = 0


class SubscriptionFacts(NamedTuple):
    """A subscription at one moment.

    Attributes:
        name: of the subscription.
        acknowledged: what is acknowledged.
        consumers: those whose process lives, the longest attached first.
        active: the name of the consumer that gets the messages; None if its type has none, or without
            consumers.
        delayed: messages that were read and are not due.
        is_blocked: its consumers together hold too many messages.
        read: the entry that is read next; None without consumers, or if its type has none.
        last_active_ms: when a consumer last came or left; 0 if that is unknown.
        expired: messages that expired.
        given: messages that its applications got, of a non-persistent topic; as are the other two.
        sent_before: messages that were sent before it was made.
        made_ms: when that was.
        transactions: the open ones that acknowledged something.
    """

    name: str
    acknowledged: Acknowledged
    consumers: tuple[ConsumerFacts, ...]
    active: str | None
    delayed: int
    is_blocked: bool
    read: Position | None
    last_active_ms: int
    expired: ExpiredCounts
    given: int = 0
    sent_before: int = 0
    made_ms: int = 0
    transactions: tuple[PendingTransaction, ...] = ()


class SubscriptionView:
    """The state of one subscription, followed without its lock.

    Role: what `Admin` and the like look at. Acknowledgements that a consumer has not yet written to the
    journal do not count. Invariants: nothing is written; no lock of another process is waited for.
    Callers: any thread.

    Args:
        directory: of the subscription; need not exist.
        log: of the topic.
        report: called with what cannot be read, once.
        outcomes: of transactions that have acknowledgements pending; those that ended count as they ended,
            though the journal does not say so yet.
    """

    def __init__(
        self, directory: str, log: Log, report: DamageHook, outcomes: Outcomes = nothing_decided
    ) -> None:
        self._outcomes: Final = outcomes
        self._directory: Final = directory
        self._log: Final = log
        self._boot: Final = log.options.boot_id
        self._report: Final = report
        self._lock: Final = threads.RLock()  # guards everything below
        self._control: SubscriptionControl | None = None
        self._replica = SubscriptionReplica()
        self._journal: JournalView | None = None
        # The commit word that the replica has followed, if nothing was to be mended then; 0 otherwise.
        self._followed = 0

    def read_state(self, body: Callable[[SubscriptionState], R]) -> R | None:
        """``body(state)``, which must neither change nor keep the state; None if there is no subscription.

        Raises:
            StorageError: its files cannot be read.
        """
        try:
            timing.enter(self._lock, f"a look at {self._directory}")
            return body(self._settled()) if self._is_there() else None
        finally:
            self._lock.release()

    def _settled(self) -> SubscriptionState:
        """The state; if transactions ended, a copy that has followed them, as the replica follows the journal
        alone."""
        state = self._replica.state
        ids = list(state.pending_acks.transactions)
        if not ids:
            return state
        outcomes = zip(ids, self._outcomes(ids), strict=True)
        ended = [outcome for outcome in outcomes if outcome[1] in (record.COMMITTED, record.ABORTED)]
        if ended:
            state = decode_snapshot(encode_snapshot(state))
            for transaction, outcome in ended:
                state.apply(record.TransactionEnd(transaction, outcome, 0))
        return state

    def unacked_entries(self, log: Log) -> Iterator[EntryView]:
        """The entries of the topic that are not acknowledged, in order, chunked messages whole, up to the
        tail. What others acknowledge meanwhile may be left out."""
        return unacked_entries(log, self.read_state)

    def redeliveries(self, ledger_id: int, entry_id: int) -> int:
        """How often an entry was delivered again; 0 on Exclusive and Failover, which do not count."""
        return self.read_state(lambda state: state.dispatch.redeliveries(ledger_id, entry_id)) or 0

    def facts(self, is_alive: Callable[[bytes], bool]) -> SubscriptionFacts | None:
        """Everything of interest; None if there is no subscription.

        Args:
            is_alive: whether the process of a lease lives.
        """

        def body(state: SubscriptionState) -> SubscriptionFacts:
            control = self._control
            facts = _facts_of(state, control, is_alive)
            if control is None or not len(state.consumers):
                return facts
            return self._with_taken(facts, state, control)

        return self.read_state(body)

    def _with_taken(
        self, facts: SubscriptionFacts, state: SubscriptionState, control: SubscriptionControl
    ) -> SubscriptionFacts:
        """The facts with what a lone consumer took and no transaction has assigned to it yet."""
        open_range = OpenRange(control, self._log)
        command = open_range.assignment(state) if open_range.owner else None
        if command is None:
            return facts
        run = command.fresh[0]
        messages = run.last - run.first + 1 if run.messages is None else sum(run.messages)
        consumers = [
            consumer._replace(
                held=consumer.held + messages,
                permits=max((consumer.permits or 0) - messages, 0),
                assigned=(consumer.assigned or 0) + messages,
                oldest=consumer.oldest or Position(run.ledger_id, run.first),
            )
            if consumer.consumer.consumer_id == open_range.owner
            else consumer
            for consumer in facts.consumers
        ]
        return facts._replace(consumers=tuple(consumers), read=Position(*command.read))

    def _is_there(self) -> bool:
        """Whether the subscription exists; then the replica is up to date."""
        if self._is_current():
            return True
        is_there = self._catch_up()
        journal = self._journal
        if journal is not None and journal.damage:
            # Without the lock: the control words may have been those of a moment before it was made.
            self.close()
            is_there = self._catch_up()
            journal = self._journal
        if journal is None or not (journal.damage or journal.is_behind):
            return is_there
        self._complete()
        for damage in journal.damage:
            self._report(damage._replace(subscription=self._replica.state.name))
        return True

    def _is_current(self) -> bool:
        """Whether the files are those of the last look, and nothing was committed since."""
        control = self._control
        return (
            self._followed != 0
            and control is not None
            and control.words[SubscriptionWord.JOURNAL] == self._followed
            and control.is_trusted(self._boot)
            and _is_named(control)
        )

    def _catch_up(self) -> bool:
        self._followed = 0
        journal = self._opened()
        if journal is None:
            return False
        control = self._control
        is_trusted = control is not None and control.is_trusted(self._boot)
        if control is not None and not is_trusted:
            control.reload()  # another process may have recovered the words
            is_trusted = control.is_trusted(self._boot)
        is_trusted = is_trusted and control is not None and control.is_possible()
        if control is not None and is_trusted and is_word_damaged(self._directory, control):
            is_trusted = False
        is_known = is_volatile(self._directory) or (control is not None and control.is_word_known)
        is_there = journal.refresh(is_trusted=is_trusted, is_word_known=is_known)
        if self._replica.has_diverged:
            journal.read_again()
            is_there = journal.refresh(is_trusted=is_trusted, is_word_known=is_known)
        is_there = is_there and self._replica.state.exists
        if is_there and is_trusted and not (journal.damage or self._replica.has_diverged):
            self._followed = journal.followed
        return is_there

    def _complete(self) -> None:
        """Show a damaged subscription as it will be when it is opened, and until then as holding the log back
        from there."""
        control, replica = self._control, self._replica
        known = None if control is None else words_position(control, control.words[SubscriptionWord.JOURNAL])
        if not complete(replica, self._directory, "", known, 0):
            name = os.path.basename(self._directory)
            replica.apply(record.Create(name, 1, *(known or BEFORE_FIRST)))

    def _opened(self) -> JournalView | None:
        """The journal of the subscription that is in the directory now; it may be another than before."""
        if self._control is not None and _is_named(self._control):
            return self._journal
        self.close()
        try:
            self._control = SubscriptionControl.open(self._directory, writable=False)
            words = self._control.words
        except (FileNotFoundError, NotADirectoryError, CorruptionError):
            if not os.path.isdir(self._directory):
                return None
            words = memoryview(bytes(SUBSCRIPTION_CONTROL_SIZE)).cast("Q")  # lost: the files know
        self._replica = SubscriptionReplica()
        place = JournalPlace(
            self._directory,
            words,
            SubscriptionWord.JOURNAL,
            KIND_SUBSCRIPTION,
            leap_word=SubscriptionWord.SUMMARY,
        )
        self._journal = JournalView(place, self._replica)
        return self._journal

    def close(self) -> None:
        """Give the map back. Idempotent; another look maps it again."""
        try:
            timing.enter(self._lock, f"a look at {self._directory}")
            control, self._control, self._journal, self._followed = self._control, None, None, 0
            if control is not None:
                control.close()
        finally:
            self._lock.release()


def _is_named(control: SubscriptionControl) -> bool:
    """Whether the path of the control words leads to them."""
    try:
        return os.stat(control.path).st_ino == control.identity
    except (FileNotFoundError, NotADirectoryError):
        return False


def _facts_of(
    state: SubscriptionState, control: SubscriptionControl | None, is_alive: Callable[[bytes], bool]
) -> SubscriptionFacts:
    """Everything of interest. The words of consumers are those of ``control``, of which a damaged
    subscription may have none."""
    attached = state.consumers
    consumers = attached.all()
    lives = {consumer.client_uuid: True for consumer in consumers}
    for uuid in lives:  # consumers of one process are asked about once
        lives[uuid] = is_alive(uuid)
    living = [consumer for consumer in consumers if lives[consumer.client_uuid]]
    if len(living) < len(consumers):
        attached = ConsumerRegistry()
        for consumer in living:
            attached.add(consumer)
    dispatcher = ACTIVE_DISPATCHERS.get(living[0].consumer_type) if living else None
    active = None if dispatcher is None else attached.get(dispatcher.active(attached))
    granted: Facts = {} if control is None or not living else Granted(control, state.consumers)
    given = sent_before = made_ms = 0
    if control is not None and (made_ms := control.words[_MADE_MS]):  # of a non-persistent topic
        sent_before, given = control.words[_SENT_BEFORE], control.given()
    dispatch = state.dispatch
    return SubscriptionFacts(
        name=state.name,
        acknowledged=acknowledged_in(state),
        consumers=tuple([_consumer_facts(state, control, granted, consumer) for consumer in living]),
        active=None if active is None else active.name,
        delayed=dispatch.pending.totals[DELAYED],
        is_blocked=dispatch.is_blocked,
        read=dispatch.read if dispatch.assigned_by_consumer else None,
        last_active_ms=state.last_active_ms,
        expired=state.expired,
        given=given,
        sent_before=sent_before,
        made_ms=made_ms,
        transactions=pending_transactions(state),
    )


def _consumer_facts(
    state: SubscriptionState, control: SubscriptionControl | None, granted: Facts, consumer: Consumer
) -> ConsumerFacts:
    acked_ms = 0 if control is None else _acked_ms(control, consumer)
    assigned = state.dispatch.assigned_by_consumer.get(consumer.consumer_id)
    if assigned is None:
        return ConsumerFacts(consumer, 0, False, None, None, acked_ms=acked_ms)
    permits = max(0, granted.get(consumer.consumer_id, 0) - assigned.messages)
    held = state.dispatch.holds(consumer.consumer_id)
    # Among all that it holds: its ranges are only those that its application was not given yet.
    first = state.dispatch.pending.first_of(assigned.code)
    oldest = None if first is None else Position(*first)
    return ConsumerFacts(consumer, held, assigned.is_blocked, permits, assigned.messages, oldest, acked_ms)


def _acked_ms(control: SubscriptionControl, consumer: Consumer) -> int:
    """When a consumer last acknowledged, by the words; not what an earlier one with its code did."""
    acked_ms = control.acked_ms(consumer.code, consumer.consumer_id)
    return acked_ms if acked_ms >= consumer.attached_ms else 0
