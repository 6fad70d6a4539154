"""Deleting topics that have not been used for some time, where a policy asks for it; and deleting topics.

A topic is deleted with all its partitions, while other processes may use them.

Steps, under the catalog lock: 1. check that no producer or consumer is attached; 2. the word STATE of each
log says "deleted", so from here on every open handle, in any process, gets an error that says so; 3. one
record of the catalog ends the topic and its partitions, durably: this is the deletion; 4. the directories
leave ``topics/``; and without the lock: 5. all processes are rung; 6. the files are removed, and then the
objects of offloaded ledgers. From before 2 to after 4 there is a note of the directories.

A process that dies before 3 leaves the topic as it was, but for its mark, which the next process that opens
the topic clears. One that dies after 3 leaves directories of a topic that is gone: they are removed when a
topic of that name is made, by the next opening of the store, which finds the note, and by the first opening
after a boot. A new life of a name has a directory of its own, so a handle of the old life meets nothing of
the new one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.format.control import StoreWord, TopicWord
from embeddedpulsar._engine.log.topic_control import ATTENTION, DELETED
from embeddedpulsar._engine.platform import disk, failpoints, threads, timing
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.platform.package_log import Note
from embeddedpulsar._engine.store.housekeeping import PATIENCE_S, SLICE, SLICE_S
from embeddedpulsar._engine.store.policies.keeping import INACTIVE_TOPICS, KEEP_UNTIL_SUBSCRIBED, RETENTION
from embeddedpulsar._engine.store.root_layout import OFFLOADED, in_root, remove_tree
from embeddedpulsar.exceptions import BrokerMetadataError, LockTimeout, StorageError, TopicNotFound
from embeddedpulsar.message_id import BEFORE_FIRST
from embeddedpulsar.policy_values import DELETE_WHEN_NO_SUBSCRIPTIONS, InactiveTopicPolicies
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
    others from using it (`inactive_topics`). A round takes no more than a twentieth of the time of a process.
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


_BELOW_CATALOG_S: Final = 1.0
"""How long locks of the topic are waited for in all while no other process can make topics."""

failpoints.declare(
    "deletion:noted", "deletion:checked", "deletion:marked", "deletion:recorded", "deletion:moved"
)

Check = Callable[["Topic"], object]
"""Raises if a topic is not to be deleted."""


def delete(
    session: StoreSession,
    use_topic: Callable[[str], TopicUse],
    entry: TopicEntry,
    now_ms: int,
    check: Check,
) -> None:
    """Delete the topic of ``entry``, with all its partitions; see `Store.delete_topic`.

    Args:
        session: of the store.
        use_topic: a hold on a topic that exists, to look at it.
        entry: of the topic.
        now_ms: the time.
        check: called with each log before and after the mark, with nothing changed if it raises.
    """
    staged = None
    # None: partitions were added between the listing and the lock, and they have to be opened first.
    while staged is None:
        # Opened before the catalog lock is taken: opening may make files and wait, and all creation of topics
        # waits for that lock.
        with contextlib.ExitStack() as uses:
            topics = []
            for log_entry in _made(session.catalog.with_logs(entry)):
                use = use_topic(log_entry.name)
                uses.callback(use.release)
                topics.append(use.topic)
            staged = _delete_topics(session, entry, topics, now_ms, check)
    # After the locks: the processes that have the topic open find it deleted, and those that wait wake up.
    session.peers.ring_all()
    # The slow part: removing files needs no lock, since nothing refers to these directories any more.
    had_notes = [session.directories.staging.remove(directory) for directory in staged]
    if any(had_notes):
        with late_imports():
            from embeddedpulsar._engine.cold.fetching import remove_leftovers
        remove_leftovers(in_root(session.root, OFFLOADED))


def _delete_topics(
    session: StoreSession, entry: TopicEntry, topics: Sequence[Topic], now_ms: int, check: Check
) -> list[str] | None:
    """Delete the topic of ``entry``, whose logs are ``topics``: itself, or its partitions.

    Returns:
        The directories to be removed; None if there are other partitions than these by now.

    Raises:
        TopicNotFound: another process deleted it.
        BrokerMetadataError: ``check`` refused it. Nothing was changed.
        LockTimeout: another process stays in a lock of the topic. Nothing was changed.
    """
    # Under the catalog lock from here: no process can make the topic, or a partition of it, anew before it is
    # gone.
    catalog, directories, note = session.catalog, session.directories, ""
    try:
        catalog.lock.acquire()
        current = catalog.find(entry.name)
        # By incarnation: a topic that was deleted and made again in between is another one, and is not to be
        # deleted.
        if current is None or current.incarnation != entry.incarnation:
            raise TopicNotFound(f"{entry.name}: no such topic in {session.root}; it was deleted meanwhile")
        entries = catalog.with_logs(current)
        if {log_entry.name for log_entry in _made(entries)} != {topic.name for topic in topics}:
            return None
        # The partitioned topic itself has a directory with its description; for a topic without partitions
        # the two are one.
        ended = list(dict.fromkeys([current, *entries]))
        # The note first: a process that dies between the record and the move leaves it to the next opening of
        # the store, which puts the directories away. It is not flushed, since the first opening after a boot
        # looks at all of them.
        try:
            note = directories.staging.note_end([directories.relative(ended_entry) for ended_entry in ended])
            if failpoints.ACTIVE:
                failpoints.hit("deletion:noted")
            # A bounded time for locks of topics: while this waits, no topic of the store can be made.
            timing.within(_BELOW_CATALOG_S, lambda: _mark_all(session, current, topics, now_ms, check))
            if failpoints.ACTIVE:
                failpoints.hit("deletion:recorded")
            # The record is durable: the topic does not exist any more, whatever comes. Moving its directory
            # away frees the name for a new topic.
            staged = [directories.put_away(directories.relative(ended_entry)) for ended_entry in ended]
            if failpoints.ACTIVE:
                failpoints.hit("deletion:moved")
        finally:
            # Also after an error: the note names directories of topics that still exist then.
            if note:
                remove_tree(note)
    finally:
        catalog.lock.release()
    return staged


def _made(entries: Sequence[TopicEntry]) -> list[TopicEntry]:
    """Those that were ever opened: no process has the others open, or can open them without the lock."""
    return [entry for entry in entries if entry.is_made]


def _mark_all(
    session: StoreSession, entry: TopicEntry, topics: Sequence[Topic], now_ms: int, check: Check
) -> None:
    """Do steps 1 to 3."""
    # A first look without any change, so that a topic in use is refused without disturbing it.
    for topic in topics:
        check(topic)
    if failpoints.ACTIVE:
        failpoints.hit("deletion:checked")
    marked = []
    try:
        # Noted before it is marked: an interrupt between the two must not leave a mark behind.
        for topic in topics:
            marked.append(topic)
            mark(topic, DELETED)
        # Appends stop with the mark, and attaching looks at it under the lock of the topic. So who has
        # attached before the mark is seen here, and who comes after it is refused.
        for topic in topics:
            check(topic)  # a producer or consumer may have attached since
        if failpoints.ACTIVE:
            failpoints.hit("deletion:marked")
        # The decision, durable before anything is removed.
        session.catalog.append_topic_deleted(entry, now_ms, durable=True)
    except BaseException:
        # Still in the catalog: the record was not written, so the topic goes on. If it was written, the error
        # came after it, and the deletion stands.
        if session.catalog.find(entry.name) is not None:
            for topic in marked:
                # A process that stays in the lock keeps its mark until the next open, which clears it where
                # the catalog has the topic.
                with contextlib.suppress(LockTimeout):  # the next process that opens it clears the mark
                    timing.unbounded(timing.within, _BELOW_CATALOG_S, mark, topic, 0)
        raise


def check_unless(force: bool) -> Check:
    """What refuses to delete a topic that is in use; nothing if it is to be deleted anyway."""
    return lambda topic: None if force else _check_unused(topic)


def _check_unused(topic: Topic) -> None:
    """Refuse to delete a topic that is in use.

    Raises:
        BrokerMetadataError: producers or consumers are attached; names them.
    """
    users = [f"producer {name!r}" for name in topic.producers()]
    users += [f"consumer {name!r}" for name in topic.consumers()]
    if users:
        more = f" and {len(users) - 5} more" if len(users) > 5 else ""
        raise BrokerMetadataError(
            f"{topic.name} is in use by {', '.join(users[:5])}{more}; close them, or delete it with force"
        )


def mark(topic: Topic, state: int) -> None:
    """Mark a topic as `DELETED`, or (0) remove the mark."""
    lock, words = topic.ledger.lock, topic.ledger.words
    try:
        lock.acquire()
        words[TopicWord.STATE] = words[TopicWord.STATE] & ~DELETED | state
        words[TopicWord.OWNER] = ATTENTION  # every process looks at the state before its next append
    finally:
        lock.release()


def take_mark_back(session: StoreSession, entry: TopicEntry, topic: Topic) -> None:
    """Clear the mark of a topic, once its deletion has ended or the process that began it died.

    Raises:
        TopicNotFound: it is deleted. The topic is closed then, as after every error.
    """
    try:
        session.catalog.lock.acquire()
        current = session.catalog.find(entry.name)
        if current is None or current.incarnation != entry.incarnation:
            raise TopicNotFound(f"{entry.name}: no such topic in {session.root}; it was deleted")
        if topic.is_deleted:
            timing.within(_BELOW_CATALOG_S, mark, topic, 0)
    except BaseException:
        topic.close()
        raise
    finally:
        session.catalog.lock.release()
