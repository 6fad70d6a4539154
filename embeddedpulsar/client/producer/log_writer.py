"""The last step of a publish: the append of an encoded entry to the log of the topic.

Storing of queued messages in the log of the topic, in order, when the topic's lock is free.

The publish rate of a topic, as one producer keeps it: which entries may be appended now.

`SequenceIds` has the sequence ids of the producer, and those stored under its name in topics with
deduplication.

The steps after the append of an entry: the flush to disk, where required, and the callbacks.
"""

from __future__ import annotations

import contextlib
import math
from itertools import takewhile

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.platform import failpoints, timing
from embeddedpulsar._engine.platform.access import named
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
from embeddedpulsar.client.client_threads import CallbackThread, WaiterSet
from embeddedpulsar.client.producer.pending_entry import PendingEntry, PlainWaiter, SendCallback
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, PulsarException
from embeddedpulsar.message_id import Position, make
from embeddedpulsar.policies import TopicHeld
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.results import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Set
    from typing import Final

    from embeddedpulsar._engine.format.entry import EncodedEntry
    from embeddedpulsar._engine.log.waiter_slots import AppendHold
    from embeddedpulsar._engine.platform.threads import RLock
    from embeddedpulsar._engine.store.policies.resource_groups import RateLimiter
    from embeddedpulsar.client.producer.pending_entry import Chunks
    from embeddedpulsar.client.producer.producer_session import ProducerMeter, ProducerSession
    from embeddedpulsar.client.transaction import TopicPart


_SHORTEST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 16.0
_PATIENCE_S: Final = 1.0


class DeduplicationSwitched(Exception):
    """Deduplication of the topic was switched on or off: the current entry must be checked again."""


class SequenceIds:
    """The counters of one producer, used under its lock.

    Attributes:
        following: the next automatic id.
        last: id of the last message stored.
        attached_at: the value of `last` when the producer was attached.
        initial: what the application sees as the last id while `last` has that value; usually the same,
            unless it set another.
    """

    __slots__ = ("attached_at", "following", "initial", "last")

    def begin(self, stored: int, initial: int | None) -> None:
        """Continue after the last stored id, or after one that the application set."""
        self.last = self.attached_at = stored
        self.initial = stored if initial is None else initial
        self.following = self.initial + 1

    @property
    def shown(self) -> int:
        return self.initial if self.last == self.attached_at else self.last


class SequenceKeeper:
    """The highest sequence id stored under the name of one producer.

    Only one producer at a time stores under a name. So the highest id found when the name was attached, and
    the ids stored since, are complete, and duplicates are detected without reading a file. The log is read
    only if the outcome of an append is unknown, because of an interrupt or an error.
    Invariants: automatic ids that increase need no check, so the hot path of `send` does not call this class;
    `SequenceIds.last` shows what it stored. From the first explicit id that is not below the next automatic
    one, `checks_all` is true and every message is compared.
    Used under the producer's lock, which the timer acquires.

    Attributes:
        checks_all: whether automatic ids, too, may have been stored already; never reset.
        is_over: whether another keeper, or none, has its place, or the producer is closed.
    """

    def __init__(
        self, session: ProducerSession, ids: SequenceIds, lock: RLock, name: str, highest: int
    ) -> None:
        self._session: Final = session
        self._ids: Final = ids
        self._lock: Final = lock
        self._name: Final = name
        self._highest = highest
        self._attempted = -1  # an id whose append has an unknown outcome
        self._resolved = ids.following - 1  # the outcome of automatic ids up to here is known
        self._floor = session.ledger.tail  # the log up to here is known
        self._pause_s = _SHORTEST_PAUSE_S
        self._recorded = highest
        self._recorded_at = session.monotonic()
        self.checks_all = ids.following <= highest
        self.is_over = False
        session.call_later(self._pause_s, self._record_if_due)

    @property
    def known(self) -> int:
        """The highest sequence id that is certainly stored."""
        return max(self._highest, self._ids.last)

    def resolve(self) -> None:
        """Determine the outcome of automatic ids in use, before new ids are assigned."""
        in_use = self._ids.following - 1
        if in_use > max(self.known, self._resolved) or self._attempted > self.known:
            self._read_log()
        self._resolved = in_use

    def _read_log(self) -> None:
        tail = self._session.ledger.tail
        stored = self._session.highest_stored(self._name, tail, self._floor)
        self._highest, self._floor, self._attempted = max(self.known, stored), tail, -1

    def is_duplicate(self, out: PendingEntry) -> bool:
        """Return whether all messages of an entry are stored already. If not, it is about to be appended.

        Called under the topic's lock, too.
        """
        if self._attempted > self.known:
            self._read_log()
        if out.highest <= self.known:
            if self._session.durability == "flush":
                out.end_word = self._session.ledger.tail  # the stored entry may not be on disk yet
            out.is_duplicate = True
            self._ids.initial = self._ids.attached_at  # the application has a result now
            return True
        if out.encoded is None or out.encoded.count:
            self._attempted = out.highest
        return False

    def note_stored(self, out: PendingEntry) -> None:
        if out.encoded is None or out.encoded.count:  # not a chunk before the last one
            self._highest = max(self.known, out.highest)
            self._attempted = -1
        if out.highest >= self._ids.following:
            self.checks_all = True

    # -- keeping the topic informed ----------------------------------------------------------------

    def final(self) -> int | None:
        """Return the highest id stored, when the producer detaches; None if it cannot be determined."""
        try:
            self.resolve()
        except (PulsarException, OSError):
            return None
        return self.known

    def _record_if_due(self) -> None:
        """Record the highest id at times, in the timer thread: the next producer of the name after a kill
        searches the log only from there."""
        if self.is_over:
            return
        settings = self._session.settings
        stored = self._ids.last - self._recorded
        waited_s = self._session.monotonic() - self._recorded_at
        is_due = waited_s >= settings.brokerDeduplicationSnapshotIntervalSeconds
        self._pause_s = _SHORTEST_PAUSE_S if stored else min(2 * self._pause_s, _LONGEST_PAUSE_S)
        try:
            if is_due or stored >= settings.brokerDeduplicationEntriesInterval:
                self._record()
        finally:
            self._session.call_later(self._pause_s, self._record_if_due)

    def _record(self) -> None:
        lock = self._lock
        try:
            if not lock.acquire(True, _PATIENCE_S):
                return  # the lock is in use; the timer tries again
            if self.is_over:
                return
            self.resolve()
            self._session.remember(self.known)
            self._recorded, self._recorded_at = self.known, self._session.monotonic()
        except (PulsarException, OSError) as error:
            if not isinstance(error, (AlreadyClosed, LockTimeout)):
                self._session.log.warning(
                    "%s: what was stored could not be recorded, and will be later: %s",
                    self._name,
                    error,
                    producer=self._name,
                    topic=self._session.topic_name,
                )
        finally:
            lock.release()


_LOOK_S: Final = 0.05
"""How often a caller that waits looks whether the rate was changed."""
_SHORTEST_S: Final = 0.001
_NONE: Final[frozenset[PendingEntry]] = frozenset()


class PublishThrottle:
    """Admits entries of one producer as the publish rate of the topic allows, or waits.

    Tokens are taken before the append, one for each message and its bytes. An entry is admitted while
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
        end = SYSTEM_CLOCK.monotonic() + timing.left(timeout_s)
        while (limiter := self._session.limiter) is not None:
            try:
                remaining_s = end - SYSTEM_CLOCK.monotonic() if timeout_s else 0.0
                admitted = timing.within(max(remaining_s, 0.0), self._reserve, limiter, entries)
            except LockTimeout:
                if timeout_s:
                    raise
                return []
            if admitted or not timeout_s:
                return admitted
            remaining_s = end - SYSTEM_CLOCK.monotonic()
            if remaining_s <= 0:
                raise LockTimeout(
                    f"the publish rate of {self._session.topic_name} was reached, and there was no room for "
                    f"another message within {timeout_s:g} s; the message was not stored"
                )
            SYSTEM_CLOCK.sleep(min(max(self.due_in_s(), _SHORTEST_S), _LOOK_S, remaining_s))
            self._session.refresh_policies()
        return entries

    def _reserve(self, limiter: RateLimiter, entries: list[PendingEntry]) -> list[PendingEntry]:
        # Paid once: an entry that was paid for and not written, or needs no room any more, is not charged
        # again by the next attempt.
        paid = {out for out in entries if out in self._paid or out.is_stored or out.error is not None}
        unpaid = [out for out in entries if out not in paid]
        if not unpaid:
            self._paid = paid
            return entries
        costs = [_cost(out) for out in unpaid]
        room, size = limiter.reserve(sum(cost[0] for cost in costs), sum(cost[1] for cost in costs))
        # The last entry may cost more than there is room for: the limiter goes below zero by it, or an entry
        # larger than a second's worth would never be sent.
        for out, (messages, length) in zip(unpaid, costs, strict=True):
            if room <= 0 or size <= 0:
                break
            room, size = room - messages, size - length
            paid.add(out)
        limiter.give_back(room, size)
        self._paid = paid
        # Order of the log is the order of the sends, so nothing passes an entry that has to wait.
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

    The registration of the producer is checked under the topic's lock before anything is appended, if
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
            if len(entries) == 1 and self.keeper is None and entries[0].chunks is None:
                return self._append_alone(entries[0], timeout_s)
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
            remaining_s = until - SYSTEM_CLOCK.monotonic()
            if remaining_s <= 0:
                raise LockTimeout(*error.args) from error  # the class of `error` is internal
            session.wait_a_moment(min(remaining_s, _HELD_S))

    def _append(self, entries: list[PendingEntry], timeout_s: float) -> bool:
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
            part = out.part
            if part is None or part.is_deferred:
                if part is not None:
                    part.check_open()
                ledger, entry, _, end_word = self._ledger.append_nowait(out.encoded, self, timeout_s)
            else:
                ledger, entry, _, end_word = self._ledger.append_nowait(
                    out.encoded, self, timeout_s, None, part.check_open
                )
        except LockTimeout as error:
            out.attempted = False
            if timeout_s or isinstance(error, TopicHeld):
                raise
            return False
        except DeduplicationSwitched:
            out.attempted = False
            return self.append([out], timeout_s)
        except Exception as e:  # passed to the sender of the message
            if timing.is_raised_by_handler(e):
                raise
            out.error = named(e)
            return True
        if self._durability == "flush":
            out.end_word = end_word
        elif self._durability == "interval":
            self._ledger.note_dirty()
        self._record_stored(out, ledger, entry, end_word)
        return True

    def hindrance(self) -> str:
        """Why nothing was stored for so long, and what to do."""
        topic = self._session.topic_name
        if self._session.is_held:
            return f"the backlog of {topic} is beyond its quota; consume it"
        if self.throttle.due_in_s():
            return f"the publish rate of {topic} was reached; wait"
        return f"another process stays in the lock of {topic}; let it continue, or end it"

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
        # One hold for the whole group. A locked topic is no error of an entry: the result is False, or the
        # exception for a caller that waits. Any other error is that of each entry that is not stored.
        try:
            if timeout_s:
                lock.acquire(timeout_s)
            elif not lock.try_acquire():
                return False
            timing.within(timeout_s, self._append_all, entries, hold)
        except LockTimeout as error:
            if not timeout_s and not isinstance(error, TopicHeld):
                return False
            raise
        except Exception as e:  # no descriptors left, for example: passed to the senders
            if timing.is_raised_by_handler(e):
                raise
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
            # Parts first, then the entry that names them: until it is stored, the message does not exist, and
            # the parts of a process that dies here expire unread. `parts` continues behind those that an
            # earlier call appended.
            with contextlib.closing(chunks.parts()) as parts:
                for encoded in parts:
                    place = self._append_part(encoded, timeout_s, out.part)
                    if place is None:
                        return False
                    chunks.earlier.append(place)
                    if out.part is not None:
                        out.part.note_stored(*place, self._ledger.tail)
                    if failpoints.ACTIVE:
                        failpoints.hit("chunk:part_stored")
            out.encoded = out.encoded or chunks.finish()
            out.attempted = True
            place = self._append_part(out.encoded, timeout_s, out.part)
            if place is None:
                out.attempted = False
                return False
        except LockTimeout:
            raise
        except Exception as e:  # passed to the sender of the message
            if timing.is_raised_by_handler(e):
                raise
            out.error = named(e)
        else:
            if self._durability == "flush":
                out.end_word = self._ledger.tail
            elif self._durability == "interval":
                self._ledger.note_dirty()
            self._record_stored(out, *place, self._ledger.tail)
        out.let_go()
        return True

    def _append_part(
        self, encoded: EncodedEntry, timeout_s: float, part: TopicPart | None
    ) -> tuple[int, int] | None:
        ledger = self._ledger
        try:
            if timeout_s:
                ledger.lock.acquire(timeout_s)
            elif not ledger.lock.try_acquire():
                return None
            with contextlib.suppress(DeduplicationSwitched):  # takes effect with the next message
                self.check_connected()
            check_open = None if part is None else part.check_open
            return ledger.append_nowait(encoded, None, None, None, check_open)[:2]
        finally:
            ledger.lock.release()

    def _append_all(self, entries: list[PendingEntry], hold: AppendHold) -> None:
        error: Exception | None = None
        try:
            self.check_connected()
        except DeduplicationSwitched:
            error = None  # nothing was appended: the entries are checked again in the new mode
        except Exception as e:  # passed to the senders of the messages
            if timing.is_raised_by_handler(e):
                raise
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
        """Append entries until one fails, or until those of another transaction. Returns those behind, which
        were not tried."""
        stored: list[tuple[int, int, int]] = []
        part, behind = todo[0].part, todo
        todo = list(takewhile(lambda out: out.part is part, todo))
        behind = behind[len(todo) :]
        tried = [out.encoded for out in todo if out.encoded is not None]  # all are
        for out in todo:
            out.attempted = True
        rest: list[PendingEntry] = []
        try:
            if part is None or part.is_deferred:
                if part is not None:
                    part.check_open()
                self._ledger.append_run(tried, hold, stored)
            else:
                self._ledger.append_run(tried, hold, stored, part.check_open)
        except LockTimeout:  # of the store, for the id of a new segment: nothing more was appended
            rest = todo[len(stored) :]
            raise
        except Exception as e:  # passed to the senders of the messages
            if timing.is_raised_by_handler(e):
                raise
            todo[len(stored)].error = named(e)
            rest = todo[len(stored) + 1 :]
        finally:
            waits = self._durability == "flush"
            for out, (ledger, entry, end_word) in zip(todo, stored, strict=False):
                if waits:
                    out.end_word = end_word
                self._record_stored(out, ledger, entry, end_word)
            for out in rest:
                out.attempted = False
        return rest + behind

    def was_stored(self, out: PendingEntry) -> bool:
        """Look for an entry whose append was interrupted. Returns True, and stores its position, if found."""
        if out.is_duplicate:
            return True
        if out.entry >= 0:  # the interrupt came after the position was stored
            self._record_stored(out, out.ledger, out.entry, 0)
            return True
        if not out.attempted:
            return False
        after = self._last_position
        position = self._session.find_entry(
            None if after is None else Position(*after), self._name, out.first
        )
        if position is None:
            return False
        if self._durability == "flush":
            out.end_word = self._ledger.tail
        self._record_stored(out, position.ledger_id, position.entry_id, self._ledger.tail)
        return True

    def _record_stored(self, out: PendingEntry, ledger: int, entry: int, end_word: int) -> None:
        if out.entry < 0:
            self._meter.stored(out)
            if out.part is not None:
                out.end_word = 0  # its commit waits for the disk
                out.part.note_stored(ledger, entry, end_word)
        if self.keeper is not None:
            self.keeper.note_stored(out)
        # The entry counts as stored from here on; before, an interrupt leaves its outcome to `was_stored`.
        out.ledger = ledger
        out.entry = entry
        self._last_position = (ledger, entry)


# Callbacks that may be pending before a sender waits for them. The number is large enough that the two
# threads switch only once in thousands of messages, and small enough to bound memory.
CALLBACK_BACKLOG: Final = 8192
_FLUSH_PATIENCE_S: Final = 0.2
"""Seconds for which the callbacks of other topics wait for a process that is flushing this one."""


class Completions:
    """The entries of one producer that are appended and whose callbacks have not run.

    The publisher adds entries in the order of publishing, under its lock; the callback thread finishes
    them in that order. Each counter has one writer; the limits apply to the differences of the counters.
    While another process stays in its flush of the topic, a separate thread waits for the disk, so that the
    callback thread can serve other topics.

    Attributes:
        error: the first failure that no callback received; `Producer.flush` raises it.
        waits_for_disk: whether a message counts as sent only once it is on disk.
        waiters: threads that wait until fewer messages are pending.
    """

    __slots__ = (
        "_apart",
        "_callbacks",
        "_durable",
        "_meter",
        "_session",
        "_stored",
        "_waiting",
        "error",
        "handed",
        "told",
        "waiters",
        "waits_for_disk",
    )

    def __init__(self, session: ProducerSession, meter: ProducerMeter) -> None:
        self.error: BaseException | None = None
        self.waits_for_disk = session.durability == "flush"
        self._session = session
        self._meter = meter
        self._callbacks = session.callbacks
        self.reset()
        session.run_after_all = self.run_after_all  # last: an interrupted one must still detach

    def reset(self) -> None:
        self.handed = self.told = 0  # messages whose callbacks were added, and messages whose callbacks ran
        self._stored = self._durable = 0  # messages appended, and messages on disk
        self._apart: CallbackThread | None = None  # the thread that waits for the disk while that takes long
        self._waiting = 0  # entries of that thread; the callback thread counts them
        self.waiters = WaiterSet()

    @property
    def pending(self) -> int:
        """Messages that are appended and not yet on disk; always 0 if sends do not wait for the disk."""
        return self._stored - self._durable if self.waits_for_disk else 0

    def hand_over(self, out: PendingEntry) -> None:
        """Add an entry that was appended or has failed. Under the publisher's lock."""
        if out.error is not None:
            self._meter.failed(out.count)
            if out.part is not None:
                out.part.fail(out.error)
        callbacks = out.callbacks
        if callbacks is None:
            if out.error is not None and out.part is None:  # of a transaction, its commit tells
                self.note_failure(out.error)
            if not self.waits_for_disk:
                if out.reserved:
                    self.give_back(out)
                return
        else:
            for index, callback in enumerate(callbacks):
                if isinstance(callback, PlainWaiter):
                    callback.pending_entry, callback.index = out, index
                    callbacks[index] = None
            self.handed += out.count
        if out.reserved and not (self.waits_for_disk and out.error is None):
            self.give_back(out)
        self._stored += out.count
        was_awaited = callbacks is not None
        self._callbacks.put(lambda: self._finish(out, was_awaited))

    def hand_over_one(self, callback: SendCallback, ledger: int, entry: int) -> None:
        """Add the callback of one unbatched message that is stored. Under the publisher's lock."""
        self.handed += 1
        self._callbacks.put(lambda: self._tell(callback, ledger, entry))

    def _tell(self, callback: SendCallback, ledger: int, entry: int) -> None:
        try:
            callback(Result.Ok, make(ledger, entry, -1, self._session.partition, 0))
        except BaseException:
            topic = self._session.topic_name
            self._session.log.exception("A send callback failed: %r", callback, topic=topic)
        self.told += 1

    def _finish(self, out: PendingEntry, was_awaited: bool) -> None:
        if self._apart is None:
            if self._is_in_time(out, was_awaited):
                self._end(out, was_awaited)
                return
            self._apart = CallbackThread(self._session.log)
        self._waiting += 1
        self._apart.put(lambda: self._finish_apart(out, was_awaited))

    def _is_in_time(self, out: PendingEntry, was_awaited: bool) -> bool:
        try:
            timing.within(_FLUSH_PATIENCE_S, self._wait_for_disk, out, was_awaited, False)
        except LockTimeout:
            return False
        return True

    def _wait_for_disk(self, out: PendingEntry, was_awaited: bool, is_last: bool) -> None:
        if not out.end_word or out.error is not None:
            return
        try:
            self._session.ledger.wait_durable(out.end_word)
            self._meter.durable(out)
        except Exception as error:  # passed to the senders of the messages
            if isinstance(error, LockTimeout) and not is_last:
                raise
            self._meter.failed(out.count)
            out.error = error
            if not was_awaited:
                self.note_failure(error)

    def _finish_apart(self, out: PendingEntry, was_awaited: bool) -> None:
        self._wait_for_disk(out, was_awaited, True)
        if self._callbacks.is_open:
            self._callbacks.put(lambda: self._end_apart(out, was_awaited))
        else:
            self._end_apart(out, was_awaited)

    def _end_apart(self, out: PendingEntry, was_awaited: bool) -> None:
        self._waiting -= 1
        apart = self._apart
        if not self._waiting and apart is not None:
            self._apart = None
            apart.close()
        self._end(out, was_awaited)

    def _end(self, out: PendingEntry, was_awaited: bool) -> None:
        self._durable += out.count
        self.waiters.wake()
        if out.reserved:
            self.give_back(out)
        if was_awaited:
            out.call_back(self._session.partition, self._session.log)
            self.told += out.count

    def give_back(self, out: PendingEntry) -> None:
        size, out.reserved = out.reserved, 0
        memory = self._session.memory
        if memory is not None:
            memory.give_back(size)

    def fail_now(self, callback: SendCallback, error: BaseException) -> None:
        """Call back for a message that was not accepted. Without a lock, before pending callbacks."""
        out = PendingEntry(None, 1, -1, -1, [callback], False, error)
        self._callbacks.put(lambda: out.call_back(self._session.partition, self._session.log))

    def note_failure(self, error: BaseException) -> None:
        """Keep a failure that no callback received, for the next flush."""
        if self.error is None:
            self.error = error

    def pop_failure(self) -> BaseException | None:
        """Return a failure that no callback received, once."""
        error, self.error = self.error, None
        return error

    def log_dropped(self, count: int, name: str) -> None:
        """Log that messages of a closed producer were not stored."""
        if count:
            self._session.log.warning(
                "%d messages of the producer %s on %s were not stored: it was closed before; flush it first",
                count,
                name,
                self._session.topic_name,
                producer=name,
                topic=self._session.topic_name,
            )

    def wait(self) -> None:
        """Wait until everything added is finished; in the callback thread itself, return at once.

        Raises:
            LockTimeout: the deadline of the call is over; the entries are still finished later.
        """
        stored = self._stored
        is_over = self._callbacks.is_idle or self.wait_for_callbacks()
        if is_over and self.waits_for_disk and self._durable < stored and self.can_wait:
            self.waiters.wait(lambda: self._durable >= stored or timing.left(math.inf) <= 0)
            is_over = self._durable >= stored and self.wait_for_callbacks()
        if not is_over:
            raise LockTimeout(
                f"{self.pending} messages to {self._session.topic_name} are stored, perhaps not on the "
                "disk: another process stays in its flush, or a callback does not return"
            )

    def wait_for_callbacks(self) -> bool:
        remaining_s = timing.left(math.inf)
        return self._callbacks.wait_done(None if remaining_s == math.inf else remaining_s)

    def run_after_all(self, job: Callable[[], object]) -> None:
        """Run a job behind everything added before: here, at once, if nothing is."""
        callbacks = self._callbacks
        if self._apart is not None:
            callbacks.put(lambda: self._run_behind(job))
        elif callbacks.is_idle:
            job()
        else:
            callbacks.run_after_all(lambda: self._run_behind(job))

    def _run_behind(self, job: Callable[[], object]) -> None:
        """Run a job in the callback thread, or here if that thread has no jobs."""
        apart = self._apart
        if apart is None:
            job()
        else:
            apart.put(lambda: self._callbacks.put(job) if self._callbacks.is_open else job())

    @property
    def can_tell(self) -> bool:
        return self._callbacks.is_open

    @property
    def can_wait(self) -> bool:
        """Whether the caller is another thread than the one it would wait for."""
        return not self._callbacks.is_current
