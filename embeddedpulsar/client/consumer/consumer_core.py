"""The state of a consumer behind its interface: fetching, acknowledging, rewinding.

Entries of a consumer that are delivered again, or moved to the dead letter topic instead.

How it is closed.
"""

from __future__ import annotations

import contextlib
import weakref
from functools import cached_property

from embeddedpulsar._engine.format.entry import EntryView
from embeddedpulsar._engine.format.entry_decoder import RawPosition
from embeddedpulsar._engine.log.log_positions import last_message_id
from embeddedpulsar._engine.platform import fork, timing
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar.client.arguments import id_parts, redelivery_count
from embeddedpulsar.client.client_context import AcknowledgementsUnwritten, CloseGuard
from embeddedpulsar.client.consumer.ack_grouping_tracker import AckGroupingTracker
from embeddedpulsar.client.consumer.consumer_session import ConsumerMeter, resolve
from embeddedpulsar.client.consumer.delivery import VOID, Delivery, ReceiverQueue, RepeatedEntries
from embeddedpulsar.client.consumer.message_receiver import BatchReceiver, MessageReceiver
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    CumulativeAcknowledgementNotAllowedError,
    InvalidConfiguration,
    LockTimeout,
    PulsarException,
    StoreGoneError,
    TransactionConflict,
)
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import LARGEST_ID
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Final

    from embeddedpulsar.client.consumer.consumer_session import ConsumerSession
    from embeddedpulsar.client.consumer.dead_letter import DeadLetters, RetryLetters
    from embeddedpulsar.client.consumer.due_entries import DueEntries
    from embeddedpulsar.client.transaction import SubscriptionPart, Transaction
    from embeddedpulsar.message_id import MessageId


class Redelivery:
    """Has entries of one consumer delivered again: after a delay, after a timeout, or at once.

    Role: keeps the queue, the acknowledgements and the timers of `core` in step with the subscription. An
    entry that was redelivered too often goes to `dead_letters` instead. Acknowledgements reach the
    subscription before any redelivery. Any thread may call the methods.

    Attributes:
        unacked: received entries, if there is an acknowledgement timeout.
        dead_letters, retries: the letters of the consumer, if its options have them.
    """

    def __init__(self, core: ConsumerCore) -> None:
        session, config = core.session, core.config
        self._core = core
        self.dead_letters: DeadLetters | None = None
        self.retries: RetryLetters | None = None
        if config.dead_letter is not None:
            with late_imports():
                from embeddedpulsar.client.consumer.dead_letter import letters_of

            self.dead_letters, self.retries = letters_of(
                session, core.acks, self.later, self._forget_moving, lambda: core.delivery.renew()
            )
        # One at most; of threads that make it at once, one wins.
        self._nacks: Final[dict[None, DueEntries]] = {}
        self.unacked: DueEntries | None = None
        if config.ack_timeout_ms:
            with late_imports():
                from embeddedpulsar.client.consumer.due_entries import unacked_messages

            timers = (session.call_later, session.monotonic)
            self.unacked = unacked_messages(
                config.ack_timeout_ms,
                config.ack_timeout_tick_ms,
                config.ack_timeout_backoff,
                self._after_hook("on_ack_timeout_send", self._timed_out),
                *timers,
            )

    def _after_hook(
        self, hook: str, then: Callable[[list[RawPosition]], object]
    ) -> Callable[[list[RawPosition]], object]:
        """Return `due`, or what calls it, with a call of the interceptors before it."""
        core = self._core
        chain = core.config.chain
        return then if chain is None else chain.telling(hook, then, core.session.origin.partition)

    def _timed_out(self, positions: list[RawPosition]) -> None:
        if self.dead_letters is not None:
            self.dead_letters.note_timeout(positions, self._core.config.ack_timeout_ms)
        self.due(positions)

    @property
    def nacks(self) -> DueEntries | None:
        """Negatively acknowledged entries; None before the first."""
        return self._nacks.get(None)

    def _give_nacks(self) -> DueEntries:
        """`nacks`, made if need be: most consumers acknowledge all they get."""
        if not self._nacks:
            with late_imports():
                from embeddedpulsar.client.consumer.due_entries import negative_acks

            session, config = self._core.session, self._core.config
            after = self._after_hook("on_negative_acks_send", self.due)
            timers = (session.call_later, session.monotonic)
            self._nacks.setdefault(
                None, negative_acks(config.nack_delay_ms, config.nack_backoff, after, *timers)
            )
        return self._nacks[None]

    def discard(self, position: RawPosition) -> None:
        """Stop the timeouts of an acknowledged entry."""
        if self._nacks:
            self._nacks[None].discard(position)
        if self.unacked is not None:
            self.unacked.discard(position)
        if self.dead_letters is not None:
            self.dead_letters.discard(position)

    def clear(self) -> None:
        if self._nacks:
            self._nacks[None].clear()
        if self.dead_letters is not None:
            self.dead_letters.clear()
        if self.unacked is not None:
            self.unacked.clear()

    def close(self) -> None:
        for letters in (self.retries, self.dead_letters):
            if letters is not None:
                letters.close()

    def later(self, ledger: int, entry: int, redelivery_count: int = 0) -> None:
        """Have an entry delivered again after the delay. Ids without a message are ignored."""
        if ledger < 0 or entry < 0 or ledger == LARGEST_ID:
            return
        if self.unacked is not None:
            self.unacked.discard((ledger, entry))
        if not self._core.session.attachment.delivers_singly:
            # An acknowledgement cancels the redelivery, so each takes the slow path.
            self._core.acks.quick = False
        self._give_nacks().schedule((ledger, entry), redelivery_count)

    def due(self, positions: list[RawPosition]) -> None:
        core = self._core
        if core.delivery.closed_text:
            return
        if self.dead_letters is not None and self.dead_letters.has_any(positions):
            core.client.workers.start(lambda: self._move_due(positions))
            return
        try:
            self._redeliver(positions)
        except AlreadyClosed:
            return  # closed meanwhile: unacknowledged messages are delivered to the next consumer

    def _move_due(self, positions: list[RawPosition]) -> None:
        """Redeliver entries whose delay is over, or move them to the dead letter topic, waiting for locks."""
        if self.dead_letters is None or self._core.delivery.closed_text:
            return
        others = self.dead_letters.take_due(positions)
        try:
            if others:
                self._redeliver(others)
        except AlreadyClosed:
            return
        except PulsarException:
            for position in others:
                self._give_nacks().add(position, 0)
            raise  # to the log

    def _redeliver(self, positions: list[RawPosition]) -> None:
        """Have some entries delivered again, or everything if the type has no individual redelivery."""
        core = self._core

        def redeliver() -> None:
            if core.session.attachment.redeliver_entries(positions):
                core.start_over()
            else:
                self._drop(positions)

        batches = core.acks.give_back(positions) if core.session.attachment.delivers_singly else {}
        try:
            core.acks.flush()
            self._while_active(redeliver)
        except BaseException:
            core.acks.keep(batches)
            raise

    def _while_active(self, redeliver: Callable[[], object]) -> None:
        """Call ``redeliver`` under the queue's lock, unless another consumer has the subscription."""
        core = self._core
        lock = core.queue.lock
        try:
            timing.enter(lock, "the queue of this consumer")
            core.delivery.check_open()
            if not core.session.attachment.is_active():
                return
            redeliver()
        finally:
            lock.release()
        core.delivery.renew()

    def _drop(self, positions: list[RawPosition]) -> None:
        """Drop entries that will be fetched again, by this consumer or another. Under the queue's lock."""
        self._core.drop_fetched(set(positions))
        for position in positions:
            self._core.acks.discard(position)
            if self._nacks:
                self._nacks[None].discard(position)
            if self.unacked is not None:
                self.unacked.discard(position)

    def _forget_moving(self, positions: list[RawPosition]) -> None:
        queue = self._core.queue
        try:
            timing.enter(queue.lock, "the queue of this consumer")
            self._drop(positions)
        finally:
            queue.lock.release()

    def everything(self) -> None:
        """Have all unacknowledged messages delivered again, including those fetched ahead."""
        core = self._core
        singly = core.session.attachment.delivers_singly
        batches = core.acks.give_back(list(core.acks.open)) if singly else {}
        try:
            self._give_all_back()
        except BaseException:
            core.acks.keep(batches)
            raise

    def _give_all_back(self) -> None:
        core = self._core
        core.acks.flush()
        if self.dead_letters is not None and not core.delivery.closed_text:
            self.dead_letters.take_all()

        def redeliver() -> None:
            core.session.attachment.redeliver()
            core.start_over()

        self._while_active(redeliver)


class ConsumerClosing:
    """Closes one consumer: writes its acknowledgements and returns its other messages.

    Invariants: when a method returns, or raises anything but `BrokerMetadataError`, the consumer is closed
    and has returned its messages. If another process is stopped while it holds the subscription's lock, the
    consumer is unregistered later. Any thread may call the methods, with a deadline.
    """

    __slots__ = ("_close_guard", "_core", "_meter")

    def __init__(self, core: ConsumerCore, meter: ConsumerMeter) -> None:
        self._core: Final = core
        self._meter: Final = meter
        self._close_guard: Final = CloseGuard(core.session.client)

    def unsubscribe(self) -> None:
        core = self._core
        core.delivery.check_open()
        core.session.subscription.unsubscribe(core.session.attachment)
        try:
            self._shut("the consumer has unsubscribed")
        finally:
            core.session.release()

    def close(self) -> None:
        core = self._core
        if not self._close_guard.begin(core.delivery.closed_text):
            self._let_go()
            return
        try:
            self._flush_and_detach()
        except BaseException as error:
            if timing.is_interrupt(error):
                core.session.client.abandon(core.session.abandoned)  # the consumer is closed anyway
            raise

    def _flush_and_detach(self) -> None:
        core = self._core
        core.acks.refuse()
        try:
            core.acks.flush()
            core.acks.end()
        except LockTimeout as error:
            line = (
                f"{core.acks.unwritten} acknowledgements of subscription {core.config.subscription_name!r} "
                f"on {core.topic_name} could not be written; the consumer {core.consumer_name} is closed, "
                "and their messages may be delivered again"
            )
            raise AcknowledgementsUnwritten((line,), str(error)) from None
        except StoreGoneError as error:
            text, session = "Acknowledgements of %s are lost: %s", core.session
            session.client.log.warning(text, session.topic_name, error, **session.log_names())
        finally:
            self._shut("the consumer is closed; subscribe again")
            try:
                core.session.detach()
            finally:
                core.session.release()

    def _let_go(self) -> None:
        """Release letters and topic of a consumer that was closed by another call or process."""
        core = self._core
        if core.session.is_released:
            return
        try:
            self._shut(core.delivery.closed_text)
        finally:
            core.session.release()

    def _shut(self, text: str) -> None:
        core = self._core
        self._meter.close()
        core.acks.close()
        core.delivery.close(text)  # and the queue is empty
        core.forget_fetched()
        core.receiver.stop()
        core.redelivery.close()
        core.session.mailbox.ring_self()  # threads that wait in `receive` find it closed

    def after_fork_in_child(self) -> None:
        self._close_guard.after_fork_in_child()


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
        self.client = session.client
        self.topic_name = session.topic_name
        self.consumer_name = session.consumer_name
        self.fresh = session.attachment.fresh
        self._epoch: Final = self.fresh.epoch
        self._mark: Final = self.fresh.mark
        self.acks = AckGroupingTracker(
            session.attachment,
            config.ack_group_time_ms,
            config.batch_index_ack and session.client.store.settings.acknowledgmentAtBatchIndexLevelEnabled,
            session.call_to_write,
            session.client.log,
            config.ack_receipt,
            session.origin,
        )
        session.origin.acks = weakref.ref(self.acks)
        self.acks.consumer = weakref.ref(self)
        self.acks.log_names = session.log_names
        self.redelivery: Final = Redelivery(self)
        self._unacked: Final = self.redelivery.unacked
        self._dead_letters: Final = self.redelivery.dead_letters
        fetch = session.decryption.fetch if self._dead_letters is None else self._dead_letters.fetch
        self.queue = ReceiverQueue(fetch, config.receiver_queue_size, session.origin, self.acks.track)
        self.delivery: Delivery = Delivery(
            self.queue, session.ledger, session.mailbox, session.clock, session.attachment
        )
        session.keep_rates(self.queue, self.delivery)
        self._messages: Final = self.queue.messages
        self.fetched: Any = self._messages
        """Has `popleft`, which is `pop_message` for a caller that has compared the epochs."""
        self._delivers_singly = session.attachment.delivers_singly
        self._notes_entries = self._delivers_singly
        self._last_handed: EntryView | None = None
        if self._unacked is not None:
            session.attachment.chunks.on_left = self._unacked.schedule
        if self._unacked is not None or self._delivers_singly:
            self.fetched = self
        is_plain = self._unacked is None and self._dead_letters is None and config.chain is None
        self._can_be_quick = is_plain and self.acks.quick
        if not is_plain:
            self.acks.quick = False
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
        self.receiver = MessageReceiver(
            session.client, config, self.delivery, self.pop_message, self.note_reason
        )
        fork.register(self)

    @cached_property
    def batches(self) -> BatchReceiver:
        """Receives several at once; made by the first call that asks for them."""
        policy, size = self.config.batch_receive, self.config.receiver_queue_size
        return BatchReceiver(self.delivery, self.pop_message, self.put_back, policy, size, self.voided)

    # -- receiving ---------------------------------------------------------------------------------------

    def pop_message(self) -> Message[Any]:
        """Return the next fetched message that is valid. Raises IndexError if there is none, or if a lock is
        needed to decide; then the caller uses `Delivery.poll`."""
        if self._epoch != self._mark and not self.session.attachment.is_fresh():
            raise IndexError
        message: Message[Any] = self.fetched.popleft()
        return message

    def voided(self) -> int:
        """Count how often all fetched messages became void, up to now."""
        attachment = self.session.attachment
        if not attachment.is_fresh():
            try:
                timing.enter(self.queue.lock, "the queue of this consumer")
                attachment.catch_up()
            finally:
                self.queue.lock.release()
        return self.queue.voided

    def _watch_undelivered(self, view: EntryView) -> None:
        """Have an entry redelivered after the timeout, which cannot be decrypted and is not delivered now."""
        if self._unacked is not None:
            self._unacked.schedule((view.ledger_id, view.entry_id), view.redelivery_count)

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
        if self._notes_entries:
            return self._begin_entry(message)
        if self._unacked is not None:
            entry = message._entry
            self._unacked.schedule((entry.ledger_id, entry.entry_id), entry.redelivery_count)
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
                    if self._unacked is not None:
                        self._unacked.schedule((entry.ledger_id, entry.entry_id), entry.redelivery_count)
                    if self._dead_letters is not None:
                        self._dead_letters.note_handed(entry)
                    self._last_handed = entry
                message = messages.popleft()
            return message
        finally:
            queue.lock.release()

    def put_back(self, message: Message[Any]) -> None:
        """Put a message that was taken back at the front. No other thread has seen it."""
        queue = self.queue
        try:
            queue.lock.acquire(True, timing.TURN_S)  # put back without the lock rather than lose it
            queue.put_back(message)
        finally:
            queue.lock.release()
        self.delivery.on_change()

    def start(self) -> None:
        """Do nothing: the partitions of a topic are watched by `ConsumerGroup`."""

    # -- acknowledging -----------------------------------------------------------------------------------

    def acknowledge(self, message: Message[Any] | MessageId) -> None:
        self.delivery.check_open()
        with timing.translated:
            parts = id_parts(message)
            if isinstance(message, Message) and message._origin is self.acks.origin:
                self.in_time(self.acks.acknowledge, *parts)
                return
            owner = self.acks.owner_of(message) if isinstance(message, Message) else None
            if owner is None:
                self.in_time(self.acks.acknowledge, *parts)
            else:
                flags = getattr(message._entry, "acked", None)
                self.in_time(self.acks.acknowledge_for, owner, flags, *parts)
            self._leave_out(parts, is_cumulative=False)  # it may wait in the queue

    def acknowledge_cumulative(self, message: Message[Any] | MessageId) -> None:
        self.delivery.check_open()
        with timing.translated:
            parts = id_parts(message)
            self.in_time(self.acks.acknowledge_cumulative, *parts)
            self._leave_out(parts, is_cumulative=True)

    def acknowledge_in(self, txn: Transaction, messages: Sequence[Any], *, is_cumulative: bool) -> None:
        """Acknowledge in a transaction, all or nothing. See `AckGroupingTracker.acknowledge_in`."""
        self.delivery.check_open()
        acks, timeout_s = self.acks, self.client.config.operation_timeout_s
        part: SubscriptionPart | None = None
        try:
            listed = [id_parts(message) for message in messages]
            part = txn._acknowledging(self.session)
            if is_cumulative:
                timing.within(timeout_s, acks.acknowledge_cumulative_in, part.txn_id, *listed[0])
            else:
                owners = [
                    acks.owner_of(message) if isinstance(message, Message) else None for message in messages
                ]
                timing.within(timeout_s, acks.acknowledge_in, part.txn_id, listed, owners)
            part.acknowledgements += 1
            part = None  # the rest is no operation of the transaction
            for parts in listed:
                self._leave_out_in(parts, is_cumulative=is_cumulative)
        except BaseException as error:
            if part is not None:
                txn._failed(error)
            timing.translate(error)
            raise

    def _leave_out_in(self, parts: tuple[int, int, int, int], *, is_cumulative: bool) -> None:
        """`_leave_out` of what a transaction acknowledged."""
        ledger, entry, index, size = parts
        last = LARGEST_ID if index < 0 or size == 1 else index

        def is_acknowledged(view: EntryView, at: int) -> bool:
            position = view.ledger_id, view.entry_id
            if is_cumulative:
                return (*position, at) <= (ledger, entry, last)
            return position == (ledger, entry) and (last == LARGEST_ID or at == index)

        self._remove_ahead(ledger, entry, last, is_acknowledged)

    def _leave_out(self, parts: tuple[int, int, int, int], *, is_cumulative: bool) -> None:
        """Remove fetched messages that the application has just acknowledged before it got them."""
        ledger, entry, index, size = parts
        acks = self.acks
        is_whole = index < 0 or size == 1

        def is_acknowledged(view: EntryView, at: int) -> bool:
            if not is_cumulative and is_whole and (view.ledger_id, view.entry_id) == (ledger, entry):
                return True
            return acks.has_acknowledged(view, at)

        self._remove_ahead(ledger, entry, LARGEST_ID if is_whole else index, is_acknowledged)

    def _remove_ahead(
        self, ledger: int, entry: int, index: int, is_acknowledged: Callable[[EntryView, int], bool]
    ) -> None:
        queue = self.queue
        if not queue.has_ahead(ledger, entry, index):
            return
        try:
            timing.enter(queue.lock, "the queue of this consumer")
            queue.leave_out(is_acknowledged)
        finally:
            queue.lock.release()

    def save(self) -> None:
        if not self.delivery.closed_text:
            self.acks.flush()

    def _note_done(self, position: RawPosition) -> None:
        """Stop the timeouts of an acknowledged entry. Not called by the fast path of `acknowledge`."""
        self.redelivery.discard(position)
        if self._can_be_quick and not self.acks.quick and not self.redelivery.nacks:
            self.acks.quick = not (self.delivery.closed_text or self._chunked)

    def in_time(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function that may wait for locks, with the operation timeout as its deadline."""
        timing.within(self.client.config.operation_timeout_s, function, *arguments)

    # -- redelivery --------------------------------------------------------------------------------------

    def redeliver(self) -> None:
        self.in_time(self.redelivery.everything)

    def negative_acknowledge(
        self, message: Message[Any] | MessageId, reason: str | BaseException | None = None
    ) -> None:
        ledger, entry, _, _ = id_parts(message)
        if not self.delivery.closed_text:
            if self._dead_letters is not None:
                self._dead_letters.note_reason((ledger, entry), reason)
            view: Any = getattr(message, "_entry", None)
            if (
                isinstance(view, EntryView)
                and view.count == 1
                and view.acked is None
                and self._delivers_singly
            ):
                view.acked = bytearray(1)  # `Consumer.acknowledge` then asks whether it was given back
            self.redelivery.later(ledger, entry, redelivery_count(message))

    def note_reason(self, message: Message[Any], reason: BaseException) -> None:
        """Record why the listener failed, for the case that the message becomes a dead letter."""
        if self._dead_letters is not None:
            ledger, entry, _, _ = id_parts(message)
            self._dead_letters.note_reason((ledger, entry), reason)

    def reconsume_later(
        self,
        message: Message[Any],
        delay_ms: int,
        properties: dict[str, str] | None,
        reason: str | BaseException | None = None,
        *,
        cumulative: bool,
    ) -> None:
        """Store the copy of a message in the retry topic; see `Consumer.reconsume_later`."""
        self.delivery.check_open()
        if not isinstance(message, Message):  # an id is not enough: the copy needs the payload
            raise TypeError(f"expected a Message, not {type(message).__name__}")
        if self.redelivery.retries is None:
            raise InvalidConfiguration("reconsume_later() needs a consumer with enable_retry=True")
        if cumulative and self._delivers_singly:
            raise CumulativeAcknowledgementNotAllowedError(
                "Shared and Key_Shared subscriptions acknowledge one by one; use reconsume_later"
            )
        try:
            self.redelivery.retries.publish(message, delay_ms, properties, reason)
        except PulsarException:
            self.redelivery.due([(message._entry.ledger_id, message._entry.entry_id)])
            raise

    # -- moving ------------------------------------------------------------------------------------------

    def seek(self, target: MessageId | int) -> None:
        self.in_time(self._seek, target)

    def _seek(self, target: MessageId | int) -> None:
        self.acks.flush()
        queue = self.queue
        attachment = self.session.attachment
        try:
            timing.enter(queue.lock, "the queue of this consumer")
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
        self._renew_origin()
        self.acks.begin_epoch()
        self.queue.start_within(0, 0, 0)
        self.start_over()

    def _renew_origin(self) -> None:
        """Tell messages of before a move from those after it: the flags of their batches say what was
        acknowledged before, and they are acknowledged by their ids."""
        acks = self.acks
        origin = self.session.origin.again()
        origin.acks = weakref.ref(acks)
        self.queue.origin = acks.origin = origin
        if acks.quick:
            acks.quick_origin = origin

    def _on_switched(self) -> None:
        """Start over because another Failover consumer became active and gets the unacknowledged messages."""
        self.acks.flush()
        self.start_over()

    def drop_fetched(self, positions: set[RawPosition]) -> None:
        """Drop the fetched messages of some entries, which will come again. Under the queue's lock."""
        self._expect_repeated()
        self.queue.drop(positions)
        self._last_handed = None

    def start_over(self) -> None:
        """Drop fetched messages and pending redeliveries."""
        if not self.delivery.closed_text:
            self._expect_repeated()
        self.queue.clear()
        self.forget_fetched()
        self.acks.quick = self._can_be_quick and not (self.delivery.closed_text or self._chunked)

    def forget_fetched(self) -> None:
        """Drop what is noted of messages that were fetched."""
        self._last_handed = None
        self.acks.reset()
        self.redelivery.clear()

    def _expect_repeated(self) -> None:
        """Have entries that were delivered before compared with acknowledgements when they come again."""
        repeated = self.queue.repeated
        if repeated is None:
            repeated = RepeatedEntries(self.acks, self._delivers_singly, lambda: self._last_handed)
            self.queue.repeated = repeated
        repeated.expect_before(self.session.attachment.read_before)
        repeated.note_handed()

    # -- leaving -----------------------------------------------------------------------------------------

    def last_message_id(self) -> MessageId:
        return last_message_id(self.session.ledger, self.session.origin.partition)

    def unsubscribe(self) -> None:
        self.in_time(self._closing.unsubscribe)

    def close(self) -> None:
        """Write the acknowledgements, detach, and return the other messages to other consumers.

        Raises:
            AcknowledgementsUnwritten: some were not written within the operation timeout. It is closed.
        """
        self.in_time(self._closing.close)

    def after_fork_in_child(self) -> None:
        self.acks.close()
        self._closing.after_fork_in_child()
        self.queue.after_fork_in_child()
        self.delivery.close_in_child(f"the consumer {self.consumer_name}", self.config.words.again)


class VolatileCore(ConsumerCore):
    """The operations of a consumer of one non-persistent topic.

    Role: a message is acknowledged by the attachment when the application takes it, once for ever; so what an
    application does with it afterwards changes nothing.
    """

    def __init__(self, session: ConsumerSession) -> None:
        super().__init__(session)
        self.fetched = self
        self._notes_entries = True
        self.queue.prepare = None
        self._hold: Any = session.attachment
        with late_imports():  # of the attachment's own module, which few consumers load
            from embeddedpulsar._engine.subscription.attachment.volatile_attachment import GIVEN

        self._given_alone: Final = GIVEN

    def popleft(self) -> Message[Any]:
        """Take a message, and note that its entry is given if it is the first of it. Hot: 0.2 us."""
        message = self._messages.popleft()
        entry: Any = message._entry
        if entry.acked is not None:
            return message
        if self._delivers_singly:
            return self._begin_entry(message)
        hold, count = self._hold, entry.count
        flags = self._given_alone if count == 1 else bytearray(count + 1)
        if not hold.is_waiting:
            hold.given(entry)
        elif entry.acked is None:
            # As `given`, without the call. No other thread comes between the test and these steps, because
            # there is no call among them.
            entry.acked = flags
            hold.words[hold.given_at] = hold.count = hold.count + count
            hold.last = entry
        return message

    def acknowledge(self, message: Message[Any] | MessageId) -> None:
        if message.__class__ is not Message:
            id_parts(message)
        if self.delivery.closed_text:
            self.delivery.check_open()

    def acknowledge_in(self, txn: Transaction, messages: Sequence[Any], *, is_cumulative: bool) -> None:
        self.delivery.check_open()
        error = TransactionConflict(
            f"{self.topic_name} is non-persistent: a transaction cannot acknowledge its messages, which are "
            "acknowledged when they are delivered; acknowledge without a transaction"
        )
        txn._failed(error)
        raise error

    def acknowledge_cumulative(self, message: Message[Any] | MessageId) -> None:
        self.acknowledge(message)
        if self._delivers_singly:
            raise CumulativeAcknowledgementNotAllowedError(
                "on a Shared or Key_Shared subscription messages are acknowledged one by one"
            )

    def negative_acknowledge(
        self, message: Message[Any] | MessageId, reason: str | BaseException | None = None
    ) -> None:
        id_parts(message)

    def redeliver(self) -> None:
        """Do nothing: no message comes twice."""

    def seek(self, target: MessageId | int) -> None:
        """Do nothing: there is no earlier message, and the end of the log is where a consumer is."""
        self.delivery.check_open()


def consumer_core(session: ConsumerSession) -> ConsumerCore:
    """The core of a consumer, by the kind of its topic."""
    return VolatileCore(session) if session.ledger.is_volatile else ConsumerCore(session)
