"""The connection of a consumer to its subscription, its client and the clock.

Decryption of entries for a consumer or reader, and the failure action.

Dispatch rates of a consumer or reader, which follow the policies of its topic.

What a consumer received and acknowledged, for the log and for the application.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from operator import attrgetter

from embeddedpulsar._engine.format.entry_decoder import SEEN
from embeddedpulsar._engine.format.frame import CODEC_ENCRYPTED
from embeddedpulsar._engine.log.log_positions import read_entry
from embeddedpulsar._engine.platform.timing import TURN_S
from embeddedpulsar._engine.store.policies.policy_documents import check_subscription_type
from embeddedpulsar._engine.store.rate_policy import check_subscribe_rate, dispatch_limiter
from embeddedpulsar.client.client_context import MOST_ATTEMPTS
from embeddedpulsar.enums import ConsumerCryptoFailureAction, InitialPosition, SubscriptionMode
from embeddedpulsar.exceptions import CryptoError, LockTimeout, SubscriptionNotFound
from embeddedpulsar.message import size_of
from embeddedpulsar.message_id import BEFORE_FIRST, LARGEST_ID, MessageId, Position
from embeddedpulsar.records import TYPE_CHECKING, cast
from embeddedpulsar.schema.schema import origin_of

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.format.entry import EntryView
    from embeddedpulsar._engine.format.entry_decoder import SealedView
    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.platform.timing import Clock, Timer
    from embeddedpulsar._engine.store.open_topics import TopicUse
    from embeddedpulsar._engine.store.policies.resource_groups import Lock
    from embeddedpulsar._engine.store.topic import Topic
    from embeddedpulsar._engine.subscription.attachment.attachment import Attachment
    from embeddedpulsar.client.client_context import ClientContext
    from embeddedpulsar.client.consumer.ack_grouping_tracker import AckGroupingTracker
    from embeddedpulsar.client.consumer.consumer_config import ConsumerConfig
    from embeddedpulsar.client.consumer.delivery import Delivery, ReceiverQueue
    from embeddedpulsar.client.statistics import ConsumerStats
    from embeddedpulsar.crypto import CryptoKeyReader, EntryOpener


_CONSUME: Final = ConsumerCryptoFailureAction.CONSUME
_DISCARD: Final = ConsumerCryptoFailureAction.DISCARD
_MOST_TOLD: Final = 1000

Fetch = Callable[[int, int], "list[EntryView]"]


class Decryption:
    """A step between the log and a receiver queue.

    Role: plain entries pass unchanged, and encrypted entries with a known key are decrypted. The failure
    action decides about the others: FAIL skips the entry, and `on_failed` has it redelivered; DISCARD skips
    it, and `on_discarded` acknowledges it; CONSUME passes it on as one message with the ciphertext. The timer
    thread logs one warning for each data key.

    Invariants: skipped entries never end a read; only the end of the log does.

    `fetch` is called under the lock of the queue; any thread may call `opened`.

    Args:
        client: provides the log and the timers.
        topic: full name.
        reader: reads the private keys, or None.
        action: how to treat entries that cannot be decrypted.
        name: of the consumer or reader, for the log.
        read: returns the next entries as they are stored.
    """

    def __init__(
        self,
        client: ClientContext,
        topic: str,
        reader: CryptoKeyReader | None,
        action: ConsumerCryptoFailureAction,
        name: str,
        read: Fetch,
    ) -> None:
        self._client = client
        self._topic = topic
        self._action = action
        self._name = name
        self._read = read
        self._key_reader = reader
        self._opener: EntryOpener | None = None  # imported and made for the first encrypted entry
        self._told: set[bytes] = set()
        self.on_failed: Callable[[EntryView], object] | None = None
        self.on_discarded: Callable[[EntryView], object] | None = None

    def fetch(self, max_messages: int, max_bytes: int) -> list[EntryView]:
        """Return the next entries, decrypted; none at the end of the log."""
        while views := self._read(max_messages, max_bytes):
            if not SEEN.encrypted:
                return views
            shown: list[EntryView] = []
            for view in views:
                if view.codec != CODEC_ENCRYPTED:
                    shown.append(view)
                elif (opened := self.opened(view)) is not None:
                    shown.append(opened)
                elif self._action == _DISCARD:
                    if self.on_discarded is not None:
                        self.on_discarded(view)
                elif self.on_failed is not None:
                    self.on_failed(view)
            if shown:
                return shown
        return []

    def open(self, view: EntryView) -> EntryView:
        """Decrypt one entry, for example of a chunked message.

        Raises:
            CryptoError: its key is not available.
        """
        if view.codec != CODEC_ENCRYPTED:
            return view
        return self._get_opener().open(cast("SealedView", view))

    def opened(self, view: EntryView) -> EntryView | None:
        """Return an entry as the application gets it; None if it is skipped."""
        if view.codec != CODEC_ENCRYPTED:
            return view
        sealed = cast("SealedView", view)
        try:
            return self._get_opener().open(sealed)
        except CryptoError as error:
            self._tell(sealed, error)
        if self._action != _CONSUME:
            return None
        from embeddedpulsar._engine.format.sealed_entry import raw_view

        return raw_view(sealed, self._topic)

    def _get_opener(self) -> EntryOpener:
        opener = self._opener
        if opener is None:
            from embeddedpulsar.crypto import EntryOpener

            opener = self._opener = EntryOpener(self._topic, self._key_reader)
        return opener

    def _tell(self, view: SealedView, error: CryptoError) -> None:
        """Log the first failure with each data key, outside the lock that is held here."""
        mark = repr(view.fields.get("keys")).encode()
        if mark in self._told or len(self._told) >= _MOST_TOLD:
            return
        self._told.add(mark)
        position = (view.ledger_id, view.entry_id)
        self._client.scheduler.call_later(
            0.0,
            lambda: self._client.log.warning(
                "%s cannot decrypt entry %d:%d of %s (%s): %s",
                self._name,
                *position,
                self._topic,
                self._action.name,
                error,
                topic=self._topic,
                message_id=MessageId(-1, view.ledger_id, view.entry_id, -1),
            ),
        )


CallLater = Callable[[float, Callable[[], object]], object]


def rate_follower(
    topic: Topic,
    clock: Clock,
    subscription: tuple[memoryview, Lock] | None,
    queue: ReceiverQueue,
    delivery: Delivery,
    call_later: CallLater,
) -> Callable[[], object]:
    """Have a queue keep the dispatch rates of a topic. Returns the listener of the topic's policies.

    Args:
        topic, clock: what it reads.
        subscription: see `dispatch_limiter`.
        queue: keeps the rates.
        delivery: looks again after a change.
        call_later: runs that, because the listener may be called under a lock.
    """
    # Weak, because the policies live as long as the topic is open: a consumer that was dropped or interrupted
    # before its caller had it, is collected, and that detaches it.
    queues, deliveries = weakref.ref(queue), weakref.ref(delivery)

    def update_rate() -> None:
        queue, delivery = queues(), deliveries()
        if queue is None or delivery is None:
            topic.policies.unlisten(update_rate)
            return
        before, limiter = queue.limiter, dispatch_limiter(topic, clock, subscription)
        if before is not None or limiter is not None:
            queue.limit_by(limiter)
            with contextlib.suppress(RuntimeError):  # the store is being closed
                call_later(0.0, delivery.renew)

    topic.policies.listen(update_rate)
    limiter = dispatch_limiter(topic, clock, subscription)
    if limiter is not None:
        queue.limit_by(limiter)
    return update_rate


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
        self.participant_key: tuple[int, int, str] | None = None  # kept for transactions
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

    @property
    def topic(self) -> Topic:
        """For transactions, which name it."""
        return self._uses[0].topic

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
        subscription, start = topic.use_to_attach(name, initial, durable=self._durable)
        self.subscription = subscription
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
                initial=start,
                keep=self._keep,
            )
        except SubscriptionNotFound:
            # It was deleted between the lookup and the command: the caller begins again, with a new one.
            topic.end_use(subscription, name, durable=self._durable)
            return False
        except BaseException:
            # An interrupt may come after the command is in the journal: then the use ends with the consumer.
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

    def log_names(self) -> dict[str, str]:
        """What log records of the consumer are about: consumer, subscription and topic."""
        names = {"consumer": self.consumer_name, "subscription": self.config.subscription_name}
        return {**names, "topic": self.topic_name}

    def detach(self) -> None:
        """Detach the consumer; if another process stays in the lock, a timer does it later."""
        try:
            self.attachment.detach()
        except LockTimeout as error:
            names = self.log_names()
            self.client.log.warning(
                "The consumer %s is closed, and leaves subscription %r on %s once the lock is free: %s",
                *names.values(),
                error,
                **names,
            )

    def release(self) -> None:
        """Release subscription and topic, which may then be closed. Idempotent."""
        try:
            use = self._uses.pop()  # atomic: of two threads that close a consumer, one gets it
        except IndexError:
            return
        self._at_end = int
        self.attachment.mark_left()
        use.topic.policies.unlisten(self._follows)
        try:
            use.topic.end_use(self.subscription, self.config.subscription_name, durable=self._durable)
        finally:
            use.release()


def last_or_start(ledger: Log) -> Position:
    """The position of the last entry before those that wait for a transaction, or the one before all entries
    of an empty topic."""
    return ledger.max_read_position() or BEFORE_FIRST


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


class ConsumerMeter:
    """Logs every ``stats_interval_in_seconds`` what a consumer received and acknowledged.

    Role: receiving a message costs no counter: the number received is the number fetched minus the number in
    the queue. An interval without messages is not logged."""

    __slots__ = (
        "__weakref__",
        "_acks",
        "_before",
        "_begun",
        "_interval_s",
        "_is_closed",
        "_queue",
        "_session",
        "_timer",
    )

    def __init__(self, session: ConsumerSession, queue: ReceiverQueue, acks: AckGroupingTracker) -> None:
        self._session = session
        self._queue = queue
        self._acks = acks
        self._before = (0, 0, 0)
        self._begun = session.monotonic()
        self._interval_s = session.client.config.stats_interval_s
        self._timer: Timer | None = None
        self._is_closed = False
        if self._interval_s:
            self._set_timer()

    def totals(self) -> tuple[int, int, int]:
        """Messages received, their payload bytes, and acknowledgements written, so far."""
        queue = self._queue
        try:
            queue.lock.acquire(True, TURN_S)  # without the lock the numbers are slightly inexact
            waiting = queue.valid()
            return queue.fetched - len(waiting), queue.fetched_bytes - size_of(waiting), self._acks.sent
        finally:
            queue.lock.release()

    def snapshot(self) -> ConsumerStats:
        totals = self.totals()
        passed = max(self._session.monotonic() - self._begun, 1e-9)
        from embeddedpulsar.client.statistics import (
            ConsumerStats,  # on first use: most processes ask for none
        )

        return ConsumerStats(
            *totals,
            self._queue.ahead,
            (totals[0] - self._before[0]) / passed,
            (totals[1] - self._before[1]) / passed,
        )

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        mine = weakref.ref(self)  # the timer must not keep a dropped consumer alive

        def on_timer() -> None:
            meter = mine()
            if meter is not None:
                meter._on_timer()

        self._timer = self._session.call_later(self._interval_s, on_timer)

    def _on_timer(self) -> None:
        if self._is_closed:
            return
        self._set_timer()
        totals = self.totals()
        messages, size, acks = (now - before for now, before in zip(totals, self._before, strict=True))
        self._before, self._begun = totals, self._session.monotonic()
        if messages or acks:
            names = self._session.log_names()
            self._session.client.log.info(
                "Consumer %s of %s on %s, in %d s: received %d messages, %d bytes; sent %d acknowledgements. "
                "In all: %d messages, %d bytes; %d acknowledgements",
                *names.values(),
                self._interval_s,
                messages,
                size,
                acks,
                *totals,
                **names,
            )
