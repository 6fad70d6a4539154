"""From facts of a topic to the result types of `Topics`, and how far its long-running processes have come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.format.subscription_record import FLAG_OUT_OF_ORDER
from embeddedpulsar._engine.store.topic_compaction import NOT_RUN, LongRunningProcessStatus
from embeddedpulsar._engine.subscription.log_queries import left_of, messages_left
from embeddedpulsar._engine.subscription.state.sticky_key_selector import STICKY
from embeddedpulsar.admin.topic_stats import (
    AnalyzeSubscriptionBacklogResult,
    CompactionStats,
    ConsumerStats,
    CursorStats,
    LedgerInfo,
    PublisherStats,
    SubscriptionStats,
    TopicInternalStats,
    TopicStats,
)
from embeddedpulsar.enums import ConsumerType, ProducerAccessMode

if TYPE_CHECKING:
    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.log.log_survey import LogSurvey
    from embeddedpulsar._engine.platform.peers import ProcessFacts
    from embeddedpulsar._engine.store.topic import Topic
    from embeddedpulsar._engine.subscription.subscription_view import ConsumerFacts, SubscriptionFacts


# Rates are those of the last minute, the interval at which Pulsar's brokers compute theirs by default.
_WINDOW_MS: Final = 60_000
_LONG_MS: Final = 1000
"""A consumer that has acknowledged nothing for so long is named: ten times the group time of
acknowledgements."""
_TYPES: Final[dict[int, str]] = {
    ConsumerType.Exclusive: "Exclusive",
    ConsumerType.Shared: "Shared",
    ConsumerType.Failover: "Failover",
    ConsumerType.KeyShared: "Key_Shared",
}


def topic_stats(
    topic: Topic | None,
    now_ms: int,
    drops_duplicates: bool,
    processes: Callable[[], Mapping[bytes, ProcessFacts]] = dict,
) -> TopicStats:
    """The stats of a topic; None is a topic that was never used.

    Args:
        topic: it.
        now_ms: the time.
        drops_duplicates: whether it does.
        processes: returns the processes that live, by their leases. Called if a consumer is to be named.
    """
    status = "Enabled" if drops_duplicates else "Disabled"
    if topic is None:
        return TopicStats(0.0, 0.0, 0.0, 0, 0, 0, 0, 0, (), 0, {}, status, None, 0)
    # No lock is taken: each figure is read from words and indexes that are complete by themselves. Figures of
    # one result may be some messages apart.
    log, survey, producers = topic.ledger, topic.ledger.survey(), topic.view.producers()
    subscriptions: dict[str, SubscriptionStats] = {}
    rate, throughput, average = _published_lately(log, survey, now_ms)
    drop_rate = 0.0 if log.is_volatile else None
    for facts, durable in topic.view.subscriptions():
        # A durable and a non-durable subscription may share a name.
        if facts.name not in subscriptions:  # the durable one of two comes first
            stats = _subscription_stats(log, survey, facts, durable, now_ms, processes)
            if log.is_volatile:
                stats = _with_drops(topic, survey, facts, stats, now_ms, rate)
            subscriptions[facts.name] = stats
    backlog_size = earliest_ms = ranges = 0
    drop_rates = [drop_rate]
    for stats in subscriptions.values():
        ranges += stats.non_contiguous_deleted_messages_ranges
        drop_rates.append(stats.msg_drop_rate)
        # A non-durable subscription keeps nothing stored, so its backlog does not count for the topic.
        if stats.is_durable:
            # The largest backlog: the messages are stored once, whichever subscriptions need them. Pulsar's
            # field has this meaning, too.
            backlog_size = max(backlog_size, stats.backlog_size)
            published_ms = stats.earliest_msg_publish_time_in_backlog
            earliest_ms = min(earliest_ms or published_ms, published_ms or earliest_ms)
    appended, ledgers = survey.appended(), survey.ledgers()
    away, offload = topic.offload.outcome()
    return TopicStats(
        msg_rate_in=rate,
        msg_throughput_in=throughput,
        average_msg_size=average,
        msg_in_counter=appended.messages,
        bytes_in_counter=appended.size,
        storage_size=sum([ledger.size for ledger in ledgers]),
        backlog_size=backlog_size,
        earliest_msg_publish_time_in_backlogs=earliest_ms,
        publishers=tuple(
            [
                PublisherStats(
                    producer.name,
                    producer.producer_id,
                    ProducerAccessMode(producer.access_mode).name,
                    drop_rate,
                )
                for producer in producers.connected
            ]
        ),
        waiting_publishers=producers.waiting,
        subscriptions=subscriptions,
        deduplication_status=status,
        topic_epoch=producers.epoch or None,
        non_contiguous_deleted_messages_ranges=ranges,
        msg_drop_rate=None if drop_rate is None else sum(filter(None, drop_rates)),
        compaction=_compaction_stats(topic),
        publish_rate_limited_times=int(log.words[TopicWord.PUBLISH_LIMITED]),
        offloaded_storage_size=sum([ledger.size for ledger in ledgers if ledger.ledger_id in away]),
        last_offload_ledger_id=offload.ledger_id,
        last_offload_success_time_stamp=offload.succeeded_ms,
        last_offload_failure_time_stamp=offload.failed_ms,
    )


def _with_drops(
    topic: Topic,
    survey: LogSurvey,
    facts: SubscriptionFacts,
    stats: SubscriptionStats,
    now_ms: int,
    rate_in: float,
) -> SubscriptionStats:
    """The stats of a subscription of a non-persistent topic: what is lost in place of what is left."""
    # Lost is what was sent since it was made, less what it was given and what waits for its consumers. Reads
    # of the three are not one moment, so the difference is never below 0.
    pending = stats.msg_backlog if facts.consumers else 0
    sent = survey.appended().messages
    drops = max(0, sent - facts.sent_before - facts.given - pending)
    rate = rate_in
    # A rate needs two moments: an earlier call on this topic, or the making of the subscription. Without a
    # consumer everything is lost, at the rate at which it is published.
    if facts.consumers:
        since, now = (facts.made_ms, 0), (now_ms, drops)
        since_ms, before = topic.view.drops_before(facts.name, since, now)
        rate = max(0, drops - before) * 1000 / max(now_ms - since_ms, 1)
    return stats._replace(
        msg_backlog=0,
        msg_backlog_no_delayed=0,
        backlog_size=0,
        earliest_msg_publish_time_in_backlog=0,
        msg_drop_rate=rate,
        msg_drop_counter=drops,
    )


def _sum_or_none(rates: Sequence[float | None], start: float | None) -> float | None:
    return None if start is None else sum((rate for rate in rates if rate is not None), start)


def _compaction_stats(topic: Topic) -> CompactionStats:
    if not topic.compaction.exists:
        return CompactionStats()
    record = topic.compaction.get().ledgers.record()
    return CompactionStats(record.removed, record.succeeded_ms, record.failed_ms, record.duration_ms)


def _published_lately(log: Log, survey: LogSurvey, now_ms: int) -> tuple[float, float, float]:
    """Messages a second, bytes a second, and bytes a message."""
    # What was trimmed cannot be counted, so the window begins where the log is complete.
    begin = max(now_ms - _WINDOW_MS, survey.complete_since())
    messages, size, _ = survey.behind(log.find_by_publish_time(begin).previous())
    seconds = max(now_ms - begin, 1) / 1000
    return messages / seconds, size / seconds, size / messages if messages else 0.0


def _earliest(parts: Iterable[SubscriptionStats | TopicStats]) -> int:
    times = [
        stats.earliest_msg_publish_time_in_backlogs
        if isinstance(stats, TopicStats)
        else stats.earliest_msg_publish_time_in_backlog
        for stats in parts
    ]
    return min((time for time in times if time), default=0)


def _subscription_stats(
    log: Log,
    survey: LogSurvey,
    facts: SubscriptionFacts,
    durable: bool,
    now_ms: int,
    processes: Callable[[], Mapping[bytes, ProcessFacts]],
) -> SubscriptionStats:
    acknowledged = facts.acknowledged
    first = facts.consumers[0].consumer if facts.consumers else None
    kind = None if first is None else first.consumer_type
    is_key_shared = first is not None and kind == ConsumerType.KeyShared
    stored, size, earliest_ms = survey.behind(acknowledged.mark_delete)
    backlog = left_of(log, acknowledged, stored)
    # A consumer is named by its process only if it stands for a while: finding the process reads a file for
    # each.
    held: dict[int, int] = {}
    unacked = 0
    for consumer_facts in facts.consumers:
        unacked += consumer_facts.held
        since_ms = _held_since(facts, consumer_facts, backlog, earliest_ms)
        if since_ms and now_ms - since_ms >= _LONG_MS:
            held[consumer_facts.consumer.consumer_id] = since_ms
    process_facts = processes() if held else {}
    return SubscriptionStats(
        type="None" if kind is None else _TYPES.get(kind, f"type {kind}"),
        msg_backlog=backlog,
        msg_backlog_no_delayed=max(0, backlog - facts.delayed),
        msg_delayed=facts.delayed,
        backlog_size=size,
        unacked_messages=unacked,
        blocked_subscription_on_unacked_msgs=facts.is_blocked,
        earliest_msg_publish_time_in_backlog=earliest_ms,
        active_consumer_name=facts.active,
        non_contiguous_deleted_messages_ranges=len(acknowledged.runs),
        allow_out_of_order_delivery=is_key_shared
        and first is not None
        and bool(first.rules.flags & FLAG_OUT_OF_ORDER),
        key_shared_mode=None
        if first is None or not is_key_shared
        else "STICKY"
        if first.rules.selector == STICKY
        else "AUTO_SPLIT",
        is_durable=durable,
        is_replicated=False,
        consumers=tuple(
            [
                _consumer_stats(consumer_facts, held.get(consumer_facts.consumer.consumer_id), process_facts)
                for consumer_facts in facts.consumers
            ]
        ),
        total_msg_expired=facts.expired.total,
        last_expire_timestamp=facts.expired.last_ms,
        msg_rate_expired=facts.expired.a_second(now_ms),
    )


def _held_since(subscription: SubscriptionFacts, facts: ConsumerFacts, backlog: int, earliest_ms: int) -> int:
    """Since when a consumer that has the oldest message acknowledges nothing; 0 if it has not. See
    `ConsumerStats.held_since`."""
    if facts.permits is None:  # its type assigns no entries: the active consumer has what is not acknowledged
        has_oldest = backlog > 0 and facts.consumer.name == subscription.active
    else:
        oldest = min(
            (consumer.oldest for consumer in subscription.consumers if consumer.oldest is not None),
            default=None,
        )
        has_oldest = oldest is not None and facts.oldest == oldest
    # The latest of the moments from which it could have acknowledged the oldest message: it attached, it last
    # acknowledged anything, the message was published.
    return max(facts.consumer.attached_ms, facts.acked_ms, earliest_ms) if has_oldest else 0


def _consumer_stats(
    facts: ConsumerFacts, held_since: int | None, processes: Mapping[bytes, ProcessFacts]
) -> ConsumerStats:
    consumer = facts.consumer
    process = None if held_since is None else processes.get(consumer.client_uuid)
    since = datetime.fromtimestamp(consumer.attached_ms / 1000, UTC)
    ranges = tuple(f"[{first}, {last}]" for first, last in consumer.rules.ranges)
    return ConsumerStats(
        consumer_name=consumer.name,
        connected_since=since.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        unacked_messages=facts.held,
        blocked_consumer_on_unacked_msgs=facts.is_blocked,
        available_permits=facts.permits,
        msg_out_counter=facts.assigned,
        key_hash_ranges=ranges or None,
        last_acked_timestamp=facts.acked_ms,
        oldest_unacked_message_id=None if facts.oldest is None else str(facts.oldest),
        held_since=held_since,
        pid=None if process is None else process.pid or None,
    )


# -- partitioned topics ----------------------------------------------------------------------------------


def sum_of(partitions: Sequence[TopicStats]) -> TopicStats:
    """The stats of a partitioned topic; there is at least one partition."""
    rate = sum(partition.msg_rate_in for partition in partitions)
    throughput = sum(partition.msg_throughput_in for partition in partitions)
    names = sorted({name for partition in partitions for name in partition.subscriptions})
    publishers: dict[str, PublisherStats] = {}
    # A producer of a partitioned topic has one producer in each partition, all of its name.
    for partition in partitions:
        for publisher in partition.publishers:
            publishers.setdefault(publisher.producer_name, publisher)
    return TopicStats(
        msg_rate_in=rate,
        msg_throughput_in=throughput,
        average_msg_size=throughput / rate if rate else 0.0,
        msg_in_counter=sum(partition.msg_in_counter for partition in partitions),
        bytes_in_counter=sum(partition.bytes_in_counter for partition in partitions),
        storage_size=sum(partition.storage_size for partition in partitions),
        backlog_size=sum(partition.backlog_size for partition in partitions),
        earliest_msg_publish_time_in_backlogs=_earliest(partitions),
        publishers=tuple(publishers.values()),
        waiting_publishers=sum(partition.waiting_publishers for partition in partitions),
        subscriptions={
            name: _sum_of_subscription(
                [partition.subscriptions[name] for partition in partitions if name in partition.subscriptions]
            )
            for name in names
        },
        deduplication_status=partitions[0].deduplication_status,
        topic_epoch=None,
        non_contiguous_deleted_messages_ranges=sum(
            partition.non_contiguous_deleted_messages_ranges for partition in partitions
        ),
        msg_drop_rate=_sum_or_none(
            [partition.msg_drop_rate for partition in partitions],
            None if partitions[0].msg_drop_rate is None else 0.0,
        ),
        compaction=CompactionStats(
            sum(partition.compaction.last_compaction_removed_event_count for partition in partitions),
            max(partition.compaction.last_compaction_succeed_timestamp for partition in partitions),
            max(partition.compaction.last_compaction_failed_timestamp for partition in partitions),
            max(partition.compaction.last_compaction_duration_time_in_mills for partition in partitions),
        ),
        publish_rate_limited_times=sum(partition.publish_rate_limited_times for partition in partitions),
        offloaded_storage_size=sum(partition.offloaded_storage_size for partition in partitions),
        last_offload_ledger_id=max(partition.last_offload_ledger_id for partition in partitions),
        last_offload_success_time_stamp=max(
            partition.last_offload_success_time_stamp for partition in partitions
        ),
        last_offload_failure_time_stamp=max(
            partition.last_offload_failure_time_stamp for partition in partitions
        ),
        ongoing_txn_count=sum(partition.ongoing_txn_count for partition in partitions),
        aborted_txn_count=sum(partition.aborted_txn_count for partition in partitions),
        committed_txn_count=sum(partition.committed_txn_count for partition in partitions),
    )


def _sum_of_subscription(parts: Sequence[SubscriptionStats]) -> SubscriptionStats:
    # Type and mode are those of a partition with consumers: without any they are not known.
    used = [part for part in parts if part.consumers]
    kind = used[0] if used else parts[0]
    active = {part.active_consumer_name for part in used}
    counted = [part.msg_drop_counter for part in parts if part.msg_drop_counter is not None]
    drops = sum(counted) if counted else None
    # A consumer of a partitioned topic is attached to each partition, by one name.
    consumers: dict[str, list[ConsumerStats]] = {}
    for part in used:
        for consumer in part.consumers:
            consumers.setdefault(consumer.consumer_name, []).append(consumer)
    return kind._replace(
        msg_backlog=sum(part.msg_backlog for part in parts),
        msg_backlog_no_delayed=sum(part.msg_backlog_no_delayed for part in parts),
        msg_delayed=sum(part.msg_delayed for part in parts),
        backlog_size=sum(part.backlog_size for part in parts),
        unacked_messages=sum(part.unacked_messages for part in parts),
        blocked_subscription_on_unacked_msgs=any(part.blocked_subscription_on_unacked_msgs for part in parts),
        earliest_msg_publish_time_in_backlog=_earliest(parts),
        active_consumer_name=active.pop() if len(active) == 1 else None,  # partitions may differ
        non_contiguous_deleted_messages_ranges=sum(
            part.non_contiguous_deleted_messages_ranges for part in parts
        ),
        consumers=tuple(map(_sum_of_consumer, consumers.values())),
        total_msg_expired=sum(part.total_msg_expired for part in parts),
        last_expire_timestamp=max(part.last_expire_timestamp for part in parts),
        msg_rate_expired=sum(part.msg_rate_expired for part in parts),
        msg_drop_rate=_sum_or_none([part.msg_drop_rate for part in parts], 0.0 if counted else None),
        msg_drop_counter=drops,
    )


def _sum_of_consumer(parts: Sequence[ConsumerStats]) -> ConsumerStats:
    permits = [part.available_permits for part in parts if part.available_permits is not None]
    counters = [part.msg_out_counter for part in parts if part.msg_out_counter is not None]
    return parts[0]._replace(
        connected_since=min(part.connected_since for part in parts),
        unacked_messages=sum(part.unacked_messages for part in parts),
        blocked_consumer_on_unacked_msgs=any(part.blocked_consumer_on_unacked_msgs for part in parts),
        available_permits=sum(permits) if permits else None,
        msg_out_counter=sum(counters) if counters else None,
        last_acked_timestamp=max(part.last_acked_timestamp for part in parts),
        oldest_unacked_message_id=None,  # of several partitions there is none
        held_since=min((part.held_since for part in parts if part.held_since is not None), default=None),
    )


# -- ledgers and cursors ---------------------------------------------------------------------------------


def internal_stats(topic: Topic | None) -> TopicInternalStats:
    """The ledgers and cursors of a topic; None is a topic that was never used."""
    if topic is None:
        return TopicInternalStats(0, 0, 0, 0, 0, "-1:-1", "LedgerOpened", (), {})
    log, survey = topic.ledger, topic.ledger.survey()
    # Pulsar shows durable cursors only.
    cursors = {
        facts.name: _cursor_stats(log, facts) for facts, durable in topic.view.subscriptions() if durable
    }
    ledgers, away = survey.ledgers(), topic.offload.ledgers()
    last = log.last_position()
    return TopicInternalStats(
        entries_added_counter=survey.appended().entries,
        number_of_entries=sum(ledger.entries for ledger in ledgers),
        total_size=sum(ledger.size for ledger in ledgers),
        current_ledger_entries=ledgers[-1].entries if ledgers else 0,
        current_ledger_size=ledgers[-1].size if ledgers else 0,
        last_confirmed_entry="-1:-1" if last is None else str(last),
        state="Terminated" if topic.view.is_terminated else "LedgerOpened",
        ledgers=tuple(
            LedgerInfo(ledger.ledger_id, ledger.entries, ledger.size, ledger.ledger_id in away)
            for ledger in ledgers
        ),
        cursors=cursors,
        compaction_horizon=_compaction_horizon(topic),
    )


def _compaction_horizon(topic: Topic) -> str | None:
    if not topic.compaction.exists:
        return None
    record = topic.compaction.get().ledgers.record()
    return str(record.horizon) if record.file else None


def _cursor_stats(log: Log, facts: SubscriptionFacts) -> CursorStats:
    mark_delete, runs, _ = facts.acknowledged
    # Pulsar's notation: an interval is open on the left, so the entry before the first one stands there.
    intervals = [f"({ledger}:{first - 1}..{ledger}:{last}]" for ledger, first, last in runs]
    return CursorStats(
        mark_delete_position=str(mark_delete),
        read_position=None if facts.read is None else str(facts.read),
        individually_deleted_messages=f"[{','.join(intervals)}]",
        number_of_entries_since_first_not_acked_message=log.survey().entries_after(mark_delete),
        total_non_contiguous_deleted_messages_range=len(runs),
    )


def backlog_of(log: Log, facts: SubscriptionFacts) -> AnalyzeSubscriptionBacklogResult:
    """The backlog of a subscription, counted by the indexes."""
    acknowledged = facts.acknowledged
    settled = sum(last - first + 1 for _, first, last in acknowledged.runs)
    entries = log.survey().entries_after(acknowledged.mark_delete) - settled
    entries = max(0, entries - log.aborted_behind(acknowledged.mark_delete, None, acknowledged.runs)[0])
    return AnalyzeSubscriptionBacklogResult(entries, messages_left(log, acknowledged))


def joint_progress(progress: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """How much is done, and of how much, in all partitions of a topic together."""
    done, total = 0, 0
    for part_done, part_total in progress:
        done, total = done + part_done, total + part_total
    return done, total


def status_of_compaction(topic: Topic | None) -> LongRunningProcessStatus:
    """How the compaction of a topic or partition stands; None for one that was never used."""
    return LongRunningProcessStatus(NOT_RUN) if topic is None else topic.compaction.get().status()


def progress_of_compaction(topic: Topic | None) -> tuple[int, int]:
    """How many entries its compaction in this process has read, of about how many."""
    progress = None if topic is None else topic.compaction.get().work.progress
    return progress or (0, 0)


def first_within(topic: Topic, room: int) -> int:
    """The first ledger that stays if at most so many bytes are to stay."""
    # From the newest ledger back: those within the limit stay, and the first that exceeds it is moved, with
    # all older ones.
    for ledger in reversed(topic.ledger.survey().ledgers()):
        room -= ledger.size
        if room < 0:
            return ledger.ledger_id + 1
    return 0


def status_of_offload(topic: Topic | None) -> LongRunningProcessStatus:
    """How the offloading of a topic or partition stands; None for one that was never used."""
    if topic is None or not topic.offload.exists:
        return LongRunningProcessStatus(NOT_RUN)
    return topic.offload.get().status()


def progress_of_offload(topic: Topic | None) -> tuple[int, int]:
    """How many ledgers its offloading in this process has moved, of how many."""
    if topic is None or not topic.offload.exists:
        return 0, 0
    return topic.offload.get().work.progress or (0, 0)
