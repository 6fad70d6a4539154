"""The state of a consumer of several topics or partitions: one `ConsumerCore` for each, used together."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from embeddedpulsar._engine.platform import deadline
from embeddedpulsar._engine.subscription.control import Freshness
from embeddedpulsar.client.common.statistics import ConsumerStats, sum_of
from embeddedpulsar.client.common.topic_schema import admit_all
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.client.consumer.consumer_core import ConsumerCore, consumer_core
from embeddedpulsar.client.consumer.consumer_session import ConsumerSession
from embeddedpulsar.client.consumer.message_receiver import BatchReceiver
from embeddedpulsar.client.consumer.topic_group.topic_group import TopicGroup, is_end, queue_share
from embeddedpulsar.enums import InitialPosition
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    InvalidConfiguration,
    OperationNotSupported,
    PulsarException,
)
from embeddedpulsar.message import NO_ORIGIN, Message
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.schema.schema import checked_version

if TYPE_CHECKING:
    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.consumer.consumer_config import ConsumerConfig
    from embeddedpulsar.client.consumer.topic_group.topic_pattern import TopicPattern

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
            client, config, self.consumer_name, partitions, self._attach, pattern, self._on_left
        )
        self.delivery = self._group.delivery
        self.receiver = self._group.receiver
        self.fetched: Any = SimpleNamespace(popleft=self.delivery.take)
        self.batches = BatchReceiver(
            self.delivery,
            self.delivery.take,
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
                child.session.leave()

    def _each(self, call: Callable[[ConsumerCore], R], topic: str | None = None) -> list[R]:
        """Call a function with the consumer of one topic, or of all; those that left are left out."""
        one = self.children.get(topic) if topic is not None else None
        children = [one] if one is not None else []
        found = []
        for child in children if topic is not None else list(self.children.values()):
            try:
                found.append(call(child))
            except AlreadyClosed:
                if not self._group.has_left(child):
                    raise
        return found

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

    def acknowledge_cumulative(self, message: Message[Any] | MessageId) -> None:
        topic = self._topic_to_tell(message)
        if topic is not None:
            self._each(lambda child: child.acknowledge_cumulative(message), topic)

    def negative_acknowledge(self, message: Message[Any] | MessageId) -> None:
        topic = None if self.delivery.closed_text else self._topic_to_tell(message)
        if topic is not None:
            self._each(lambda child: child.negative_acknowledge(message), topic)

    def reconsume_later(
        self, message: Message[Any], delay_ms: int, properties: dict[str, str] | None, *, cumulative: bool
    ) -> None:
        topic = self._topic(message) if isinstance(message, Message) else None
        names = [topic] if topic is not None else list(self.children)
        core = next(filter(None, map(self.children.get, names)), None)
        if core is None:
            raise OperationNotSupported(f"the topic of {message!r} was deleted, or there is none")
        core.reconsume_later(message, delay_ms, properties, cumulative=cumulative)

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
        deadline.within(self.client.config.operation_timeout_s, self._group.close)


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
            self._arm(delay_s)
        return None

    def _arm(self, delay_s: float) -> None:
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
                self._arm(min(self._delay_s, _SHARE * (self._monotonic() - begun)))
