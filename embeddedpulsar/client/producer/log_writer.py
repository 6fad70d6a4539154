"""The last step of a publish: the append of an encoded entry to the log of the topic.

Storing of queued messages in the log of the topic, in order, when the topic's lock is free.

The publish rate of a topic, as one producer keeps it: which entries may be appended now.

`SequenceIds` has the sequence ids of the producer, and those stored under its name in topics with
deduplication.
"""

from __future__ import annotations

import contextlib
from itertools import takewhile

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.log.position import Position
from embeddedpulsar._engine.platform import failpoints, timing
from embeddedpulsar._engine.platform.access import named
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, PulsarException
from embeddedpulsar.policies import TopicHeld
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set
    from typing import Final

    from embeddedpulsar._engine.format.entry import EncodedEntry
    from embeddedpulsar._engine.log.waiter_slots import AppendHold
    from embeddedpulsar._engine.platform.threads import RLock
    from embeddedpulsar._engine.store.policies.resource_groups import RateLimiter
    from embeddedpulsar.client.producer.pending_entry import Chunks, PendingEntry
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
                left = end - SYSTEM_CLOCK.monotonic() if timeout_s else 0.0
                admitted = timing.within(max(left, 0.0), self._reserve, limiter, entries)
            except LockTimeout:
                if timeout_s:
                    raise
                return []
            if admitted or not timeout_s:
                return admitted
            left = end - SYSTEM_CLOCK.monotonic()
            if left <= 0:
                raise LockTimeout(
                    f"the publish rate of {self._session.topic_name} was reached, and there was no room for "
                    f"another message within {timeout_s:g} s; the message was not stored"
                )
            SYSTEM_CLOCK.sleep(min(max(self.due_in_s(), _SHORTEST_S), _LOOK_S, left))
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
            left = until - SYSTEM_CLOCK.monotonic()
            if left <= 0:
                raise LockTimeout(*error.args) from error  # the class of `error` is internal
            session.wait_a_moment(min(left, _HELD_S))

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
            if out.part is None:
                ledger, entry, _, end_word = self._ledger.append_nowait(out.encoded, self, timeout_s)
            else:
                ledger, entry, _, end_word = self._ledger.append_nowait(
                    out.encoded, self, timeout_s, None, out.part.check_open
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
        self._note(out, ledger, entry, end_word)
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
            self._note(out, *place, self._ledger.tail)
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
            if part is None:
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
                self._note(out, ledger, entry, end_word)
            for out in rest:
                out.attempted = False
        return rest + behind

    def was_stored(self, out: PendingEntry) -> bool:
        """Look for an entry whose append was interrupted. Returns True, and stores its position, if found."""
        if out.is_duplicate:
            return True
        if out.entry >= 0:  # the interrupt came after the position was stored
            self._note(out, out.ledger, out.entry, 0)
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
        self._note(out, position.ledger_id, position.entry_id, self._ledger.tail)
        return True

    def _note(self, out: PendingEntry, ledger: int, entry: int, end_word: int) -> None:
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
