"""Storing of queued messages in the log of the topic, in order, when the topic's lock is free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from embeddedpulsar.client.producer.batch_container import BatchContainer, payload_of
from embeddedpulsar.client.producer.completions import Completions
from embeddedpulsar.client.producer.entry_encoder import EntryEncoder
from embeddedpulsar.client.producer.log_writer import LogWriter, patience
from embeddedpulsar.client.producer.send_deadline import SendDeadline
from embeddedpulsar.client.producer.send_queue import SendQueue, fate_of
from embeddedpulsar.client.producer.sequence_keeper import DeduplicationSwitched, SequenceKeeper
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, Timeout
from embeddedpulsar.format.control import TopicWord
from embeddedpulsar.platform import deadline, threads
from embeddedpulsar.platform.threads import RLock

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.producer.pending_entry import PendingEntry
    from embeddedpulsar.client.producer.producer_config import ProducerConfig
    from embeddedpulsar.client.producer.producer_session import ProducerSession

JOURNAL: Final = TopicWord.JOURNAL
TURN_S: Final = 0.001
"""Seconds to wait for another thread that stores messages of this producer. That takes microseconds, unless
the other thread waits for the topic, or for the interpreter."""
_TRY_EVERY: Final = 32
"""While the flusher retries for a producer, its senders retry too, once per so many messages."""


class Pipeline:
    """The part of a publisher that stores queued messages.

    Role: callers that may wait (`send`, `flush`) wait for the topic. Callers that must not wait
    (`send_async`, timers) try once, and leave messages in the queue if the topic is locked. The next sender,
    the client's flusher or a waiting caller stores them, in groups of entries with one hold of the lock each.

    Invariants: they hold under `lock`, except where stated. A message leaves the queue only when it is stored
    or has failed. An interrupt (Ctrl-C) may stop a publish at any instruction; its group then stays at the
    front of the queue, and the next caller looks into the topic for the entries that were stored.

    A message must not be stored before those queued earlier. While singles are queued, `single_max` is -1,
    which disables the hot paths: the thread that queues a message sets it after the message, and the thread
    that empties the queue checks the queue again after resetting it. While a group is queued, whose sequence
    ids are assigned, `checked` is -1, so that a hot path that had read `single_max` before stores the group
    first (`check_connected`).

    Attributes:
        lock: held while publishing; taken before the topic's lock.
        checked: the topic's journal word when this producer was last found connected; -1 with a group queued.
        single_max: largest payload for the fast path of an unbatched send; -1 disables the fast path.
        last_sequence_id: that of the last message stored.
        found_sequence_id: its value when the producer was made.
        initial_sequence_id: what the application sees until then; usually the same, unless it set another.
        next_sequence_id: the next automatic one.
        completions: performs the steps after an append.
        meter: counts stored messages.
        tally: counts messages stored by the hot paths; see `producer_meter.ONE`.
        keeper: drops duplicates, if the topic has deduplication.
    """

    words: memoryview
    next_sequence_id: int
    name: str
    _log: LogWriter
    _encoder: EntryEncoder
    keeper: SequenceKeeper | None

    def __init__(self, session: ProducerSession, config: ProducerConfig) -> None:
        self.config = config
        self._session = session
        self._use_lock(threads.RLock())
        self.is_closed = False
        self.tally = 0
        self.last_sequence_id = self.found_sequence_id = self.initial_sequence_id = -1
        self.checked = self._verified = -1
        self.single_max = self._single_most = -1
        self.completions = Completions(session)
        self.meter = session.meter
        limit, most = config.max_pending_messages, config.batching_max_messages
        self.box = BatchContainer(max(1, min(most, limit)) if limit else most, config.batching_max_bytes)
        self.queue = SendQueue(self.box, session.memory is not None)
        self._patience_s = patience(config.send_timeout_ms)
        self._deadline = SendDeadline(config.send_timeout_ms / 1000)
        self._is_publishing = self._is_held_up = self._is_timed = False
        self._flushed_at = 0.0

    def _use_lock(self, lock: RLock) -> None:
        self.lock = lock
        # The plain release, for the end of a hot section, where the lock is certainly held: saves 0.1 us.
        self.unlock: Callable[[], None] = self.lock.acquire.__self__.release  # type: ignore[attr-defined]

    # -- without waiting; called without the lock --------------------------------------------------------

    def advance(self, least: int = 1, turn_s: float = 0.0) -> bool:
        """Store queued messages if the necessary locks are free.

        Args:
            least: batches are stored while at least this many of their messages are queued.
            turn_s: how long to wait for another thread of this producer.

        Returns:
            Whether the locks were free.
        """
        try:
            return self.lock.acquire(True, turn_s) and self._publish(0.0, least)
        finally:
            self.lock.release()

    def retry(self) -> bool:
        """`advance` for the flusher; messages that cannot be stored stay queued."""
        if self.is_closed:
            self._fail_late()
            return True
        if self.advance():
            return True
        self._note_waiting()
        return False

    def _advance_soon(self, least: int) -> None:
        """Store queued messages now, or have the flusher do it."""
        if self._is_held_up:
            if len(self.queue) % _TRY_EVERY or not self.advance(least):
                self._hold_up()
        elif not self.advance(least, TURN_S):
            self._hold_up()
        if self.is_closed:
            self._fail_late()

    def _hold_up(self) -> None:
        """Register with the flusher, because messages wait for the topic."""
        self._note_waiting()
        self._session.flusher.kick(self)

    def _note_waiting(self) -> None:
        """Note the time since which messages wait for the topic."""
        self._is_held_up = True
        self.single_max = -1
        self.box.hold_up()
        self._deadline.note(len(self.queue), self._session.monotonic())
        if not self._is_timed and self._deadline.at is not None:
            self._time_out_after(self.config.send_timeout_ms / 1000)

    # -- waiting -----------------------------------------------------------------------------------------

    def _store_waiting(self, least: int) -> LockTimeout | None:
        """Store queued messages, waiting for the topic. Returns the error if the send timeout is over."""
        if self.queue.is_empty or self._publish(0.0, least):
            return None
        at = self._deadline.at
        left = self._patience_s if at is None else at - self._session.monotonic()
        try:
            self._publish(max(left, TURN_S), least)
        except LockTimeout as error:
            self._fail_waiting(error)
            return error
        return None

    def save(self) -> None:
        """Store everything at the end of the program, and raise failures that `flush` would have raised."""
        if self.queue.is_empty or self.is_closed:
            return
        try:
            deadline.enter(self.lock, f"the producer {self.name}")
            error = self._store_waiting(1)
        finally:
            self.lock.release()
        if error is not None:
            raise error

    # -- from the queue to the log -----------------------------------------------------------------------

    def _publish(self, timeout_s: float, least: int) -> bool:
        """Store queued messages, group by group, while the topic is available.

        Args:
            timeout_s: seconds to wait for the topic; 0 to try only.
            least: batches are stored while at least this many of their messages are queued.

        Returns:
            Whether everything was stored.

        Raises:
            LockTimeout: the topic was not available in time.
        """
        if self._is_publishing:
            return False  # called by a signal handler, while its own thread stores a group
        queue = self.queue
        # Counted by part: singles that other threads add are stored first, and do not belong to the box.
        singles, batched = queue.sizes()
        try:
            self._is_publishing = True
            while singles > 0 or batched > 0:
                group = queue.group() or self._encode_group(least)
                if group is None:
                    break
                count = sum(out.count for out in group)
                if not self._publish_group(group, timeout_s):
                    return False
                if queue.drop_group() is queue.singles:
                    singles -= count
                else:
                    batched -= count
        except BaseException:
            self._hold_up()  # the publish was interrupted
            raise
        finally:
            self._is_publishing = False
        self._settle()
        return True

    def _encode_group(self, least: int) -> list[PendingEntry] | None:
        self.queue.drop_group()  # a group that was finished before an interrupt
        if self.keeper is not None:
            self.keeper.settle()
        part, count, entries, following = self.queue.encode(self._encoder, self.next_sequence_id, least)
        if not count:
            return None
        if part is self.box.items:
            self.box.left()
            self._flushed_at = self._session.monotonic()
        for out in entries:
            self.meter.begin(out)
        self.checked = -1
        self.next_sequence_id = following
        part[:count] = [entries]  # one step: the messages now have ids, and are not encoded again
        return entries

    def _publish_group(self, group: list[PendingEntry], timeout_s: float) -> bool:
        while group:
            out = group[0]
            if out.error is None and not self._log.was_stored(out):
                if not self._log.append(group, timeout_s, self._verify):
                    return False
                continue
            if out.is_stored:
                self.last_sequence_id = out.last
            self.completions.hand_over(out)
            del group[0]
            if self._is_held_up:
                self._deadline.passed(out.count)
        return True

    def _settle(self) -> None:
        """Enable the hot paths, because no message is left that must be stored first."""
        self._is_held_up = False
        self._deadline.clear()
        self.box.settle()
        self.completions.waiters.wake()
        self._open_to_hot_path()
        if self.box.items and not self.box.armed and not self.is_closed:
            self.arm()

    def _open_to_hot_path(self) -> None:
        self.checked = self._verified
        self.single_max = self._single_most
        if self.queue.singles or self.meter.burst:
            self.single_max = -1

    def close_hot_path(self) -> None:
        """Send every message to the slow path from now on."""
        self.single_max = self._single_most = -1

    def _keep(self, highest: int | None) -> None:
        """Drop duplicates from now on, given the highest stored id; or, with None, stop dropping them."""
        keeper = None if highest is None else SequenceKeeper(self._session, self, highest)
        self.keeper = self._log.keeper = keeper

    def _verify(self) -> None:
        """If producers attached or left: check that this one was not fenced out. Under the topic lock.

        Raises:
            DeduplicationSwitched: the topic switched deduplication; the caller checks the entry again.
        """
        word = self.words[JOURNAL]
        if word != self._verified:
            if self.is_closed:
                raise AlreadyClosed(f"the producer {self.name} is closed; create a new one")
            highest = self._session.check_connected()
            self._verified = word
            if (highest is None) != (self.keeper is None):
                self._keep(highest)
                raise DeduplicationSwitched

    def check_connected(self) -> None:
        """Check that this producer may append, and store a queued group first. See `AppendGuard`.

        Called under the topic's lock and the producer's lock.

        Raises:
            ProducerFenced: another producer has exclusive access to the topic.
        """
        if self.is_closed:
            raise AlreadyClosed(f"the producer {self.name} is closed; create a new one")
        group = None if self._is_publishing else self.queue.group()
        if group is not None:
            try:
                self._is_publishing = True
                if self._publish_group(group, 0.0):
                    self.queue.drop_group()
            finally:
                self._is_publishing = False
        self._verify()
        self.checked = self._verified

    # -- failing -----------------------------------------------------------------------------------------

    def _fail_waiting(self, error: BaseException) -> int:
        """Fail all queued messages, which are not appended later. Returns their number."""
        count = 0
        for item in self.queue.take_all():
            if item.__class__ is not list:
                out = fate_of(item, error)
                if self._session.memory is not None:
                    out.reserved = len(payload_of(item))
                self.completions.hand_over(out)
                count += 1
                continue
            for out in item:
                if out.error is None and not self._log.was_stored(
                    out
                ):  # an interrupt may have left its outcome open
                    out.error = error
                    count += out.count
                self.completions.hand_over(out)
        self._settle()
        return count

    def _fail_late(self) -> None:
        """Fail a message that was queued while the producer was closing. Called without the lock."""
        try:
            self.lock.acquire()
            dropped = self._fail_unsent()
        finally:
            self.lock.release()
        self.completions.note_dropped(dropped, self.name)

    def _fail_unsent(self) -> int:
        error = f"the producer {self.name} was closed before the message was published"
        return self._fail_waiting(AlreadyClosed(error))

    # -- time --------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Start the publish-delay timer."""
        box = self.box
        try:
            box.armed = True
            self._session.call_later(self.config.batching_max_delay_ms / 1000, self._on_timer)
        except BaseException:
            box.armed = False
            raise

    def _on_timer(self) -> None:
        box = self.box
        box.armed = False  # first: a sender that appends from here on starts the timer again
        if self.queue.is_empty:
            return
        # The queued messages are younger than the last flush, so they may wait until one delay after it.
        left = self._flushed_at + self.config.batching_max_delay_ms / 1000 - self._session.monotonic()
        if left > 0 and not self.is_closed:
            box.armed = True
            self._session.call_later(left, self._on_timer)
            return
        self._advance_soon(1)

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
                if not self._publish(0.0, 1):
                    self._fail_waiting(self._timeout())
                return
        finally:
            self.lock.release()
        # Retried later: the thread that holds the lock waits for the topic, and not longer than this.
        self._time_out_after(max(left, TURN_S))

    def _timeout(self) -> Timeout:
        return Timeout(
            f"{len(self.queue)} messages of {self.name} were not stored within send_timeout_millis="
            f"{self.config.send_timeout_ms} and will not be: another process stays in the lock of "
            f"{self._session.topic_name}; let it continue, or end it, and send them again"
        )
