"""The connection of a consumer to its subscription, its client and the clock."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

from embeddedpulsar._engine.log.log_positions import read_entry
from embeddedpulsar._engine.log.position import BEFORE_FIRST, Position
from embeddedpulsar._engine.store.policies.creation_policy import check_subscription_type
from embeddedpulsar._engine.store.policies.rate_policy import check_subscribe_rate
from embeddedpulsar._engine.store.schema_registry import origin_of
from embeddedpulsar.client.common.deletion_retry import MOST_ATTEMPTS
from embeddedpulsar.client.consumer.decryption import Decryption
from embeddedpulsar.client.consumer.rate_follower import CallLater, rate_follower
from embeddedpulsar.enums import InitialPosition, SubscriptionMode
from embeddedpulsar.exceptions import LockTimeout, SubscriptionNotFound
from embeddedpulsar.message_id import LARGEST_ID, MessageId

if TYPE_CHECKING:
    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.store.open_topics import TopicUse
    from embeddedpulsar._engine.store.topic import Topic
    from embeddedpulsar._engine.subscription.attachment.attachment import Attachment
    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.consumer.consumer_config import ConsumerConfig
    from embeddedpulsar.client.consumer.delivery import Delivery
    from embeddedpulsar.client.consumer.receiver_queue import ReceiverQueue


class ConsumerSession:
    """One attachment of a consumer to its subscription.

    Role: the only module of the consumer that uses `Topic` and `Subscription`.

    Args:
        core: the client.
        config: of the consumer.
        call_to_write: the scheduler's ``call_later`` for acknowledgements; None for the client's scheduler.
    """

    def __init__(
        self, core: ClientContext, config: ConsumerConfig, call_to_write: CallLater | None = None
    ) -> None:
        use = core.use_topic(config.topic, config.creates_topic)
        topic = use.topic
        self._uses: list[TopicUse] = [use]
        store = core.store
        self.client = core
        self.config = config
        self.topic_name = topic.name
        self.consumer_name = config.name or os.urandom(5).hex()
        self.ledger: Log = topic.ledger
        self.mailbox = store.mailbox
        self.clock = store.clock
        self.monotonic = store.clock.monotonic
        self.call_later = core.scheduler.call_later
        self.call_to_write: CallLater = call_to_write or self.call_later
        self.origin = origin_of(lambda: core.store, topic.name, config.schema)
        self._durable = config.subscription_mode == SubscriptionMode.Durable
        # Before the consumer is attached: one that is interrupted from there on is released with it.
        self._follows: Callable[[], object] = int
        if self.ledger.is_volatile:  # nothing is delivered again
            self.config = config._replace(ack_timeout_ms=0, dead_letter=None)
        self._at_end = core.when_dropped(self.abandoned)
        try:
            self._attach(topic)
        except BaseException:
            if not self._is_attached:  # otherwise the finalizer detaches, and releases both uses
                self._at_end = int
                use.release()
            raise
        self.decryption = Decryption(
            core,
            topic.name,
            config.key_reader,
            config.crypto_failure_action,
            f"The consumer {self.consumer_name} of {config.subscription_name}",
            self.attachment.read,
        )
        self.attachment.chunks.assembler.reader.opened = self.decryption.open

    def keep_rates(self, queue: ReceiverQueue, delivery: Delivery) -> None:
        """Have a queue keep the dispatch rates of topic and subscription, now and after changes of them."""
        topic, subscription = self._uses[0].topic, self.attachment.rate_words
        self._follows = rate_follower(topic, self.clock, subscription, queue, delivery, self.call_later)

    @property
    def _is_attached(self) -> bool:
        return getattr(self, "attachment", None) is not None

    def _keep(self, attachment: Attachment) -> None:
        self.attachment = attachment

    def _attach(self, topic: Topic) -> None:
        """Attach to the subscription.

        Its last consumer may remove the subscription meanwhile; then it is created again, if allowed."""
        check_subscribe_rate(topic, self.consumer_name, self.clock.wall_ns())
        for _ in range(MOST_ATTEMPTS):
            if self._try_to_attach(topic):
                return
        raise SubscriptionNotFound(
            f"{topic.name}: the subscription {self.config.subscription_name!r} was repeatedly removed "
            "while this consumer attached; try again"
        )

    def _try_to_attach(self, topic: Topic) -> bool:
        config = self.config
        name = config.subscription_name
        initial = BEFORE_FIRST if config.initial_position == InitialPosition.Earliest else None
        check_subscription_type(topic, config.consumer_type)
        self.subscription = subscription = topic.use_subscription(name, True, initial, durable=self._durable)
        try:
            subscription.attach(
                self.consumer_name,
                config.consumer_type,
                self.mailbox.uuid,
                config.priority_level,
                receiver_queue_size=config.receiver_queue_size,
                key_shared=config.key_shared,
                topic=topic.name,
                partition=self.origin.partition,
                several_topics=config.several_topics,
                chunks=config.chunks,
                compacted=topic.compaction if config.is_read_compacted else None,
                keep=self._keep,
            )
        except SubscriptionNotFound:
            topic.end_use(subscription, name, durable=self._durable)
            return False
        except BaseException:
            if not self._is_attached:
                topic.end_use(subscription, name, durable=self._durable)
            raise
        return True

    # For a consumer that was dropped, or whose construction was interrupted. It is closed later, because a
    # finalizer may run at any instruction of any thread. No Python code runs in it: `when_dropped` says why.
    __del__ = property(attrgetter("_at_end"))
    _at_end: Callable[[], object] = int

    def abandoned(self) -> None:
        if not self._is_attached:
            return
        try:
            with contextlib.suppress(LockTimeout):  # then a timer of the attachment retries
                self.attachment.detach()
        finally:
            self.release()

    @property
    def is_released(self) -> bool:
        return not self._uses

    def leave(self) -> None:
        """Detach the consumer; if another process stays in the lock, a timer does it later."""
        try:
            self.attachment.detach()
        except LockTimeout as error:
            self.client.log.warning(
                "The consumer %s is closed, and leaves subscription %r on %s once the lock is free: %s",
                self.consumer_name,
                self.config.subscription_name,
                self.topic_name,
                error,
            )

    def release(self) -> None:
        """Release subscription and topic, which may then be closed. Idempotent."""
        try:
            use = self._uses.pop()  # atomic: of two threads that close a consumer, one gets it
        except IndexError:
            return
        self._at_end = int
        self.attachment.forget()
        use.topic.policies.unlisten(self._follows)
        try:
            use.topic.end_use(self.subscription, self.config.subscription_name, durable=self._durable)
        finally:
            use.release()


def last_or_start(ledger: Log) -> Position:
    """The position of the last entry, or the one before all entries of an empty topic."""
    return ledger.last_position() or BEFORE_FIRST


def resolve(ledger: Log, message_id: MessageId, inclusive: bool) -> tuple[Position, bool, int]:
    """Return the position at which reading starts, for a start at or after a message.

    Returns:
        A position, True if the entry there is to be read, and the index of its first message (0 for all).
    """
    target, _, index, size = (
        message_id._ledger,
        message_id._entry,
        message_id._batch_index,
        message_id._batch_size,
    )
    position = Position(target, message_id._entry)
    if target < 0:
        return BEFORE_FIRST, False, 0
    if target == LARGEST_ID:
        last = last_or_start(ledger)
        if not inclusive or last.entry_id < 0:
            return last, False, 0
        view = read_entry(ledger, last)
        return last, True, view.count - 1 if view is not None else 0
    if index < 0:
        first_chunk = getattr(message_id, "_first_chunk", None)
        if inclusive and first_chunk is not None:
            position = Position(first_chunk._ledger, first_chunk._entry)
        if not inclusive and first_chunk is None:
            # The id of a whole batch is smaller than those of its messages, so all of them follow it.
            view = read_entry(ledger, position)
            inclusive = view is not None and view.batched
        return position, inclusive, 0
    view = None if size and not inclusive else read_entry(ledger, position)
    if view is not None and not view.batched:
        return position, inclusive, 0  # the index has no meaning for a message outside a batch
    first = index if inclusive else index + 1
    if not inclusive and first >= (size or (view.count if view is not None else 0)) > 0:
        return position, False, 0
    return position, True, first
