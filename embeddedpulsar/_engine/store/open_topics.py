"""The topics one process has open, and their users."""

from __future__ import annotations

from collections.abc import Callable
from weakref import ref

from embeddedpulsar._engine.platform import package_log, threads, timing
from embeddedpulsar._engine.platform.descriptors import Usage, within_limit
from embeddedpulsar._engine.platform.threads import RLock
from embeddedpulsar.records import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.store.topic import Topic


MOST_IDLE: Final = 8
_MOST_OPENINGS: Final = 32
"""How many locks of openings are known before those that no thread wants any more are dropped."""

TopicOpener = Callable[[], "Topic"]


class TopicUse:
    """A hold on a topic: until `release` it stays open.

    Callers: any thread. In a forked child the parent's hold holds nothing.
    """

    __slots__ = ("_topics", "is_over", "topic")

    def __init__(self, topic: Topic, topics: OpenTopics) -> None:
        self.topic: Final = topic
        self.is_over = False
        self._topics: Final = topics

    def begin(self) -> TopicUse:
        """Begin to use the topic, not only to look at it; see `Topic.begin_use`."""
        try:
            self.topic.begin_use()
            return self
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """The topic is not needed any more; it may be closed at once. Idempotent."""
        self._topics.end(self)


class OpenTopics:
    """The open topics of a `Store` by name.

    Role: keeps one instance per topic. Topics without users stay open for their next user, `MOST_IDLE` of
    them; the longest idle are closed first, and all of them when the process runs out of descriptors.
    Invariants: a topic is closed under `_lock`, so a caller that asks for one that is being closed waits and
    gets a new instance; one with a user is closed by `take_all` alone. It is opened under a lock of its own:
    opening may wait for a process that is stopped in the topic, and other topics must not wait with it.
    Callers: any thread.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock = threads.RLock()  # guards the rest
        self._topics: dict[str, Topic] = {}
        # No WeakValueDictionary: an interrupt that strikes in its callback is lost.
        self._openings: dict[str, ref[RLock]] = {}
        self._usage = Usage(MOST_IDLE)
        self._departed: dict[Topic, int] = {}  # deleted ones, and how many use them still
        self.on_policies: Callable[[], object] = int

    def __len__(self) -> int:
        return len(self._topics)

    def has(self, name: str) -> bool:
        """Whether the topic of that full name is open, and was not deleted. Takes no lock."""
        topic = self._topics.get(name)
        return topic is not None and not topic.closed and not topic.is_deleted

    def use(self, name: str, open_topic: TopicOpener) -> TopicUse:
        """A hold on the topic."""
        use = self._use_open(name)
        if use is not None:
            return use
        opening = self._opening(name)
        try:
            timing.enter(opening, f"the opening of {name}")
            use = self._use_open(name)
            if use is None:
                topic = within_limit(open_topic, self.close_idle, f"cannot open {name}")
                use = self._use_open(name, topic)
                assert use is not None
                if use.topic is not topic:  # a signal handler opened it, in the middle of this
                    topic.close()
        finally:
            opening.release()
        return use

    def _opening(self, name: str) -> RLock:
        """The lock under which the topic is opened: one, as long as a thread wants it."""
        try:
            timing.enter(self._lock, "the table of open topics")
            known = self._openings.get(name)
            opening = None if known is None else known()
            if opening is None:
                if len(self._openings) >= _MOST_OPENINGS:
                    self._openings = {
                        at: opening for at, opening in self._openings.items() if opening() is not None
                    }
                opening = threads.RLock()
                self._openings[name] = ref(opening)
            return opening
        finally:
            self._lock.release()

    def _use_open(self, name: str, opened: Topic | None = None) -> TopicUse | None:
        """A hold on the topic that is open; else on ``opened``, if that is given."""
        notes: list[str] = []
        try:
            timing.enter(self._lock, "the table of open topics")
            topic = self._topics.get(name)
            if topic is None or topic.closed or topic.is_deleted or not topic.ledger.is_in_place():
                if topic is not None and not topic.closed:
                    self._let_go(topic, notes)
                self._usage.discard(name)
                if opened is None:
                    return None
                topic = self._topics[name] = opened
            use = TopicUse(topic, self)
            self._usage.begin(name)
        finally:
            self._lock.release()
            if notes:
                _log(notes)
        return use

    def end(self, use: TopicUse) -> None:
        """Give a hold back, and close what is idle too long."""
        notes: list[str] = []
        try:
            timing.enter(self._lock, "the table of open topics")
            name = use.topic.name
            is_there = self._topics.get(name) is use.topic
            if use.is_over or not (is_there or use.topic in self._departed):
                return  # the second time; or the topic was closed with the store, or is the parent's
            use.is_over = True
            if is_there:
                is_last = self._usage.end(name)
                # None is idle that was not before, unless this was the last use.
                surplus = [] if not is_last else [name] if use.topic.is_deleted else self._usage.surplus()
                if surplus:
                    self._close(surplus, notes)
                return
            self._departed[use.topic] -= 1
            if not self._departed[use.topic]:
                del self._departed[use.topic]
                _close_logged(use.topic, notes)
        finally:
            self._lock.release()
            if notes:
                _log(notes)

    def look_at_policies(self) -> None:
        """Have every open topic notice changes of its policies, and then `on_policies`."""
        for topic in list(self._topics.values()):
            topic.policies.call_listeners()
        self.on_policies()

    def settle_transactions(self) -> None:
        """Have the subscriptions that are open follow transactions that were ended."""
        for topic in list(self._topics.values()):
            topic.settle_transactions()

    def in_use(self) -> list[Topic]:
        """The topics that have users."""
        topics = list(self._topics.items())
        return [topic for name, topic in topics if self._usage.count(name) and not topic.closed]

    def close_idle(self) -> None:
        """Close every topic without users: the process needs descriptors."""
        notes: list[str] = []
        try:
            timing.enter(self._lock, "the table of open topics")
            self._close(self._usage.idle(), notes)
        finally:
            self._lock.release()
            if notes:
                _log(notes)

    def _close(self, names: list[str], notes: list[str]) -> None:
        for name in names:
            topic = self._topics.pop(name, None)
            self._usage.discard(name)
            if topic is not None:
                _close_logged(topic, notes)

    def _let_go(self, topic: Topic, notes: list[str]) -> None:
        """Forget a topic that was deleted: another may have its name soon."""
        del self._topics[topic.name]
        users = self._usage.count(topic.name)
        if users:
            self._departed[topic] = users
        else:
            _close_logged(topic, notes)

    def take_all(self) -> list[Topic]:
        """All open topics, for the caller to close; their holds hold nothing any more."""
        topics, self._topics = self._topics, {}
        departed, self._departed = self._departed, {}
        self._usage = Usage(MOST_IDLE)
        return [*topics.values(), *departed]

    def after_fork_in_child(self) -> None:
        """Forget what the parent opened: it remains the parent's. Called by the store after a fork."""
        topics = [*self._topics.values(), *self._departed]
        self._reset()
        for topic in topics:
            topic.abandon()


def _close_logged(topic: Topic, notes: list[str]) -> None:
    try:
        topic.close()
    except Exception as e:  # noqa: BLE001 - it failed for users that are gone, not for this caller
        text = f"{topic.name}: closing the idle topic failed: {e}"
        notes.append(package_log.Note(text, topic=topic.name))


def _log(notes: list[str]) -> None:
    for note in notes:
        package_log.warning(note)


Result = TypeVar("Result")
