"""The state of a consumer of several topics or partitions: one consumer per topic, used together."""

from __future__ import annotations

import functools
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.client.common.close_guard import CloseGuard
from embeddedpulsar.client.common.statistics import ConsumerStats, sum_of
from embeddedpulsar.client.consumer.batch_receive import BatchReceiver
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.client.consumer.consumer_core import ConsumerCore
from embeddedpulsar.client.consumer.consumer_session import LARGEST_ID, ConsumerSession
from embeddedpulsar.client.consumer.listener import ListenerTarget
from embeddedpulsar.client.consumer.topic_group.multi_topics_consumer_delivery import MultiTopicsDelivery
from embeddedpulsar.client.consumer.topic_group.turn_timer import TurnTimer
from embeddedpulsar.client.consumer.unwritten_acknowledgements import AcknowledgementsUnwritten, together
from embeddedpulsar.enums import InitialPosition
from embeddedpulsar.exceptions import AlreadyClosed, InvalidConfiguration, OperationNotSupported
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.platform import deadline, fork, garbage, threads
from embeddedpulsar.subscription.attachment.freshness import Freshness
from embeddedpulsar.topic.catalog.topic_list import partition_names

if TYPE_CHECKING:
    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.common.partition_watch import WatchedTopic
    from embeddedpulsar.client.consumer.consumer_config import ConsumerConfig


_MANY: Final = 64
"""Number of topics from which on they are created without the garbage collector."""


class MultiTopicsSession:
    """The properties that the consumers of all topics share."""

    def __init__(self, client: ClientContext, topic_name: str, consumer_name: str) -> None:
        self.client = client
        self.topic_name = topic_name
        self.consumer_name = consumer_name
        # The consumer of its topic checks whether a message is void.
        self.attachment = SimpleNamespace(fresh=Freshness.for_ever())


class MultiTopicsCore:
    """`ConsumerCore` over one `ConsumerCore` for each topic, and for each partition of a partitioned one.

    Role: passes every message and id to the consumer of its topic. A message refers to its topic. An id is
    found by its ledger, because ledger ids are unique in a store. When a topic grows, the new partitions
    join, from their first message on.

    Invariants: all topics are attached or none. When one is lost (its subscription was deleted, or another
    process detached the consumer), all are closed. `children` and `_faces` are replaced, never changed, so
    any thread may iterate over them.

    Args:
        client: the client.
        config: of the consumer, and of each topic except for the topic and the size of the queue.
        partitions: full names of the topics, with the number of partitions of each; 0 for a plain one.
        topic_name: the name that the consumer returns as its topic.

    Raises:
        InvalidConfiguration: a queue of size 0 on a partitioned topic.
    """

    def __init__(
        self, client: ClientContext, config: ConsumerConfig, partitions: dict[str, int], topic_name: str
    ) -> None:
        if config.receiver_queue_size == 0 and any(partitions.values()):
            raise InvalidConfiguration(
                "receiver_queue_size=0 does not work on a partitioned topic; subscribe to one partition"
            )
        name = config.name or os.urandom(5).hex()
        self.config = config
        self.session = MultiTopicsSession(client, topic_name, name)
        self.listener: ListenerTarget | None = None
        self._close_guard = CloseGuard(client)
        self.acks: Any = SimpleNamespace(quick=False)  # the slow path finds the topic of a message
        self.children: dict[str, ConsumerCore] = {}
        self._faces: dict[str, Consumer[Any]] = {}
        self._topic_of: dict[int, str] = {}  # by ledger
        self._writing = TurnTimer(
            client.scheduler.call_later, client.store.clock.monotonic, config.ack_group_time_ms / 1000
        )
        self._joining = threads.RLock()  # guards children that are added or removed
        self._watched: list[WatchedTopic] = []
        names = [
            one for topic, number in partitions.items() for one in partition_names(topic, number) or [topic]
        ]
        try:
            join = functools.partial(self._attach_all, names)
            garbage.uncollected(join) if len(names) > _MANY else join()
        except BaseException:
            self._close_children()
            raise
        store = client.store
        self.delivery = MultiTopicsDelivery(
            tuple(self.children.values()), store.mailbox, store.clock, self._on_lost
        )
        self.take = self.delivery.take
        self.fetched = SimpleNamespace(popleft=self.take)
        self.batches = BatchReceiver(
            self.delivery,
            self.take,
            self._put_back,
            config.batch_receive,
            config.receiver_queue_size,
            lambda: sum(child.voided() for child in self.children.values()),
        )
        fork.register(self)
        self._partitions = partitions

    # -- partitions --------------------------------------------------------------------------------------

    def _attach_all(self, names: list[str]) -> None:
        for topic in names:  # no other thread uses these dicts yet
            self.children[topic] = child = self._attach(topic, len(names), self.config.initial_position)
            self._faces[topic] = Consumer(child)

    def _attach(self, topic: str, count: int, initial_position: InitialPosition) -> ConsumerCore:
        """Make the consumer of one more topic, one of ``count``."""
        own = self.config._replace(
            topic=topic,
            name=self.session.consumer_name,
            listener=None,
            several_topics=True,
            receiver_queue_size=queue_share(
                self.config.receiver_queue_size, self.config.total_queue_size, count
            ),
            initial_position=initial_position,
        )
        return ConsumerCore(ConsumerSession(self.session.client, own, self._writing.call_later))

    def _on_partitions(self, topic: str, partitions: int) -> None:
        """Add new partitions, or close after a deletion. Called when a topic has changed."""
        if not partitions:
            self._on_lost(AlreadyClosed(f"the topic {topic} was deleted"))
            return
        try:
            self._joining.acquire()
            for name in partition_names(topic, partitions):
                if name not in self.children and not self.delivery.closed_text:
                    # From its first message on: producers may have used it before.
                    child = self._attach(name, len(self.children) + 1, InitialPosition.Earliest)
                    self.children = {**self.children, name: child}
                    self._faces = {**self._faces, name: Consumer(child)}
                    self.delivery.replace(tuple(self.children.values()))
        finally:
            self._joining.release()
        self.session.client.wake()
        if self.config.chain is not None:
            self.config.chain.tell("on_partitions_change", topic, partitions)

    def stats(self) -> ConsumerStats:
        """Return the statistics of all topics together."""
        return sum_of(child.stats() for child in self.children.values())

    # -- receiving ---------------------------------------------------------------------------------------

    def check_can_receive(self, timeout_millis: int | None) -> None:
        """Refuse a call that ``pulsar-client`` refuses."""
        self.delivery.check_open()
        if self.config.listener is not None:
            raise InvalidConfiguration("this consumer has a listener, which gets the messages")
        if timeout_millis is not None and self.config.receiver_queue_size == 0:
            raise InvalidConfiguration("receive() takes no timeout with receiver_queue_size=0")

    def start(self, owner: object) -> None:
        """Watch the partitions, and start calling the listener, with ``owner`` as its first argument."""
        client = self.session.client
        for topic, number in self._partitions.items():
            if number:
                changed = functools.partial(self._on_partitions, topic)
                self._watched.append(client.partition_watch.add(topic, number, changed))
        if self.config.listener is None:
            return
        self.listener = ListenerTarget(owner, self.config.listener, self.delivery, self.take, client.log)
        client.listeners.add(self.listener)

    def _put_back(self, message: Message[Any]) -> None:
        self.children[message.topic_name()].put_back(message)

    # -- finding the topic -------------------------------------------------------------------------------

    def child_of(self, target: object) -> Consumer[Any] | None:
        """Return the consumer of the topic of a message or an id; None for an id without a message.

        Raises:
            AlreadyClosed: the consumer is closed.
            TypeError: neither a message nor an id.
            OperationNotSupported: it belongs to another topic.
        """
        self.delivery.check_open()
        if isinstance(target, Message):
            face = self._faces.get(target._origin.topic_name)
            if face is not None:
                return face
            topic = None
        elif isinstance(target, MessageId):
            if is_end(target):
                return None
            topic = self._topic_of.get(target._ledger) or self._find(target._ledger)
        else:
            raise TypeError(f"expected a Message or a MessageId, not {type(target).__name__}")
        if topic is None:
            raise OperationNotSupported(
                f"{target!r} belongs to none of the topics of this consumer: {', '.join(self.children)}"
            )
        return self._faces[topic]

    def _find(self, ledger_id: int) -> str | None:
        for topic, child in self.children.items():
            for segment in child.session.ledger.segments():
                self._topic_of[segment.ledger_id] = topic
        return self._topic_of.get(ledger_id)

    # -- giving back -------------------------------------------------------------------------------------

    def redeliver(self) -> None:
        """Have all unacknowledged messages delivered again, in order on each topic."""
        self.delivery.check_open()
        for child in self.children.values():
            child.redeliver()

    # -- moving ------------------------------------------------------------------------------------------

    def seek(self, target: MessageId | int) -> None:
        """Move all subscriptions to a time or an end, or the subscription of one topic to an id."""
        self.delivery.check_open()
        face = None if isinstance(target, int) else self.child_of(target)
        if face is not None:
            face.seek(target)
            return
        for child in self.children.values():
            child.seek(target)

    # -- leaving -----------------------------------------------------------------------------------------

    def unsubscribe(self) -> None:
        """Delete the subscription of every topic, and close; if one has other consumers, delete none."""
        self.delivery.check_open()
        try:
            self._joining.acquire()
            # The subscriptions that may refuse come first, before any is deleted.
            for child in sorted(self.children.values(), key=_company, reverse=True):
                try:
                    child.unsubscribe()
                except AlreadyClosed:
                    continue  # deleted by another process
            self._shut("the consumer has unsubscribed")
        finally:
            self._joining.release()

    def save(self) -> None:
        """Write the acknowledgements of every topic."""
        for child in list(self.children.values()):
            if not child.delivery.closed_text:
                child.acks.flush()

    def close(self) -> None:
        """Close the consumer of every topic. Raises as `ConsumerCore.close` does."""
        deadline.within(self.session.client.config.operation_timeout_s, self._close)

    def _close(self) -> None:
        if not self._close_guard.begin(self.delivery.closed_text):
            return
        self._shut("the consumer is closed; subscribe again")
        error = self._close_children()
        if error is not None:
            raise error

    def _shut(self, text: str) -> None:
        self.delivery.close(text)
        for watched in self._watched:
            self.session.client.partition_watch.remove(watched)
        if self.listener is not None:
            self.session.client.listeners.remove(self.listener)
        self.session.client.wake()

    def _close_children(self) -> BaseException | None:
        """Close the open consumers, and return the first error."""
        first_error: BaseException | None = None
        unwritten: list[AcknowledgementsUnwritten] = []
        try:
            self._joining.acquire()
            for child in self.children.values():
                try:
                    deadline.within_half(child.close)
                except AlreadyClosed:
                    continue  # it was lost, and has closed itself
                except AcknowledgementsUnwritten as error:
                    unwritten.append(error)
                except Exception as error:  # noqa: BLE001 - the others are closed all the same
                    first_error = first_error or error
        finally:
            self._joining.release()
        return together(unwritten) if unwritten else first_error

    def _on_lost(self, error: AlreadyClosed) -> None:
        """Close all topics, because another process or thread closed the consumer of one."""
        if not self.delivery.closed_text:
            self._shut(str(error))
            self._close_children()

    def after_fork_in_child(self) -> None:
        """Close the child's copy: the consumers belong to the parent."""
        self._joining = threads.RLock()
        self._close_guard.after_fork_in_child()
        self.delivery.after_fork_in_child()
        if not self.delivery.closed_text:
            self.delivery.closed_text = (
                f"the consumer {self.session.consumer_name} belongs to the parent of this forked process; "
                "subscribe in the child"
            )


def is_end(target: MessageId) -> bool:
    """Whether an id is the earliest or the latest, which is valid for every topic."""
    return target._ledger < 0 or target._ledger == LARGEST_ID


def queue_share(queue_size: int, total: int, topics: int) -> int:
    """Return how many messages may be fetched ahead from each of several topics.

    >>> queue_share(1000, 50_000, 4), queue_share(1000, 50_000, 100), queue_share(1000, 5, 10)
    (1000, 500, 1)
    """
    return min(queue_size, max(1, total // max(1, topics)))


def _company(child: ConsumerCore) -> int:
    """Return the number of consumers of its subscription."""
    return len(child.session.subscription.consumers())
