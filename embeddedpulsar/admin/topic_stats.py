"""What `Topics.get_stats` returns. The names of the fields are Pulsar's, in snake case.

What `Topics.get_internal_stats` returns: ledgers and cursors. The names are Pulsar's, in snake case.

What `Transactions` returns, likewise; and where a cursor is, read from stats as a broker gives them.

What `Admin.why_kept` returns: the ledgers of a topic, and what holds each of them.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar._engine.store.policies.keeping import KEEP_UNTIL_SUBSCRIBED, RETENTION
from embeddedpulsar.policy_values import json_form
from embeddedpulsar.records import NamedTuple

if TYPE_CHECKING:
    from embeddedpulsar._engine.log.log_survey import LedgerFigures
    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar._engine.store.topic import Topic
    from embeddedpulsar._engine.store.topic_access import TopicAccess


class PublisherStats(NamedTuple):
    """A connected producer.

    Attributes:
        producer_name: given by the application, or by the topic.
        producer_id: unique for the life of the topic.
        access_mode: ``Shared``, ``Exclusive``, ``WaitForExclusive`` or ``ExclusiveWithFencing``.
        msg_drop_rate: always 0.0 for a non-persistent topic, which takes every message; else None.
    """

    producer_name: str
    producer_id: int
    access_mode: str
    msg_drop_rate: float | None = None

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar, without those that are None."""
        return dict(json_form(self))


class ConsumerStats(NamedTuple):
    """A consumer that is attached to a subscription, and whose process lives.

    Attributes:
        consumer_name: given by the application, or made by the client.
        connected_since: when it attached, in UTC, as ``2026-01-31T12:00:00.000Z``.
        unacked_messages: messages it holds: assigned and not acknowledged. 0 on Exclusive and Failover, as in
            Pulsar, which counts them on Shared and Key_Shared alone.
        blocked_consumer_on_unacked_msgs: it holds as many as ``maxUnackedMessagesPerConsumer`` allows, and
            gets none until it acknowledges some.
        available_permits: messages it is ready to take, less those it was assigned. None on Exclusive and
            Failover, where the consumer reads by itself.
        msg_out_counter: messages it was assigned since it attached, again included. None there, too.
        key_hash_ranges: the ranges of slots that a consumer of a sticky Key_Shared subscription named, as
            ``[0, 99]``; None otherwise.
        last_acked_timestamp: when it last wrote an acknowledgement, ms since 1970; 0 if it has not since it
            attached. An acknowledgement is written within ``ack_group_time_ms``.
        oldest_unacked_message_id: the id of the first entry that it holds; None without one, and on Exclusive
            and Failover. Not in Pulsar.
        held_since: set if the consumer has the first message of the subscription that is not acknowledged,
            and acknowledges nothing: since when, ms since 1970. That is the last of three times: it attached,
            it last wrote an acknowledgement, that message was published. None otherwise. Not in Pulsar.
        pid: the id of its process, if ``held_since`` is set and the system tells it. Not in Pulsar.
    """

    consumer_name: str
    connected_since: str
    unacked_messages: int = 0
    blocked_consumer_on_unacked_msgs: bool = False
    available_permits: int | None = None
    msg_out_counter: int | None = None
    key_hash_ranges: tuple[str, ...] | None = None
    last_acked_timestamp: int = 0
    oldest_unacked_message_id: str | None = None
    held_since: int | None = None
    pid: int | None = None

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar, without those that are None."""
        return dict(json_form(self))


class SubscriptionStats(NamedTuple):
    """A subscription of a topic.

    Attributes:
        type: ``Exclusive``, ``Shared``, ``Failover`` or ``Key_Shared``: that of its consumers; ``None``
            without any, for the next consumer chooses.
        msg_backlog: messages that are stored and not acknowledged, exactly: messages of a batch count singly,
            those acknowledged out of order do not count, delayed ones do.
        msg_backlog_no_delayed: the same without ``msg_delayed``.
        msg_delayed: messages that were read for a consumer and are not due yet.
        backlog_size: bytes of storage from the first message that is not acknowledged to the end.
        unacked_messages: messages that its consumers hold; the sum of theirs.
        blocked_subscription_on_unacked_msgs: they hold as many as ``maxUnackedMessagesPerSubscription``
            allows.
        earliest_msg_publish_time_in_backlog: publish time of the first entry that is not acknowledged, ms
            since 1970; 0 without one.
        active_consumer_name: the consumer that gets the messages; None on Shared and Key_Shared, and without
            consumers.
        non_contiguous_deleted_messages_ranges: runs of entries that are acknowledged out of order.
        allow_out_of_order_delivery: whether a Key_Shared subscription may deliver out of order.
        key_shared_mode: ``AUTO_SPLIT`` or ``STICKY``; None if it is not Key_Shared.
        is_durable: whether it outlives its consumers.
        is_replicated: always False: a store has no other clusters.
        consumers: the longest attached first.
        total_msg_expired: messages that expired since the subscription was made, by their time to live or by
            `Topics.expire_messages`, exactly. Those that a backlog quota evicts do not count.
        last_expire_timestamp: when messages expired last, ms since 1970; 0 for never.
        msg_rate_expired: messages a second that expired in the last 60 s.
        msg_drop_rate: messages of a non-persistent topic a second that no consumer got: the average since
            this process looked one or two minutes ago, at first since the subscription was made; without
            consumers, the messages a second that come in. None for other topics.
        msg_drop_counter: all such messages since the subscription was made. Not in Pulsar.
    """

    type: str
    msg_backlog: int
    msg_backlog_no_delayed: int
    msg_delayed: int
    backlog_size: int
    unacked_messages: int
    blocked_subscription_on_unacked_msgs: bool
    earliest_msg_publish_time_in_backlog: int
    active_consumer_name: str | None
    non_contiguous_deleted_messages_ranges: int
    allow_out_of_order_delivery: bool
    key_shared_mode: str | None
    is_durable: bool
    is_replicated: bool
    consumers: tuple[ConsumerStats, ...]
    total_msg_expired: int = 0
    last_expire_timestamp: int = 0
    msg_rate_expired: float = 0.0
    msg_drop_rate: float | None = None
    msg_drop_counter: int | None = None

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar, without those that are None."""
        return dict(json_form(self))


class CompactionStats(NamedTuple):
    """The compactions of a topic, by whatever process.

    Attributes:
        last_compaction_removed_event_count: messages that the last one left out.
        last_compaction_succeed_timestamp: when one succeeded last, ms since 1970; 0 for never.
        last_compaction_failed_timestamp: when one failed last, ms since 1970; 0 for never.
        last_compaction_duration_time_in_mills: how long the last one took that succeeded.
    """

    last_compaction_removed_event_count: int = 0
    last_compaction_succeed_timestamp: int = 0
    last_compaction_failed_timestamp: int = 0
    last_compaction_duration_time_in_mills: int = 0

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


class TopicStats(NamedTuple):
    """A topic that is not partitioned, or a partition, at one moment, whatever process uses it.

    Attributes:
        msg_rate_in: messages a second that were published in the last 60 s. If messages of that time are
            trimmed already, the average since the oldest retained ledger began.
        msg_throughput_in: the same, bytes of storage a second.
        average_msg_size: bytes of storage of a message published in that time; 0 without one.
        msg_in_counter: messages published since the topic was made. After a restart of the machine, and in
            a copied store, the counter begins at the messages that are retained.
        bytes_in_counter: the same, bytes of storage.
        storage_size: bytes of storage of all retained messages.
        backlog_size: bytes of storage from the first message that some durable subscription has not
            acknowledged, to the end; 0 without one.
        earliest_msg_publish_time_in_backlogs: publish time of that message, ms since 1970; 0 without one.
        publishers: the connected producers, in the order in which they came.
        waiting_publishers: producers that wait for exclusive access.
        subscriptions: by name, sorted. Of a durable and a non-durable subscription of one name, the durable.
            Readers are no subscriptions.
        deduplication_status: ``Enabled`` or ``Disabled``.
        topic_epoch: how often exclusive access was granted; None if never.
        non_contiguous_deleted_messages_ranges: the sum of those of the subscriptions.
        msg_drop_rate: the sum of those of the subscriptions of a non-persistent topic; else None.
        compaction: the last compactions; of a partitioned topic, sums and latest times.
        publish_rate_limited_times: how often a producer had to wait for the publish rate, since the machine
            was started.
        offloaded_storage_size: bytes of storage of the ledgers that are offloaded.
        last_offload_ledger_id: the ledger that was offloaded last; 0 for none.
        last_offload_success_time_stamp: when, ms since 1970; 0 for never.
        last_offload_failure_time_stamp: when offloading failed last, ms since 1970; 0 for never.
        ongoing_txn_count: transactions that stored something in the topic and have not ended.
        aborted_txn_count, committed_txn_count: those that ended so, since the topic was made.
    """

    msg_rate_in: float
    msg_throughput_in: float
    average_msg_size: float
    msg_in_counter: int
    bytes_in_counter: int
    storage_size: int
    backlog_size: int
    earliest_msg_publish_time_in_backlogs: int
    publishers: tuple[PublisherStats, ...]
    waiting_publishers: int
    subscriptions: dict[str, SubscriptionStats]
    deduplication_status: str
    topic_epoch: int | None
    non_contiguous_deleted_messages_ranges: int
    msg_drop_rate: float | None = None
    compaction: CompactionStats = CompactionStats()
    publish_rate_limited_times: int = 0
    offloaded_storage_size: int = 0
    last_offload_ledger_id: int = 0
    last_offload_success_time_stamp: int = 0
    last_offload_failure_time_stamp: int = 0
    ongoing_txn_count: int = 0
    aborted_txn_count: int = 0
    committed_txn_count: int = 0

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar, without those that are None."""
        return dict(json_form(self))


class PartitionedTopicMetadata(NamedTuple):
    """The metadata of a partitioned topic.

    Attributes:
        partitions: number of its partitions; 0 for a topic that is not partitioned.
    """

    partitions: int

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


class PartitionedTopicStats(NamedTuple):
    """A partitioned topic.

    Attributes:
        metadata: the number of partitions.
        totals: the sums over all partitions; a subscription or consumer of several partitions is there once.
            ``json()`` has these fields beside the others, as Pulsar does.
        partitions: the partitions by full name; empty unless they were asked for.
    """

    metadata: PartitionedTopicMetadata
    totals: TopicStats
    partitions: dict[str, TopicStats]

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar, without those that are None."""
        # Pulsar's form has the sums beside the metadata, and not in an object of their own.
        rest: dict[str, Any] = json_form(self)
        totals: dict[str, Any] = rest.pop("totals")
        return totals | rest


class LedgerInfo(NamedTuple):
    """A ledger of a topic.

    Attributes:
        ledger_id: its id.
        entries: entries it holds.
        size: bytes of storage of them.
        offloaded: whether an offload location has it.
    """

    ledger_id: int
    entries: int
    size: int
    offloaded: bool = False

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


class CursorStats(NamedTuple):
    """How far a durable subscription has come. Positions are written ``ledger:entry``.

    Attributes:
        mark_delete_position: everything up to here is acknowledged.
        read_position: the entry that is read next; None on Exclusive and Failover, where the consumer keeps
            that to itself.
        individually_deleted_messages: the entries beyond ``mark_delete_position`` that are acknowledged, as
            intervals without their beginning and with their end: ``[(3:4..3:6],(3:9..3:10]]``.
        number_of_entries_since_first_not_acked_message: entries behind ``mark_delete_position``.
        total_non_contiguous_deleted_messages_range: the number of those intervals.
        state: always ``Open``.
    """

    mark_delete_position: str
    read_position: str | None
    individually_deleted_messages: str
    number_of_entries_since_first_not_acked_message: int
    total_non_contiguous_deleted_messages_range: int
    state: str = "Open"

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar, without those that are None."""
        return dict(json_form(self))


class TopicInternalStats(NamedTuple):
    """The log of a topic that is not partitioned, or of a partition, and the cursors on it.

    Attributes:
        entries_added_counter: entries appended since the topic was made; begins anew as
            `TopicStats.msg_in_counter` does.
        number_of_entries: entries that are retained.
        total_size: bytes of storage of them.
        current_ledger_entries: entries of the ledger that is written to.
        current_ledger_size: bytes of storage of them.
        last_confirmed_entry: the last entry, ``ledger:entry``, or ``-1:-1``.
        state: ``LedgerOpened``; ``Terminated`` if nothing can be published any more.
        ledgers: the retained ledgers, the oldest first.
        cursors: the durable subscriptions by name, sorted.
        compaction_horizon: the last entry up to which the topic is compacted, ``ledger:entry``; None before
            the first compaction. Pulsar shows it as the position of its cursor ``__compaction``.
    """

    entries_added_counter: int
    number_of_entries: int
    total_size: int
    current_ledger_entries: int
    current_ledger_size: int
    last_confirmed_entry: str
    state: str
    ledgers: tuple[LedgerInfo, ...]
    cursors: dict[str, CursorStats]
    compaction_horizon: str | None = None

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar, without those that are None."""
        return dict(json_form(self))


class AnalyzeSubscriptionBacklogResult(NamedTuple):
    """The backlog of a subscription, counted.

    Attributes:
        entries: entries that are not acknowledged as a whole; each part of a chunked message is one.
        messages: messages that are not acknowledged.
        aborted: always False: all of the backlog is counted.
    """

    entries: int
    messages: int
    aborted: bool = False

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


class TransactionCoordinatorInfo(NamedTuple):
    """A coordinator.

    Attributes:
        id: always 0.
        broker_service_url: the directory of the store.
    """

    id: int
    broker_service_url: str

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


class TransactionCoordinatorStats(NamedTuple):
    """The transactions of a store.

    Attributes:
        state: always ``Ready``: nothing has to be recovered before it answers.
        least_sig_bits: the last id that was given out; 0 for none.
        low_water_mark: all transactions up to here have ended.
        ongoing_txn_size: open ones, those that are prepared included.
        recover_start_time, recover_end_time: always 0.
        prepared_txn_size: those that wait for an end that any process may give. Not in Pulsar.
        committed_txn_count, aborted_txn_count: since the store was made, as far as the control file counts; a
            copy of a store begins at 0. Not in Pulsar.
        torn_txn_count: committed ones of which a power loss took messages, counted likewise, some moments
            after the store is used again; 0 at level ``flush``. `embeddedpulsar check` lists them, as long as
            the journal has them. Not in Pulsar.
    """

    state: str
    least_sig_bits: int
    low_water_mark: int
    ongoing_txn_size: int
    recover_start_time: int = 0
    recover_end_time: int = 0
    prepared_txn_size: int = 0
    committed_txn_count: int = 0
    aborted_txn_count: int = 0
    torn_txn_count: int = 0

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


class TransactionInBufferStats(NamedTuple):
    """What a transaction stored in a topic.

    Attributes:
        start_position: its first entry, ``ledger:entry``.
        aborted: whether it was aborted.
    """

    start_position: str
    aborted: bool

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


class TransactionInPendingAckStats(NamedTuple):
    """What an open transaction acknowledged in a subscription.

    Attributes:
        cumulative_ack_position: the last entry of its cumulative acknowledgement; None without one.
        entries: entries that it acknowledged as a whole. Not in Pulsar.
        batches: entries of which it acknowledged single messages. Not in Pulsar.
    """

    cumulative_ack_position: str | None
    entries: int
    batches: int

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar, without those that are None."""
        return dict(json_form(self))


class TransactionMetadata(NamedTuple):
    """A transaction.

    Attributes:
        txn_id: as ``(0,17)``.
        open_timestamp: when it began, ms since 1970; 0 if it has ended.
        timeout_at: when it is aborted, ms since 1970; 0 for never, and if it has ended.
        status: ``OPEN``, ``COMMITTING``, ``COMMITTED``, ``ABORTING`` or ``ABORTED``, as in Pulsar; and
            ``PREPARED``.
        owner: the process that began it; empty for one that is prepared, which belongs to none.
        produced_partitions: topics that it stored something in. Of one that was aborted nothing is known.
        acked_partitions: subscriptions that it acknowledged something in, by topic and name. Likewise.
        label: what its program calls it; of one that is not prepared the first 56 bytes. Not in Pulsar.
        pid, program: of that process; 0 and empty where the system does not tell. Not in Pulsar.
        is_alive: whether that process lives; None for one that is prepared or has ended. Not in Pulsar.
        joined: how many processes joined it. Not in Pulsar.
    """

    txn_id: str
    open_timestamp: int
    timeout_at: int
    status: str
    owner: str
    produced_partitions: dict[str, TransactionInBufferStats]
    acked_partitions: dict[str, dict[str, TransactionInPendingAckStats]]
    label: str = ""
    pid: int = 0
    program: str = ""
    is_alive: bool | None = None
    joined: int = 0

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


class TransactionBufferStats(NamedTuple):
    """The transactions that stored something in a topic.

    Attributes:
        state: always ``Ready``.
        max_read_position: consumers and readers get entries up to here: the last one before the first of a
            transaction that has not ended.
        ongoing_txn_size: those that have not ended.
        total_aborted_transactions: those that were aborted, since the topic was made.
        total_committed_transactions: those that were committed, likewise. Not in Pulsar.
        last_snapshot_timestamps: when outcomes were folded into the topic, ms since 1970; 0 for never.
        snapshot_type: always ``Single``.
        low_water_marks: by coordinator, up to which id all have ended; None unless asked for.
        recover_start_time, recover_end_time: always 0.
    """

    state: str
    max_read_position: str
    ongoing_txn_size: int
    total_aborted_transactions: int
    total_committed_transactions: int
    last_snapshot_timestamps: int
    snapshot_type: str = "Single"
    low_water_marks: dict[int, int] | None = None
    recover_start_time: int = 0
    recover_end_time: int = 0

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar, without those that are None."""
        return dict(json_form(self))


class TransactionPendingAckStats(NamedTuple):
    """The acknowledgements of open transactions in a subscription.

    Attributes:
        state: ``Ready``; ``None`` if no transaction ever acknowledged anything here.
        ongoing_txn_size: open ones that did.
        low_water_marks: as of `TransactionBufferStats`.
        recover_start_time, recover_end_time: always 0.
        transactions: what each of them acknowledged, by id. Not in Pulsar.
    """

    state: str
    ongoing_txn_size: int
    low_water_marks: dict[int, int] | None = None
    recover_start_time: int = 0
    recover_end_time: int = 0
    transactions: dict[str, TransactionInPendingAckStats] = {}

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar, without those that are None."""
        return dict(json_form(self))


class PositionInPendingAckStats(NamedTuple):
    """What an entry is to the open transactions of a subscription.

    Attributes:
        state: ``PendingAck``: an open transaction acknowledged it; ``MarkDelete``: it is acknowledged;
            ``NotInPendingAck``: neither; ``InvalidPosition``: the topic has no such entry.
    """

    state: str

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


class TransactionLogStats(NamedTuple):
    """Where transactions are kept.

    Attributes:
        managed_ledger_name: the path of the files.
        managed_ledger_internal_stats: of a journal, each generation is listed as a ledger, and each record as
            an entry.
    """

    managed_ledger_name: str
    managed_ledger_internal_stats: TopicInternalStats

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar, without those that are None."""
        return dict(json_form(self))


class PreparedTransactionInfo(NamedTuple):
    """A transaction that waits for its end, which any process may give. Not in Pulsar.

    Attributes:
        txn_id: as ``(0,17)``.
        label: as `prepare` was given.
        prepared_at: when, ms since 1970.
        timeout_at: when it is aborted, ms since 1970; 0 for never.
        produced_partitions: topics that it stored something in, and how many entries.
        acked_partitions: subscriptions that it acknowledged something in, by topic: names.
    """

    txn_id: str
    label: str
    prepared_at: int
    timeout_at: int
    produced_partitions: dict[str, int]
    acked_partitions: dict[str, tuple[str, ...]]

    def json(self) -> dict[str, Any]:
        """Return the fields in camel case, as those of other results."""
        return dict(json_form(self))


OPEN: Final = "open"
BACKLOG: Final = "backlog"
RETAINED: Final = "retention"
COMPACTED: Final = "compaction"
PINNED: Final = "pinned"
UNDECIDED: Final = "transaction"
UNSUBSCRIBED: Final = "no subscription yet"
OLDER: Final = "an older ledger is kept"
DUE: Final = "to be trimmed"
RING: Final = "ring"


class KeptLedger(NamedTuple):
    """A ledger of a topic.

    Attributes:
        ledger_id: its id.
        entries: entries it holds.
        size: bytes of storage of them.
        reason: why it is kept. ``open``: messages are appended to it. ``backlog``: subscriptions have not
            acknowledged all of it. ``compaction``: it is not compacted yet, in a topic that was compacted
            before or has a threshold. ``pinned``: Spark reads it, or has begun to publish
            into it. ``transaction``: it, or one before it, has a message that waits for an open transaction.
            ``retention``: the policy keeps it. ``no subscription yet``: the policy keeps everything
            until there is one. ``an older ledger is kept``: nothing holds it, but ledgers go
            in their order. ``to be trimmed``: nothing holds it, and it is removed in the background.
            ``ring``: of a non-persistent topic, which keeps its last ledgers, acknowledged or not.
        subscriptions: those that hold it, for the reason ``backlog``; sorted.
        is_offloaded: whether an offload location has it.
    """

    ledger_id: int
    entries: int
    size: int
    reason: str
    subscriptions: tuple[str, ...] = ()
    is_offloaded: bool = False


class KeptLedgers(NamedTuple):
    """What holds the messages of a topic, partition or partitioned topic.

    Attributes:
        size: bytes of storage of all retained messages.
        size_by_reason: the same by reason; see `KeptLedger`.
        size_by_subscription: bytes of the ledgers that a durable subscription holds; a ledger that several
            hold is counted for each.
        ledgers: the ledgers, oldest first, and one partition after the other.
    """

    size: int
    size_by_reason: dict[str, int]
    size_by_subscription: dict[str, int]
    ledgers: tuple[KeptLedger, ...]

    def json(self) -> dict[str, Any]:
        """Return the fields in camel case, as those of other results."""
        return dict(json_form(self))


def _kept_ledgers(ledgers: list[KeptLedger]) -> KeptLedgers:
    """Add up ledgers of a topic, or of its partitions."""
    reasons: dict[str, int] = {}
    subscriptions: dict[str, int] = {}
    for ledger in ledgers:
        reasons[ledger.reason] = reasons.get(ledger.reason, 0) + ledger.size
        for name in ledger.subscriptions:
            subscriptions[name] = subscriptions.get(name, 0) + ledger.size
    return KeptLedgers(sum(reasons.values()), reasons, subscriptions, tuple(ledgers))


def all_kept_ledgers(access: TopicAccess, topic: str) -> KeptLedgers:
    """See `Admin.why_kept`."""
    store = access.store()
    ledgers: list[KeptLedger] = []
    for name in access.partitions_of(topic) or [topic]:
        ledgers += access.inspect(name, lambda used: [] if used is None else _ledgers_of(store, used))
    return _kept_ledgers(ledgers)


def _ledgers_of(store: Store, topic: Topic) -> list[KeptLedger]:
    """Find what holds the ledgers of a topic or partition."""
    # The ledgers of a non-persistent topic are a ring in memory: no subscription, retention or pin keeps one.
    is_ring = topic.ledger.is_volatile
    subscriptions = [facts for facts, durable in topic.view.subscriptions() if durable and not is_ring]
    past_aborted = topic.ledger.past_aborted
    marks = {facts.name: past_aborted(facts.acknowledged.mark_delete) for facts in subscriptions}
    keeps_all = not marks and store.policy(topic.name, KEEP_UNTIL_SUBSCRIBED)
    retention = store.policy(topic.name, RETENTION)
    # The same decision as that of trimming, made without its effects: `marks(False)` and `removes=False`
    # change nothing.
    trimming, now_ms = topic.ledger.trimming, store.clock.wall_ms()
    compacted, pinned = topic.compaction.marks(False), trimming.pinned(now_ms, removes=False)
    needs = {
        need.ledger.ledger_id: need
        for need in trimming.needs([*marks.values(), *compacted, *pinned], retention, now_ms)
    }
    kept: list[KeptLedger] = []
    away = topic.offload.ledgers()
    free = DUE  # of a ledger that nothing holds, until an older one is kept

    def add(figures: LedgerFigures, reason: str, *holders: str) -> None:
        is_away = figures.ledger_id in away
        kept.append(KeptLedger(figures.ledger_id, figures.entries, figures.size, reason, holders, is_away))

    for figures in topic.ledger.survey().ledgers():
        need = needs.get(figures.ledger_id)
        last = figures.ledger_id, figures.entries - 1
        # Ledgers are removed from the oldest on, so what a reason keeps keeps all behind it.
        if kept and kept[-1].reason != DUE:
            free = OLDER
        # A subscription holds a ledger whose last entry is behind its mark-delete position.
        holders = sorted(name for name, mark in marks.items() if figures.entries and last > mark)
        # The cases in the order in which trimming asks: the open ledger stays; an entry of it waits for a
        # transaction, so nothing from there on can be acknowledged; an entry of it is needed; there is no
        # subscription yet, and the policy keeps everything until there is one; retention keeps it.
        if need is None:  # the last one; or it was closed meanwhile
            add(figures, OPEN, *holders)
        elif is_ring:
            add(figures, RING)
        elif need.is_undecided:
            add(figures, UNDECIDED)
        elif need.is_unacked:
            other = COMPACTED if any(last > mark for mark in compacted) else PINNED
            add(figures, BACKLOG if holders else other, *holders)
        elif keeps_all:
            add(figures, UNSUBSCRIBED)
        elif need.is_retained:
            add(figures, RETAINED)
        else:
            add(figures, free)
    return kept


Place = tuple[int, int, int]
"""Ledger, entry and batch index: what orders the messages of a log."""


def _position(text: str) -> Place:
    """A mark-delete position as a place: all messages of its entry lie before it."""
    ledger, entry = text.split(":")
    return int(ledger), int(entry), sys.maxsize


class Cursor(NamedTuple):
    """What a subscription has acknowledged: all up to `mark`, and the ranges of entries ``(first, last]``."""

    mark: Place
    ranges: tuple[tuple[Place, Place], ...]

    @staticmethod
    def of(stats: dict[str, Any]) -> Cursor:
        """Of a cursor of internal stats.

        Example:
            >>> ranges = "[(1:1..1:3]]"
            >>> cursor = Cursor.of({"markDeletePosition": "1:0", "individuallyDeletedMessages": ranges})
            >>> [cursor.is_acknowledged((1, entry, -1)) for entry in range(5)]
            [True, False, True, True, False]
        """
        ranges = re.findall(r"\((\d+:-?\d+)\.\.(\d+:-?\d+)\]", stats.get("individuallyDeletedMessages", ""))
        return Cursor(
            _position(stats["markDeletePosition"]),
            tuple((_position(first), _position(last)) for first, last in ranges),
        )

    def is_acknowledged(self, place: Place) -> bool:
        """Whether a message needs no delivery any more."""
        return place <= self.mark or any(first < place <= last for first, last in self.ranges)

    @property
    def limits(self) -> list[Place]:
        """Behind which places something else begins."""
        return [self.mark, *(place for limits in self.ranges for place in limits)]
