"""Transactions, as an application has them; and what a producer or a consumer does in one."""

from __future__ import annotations

from functools import partial

from embeddedpulsar._engine.format.entry_decoder import TRANSACTION
from embeddedpulsar._engine.format.transaction_record import SUBSCRIPTION, TOPIC, ParticipantFacts
from embeddedpulsar._engine.platform import failpoints, timing
from embeddedpulsar._engine.txn import transaction as engine
from embeddedpulsar._engine.txn import transaction_state
from embeddedpulsar._engine.txn.transaction import Participant, TransactionState
from embeddedpulsar._engine.txn.transaction_state import Outcome
from embeddedpulsar.client.arguments import check_type
from embeddedpulsar.client.client_context import ProcessBound
from embeddedpulsar.exceptions import (
    InvalidConfiguration,
    NotAllowedError,
    PulsarException,
    TransactionNotFound,
)
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple
from embeddedpulsar.topic_name import subscription_directory_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, Final, NoReturn

    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar._engine.store.topic import Topic
    from embeddedpulsar._engine.subscription.attachment.attachment import Attachment
    from embeddedpulsar._engine.subscription.subscription import Subscription
    from embeddedpulsar.client.client_context import ClientContext, PublisherLike

__all__ = [
    "JoinedTransaction",
    "PreparedTransaction",
    "Transaction",
    "TransactionState",
    "TxnID",
]

failpoints.declare("client_txn:sends_stored", "client_txn:committed")

_PATIENCE_S: Final = 1.0
_new: Final = tuple.__new__  # as a call of the class, without another one
_ENDED: Final = (TransactionState.COMMITTED, TransactionState.ABORTED, TransactionState.TIME_OUT)


class TxnID(NamedTuple):
    """The id of a transaction, unique in its store for ever.

    Attributes:
        most_sig_bits: the number of a coordinator, which a store has none of: 0.
        least_sig_bits: counts the transactions of the store, with gaps.

    Example:
        >>> str(TxnID(0, 17))
        '(0,17)'
    """

    most_sig_bits: int
    least_sig_bits: int

    def __str__(self) -> str:
        return f"({self.most_sig_bits},{self.least_sig_bits})"


class PreparedTransaction(NamedTuple):
    """A transaction that waits for its end, as `Client.prepared_transactions` lists it.

    Attributes:
        id: its id.
        label: as `Transaction.prepare` was given.
        prepared_ms: when, in ms since the epoch.
        deadline_ms: when it is aborted, in ms since the epoch; 0 for never.
    """

    id: TxnID
    label: str
    prepared_ms: int
    deadline_ms: int


class TopicPart:
    """What one producer does in one transaction.

    Role: the last item of each message of the transaction in the queue of the producer. It has the check that
    an append makes, the encoder that puts the id into entries, and what is noted of those that are stored.
    Callers: `note_stored` under the lock of the producer; the rest any thread.

    Attributes:
        transaction: the transaction.
        publisher: of the producer, for one topic or partition.
        txn_id: most and least significant half of the id.
        id_column: the same, as an entry of one message has it.
        check_open: raises if the transaction takes no more operations; called under the topic's lock.
        encoder: of its entries; made by the first of them, and of no use after the producer attached again.
        extras: what a message without options has beside its payload; made likewise.
        entries, first, last: how many are stored, and the positions of the first and the last, as
            `ParticipantFacts` has them.
        end_word: the tail word behind the last.
    """

    __slots__ = (
        "check_open",
        "encoder",
        "end_word",
        "entries",
        "extras",
        "first",
        "id_column",
        "key",
        "last",
        "ledger",
        "publisher",
        "transaction",
        "txn_id",
    )
    is_deferred = False  # its entries have an id, and the log calls `check_open`

    def __init__(
        self, transaction: Transaction, publisher: PublisherLike, key: tuple[int, int, str], ledger: Log
    ) -> None:
        self.transaction: Final = transaction
        self.publisher: Final = publisher
        self.txn_id: Final = (0, transaction._engine.id)
        self.id_column: Final = TRANSACTION.pack(*self.txn_id)
        self.check_open: Final = transaction._engine.check_open
        self.encoder: Any = None
        self.extras: Any = None
        self.key: Final = key
        self.ledger: Final = ledger
        self.entries = self.first = self.last = self.end_word = 0

    def note_stored(self, ledger: int, entry: int, end_word: int) -> None:
        """Note an entry; ``end_word`` is 0 if that is not known."""
        position = ledger << 32 | entry
        if not self.entries:
            self.first = position
        self.entries += 1
        self.last = position
        self.end_word = max(self.end_word, end_word)

    def fail(self, error: BaseException) -> None:
        """Note that a message was not stored: a commit becomes an abort."""
        self.transaction._engine.fail(error)

    def facts(self) -> ParticipantFacts:
        """What is stored, for the record of the commit."""
        all_parts = self.transaction._parts
        if len(all_parts) == 1 and self.entries:
            return _new(ParticipantFacts, (*self.key, self.entries, self.first, self.last, 0))
        parts = [part for part in all_parts.values() if part.key == self.key and part.entries]
        if not parts:
            return ParticipantFacts(*self.key)
        return ParticipantFacts(
            *self.key,
            sum(part.entries for part in parts),
            min(part.first for part in parts),
            max(part.last for part in parts),
        )

    def flush(self) -> None:
        """Make what is stored durable: one flush for the topic, shared with all that wait for one."""
        parts = self.transaction._parts.values()
        end_word = max((part.end_word for part in parts if part.key == self.key), default=0)
        if end_word:
            self.ledger.wait_durable(end_word)

    def drain(self) -> None:
        """Let appends end that have passed their check."""
        drain(self.ledger)

    def on_end(self, outcome: Outcome) -> None:
        """Note in the topic that it ended. Readers that sleep at an entry of it are rung already."""
        self.ledger.settle_transactions()


def drain(ledger: Log) -> None:
    """Take and release the lock of a topic."""
    try:
        ledger.lock.acquire(timing.left(timing.LONGEST_S))
    finally:
        ledger.lock.release()


class SubscriptionPart:
    """What the consumers of one subscription do in one transaction.

    Attributes:
        acknowledgements: how many calls acknowledged something.
    """

    __slots__ = ("_attachment", "_core", "acknowledgements", "key", "txn_id")

    def __init__(
        self,
        core: ClientContext,
        key: tuple[int, int, str],
        attachment: Attachment,
        txn_id: tuple[int, int],
    ) -> None:
        self._core: Final = core
        self.key: Final = key
        self.acknowledgements = 0
        self._attachment: Final = attachment
        self.txn_id: Final = txn_id

    def facts(self) -> ParticipantFacts:
        """How many there were, for the record of the commit."""
        return ParticipantFacts(*self.key, self.acknowledgements)

    def flush(self) -> None:
        """Make the acknowledgements durable."""
        self._attachment.sync()

    def drain(self) -> None:
        """Let acknowledgements end that have passed their check."""
        self._attachment.drain()

    def on_end(self, outcome: Outcome) -> None:
        """Have the subscription follow; the next that takes its lock would do the same."""
        if self._attachment.is_attached:
            self._attachment.follow_end(is_committed=outcome is Outcome.COMMITTED)
            return
        # The consumer has left, and another may wait for what is delivered again.
        participant = resolve(self._core, ParticipantFacts(*self.key))
        if participant is not None:
            participant.on_end(outcome)


class Transaction(ProcessBound):
    """Sends and acknowledgements of which all count, or none. Made by `Client.transaction`.

    As a context manager it commits at the end of the block, and aborts after an exception, Ctrl-C included.
    A block in which it was committed, aborted or prepared leaves it as it is.

    Consumers and readers see what was sent in it when it is committed: in all topics at once, in the places
    of the sends. Until then they stop before its first message. What was acknowledged in it no consumer gets
    until it ends, and again if it is aborted.

    Thread-safe. Only the process that began it commits it; others may take part, see `token`. A forked
    child's copy is dead. If the process dies, it is aborted; so it is by `Client.close`, and after its
    timeout.

    Durability: at level ``flush`` of the client, or of a producer that sent in it, all of it survives a power
    failure when `commit` has returned; its messages are flushed then, and not one by one.

    Example:
        >>> from embeddedpulsar import Client
        >>> with Client("memory://") as client:
        ...     orders, bills = client.create_producer("orders"), client.create_producer("bills")
        ...     consumer = client.subscribe("orders", "billing")
        ...     sent = orders.send(b"one tea")
        ...     with client.transaction() as txn:
        ...         sent = bills.send(b"2.50", txn=txn)
        ...         consumer.acknowledge(consumer.receive(), txn=txn)
        ...     str(txn.id), txn.state
        ('(0,1)', <TransactionState.COMMITTED: 'COMMITTED'>)
    """

    __slots__ = (
        "__weakref__",
        "_core",
        "_deferred",
        "_engine",
        "_flushes",
        "_is_known",
        "_is_left",
        "_parts",
        "_subscriptions",
    )

    _blocks = False  # whether an operation may wait for a lock, once the transaction has begun

    def __init__(self, core: ClientContext, own: engine.Transaction | engine.JoinedTransaction) -> None:
        self._core: Final = core
        self._engine: Final[Any] = own
        self._parts: Final[dict[PublisherLike, TopicPart]] = {}
        self._subscriptions: Final[dict[tuple[int, int, str], SubscriptionPart]] = {}
        self._flushes = core.config.durability == "flush"
        self._deferred: Any = None  # the `DeferredBatch` of what is sent, as long as nothing is stored
        self._is_known = False
        self._is_left = False  # ended or prepared by a call: the end of the block changes nothing

    # -- what producers and consumers do -----------------------------------------------------------------

    def _part_of(self, publisher: Any) -> TopicPart:
        """What a publisher does in this transaction, which its topic is made a part of. May begin it: not
        to be called under a lock of a topic.

        Raises:
            InvalidTxnStatusError: it has ended.
            NotAllowedError: the topic is non-persistent.
            ValueError: it is a transaction of another store.
        """
        part = self._parts.get(publisher)
        if part is not None and part.ledger is publisher.session.ledger:
            return part
        session = publisher.session
        if session.client.store is not self._core.store:
            self._refuse_store(session.client.store, session.topic_name)
        if session.ledger.is_volatile:
            raise NotAllowedError(
                f"{session.topic_name} is non-persistent, and keeps nothing that a transaction could undo; "
                "send without txn"
            )
        if not self._is_known:
            self._begin()
        self._engine.check_open()
        part = TopicPart(self, publisher, topic_key(session.topic), session.ledger)
        self._enlist(part)
        if session.durability == "flush":
            self._flushes = True
        self._parts[publisher] = part
        if self._deferred is not None and self._deferred.publisher is publisher:
            self._deferred = None  # later messages are queued behind it
        return part

    def _may_defer(self, session: Any) -> bool:
        """Whether a first message may wait for the commit, to be all that the transaction is.

        Not at level "flush", where a commit shows nothing that is not on the disk."""
        return (
            not (self._is_known or self._blocks or self._flushes or self._is_left or self._parts)
            and session.client.store is self._core.store
            and not session.ledger.is_volatile
            and self._engine.is_unbegun
        )

    def _acknowledging(self, session: Any) -> SubscriptionPart:
        """What the consumers of a subscription do in this transaction. As `_part_of`."""
        key = session.participant_key
        if key is None:
            key = subscription_key(session.topic, session.attachment.directory)
            session.participant_key = key
        part = self._subscriptions.get(key)
        if part is None:
            if session.client.store is not self._core.store:
                self._refuse_store(session.client.store, session.topic_name)
            if not self._is_known:
                self._begin()
            part = SubscriptionPart(session.client, key, session.attachment, (0, self._engine.id))
            self._enlist(part)
            self._subscriptions[key] = part
        self._engine.check_open()
        return part

    def _enlist(self, part: TopicPart | SubscriptionPart) -> None:
        if not self._engine.is_enlisted(part.key):
            participant = part.key, part.facts, part.flush, part.drain, part.on_end
            self._engine.enlist(_new(Participant, participant))

    def _begin(self) -> None:
        self._engine.id  # noqa: B018 - takes the slot
        if not self._is_known:
            self._is_known = True
            self._core.know_transaction(self)

    def _refuse_store(self, store: Store, topic: str) -> NoReturn:
        raise ValueError(
            f"the transaction is one of the store {self._core.store.root}, and {topic} is in {store.root}"
        )

    def _failed(self, error: BaseException) -> None:
        """An operation failed: a commit becomes an abort."""
        self._engine.fail(error)

    # -- looking -----------------------------------------------------------------------------------------

    @property
    def id(self) -> TxnID:
        """The id. The first look at it begins the transaction, if no operation did; or gives one to a
        transaction that was committed as a single batch, without any.

        Raises:
            InvalidTxnStatusError: it has ended before anything was done in it.
            NotAllowedError: too many transactions are open in the store.
        """
        if self._engine.is_appended:
            return TxnID(0, self._engine.id_of_appended())
        self._begin()
        return TxnID(0, self._engine.id)

    @property
    def state(self) -> TransactionState:
        """How far it is, as the store says, also by what other processes did.

        After a call that did not answer, such as a commit that raised `LockTimeout`, it tells what became of
        the transaction.
        """
        state: TransactionState = self._engine.state
        return state

    @property
    def token(self) -> bytes:
        """What another process takes part with; see `Client.join_transaction`. Keep it to yourselves.

        Raises:
            InvalidTxnStatusError: it has ended.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client, client.transaction() as txn:
            ...     len(txn.token)
            40
        """
        self._begin()
        token: bytes = self._engine.token
        return token

    # -- ends --------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Make all of it count at once. Waits for what was sent in it by `Producer.send_async`.

        Of one that is committed: nothing happens. Never repeated by itself: after `LockTimeout` or
        `StorageError`, `state` tells, and it may be called again.

        Raises:
            TransactionHasOperationFailed: a send or an acknowledgement failed: it is aborted.
            TransactionTimeout: its timeout has passed: it is aborted.
            InvalidTxnStatusError: it was aborted, by a call or by an operator.
            LockTimeout: another process stayed in a lock.
            StorageError: the decision could not be written or flushed.
            AlreadyClosed: the client is closed, or it is the transaction of the parent of this process.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     txn = client.new_transaction()
            ...     message_id = client.create_producer("orders").send(b"one tea", txn=txn)
            ...     txn.commit()
            ...     txn.state.name
            'COMMITTED'
        """
        try:
            # Usually the locks that the one append needs are free, and no deadline is kept.
            if self._deferred is None or not self._commit_deferred(self._deferred, waits=False):
                timing.within(self._core.config.operation_timeout_s, self._commit)
        except BaseException as error:
            timing.translate(error)
            raise

    def _commit(self) -> None:
        if self._deferred is not None and self._commit_deferred(self._deferred, waits=True):
            return
        self._finish_sends()
        if failpoints.ACTIVE:
            failpoints.hit("client_txn:sends_stored")
        self._engine.commit(must_flush=True if self._flushes else None)
        if failpoints.ACTIVE:
            failpoints.hit("client_txn:committed")
        self._detach()

    def _commit_deferred(self, deferred: Any, *, waits: bool) -> bool:
        if self._is_known or not deferred.publisher.commit_deferred(deferred, waits=waits):
            return False
        if failpoints.ACTIVE:
            failpoints.hit("client_txn:committed")
        self._is_left, self._deferred = True, None
        return True

    def _finish_sends(self) -> None:
        """Store what is queued in this transaction; a failure is noted, and makes of the commit an abort."""
        publishers: list[Any] = list(self._parts)
        if self._deferred is not None and self._deferred.publisher not in self._parts:
            publishers.append(self._deferred.publisher)
        for publisher in publishers:
            queue = publisher.queue
            if queue.is_closed or not (queue.singles or queue.items):
                continue
            try:
                publisher.flush_all()
            except (PulsarException, OSError) as error:
                self._failed(error)

    def abort(self) -> None:
        """Undo all of it. Of one that is aborted, or timed out: nothing happens.

        What was acknowledged in it one by one is delivered again at once; what was acknowledged cumulatively
        when its consumer calls `Consumer.redeliver_unacknowledged_messages`, or another takes over.

        Raises:
            InvalidTxnStatusError: it is committed.
            LockTimeout: another process stayed in a lock; it is aborted at its timeout at the latest.
            AlreadyClosed: as for `commit`.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     txn = client.new_transaction()
            ...     message_id = client.create_producer("orders").send(b"one tea", txn=txn)
            ...     txn.abort()
            ...     client.subscribe("orders", "billing").receive_nowait(), txn.state.name
            (None, 'ABORTED')
        """
        with timing.translated:
            self._core.in_time(self._abort)

    def _abort(self) -> None:
        deferred = self._deferred
        if deferred is not None and not self._is_known and deferred.publisher.drop_deferred(deferred):
            self._is_left, self._deferred = True, None
            return
        # What is queued is stored first: its callbacks are called as for a commit. Only for a moment, for it
        # may as well fail.
        timing.within(_PATIENCE_S, self._finish_sends)
        self._engine.abort()
        self._detach()

    def prepare(self, label: str = "", *, deadline_ms: int = 0) -> PreparedTransaction:
        """Have it wait for `commit` or `abort`, by whatever process, also after a reboot: the first of two
        phases, of which the second follows a decision elsewhere, such as the commit of a database.

        Readers stop before its messages until it ends, so end it soon. It is durable when this returns, at
        every level. A process that lists it may have ended it by then; `state` tells.

        Args:
            label: what identifies it to those that end it; at most 4,096 bytes of UTF-8.
            deadline_ms: when it is aborted, in ms since the epoch; 0 for never.

        Returns:
            What `Client.prepared_transactions` lists, and `Client.resume_transaction` takes.

        Raises:
            ValueError: the label is too long, or an argument of a wrong type.
            Exception: any exception that `commit` raises.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     txn = client.new_transaction()
            ...     message_id = client.create_producer("orders").send(b"one tea", txn=txn)
            ...     prepared = txn.prepare("invoice-42")
            ...     client.resume_transaction(prepared).commit()
            ...     prepared.label, txn.state.name
            ('invoice-42', 'COMMITTED')
        """
        check_type(str, label, "label")
        check_type(int, deadline_ms, "deadline_ms")
        with timing.translated:
            return self._core.in_time(self._prepare, label, deadline_ms)

    def _prepare(self, label: str, deadline_ms: int) -> PreparedTransaction:
        self._finish_sends()
        prepared = self._engine.prepare(label, deadline_ms)
        self._detach()
        return shown(prepared)

    def _detach(self) -> None:
        self._is_left, self._deferred = True, None
        self._parts.clear()
        self._subscriptions.clear()
        self._core.forget_transaction(self)

    def _end_with_client(self) -> None:
        """The client is closed: abort what is open."""
        if self._engine.state in (TransactionState.OPEN, TransactionState.COMMITTING):
            self._engine.abort()

    @property
    def _is_over(self) -> bool:
        """Whether nothing of it is left to be ended."""
        return self._is_left or self._engine.state in _ENDED

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_left:
            return
        if kind is None:
            try:
                self._end_block()
            except PulsarException:
                raise
            except BaseException:  # Ctrl-C: it is not left open until its timeout
                self._abort_after_error()
                raise
        else:
            self._abort_after_error()

    def _end_block(self) -> None:
        self.commit()

    def _abort_after_error(self) -> None:
        """Abort; that it failed says less than the error that led here."""
        try:
            self.abort()
        except PulsarException as error:
            self._core.log.warning("%s could not be aborted, and ends at its timeout: %s", self, error)

    def __str__(self) -> str:
        return str(self._engine)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._engine} {self._engine.state.value}>"


class JoinedTransaction(Transaction):
    """A transaction that another process began, in which this one takes part. Made by
    `Client.join_transaction`.

    Its sends and acknowledgements are those of the transaction. The process that began it commits; it has to
    know, by means of the application, that the work here is done: that the ``with`` block has ended, or
    `JoinedTransaction.flush` has returned. After an exception the transaction is aborted for all.

    Example:
        >>> from embeddedpulsar import Client, MessageId
        >>> with Client("memory://joined") as client, Client("memory://joined") as worker:
        ...     with client.transaction() as txn:
        ...         with worker.join_transaction(txn.token) as joined:
        ...             message_id = worker.create_producer("orders").send(b"one tea", txn=joined)
        ...     client.create_reader("orders", MessageId.earliest).read_next().data()
        b'one tea'
    """

    __slots__ = ()
    _blocks = True

    @property
    def token(self) -> bytes:
        """The process that began the transaction has it.

        Raises:
            NotAllowedError: always.
        """
        raise NotAllowedError(f"the transaction {self} was begun by another process, which has the token")

    def flush(self) -> None:
        """Store what was sent in it by `Producer.send_async`.

        What cannot be stored makes of the commit an abort.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client, client.transaction() as txn:
            ...     joined = client.join_transaction(txn.token)
            ...     client.create_producer("orders").send_async(b"one tea", None, txn=joined)
            ...     joined.flush()
        """
        with timing.translated:
            self._core.in_time(self._finish_sends)

    def _begin(self) -> None:
        """It has an id."""

    def _commit(self) -> None:
        self._engine.commit()

    def prepare(self, label: str = "", *, deadline_ms: int = 0) -> PreparedTransaction:
        """Raise `NotAllowedError`: the process that began the transaction prepares it."""
        raise NotAllowedError(
            f"the transaction {self} was begun by another process, and only that one can prepare it"
        )

    def _detach(self) -> None:
        self._is_left = True

    def _end_block(self) -> None:
        self.flush()


def topic_key(topic: Topic) -> tuple[int, int, str]:
    """What names a topic among the participants of a transaction."""
    return TOPIC, topic.incarnation, topic.relative_directory


def subscription_key(topic: Topic, directory: str) -> tuple[int, int, str]:
    """What names a subscription there, given its directory."""
    return SUBSCRIPTION, topic.incarnation, topic.relative_directory + directory[len(topic.directory) :]


def shown(prepared: transaction_state.PreparedTransaction) -> PreparedTransaction:
    """A transaction of the log as applications see it."""
    return PreparedTransaction(
        TxnID(0, prepared.txn_id), prepared.label, prepared.prepared_ms, prepared.deadline_ms
    )


# -- what a client does ----------------------------------------------------------------------------------


def begin(core: ClientContext, timeout_ms: int, label: str) -> Transaction:
    """See `Client.new_transaction`."""
    check_type(int, timeout_ms, "timeout_ms")
    check_type(str, label, "label")
    _check_enabled(core)
    log = core.store.transactions.log()
    return Transaction(core, engine.Transaction(log, timeout_ms, label, partial(resolve, core)))


def _check_enabled(core: ClientContext) -> None:
    core.begin_operation()
    core.store.check_writable()
    if not core.store.settings.transactionCoordinatorEnabled:
        raise InvalidConfiguration(
            "transactions are not enabled: broker.conf of the store says transactionCoordinatorEnabled=false"
        )


def join(core: ClientContext, token: bytes) -> JoinedTransaction:
    """See `Client.join_transaction`."""
    check_type(bytes, token, "token")
    _check_enabled(core)
    return JoinedTransaction(core, engine.JoinedTransaction(core.store.transactions.log(), token))


def prepared_transactions(core: ClientContext) -> list[PreparedTransaction]:
    """See `Client.prepared_transactions`."""
    core.begin_operation()
    return [shown(each) for each in core.store.transactions.prepared()]


def resume(core: ClientContext, prepared: PreparedTransaction | TxnID) -> Transaction:
    """See `Client.resume_transaction`."""
    if not isinstance(prepared, PreparedTransaction | TxnID):
        raise TypeError(f"expected a PreparedTransaction or a TxnID, not {type(prepared).__name__}")
    _check_enabled(core)
    txn_id = prepared if isinstance(prepared, TxnID) else prepared.id
    transactions = core.store.transactions
    for each in transactions.prepared():
        if each.txn_id == txn_id.least_sig_bits:
            own = engine.Transaction.resume(transactions.log(), each, partial(resolve, core))
            return Transaction(core, own)
    raise TransactionNotFound(f"no transaction {txn_id} is prepared: it was ended, or never was")


def resolve(core: ClientContext, facts: ParticipantFacts) -> Participant | None:
    """A topic or subscription that another process used in a transaction, or that a prepared one has; None if
    it is gone."""
    entry = core.store.topics.of_incarnation(facts.incarnation)
    if entry is None:
        return None
    if facts.kind == TOPIC:
        on_topic = partial(_with_topic, core, entry.name)
        return Participant(
            facts.key,
            flush=lambda: on_topic(lambda topic: topic.ledger.sync()),
            drain=lambda: on_topic(lambda topic: drain(topic.ledger)),
            on_end=lambda outcome: on_topic(lambda topic: topic.ledger.settle_transactions()),
        )
    directory = facts.name.rpartition("/")[2]
    on_subscription = partial(_with_subscription, core, entry.name, directory)
    return Participant(
        facts.key,
        flush=lambda: on_subscription(lambda subscription: subscription.sync()),
        drain=lambda: on_subscription(lambda subscription: subscription.pending_transactions()),
        # It follows what has ended when it is looked at.
        on_end=lambda outcome: on_subscription(lambda subscription: subscription.pending_transactions()),
    )


def _with_topic(core: ClientContext, name: str, work: Callable[[Topic], object]) -> None:
    use = core.store.use_topic(name, create=False)
    try:
        work(use.topic)
    finally:
        use.release()


def _with_subscription(
    core: ClientContext, name: str, directory: str, work: Callable[[Subscription], object]
) -> None:
    def find(topic: Topic) -> None:
        for subscription_name in topic.subscriptions():
            if subscription_directory_name(subscription_name) == directory:
                subscription = topic.use_subscription(subscription_name, create=False)
                try:
                    work(subscription)
                finally:
                    topic.end_use(subscription, subscription_name)

    _with_topic(core, name, find)
