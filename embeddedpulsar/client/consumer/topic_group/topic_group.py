"""The parts of a consumer or reader of several topics: one for each topic or partition."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from embeddedpulsar._engine.platform import deadline, fork, threads
from embeddedpulsar._engine.store.catalog.topic_list import partition_names
from embeddedpulsar.client.consumer.closing import AcknowledgementsUnwritten, CloseGuard, together
from embeddedpulsar.client.consumer.message_receiver import MessageReceiver
from embeddedpulsar.client.consumer.reader_core import ReaderCore
from embeddedpulsar.client.consumer.topic_group.group_delivery import GroupDelivery, Part
from embeddedpulsar.client.consumer.topic_group.matching_topics import MatchingTopics
from embeddedpulsar.exceptions import AlreadyClosed, OperationNotSupported, PulsarException
from embeddedpulsar.message_id import LARGEST_ID, MessageId
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from embeddedpulsar._engine.format.catalog_record import TopicEntry
    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.common.partition_watch import WatchedCatalog, WatchedTopic
    from embeddedpulsar.client.consumer.consumer_config import ConsumerConfig, ReaderConfig
    from embeddedpulsar.client.consumer.topic_group.topic_pattern import TopicPattern


_MANY: Final = 64
"""Number of topics from which on they are opened without the garbage collector."""


M = TypeVar("M", bound=Part)
_MOST_AHEAD: Final = 50_000
"""Messages fetched ahead of all partitions together."""


class TopicGroup(Generic[M]):
    """The consumers or readers of several topics, opened and closed together.

    Role: opens one for each topic, and for each partition of a partitioned one. When a topic grows, the new
    partitions join, from their first message on. When a member is lost (its topic or subscription was
    deleted, or another process detached the consumer), all are closed. With a pattern, the topics that match
    it join as well, and a member whose topic was deleted leaves alone.

    Invariants: all topics are open or none. `members` changes under a lock, in single steps: other threads
    iterate over a list of it.

    Args:
        client: the client.
        config: of the consumer or reader.
        name: of the consumer or reader.
        partitions: full names of the topics, with the number of partitions of each; 0 for a plain one.
        open_member: opens a topic, given its name, the number of topics so far, and whether it joined later.
        pattern: the pattern of further topics, or None.
        on_left: called with a member that leaves, before it is closed.
    """

    def __init__(
        self,
        client: ClientContext,
        config: ConsumerConfig | ReaderConfig,
        name: str,
        partitions: dict[str, int],
        open_member: Callable[[str, int, bool], M],
        pattern: TopicPattern | None = None,
        on_left: Callable[[M], object] = id,
    ) -> None:
        self._client = client
        self._config = config
        self._name = name
        self._partitions = partitions
        self._open_member = open_member
        self._close_guard = CloseGuard(client)
        self._joining = threads.RLock()  # guards members that are added or removed
        self._watched: list[WatchedTopic | WatchedCatalog] = []
        self._on_left = on_left
        self._lost: dict[str, M] = {}  # members whose topics were deleted, and that have not left yet
        self.members: dict[str, M] = {}
        store = client.store
        self.delivery = GroupDelivery(store.mailbox, store.clock, self._on_lost)
        self.receiver = MessageReceiver(client, config, self.delivery, self.delivery.take)
        names = [
            one for topic, number in partitions.items() for one in partition_names(topic, number) or [topic]
        ]
        self._matching: MatchingTopics | None = None
        self._expected = len(names)  # of the first members; 0 when they are open
        try:
            if pattern is not None:
                self._matching = MatchingTopics(client, pattern, self._join, self._leave)
                self._expected += self._matching.count
            join = functools.partial(self._open_all, names)
            fork.uncollected(join) if self._expected > _MANY else join()
        except BaseException:
            self._stop_watching()
            self._close_members()
            raise
        self._expected = 0
        fork.register(self)

    def _open_all(self, names: list[str]) -> None:
        for topic in names:
            self._add(topic)
        if self._matching is not None:
            self._matching.begin()

    def _add(self, topic: str, entry: TopicEntry | None = None) -> None:
        """Open a member. Under the lock, or before another thread uses the group.

        Args:
            topic: its name.
            entry: of the topic that matched the pattern, of which this is a partition, or it itself.

        Raises:
            AlreadyClosed: that was deleted meanwhile, so the name may be that of another topic by now.
        """
        count = max(self._expected, len(self.members) + 1)
        member = self._open_member(topic, count, not self._expected)
        if entry is not None and self._matching is not None and not self._matching.is_current(entry):
            # Before it delivers anything: acknowledged messages would be delivered again if it left later.
            self._dismiss(member)
            raise AlreadyClosed(f"the topic {entry.name} was deleted")
        self.members[topic] = member
        self.delivery.add(member)

    def watch(self) -> None:
        """Follow the topics: the number of their partitions, and which of them match the pattern."""
        watch = self._client.partition_watch
        if self._matching is not None:
            self._watched.append(watch.add_catalog(self._config.topic, self._follow))
        for topic, number in self._partitions.items():
            if number:
                changed = functools.partial(self._on_partitions, topic)
                self._watched.append(watch.add(topic, number, changed))

    def _on_partitions(self, topic: str, partitions: int) -> None:
        """Add new partitions, or close after a deletion. Called when a topic has changed."""
        if not partitions:
            self._close_all(AlreadyClosed(f"the topic {topic} was deleted"))
            return
        try:
            self._joining.acquire()
            for name in partition_names(topic, partitions):
                if name not in self.members and not self.delivery.closed_text:
                    self._add(name)
        finally:
            self._joining.release()
        self._on_growth(topic, partitions)

    def _on_growth(self, topic: str, partitions: int) -> None:
        self._client.wake()
        if self._config.chain is not None:
            self._config.chain.tell("on_partitions_change", topic, partitions)

    # -- the topics of a pattern -------------------------------------------------------------------------

    def _follow(self) -> bool:
        """Let topics join and leave. Called when the list of topics has changed, or a member was lost."""
        if self._matching is None or self.delivery.closed_text:
            return True
        try:
            self._joining.acquire()
            while self._lost:
                name, member = self._lost.popitem()
                if self.members.get(name) is not member:
                    continue  # it left meanwhile, and the topic that has its name now is another one
                self._leave([name])
                self._matching.renew(name)
                self._matching.renew(TopicName.parse(name).base)
            return self._matching.follow()
        finally:
            self._joining.release()

    def _join(self, entry: TopicEntry, names: list[str], was_known: bool) -> None:
        has_grown = False
        for name in names:
            if name not in self.members and not self.delivery.closed_text:
                self._add(name, entry)
                has_grown = True
        if has_grown and was_known and entry.partitions:
            self._on_growth(entry.name, entry.partitions)
        elif has_grown:
            self._client.wake()

    def _leave(self, names: list[str]) -> None:
        for name in names:
            member = self.members.pop(name, None)
            if member is None:
                continue
            self.delivery.remove(member)
            self._dismiss(member)

    def _dismiss(self, member: M) -> None:
        """Close a member whose topic was deleted."""
        name = member.topic_name
        try:
            self._on_left(member)
            member.close()
        except AlreadyClosed:
            return
        except PulsarException as error:
            self._client.log.warning("%s was deleted; closing its %r failed: %s", name, member, error)

    def has_left(self, member: Part) -> bool:
        """Whether a member does not belong to the group any more because its topic was deleted.

        If so, the application gets no error: the group goes on without it."""
        if self._matching is None or self.delivery.closed_text:
            return False
        name = member.topic_name
        if self.members.get(name) is not member:
            return True
        is_gone = name not in self._partitions and member.delivery.is_of_deleted_topic
        if is_gone:
            self._lost[name] = member
            self._client.partition_watch.look_again()
        return is_gone

    # -- closing -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all members.

        Raises:
            AlreadyClosed: the group was closed before by this method.
        """
        if not self._close_guard.begin(self.delivery.closed_text):
            return
        words = self._config.words
        error = self._end(f"the {words.noun} is closed; {words.again}")
        if error is not None:
            raise error

    def _end(self, text: str) -> BaseException | None:
        """Make every later call fail with ``text``, and close the members; return the first error."""
        try:
            self.shut(text)
            return self._close_members()
        except BaseException:
            self._client.abandon(self._close_members)  # interrupted: the group is closed, so they follow
            raise

    def close_by(self, leave: Callable[[list[M]], object], text: str) -> None:
        """Let ``leave`` close the members, while none can join; then make every later call fail."""
        try:
            self._joining.acquire()
            leave(list(self.members.values()))
            self.shut(text)
        finally:
            self._joining.release()

    def shut(self, text: str) -> None:
        """Make every later call fail with ``text``; the members stay open."""
        self.delivery.close(text)
        self._stop_watching()
        self.receiver.stop()
        self._client.wake()

    def _stop_watching(self) -> None:
        for watched in self._watched:
            self._client.partition_watch.remove(watched)
        if self._matching is not None:
            self._matching.close()

    def _close_members(self) -> BaseException | None:
        """Close the open members, and return the first error."""
        first_error: BaseException | None = None
        unwritten: list[AcknowledgementsUnwritten] = []
        try:
            self._joining.acquire()
            for member in list(self.members.values()):
                try:
                    deadline.within_half(member.close)
                except AlreadyClosed:
                    continue  # it was lost, and has closed itself
                except AcknowledgementsUnwritten as error:
                    unwritten.append(error)
                except Exception as error:  # noqa: BLE001 - the others are closed all the same
                    first_error = first_error or error
        finally:
            self._joining.release()
        return together(unwritten) if unwritten else first_error

    def _on_lost(self, member: Part, error: AlreadyClosed) -> bool:
        """Close all members, because another process or thread closed one; unless it has left alone."""
        has_left = self.has_left(member)
        if not has_left:
            self._close_all(error)
        return has_left

    def _close_all(self, error: AlreadyClosed) -> None:
        if not self.delivery.closed_text:
            self._end(str(error))

    def after_fork_in_child(self) -> None:
        self._joining = threads.RLock()
        self._close_guard.after_fork_in_child()
        words = self._config.words
        self.delivery.close_in_child(f"the {words.noun} {self._name}", words.again)


def is_end(target: MessageId) -> bool:
    """Whether an id is the earliest or the latest, which is valid for every topic."""
    return target._ledger < 0 or target._ledger == LARGEST_ID


def queue_share(queue_size: int, total: int, topics: int) -> int:
    """Return how many messages may be fetched ahead from each of several topics.

    >>> queue_share(1000, 50_000, 4), queue_share(1000, 50_000, 100), queue_share(1000, 5, 10)
    (1000, 500, 1)
    """
    return min(queue_size, max(1, total // max(1, topics)))


class ReaderGroup:
    """`ReaderCore` over one `ReaderCore` for each partition; see `TopicGroup`."""

    def __init__(self, client: ClientContext, config: ReaderConfig, topic: str, partitions: int) -> None:
        self.client = client
        self.config = config
        self.topic_name = topic
        self._group = TopicGroup(client, config, config.name or "", {topic: partitions}, self._open)
        self.delivery = self._group.delivery
        self.take = self.delivery.take
        self.receiver = self._group.receiver
        if not is_end(config.start) and (found := self._partition_of(config.start)) is not None:
            for reader in self.readers:
                if reader is not found:
                    reader.seek(MessageId.earliest)

    def _open(self, name: str, count: int, is_late: bool) -> ReaderCore:
        size = queue_share(self.config.receiver_queue_size, _MOST_AHEAD, count)
        own = self.config._replace(topic=name, listener=None, receiver_queue_size=size)
        return ReaderCore(self.client, own._replace(start=MessageId.earliest) if is_late else own)

    @property
    def readers(self) -> list[ReaderCore]:
        return list(self._group.members.values())

    def _partition_of(self, target: MessageId) -> ReaderCore | None:
        for reader in self.readers:
            if any(segment.ledger_id == target._ledger for segment in reader.ledger.segments()):
                return reader
        return None

    def start(self) -> None:
        self._group.watch()

    def has_message_available(self) -> bool:
        self.delivery.check_open()
        return bool(self.delivery.find(lambda reader: reader.has_message_available() or None))

    def seek(self, target: MessageId | int) -> None:
        self.delivery.check_open()
        readers = self.readers
        if isinstance(target, MessageId) and not is_end(target):
            found = self._partition_of(target)
            if found is None:
                raise OperationNotSupported(f"{target!r} belongs to no partition of {self.topic_name}")
            readers = [found]
        for reader in readers:
            reader.seek(target)

    def to_arrow(self, columns: Sequence[str] | None) -> pa.Table:
        from embeddedpulsar.arrow.schema import require_pyarrow  # it is large, and rarely needed

        tables = [reader.to_arrow(columns) for reader in self.readers]
        joined: pa.Table = require_pyarrow().concat_tables(tables)
        return joined

    def close(self) -> None:
        self._group.close()
