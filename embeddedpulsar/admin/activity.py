"""What goes on in a store: rates, backlogs, and who is attached, topic by topic.

The stats of all topics of a store, read again and again; and how a store is read so.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar._engine.filenames import control_path, subscriptions_path
from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.platform.peers import ProcessFacts, lease_holders
from embeddedpulsar._engine.store import root_layout
from embeddedpulsar._engine.store.policies import admitting
from embeddedpulsar._engine.store.topic_lookup import TopicAtRest, made_topics
from embeddedpulsar.admin.topic_figures import topic_stats
from embeddedpulsar.exceptions import PulsarException, TopicNotFound
from embeddedpulsar.message_id import BEFORE_FIRST
from embeddedpulsar.policy_values import json_form
from embeddedpulsar.records import Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar._engine.store.topic import Topic
    from embeddedpulsar._engine.txn.transaction_state import OpenTransaction
    from embeddedpulsar.admin.topic_stats import ConsumerStats, TopicStats


R = TypeVar("R")
_PAGE: Final = 4096
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_SURE_NS: Final = 1_000_000_000
"""A directory that was changed longer ago than this will have another time after the next change."""


class UnreadTopic(NamedTuple):
    """A topic or partition that cannot be read.

    Attributes:
        topic: the name.
        reason: the error, which names the file.
    """

    topic: str
    reason: str


class Scan(Generic[R]):
    """What a scan of all topics found.

    Attributes:
        known: by the name of the topic.
        unread: the topics that cannot be read; they are missing in ``known``.
        pending: topics for which there was no time: they are missing in ``known``, or as they were before.
    """

    __slots__ = ("known", "pending", "unread")

    def __init__(self) -> None:
        self.known: Final[dict[str, R]] = {}
        self.unread: Final[list[UnreadTopic]] = []
        self.pending = 0


class TopicScan(Generic[R]):
    """Reads something of every topic, again and again, and of a topic at rest only once.

    Role: what is known of a topic holds while its control words and those of its subscriptions are as they
    were, unless ``rested`` says otherwise. Comparing them costs 15 us, opening a topic a millisecond.
    Callers: one thread.

    Args:
        rested: what is known of a topic whose words are as before; None if it is to be read again.
    """

    def __init__(self, rested: Callable[[R], R | None]) -> None:
        self._rested: Final = rested
        self._known: dict[str, tuple[int, R, R | None]] = {}
        self._catalog: tuple[int, ...] = ()
        self._topics: list[TopicAtRest] = []
        self._files: dict[str, tuple[int, list[str], str]] = {}
        self._start = ""

    def scan(
        self,
        root: str,
        read: Callable[[str], R],
        budget_s: float | None = None,
        progress: Callable[[str], object] | None = None,
    ) -> Scan[R]:
        """Read all topics.

        Args:
            root: of the store.
            read: reads a topic, by its name.
            budget_s: after so many seconds no more topics are read; the next scan goes on there.
            progress: called with a line of text for each topic.
        """
        topics, total = self._in_turn(root), len(self._topics)
        end = None if budget_s is None else timing.SYSTEM_CLOCK.monotonic() + budget_s
        known: dict[str, tuple[int, R, R | None]] = {}
        result: Scan[R] = Scan()
        start, reads = "", 0
        for number, topic in enumerate(topics):
            if progress is not None:
                progress(f"looking at topic {number + 1:,} of {total:,}")
            before, words = self._known.get(topic.name), 0
            if before is not None and before[2] is not None and before[0] == (words := self._words(topic)):
                known[topic.name] = before if before[1] is before[2] else (words, before[2], before[2])
                continue
            # At least one topic is read, so that any budget comes to an end of them.
            is_over = end is not None and reads > 0 and timing.SYSTEM_CLOCK.monotonic() > end
            if start or is_over:
                start, result.pending = start or topic.name, result.pending + 1
                if before is not None:
                    known[topic.name] = before
                continue
            reads += 1
            # The words of before the read: what changes meanwhile differs in the next scan.
            words = words or self._words(topic)
            try:
                value = read(topic.name)
            except (TopicNotFound, FileNotFoundError):
                continue  # it was deleted meanwhile
            # A topic that is damaged or denied must not hide the others.
            except (PulsarException, OSError) as error:
                result.unread.append(UnreadTopic(topic.name, str(error)))
            else:
                known[topic.name] = (words, value, self._rested(value))
        # Replaced as a whole, so topics that were deleted are forgotten.
        self._known, self._start = known, start
        result.known.update(
            (topic.name, known[topic.name][1]) for topic in self._topics if topic.name in known
        )
        return result

    def _in_turn(self, root: str) -> list[TopicAtRest]:
        """The topics, from that on for which the last scan had no time."""
        path = root_layout.in_root(root, root_layout.CATALOG)
        identity: tuple[int, ...] = ()  # of a store that is gone, which the engine has an error for
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(path)
            identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        # The catalog grows with every change, and a new one is another file.
        if identity != self._catalog or not identity:
            self._topics, self._catalog = made_topics(root), identity
            names = {topic.name for topic in self._topics}
            self._files = {name: files for name, files in self._files.items() if name in names}
        if not self._start:
            return self._topics
        first = next((n for n, topic in enumerate(self._topics) if topic.name >= self._start), 0)
        return self._topics[first:] + self._topics[:first]

    def _words(self, topic: TopicAtRest) -> int:
        """The control words of a topic and its subscriptions as they are, as a number of 64 bits: the pages
        themselves would take 0.8 GB for 100,000 topics."""
        files = self._files.get(topic.name)
        below = subscriptions_path(topic.directory) if files is None else files[2]
        try:
            changed_ns = os.stat(below).st_mtime_ns
        except OSError:
            changed_ns = 0
        # The time says that names came or went, if its clock has moved on since the names were listed.
        if files is None or files[0] != changed_ns:
            listed = [control_path(topic.directory)]
            if changed_ns:
                listed += [control_path(os.path.join(below, name)) for name in sorted(_names_in(below))]
            is_sure = timing.SYSTEM_CLOCK.wall_ns() - changed_ns > _SURE_NS
            files = (changed_ns if is_sure else -1, listed, below)
            self._files[topic.name] = files
        return hash(tuple(map(_page, files[1])))


def _names_in(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _page(path: str) -> bytes:
    # What cannot be read, such as a directory in its place, is an error where the topic is read.
    try:
        fd = os.open(path, _FLAGS)
        try:
            return os.read(fd, _PAGE)
        finally:
            os.close(fd)
    except OSError:
        return b""


class TopicFigures(NamedTuple):
    """A topic or partition.

    Attributes:
        topic: full name.
        stats: as `Topics.get_stats` returns them.
        stored_messages: messages that are retained and can be read, acknowledged or not.
    """

    topic: str
    stats: TopicStats
    stored_messages: int


class StoreStats(NamedTuple):
    """The topics of a store at one moment.

    Attributes:
        topics: those that were ever used, sorted by name.
        processes: how many have the store open.
        time_ms: when, in ms since 1970.
        unread: the topics that cannot be read; they are missing in ``topics``.
        pending: topics that there was no time for: they are missing in ``topics``, or as they were before.
        unrecovered: names of topics whose figures may be behind; see `Admin.unrecovered`.
    """

    topics: tuple[TopicFigures, ...]
    processes: int
    time_ms: int
    unread: tuple[UnreadTopic, ...] = ()
    pending: int = 0
    unrecovered: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        """Return the fields in camel case, as those of other results."""
        return dict(json_form(self))


class StatsWatch:
    """Reads the stats of all topics, again and again. `Admin.statistics` returns it.

    A topic to which nothing is attached, which got nothing for a minute, and whose control words are as they
    were is not opened again. One thread.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store: Final = store
        self._scan: Final[TopicScan[TopicFigures]] = TopicScan(_rested_figures)

    @timing.translating
    def read(self, budget_s: float | None = None) -> StoreStats:
        """Read what there is now. Changes nothing, and takes no lock.

        Args:
            budget_s: after so many seconds no more topics are read, and the next call goes on there.

        Raises:
            AlreadyClosed: the Admin is closed.
            StorageError: the store cannot be read.
        """
        store = self._store()
        # Once for the whole store, and not for each topic: it reads a file of every process.
        holders = lease_holders(root_layout.in_root(store.root, root_layout.CLIENTS), store.peers.is_alive)
        now_ms = store.clock.wall_ms()
        result = self._scan.scan(store.root, lambda name: _figures(store, name, holders, now_ms), budget_s)
        behind = tuple(sorted(store.unrecovered & result.known.keys()))
        return StoreStats(
            tuple(result.known.values()), len(holders), now_ms, tuple(result.unread), result.pending, behind
        )


def _rested_figures(figures: TopicFigures) -> TopicFigures | None:
    stats = figures.stats
    # Consumers change what they hold, and transactions end, without a word of the topic; a rate sinks.
    has_consumers = any(subscription.consumers for subscription in stats.subscriptions.values())
    is_busy = stats.msg_rate_in or stats.publishers or has_consumers or stats.ongoing_txn_count
    return None if is_busy or stats.waiting_publishers else figures


def _figures(store: Store, name: str, holders: dict[bytes, ProcessFacts], now_ms: int) -> TopicFigures:
    use = store.use_topic(name, create=False, to_look=True)
    try:
        topic = use.topic
        stats = topic_stats(topic, now_ms, topic.policies.value(admitting.DEDUPLICATION), lambda: holders)
        transactions = topic.view.transactions()
        if transactions is not None:
            stats = stats._replace(
                ongoing_txn_count=len(transactions.opened),
                aborted_txn_count=transactions.aborted,
                committed_txn_count=transactions.committed,
            )
        return TopicFigures(name, stats, topic.ledger.survey().behind(BEFORE_FIRST).messages)
    finally:
        use.release()


_UNSAID: Final = ProcessFacts()


class Attached(NamedTuple):
    """A producer or consumer whose process lives.

    Attributes:
        kind: ``producer`` or ``consumer``.
        name: of it.
        subscription: of a consumer; else empty.
        pid: id of its process; 0 where the system does not tell.
        program: what the process runs; empty likewise.
        unacked_messages: of a consumer of Shared or Key_Shared: messages it holds.
        last_acked_timestamp, oldest_unacked_message_id, held_since: of a consumer: see `ConsumerStats`.
    """

    kind: str
    name: str
    subscription: str
    pid: int
    program: str
    unacked_messages: int = 0
    last_acked_timestamp: int = 0
    oldest_unacked_message_id: str | None = None
    held_since: int | None = None


class SubscriptionActivity(NamedTuple):
    """A subscription. The fields are those of `SubscriptionStats`.

    Attributes:
        why: in words, why it does not go on: no consumer, messages held and not acknowledged, or only delayed
            ones; also which consumer has the oldest message and acknowledges nothing, while others may go on.
            Empty if nothing is in the way.
    """

    name: str
    type: str
    msg_backlog: int
    unacked_messages: int
    earliest_msg_publish_time_in_backlog: int
    why: str


class HeldBy(NamedTuple):
    """The transaction before whose first entry the consumers and readers of a topic stop.

    Attributes:
        txn_id: as ``(0,17)``.
        label: what its program calls it; the first 56 bytes.
        is_prepared: whether it waits for an end that any process may give.
        pid, program: of the process that began it; 0 and empty if it is prepared, or where the system does
            not tell.
        open_timestamp: when it began, ms since 1970.
        start_position: its first entry, ``ledger:entry``.
        ongoing_txn_count: open transactions that stored something in the topic, this one included.
    """

    txn_id: str
    label: str
    is_prepared: bool
    pid: int
    program: str
    open_timestamp: int
    start_position: str
    ongoing_txn_count: int


class TopicActivity(NamedTuple):
    """A topic or partition. The fields are those of `TopicStats`.

    Attributes:
        msg_backlog: the largest of its subscriptions.
        acknowledged: messages that were published and are in no backlog, summed over the subscriptions: it
            rises as they acknowledge.
        held_by: the transaction that holds the topic up; None for none.
    """

    topic: str
    msg_rate_in: float
    msg_in_counter: int
    acknowledged: int
    msg_backlog: int
    earliest_msg_publish_time_in_backlogs: int
    storage_size: int
    subscriptions: tuple[SubscriptionActivity, ...]
    attached: tuple[Attached, ...]
    held_by: HeldBy | None = None


class StoreActivity(NamedTuple):
    """A store at one moment.

    Attributes:
        topics: its topics and partitions that were ever used.
        processes: how many have it open, this one included.
        time_ms: when, in ms since 1970.
        unread: the topics that cannot be read; they are missing in ``topics``.
        unrecovered: names of topics whose figures may be behind; see `Admin.unrecovered`.
    """

    topics: tuple[TopicActivity, ...]
    processes: int
    time_ms: int
    unread: tuple[UnreadTopic, ...] = ()
    unrecovered: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        """Return the fields in camel case, as those of other results."""
        return dict(json_form(self))


class ActivityWatch:
    """Looks at a store again and again. A topic to which nothing is attached, and whose control words are as
    they were, is not opened again: so ten thousand topics at rest cost a read of their words. One thread."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store: Final = store
        self._scan: Final[TopicScan[TopicActivity]] = TopicScan(_rested)

    @timing.translating
    def look(self, progress: Callable[[str], object] | None = None) -> StoreActivity:
        """What there is now. ``progress`` is called with a line of text for each topic."""
        store = self._store()
        # Once for the whole store, and not for each topic: it reads a file of every process.
        holders = lease_holders(root_layout.in_root(store.root, root_layout.CLIENTS), store.peers.is_alive)
        now_ms = store.clock.wall_ms()
        opened = _open_transactions(store)
        result = self._scan.scan(
            store.root, lambda name: _activity(store, name, holders, opened, now_ms), progress=progress
        )
        behind = tuple(sorted(store.unrecovered & result.known.keys()))
        activities = tuple(result.known.values())
        return StoreActivity(activities, len(holders), now_ms, tuple(result.unread), behind)


def _rested(activity: TopicActivity) -> TopicActivity | None:
    # With something attached the topic is read again all the same: what its consumers hold may have changed;
    # a transaction that holds it up may have ended elsewhere.
    if activity.attached or activity.held_by is not None:
        return None
    return activity._replace(msg_rate_in=0.0)


def _open_transactions(store: Store) -> dict[int, OpenTransaction]:
    if not store.transactions.exists:
        return {}
    view = store.transactions.open_view()
    try:
        return {transaction.txn_id: transaction for transaction in view.open_transactions()}
    finally:
        view.close()


def _held_by(
    topic: Topic, opened: dict[int, OpenTransaction], holders: dict[bytes, ProcessFacts]
) -> HeldBy | None:
    """The first open transaction of a topic. Its entries are looked for only if there may be one."""
    are_any_prepared = any(transaction.state.name == "PREPARED" for transaction in opened.values())
    # Of prepared ones the word says nothing after a restart of the machine.
    if not opened or not (topic.ledger.words[TopicWord.FIRST_OPEN_TXN] or are_any_prepared):
        return None
    transactions = topic.view.transactions()
    for txn_id, position in () if transactions is None else transactions.opened:
        transaction = opened.get(txn_id)
        if transaction is not None and transactions is not None:
            process, is_prepared = (
                holders.get(transaction.owner, _UNSAID),
                transaction.state.name == "PREPARED",
            )
            return HeldBy(
                f"(0,{txn_id})",
                transaction.label,
                is_prepared,
                0 if is_prepared else process.pid or transaction.pid,
                process.program,
                transaction.started_ms,
                str(position),
                len(transactions.opened),
            )
    return None


def _activity(
    store: Store,
    name: str,
    holders: dict[bytes, ProcessFacts],
    opened: dict[int, OpenTransaction],
    now_ms: int,
) -> TopicActivity:
    use = store.use_topic(name, create=False, to_look=True)
    try:
        topic = use.topic
        stats = topic_stats(topic, now_ms, False, lambda: holders)
        attached = []
        for producer in topic.view.producers().connected:
            process = holders.get(producer.client_uuid, _UNSAID)
            attached.append(Attached("producer", producer.name, "", *process))
        for facts, _ in topic.view.subscriptions():
            shown = stats.subscriptions.get(facts.name)
            # By name: a consumer of a subscription has one, and the statistics have no id.
            known = (
                {} if shown is None else {consumer.consumer_name: consumer for consumer in shown.consumers}
            )
            for attached_facts in facts.consumers:
                process = holders.get(attached_facts.consumer.client_uuid, _UNSAID)
                consumer = Attached("consumer", attached_facts.consumer.name, facts.name, *process)
                attached.append(_with_held(consumer, known.get(attached_facts.consumer.name)))
        held_by = _held_by(topic, opened, holders)
    finally:
        use.release()
    subscriptions = tuple(
        SubscriptionActivity(
            subscription,
            figures.type,
            figures.msg_backlog,
            figures.unacked_messages,
            figures.earliest_msg_publish_time_in_backlog,
            _why(
                figures.msg_backlog,
                figures.unacked_messages,
                figures.msg_delayed,
                len(figures.consumers),
                [each for each in attached if each.subscription == subscription and each.held_since],
                now_ms,
            ),
        )
        for subscription, figures in stats.subscriptions.items()
    )
    backlogs = [shown.msg_backlog for shown in subscriptions]
    return TopicActivity(
        name,
        stats.msg_rate_in,
        stats.msg_in_counter,
        # What was acknowledged since the topic exists: all that was published less what is left, for each
        # subscription. Its difference between two looks is the rate.
        sum(stats.msg_in_counter - backlog for backlog in backlogs),
        max(backlogs, default=0),
        stats.earliest_msg_publish_time_in_backlogs,
        stats.storage_size,
        subscriptions,
        tuple(attached),
        held_by,
    )


def _with_held(consumer: Attached, stats: ConsumerStats | None) -> Attached:
    if stats is None:
        return consumer  # it came after the statistics were taken
    return consumer._replace(
        unacked_messages=stats.unacked_messages,
        last_acked_timestamp=stats.last_acked_timestamp,
        oldest_unacked_message_id=stats.oldest_unacked_message_id,
        held_since=stats.held_since,
    )


def transaction_text(held_by: HeldBy, now_ms: int) -> str:
    """In words, which transaction holds a topic up.

    Example:
        >>> held_by = HeldBy("(0,17)", "invoices", False, 7, "python bill.py", 1000, "3:0", 2)
        >>> transaction_text(held_by, 5000)
        "transaction (0,17) 'invoices' of 7 python bill.py, open for 4 s, from 3:0 on; 1 more"
        >>> transaction_text(held_by._replace(is_prepared=True, pid=0, label="", ongoing_txn_count=1), 5000)
        'transaction (0,17), prepared and not ended for 4 s, from 3:0 on'
    """
    label = f" {held_by.label!r}" if held_by.label else ""
    process = f" of {held_by.pid} {held_by.program}".rstrip() if held_by.pid else ""
    state = "prepared and not ended" if held_by.is_prepared else "open"
    seconds = max(now_ms - held_by.open_timestamp, 0) // 1000
    more = f"; {held_by.ongoing_txn_count - 1:,} more" if held_by.ongoing_txn_count > 1 else ""
    return (
        f"transaction {held_by.txn_id}{label}{process}, {state} for {seconds:,} s, "
        f"from {held_by.start_position} on{more}"
    )


def held_text(
    name: str, pid: int | None, since_ms: int | None, held: int, oldest: str | None, now_ms: int
) -> str:
    """In words, that a consumer has the oldest message and acknowledges nothing; empty if that is not so.

    Example:
        >>> held_text("till-1", 7, 1000, 5, "3:0", 5000)
        'till-1 (pid 7) has not acknowledged anything for 4 s; 5 held, from 3:0 on'
        >>> held_text("till-1", None, 1000, 0, None, 5000)
        'till-1 has not acknowledged anything for 4 s'
        >>> held_text("till-1", 7, None, 5, "3:0", 5000)
        ''
    """
    if since_ms is None:
        return ""
    process = f" (pid {pid})" if pid else ""
    text = f"{name}{process} has not acknowledged anything for {(now_ms - since_ms) // 1000:,} s"
    return text if oldest is None else f"{text}; {held:,} held, from {oldest} on"


def _why(
    backlog: int, held: int, delayed: int, consumers: int, holders: Sequence[Attached], now_ms: int
) -> str:
    # The reasons in the order in which they exclude each other: nothing is left; there is no consumer that
    # could take it; it is not due yet; a consumer holds the oldest message; all is with consumers. Otherwise
    # the subscription goes on, and there is nothing to explain.
    if not backlog:
        return ""
    if not consumers:
        return "no consumer"
    if delayed and delayed >= backlog:
        return "all delayed"
    if holders:
        return ", ".join(
            held_text(
                holder.name,
                holder.pid,
                holder.held_since,
                holder.unacked_messages,
                holder.oldest_unacked_message_id,
                now_ms,
            )
            for holder in holders
        )
    if held >= backlog - delayed and held:
        return f"{held:,} held, not acknowledged"
    return ""
