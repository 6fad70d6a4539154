"""The stats of all topics of a store, read again and again; and how a store is read so."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar._engine.filenames import control_path, subscriptions_path
from embeddedpulsar._engine.log.position import BEFORE_FIRST
from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.platform.peers import ProcessFacts, lease_holders
from embeddedpulsar._engine.store.catalog import root_layout
from embeddedpulsar._engine.store.policies import admitting
from embeddedpulsar._engine.store.topic_lookup import TopicAtRest, made_topics
from embeddedpulsar.admin.topic_figures import topic_stats
from embeddedpulsar.exceptions import PulsarException, TopicNotFound
from embeddedpulsar.policy_values import json_form
from embeddedpulsar.records import Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar.admin.topic_stats import TopicStats

R = TypeVar("R")
_PAGE: Final = 4096
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
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
            before, words = self._known.get(topic.name), self._words(topic)
            if before is not None and before[2] is not None and before[0] == words:
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
        self._scan: Final[TopicScan[TopicFigures]] = TopicScan(_rested)

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


def _rested(figures: TopicFigures) -> TopicFigures | None:
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
