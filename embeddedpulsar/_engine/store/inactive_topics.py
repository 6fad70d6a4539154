"""Deleting topics that have not been used for some time, where a policy asks for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.format.control import StoreWord, TopicWord
from embeddedpulsar._engine.platform import disk, threads, timing
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.platform.package_log import Note
from embeddedpulsar._engine.store.housekeeping import PATIENCE_S, SLICE, SLICE_S
from embeddedpulsar._engine.store.policies.keeping import INACTIVE_TOPICS, KEEP_UNTIL_SUBSCRIBED, RETENTION
from embeddedpulsar.exceptions import BrokerMetadataError, LockTimeout, StorageError, TopicNotFound
from embeddedpulsar.message_id import BEFORE_FIRST
from embeddedpulsar.policy_values import (
    DELETE_WHEN_NO_SUBSCRIPTIONS,
    InactiveTopicPolicies,
)
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.topic_name import PARTITION_SUFFIX, PERSISTENT, TopicName, is_system_topic

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.format.catalog_record import TopicEntry
    from embeddedpulsar._engine.platform.timing import Clock
    from embeddedpulsar._engine.store.open_topics import TopicUse
    from embeddedpulsar._engine.store.policies.policy_documents import PolicyDocuments
    from embeddedpulsar._engine.store.store_session import StoreSession
    from embeddedpulsar._engine.store.topic import Topic
    from embeddedpulsar._engine.subscription.subscription_view import SubscriptionFacts

_REST: Final = 20
"""A round is followed by a pause so many times as long as its work."""
_NOTED_TWICE: Final = 2
_SLACK: Final = 0.9
"""Timers of several processes, and the clock of the day, are not exact."""
"""Whether a topic is deleted that is not used, and when."""


class InactiveTopics:
    """The `Chore` that looks for inactive topics in the whole store, and deletes them.

    Role: a round is begun at most every ``brokerDeleteInactiveTopicsFrequencySeconds``, in whatever process,
    and goes through the catalog in slices. When a topic was last in use is in words of its own: its last
    publish time, the time when a round last found it in use, and what its subscriptions say.
    Invariants: a topic is deleted only after it was found inactive once more behind the mark that keeps
    others from using it (`topic_deletion`). A round takes no more than a twentieth of the time of a process.
    Callers: `do_chores` the thread of housekeeping, under its lock; others any thread. It uses the session
    that it was made with: the lock of the registry is held while it is closed.

    Args:
        session: of the store.
        in_use: the topics that this process uses.
        use_topic: a hold on a topic that exists, to look at it; takes no lock of the store's registry.
        clock: of the store.
    """

    name: Final = "inactive topics"
    is_deleted: Final = False

    def __init__(
        self,
        session: StoreSession,
        in_use: Callable[[], Sequence[Topic]],
        use_topic: Callable[[str], TopicUse],
        clock: Clock,
    ) -> None:
        self._session: Final = session
        self._in_use: Final = in_use
        self._use_topic: Final = use_topic
        self._clock: Final = clock
        self._every_s: Final = session.settings.brokerDeleteInactiveTopicsFrequencySeconds
        self._lock: Final = threads.RLock()  # held during a slice
        self._is_closed = False
        self._left: list[tuple[str, str]] = []  # prefixes of names, and from which name on each is left
        self._busy_s = self._rest_until = 0.0
        self._noted_ms = 0

    def renew(self) -> None:
        """Look soon, if a policy or the setting asks for it; policies may have changed."""
        try:
            is_wanted = self.chores_every_s() > 0
        except StorageError:  # housekeeping meets it too, and reports it
            is_wanted = True
        if is_wanted:
            self._session.housekeeping.look_at(self)

    def chores_every_s(self) -> float:
        """How often a round is due; 0 for never."""
        return self._every_s if self._prefixes() else 0.0

    def _prefixes(self) -> list[str]:
        """What the names of the topics to look at begin with."""
        owners = self._session.policies.owners(INACTIVE_TOPICS.owners)
        if self._session.settings.brokerDeleteInactiveTopicsEnabled or owners is None:
            # All persistent topics: the setting holds for all, or nothing says which have a policy of their
            # own.
            return [f"{PERSISTENT}://"]
        return sorted(owner if "://" in owner else f"{PERSISTENT}://{owner}/" for owner in owners)

    def do_chores(self, done: list[str]) -> bool:
        """Look at some topics; what was deleted is noted in ``done``. True if the round is not over."""
        try:
            self._lock.acquire()
            if self._is_closed:
                return False
            # Before the round: topics of this process must not look inactive to the others.
            self._note_own()
            if not self._left and not self._begin_round():
                return False
            began = self._clock.monotonic()
            # The last prefix of the round, and the name at which the slice before ended.
            prefix, start = self._left.pop()
            names = self._session.catalog.names_from(prefix, start, SLICE)
            # A slice is bounded by names and by time: other chores of the process wait for it.
            for number, name in enumerate(names):
                if number and self._clock.monotonic() - began > SLICE_S:
                    self._left.append((prefix, name))
                    break
                # What cannot be used or is in use is looked at again in the next round.
                with contextlib.suppress(BrokerMetadataError, LockTimeout, StorageError, TopicNotFound):
                    timing.within(PATIENCE_S, self._look_at, name, done)
            else:
                # As many names as were asked for: there are more behind the last one. A name with a zero byte
                # behind it is the next possible one.
                if len(names) == SLICE:
                    self._left.append((prefix, f"{names[-1]}\0"))
            now = self._clock.monotonic()
            self._busy_s += now - began
            # Rests in proportion to what it took, so that a store of a million topics is not looked at
            # without a pause.
            self._rest_until = now + _REST * self._busy_s
            return bool(self._left)
        finally:
            self._lock.release()

    def _note_own(self) -> None:
        """Note that the topics are in use that this process uses: a reader has no other trace."""
        now = self._clock.wall_ms()
        if now - self._noted_ms >= 1000 * _SLACK * self._every_s or now < self._noted_ms:
            self._noted_ms = now
            for topic in self._in_use():
                with contextlib.suppress(ValueError):  # its map is closed: it is used no more
                    topic.ledger.words[TopicWord.SEEN_ACTIVE_MS] = now

    def _begin_round(self) -> bool:
        """Whether there is anything to look at, and it is time."""
        words, now = self._session.control.words, self._clock.wall_ms()
        since_ms = now - words[StoreWord.INACTIVE_LOOK_MS]
        # One process of the store makes a round at a time: the word in store.ctl says when the last one
        # began. A clock that was set back counts as due.
        if 0 <= since_ms < 1000 * _SLACK * self._every_s or self._clock.monotonic() < self._rest_until:
            return False
        self._left = [(prefix, "") for prefix in self._prefixes()]
        self._busy_s = 0.0
        if self._left:
            words[StoreWord.INACTIVE_LOOK_MS] = now
        return bool(self._left)

    def _look_at(self, name: str, done: list[str]) -> None:
        session = self._session
        entry = session.catalog.find(name)
        if entry is None or is_system_topic(name) or self._is_partition(name):
            return
        policy, retention = session.policies.values((INACTIVE_TOPICS, RETENTION), name)
        # Retention without a limit of time keeps messages for ever, and so the topic.
        if not policy.delete_while_inactive or retention.time_minutes < 0:
            return
        # The topic itself would go with its partitions.
        if entry.partitions and not session.settings.brokerDeleteInactivePartitionedTopicMetadataEnabled:
            return
        # Processes note every `_every_s` which topics they use, and not all at the same time.
        least = _NOTED_TWICE * self._every_s
        # At least as long as it takes for every process to note which topics it uses, twice.
        seconds = max(policy.max_inactive_duration_seconds, 60 * retention.time_minutes, least)
        since_ms = self._clock.wall_ms() - 1000 * seconds
        logs = [log_entry for log_entry in session.catalog.with_logs(entry) if log_entry.is_made]
        # Cheap, by one word of each log and without opening: most topics are in use.
        if any(self._last_publish_ms(log_entry) > since_ms for log_entry in logs):
            return
        look = _Look(session.policies, policy, since_ms, self._clock)
        # The first look at a topic that was never opened opens it: it has to be noted when that was.
        names = [log_entry.name for log_entry in logs] or [_first_log(entry)]
        if all(self._is_inactive(log_name, look) for log_name in names):
            with late_imports():
                from embeddedpulsar._engine.store.topic_deletion import delete
            delete(session, self._use_topic, entry, self._clock.wall_ms(), look.check)
            done.append(Note(f"{name} was deleted: not in use for {seconds} s", topic=name))

    def _is_partition(self, name: str) -> bool:
        """Whether it is deleted with its partitioned topic, if at all."""
        if PARTITION_SUFFIX not in name:
            return False
        parsed = TopicName.parse(name)
        base = self._session.catalog.find(parsed.base) if parsed.partition >= 0 else None
        return base is not None and bool(base.partitions)

    def _is_inactive(self, name: str, look: _Look) -> bool:
        use = self._use_topic(name)
        try:
            return look.is_inactive(use.topic)
        finally:
            use.release()

    def _last_publish_ms(self, entry: TopicEntry) -> int:
        """At least then something was published last; without opening the topic. 0 if that is unknown."""
        directory = self._session.directories.path(entry)
        try:
            fd = disk.DISK.open_file(filenames.control_path(directory), os.O_RDONLY)
        except FileNotFoundError:
            return 0
        try:
            return int.from_bytes(disk.DISK.pread(fd, 8, 8 * TopicWord.LAST_PUBLISH_MS), "little")
        finally:
            os.close(fd)

    def close(self) -> None:
        """Look at nothing from here on. Waits for the slice that is under way."""
        try:
            self._lock.acquire()
            self._is_closed = True
        finally:
            self._lock.release()
        self._session.housekeeping.discard(self)


class _Look:
    """One look at the logs of a topic: whether it is inactive since ``since_ms``, by ``policy``."""

    def __init__(
        self, documents: PolicyDocuments, policy: InactiveTopicPolicies, since_ms: int, clock: Clock
    ) -> None:
        self._documents: Final = documents
        self._policy: Final = policy
        self._since_ms: Final = since_ms
        self._clock: Final = clock

    def check(self, topic: Topic) -> None:
        """Raise if the topic is in use, or was in use a short time ago.

        Raises:
            BrokerMetadataError: it is.
        """
        if not self.is_inactive(topic):
            raise BrokerMetadataError(f"{topic.name} is in use")

    def is_inactive(self, topic: Topic) -> bool:
        """Whether the topic may go. If it is in use, that is noted in a word of the topic."""
        words, now = topic.ledger.words, self._clock.wall_ms()
        seen_ms = words[TopicWord.SEEN_ACTIVE_MS]
        last_ms = max(words[TopicWord.LAST_PUBLISH_MS], seen_ms if seen_ms <= now else 0)
        producers, subscriptions = topic.view.producers(), topic.view.subscriptions()
        durable = [facts for facts, is_durable in subscriptions if is_durable]
        last_ms = max([last_ms, *(facts.last_active_ms for facts in durable)])
        is_used = (
            producers.connected or producers.waiting or any(facts.consumers for facts, _ in subscriptions)
        )
        # Without any time, the topic was never used: its time begins with the first look.
        if is_used or not last_ms or self._is_needed(topic, durable):
            words[TopicWord.SEEN_ACTIVE_MS] = now
            return False
        return bool(last_ms <= self._since_ms)

    def _is_needed(self, topic: Topic, durable: Sequence[SubscriptionFacts]) -> bool:
        """Whether its subscriptions keep it; or its messages, which are kept until there is one."""
        if durable and self._policy.inactive_topic_delete_mode == DELETE_WHEN_NO_SUBSCRIPTIONS:
            return True
        if durable:
            log = topic.ledger
            if log.max_read_position() != log.last_position():
                return True  # something waits for a transaction
            last = log.last_readable() or BEFORE_FIRST
            return min(facts.acknowledged.mark_delete for facts in durable) < last
        return bool(
            topic.ledger.first_position() <= (topic.ledger.last_position() or BEFORE_FIRST)
            and topic.policies.value(KEEP_UNTIL_SUBSCRIBED)
            and self._documents.own(INACTIVE_TOPICS, TopicName.parse(topic.name).base) is None
        )


def _first_log(entry: TopicEntry) -> str:
    return TopicName.parse(entry.name).of_partition(0).full if entry.partitions else entry.name
