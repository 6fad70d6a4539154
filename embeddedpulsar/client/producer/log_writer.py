"""The last step of a publish: the append of an encoded entry to the log of the topic.

Storing of queued messages in the log of the topic, in order, when the topic's lock is free.

The publish rate of a topic, as one producer keeps it: which entries may be appended now.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.log.position import Position
from embeddedpulsar._engine.platform import deadline, failpoints, threads
from embeddedpulsar._engine.platform.access import named
from embeddedpulsar._engine.platform.clock import SYSTEM_CLOCK
from embeddedpulsar.backlog_quota import TopicHeld
from embeddedpulsar.client.producer.pending_entry import fate_of, payload_of
from embeddedpulsar.client.producer.send_queue import (
    Event,
    SendDeadline,
    SendQueue,
    SendState,
    State,
)
from embeddedpulsar.client.producer.sequence_ids import DeduplicationSwitched, SequenceIds, SequenceKeeper
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, Timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Set

    from embeddedpulsar._engine.format.entry import EncodedEntry
    from embeddedpulsar._engine.log.segment_writer import AppendHold
    from embeddedpulsar._engine.platform.threads import RLock
    from embeddedpulsar._engine.store.policies.resource_groups import RateLimiter
    from embeddedpulsar.client.producer.completions import Completions
    from embeddedpulsar.client.producer.entry_encoder import EntryEncoder
    from embeddedpulsar.client.producer.pending_entry import Chunks, PendingEntry
    from embeddedpulsar.client.producer.producer_config import ProducerConfig
    from embeddedpulsar.client.producer.producer_meter import ProducerMeter
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
        meter: ProducerMeter,
    ) -> None:
        self.state = state
        self.queue = queue
        self.ids = ids
        self._session = session
        self._completions = completions
        self._meter = meter
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
            self.log.keeper.resolve()
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
        self.follow_keeper()
        box = self.queue.box
        was_shut = box.share != box.limit
        if self._deadline.marks:
            self._deadline.clear()
        self.state.to(Event.SETTLE)
        if was_shut or box.counted or box.trigger != box.max_messages:
            box.settle()
        if self.queue.singles or self._meter.burst:
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
        elif self._meter.burst:
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
        try:
            self.log.check_connected()
        finally:
            self.follow_keeper()
        self.state.verified(self.log.checked)

    def follow_keeper(self) -> None:
        """Close the way of single messages for ever if each has to be compared with what is stored."""
        keeper = self.log.keeper
        if keeper is not None and keeper.checks_all:
            self.state.narrow(batch=False)

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


_LOOK_S: Final = 0.05
"""How often a caller that waits looks whether the rate was changed."""
_SHORTEST_S: Final = 0.001
_NONE: Final[frozenset[PendingEntry]] = frozenset()


class PublishThrottle:
    """Admits entries of one producer as the publish rate of the topic allows, or waits.

    Role: tokens are taken before the append, one for each message and its bytes. An entry is admitted while
    there are any, however large it is, and later ones wait until that is made good. Entries that were
    admitted and could not be appended, because the topic was locked, keep what they have.
    Used under the producer's lock.
    """

    __slots__ = ("_paid", "_session")

    def __init__(self, session: ProducerSession) -> None:
        self._session = session
        # Most producers have no rate: they share one empty set, of 200 bytes.
        self._paid: Set[PendingEntry] = _NONE

    def admitted(self, entries: list[PendingEntry], timeout_s: float) -> list[PendingEntry]:
        """Return the first entries, those that may be appended now; none if ``timeout_s`` is 0 and none may.

        Raises:
            LockTimeout: none within ``timeout_s``, which is not 0; or the topic was not free.
        """
        end = SYSTEM_CLOCK.monotonic() + deadline.left(timeout_s)
        while (limiter := self._session.limiter) is not None:
            try:
                left = end - SYSTEM_CLOCK.monotonic() if timeout_s else 0.0
                found = deadline.within(max(left, 0.0), self._take, limiter, entries)
            except LockTimeout:
                if timeout_s:
                    raise
                return []
            if found or not timeout_s:
                return found
            left = end - SYSTEM_CLOCK.monotonic()
            if left <= 0:
                raise LockTimeout(
                    f"the publish rate of {self._session.topic_name} was reached, and there was no room for "
                    f"another message within {timeout_s:g} s; the message was not stored"
                )
            SYSTEM_CLOCK.sleep(min(max(self.due_in_s(), _SHORTEST_S), _LOOK_S, left))
            self._session.look_at_policies()
        return entries

    def _take(self, limiter: RateLimiter, entries: list[PendingEntry]) -> list[PendingEntry]:
        paid = {one for one in entries if one in self._paid or one.is_stored or one.error is not None}
        asked = [one for one in entries if one not in paid]
        if not asked:
            self._paid = paid
            return entries
        costs = [_cost(one) for one in asked]
        room, size = limiter.reserve(sum(cost[0] for cost in costs), sum(cost[1] for cost in costs))
        for out, (messages, length) in zip(asked, costs, strict=True):
            if room <= 0 or size <= 0:
                break
            room, size = room - messages, size - length
            paid.add(out)
        limiter.give_back(room, size)
        self._paid = paid
        count = 0
        while count < len(entries) and entries[count] in paid:
            count += 1
        return entries[:count]

    def due_in_s(self) -> float:
        """Seconds until the rate has room again, after it had none; 0.0 otherwise."""
        limiter = self._session.limiter
        if limiter is None or not limiter.due_ns:
            return 0.0
        return max(limiter.left_ns / 1e9, _SHORTEST_S)


def _cost(out: PendingEntry) -> tuple[int, int]:
    """Messages and bytes of an entry; of a chunked message all its entries together."""
    if out.chunks is not None:
        return 1, out.chunks.length
    return out.count, 0 if out.encoded is None else out.encoded.size


_JOURNAL: Final = TopicWord.JOURNAL
_HELD_S: Final = 0.05
"""How often a sender looks whether the backlog is small enough."""

# A process that dies there leaves chunks of a message that does not exist; they expire.
failpoints.declare("chunk:part_stored")


class LogWriter:
    """Appends the entries of one producer, and determines the outcome of an interrupted append.

    Role: the registration of the producer is checked under the topic's lock before anything is appended, if
    producers attached or left since the last check. Used under the producer's lock. There is one per
    attachment to the topic; after a fork the child makes its own.

    Attributes:
        checked: the journal word of the topic with which the producer was last found connected. With
            `check_connected` it makes the writer the guard of its own appends.
        keeper: detects duplicates, if the topic drops them.
        throttle: keeps the publish rate, if the topic has one.
    """

    __slots__ = (
        "_durability",
        "_ids",
        "_last_position",
        "_ledger",
        "_lock",
        "_meter",
        "_name",
        "_session",
        "checked",
        "keeper",
        "throttle",
    )

    def __init__(
        self, session: ProducerSession, name: str, ids: SequenceIds, lock: RLock, meter: ProducerMeter
    ) -> None:
        self._session = session
        self._ids = ids
        self._lock = lock
        self._meter = meter
        self._ledger = session.ledger
        self._name = name
        self._durability = session.durability
        self._last_position: tuple[int, int] | None = session.ledger.last_position()
        self.checked = -1
        self.keeper: SequenceKeeper | None = None
        self.throttle = PublishThrottle(session)

    def keep(self, highest: int | None) -> None:
        """Drop duplicates from now on, given the highest stored id; or, with None, stop dropping them."""
        if self.keeper is not None:
            self.keeper.is_over = True
        self.keeper = None
        if highest is not None:
            self.keeper = SequenceKeeper(self._session, self._ids, self._lock, self._name, highest)

    def check_connected(self) -> None:
        """Check that this producer was not fenced out. Called under the topic's lock.

        Raises:
            AlreadyClosed, ProducerFenced: it may not append.
            DeduplicationSwitched: the topic switched deduplication; the caller checks the entry again.
        """
        word = self._ledger.words[_JOURNAL]
        if word != self.checked:
            if not self._session.is_attached:
                raise AlreadyClosed(f"the producer {self._name} is closed; create a new one")
            highest = self._session.check_connected()
            self.checked = word
            if (highest is None) != (self.keeper is None):
                self.keep(highest)
                raise DeduplicationSwitched

    def append(self, entries: list[PendingEntry], timeout_s: float) -> bool:
        """Append entries in one hold of the log's lock, and store the position or the error in each.

        Does not wait for the disk, even at level "flush". Entries that failed already are skipped.

        Returns:
            Whether the lock was acquired; always True if ``timeout_s`` is not 0.

        Raises:
            LockTimeout: the lock was not free within ``timeout_s``, or the publish rate was reached for so
                long; nothing was appended.
        """
        if self._session.limiter is not None:
            entries = self.throttle.admitted(entries, timeout_s)
            if not entries:
                return False
        try:
            return self._append(entries, timeout_s)
        except TopicHeld as error:
            return self._append_later(entries, timeout_s, error)

    def _append_later(self, entries: list[PendingEntry], timeout_s: float, error: TopicHeld) -> bool:
        """`append` while the backlog of the topic is beyond its quota: wait, or fail the entries."""
        session, until = self._session, SYSTEM_CLOCK.monotonic() + timeout_s
        while True:
            refusal = session.quota_error()
            if refusal is not None:
                for out in entries:
                    if out.entry < 0 and out.error is None:
                        out.error = refusal
                return True
            if not session.is_held:
                try:
                    return self._append(entries, timeout_s)
                except TopicHeld as again:
                    error = again
            if not timeout_s:
                return False
            left = until - SYSTEM_CLOCK.monotonic()
            if left <= 0:
                raise LockTimeout(*error.args) from error  # the class of `error` is internal
            session.wait_a_moment(min(left, _HELD_S))

    def _append(self, entries: list[PendingEntry], timeout_s: float) -> bool:
        if len(entries) == 1 and self.keeper is None and entries[0].chunks is None:
            return self._append_alone(entries[0], timeout_s)
        for at, out in enumerate(entries):
            if out.chunks is not None and not out.is_stored and out.error is None:
                if at and not self._append_group(entries[:at], timeout_s):
                    return False
                return self._append_chunked(out, out.chunks, timeout_s)  # the next call appends the others
        return self._append_group(entries, timeout_s)

    def _append_alone(self, out: PendingEntry, timeout_s: float) -> bool:
        """`append` of one entry that needs no check under the lock, with less overhead."""
        if out.error is not None or out.encoded is None:
            return True
        out.attempted = True
        try:
            ledger, entry, _, end_word = self._ledger.append_nowait(out.encoded, self, timeout_s)
        except LockTimeout as error:
            out.attempted = False
            if timeout_s or isinstance(error, TopicHeld):
                raise
            return False
        except DeduplicationSwitched:
            out.attempted = False
            return self.append([out], timeout_s)
        except Exception as e:  # noqa: BLE001 - passed to the sender of the message
            out.error = named(e)
            return True
        if self._durability == "flush":
            out.end_word = end_word
        elif self._durability == "interval":
            self._ledger.note_dirty()
        self._note(out, ledger, entry)
        return True

    def let_threads_pass(self, timeout_s: float) -> bool:
        """Wait until no other thread of this process is in the log's lock. Returns False if one stays there.

        The interpreter may have suspended that thread, and resumes it only while the caller waits."""
        lock = self._ledger.lock
        try:
            lock.keep_threads_out(timeout_s)
        except LockTimeout:
            return False
        finally:
            lock.release()
        return True

    def _append_group(self, entries: list[PendingEntry], timeout_s: float) -> bool:
        ledger = self._ledger
        lock, hold = ledger.lock, ledger.hold()
        try:
            if timeout_s:
                lock.acquire(timeout_s)
            elif not lock.try_acquire():
                return False
            deadline.within(timeout_s, self._append_all, entries, hold)
        except LockTimeout as error:
            if not timeout_s and not isinstance(error, TopicHeld):
                return False
            raise
        except Exception as e:  # noqa: BLE001 - no descriptors left, for example: passed to the senders
            for out in entries:
                if out.entry < 0 and out.error is None:
                    out.error = named(e)
        finally:
            lock.release()
            hold.ring_all()
        if self._durability == "interval":
            ledger.note_dirty()
        return True

    def _append_chunked(self, out: PendingEntry, chunks: Chunks, timeout_s: float) -> bool:
        """Append the entries of a chunked message, in one hold of the lock each.

        Other producers may append in between. If the lock is not free, the next call continues.
        """
        if self.keeper is not None and not chunks.earlier and self.keeper.is_duplicate(out):
            out.let_go()
            return True
        try:
            with contextlib.closing(chunks.parts()) as parts:
                for encoded in parts:
                    place = self._append_part(encoded, timeout_s)
                    if place is None:
                        return False
                    chunks.earlier.append(place)
                    if failpoints.ACTIVE:
                        failpoints.hit("chunk:part_stored")
            out.encoded = out.encoded or chunks.finish()
            out.attempted = True
            place = self._append_part(out.encoded, timeout_s)
            if place is None:
                out.attempted = False
                return False
        except LockTimeout:
            raise
        except Exception as e:  # noqa: BLE001 - passed to the sender of the message
            out.error = named(e)
        else:
            if self._durability == "flush":
                out.end_word = self._ledger.tail
            elif self._durability == "interval":
                self._ledger.note_dirty()
            self._note(out, *place)
        out.let_go()
        return True

    def _append_part(self, encoded: EncodedEntry, timeout_s: float) -> tuple[int, int] | None:
        ledger = self._ledger
        try:
            if timeout_s:
                ledger.lock.acquire(timeout_s)
            elif not ledger.lock.try_acquire():
                return None
            with contextlib.suppress(DeduplicationSwitched):  # takes effect with the next message
                self.check_connected()
            return ledger.append_nowait(encoded)[:2]
        finally:
            ledger.lock.release()

    def _append_all(self, entries: list[PendingEntry], hold: AppendHold) -> None:
        error: Exception | None = None
        try:
            self.check_connected()
        except DeduplicationSwitched:
            error = None  # nothing was appended: the entries are checked again in the new mode
        except Exception as e:  # noqa: BLE001 - passed to the senders of the messages
            error = named(e)
        todo: list[PendingEntry] = []
        for out in entries:
            if out.error is not None or out.entry >= 0 or out.is_duplicate or out.encoded is None:
                continue
            if error is not None:
                out.error = error
            elif self.keeper is None:
                todo.append(out)
            elif not self.keeper.is_duplicate(out):  # which depends on the entry before
                self._append_run([out], hold)
        while todo:
            todo = self._append_run(todo, hold)

    def _append_run(self, todo: list[PendingEntry], hold: AppendHold) -> list[PendingEntry]:
        """Append entries until one fails. Returns those behind it, which were not tried."""
        stored: list[tuple[int, int, int]] = []
        tried = [out.encoded for out in todo if out.encoded is not None]  # all are
        for out in todo:
            out.attempted = True
        rest: list[PendingEntry] = []
        try:
            self._ledger.append_run(tried, hold, stored)
        except LockTimeout:  # of the store, for the id of a new segment: nothing more was appended
            rest = todo[len(stored) :]
            raise
        except Exception as e:  # noqa: BLE001 - passed to the senders of the messages
            todo[len(stored)].error = named(e)
            rest = todo[len(stored) + 1 :]
        finally:
            waits = self._durability == "flush"
            for out, (ledger, entry, end_word) in zip(todo, stored, strict=False):
                if waits:
                    out.end_word = end_word
                self._note(out, ledger, entry)
            for out in rest:
                out.attempted = False
        return rest

    def was_stored(self, out: PendingEntry) -> bool:
        """Look for an entry whose append was interrupted. Returns True, and stores its position, if found."""
        if out.is_duplicate:
            return True
        if out.entry >= 0:  # the interrupt came after the position was stored
            self._note(out, out.ledger, out.entry)
            return True
        if not out.attempted:
            return False
        after = self._last_position
        found = self._session.find_entry(None if after is None else Position(*after), self._name, out.first)
        if found is None:
            return False
        if self._durability == "flush":
            out.end_word = self._ledger.tail
        self._note(out, found.ledger_id, found.entry_id)
        return True

    def _note(self, out: PendingEntry, ledger: int, entry: int) -> None:
        if out.entry < 0:
            self._meter.stored(out)
        if self.keeper is not None:
            self.keeper.note_stored(out)
        # The entry counts as stored from here on; before, an interrupt leaves its outcome to `was_stored`.
        out.ledger = ledger
        out.entry = entry
        self._last_position = (ledger, entry)
