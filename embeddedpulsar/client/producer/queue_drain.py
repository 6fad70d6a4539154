"""Storing of queued messages in the log of the topic, in order, when the topic's lock is free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.platform import deadline, threads
from embeddedpulsar.client.producer.batch_container import payload_of
from embeddedpulsar.client.producer.send_queue import SendDeadline, SendQueue, fate_of
from embeddedpulsar.client.producer.send_state import Event, SendState, State
from embeddedpulsar.client.producer.sequence_keeper import SequenceIds, SequenceKeeper
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, Timeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar._engine.platform.threads import RLock
    from embeddedpulsar.client.producer.completions import Completions
    from embeddedpulsar.client.producer.entry_encoder import EntryEncoder
    from embeddedpulsar.client.producer.log_writer import LogWriter
    from embeddedpulsar.client.producer.pending_entry import PendingEntry
    from embeddedpulsar.client.producer.producer_config import ProducerConfig
    from embeddedpulsar.client.producer.producer_session import ProducerSession

TURN_S: Final = 0.001
"""Seconds to wait for another thread that stores messages of this producer. That takes microseconds, unless
the other thread waits for the topic, or for the interpreter."""
_TRY_EVERY: Final = 32
"""While the flusher retries for a producer, its senders retry too, once per so many messages."""
_FOR_EVER_S: Final = 1e9


class QueueDrain:
    """Takes messages out of the queue of one producer, and stores them.

    Role: callers that may wait (`send`, `flush`) wait for the topic. Callers that must not wait
    (`send_async`, timers) try once, and leave messages in the queue if the topic is locked. The next sender,
    the client's flusher or a waiting caller stores them, in groups of entries with one hold of the lock each.

    Invariants: they hold under `lock`, except where stated. A message leaves the queue only when it is stored
    or has failed. An interrupt (Ctrl-C) may stop a publish at any instruction; its group then stays at the
    front of the queue, and the next caller looks into the topic for the entries that were stored.

    Attributes:
        lock: held while publishing; taken before the topic's lock.
        unlock: the plain release, for the end of a hot section, where the lock is certainly held.
        ids: the sequence ids.
        queue: the messages.
        state: opens the hot paths while nothing must be stored first.
        name: of the producer.
        encoder, log: of the present attachment.
        is_publishing: whether a thread stores a group.
        is_stale: whether the producer belongs to the parent of this process.
        patience_s: seconds that a caller waits for the topic.
    """

    name: str
    encoder: EntryEncoder
    log: LogWriter
    lock: RLock
    unlock: Callable[[], None]

    def __init__(
        self,
        session: ProducerSession,
        config: ProducerConfig,
        state: SendState,
        queue: SendQueue,
        ids: SequenceIds,
        completions: Completions,
    ) -> None:
        self.state = state
        self.queue = queue
        self.ids = ids
        self._session = session
        self._completions = completions
        self._timeout_ms = config.send_timeout_ms
        self._delay_s = config.batching_max_delay_ms / 1000
        self.patience_s = config.send_timeout_ms / 1000 if config.send_timeout_ms else _FOR_EVER_S
        self._deadline = SendDeadline(config.send_timeout_ms / 1000)
        self.is_publishing = self.is_stale = self._is_timed = self._is_throttled = False
        self._flushed_at = 0.0
        state.check_connected = self.check_connected
        queue.box.arm = self.arm
        self.use_lock(threads.RLock())

    def use_lock(self, lock: RLock) -> None:
        self.lock = lock
        self.unlock = lock.lock.release  # saves 0.1 us

    def after_fork_in_child(self) -> None:
        self.use_lock(threads.renewed(self.lock))
        self.queue.take_all()
        self._deadline.clear()
        self.is_publishing = self._is_timed = self._is_throttled = self.queue.box.armed = False
        self.state.to(Event.HOLD_UP)

    @property
    def keeper(self) -> SequenceKeeper | None:
        return self.log.keeper

    @property
    def is_held_up(self) -> bool:
        return self.state.now is State.HELD_UP

    # -- without waiting; called without the lock --------------------------------------------------------

    def advance(self, least: int = 1, turn_s: float = 0.0) -> bool:
        """Store queued messages if the necessary locks are free.

        Batches are stored while at least ``least`` of their messages are queued. Another thread of this
        producer is waited for ``turn_s`` seconds. Returns whether the locks were free.
        """
        try:
            return self.lock.acquire(True, turn_s) and self.publish(0.0, least)
        finally:
            self.lock.release()

    def retry(self) -> bool:
        """`advance` for the flusher; messages that cannot be stored stay queued."""
        if self.state.is_closed:
            self.fail_late()
            return True
        if self.advance():
            return True
        self._note_waiting()
        return self._wait_for_rate()

    def advance_soon(self, least: int) -> None:
        """Store queued messages now, or have the flusher do it."""
        if self.state.now is State.HELD_UP:
            if len(self.queue) % _TRY_EVERY or not self.advance(least):
                self.hold_up()
        elif not self.advance(least, TURN_S):
            self.hold_up()
        if self.state.is_closed:
            self.fail_late()

    def hold_up(self) -> None:
        self._note_waiting()
        if not self._wait_for_rate():
            self._session.flusher.kick(self)

    def _wait_for_rate(self) -> bool:
        """If the topic's publish rate is reached, have the flusher retry when there is room again."""
        seconds = self.log.throttle.due_in_s()
        if not seconds:
            return False
        if not self._is_throttled:
            try:
                self._is_throttled = True
                self._session.call_later(seconds, self._on_room)
            except BaseException:
                self._is_throttled = False
                raise
        return True

    def _on_room(self) -> None:
        self._is_throttled = False
        if not self.queue.is_empty and not self.advance():
            self.hold_up()

    def _note_waiting(self) -> None:
        """Note the time since which messages wait for the topic."""
        self.state.to(Event.HOLD_UP)
        self._deadline.note(len(self.queue), self._session.monotonic())
        if not self._is_timed and self._deadline.at is not None:
            self._time_out_after(self._timeout_ms / 1000)

    # -- waiting -----------------------------------------------------------------------------------------

    def store_waiting(self, least: int) -> LockTimeout | None:
        """Store queued messages, waiting for the topic. Returns the error if the send timeout is over."""
        if not (self.queue.singles or self.queue.box.items) or self.publish(0.0, least):
            return None
        at = self._deadline.at
        left = self.patience_s if at is None else at - self._session.monotonic()
        try:
            seconds = max(left, TURN_S)
            deadline.within(seconds, self.publish, seconds, least)
        except LockTimeout as error:
            self._fail_waiting(error)
            return error
        return None

    def publish(self, timeout_s: float, least: int) -> bool:
        """Store queued messages, group by group, while the topic is available; ``least`` as for `advance`.

        Returns:
            Whether everything was stored.

        Raises:
            LockTimeout: the topic was not available within ``timeout_s``, which is not 0.
        """
        if self.is_publishing:
            return False  # called by a signal handler, while its own thread stores a group
        queue = self.queue
        # Counted by part: singles that other threads add are stored first, and do not belong to the box.
        singles, batched = queue.sizes()
        try:
            self.is_publishing = True
            while singles > 0 or batched > 0:
                group = queue.group()
                if not group:
                    if group is not None:
                        queue.drop_group()  # it was finished before an interrupt
                    group = self._encode_group(least)
                if group is None:
                    break
                count = 0
                for out in group:
                    count += out.count
                if not self._publish_group(group, timeout_s):
                    return False
                if queue.drop_group() is queue.singles:
                    singles -= count
                else:
                    batched -= count
        except BaseException:
            self.hold_up()  # the publish was interrupted
            raise
        finally:
            self.is_publishing = False
        self.settle()
        return True

    def _encode_group(self, least: int) -> list[PendingEntry] | None:
        queue = self.queue
        if self.log.keeper is not None:
            self.log.keeper.settle()
        is_batch = not queue.singles
        entries = queue.encode(self.encoder, least)
        if entries is not None:
            now = self._session.monotonic()
            if is_batch:
                self._flushed_at = now
            for out in entries:
                out.began = now
        return entries

    def _publish_group(self, group: list[PendingEntry], timeout_s: float) -> bool:
        log = self.log
        while group:
            out = group[0]
            if out.error is None and out.entry < 0 and not out.is_duplicate:
                if not (out.attempted and log.was_stored(out)) and not log.append(group, timeout_s):
                    return False
                continue
            if out.error is None:
                self.ids.last = out.last
            self._completions.hand_over(out)
            del group[0]
            if self.state.now is State.HELD_UP:
                self._deadline.passed(out.count)
        return True

    def settle(self) -> None:
        """Open the hot paths, because no message is left that must be stored first."""
        box = self.queue.box
        was_shut = box.share != box.limit
        if self._deadline.marks:
            self._deadline.clear()
        self.state.to(Event.SETTLE)
        if was_shut or box.counted or box.trigger != box.max_messages:
            box.settle()
        if self.queue.singles or self._session.meter.burst:
            self.reopen()
        self._completions.waiters.wake()
        if box.items:
            if not box.armed and not self.state.is_closed:
                self.arm()

    def reopen(self) -> None:
        """Open the hot paths, then look whether they have to be closed again."""
        self.state.to(Event.SETTLE)
        if self.queue.singles:
            self.state.to(Event.QUEUE)
        elif self._session.meter.burst:
            self.state.to(Event.SAMPLE)

    def check_connected(self) -> None:
        """Check that a message may be appended at once, and store a queued group first. See `AppendGuard`.

        Called under the topic's lock and the producer's lock.

        Raises:
            ProducerFenced: another producer has exclusive access to the topic.
        """
        if self.state.is_closed:
            raise AlreadyClosed(f"the producer {self.name} is closed; create a new one")
        group = None if self.is_publishing else self.queue.group()
        if group is not None:
            try:
                self.is_publishing = True
                if self._publish_group(group, 0.0):
                    self.queue.drop_group()
            finally:
                self.is_publishing = False
        self.log.check_connected()
        self.state.verified(self.log.checked)

    def _fail_waiting(self, error: BaseException) -> int:
        """Fail all queued messages, which are not appended later. Returns their number."""
        count = 0
        for item in self.queue.take_all():
            if item.__class__ is not list:
                out = fate_of(item, error)
                if self._session.memory is not None:
                    out.reserved = len(payload_of(item))
                self._completions.hand_over(out)
                count += 1
                continue
            for out in item:  # an interrupt may have left its outcome open
                if out.error is None and not self.log.was_stored(out):
                    out.error = error
                    count += out.count
                self._completions.hand_over(out)
        self.settle()
        return count

    def fail_late(self) -> None:
        """Fail a message that was queued while the producer was closing. Called without the lock."""
        try:
            self.lock.acquire()
            dropped = self.fail_unsent()
        finally:
            self.lock.release()
        self._completions.note_dropped(dropped, self.name)

    def fail_unsent(self) -> int:
        """Fail all queued messages of a closed producer. Returns their number."""
        if self.queue.is_empty:  # as nearly always: the error has a long text
            self.settle()
            return 0
        error = f"the producer {self.name} was closed before the message was published"
        return self._fail_waiting(AlreadyClosed(error))

    def arm(self) -> None:
        box = self.queue.box
        try:
            box.armed = True
            self._session.call_later(self._delay_s, self._on_timer)
        except BaseException:
            box.armed = False
            raise

    def _on_timer(self) -> None:
        box = self.queue.box
        box.armed = False  # first: a sender that appends from here on starts the timer again
        if self.queue.is_empty:
            return
        # The queued messages are younger than the last flush, so they may wait until one delay after it.
        left = self._flushed_at + self._delay_s - self._session.monotonic()
        if left > 0 and not self.state.is_closed:
            box.armed = True
            self._session.call_later(left, self._on_timer)
            return
        self.advance_soon(1)

    def _time_out_after(self, seconds: float) -> None:
        try:
            self._is_timed = True
            self._session.call_later(seconds, self._on_send_timeout)
        except BaseException:
            self._is_timed = False
            raise

    def _on_send_timeout(self) -> None:
        """If the oldest message has waited longer than the send timeout, fail all queued messages."""
        self._is_timed = False
        at = self._deadline.at
        if at is None:
            return
        left = at - self._session.monotonic()
        try:
            if left <= 0 and self.lock.acquire(False):
                if not self.publish(0.0, 1):
                    self._fail_waiting(self._timeout())
                return
        finally:
            self.lock.release()
        # Retried later: the thread that holds the lock waits for the topic, and not longer than this.
        self._time_out_after(max(left, TURN_S))

    def _timeout(self) -> Timeout:
        topic = self._session.topic_name
        reason = f"another process stays in the lock of {topic}; let it continue, or end it"
        if self._session.is_held:
            reason = f"the backlog of {topic} is beyond its quota; consume it"
        elif self.log.throttle.due_in_s():
            reason = f"the publish rate of {topic} was reached; wait"
        return Timeout(
            f"{len(self.queue)} messages of {self.name} were not stored within send_timeout_millis="
            f"{self._timeout_ms} and will not be: {reason}, and send them again"
        )
