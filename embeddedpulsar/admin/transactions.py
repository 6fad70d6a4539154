"""Transactions of a store, as an operator sees them: which are open, what they hold up, and their ends."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from embeddedpulsar._engine.filenames import TRANSACTIONS, journal_path, subscriptions_path
from embeddedpulsar._engine.format import transaction_record as record
from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.platform import descriptors, timing
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.platform.peers import ProcessFacts, lease_holders
from embeddedpulsar._engine.store import root_layout
from embeddedpulsar._engine.store.topic_access import SaysWhatThereIs, TopicAccess
from embeddedpulsar._engine.store.topic_lookup import TopicAtRest, made_topics
from embeddedpulsar.admin.topic_figures import internal_stats
from embeddedpulsar.admin.topic_stats import (
    LedgerInfo,
    PositionInPendingAckStats,
    PreparedTransactionInfo,
    TopicInternalStats,
    TransactionBufferStats,
    TransactionCoordinatorInfo,
    TransactionCoordinatorStats,
    TransactionInBufferStats,
    TransactionInPendingAckStats,
    TransactionLogStats,
    TransactionMetadata,
    TransactionPendingAckStats,
)
from embeddedpulsar.exceptions import (
    LockTimeout,
    NotAllowedError,
    SubscriptionNotFound,
    TopicNotFound,
    TransactionCoordinatorNotFoundError,
    TransactionNotFound,
)
from embeddedpulsar.message_id import Position
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic_name import TopicName, subscription_directory_name

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar._engine.store.topic import Topic
    from embeddedpulsar._engine.subscription.log_queries import PendingTransaction
    from embeddedpulsar._engine.subscription.subscription_view import SubscriptionView
    from embeddedpulsar._engine.txn.transaction_state import OpenTransaction
    from embeddedpulsar._engine.txn.transaction_view import TransactionView

COORDINATOR: Final = 0
"""There is one: the transaction log of the store."""
READY: Final = "Ready"
_UNUSED: Final = "None"
_TEXT: Final = re.compile(r"\((\d+), ?(\d+)\)")
_UNSAID: Final = ProcessFacts()
_STATUSES: Final = {"FREE": "OPEN", "ENDING": "COMMITTING", "DECIDED": "COMMITTING"}
PREPARED: Final = "PREPARED"

R = TypeVar("R")
TransactionId = Any
"""A pair of numbers, the most significant first; or ``str`` of it, as ``(0,17)``."""


def text_of(txn_id: int) -> str:
    """How an id is written.

    Example:
        >>> text_of(17)
        '(0,17)'
    """
    return f"({COORDINATOR},{txn_id})"


def number_of(txn_id: TransactionId) -> int:
    """The second number of an id, which is unique in a store.

    Raises:
        ValueError: it is no id.
        TransactionCoordinatorNotFoundError: it is one of another coordinator.

    Example:
        >>> number_of((0, 17)), number_of("(0,17)")
        (17, 17)
    """
    parsed = _TEXT.fullmatch(str(txn_id).strip())
    if parsed is None:
        raise ValueError(f"{txn_id!r} is no id of a transaction; write it as (0,17)")
    check_coordinator(int(parsed[1]))
    return int(parsed[2])


def check_coordinator(coordinator_id: int) -> None:
    """Raise `TransactionCoordinatorNotFoundError` for any but 0."""
    if coordinator_id != COORDINATOR:
        raise TransactionCoordinatorNotFoundError(
            f"there is no transaction coordinator {coordinator_id}: a store has one, which is {COORDINATOR}"
        )


class _Operations(NamedTuple):
    """Where open transactions did something: topics and subscriptions, by id."""

    produced: dict[int, dict[str, TransactionInBufferStats]]
    acked: dict[int, dict[str, dict[str, TransactionInPendingAckStats]]]


class Transactions(SaysWhatThereIs):
    """Shows the transactions of a store and what they hold up, and ends them. `Admin.transactions` returns
    it.

    Readers stop before what an open transaction stored. So one that is forgotten holds a topic up until its
    timeout; one that is prepared, until it is ended. There is no coordinator process: that with the id 0
    is the transaction log of the store. An id is a pair of numbers, or the text ``(0,17)``.

    Methods that only look see the whole store, whatever process uses it, change nothing, and wait for no
    lock. Thread-safe. All methods raise `AlreadyClosed` if the Admin is closed, `ValueError` for what is no
    id, and a `StorageError` if files cannot be used; those with a topic raise `TopicNotFound` if there is
    none, and `NotAllowedError` for one that is partitioned: ask for its partitions.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._access = TopicAccess(store)

    # -- all transactions --------------------------------------------------------------------------

    def list_transaction_coordinators(self) -> list[TransactionCoordinatorInfo]:
        """Return the coordinators: one.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     [each.id for each in admin.transactions().list_transaction_coordinators()]
            [0]
        """
        return [TransactionCoordinatorInfo(COORDINATOR, self._store().root)]

    def get_coordinator_stats(self) -> dict[int, TransactionCoordinatorStats]:
        """Return the numbers of transactions, by coordinator."""
        return {COORDINATOR: self.get_coordinator_stats_by_id(COORDINATOR)}

    def get_coordinator_stats_by_id(self, coordinator_id: int) -> TransactionCoordinatorStats:
        """Return the numbers of transactions.

        Raises:
            TransactionCoordinatorNotFoundError: the id is not 0.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.transactions().get_coordinator_stats_by_id(0).state
            'Ready'
        """
        check_coordinator(coordinator_id)
        with self._looking() as view:
            opened = view.open_transactions()
            prepared = len(view.prepared())
            lowest = min([each.txn_id for each in opened], default=max(view.next_id, 1))
            unlisted = prepared - sum(each.state.name == PREPARED for each in opened)
            return TransactionCoordinatorStats(
                READY,
                max(view.next_id - 1, 0),
                lowest - 1,
                len(opened) + max(unlisted, 0),
                0,
                0,
                prepared,
                *view.counted(),
            )

    def get_slow_transactions(self, timeout_ms: int) -> dict[str, TransactionMetadata]:
        """Return the transactions that have been open for at least so many ms, by id, the oldest first.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.transactions().get_slow_transactions(10_000)
            {}
        """
        with self._looking() as view:
            now_ms = self._store().clock.wall_ms()
            slow = [each for each in view.open_transactions() if now_ms - each.started_ms >= timeout_ms]
            slow.sort(key=lambda each: (each.started_ms, each.txn_id))
            operations = self._find(view, {each.txn_id for each in slow})
            holders = self._holders()
            return {text_of(each.txn_id): self._metadata_of(view, each, operations, holders) for each in slow}

    def get_slow_transactions_by_coordinator_id(
        self, coordinator_id: int, timeout_ms: int
    ) -> dict[str, TransactionMetadata]:
        """As `get_slow_transactions`. Raises `TransactionCoordinatorNotFoundError`, if the id is not 0."""
        check_coordinator(coordinator_id)
        return self.get_slow_transactions(timeout_ms)

    def get_transaction_metadata(self, txn_id: TransactionId) -> TransactionMetadata:
        """Return what is known of a transaction, also of one that ended not long ago.

        Raises:
            TransactionNotFound: there never was one of that id, or it ended long ago.
        """
        number = number_of(txn_id)
        with self._looking() as view:
            for each in view.open_transactions():
                if each.txn_id == number:
                    return self._metadata_of(view, each, self._find(view, {number}), self._holders())
            for prepared in view.prepared():  # its slot is not filled yet, or the words are not believed
                if prepared.txn_id == number:
                    return self._ended(view, number, PREPARED, prepared.participants)._replace(
                        open_timestamp=prepared.prepared_ms,
                        timeout_at=prepared.deadline_ms,
                        label=prepared.label,
                    )
            if not view.lowest <= number < view.next_id or not number:
                raise TransactionNotFound(
                    f"there is no transaction {text_of(number)}: none was begun with that id, or it ended "
                    "long ago"
                )
            outcome = view.outcome(number)
            commits = [each for each in view.commits() if each.txn_id == number]
            participants = commits[-1].participants if commits else ()
            return self._ended(view, number, outcome.name, participants)

    def abort_transaction(self, txn_id: TransactionId) -> None:
        """Abort a transaction of any process, also one that is prepared: what it stored is never delivered,
        and what it acknowledged is delivered again. Of one that was aborted: nothing happens.

        The program that prepared one may have told others that it is committed. So end that by its
        label, with what decides about it, if you can.

        Raises:
            TransactionNotFound: there never was one of that id, or it ended long ago.
            InvalidTxnStatusError: it is committed.
        """
        with timing.translated:
            store, number = self._store(), number_of(txn_id)
            store.check_writable()
            log = store.transactions.existing()
            if log is None:
                raise TransactionNotFound(
                    f"there is no transaction {text_of(number)}: the store never had any"
                )
            acked = self._acked_by(number)
            log.abort(number)
            self._catch_up_subscriptions(acked)

    def scale_transaction_coordinators(self, replicas: int) -> None:
        """Raises `NotAllowedError`: there is one coordinator, a journal that all processes write."""
        raise NotAllowedError(
            f"a store cannot have {replicas} transaction coordinators: it has one, a journal that all "
            "processes write, which needs no others to share its work with"
        )

    # -- prepared transactions ---------------------------------------------------------------------

    def get_prepared_transactions(self) -> list[PreparedTransactionInfo]:
        """Return the transactions that wait for an end that any process may give, by id. Not in Pulsar.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.transactions().get_prepared_transactions()
            []
        """
        with self._looking() as view:
            names = self._names()
            infos = []
            for each in view.prepared():
                produced, acked = self._named(names, each.participants)
                entries = {name: facts.operations for name, facts in produced.items()}
                by_topic = {name: tuple(sorted(subscriptions)) for name, subscriptions in acked.items()}
                infos.append(
                    PreparedTransactionInfo(
                        text_of(each.txn_id),
                        each.label,
                        each.prepared_ms,
                        each.deadline_ms,
                        entries,
                        by_topic,
                    )
                )
            return infos

    def commit_prepared_transaction(self, txn_id: TransactionId) -> None:
        """Commit a transaction that is prepared, in the place of the program that prepared it. Not in Pulsar.

        Raises:
            TransactionNotFound: none of that id is prepared.
        """
        with timing.translated:
            store, number = self._store(), number_of(txn_id)
            store.check_writable()
            with late_imports():
                from embeddedpulsar._engine.txn.transaction import Transaction
            log = store.transactions.existing()
            for prepared in [] if log is None else log.prepared():
                if log is not None and prepared.txn_id == number:
                    acked = self._acked_by(number)
                    Transaction.resume(log, prepared).commit()
                    self._catch_up_subscriptions(acked)
                    return
            raise TransactionNotFound(f"no transaction {text_of(number)} is prepared")

    # -- topics ------------------------------------------------------------------------------------

    def get_transaction_buffer_stats(
        self, topic: str, low_water_marks: bool = False
    ) -> TransactionBufferStats:
        """Return the transactions that stored something in a topic, counted. Reads the entries of those that
        are not folded.

        Args:
            topic: its name.
            low_water_marks: whether these are returned, too.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("ledgers")
            ...     admin.transactions().get_transaction_buffer_stats("ledgers").ongoing_txn_size
            0
        """

        def body(used: Topic | None) -> TransactionBufferStats:
            # Three cases: never used, a store without transactions, and the rest.
            facts = None if used is None else used.view.transactions()
            if facts is None:
                last = None if used is None else used.ledger.last_position()
                return TransactionBufferStats(READY, _position(last), 0, 0, 0, 0)
            return TransactionBufferStats(
                READY,
                _position(facts.readable),
                len(facts.opened),
                facts.aborted,
                facts.committed,
                facts.folded_ms,
            )

        stats = self._access.inspect(topic, body)
        return stats._replace(low_water_marks=self._low_water_marks(low_water_marks))

    def get_transaction_in_buffer_stats(self, txn_id: TransactionId, topic: str) -> TransactionInBufferStats:
        """Return what a transaction stored in a topic. Reads the entries of transactions until it finds one.

        Raises:
            TransactionNotFound: it stored nothing there that is retained.
        """
        number = number_of(txn_id)

        def body(used: Topic | None) -> TransactionInBufferStats:
            first = None if used is None else used.view.find_transaction(number)
            if used is None or first is None:
                raise TransactionNotFound(
                    f"{text_of(number)} has stored nothing in {TopicName.parse(topic).full} that is retained"
                )
            return TransactionInBufferStats(_position(first), self._is_aborted(used, number))

        return self._access.inspect(topic, body)

    def get_transaction_buffer_internal_stats(self, topic: str) -> TransactionLogStats:
        """Return where the outcomes are that were folded into a topic: its ledgers and its directory."""

        def body(used: Topic | None) -> TransactionLogStats:
            name = "" if used is None else used.directory
            return TransactionLogStats(name, internal_stats(used))

        return self._access.inspect(topic, body)

    # -- subscriptions -----------------------------------------------------------------------------

    def get_pending_ack_stats(
        self, topic: str, subscription: str, low_water_marks: bool = False
    ) -> TransactionPendingAckStats:
        """Return what open transactions acknowledged in a durable subscription.

        Args:
            topic: its name.
            subscription: its name.
            low_water_marks: whether these are returned, too.

        Raises:
            SubscriptionNotFound: there is no such subscription.
        """

        def body(view: SubscriptionView) -> TransactionPendingAckStats:
            pending = _pending_of(view)
            was_used = view.read_state(
                lambda state: state.pending_acks.committed + state.pending_acks.aborted
            )
            return TransactionPendingAckStats(
                READY if pending or was_used else _UNUSED,
                len(pending),
                transactions={_text_of_pair(each.transaction): _in_pending(each) for each in pending},
            )

        stats = self._inspect_subscription(topic, subscription, body)
        return stats._replace(low_water_marks=self._low_water_marks(low_water_marks))

    def get_transaction_in_pending_ack_stats(
        self, txn_id: TransactionId, topic: str, subscription: str
    ) -> TransactionInPendingAckStats:
        """Return what an open transaction acknowledged in a durable subscription.

        Raises:
            TransactionNotFound: it acknowledged nothing there, or has ended.
            SubscriptionNotFound: there is no such subscription.
        """
        text = text_of(number_of(txn_id))
        transactions = self.get_pending_ack_stats(topic, subscription).transactions
        if text not in transactions:
            raise TransactionNotFound(
                f"{text} has acknowledged nothing in {subscription!r} of {topic}, or has ended"
            )
        return transactions[text]

    def get_position_stats_in_pending_ack(
        self, topic: str, subscription: str, ledger_id: int, entry_id: int, batch_index: int | None = None
    ) -> PositionInPendingAckStats:
        """Return what an entry, or one message of it, is to the open transactions of a durable subscription.

        Args:
            topic: its name.
            subscription: its name.
            ledger_id, entry_id: of the entry.
            batch_index: of a message of a batch; None for the entry.

        Raises:
            SubscriptionNotFound: there is no such subscription.
        """
        position = Position(ledger_id, entry_id)

        # An entry that the topic does not have is nothing to any subscription, so the log is asked first.
        def body(view: SubscriptionView) -> PositionInPendingAckStats:
            state = view.read_state(lambda state: _state_of(state, position, batch_index))
            return PositionInPendingAckStats(state or "NotInPendingAck")

        def exists(used: Topic | None) -> bool:
            ledgers = {} if used is None else dict(used.ledger.ledgers())
            last = None if used is None else used.ledger.last_position()
            if last is not None and last.ledger_id == ledger_id:
                return 0 <= entry_id <= last.entry_id
            return 0 <= entry_id < ledgers.get(ledger_id, 0)

        if not self._access.inspect(topic, exists):
            self._inspect_subscription(topic, subscription, lambda view: None)
            return PositionInPendingAckStats("InvalidPosition")
        return self._inspect_subscription(topic, subscription, body)

    def get_pending_ack_internal_stats(self, topic: str, subscription: str) -> TransactionLogStats:
        """Return where the acknowledgements of open transactions are: in the journal of the subscription.

        Raises:
            SubscriptionNotFound: there is no such subscription.
        """

        def body(used: Topic | None) -> TransactionLogStats:
            if used is None:
                raise SubscriptionNotFound(f"{topic} has no subscription {subscription!r}")
            used.view.subscription(subscription)  # raises if there is none
            path = subscriptions_path(used.directory)
            return _journal_stats(os.path.join(path, subscription_directory_name(subscription)))

        return self._access.inspect(topic, body)

    def get_coordinator_internal_stats(self, coordinator_id: int) -> TransactionLogStats:
        """Return the files of the transaction log.

        Raises:
            TransactionCoordinatorNotFoundError: the id is not 0.
        """
        check_coordinator(coordinator_id)
        return _journal_stats(os.path.join(self._store().root, TRANSACTIONS))

    # -- looking -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _looking(self) -> Iterator[TransactionView]:
        with timing.translated:
            view = self._store().transactions.open_view()
            try:
                yield view
            finally:
                view.close()

    def _acked_by(self, number: int) -> list[tuple[str, str]]:
        """The subscriptions that an open transaction acknowledged something in, as topic and name."""
        with self._looking() as view:
            acked = self._find(view, {number}).acked.get(number, {})
        return [(topic, name) for topic, names in acked.items() for name in names]

    def _catch_up_subscriptions(self, subscriptions: list[tuple[str, str]]) -> None:
        """Have subscriptions follow a transaction that has ended, and wake their consumers. The next process
        that comes there would do so as well."""
        for topic, name in subscriptions:
            with contextlib.suppress(TopicNotFound, SubscriptionNotFound, LockTimeout):
                self._access.in_each(topic, name, lambda _, cursor: cursor.pending_transactions())

    def _low_water_marks(self, are_wanted: bool) -> dict[int, int] | None:
        if not are_wanted:
            return None
        return {COORDINATOR: self.get_coordinator_stats_by_id(COORDINATOR).low_water_mark}

    def _holders(self) -> dict[bytes, ProcessFacts]:
        store = self._store()
        return lease_holders(root_layout.in_root(store.root, root_layout.CLIENTS), store.peers.is_alive)

    def _inspect_subscription(self, topic: str, name: str, body: Callable[[SubscriptionView], R]) -> R:
        def in_topic(used: Topic | None) -> R:
            if used is None:
                raise SubscriptionNotFound(f"{TopicName.parse(topic).full} has no subscription {name!r}")
            return body(used.view.subscription(name))

        return self._access.inspect(topic, in_topic)

    def _is_aborted(self, topic: Topic, number: int) -> bool:
        with late_imports():
            from embeddedpulsar._engine.store.topic_transactions import FoldedTransactions
            from embeddedpulsar._engine.txn.transaction_state import Outcome
        outcome = self._store().transactions.outcome(number)
        if outcome is Outcome.FOLDED:
            return number in FoldedTransactions.read(topic.directory).ids()
        return outcome is Outcome.ABORTED

    def _find(self, view: TransactionView, wanted: set[int]) -> _Operations:
        """What open transactions did. Opens the topics in which any may have done something."""
        operations = _Operations({}, {})
        if not wanted:
            return operations
        prepared = {each.txn_id: each for each in view.prepared() if each.txn_id in wanted}
        if prepared:
            names = self._names()
            for txn_id, each in prepared.items():
                produced, acked = self._named(names, each.participants)
                operations.produced[txn_id] = {name: _in_buffer(facts) for name, facts in produced.items()}
                operations.acked[txn_id] = acked
        if wanted - set(prepared):
            for topic in made_topics(self._store().root):
                self._find_in(topic, wanted - set(prepared), operations)
        return operations

    def _find_in(self, at_rest: TopicAtRest, wanted: set[int], operations: _Operations) -> None:
        with late_imports():
            from embeddedpulsar._engine.store.topic_transactions import may_have_pending
        place = subscriptions_path(at_rest.directory)
        with contextlib.suppress(FileNotFoundError, TopicNotFound):  # it was deleted meanwhile
            words = at_rest.words()
            first = int.from_bytes(words[8 * TopicWord.FIRST_OPEN_TXN :][:8], "little")
            names = descriptors.names_in(place) if os.path.isdir(place) else []
            has_pending = any(may_have_pending(os.path.join(place, name)) for name in names)
            if not first and not has_pending:
                return

            def body(used: Topic | None) -> None:
                if used is None:
                    return
                stored = used.view.transactions() if first else None
                for txn_id, position in () if stored is None else stored.opened:
                    if txn_id in wanted:
                        stats = TransactionInBufferStats(_position(position), False)
                        operations.produced.setdefault(txn_id, {})[at_rest.name] = stats
                for facts, _ in used.view.subscriptions() if has_pending else ():
                    for pending in facts.transactions:
                        if pending.transaction[1] in wanted:
                            by_topic = operations.acked.setdefault(pending.transaction[1], {})
                            by_topic.setdefault(at_rest.name, {})[facts.name] = _in_pending(pending)

            self._access.inspect(at_rest.name, body)

    def _metadata_of(
        self,
        view: TransactionView,
        transaction: OpenTransaction,
        operations: _Operations,
        holders: dict[bytes, ProcessFacts],
    ) -> TransactionMetadata:
        number, left_ms, now_ms = transaction.txn_id, view.left_ms(transaction), self._store().clock.wall_ms()
        process = holders.get(transaction.owner, _UNSAID)
        is_prepared = transaction.state.name == PREPARED
        pid = 0 if is_prepared else process.pid or transaction.pid
        outcome = view.outcome(number).name
        status = _STATUSES.get(transaction.state.name, transaction.state.name)
        labels = [each.label for each in view.prepared() if each.txn_id == number]
        return TransactionMetadata(
            text_of(number),
            transaction.started_ms,
            0 if left_ms is None else now_ms + left_ms,
            # What no process can go on with is aborted by the next that looks, and may write.
            "ABORTING" if outcome == "ABORTED" else "COMMITTING" if outcome == "COMMITTED" else status,
            f"pid {pid} {process.program}".rstrip() if pid else "",
            operations.produced.get(number, {}),
            operations.acked.get(number, {}),
            labels[0] if labels else transaction.label,
            pid,
            process.program,
            None if is_prepared else transaction.owner in holders,
            transaction.joined,
        )

    def _ended(
        self,
        view: TransactionView,
        number: int,
        status: str,
        participants: tuple[record.ParticipantFacts, ...],
    ) -> TransactionMetadata:
        produced, acked = self._named(self._names(), participants) if participants else ({}, {})
        buffers = {name: _in_buffer(facts) for name, facts in produced.items()}
        return TransactionMetadata(text_of(number), 0, 0, status, "", buffers, acked)

    def _names(self) -> dict[str, TopicAtRest]:
        """The topics by their directories, as participants are named."""
        topics = root_layout.in_root(self._store().root, root_layout.TOPICS)
        return {os.path.relpath(topic.directory, topics): topic for topic in made_topics(self._store().root)}

    def _named(
        self, names: dict[str, TopicAtRest], participants: tuple[record.ParticipantFacts, ...]
    ) -> tuple[dict[str, record.ParticipantFacts], dict[str, dict[str, TransactionInPendingAckStats]]]:
        """The topics and subscriptions among participants; those that were deleted are left out."""
        produced: dict[str, record.ParticipantFacts] = {}
        acked: dict[str, dict[str, TransactionInPendingAckStats]] = {}
        for facts in participants:
            directory, _, below = facts.name.partition(f"{os.sep}{_SUBSCRIPTIONS}{os.sep}")
            topic = names.get(directory)
            if topic is None:
                continue
            if facts.kind == record.TOPIC:
                produced[topic.name] = facts
                continue
            name = self._subscription_named(topic.name, below)
            if name:
                stats = TransactionInPendingAckStats(None, facts.operations, 0)
                acked.setdefault(topic.name, {})[name] = stats
        return produced, acked

    def _subscription_named(self, topic: str, directory: str) -> str:
        def body(used: Topic | None) -> str:
            names = [] if used is None else [facts.name for facts, _ in used.view.subscriptions()]
            return next((name for name in names if subscription_directory_name(name) == directory), "")

        return self._access.inspect(topic, body)


_SUBSCRIPTIONS: Final = os.path.basename(subscriptions_path(""))


def _position(position: Position | None) -> str:
    return "-1:-1" if position is None else str(position)


def _in_buffer(facts: record.ParticipantFacts) -> TransactionInBufferStats:
    return TransactionInBufferStats(f"{facts.first >> 32}:{facts.first & 0xFFFFFFFF}", False)


def _in_pending(pending: PendingTransaction) -> TransactionInPendingAckStats:
    through = pending.through
    position = None if through is None else f"{through.ledger_id}:{through.entry_id}"
    return TransactionInPendingAckStats(position, pending.entries, pending.batches)


def _text_of_pair(pair: tuple[int, int]) -> str:
    return f"({pair[0]},{pair[1]})"


def _pending_of(view: SubscriptionView) -> tuple[PendingTransaction, ...]:
    with late_imports():
        from embeddedpulsar._engine.subscription.log_queries import pending_transactions
    return view.read_state(pending_transactions) or ()


def _state_of(state: Any, position: Position, batch_index: int | None) -> str:
    """See `PositionInPendingAckStats`."""
    ledger_id, entry_id = position
    acked = state.acks.indexes(position)
    if state.acks.is_acked(position) or (batch_index is not None and acked >> batch_index & 1):
        return "MarkDelete"
    for pending in state.pending_acks.transactions.values():
        bits, _ = pending.batches.get(ledger_id, {}).get(entry_id, (0, 0))
        is_in_batch = bool(bits) if batch_index is None else bool(bits >> batch_index & 1)
        through = pending.through
        is_through = through is not None and position <= (through.ledger_id, through.entry_id)
        if is_in_batch or is_through or entry_id in pending.entries.get(ledger_id, ()):
            return "PendingAck"
    return "NotInPendingAck"


def _journal_stats(directory: str) -> TransactionLogStats:
    with late_imports():
        from embeddedpulsar._engine.store.topic_transactions import journal_figures
    ledgers = [LedgerInfo(*figures) for figures in journal_figures(directory)]
    last = ledgers[-1] if ledgers else LedgerInfo(-1, 0, 0)
    path = journal_path(directory, max(last.ledger_id, 0))
    total = sum(ledger.entries for ledger in ledgers)
    return TransactionLogStats(
        path,
        TopicInternalStats(
            total,
            total,
            sum(ledger.size for ledger in ledgers),
            last.entries,
            last.size,
            f"{last.ledger_id}:{last.entries - 1}",
            "LedgerOpened",
            tuple(ledgers),
            {},
        ),
    )
