"""What the screens of the console show, as JSON: the store, its topics, subscriptions and dead letters, its
functions and transactions."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.exceptions import PulsarException, SubscriptionNotFound
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.server.browsing import Positions, message_form
from embeddedpulsar.server.engine import root_of
from embeddedpulsar.server.sampling import Names, Rates, Sample, Sampler, Stuck, base_of, in_pages, reason_of
from embeddedpulsar.server.served import readiness
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.admin.activity import Attached, TopicActivity
    from embeddedpulsar.admin.admin import Admin
    from embeddedpulsar.admin.dead_letters import DeadLetters
    from embeddedpulsar.admin.topic_stats import CursorStats, KeptLedger, TopicInternalStats
    from embeddedpulsar.functions.function_calls import Functions
    from embeddedpulsar.server.served import Served

DEAD: Final = "-DLQ"
# Rows of lists that are part of another screen.
_BUSIEST: Final = 8
_STUCK: Final = 100
# Columns in which acknowledged entries are drawn along a log.
_COLUMNS: Final = 240
# Partitions that are shown one by one.
_PARTITIONS: Final = 200
# Segments of a log that are shown one by one: the newest.
_SEGMENTS: Final = 500
# Lookups by time of one call, of all partitions together.
_LOOKUPS: Final = 2400
_INTERVAL: Final = re.compile(r"[(](\d+):(-?\d+)[.][.](\d+):(-?\d+)[]]")


class TopicRow(NamedTuple):
    """A topic of the list, all partitions together. `stuck` counts what does not go on in it."""

    name: str
    partitions: int
    rate_in: float = 0.0
    rate_out: float = 0.0
    backlog: int = 0
    oldest: int = 0
    storage: int = 0
    subscriptions: int = 0
    producers: int = 0
    consumers: int = 0
    stuck: int = 0


TOPIC_ORDERS: Final[dict[str, Callable[[TopicRow], Any]]] = {
    "name": lambda row: row.name,
    "in": lambda row: row.rate_in,
    "out": lambda row: row.rate_out,
    "backlog": lambda row: row.backlog,
    # The age of the oldest message: topics without one have the least.
    "oldest": lambda row: -row.oldest if row.oldest else float("-inf"),
    "storage": lambda row: row.storage,
    "subscriptions": lambda row: row.subscriptions,
    "stuck": lambda row: row.stuck,
}


def stuck_form(stuck: Stuck) -> dict[str, Any]:
    """Something that does not go on, as JSON."""
    return {
        "topic": stuck.topic,
        "subscription": stuck.subscription,
        "why": stuck.why,
        "backlog": stuck.backlog,
        "since": stuck.since,
        "isWaiting": stuck.is_waiting,
    }


def overview(sample: Sample, sampler: Sampler, names: Names) -> dict[str, Any]:
    """The store as a whole, with its last minutes."""
    activity = sample.activity
    attached = [each for topic in activity.topics for each in topic.attached]
    known = {each.topic for each in sample.stuck}
    # A topic with a subscription that stands still grows, too: that is no news.
    stuck = [*sample.stuck, *(each for each in sampler.growing(sample) if each.topic not in known)]
    busiest = sorted(sample.topics, key=lambda name: -sum(sample.topics[name]))[:_BUSIEST]
    activities = {topic.topic: topic for topic in activity.topics}
    return {
        "time": activity.time_ms,
        "rateIn": sample.totals.rate_in,
        "rateOut": sample.totals.rate_out,
        "backlog": sample.backlog,
        "storage": sample.storage,
        "topics": len(names.partitions()),
        "subscriptions": sum(len(topic.subscriptions) for topic in activity.topics),
        "producers": sum(each.kind == "producer" for each in attached),
        "consumers": sum(each.kind == "consumer" for each in attached),
        "processes": activity.processes,
        "history": history_form(sampler.history),
        "stuckTotal": len(stuck),
        "stuck": [stuck_form(each) for each in stuck[:_STUCK]],
        "unrecovered": list(activity.unrecovered),
        "busiest": [_busy(activities[name], sample.topics[name], sampler) for name in busiest],
    }


def history_form(points: Iterable[Any]) -> list[list[float]]:
    """A history as rows of time, rate in, rate out and backlog: a third of the text of objects."""
    return [
        [point.time, round(point.rate_in, 1), round(point.rate_out, 1), point.backlog] for point in points
    ]


def _busy(topic: TopicActivity, rates: Rates, sampler: Sampler) -> dict[str, Any]:
    return {
        "name": topic.topic,
        "rateIn": rates.rate_in,
        "rateOut": rates.rate_out,
        "backlog": topic.msg_backlog,
        "history": history_form(sampler.topic_histories.get(topic.topic, ())),
    }


# -- topics ------------------------------------------------------------------------------------------------


def topic_list(
    sample: Sample,
    sampler: Sampler,
    names: Names,
    *,
    search: str,
    order: str,
    is_descending: bool,
    offset: int,
    count: int,
) -> dict[str, Any]:
    """A page of the topics whose names have all words of a search."""
    partitions = names.partitions()
    # The name of a partition finds its topic.
    words = [base_of(word)[0] for word in search.lower().split()]
    wanted = [name for name in partitions if all(word in name.lower() for word in words)]
    rows = _topic_rows(sample, partitions)
    if order == "name":
        # Sorted already, and rows are made for the page alone: of 100,000 topics few are shown.
        if is_descending:
            wanted.reverse()
        page = in_pages(wanted, offset, count, lambda name: _row_of(rows, name, partitions[name]))
    else:
        ordered = [_row_of(rows, name, partitions[name]) for name in wanted]
        ordered.sort(key=TOPIC_ORDERS[order], reverse=is_descending)
        page = in_pages(ordered, offset, count, lambda row: row)
    page["rows"] = [_row_form(row, sampler) for row in page["rows"]]
    page["all"] = len(partitions)
    return page


def _row_of(rows: dict[str, TopicRow], name: str, partitions: int) -> TopicRow:
    return rows.get(name) or TopicRow(name, partitions)


def _topic_rows(sample: Sample, partitions: dict[str, int]) -> dict[str, TopicRow]:
    """The topics that were ever used, by name, those of partitions added up."""
    rows: dict[str, TopicRow] = {}
    stuck: dict[str, int] = {}
    for each in sample.stuck:
        base, _ = base_of(each.topic)
        stuck[base] = stuck.get(base, 0) + (not each.is_waiting)
    for topic in sample.activity.topics:
        base, _ = base_of(topic.topic)
        row = rows.get(base) or TopicRow(base, partitions.get(base, 0))
        rates = sample.topics.get(topic.topic, Rates())
        oldest = topic.earliest_msg_publish_time_in_backlogs
        producers = sum(each.kind == "producer" for each in topic.attached)
        rows[base] = TopicRow(
            base,
            row.partitions,
            row.rate_in + rates.rate_in,
            row.rate_out + rates.rate_out,
            row.backlog + topic.msg_backlog,
            min(row.oldest, oldest) if row.oldest and oldest else row.oldest or oldest,
            row.storage + topic.storage_size,
            max(row.subscriptions, len(topic.subscriptions)),
            row.producers + producers,
            row.consumers + len(topic.attached) - producers,
            stuck.get(base, 0),
        )
    return rows


def _row_form(row: TopicRow, sampler: Sampler) -> dict[str, Any]:
    histories = sampler.topic_histories
    # The history of the first partition would say little of the topic, so a partitioned one has none.
    points = () if row.partitions else histories.get(row.name, ())
    return {
        "name": row.name,
        "partitions": row.partitions,
        "rateIn": row.rate_in,
        "rateOut": row.rate_out,
        "backlog": row.backlog,
        "oldest": row.oldest,
        "storage": row.storage,
        "subscriptions": row.subscriptions,
        "producers": row.producers,
        "consumers": row.consumers,
        "stuck": row.stuck,
        "history": history_form(points),
    }


# -- one topic ---------------------------------------------------------------------------------------------


def topic_detail(admin: Admin, topic: str) -> dict[str, Any]:
    """A topic or partition: its figures, segments and policies; of a partitioned one, its partitions.

    Raises:
        TopicNotFound: there is no such topic.
    """
    topics = admin.topics()
    partitions = topics.get_partitioned_topic_metadata(topic).partitions
    # The segments of a few partitions are drawn; figures are of all.
    logs = [f"{topic}-partition-{number}" for number in range(min(partitions, _PARTITIONS))] or [topic]
    if partitions:
        parts = topics.get_partitioned_stats(topic, True)
        stats = parts.totals.json()
        shares = [
            {
                "name": name,
                "rateIn": each.msg_rate_in,
                "storage": each.storage_size,
                "backlog": max((of.msg_backlog for of in each.subscriptions.values()), default=0),
                "producers": len(each.publishers),
            }
            for name, each in sorted(parts.partitions.items(), key=lambda item: base_of(item[0])[1])
        ]
    else:
        stats, shares = topics.get_stats(topic).json(), []
    return {
        "name": topic,
        "partitions": partitions,
        "shares": shares[:_PARTITIONS],
        "stats": stats,
        "logs": [_log(admin, name) for name in logs],
        "policies": _policies(admin, topic),
    }


def _log(admin: Admin, name: str) -> dict[str, Any]:
    internal = admin.topics().get_internal_stats(name)
    kept = admin.why_kept(name)
    older = kept.ledgers[:-_SEGMENTS]
    return {
        "name": name,
        "state": internal.state,
        "entries": internal.number_of_entries,
        "appended": internal.entries_added_counter,
        "size": internal.total_size,
        "last": internal.last_confirmed_entry,
        "horizon": internal.compaction_horizon,
        "sizeByReason": kept.size_by_reason,
        "sizeBySubscription": kept.size_by_subscription,
        "segments": [_segment(ledger, internal) for ledger in kept.ledgers[-_SEGMENTS:]],
        "older": {
            "segments": len(older),
            "entries": sum(ledger.entries for ledger in older),
            "size": sum(ledger.size for ledger in older),
        },
    }


def _segment(ledger: KeptLedger, internal: TopicInternalStats) -> dict[str, Any]:
    """A segment, with the state in which it is drawn: the first of these that holds."""
    horizon = internal.compaction_horizon
    is_compacted = horizon is not None and (ledger.ledger_id, ledger.entries - 1) <= _pair(horizon)
    if ledger.reason == "open":
        state = "active"
    elif ledger.reason == "to be trimmed":
        state = "reclaimable"
    elif ledger.is_offloaded:
        state = "offloaded"
    else:
        state = "compacted" if is_compacted else "sealed"
    return {
        "ledger": ledger.ledger_id,
        "entries": ledger.entries,
        "size": ledger.size,
        "state": state,
        "reason": ledger.reason,
        "holders": list(ledger.subscriptions),
        "isOffloaded": ledger.is_offloaded,
        "isCompacted": is_compacted,
    }


def _pair(position: str) -> tuple[int, int]:
    ledger, _, entry = position.partition(":")
    return int(ledger), int(entry)


def _policies(admin: Admin, topic: str) -> dict[str, Any]:
    """The policies that decide what is kept, and for whom, as they hold for a topic."""
    topics, namespaces = admin.topics(), admin.namespaces()
    parsed = TopicName.parse(topic)
    namespace = f"{parsed.tenant}/{parsed.namespace}"
    configured = admin.brokers().get_runtime_configuration()
    retention = topics.get_retention(topic) or namespaces.get_retention(namespace)
    minutes, mb = retention or (
        configured["defaultRetentionTimeInMinutes"],
        configured["defaultRetentionSizeInMB"],
    )
    threshold = topics.get_compaction_threshold(topic)
    if threshold is None:
        threshold = namespaces.get_compaction_threshold(namespace)
    quotas = topics.get_backlog_quota_map(topic, True).values()
    return {
        "retentionMinutes": int(minutes),
        "retentionMegabytes": int(mb),
        "timeToLive": topics.get_message_ttl(topic, True) or 0,
        "keepsUntilSubscribed": topics.get_keep_until_subscribed(topic),
        "compactionThreshold": threshold or 0,
        "quotas": [quota.json() if hasattr(quota, "json") else str(quota) for quota in quotas],
    }


def schema_list(admin: Admin, topic: str) -> list[dict[str, Any]]:
    """All versions of the schema of a topic, the newest first."""
    return [
        {
            "version": schema.version,
            "type": schema.type.name,
            "definition": schema.data,
            "properties": schema.properties,
            "time": schema.timestamp,
        }
        for schema in reversed(admin.schemas().get_all_schemas(topic))
    ]


def arrivals(admin: Admin, topic: str, now_ms: int, span_ms: int, count: int) -> dict[str, Any]:
    """How many entries came in during each of the last intervals, by the publish times in the log.

    Args:
        admin: of the store.
        topic: its name; of a partitioned topic, all partitions together.
        now_ms: the end of the last interval, ms since 1970.
        span_ms: of all intervals together.
        count: of intervals; fewer where there are very many partitions.
    """
    topics = admin.topics()
    partitions = topics.get_partitioned_topic_metadata(topic).partitions
    logs = [f"{topic}-partition-{number}" for number in range(min(partitions, _PARTITIONS))] or [topic]
    count = max(min(count, _LOOKUPS // len(logs)), 1)
    times = [now_ms - span_ms + span_ms * number // count for number in range(count + 1)]
    sums = [0] * count
    for log in logs:
        ledgers = topics.get_internal_stats(log).ledgers
        positions = Positions([(ledger.ledger_id, ledger.entries) for ledger in ledgers])
        if not positions.end:
            continue
        ids = [topics.get_message_id_by_timestamp(log, time) for time in times]
        # The id behind the last entry stands for a time at which nothing came any more.
        numbers = [
            positions.end if each.ledger_id() < 0 else positions.number(each.ledger_id(), each.entry_id())
            for each in ids
        ]
        for at, (before, after) in enumerate(pairwise(numbers)):
            sums[at] += max(after - before, 0)
    return {"times": times, "entries": sums, "seconds": span_ms / count / 1000}


def client_list(sample: Sample, topic: str) -> list[dict[str, Any]]:
    """The producers and consumers of a topic, or of all its partitions, with their processes."""
    return [
        {
            "log": activity.topic,
            "kind": attached.kind,
            "name": attached.name,
            "subscription": attached.subscription,
            "pid": attached.pid,
            "program": attached.program,
            "held": attached.unacked_messages,
            "lastAcknowledged": attached.last_acked_timestamp,
        }
        for activity in sample.activity.topics
        if topic in (activity.topic, base_of(activity.topic)[0])
        for attached in activity.attached
    ]


# -- subscriptions -----------------------------------------------------------------------------------------


class SubscriptionRow(NamedTuple):
    """A subscription of the list, all partitions of its topic together."""

    topic: str
    name: str
    type: str
    backlog: int = 0
    held: int = 0
    oldest: int = 0
    rate_out: float = 0.0
    consumers: int = 0
    why: str = ""


SUBSCRIPTION_ORDERS: Final[dict[str, Callable[[SubscriptionRow], Any]]] = {
    "name": lambda row: (row.name, row.topic),
    "topic": lambda row: (row.topic, row.name),
    "backlog": lambda row: row.backlog,
    "oldest": lambda row: -row.oldest if row.oldest else float("-inf"),
    "out": lambda row: row.rate_out,
    "held": lambda row: row.held,
    "consumers": lambda row: row.consumers,
    "why": lambda row: (row.why != "", row.backlog),
}


def subscription_list(
    sample: Sample, *, search: str, topic: str, order: str, is_descending: bool, offset: int, count: int
) -> dict[str, Any]:
    """A page of the subscriptions whose names, or those of their topics, have all words of a search.

    Args:
        sample: of the store.
        search: words.
        topic: only those of this topic, or of its partitions; empty for all.
        order: a key of `SUBSCRIPTION_ORDERS`.
        is_descending: whether the largest come first.
        offset, count: the page.
    """
    words = search.lower().split()
    rows: dict[tuple[str, str], SubscriptionRow] = {}
    for activity in sample.activity.topics:
        base, _ = base_of(activity.topic)
        if topic and topic not in (base, activity.topic):
            continue
        # A partition that is looked at has its own subscriptions, and not those of its topic.
        owner = activity.topic if topic == activity.topic else base
        consumers = _consumers_of(activity)
        for each in activity.subscriptions:
            if not all(word in each.name.lower() or word in owner.lower() for word in words):
                continue
            row = rows.get((owner, each.name)) or SubscriptionRow(owner, each.name, each.type)
            oldest = each.earliest_msg_publish_time_in_backlog
            rows[owner, each.name] = SubscriptionRow(
                owner,
                each.name,
                each.type if row.type == "None" else row.type,
                row.backlog + each.msg_backlog,
                row.held + each.unacked_messages,
                min(row.oldest, oldest) if row.oldest and oldest else row.oldest or oldest,
                row.rate_out + sample.subscriptions.get((activity.topic, each.name), 0.0),
                row.consumers + consumers.get(each.name, 0),
                row.why or reason_of(each, sample.activity.time_ms),
            )
    ordered = sorted(rows.values(), key=SUBSCRIPTION_ORDERS[order], reverse=is_descending)
    return in_pages(ordered, offset, count, _subscription_row_form)


def _consumers_of(activity: TopicActivity) -> dict[str, int]:
    counts: dict[str, int] = {}
    for attached in activity.attached:
        if attached.kind == "consumer":
            counts[attached.subscription] = counts.get(attached.subscription, 0) + 1
    return counts


def _subscription_row_form(row: SubscriptionRow) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "name": row.name,
        "type": row.type,
        "backlog": row.backlog,
        "held": row.held,
        "oldest": row.oldest,
        "rateOut": row.rate_out,
        "consumers": row.consumers,
        "why": row.why,
    }


def subscription_detail(admin: Admin, sample: Sample, topic: str, name: str) -> dict[str, Any]:
    """A subscription of a topic, log by log: its figures, what is acknowledged, and its consumers.

    Raises:
        TopicNotFound: there is no such topic.
        SubscriptionNotFound: there is no such subscription.
    """
    topics = admin.topics()
    partitions = topics.get_partitioned_topic_metadata(topic).partitions
    logs = [f"{topic}-partition-{number}" for number in range(min(partitions, _PARTITIONS))] or [topic]
    shown = [_subscribed_log(admin, sample, log, name) for log in logs]
    of_logs = [log for log in shown if log is not None]
    if not of_logs:
        raise SubscriptionNotFound(f"{topic} has no subscription {name!r}")
    return {"topic": topic, "name": name, "partitions": partitions, "logs": of_logs}


def _subscribed_log(admin: Admin, sample: Sample, log: str, name: str) -> dict[str, Any] | None:
    topics = admin.topics()
    stats = topics.get_stats(log).subscriptions.get(name)
    if stats is None:
        return None
    internal = topics.get_internal_stats(log)
    # Nothing of a non-persistent topic is kept until it is acknowledged.
    is_volatile = log.startswith("non-persistent://")
    activity = next((each for each in sample.activity.topics if each.topic == log), None)
    attached = {}
    why = ""
    if activity is not None:
        attached = {each.name: each for each in activity.attached if each.subscription == name}
        now_ms = sample.activity.time_ms
        why = next((reason_of(each, now_ms) for each in activity.subscriptions if each.name == name), "")
    return {
        "log": log,
        "stats": stats.json(),
        "rateOut": sample.subscriptions.get((log, name), 0.0),
        "why": why,
        "ranges": _ranges(internal, None if is_volatile else internal.cursors.get(name)),
        "consumers": [
            consumer.json() | _process(attached.get(consumer.consumer_name)) for consumer in stats.consumers
        ],
    }


def _process(attached: Attached | None) -> dict[str, Any]:
    return {} if attached is None else {"pid": attached.pid, "program": attached.program}


def _ranges(internal: TopicInternalStats, cursor: CursorStats | None) -> dict[str, Any]:
    """What is acknowledged, in entries that are counted from the first one of the log."""
    positions = Positions([(ledger.ledger_id, ledger.entries) for ledger in internal.ledgers])
    segments = [
        {
            "ledger": ledger.ledger_id,
            "begin": positions.number(ledger.ledger_id, 0),
            "entries": ledger.entries,
        }
        for ledger in internal.ledgers
        if ledger.entries
    ]
    shown: dict[str, Any] = {"entries": positions.end, "segments": segments, "mark": None, "runsTotal": 0}
    # Subscriptions that are not durable have no cursor that outlives their consumers.
    if cursor is None:
        return shown | {"acknowledged": 0, "columns": _columns([], positions.end)}
    ledger, entry = _pair(cursor.mark_delete_position)
    runs = [(0, positions.number(ledger, entry + 1))]
    runs += [
        (positions.number(int(first), int(before) + 1), positions.number(int(last), int(end) + 1))
        for first, before, last, end in _INTERVAL.findall(cursor.individually_deleted_messages)
    ]
    return shown | {
        "mark": cursor.mark_delete_position,
        "runsTotal": len(runs) - 1,
        "acknowledged": sum(end - begin for begin, end in runs),
        "columns": _columns(runs, positions.end),
    }


def _columns(runs: list[tuple[int, int]], end: int) -> list[float]:
    """Which share of its entries is acknowledged, for each of some columns along a log.

    Runs may be many thousands, of single entries; drawn one by one they would hide what is between them.

    Example:
        >>> _columns([(0, 2), (3, 4)], 4)
        [1.0, 1.0, 0.0, 1.0]
    """
    count = min(end, _COLUMNS)
    shares = [0.0] * count
    for begin, behind in runs:
        column = begin * count // end if end else 0
        while column < count and column * end < behind * count:
            # In units of an entry divided by the number of columns, which are whole.
            low = max(begin * count, column * end)
            high = min(behind * count, (column + 1) * end)
            shares[column] += max(high - low, 0) / end
            column += 1
    return [round(share, 3) for share in shares]


# -- dead letters ------------------------------------------------------------------------------------------


def letter_topics(admin: Admin, names: Names) -> list[dict[str, Any]]:
    """The topics of dead letters by their names, with the subscriptions that they belong to."""
    partitions = names.partitions()
    shown = []
    for name in partitions:
        if not name.endswith(DEAD):
            continue
        origin, subscription = origin_of(admin, partitions, name)
        letters = admin.dead_letters(origin or name, subscription, name)
        shown.append({"topic": name, "origin": origin, "subscription": subscription} | _letters_in(letters))
    return sorted(shown, key=lambda each: -each["letters"])


def _letters_in(letters: DeadLetters) -> dict[str, Any]:
    # As many as `replay_all` would take; beyond that, "1000 or more" is said.
    first = letters.list(1000)
    return {
        "letters": len(first),
        "isMore": len(first) == 1000,
        "oldest": first[0].publish_timestamp if first else 0,
    }


def origin_of(admin: Admin, partitions: dict[str, int], name: str) -> tuple[str, str]:
    """The topic and the subscription of a topic of dead letters; empty texts if neither is known.

    The name is TOPIC-SUBSCRIPTION-DLQ, and both may have dashes: it is cut where a topic has a subscription.
    """
    stem = name.removesuffix(DEAD)
    cut = len(stem)
    candidates = []
    while (cut := stem.rfind("-", 0, cut)) > 0:
        if stem[:cut] in partitions:
            candidates.append((stem[:cut], stem[cut + 1 :]))
    for topic, subscription in candidates:
        if subscription in admin.topics().get_subscriptions(topic):
            return topic, subscription
    return candidates[0] if candidates else ("", "")


def letter_list(letters: DeadLetters, count: int) -> list[dict[str, Any]]:
    """The first dead letters, with all that is known of why they failed."""
    described = letters.list(count)
    return [
        {
            "origin": each.origin_topic,
            "originId": each.origin_message_id,
            "deadSince": each.publish_timestamp,
        }
        | message_form(message)
        for each, message in zip(described, letters.peek(count), strict=False)
        if each.message_id == message.message_id()
    ]


# -- functions and transactions ----------------------------------------------------------------------------


def function_list(admin: Admin) -> list[dict[str, Any]]:
    """All functions, with how they do."""
    functions = admin.functions()
    shown = []
    for tenant in admin.tenants().get_tenants():
        for namespace in admin.namespaces().get_namespaces(tenant):
            own = namespace.partition("/")[2]
            shown += [
                {"name": f"{namespace}/{name}"} | _function(functions, tenant, own, name)
                for name in functions.get_functions(tenant, own)
            ]
    return shown


def _function(functions: Functions, tenant: str, namespace: str, name: str) -> dict[str, Any]:
    try:
        config = functions.get_function(tenant, namespace, name)
        status = functions.get_function_status(tenant, namespace, name)
    # One that is damaged, or that a newer release wrote, must not hide the others.
    except PulsarException as error:
        return {"error": str(error)}
    return {"config": config.json(), "status": status.json()}


def transaction_list(admin: Admin) -> dict[str, Any]:
    """The transactions that have not ended, the oldest first, and how many did."""
    transactions = admin.transactions()
    stats = transactions.get_coordinator_stats_by_id(0)
    slow = transactions.get_slow_transactions(0)
    return {"stats": stats.json(), "open": [transaction.json() for transaction in slow.values()]}


# -- health ------------------------------------------------------------------------------------------------


def health_of(served: Served, sample: Sample) -> dict[str, Any]:
    """Whether the store can be used, what is damaged, and which processes use it."""
    processes: dict[int, dict[str, Any]] = {}
    for activity in sample.activity.topics:
        for attached in activity.attached:
            process = processes.setdefault(
                attached.pid,
                {"pid": attached.pid, "program": attached.program, "producers": 0, "consumers": 0, "held": 0},
            )
            process[f"{attached.kind}s"] += 1
            process["held"] += attached.unacked_messages
    usage = shutil.disk_usage(root_of(served.admin))
    return {
        "checks": [check._asdict() for check in readiness(served)],
        "disk": {"total": usage.total, "used": usage.used, "free": usage.free, "store": sample.storage},
        "path": root_of(served.admin),
        "formatVersion": served.admin.format_version(),
        "processes": sample.activity.processes,
        "attached": sorted(processes.values(), key=lambda process: -process["held"])[:_STUCK],
        "damage": [{"kind": damage.kind, "text": str(damage)} for damage in served.damage()[-_STUCK:]],
        "unread": [{"topic": unread.topic, "reason": unread.reason} for unread in sample.activity.unread],
        "unrecovered": list(sample.activity.unrecovered),
    }


def check_of(admin: Admin, topic: str) -> dict[str, Any]:
    """Read all of a topic, and say what is damaged. Takes as long as reading its files."""
    report = admin.check(topic)
    return {
        "messages": report.messages,
        "segments": report.ledgers,
        "damage": [
            {"kind": each.kind, "text": each.text, "meaning": each.meaning, "remedy": each.remedy}
            for each in report.damage[:_STUCK]
        ],
        "notes": len(report.notes),
    }
