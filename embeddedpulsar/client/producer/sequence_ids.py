"""The sequence ids of a producer, and those stored under its name in topics with deduplication."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, PulsarException

if TYPE_CHECKING:
    from embeddedpulsar._engine.platform.threads import RLock
    from embeddedpulsar.client.producer.pending_entry import PendingEntry
    from embeddedpulsar.client.producer.producer_session import ProducerSession

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
