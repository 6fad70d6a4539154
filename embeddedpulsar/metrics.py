"""Metrics of a whole store for Prometheus, with Pulsar's names, computed when they are scraped.

Needs the extra ``metrics``. All state of a store is in files that processes share, so one process shows what
all of them do, with or without clients of its own.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Self

from embeddedpulsar._engine.platform import threads, timing
from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.exceptions import PulsarException
from embeddedpulsar.records import NamedTuple

try:
    from prometheus_client.core import Metric
    from prometheus_client.samples import Sample
    from prometheus_client.utils import floatToGoString
except ImportError as e:
    if (e.name or "").partition(".")[0] != "prometheus_client":
        raise
    raise ImportError(
        'metrics need prometheus_client: pip install "embeddedpulsar[metrics]"', name=e.name
    ) from e

if TYPE_CHECKING:
    from embeddedpulsar.admin.activity import StoreStats, TopicFigures
    from embeddedpulsar.admin.topic_stats import SubscriptionStats
    from embeddedpulsar.client.client import Client
    from embeddedpulsar.functions.state import InstanceStatus

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Of what `exposition` returns."""
OTHERS: Final = ""
"""The value of a label of what is added up beyond the bounds; to Prometheus, a label that is missing."""
_RATE_MS: Final = 30_000
_FUNCTIONS_MS: Final = 15_000
_DEAD_LETTERS: Final = "__dead_letters"
_DEAD_LETTER_SUFFIX: Final = "-DLQ"

Value = float | None
Labels = dict[str, str]


def _earliest(times_ms: Iterable[float]) -> float:
    return min(filter(None, times_ms), default=0.0)


class _Column(NamedTuple):
    """A metric: its name, kind and help, and how values of several topics become one. A row has times in the
    place of ages, so that it holds as long as nothing happens."""

    name: str
    kind: str
    text: str
    add: Callable[[Iterable[float]], float] = sum


_TOPIC: Final = (
    _Column("pulsar_subscriptions_count", "gauge", "Subscriptions."),
    _Column("pulsar_producers_count", "gauge", "Connected producers."),
    _Column("pulsar_consumers_count", "gauge", "Attached consumers."),
    _Column("pulsar_rate_in", "gauge", "Messages published a second, of the last minute."),
    _Column("pulsar_rate_out", "gauge", "Messages acknowledged a second, of half a minute to a minute."),
    _Column("pulsar_throughput_in", "gauge", "Bytes published a second, of the last minute."),
    _Column("pulsar_average_msg_size", "gauge", "Bytes of a message of the last minute.", max),
    _Column("pulsar_in_messages_total", "counter", "Messages published."),
    _Column("pulsar_in_bytes_total", "counter", "Bytes published, as they are stored."),
    _Column("pulsar_msg_backlog", "gauge", "Messages not acknowledged, of all subscriptions."),
    _Column("pulsar_storage_size", "gauge", "Bytes of all retained messages."),
    _Column("pulsar_storage_logical_size", "gauge", "The same: nothing is replicated."),
    _Column("pulsar_storage_offloaded_size", "gauge", "Bytes of them in an offload location."),
    _Column("pulsar_storage_backlog_size", "gauge", "Bytes from the first message not acknowledged on."),
    _Column("pulsar_storage_backlog_age_seconds", "gauge", "Age of that message; -1 for none.", _earliest),
    _Column("pulsar_publish_rate_limit_times", "gauge", "Times that a producer waited for the publish rate."),
    _Column("pulsar_txn_tb_active_total", "gauge", "Open transactions with messages in the topic."),
    _Column("pulsar_txn_tb_committed_total", "counter", "Transactions that were committed."),
    _Column("pulsar_txn_tb_aborted_total", "counter", "Transactions that were aborted."),
    _Column("embeddedpulsar_waiting_producers", "gauge", "Producers that wait for exclusive access."),
    _Column("embeddedpulsar_stored_messages", "gauge", "Retained messages, acknowledged or not."),
)
_SUBSCRIPTION: Final = (
    _Column("pulsar_subscription_back_log", "gauge", "Messages not acknowledged."),
    _Column("pulsar_subscription_back_log_no_delayed", "gauge", "The same without delayed ones."),
    _Column("pulsar_subscription_delayed", "gauge", "Messages that are not due yet."),
    _Column("pulsar_subscription_unacked_messages", "gauge", "Messages that consumers hold."),
    _Column("pulsar_subscription_blocked_on_unacked_messages", "gauge", "1: they may hold no more.", max),
    _Column("pulsar_subscription_consumers_count", "gauge", "Attached consumers."),
    _Column("pulsar_subscription_msg_rate_out", "gauge", "Messages acknowledged a second."),
    _Column("pulsar_out_messages_total", "counter", "Messages published and not in the backlog."),
    _Column("pulsar_subscription_msg_rate_expired", "gauge", "Messages expired a second."),
    _Column("pulsar_subscription_total_msg_expired", "gauge", "Messages expired."),
    _Column("pulsar_subscription_last_expire_timestamp", "gauge", "When messages expired, in ms.", max),
    _Column("pulsar_subscription_last_acked_timestamp", "gauge", "When a consumer acknowledged, in ms.", max),
    _Column("pulsar_subscription_msg_drop_rate", "gauge", "Messages dropped a second."),
    _Column("embeddedpulsar_subscription_oldest_message_age_seconds", "gauge",
            "Age of the first message not acknowledged; -1 for none.", _earliest),
    _Column("embeddedpulsar_subscription_stuck_consumers", "gauge",
            "Consumers that hold the oldest message and acknowledged nothing for a second."),
)  # fmt: skip
_NAMESPACE: Final = (
    _Column("pulsar_topics_count", "gauge", "Topics and partitions."),
    _Column("embeddedpulsar_dead_letters", "gauge", "Dead letters that were neither replayed nor purged."),
)
_STORE: Final = (
    _Column("pulsar_broker_topics_count", "gauge", "Topics and partitions of the store."),
    _Column("pulsar_broker_subscriptions_count", "gauge", "Subscriptions of the store."),
    _Column("pulsar_broker_producers_count", "gauge", "Producers of the store."),
    _Column("pulsar_broker_consumers_count", "gauge", "Consumers of the store."),
    _Column("pulsar_broker_rate_in", "gauge", "Messages published a second."),
    _Column("pulsar_broker_rate_out", "gauge", "Messages acknowledged a second."),
    _Column("pulsar_broker_throughput_in", "gauge", "Bytes published a second."),
    _Column("pulsar_broker_msg_backlog", "gauge", "Messages not acknowledged."),
    _Column("pulsar_broker_storage_size", "gauge", "Bytes of all retained messages."),
    _Column("pulsar_broker_storage_logical_size", "gauge", "The same."),
    _Column("embeddedpulsar_processes", "gauge", "Processes that have the store open."),
    _Column("embeddedpulsar_topics_unread", "gauge", "Topics that cannot be read, by damage or rights."),
    _Column("embeddedpulsar_topics_pending", "gauge", "Topics for which the scrape had no time."),
    _Column("embeddedpulsar_topics_unrecovered", "gauge", "Topics whose figures may be behind."),
    _Column("embeddedpulsar_scrape_seconds", "gauge", "How long this scrape took to read the store."),
)
_FROM_TOPICS: Final = {
    "pulsar_broker_subscriptions_count": "pulsar_subscriptions_count",
    "pulsar_broker_producers_count": "pulsar_producers_count",
    "pulsar_broker_consumers_count": "pulsar_consumers_count",
    "pulsar_broker_rate_in": "pulsar_rate_in",
    "pulsar_broker_rate_out": "pulsar_rate_out",
    "pulsar_broker_throughput_in": "pulsar_throughput_in",
    "pulsar_broker_msg_backlog": "pulsar_msg_backlog",
    "pulsar_broker_storage_size": "pulsar_storage_size",
    "pulsar_broker_storage_logical_size": "pulsar_storage_logical_size",
}
_TRANSACTIONS: Final = (
    _Column("pulsar_txn_active_count", "gauge", "Open transactions."),
    _Column("pulsar_txn_created_total", "counter", "Transactions begun."),
    _Column("pulsar_txn_committed_total", "counter", "Transactions committed."),
    _Column("pulsar_txn_aborted_total", "counter", "Transactions aborted."),
    _Column("embeddedpulsar_txn_prepared_count", "gauge", "Transactions that wait for their end."),
)
_FUNCTION: Final = (
    _Column("pulsar_function_received_total", "counter", "Messages that an instance took."),
    _Column("pulsar_function_processed_successfully_total", "counter", "Calls that returned."),
    _Column("pulsar_function_user_exceptions_total", "counter", "Calls that raised."),
    _Column("pulsar_function_system_exceptions_total", "counter", "Failures outside of the function."),
    _Column("pulsar_function_last_invocation", "gauge", "When it was called last, in ms."),
    _Column("embeddedpulsar_function_average_latency_ms", "gauge", "Of all calls."),
    _Column("embeddedpulsar_function_running", "gauge", "1: the instance lives and has subscribed."),
)
_PLACES: Final = {column.name: place for place, column in enumerate(_TOPIC)}
_SUBSCRIPTION_PLACES: Final = {column.name: place for place, column in enumerate(_SUBSCRIPTION)}
_RANK: Final = [_PLACES[name] for name in ("pulsar_msg_backlog", "pulsar_rate_in", "pulsar_storage_size")]
_TOPIC_AGE: Final = _PLACES["pulsar_storage_backlog_age_seconds"]
_SUBSCRIPTION_AGE: Final = _SUBSCRIPTION_PLACES["embeddedpulsar_subscription_oldest_message_age_seconds"]


class Series(NamedTuple):
    """Metrics that have their labels in common: a line has a value for each of the columns, or None."""

    columns: tuple[_Column, ...]
    lines: list[tuple[Labels, Sequence[Value]]]


class _Row(NamedTuple):
    """The values of a topic, and of its subscriptions.

    Attributes:
        namespace: of the topic.
        letters: dead letters; None if it is no topic of them.
        rank: what is less is shown before.
    """

    values: tuple[Value, ...]
    subscriptions: dict[str, tuple[Value, ...]]
    namespace: str = ""
    letters: int | None = None
    rank: tuple[float, ...] = ()


class StoreCollector:
    """A collector of ``prometheus_client`` for one store. `collector` makes it.

    `collect` reads the store: topics at rest cost 15 us each, topics in use about a millisecond. Thread-safe;
    a second scrape waits for the first. Nothing is changed, and no lock of the store is taken. A ``with``
    block closes it at the end.
    """

    def __init__(
        self,
        admin: Admin,
        *,
        is_owner: bool,
        cluster: str,
        topics: int,
        subscriptions: int,
        namespaces: int,
        budget_s: float,
    ) -> None:
        self._admin: Final = admin
        self._is_owner: Final = is_owner
        self._cluster: Final = cluster
        self._bounds: Final = (topics, subscriptions, namespaces)
        self._budget_s: Final = budget_s
        self._watch: Final = self._admin.statistics()
        self._rows: dict[str, tuple[TopicFigures, TopicFigures | None, _Row]] = {}
        # Two earlier reads of the store, so that rates are those of half a minute, however often is scraped.
        self._earlier: list[tuple[int, dict[str, TopicFigures]]] = []
        self._functions: dict[str, tuple[int, tuple[InstanceStatus, ...]]] = {}
        self._lock: Final = threads.RLock()

    def close(self) -> None:
        """Close the Admin that it made for a client. Idempotent."""
        if self._is_owner:
            self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def describe(self) -> Iterator[Metric]:
        """The metrics without samples: a registry asks for their names, and the store need not be read."""
        for column in _all_columns():
            yield _metric(column, [])

    def collect(self) -> list[Metric]:
        """Read the store.

        Raises:
            AlreadyClosed: the client or Admin is closed.
            StorageError: the store cannot be read.
        """
        return metrics_of(self.series())

    def series(self) -> list[Series]:
        """The same before it is made samples of, one for each value, which takes longer than to write it."""
        try:
            self._lock.acquire()
            return self._read()
        finally:
            self._lock.release()

    def _read(self) -> list[Series]:
        begin = timing.SYSTEM_CLOCK.monotonic()
        stats = self._watch.read(self._budget_s)
        figures = {topic.topic: topic for topic in stats.topics}
        rows = self._rows_of(stats, figures)
        topics, subscriptions = Series(_TOPIC, []), Series(_SUBSCRIPTION, [])
        for labels, row in self._shown(rows):
            topics.lines.append((labels, _with_age(row.values, _TOPIC_AGE, stats.time_ms)))
            for name, values in row.subscriptions.items():
                aged = _with_age(values, _SUBSCRIPTION_AGE, stats.time_ms)
                subscriptions.lines.append(({**labels, "subscription": name}, aged))
        namespaces, transactions = self._namespaces(rows), self._transactions()
        functions = self._series_of_functions(stats.time_ms, begin + self._budget_s)
        store = self._series_of_store(stats, rows, timing.SYSTEM_CLOCK.monotonic() - begin)
        return [topics, subscriptions, namespaces, store, transactions, functions]

    # -- the values of topics ------------------------------------------------------------------------------

    def _rows_of(self, stats: StoreStats, figures: dict[str, TopicFigures]) -> dict[str, _Row]:
        now_ms = stats.time_ms
        if self._earlier and now_ms < self._earlier[-1][0]:  # the clock was set back
            self._earlier = []
        before_ms, before = self._earlier[0] if self._earlier else (now_ms, {})
        if before_ms == now_ms:  # no time has passed, so there is no rate
            before = {}
        known: dict[str, tuple[TopicFigures, TopicFigures | None, _Row]] = {}
        for name, topic in figures.items():
            kept, earlier = self._rows.get(name), before.get(name)
            # The same objects: nothing changed, also since the earlier read, so that the rate is still 0; or
            # the earlier read had no time for the topic, and there is no rate.
            is_known = kept is not None and kept[0] is topic and kept[1] is earlier
            if kept is not None and is_known and (earlier is topic or earlier is None):
                known[name] = kept
            else:
                known[name] = (topic, earlier, _row(topic, earlier, now_ms - before_ms))
        if not self._earlier or now_ms - self._earlier[-1][0] >= _RATE_MS:
            self._earlier = [*self._earlier[-1:], (now_ms, figures)]
        self._rows = known
        return {name: row for name, (*_, row) in known.items()}

    # -- series --------------------------------------------------------------------------------------------

    def _shown(self, rows: dict[str, _Row]) -> Iterator[tuple[Labels, _Row]]:
        """The topics with series of their own, then the others, added up by namespace."""
        shown = _shown_topics(rows, self._bounds[0])
        rest: dict[str, list[_Row]] = {}
        for name in rows.keys() - shown:
            row = rows[name]
            rest.setdefault(row.namespace, []).append(row)
        for name in shown:
            yield self._labels(rows[name].namespace, name), self._bounded(rows[name])
        # The namespaces with most topics have series of their own.
        listed = heapq.nsmallest(
            self._bounds[2], rest, key=lambda namespace: (-len(rest[namespace]), namespace)
        )
        others = [row for namespace in rest.keys() - set(listed) for row in rest[namespace]]
        for namespace in sorted(listed):
            yield self._labels(namespace, OTHERS), _sum_of(rest[namespace])
        if others:
            yield self._labels(OTHERS, OTHERS), _sum_of(others)

    def _labels(self, namespace: str, topic: str) -> Labels:
        return {"cluster": self._cluster, "namespace": namespace, "topic": topic}

    def _bounded(self, row: _Row) -> _Row:
        """A topic whose subscriptions beyond the bound are added up."""
        subscriptions = row.subscriptions
        if len(subscriptions) <= self._bounds[1]:
            return row
        backlog = _SUBSCRIPTION_PLACES["pulsar_subscription_back_log"]
        listed = heapq.nsmallest(
            self._bounds[1], subscriptions, key=lambda name: (-(subscriptions[name][backlog] or 0), name)
        )
        rest = [subscriptions[name] for name in subscriptions.keys() - set(listed)]
        shown = {name: subscriptions[name] for name in sorted(listed)}
        return row._replace(subscriptions={**shown, OTHERS: _added(_SUBSCRIPTION, rest)})

    def _namespaces(self, rows: dict[str, _Row]) -> Series:
        counts: dict[str, int] = {}
        for row in rows.values():
            counts[row.namespace] = counts.get(row.namespace, 0) + 1
        listed = heapq.nsmallest(
            self._bounds[2], counts, key=lambda namespace: (-counts[namespace], namespace)
        )
        shown = {namespace: counts[namespace] for namespace in sorted(listed)}
        if len(shown) < len(counts):
            shown[OTHERS] = sum(counts.values()) - sum(shown.values())
        series = Series(_NAMESPACE, [])
        for namespace, count in shown.items():
            series.lines.append(({"cluster": self._cluster, "namespace": namespace}, (count, None)))
        letters = {name: row.letters for name, row in rows.items() if row.letters is not None}
        first = heapq.nsmallest(self._bounds[0], letters, key=lambda name: (-letters[name], name))
        for name in sorted(first):
            series.lines.append((self._labels(rows[name].namespace, name), (None, letters[name])))
        if len(letters) > len(first):
            rest = sum(letters.values()) - sum(letters[name] for name in first)
            series.lines.append((self._labels(OTHERS, OTHERS), (None, rest)))
        return series

    def _transactions(self) -> Series:
        series = Series(_TRANSACTIONS, [])
        for number, stats in self._admin.transactions().get_coordinator_stats().items():
            values = (
                stats.ongoing_txn_size,
                stats.least_sig_bits,
                stats.committed_txn_count,
                stats.aborted_txn_count,
                stats.prepared_txn_size,
            )
            series.lines.append(({"cluster": self._cluster, "coordinator_id": str(number)}, values))
        return series

    def _series_of_functions(self, now_ms: int, end: float) -> Series:
        functions, series = self._admin.functions(), Series(_FUNCTION, [])
        known: dict[str, tuple[int, tuple[InstanceStatus, ...]]] = {}
        for full_name in functions.get_all_functions()[: self._bounds[0]]:
            tenant, namespace, name = full_name.split("/")
            read_ms, instances = self._functions.get(full_name, (0, ()))
            # Its state topic is read for its counters, which takes some milliseconds.
            if abs(now_ms - read_ms) >= _FUNCTIONS_MS and timing.SYSTEM_CLOCK.monotonic() < end:
                with contextlib.suppress(PulsarException):  # it was deleted meanwhile, or is damaged
                    status = functions.get_function_status(tenant, namespace, name)
                    read_ms, instances = now_ms, status.instances
            known[full_name] = (read_ms, instances)
            for instance in instances:
                labels = {
                    "cluster": self._cluster,
                    "tenant": tenant,
                    "namespace": f"{tenant}/{namespace}",
                    "name": name,
                    "fqfn": full_name,
                    "instance_id": str(instance.instance_id),
                }
                series.lines.append((labels, _values_of(instance)))
        self._functions = known
        return series

    def _series_of_store(self, stats: StoreStats, rows: dict[str, _Row], seconds: float) -> Series:
        total = _added(_TOPIC, [row.values for row in rows.values()])
        own: dict[str, Value] = {
            "pulsar_broker_topics_count": len(rows) + len(stats.unread),
            "embeddedpulsar_processes": stats.processes,
            "embeddedpulsar_topics_unread": len(stats.unread),
            "embeddedpulsar_topics_pending": stats.pending,
            "embeddedpulsar_topics_unrecovered": len(stats.unrecovered),
            "embeddedpulsar_scrape_seconds": seconds,
        }
        values = [
            total[_PLACES[_FROM_TOPICS[column.name]]] if column.name in _FROM_TOPICS else own[column.name]
            for column in _STORE
        ]
        return Series(_STORE, [({"cluster": self._cluster}, values)])


def _all_columns() -> tuple[_Column, ...]:
    return (*_TOPIC, *_SUBSCRIPTION, *_NAMESPACE, *_STORE, *_TRANSACTIONS, *_FUNCTION)


def _metric(column: _Column, samples: list[Sample]) -> Metric:
    # The format has the name of a counter without its end, and puts that there again.
    metric = Metric(column.name.removesuffix("_total"), column.text, column.kind)
    if column.kind == "gauge":
        metric.name = column.name
    metric.samples = samples
    return metric


def _namespace_of(topic: str) -> str:
    return topic.partition("://")[2].rpartition("/")[0]


def _shown_topics(rows: dict[str, _Row], bound: int) -> list[str]:
    """The topics with series of their own: those with the largest backlog, then rate, then size."""
    if len(rows) <= bound:
        return list(rows)
    return sorted(heapq.nsmallest(bound, rows, key=lambda name: (rows[name].rank, name)))


def _row(topic: TopicFigures, before: TopicFigures | None, since_ms: int) -> _Row:
    stats = topic.stats
    subscriptions: dict[str, tuple[Value, ...]] = {}
    rates: list[float] = []
    for name, subscription in stats.subscriptions.items():
        earlier = None if before is None else before.stats.subscriptions.get(name)
        rate: Value = None
        # A subscription that was moved back between two scrapes has less acknowledged, and no rate below 0.
        if earlier is not None and before is not None:
            gone = _gone(topic, subscription) - _gone(before, earlier)
            rate = max(gone, 0) * 1000 / since_ms
            rates.append(rate)
        subscriptions[name] = _subscription_values(topic, subscription, rate)
    consumers = sum(len(subscription.consumers) for subscription in stats.subscriptions.values())
    values: tuple[Value, ...] = (
        len(stats.subscriptions),
        len(stats.publishers),
        consumers,
        stats.msg_rate_in,
        None if before is None else sum(rates),
        stats.msg_throughput_in,
        stats.average_msg_size,
        stats.msg_in_counter,
        stats.bytes_in_counter,
        sum(subscription.msg_backlog for subscription in stats.subscriptions.values()),
        stats.storage_size,
        stats.storage_size,
        stats.offloaded_storage_size,
        stats.backlog_size,
        stats.earliest_msg_publish_time_in_backlogs,
        stats.publish_rate_limited_times,
        stats.ongoing_txn_count,
        stats.committed_txn_count,
        stats.aborted_txn_count,
        stats.waiting_publishers,
        topic.stored_messages,
    )
    letters = _dead_letters(topic) if _is_of_letters(topic.topic) else None
    rank = tuple([-(values[place] or 0.0) for place in _RANK])
    return _Row(values, subscriptions, _namespace_of(topic.topic), letters, rank)


def _subscription_values(
    topic: TopicFigures, subscription: SubscriptionStats, rate_out: Value
) -> tuple[Value, ...]:
    return (
        subscription.msg_backlog,
        subscription.msg_backlog_no_delayed,
        subscription.msg_delayed,
        subscription.unacked_messages,
        subscription.blocked_subscription_on_unacked_msgs,
        len(subscription.consumers),
        rate_out,
        _gone(topic, subscription),
        subscription.msg_rate_expired,
        subscription.total_msg_expired,
        subscription.last_expire_timestamp,
        max((consumer.last_acked_timestamp for consumer in subscription.consumers), default=0),
        subscription.msg_drop_rate,
        subscription.earliest_msg_publish_time_in_backlog,
        sum(1 for consumer in subscription.consumers if consumer.held_since is not None),
    )


def _gone(topic: TopicFigures, subscription: SubscriptionStats) -> int:
    """Messages that were published and that a subscription does not wait for any more."""
    return max(
        topic.stats.msg_in_counter - subscription.msg_backlog - (subscription.msg_drop_counter or 0), 0
    )


def _with_age(values: tuple[Value, ...], place: int, now_ms: int) -> tuple[Value, ...]:
    """The values with an age in the place of a time."""
    time_ms = values[place]
    age_s = max(now_ms - time_ms, 0) / 1000 if time_ms else -1.0
    return (*values[:place], age_s, *values[place + 1 :])


def _sum_of(rows: Sequence[_Row]) -> _Row:
    """Topics added up. Their subscriptions, which have nothing in common, are one."""
    subscriptions = [values for row in rows for values in row.subscriptions.values()]
    added = {OTHERS: _added(_SUBSCRIPTION, subscriptions)} if subscriptions else {}
    return _Row(_added(_TOPIC, [row.values for row in rows]), added)


def _added(columns: Sequence[_Column], rows: Sequence[Sequence[Value]]) -> tuple[Value, ...]:
    if not rows:
        return tuple(0.0 for _ in columns)
    added: list[Value] = []
    for column, values in zip(columns, zip(*rows, strict=True), strict=True):
        numbers = [value for value in values if value is not None] if None in values else values
        added.append(column.add(numbers) if numbers else None)
    return tuple(added)


def _is_of_letters(topic: str) -> bool:
    # A partition of such a topic ends with its number.
    return topic.rpartition("-partition-")[0].endswith(_DEAD_LETTER_SUFFIX) or topic.endswith(
        _DEAD_LETTER_SUFFIX
    )


def _dead_letters(topic: TopicFigures) -> int:
    operators = topic.stats.subscriptions.get(_DEAD_LETTERS)
    return topic.stored_messages if operators is None else operators.msg_backlog


def _values_of(instance: InstanceStatus) -> tuple[Value, ...]:
    return (
        instance.num_received,
        instance.num_successfully_processed,
        instance.num_user_exceptions,
        instance.num_system_exceptions,
        instance.last_invocation_time,
        instance.average_latency,
        instance.running,
    )


def collector(
    store: Client | Admin,
    *,
    cluster: str = "embeddedpulsar",
    topics: int = 100,
    subscriptions: int = 20,
    namespaces: int = 100,
    budget_s: float = 5.0,
) -> StoreCollector:
    """Make a collector, to be registered where a program has its other metrics.

    The number of series is bounded however many topics there are. Beyond ``topics``, those with the largest
    backlog have series of their own, then those with the highest rate, then the largest. The others are
    added up, by namespace, in series whose label ``topic`` is empty; sums over a metric are right in any
    case.

    Args:
        store: a client, for which the collector has an Admin of its own; or an Admin.
        cluster: the value of the label ``cluster``.
        topics: most topics with series of their own; likewise most functions, and topics of dead letters.
        subscriptions: most subscriptions of a topic: those with the largest backlog. The others are one
            series, whose label ``subscription`` is empty.
        namespaces: most namespaces by which the other topics are added up.
        budget_s: seconds after which a scrape opens no more topics. ``embeddedpulsar_topics_pending`` has how
            many were left; the next scrape goes on there.

    Raises:
        ValueError: a bound is below 0; or the client is one of ``memory://`` without a name.
        StorageError: the store cannot be used.

    Example:
        >>> from prometheus_client import CollectorRegistry
        >>> from embeddedpulsar import Client
        >>> registry = CollectorRegistry()
        >>> with Client("./data") as client, collector(client) as metrics:
        ...     registry.register(metrics)
        ...     consumer = client.subscribe("kettles", "kitchen")
        ...     message_id = client.create_producer("kettles").send(b"on")
        ...     labels = {"cluster": "embeddedpulsar", "namespace": "public/default"}
        ...     labels |= {"topic": "persistent://public/default/kettles", "subscription": "kitchen"}
        ...     registry.get_sample_value("pulsar_subscription_back_log", labels)
        1.0
    """
    if min(topics, subscriptions, namespaces) < 0 or budget_s < 0:
        raise ValueError("topics, subscriptions, namespaces and budget_s are 0 or more")
    is_owner = not isinstance(store, Admin)
    return StoreCollector(
        store if isinstance(store, Admin) else Admin(store.get_service_info().service_url),
        is_owner=is_owner,
        cluster=cluster,
        topics=topics,
        subscriptions=subscriptions,
        namespaces=namespaces,
        budget_s=budget_s,
    )


def exposition(metrics: StoreCollector) -> bytes:
    """Return what a scrape gets: the text format of Prometheus, of `CONTENT_TYPE`.

    Example:
        >>> from embeddedpulsar import Client
        >>> with Client("./data") as client, collector(client) as metrics:
        ...     message_id = client.create_producer("toasters").send(b"on")
        ...     b"pulsar_broker_topics_count" in exposition(metrics)
        True
    """
    return text_of(metrics.series()).encode()


def metrics_of(series: Iterable[Series]) -> list[Metric]:
    """Series as ``prometheus_client`` has them: a sample for each value."""
    return [
        _metric(
            column,
            [
                Sample(column.name, labels, float(value))
                for labels, values in lines
                if (value := values[place]) is not None
            ],
        )
        for columns, lines in series
        for place, column in enumerate(columns)
    ]


def text_of(series: Iterable[Series]) -> str:
    """Write series in the text format of Prometheus, as ``generate_latest`` does.

    That takes 4 us for each sample, most of it for labels, which here are those of many samples.
    """
    texts: list[str] = []
    numbers: dict[float, str] = {}  # most values are among few
    for columns, lines in series:
        ends = [_label_text(labels) for labels, _ in lines]
        for place, (name, kind, text, _) in enumerate(columns):
            texts.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")
            for end, (_, values) in zip(ends, lines, strict=True):
                value = values[place]
                if value is None:
                    continue
                number = numbers.get(value)
                if number is None:
                    number = numbers[value] = floatToGoString(value)  # type: ignore[no-untyped-call]
                texts.append(f"{name}{end} {number}\n")
    return "".join(texts)


def _label_text(labels: Labels) -> str:
    pairs = [f'{label}="{_escaped(value)}"' for label, value in sorted(labels.items())]
    return f"{{{','.join(pairs)}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
