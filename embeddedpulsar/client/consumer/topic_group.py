"""The parts of a consumer or reader of several topics: one for each topic or partition.

The state of a consumer of several topics or partitions: one `ConsumerCore` for each, used together.

Receiving from several consumers and readers in one thread, those first in the list before the others.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace

from embeddedpulsar._engine.platform import fork, threads, timing
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
from embeddedpulsar._engine.store.topic_list import partition_names
from embeddedpulsar._engine.subscription.subscription_files import Freshness
from embeddedpulsar.client.client_context import AcknowledgementsUnwritten, CloseGuard, admit_all, together
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.client.consumer.consumer_core import ConsumerCore, consumer_core
from embeddedpulsar.client.consumer.consumer_session import ConsumerSession
from embeddedpulsar.client.consumer.delivery import NEVER_S
from embeddedpulsar.client.consumer.listener import ListenerTarget
from embeddedpulsar.client.consumer.message_receiver import BatchReceiver, MessageReceiver
from embeddedpulsar.client.consumer.reader import ReaderCore
from embeddedpulsar.client.consumer.ready_topics import GroupDelivery, Part
from embeddedpulsar.client.consumer.topic_pattern import MatchingTopics
from embeddedpulsar.client.statistics import ConsumerStats, sum_of
from embeddedpulsar.enums import InitialPosition
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    InvalidConfiguration,
    OperationNotSupported,
    PulsarException,
)
from embeddedpulsar.message import NO_ORIGIN, Message
from embeddedpulsar.message_id import LARGEST_ID, MessageId
from embeddedpulsar.records import TYPE_CHECKING, Generic, TypeVar
from embeddedpulsar.schema.schema import checked_version
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from typing import Any, Final

    import pyarrow as pa

    from embeddedpulsar._engine.format.catalog_record import TopicEntry
    from embeddedpulsar._engine.platform.mailbox import Mailbox
    from embeddedpulsar.client.client_context import ClientContext, WatchedCatalog, WatchedTopic
    from embeddedpulsar.client.consumer.consumer_config import ConsumerConfig, ReaderConfig
    from embeddedpulsar.client.consumer.reader import Reader
    from embeddedpulsar.client.consumer.topic_pattern import TopicPattern
    from embeddedpulsar.client.transaction import Transaction

    Receiving = Consumer[Any] | Reader[Any]
    S = TypeVar("S", bound=Receiving)


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
        on_failure: called with what a listener raises.
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
        on_failure: Callable[[Message[Any], BaseException], object] | None = None,
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
        self.receiver = MessageReceiver(client, config, self.delivery, self.delivery.pop_message, on_failure)
        names = [
            partition
            for topic, number in partitions.items()
            for partition in partition_names(topic, number) or [topic]
        ]
        self._matching: MatchingTopics | None = None
        self._expected = len(names)  # of the first members; 0 when they are open
        try:
            if pattern is not None:
                self._matching = MatchingTopics(client, pattern, self._join, self._remove_members)
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
            self._watched.append(watch.add_catalog(self._config.topic, self._update_members))
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

    def _update_members(self) -> bool:
        """Let topics join and leave. Called when the list of topics has changed, or a member was lost."""
        if self._matching is None or self.delivery.closed_text:
            return True
        try:
            self._joining.acquire()
            while self._lost:
                name, member = self._lost.popitem()
                if self.members.get(name) is not member:
                    continue  # it left meanwhile, and the topic that has its name now is another one
                self._remove_members([name])
                self._matching.renew(name)
                self._matching.renew(TopicName.parse(name).base)
            return self._matching.update()
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

    def _remove_members(self, names: list[str]) -> None:
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
            text = "%s was deleted; closing its %r failed: %s"
            self._client.log.warning(text, name, member, error, topic=name)

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

    def close_by(self, close_members: Callable[[list[M]], object], text: str) -> None:
        """Let ``close_members`` do so, while none can join; then make every later call fail."""
        try:
            self._joining.acquire()
            close_members(list(self.members.values()))
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
                    timing.within_half(member.close)
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
        self.pop_message = self.delivery.pop_message
        self.receiver = self._group.receiver
        if not is_end(config.start) and (part := self._partition_of(config.start)) is not None:
            for reader in self.readers:
                if reader is not part:
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
            part = self._partition_of(target)
            if part is None:
                raise OperationNotSupported(f"{target!r} belongs to no partition of {self.topic_name}")
            readers = [part]
        for reader in readers:
            reader.seek(target)

    def to_arrow(self, columns: Sequence[str] | None) -> pa.Table:
        from embeddedpulsar.arrow.schema import require_pyarrow  # it is large, and rarely needed

        tables = [reader.to_arrow(columns) for reader in self.readers]
        joined: pa.Table = require_pyarrow().concat_tables(tables)
        return joined

    def close(self) -> None:
        self._group.close()


R = TypeVar("R")

_SLICE: Final = 64
_SHARE: Final = 9
"""Ratio of a pause to the work before it."""


class ConsumerGroup:
    """`ConsumerCore` over one `ConsumerCore` for each topic of a `TopicGroup`.

    Role: passes every message and id to the consumer of its topic. A message refers to its topic. An id is
    found by its ledger, because ledger ids are unique in a store.

    Args:
        client: the client.
        config: of the consumer, and of each topic except for the topic and the size of the queue.
        partitions: full names of the topics, with the number of partitions of each; 0 for a plain one.
        topic_name: the name that the consumer returns as its topic.
        pattern: the pattern of further topics, or None.

    Raises:
        InvalidConfiguration: a queue of size 0 on a partitioned topic, or with a pattern.
    """

    def __init__(
        self,
        client: ClientContext,
        config: ConsumerConfig,
        partitions: dict[str, int],
        topic_name: str,
        pattern: TopicPattern | None = None,
    ) -> None:
        if config.receiver_queue_size == 0 and (any(partitions.values()) or pattern is not None):
            raise InvalidConfiguration(
                "receiver_queue_size=0 does not work on a partitioned topic, nor with a pattern, which may "
                "match one; subscribe to one partition or topic"
            )
        self.client = client
        self.config = config
        self.topic_name = topic_name
        self.consumer_name = config.name or os.urandom(5).hex()
        self.fresh = Freshness.for_ever()  # the consumer of its topic checks whether a message is void
        self.acks: Any = SimpleNamespace(quick_origin=NO_ORIGIN)  # the slow path finds the topic of a message
        self._faces: dict[str, Consumer[Any]] = {}  # their `acknowledge` has a fast path
        self._topic_of: dict[int, str] = {}  # by ledger
        monotonic = client.store.clock.monotonic
        self._writing = TurnTimer(client.scheduler.call_later, monotonic, config.ack_group_time_ms / 1000)
        self._has_pattern, self._named = pattern is not None, partitions
        self._group = TopicGroup(
            client,
            config,
            self.consumer_name,
            partitions,
            self._attach,
            pattern,
            self._on_left,
            self.note_reason,
        )
        self.delivery = self._group.delivery
        self.receiver = self._group.receiver
        self.fetched: Any = SimpleNamespace(popleft=self.delivery.pop_message)
        self.batches = BatchReceiver(
            self.delivery,
            self.delivery.pop_message,
            self._put_back,
            config.batch_receive,
            config.receiver_queue_size,
            lambda: sum(self._each(ConsumerCore.voided)),
        )

    def _attach(self, topic: str, count: int, is_late: bool) -> ConsumerCore:
        """Make the consumer of one more topic, one of ``count``."""
        is_match = self._has_pattern and topic not in self._named
        if is_match:
            checked_version(self.config.schema, (topic,), is_producer=False)
            admit_all(self.client.store, (topic,), self.config.schema)
        own = self.config._replace(
            topic=topic,
            name=self.consumer_name,
            listener=None,
            several_topics=True,
            creates_topic=not is_match,  # it was listed, so otherwise it was deleted meanwhile
            receiver_queue_size=queue_share(
                self.config.receiver_queue_size, self.config.total_queue_size, count
            ),
        )
        if is_late:  # from its first message on: producers may have used it before
            own = own._replace(initial_position=InitialPosition.Earliest)
        child = consumer_core(ConsumerSession(self.client, own, self._writing.call_later))
        self._faces[topic] = Consumer(child)
        return child

    @property
    def children(self) -> dict[str, ConsumerCore]:
        return self._group.members

    def _on_left(self, child: ConsumerCore) -> None:
        self._faces.pop(child.topic_name, None)
        for segment in child.session.ledger.segments():
            self._topic_of.pop(segment.ledger_id, None)
        if child.delivery.closed_text:
            # It met the mark of a deletion. If that fails, the topic joins again, and this consumer must not
            # hold its subscription. Otherwise nothing of the topic is left.
            with contextlib.suppress(PulsarException, OSError):
                child.session.detach()

    def _each(self, call: Callable[[ConsumerCore], R], topic: str | None = None) -> list[R]:
        """Call a function with the consumer of one topic, or of all; those that left are left out."""
        named = self.children.get(topic) if topic is not None else None
        children = [named] if named is not None else []
        answers = []
        for child in children if topic is not None else list(self.children.values()):
            try:
                answers.append(call(child))
            except AlreadyClosed:
                if not self._group.has_left(child):
                    raise
        return answers

    def stats(self) -> ConsumerStats:
        return sum_of(child.stats() for child in list(self.children.values()))

    def _put_back(self, message: Message[Any]) -> None:
        child = self.children.get(message.topic_name())
        if child is not None:
            child.put_back(message)

    # -- finding the topic -------------------------------------------------------------------------------

    def _topic(self, target: object) -> str | None:
        """Return the topic of a message or an id; None for an id without a message.

        Raises:
            AlreadyClosed: the consumer is closed.
            TypeError: neither a message nor an id.
            OperationNotSupported: it belongs to another topic.
        """
        if self.delivery.closed_text:
            self.delivery.check_open()
        topic: str | None = None
        if isinstance(target, Message):
            topic = target._origin.topic_name
            if topic in self._faces:
                return topic
        elif isinstance(target, MessageId):
            if is_end(target):
                return None
            topic = self._topic_of.get(target._ledger) or self._find(target._ledger)
            if topic is not None:
                return topic
        else:
            raise TypeError(f"expected a Message or a MessageId, not {type(target).__name__}")
        raise OperationNotSupported(
            f"{target!r} belongs to none of the topics of this consumer: {', '.join(list(self.children))}"
        )

    def _topic_to_tell(self, target: object) -> str | None:
        """As `_topic`; with a pattern, None also for a message of a topic that left, or an unknown id."""
        try:
            return self._topic(target)
        except OperationNotSupported:
            if not self._has_pattern:
                raise
            return None

    def _find(self, ledger_id: int) -> str | None:
        for topic, child in list(self.children.items()):
            for segment in child.session.ledger.segments():
                self._topic_of[segment.ledger_id] = topic
        return self._topic_of.get(ledger_id)

    def acknowledge(self, message: Message[Any] | MessageId) -> None:
        """Acknowledge a message on its topic. Hot: a received message is one lookup from its consumer."""
        face = None
        if message.__class__ is Message and not self.delivery.closed_text:
            face = self._faces.get(message._origin.topic_name)
        if face is None:
            topic = self._topic_to_tell(message)
            face = self._faces.get(topic) if topic is not None else None
            if face is None:
                return
        try:
            face.acknowledge(message)
        except AlreadyClosed:
            core: Any = face._core
            if not self._group.has_left(core):
                raise

    def acknowledge_in(self, txn: Transaction, messages: Sequence[Any], *, is_cumulative: bool) -> None:
        """Acknowledge in a transaction: the messages of each topic all or none."""
        by_topic: dict[str, list[Any]] = {}
        for message in messages:
            topic = self._topic_to_tell(message)
            if topic is not None:
                by_topic.setdefault(topic, []).append(message)
        for topic, members in by_topic.items():
            self._each(
                lambda child, members=members: child.acknowledge_in(  # type: ignore[misc]
                    txn, members, is_cumulative=is_cumulative
                ),
                topic,
            )

    def acknowledge_cumulative(self, message: Message[Any] | MessageId) -> None:
        topic = self._topic_to_tell(message)
        if topic is not None:
            self._each(lambda child: child.acknowledge_cumulative(message), topic)

    def negative_acknowledge(
        self, message: Message[Any] | MessageId, reason: str | BaseException | None = None
    ) -> None:
        topic = None if self.delivery.closed_text else self._topic_to_tell(message)
        if topic is not None:
            self._each(lambda child: child.negative_acknowledge(message, reason), topic)

    def note_reason(self, message: Message[Any], reason: BaseException) -> None:
        """Record why the listener failed, for the case that the message becomes a dead letter."""
        topic = None if self.delivery.closed_text else self._topic_to_tell(message)
        if topic is not None:
            self._each(lambda child: child.note_reason(message, reason), topic)

    def reconsume_later(
        self,
        message: Message[Any],
        delay_ms: int,
        properties: dict[str, str] | None,
        reason: str | BaseException | None = None,
        *,
        cumulative: bool,
    ) -> None:
        topic = self._topic(message) if isinstance(message, Message) else None
        names = [topic] if topic is not None else list(self.children)
        core = next(filter(None, map(self.children.get, names)), None)
        if core is None:
            raise OperationNotSupported(f"the topic of {message!r} was deleted, or there is none")
        core.reconsume_later(message, delay_ms, properties, reason, cumulative=cumulative)

    def last_message_id(self) -> MessageId:
        raise OperationNotSupported("a consumer of several topics has no last message; ask for one topic's")

    # -- all topics --------------------------------------------------------------------------------------

    def redeliver(self) -> None:
        self.delivery.check_open()
        self._each(ConsumerCore.redeliver)

    def seek(self, target: MessageId | int) -> None:
        """Move all subscriptions to a time or an end, or the subscription of one topic to an id."""
        self.delivery.check_open()
        topic = None if isinstance(target, int) else self._topic(target)
        self._each(lambda child: child.seek(target), topic)

    def unsubscribe(self) -> None:
        """Delete the subscription of every topic, and close; if one has other consumers, delete none."""
        self.delivery.check_open()
        self._group.close_by(_unsubscribe, "the consumer has unsubscribed")

    def save(self) -> None:
        for child in list(self.children.values()):
            child.save()

    def start(self) -> None:
        self._group.watch()

    def close(self) -> None:
        timing.within(self.client.config.operation_timeout_s, self._group.close)


def _unsubscribe(children: list[ConsumerCore]) -> None:
    # The subscriptions that may refuse come first, before any is deleted.
    for child in sorted(children, key=_company, reverse=True):
        try:
            child.unsubscribe()
        except AlreadyClosed:
            continue  # deleted by another process


def _company(child: ConsumerCore) -> int:
    """Return the number of consumers of its subscription."""
    return len(child.session.subscription.consumers())


class TurnTimer:
    """Calls functions later, as `Scheduler.call_later` does, with one timer for all of them.

    Role: a consumer of 1,000 topics has up to 1,000 groups of acknowledgements to write. The first one starts
    a timer for all. When that is due, the waiting functions are called in order: 64 in a row, then a pause of
    nine times the time they took, ``delay_s`` at most. So writing takes a tenth of a processor, independent
    of the number of topics, and more is written at once if it falls behind.

    Invariant: a waiting function is called, because it is queued before the timer is checked, and the timer
    clears its flag before it reads the queue. It may be called before its own delay is over. Any thread may
    call the methods.

    Args:
        call_later: of the scheduler.
        monotonic: returns the time.
        delay_s: the common delay of the functions; a function with another delay has its own timer.
    """

    __slots__ = ("_call_later", "_delay_s", "_is_armed", "_monotonic", "_waiting")

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], object]], object],
        monotonic: Callable[[], float],
        delay_s: float,
    ) -> None:
        self._call_later: Final = call_later
        self._monotonic: Final = monotonic
        self._delay_s: Final = delay_s
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_armed = False

    def call_later(self, delay_s: float, function: Callable[[], object]) -> object:
        """Call ``function()`` once, about ``delay_s`` seconds from now."""
        if delay_s != self._delay_s:
            return self._call_later(delay_s, function)
        self._waiting.append(function)
        if not self._is_armed:
            self._set_timer(delay_s)
        return None

    def _set_timer(self, delay_s: float) -> None:
        try:
            self._is_armed = True
            self._call_later(delay_s, self._on_timer)
        except BaseException:
            self._is_armed = False
            raise

    def _on_timer(self) -> None:
        self._is_armed = False
        waiting = self._waiting
        begun = self._monotonic()
        try:
            for _ in range(min(_SLICE, len(waiting))):
                waiting.popleft()()
        finally:
            if waiting and not self._is_armed:
                self._set_timer(min(self._delay_s, _SHARE * (self._monotonic() - begun)))


class ConsumerSelector:
    """Receives the messages of several consumers and readers of one client, as ``select`` does for sockets.

    Role: `receive_nowait` looks at the consumers in the order of its argument, so that the order is a
    priority and a consumer that is left out gives nothing. When there is no message, `request_wakeup`
    announces that this process sleeps for them, and `wait` sleeps until one of them may have a message. The
    steps are those of a listener thread, so no change between two of them is missed.

    `wait` may run in another thread than the rest, which belongs to one thread. `wake` may be called by any
    thread. A consumer that was announced and is not wanted any more must be given to `end_wait`, so that
    another consumer of its subscription is woken instead. Use it in the process that made the consumers.

    Not in ``pulsar-client``. The consumers must not have listeners. A reader stands wherever a consumer does.

    Example:
        >>> from embeddedpulsar import Client
        >>> with Client("memory://") as client:
        ...     urgent, other = (client.subscribe(name, "desk") for name in ("urgent", "other"))
        ...     for name in ("other", "urgent"):
        ...         with client.create_producer(name) as producer:
        ...             message_id = producer.send(name.encode())
        ...     selector = ConsumerSelector([urgent, other])
        ...     while (received := selector.receive_nowait([urgent, other])) is not None:
        ...         print(received[1].data())
        ...     selector.request_wakeup([urgent, other]), selector.wait([urgent, other], 0.001)
        b'urgent'
        b'other'
        (True, False)
    """

    def __init__(self, consumers: Iterable[Receiving]) -> None:
        self._targets: Final[dict[Receiving, ListenerTarget]] = {}
        self._received: list[Message[Any]] = []
        self._mailbox: Mailbox | None = None
        self._generation = -1
        self._is_woken = False
        for consumer in consumers:
            self.add(consumer)

    def add(self, consumer: Receiving) -> None:
        """Add a consumer. Does nothing if it was added before."""
        if consumer not in self._targets:
            consumer._receiver.check()
            self._targets[consumer] = consumer._receiver.target(consumer, self._keep)
            self._mailbox = consumer._receiver.mailbox

    def remove(self, consumer: Receiving) -> None:
        """Remove a consumer, which may be closed. Does nothing if it was not added."""
        target = self._targets.pop(consumer, None)
        if target is not None:
            target.end_wait(False)

    def _keep(self, _: object, message: Message[Any]) -> None:
        self._received.append(message)

    def receive_nowait(self, consumers: Sequence[S]) -> tuple[S, Message[Any]] | None:
        """Return the first message of the first consumer that has one, with that consumer; None if none has.

        Raises:
            AlreadyClosed: one of the consumers is closed: here, or because its topic or subscription was
                deleted.
        """
        if self._mailbox is None:
            return None
        self._mailbox.glance()
        # In this order: a wake-up between this line and the last look makes `wait` return at once.
        self._is_woken = False
        self._generation = self._mailbox.generation
        for consumer in consumers:
            target = self._targets[consumer]
            if target.run(1):
                return consumer, self._received.pop()
            if target.is_closed:
                raise AlreadyClosed(target.closed_text)
        return None

    def request_wakeup(self, consumers: Sequence[Receiving]) -> bool:
        """Have this process woken by the next change of one of the consumers.

        Returns:
            False if something has changed since `receive_nowait` looked, so that it has to look again.
        """
        return all(self._targets[consumer].request_wakeup() for consumer in consumers)

    def wait(self, consumers: Sequence[Receiving], timeout_s: float | None = None) -> bool:
        """Sleep until one of the consumers may have a message, or `wake` was called.

        Args:
            consumers: those of the last `request_wakeup`.
            timeout_s: longest wait in seconds; None for no limit.

        Returns:
            False after the timeout.

        Raises:
            AlreadyClosed: the client is closed.
        """
        mailbox, seen = self._mailbox, self._generation
        targets = [target for consumer in consumers if (target := self._targets.get(consumer)) is not None]
        begun = now = SYSTEM_CLOCK.monotonic()
        end = NEVER_S if timeout_s is None else begun + timeout_s
        while not self._is_woken:
            due_s = min((target.due_in_s() for target in targets), default=NEVER_S)
            nap_s = min((target.back_stop(now - begun) for target in targets), default=NEVER_S)
            sleep_s = max(0.0, min(due_s, nap_s, end - now))
            is_rung = mailbox is not None and mailbox.wait(seen, sleep_s) != seen
            now = SYSTEM_CLOCK.monotonic()
            if is_rung or due_s <= min(nap_s, end - now) or any(target.has_news() for target in targets):
                return True
            if now >= end:
                return False
        return True

    def wake(self) -> None:
        """End `wait` in whichever thread it runs, or the next one if none runs now."""
        self._is_woken = True
        if self._mailbox is not None:
            self._mailbox.ring_self()

    def end_wait(self, consumers: Iterable[Receiving]) -> None:
        """Take back `request_wakeup` for consumers whose messages are not wanted now."""
        for consumer in consumers:
            target = self._targets.get(consumer)
            if target is not None:
                target.end_wait(False)
