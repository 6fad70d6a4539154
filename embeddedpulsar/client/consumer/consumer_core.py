"""The state of a consumer behind its interface: fetching, acknowledging, rewinding."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.client.consumer.ack_grouping_tracker import AckGroupingTracker
from embeddedpulsar.client.consumer.batch_receive import BatchReceiver
from embeddedpulsar.client.consumer.consumer_closing import ConsumerClosing
from embeddedpulsar.client.consumer.consumer_meter import ConsumerMeter
from embeddedpulsar.client.consumer.consumer_session import LARGEST_ID, resolve
from embeddedpulsar.client.consumer.dead_letter.retry_letter import letters_of
from embeddedpulsar.client.consumer.delivery import Delivery
from embeddedpulsar.client.consumer.listener import ListenerTarget
from embeddedpulsar.client.consumer.negative_acks_tracker import NegativeAcksTracker
from embeddedpulsar.client.consumer.receiver_queue import VOID, ReceiverQueue
from embeddedpulsar.client.consumer.unacked_message_tracker import UnackedMessageTracker
from embeddedpulsar.exceptions import AlreadyClosed, InvalidConfiguration, LockTimeout, PulsarException
from embeddedpulsar.platform import deadline, fork

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.consumer.consumer_session import ConsumerSession
    from embeddedpulsar.format.entry import EntryView
    from embeddedpulsar.message import Message
    from embeddedpulsar.message_id import MessageId

Position = tuple[int, int]


class ConsumerCore:
    """The operations of one consumer.

    Role: keeps the queue, the trackers and the attachment in step. Lock order: `queue.lock`, then the lock of
    the acknowledgement tracker, then the subscription's.

    Invariants: acknowledgements reach the subscription before any rewind, so that no acknowledged message is
    delivered again. A rewind empties the queue, so messages are delivered in order and once.

    After a fork the child's copy is closed, because the attachment belongs to the parent.
    """

    def __init__(self, session: ConsumerSession) -> None:
        config = session.config
        self.session = session
        self.config = config
        self.listener: ListenerTarget | None = None
        self.acks = AckGroupingTracker(
            session.attachment,
            config.ack_group_time_ms,
            config.batch_index_ack and session.client.store.settings.acknowledgmentAtBatchIndexLevelEnabled,
            session.call_to_write,
            session.client.log,
            config.ack_receipt,
        )
        self.dead_letters, self.retries = letters_of(
            session, self.acks, self.negative_acknowledge, self._forget_moving, lambda: self.delivery.renew()
        )
        fetch = session.decryption.fetch if self.dead_letters is None else self.dead_letters.fetch
        self.queue = ReceiverQueue(fetch, config.receiver_queue_size, session.origin, self.acks.track)
        self.delivery = Delivery(
            self.queue, session.ledger, session.mailbox, session.clock, session.attachment
        )
        self.nacks = NegativeAcksTracker(
            config.nack_delay_ms,
            self._redelivery("on_negative_acks_send"),
            session.call_later,
            session.monotonic,
            config.nack_backoff,
        )
        self.unacked: UnackedMessageTracker | None = None
        self._messages: Final = self.queue.messages
        self.fetched: Any = self._messages
        """Has `popleft`, which is `take` for a caller that has compared the epochs."""
        if config.ack_timeout_ms:
            self.unacked = UnackedMessageTracker(
                config.ack_timeout_ms,
                config.ack_timeout_tick_ms,
                self._redelivery("on_ack_timeout_send"),
                session.call_later,
                session.monotonic,
                config.ack_timeout_backoff,
            )
            self.fetched = self
            session.attachment.chunks.on_left = self.unacked.watch
        self._delivers_singly = session.attachment.delivers_singly
        self._last_handed: object = None
        if self._delivers_singly:
            self.fetched = self
        self.acks.quick &= self.unacked is None and self.dead_letters is None
        self._can_be_quick = self.acks.quick
        self.acks.on_done = self._note_done
        self._chunked = session.attachment.chunks.delivered
        session.attachment.chunks.on_delivered = self.acks.close  # acknowledgements now take the slow path
        session.decryption.on_failed = self._watch_undelivered
        session.decryption.on_discarded = self._discard
        session.attachment.on_rewound = self._on_moved
        session.attachment.on_switched = self._on_switched
        meter = ConsumerMeter(session, self.queue, self.acks)
        self.stats = meter.snapshot
        self._closing = ConsumerClosing(self, meter)
        policy, size = config.batch_receive, config.receiver_queue_size
        self.batches = BatchReceiver(self.delivery, self.take, self.put_back, policy, size, self.voided)
        fork.register(self)

    # -- receiving ---------------------------------------------------------------------------------------

    def take(self) -> Message[Any]:
        """Return the next fetched message that is valid. Raises IndexError if there is none, or if a lock is
        needed to decide; then the caller uses `Delivery.poll`."""
        if not self.session.attachment.is_fresh():
            raise IndexError
        message: Message[Any] = self.fetched.popleft()
        return message

    def voided(self) -> int:
        """Count how often all fetched messages became void, up to now."""
        attachment = self.session.attachment
        if not attachment.is_fresh():
            try:
                deadline.enter(self.queue.lock, "the queue of this consumer")
                attachment.look()
            finally:
                self.queue.lock.release()
        return self.queue.voided

    def _watch_undelivered(self, view: EntryView) -> None:
        """Have an entry redelivered after the timeout, which cannot be decrypted and is not delivered now."""
        if self.unacked is not None:
            self.unacked.watch((view.ledger_id, view.entry_id), view.redelivery_count)

    def _discard(self, view: EntryView) -> None:
        """Acknowledge an entry that cannot be decrypted, and is not wanted."""
        with contextlib.suppress(LockTimeout):  # it stays collected, and the timer writes it
            self.acks.complete((view.ledger_id, view.entry_id))

    def popleft(self) -> Message[Any]:
        """Take a message, and begin its entry if it is new. Named as the method of a deque: the interpreter
        finds a method of the class 10 ns faster than one kept in an attribute."""
        message = self._messages.popleft()
        if message._entry is self._last_handed:
            return message
        if self._delivers_singly:
            return self._begin_entry(message)
        if self.unacked is not None:
            entry = message._entry
            self.unacked.watch((entry.ledger_id, entry.entry_id), entry.redelivery_count)
        return message

    def _begin_entry(self, message: Message[Any]) -> Message[Any]:
        """Report that the application gets an entry. Returns the message, or the next one if that is void.

        An entry may be reported again if messages were put back. Raises IndexError, with the message first in
        the queue, when a lock must be waited for: another thread is fetching, or the subscription changed.
        `Delivery.poll` waits for it.
        """
        queue, messages = self.queue, self._messages
        enter = queue.lock.acquire  # a local is called in half the time of an attribute
        try:
            if not enter(False):
                messages.appendleft(message)
                raise IndexError
            while message._entry is not self._last_handed:
                entry: Any = message._entry
                if entry.number != VOID:
                    messages.appendleft(message)  # so that it is not lost if reporting fails
                    if not self.session.attachment.handed(entry):
                        raise IndexError
                    if self.unacked is not None:
                        self.unacked.watch((entry.ledger_id, entry.entry_id), entry.redelivery_count)
                    if self.dead_letters is not None:
                        self.dead_letters.note_handed(entry)
                    self._last_handed = entry
                message = messages.popleft()
            return message
        finally:
            queue.lock.release()

    def put_back(self, message: Message[Any]) -> None:
        """Put a message that was taken back at the front. No other thread has seen it."""
        queue = self.queue
        try:
            queue.lock.acquire(True, deadline.TURN_S)  # put back without the lock rather than lose it
            queue.messages.appendleft(message)
        finally:
            queue.lock.release()
        self.delivery.on_change()

    def check_can_receive(self, timeout_millis: int | None) -> None:
        """Refuse a call that ``pulsar-client`` refuses."""
        self.delivery.check_open()
        if self.config.listener is not None:
            raise InvalidConfiguration("this consumer has a listener, which gets the messages")
        if timeout_millis is not None and self.config.receiver_queue_size == 0:
            raise InvalidConfiguration("receive() takes no timeout with receiver_queue_size=0")

    def start(self, owner: object) -> None:
        """Start calling the listener, if there is one, with ``owner`` as its first argument."""
        if self.config.listener is None:
            return
        client = self.session.client
        self.listener = ListenerTarget(owner, self.config.listener, self.delivery, self.take, client.log)
        client.listeners.add(self.listener)

    # -- giving back -------------------------------------------------------------------------------------

    def _note_done(self, position: Position) -> None:
        """Stop the timeouts of an acknowledged entry. Not called by the fast path of `acknowledge`."""
        self.nacks.discard(position)
        if self.unacked is not None:
            self.unacked.discard(position)
        if self.dead_letters is not None:
            self.dead_letters.discard(position)
        if self._can_be_quick and not self.acks.quick and not self.nacks:
            self.acks.quick = not (self.delivery.closed_text or self._chunked)

    def _redelivery(self, hook: str) -> Callable[[list[Position]], object]:
        """Return `_redeliver_due`, with a call of the interceptors before it."""
        chain = self.config.chain
        if chain is None:
            return self._redeliver_due
        return chain.telling(hook, self._redeliver_due, self.session.origin.partition)

    def _redeliver_due(self, positions: list[Position]) -> None:
        """Redeliver entries whose delay is over."""
        if self.delivery.closed_text:
            return
        if self.dead_letters is not None and self.dead_letters.has_any(positions):
            self.session.client.workers.start(lambda: self._move_due(positions))
            return
        try:
            self._redeliver_entries(positions)
        except AlreadyClosed:
            return  # closed meanwhile: unacknowledged messages are delivered to the next consumer

    def _move_due(self, positions: list[Position]) -> None:
        """Redeliver entries whose delay is over, or move them to the dead letter topic, waiting for locks."""
        if self.dead_letters is None or self.delivery.closed_text:
            return
        others = self.dead_letters.take_due(positions)
        try:
            if others:
                self._redeliver_entries(others)
        except AlreadyClosed:
            return
        except PulsarException:
            for position in others:
                self.nacks.add(position, 0)
            raise  # to the log

    def _redeliver_entries(self, positions: list[Position]) -> None:
        """Have some entries delivered again, or everything if the type has no individual redelivery."""
        self.acks.flush()
        queue = self.queue
        attachment = self.session.attachment
        try:
            deadline.enter(queue.lock, "the queue of this consumer")
            self.delivery.check_open()
            if not attachment.is_active():
                return
            if attachment.redeliver_entries(positions):
                self.start_over()
            else:
                self._drop(positions)
        finally:
            queue.lock.release()
        self.delivery.renew()

    def _drop(self, positions: list[Position]) -> None:
        """Drop entries that will be fetched again, by this consumer or another. Under the queue's lock."""
        self.queue.drop(set(positions))
        self._last_handed = None
        for position in positions:
            self.acks.forget(position)
            self.nacks.discard(position)
            if self.unacked is not None:
                self.unacked.discard(position)

    def give_back(self, position: Position) -> None:
        """Have an entry delivered again at once."""
        self._redeliver_due([position])

    def _forget_moving(self, positions: list[Position]) -> None:
        """Drop entries that move to the dead letter topic."""
        try:
            deadline.enter(self.queue.lock, "the queue of this consumer")
            self._drop(positions)
        finally:
            self.queue.lock.release()

    def redeliver(self) -> None:
        """Have all unacknowledged messages delivered again, including those fetched ahead."""
        self.in_time(self._redeliver)

    def in_time(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function that may wait for locks, with the operation timeout as its deadline."""
        deadline.within(self.session.client.config.operation_timeout_s, function, *arguments)

    def _redeliver(self) -> None:
        self.acks.flush()
        if self.dead_letters is not None and not self.delivery.closed_text:
            self.dead_letters.take_all()
        queue = self.queue
        try:
            deadline.enter(queue.lock, "the queue of this consumer")
            self.delivery.check_open()
            if not self.session.attachment.is_active():
                return
            self.session.attachment.redeliver()
            self.start_over()
        finally:
            queue.lock.release()
        self.delivery.renew()

    def negative_acknowledge(self, ledger: int, entry: int, redelivery_count: int = 0) -> None:
        """Have an entry delivered again after the delay. Ids without a message are ignored."""
        if ledger < 0 or entry < 0 or ledger == LARGEST_ID:
            return
        if self.unacked is not None:
            self.unacked.discard((ledger, entry))
        if not self._delivers_singly:
            self.acks.quick = False  # an acknowledgement cancels the redelivery, so each takes the slow path
        self.nacks.give_back((ledger, entry), redelivery_count)

    # -- moving ------------------------------------------------------------------------------------------

    def seek(self, target: MessageId | int) -> None:
        """Move the subscription."""
        self.in_time(self._seek, target)

    def _seek(self, target: MessageId | int) -> None:
        self.acks.flush()
        queue = self.queue
        attachment = self.session.attachment
        try:
            deadline.enter(queue.lock, "the queue of this consumer")
            self.delivery.check_open()
            if isinstance(target, int):
                attachment.seek_time(target)
                self._on_moved()
            else:
                # Latest is no message: after it, a consumer gets new messages only, and no existing one.
                inclusive = self.config.start_inclusive and target._ledger != LARGEST_ID
                position, inclusive, first = resolve(self.session.ledger, target, inclusive)
                attachment.seek(position, inclusive)
                self._on_moved()
                queue.start_within(position.ledger_id, position.entry_id, first)
        finally:
            queue.lock.release()
        self.delivery.renew()

    def _on_moved(self) -> None:
        """Start over because the subscription was moved, by this consumer or by another one."""
        self.acks.begin_epoch()
        self.queue.start_within(0, 0, 0)
        self.start_over()

    def _on_switched(self) -> None:
        """Start over because another Failover consumer became active and gets the unacknowledged messages."""
        self.acks.flush()
        self.start_over()

    def start_over(self) -> None:
        """Drop fetched messages and pending redeliveries."""
        self.queue.clear()
        self._last_handed = None
        self.acks.reset()
        self.nacks.clear()
        if self.dead_letters is not None:
            self.dead_letters.clear()
        if self.unacked is not None:
            self.unacked.clear()
        self.acks.quick = self._can_be_quick and not (self.delivery.closed_text or self._chunked)

    # -- leaving -----------------------------------------------------------------------------------------

    def unsubscribe(self) -> None:
        """Delete the subscription, and close the consumer."""
        self.in_time(self._closing.unsubscribe)

    def close(self) -> None:
        """Write the acknowledgements, detach, and return the other messages to other consumers.

        Raises:
            AcknowledgementsUnwritten: some were not written within the operation timeout. It is closed.
        """
        self.in_time(self._closing.close)

    def after_fork_in_child(self) -> None:
        """Close the child's copy: the attachment and the fetched messages belong to the parent."""
        self.acks.close()
        self._closing.after_fork_in_child()
        self.queue.after_fork_in_child()
        if not self.delivery.closed_text:
            owner = f"the consumer {self.session.consumer_name} belongs to the parent of this forked process"
            self.delivery.closed_text = f"{owner}; subscribe in the child"
