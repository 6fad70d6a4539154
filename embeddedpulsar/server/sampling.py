"""What goes on in a store, for pages that look again and again: rates, backlogs, what is stuck, and names.

A sample is taken when a page wants one, and not otherwise; all pages share it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from embeddedpulsar.admin.activity import StoreActivity, SubscriptionActivity, TopicActivity, transaction_text
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.server.engine import timing

if TYPE_CHECKING:
    from embeddedpulsar.admin.admin import Admin

INTERVAL_S: Final = 1.0
# A sample of many topics takes long, in Python: it gets a quarter of a core at most.
SHARE: Final = 4
# Five minutes of samples of the store, and a minute of those of a topic.
_HISTORY: Final = 300
_TOPIC_HISTORY: Final = 60
# Topics that have a history at a time; one that comes to rest gives its place up.
_HISTORIES: Final = 500
_NO_CONSUMER: Final = "no consumer"
# Messages that wait for less are no sign that something is stuck.
_PATIENCE_MS: Final = 5000
# Over so many samples, messages that come faster than they are acknowledged are reported.
_TREND: Final = 10


class Rates(NamedTuple):
    """Messages a second that came in, and that subscriptions acknowledged."""

    rate_in: float = 0.0
    rate_out: float = 0.0


class Stuck(NamedTuple):
    """Something that does not go on, or cannot be read.

    Attributes:
        topic: the full name; of a partition where it has some.
        subscription: empty if it concerns all of the topic.
        why: in words.
        backlog: messages that wait.
        since: publish time of the oldest of them, ms since 1970; 0 if it is not known.
        is_waiting: whether nothing is to be done: all of the messages are delayed.
    """

    topic: str
    subscription: str
    why: str
    backlog: int
    since: int
    is_waiting: bool = False


class Sample(NamedTuple):
    """A store at one moment.

    Attributes:
        activity: its topics.
        totals: the rates of the whole store.
        topics: the rates of topics and partitions that have some.
        subscriptions: acknowledged messages a second, by topic and name, of those that have some.
        backlog: messages that wait, summed over all subscriptions.
        storage: bytes of storage.
        stuck: what does not go on, the oldest first.
    """

    activity: StoreActivity
    totals: Rates
    topics: dict[str, Rates]
    subscriptions: dict[tuple[str, str], float]
    backlog: int
    storage: int
    stuck: tuple[Stuck, ...]


class Point(NamedTuple):
    """A sample in a history: when, ms since 1970; messages a second in and out; messages that wait."""

    time: int
    rate_in: float
    rate_out: float
    backlog: int


class Sampler:
    """Takes samples of a store, at most one in `INTERVAL_S`, and keeps the last of them. One event loop."""

    def __init__(self, admin: Admin) -> None:
        self.history: Final[deque[Point]] = deque(maxlen=_HISTORY)
        self.topic_histories: Final[dict[str, deque[Point]]] = {}
        self._watch: Final = admin.activity()
        self._turn: Final = anyio.Lock()
        self._latest: Sample | None = None
        self._due = 0.0

    async def sample(self) -> Sample:
        """Return the last sample, or a new one if that is due."""
        async with self._turn:
            if self._latest is None or timing.SYSTEM_CLOCK.monotonic() >= self._due:
                await self._renew(self._latest)
            assert self._latest is not None
            return self._latest

    async def _renew(self, before: Sample | None) -> None:
        started = timing.SYSTEM_CLOCK.monotonic()
        activity = await anyio.to_thread.run_sync(self._watch.look)
        self._latest = sample_of(activity, None if before is None else before.activity)
        elapsed = timing.SYSTEM_CLOCK.monotonic() - started
        self._due = started + max(INTERVAL_S, SHARE * elapsed)
        self._keep(self._latest)

    def _keep(self, sample: Sample) -> None:
        now_ms = sample.activity.time_ms
        self.history.append(Point(now_ms, *sample.totals, sample.backlog))
        histories = self.topic_histories
        activities = {topic.topic: topic for topic in sample.activity.topics}
        for name in [name for name in histories if name not in activities]:
            del histories[name]  # the topic was deleted
        for name in sample.topics:
            if name not in histories and len(histories) < _HISTORIES:
                histories[name] = deque(maxlen=_TOPIC_HISTORY)
        for name, points in list(histories.items()):
            points.append(Point(now_ms, *sample.topics.get(name, Rates()), activities[name].msg_backlog))
            # At rest for the whole time: another topic may have the place.
            if len(points) == _TOPIC_HISTORY and not any(point.rate_in or point.rate_out for point in points):
                del histories[name]

    def growing(self, sample: Sample) -> Iterator[Stuck]:
        """The topics to which messages come faster than they are acknowledged, for some time by now."""
        activities = {topic.topic: topic for topic in sample.activity.topics}
        for name, points in self.topic_histories.items():
            last = list(points)[-_TREND:]
            if len(last) < _TREND or name not in activities:
                continue
            backlogs = [point.backlog for point in last]
            is_growing = all(before < after for before, after in itertools.pairwise(backlogs))
            rate_in = sum(point.rate_in for point in last) / _TREND
            growth = (backlogs[-1] - backlogs[0]) * 1000 / max(last[-1].time - last[0].time, 1)
            if is_growing and growth > rate_in / 10:
                topic = activities[name]
                why = f"grows by {growth:,.0f} messages/s: {rate_in:,.0f}/s come in"
                yield Stuck(name, "", why, backlogs[-1], topic.earliest_msg_publish_time_in_backlogs)


def sample_of(activity: StoreActivity, before: StoreActivity | None) -> Sample:
    """A sample, with the rates since the one before; the first has those that the topics tell of themselves.

    Example:
        >>> from embeddedpulsar import Admin, Client
        >>> with Client("./data") as client, Admin("./data") as admin:
        ...     watch = admin.activity()
        ...     earlier = watch.look()
        ...     consumer = client.subscribe("gates", "north")
        ...     _ = client.create_producer("gates").send(b"open")
        ...     sample = sample_of(watch.look(), earlier)
        >>> sample.backlog >= 1, sample.topics["persistent://public/default/gates"].rate_in > 0
        (True, True)
    """
    earlier = {} if before is None else {topic.topic: topic for topic in before.topics}
    # At least a millisecond: the clock of the system may be set back.
    seconds = 1.0 if before is None else max(activity.time_ms - before.time_ms, 1) / 1000
    topics: dict[str, Rates] = {}
    subscriptions: dict[tuple[str, str], float] = {}
    stuck = [Stuck(topic.topic, "", f"cannot be read: {topic.reason}", 0, 0) for topic in activity.unread]
    backlog = storage = 0
    for topic in activity.topics:
        storage += topic.storage_size
        known = earlier.get(topic.topic)
        came = topic.msg_in_counter - (known.msg_in_counter if known is not None else 0)
        rate_in = came / seconds if before is not None else topic.msg_rate_in
        rate_out = 0.0
        was = {} if known is None else {each.name: each.msg_backlog for each in known.subscriptions}
        for subscription in topic.subscriptions:
            backlog += subscription.msg_backlog
            if reason_of(subscription, activity.time_ms):
                stuck.append(_stuck(topic, subscription))
            # Of a subscription that is new nothing is known before: its backlog may begin anywhere.
            if subscription.name in was:
                rate = (came + was[subscription.name] - subscription.msg_backlog) / seconds
                if rate > 0:
                    subscriptions[topic.topic, subscription.name] = rate
                    rate_out += rate
        if rate_in > 0 or rate_out > 0:
            topics[topic.topic] = Rates(max(rate_in, 0.0), rate_out)
        if topic.held_by is not None:
            why = f"waits for {transaction_text(topic.held_by, activity.time_ms)}"
            stuck.append(Stuck(topic.topic, "", why, topic.msg_backlog, topic.held_by.open_timestamp))
    totals = Rates(
        sum(rates.rate_in for rates in topics.values()), sum(rates.rate_out for rates in topics.values())
    )
    stuck.sort(key=lambda each: (each.is_waiting, each.since or activity.time_ms))
    return Sample(activity, totals, topics, subscriptions, backlog, storage, tuple(stuck))


def reason_of(subscription: SubscriptionActivity, now_ms: int) -> str:
    """Why a subscription does not go on; empty if consumers hold what came a moment ago.

    Consumers that are at work hold messages, too: a while later they hold others.
    """
    since = subscription.earliest_msg_publish_time_in_backlog
    is_young = since and now_ms - since < _PATIENCE_MS and subscription.why != _NO_CONSUMER
    return "" if is_young else subscription.why


def _stuck(topic: TopicActivity, subscription: SubscriptionActivity) -> Stuck:
    return Stuck(
        topic.topic,
        subscription.name,
        subscription.why,
        subscription.msg_backlog,
        subscription.earliest_msg_publish_time_in_backlog,
        subscription.why == "all delayed",
    )


def base_of(name: str) -> tuple[str, int]:
    """The topic of a partition, and its number; of another name itself, and -1.

    Example:
        >>> base_of("persistent://public/default/orders-partition-3")
        ('persistent://public/default/orders', 3)
        >>> base_of("persistent://public/default/orders")
        ('persistent://public/default/orders', -1)
    """
    base, separator, number = name.rpartition("-partition-")
    return (base, int(number)) if separator and number.isascii() and number.isdigit() else (name, -1)


class Names:
    """The names of all topics, which are asked for again when they may be too old. Any thread: two may ask at
    the same time, and one of the answers stays."""

    def __init__(self, admin: Admin) -> None:
        self._admin: Final = admin
        self._partitions: dict[str, int] = {}
        self._due = 0.0

    def partitions(self) -> dict[str, int]:
        """Return how many partitions each topic has, by its full name; 0 for one without. Sorted."""
        started = timing.SYSTEM_CLOCK.monotonic()
        if started >= self._due:
            self._partitions = _grouped(self._all())
            elapsed = timing.SYSTEM_CLOCK.monotonic() - started
            self._due = started + max(INTERVAL_S, SHARE * elapsed)
        return self._partitions

    def _all(self) -> Iterator[str]:
        namespaces = self._admin.namespaces()
        for tenant in self._admin.tenants().get_tenants():
            for namespace in namespaces.get_namespaces(tenant):
                yield from namespaces.get_topics(namespace, "ALL")


def _grouped(names: Iterator[str]) -> dict[str, int]:
    partitions: dict[str, int] = {}
    for name in names:
        base, number = base_of(name)
        partitions[base] = max(partitions.get(base, 0), number + 1)
    return dict(sorted(partitions.items()))


def in_pages(rows: list[Any], offset: int, count: int, form: Callable[[Any], Any]) -> dict[str, Any]:
    """A page of rows, and how many there are."""
    return {
        "total": len(rows),
        "offset": offset,
        "rows": [form(row) for row in rows[offset : offset + count]],
    }
