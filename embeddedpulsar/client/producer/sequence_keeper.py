"""The sequence ids of a producer, and those stored under its name in topics with deduplication."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, PulsarException

if TYPE_CHECKING:
    from embeddedpulsar._engine.platform.threads import RLock
    from embeddedpulsar.client.producer.pending_entry import PendingEntry
    from embeddedpulsar.client.producer.producer_session import ProducerSession
    from embeddedpulsar.client.producer.send_state import SendState

_SHORTEST_NAP_S: Final = 1.0
_LONGEST_NAP_S: Final = 16.0
_PATIENCE_S: Final = 1.0


class DeduplicationSwitched(Exception):
    """Deduplication of the topic was switched on or off: the current entry must be checked again."""


class SequenceIds:
    """The counters of one producer, used under its lock.

    Attributes:
        following: the next automatic id.
        last: id of the last message stored.
        found: the value of `last` when the producer was attached.
        initial: what the application sees as the last id while `last` has that value; usually the same,
            unless it set another.
    """

    __slots__ = ("following", "found", "initial", "last")

    def begin(self, found: int, initial: int | None) -> None:
        """Continue after the last stored id, or after one that the application set."""
        self.last = self.found = found
        self.initial = found if initial is None else initial
        self.following = self.initial + 1

    @property
    def shown(self) -> int:
        return self.initial if self.last == self.found else self.last


class Owner(Protocol):
    """What the keeper needs of the part of a producer that stores messages."""

    lock: RLock
    ids: SequenceIds
    state: SendState

    @property
    def keeper(self) -> SequenceKeeper | None: ...


class SequenceKeeper:
    """The highest sequence id stored under the name of one producer.

    Role: only one producer at a time stores under a name. So the highest id found when the name was taken,
    and the ids stored since, are complete, and duplicates are detected without reading a file. The log is
    read only if the outcome of an append is unknown, because of an interrupt or an error.
    Invariants: automatic ids that increase need no check, so the hot path of `send` does not call this class;
    `SequenceIds.last` shows what it stored. From the first explicit id that is not below the next automatic
    one, all messages take the slow path.
    Used under the producer's lock.
    """

    def __init__(self, session: ProducerSession, owner: Owner, name: str, highest: int) -> None:
        self._session: Final = session
        self._owner: Final = owner
        self._ids: Final = owner.ids
        self._name: Final = name
        self._highest = highest
        self._attempted = -1  # an id whose append has an unknown outcome
        self._settled = owner.ids.following - 1  # the outcome of automatic ids up to here is known
        self._floor = session.ledger.tail  # the log up to here is known
        self._nap_s = _SHORTEST_NAP_S
        self._noted = highest
        self._noted_at = session.monotonic()
        if owner.ids.following <= highest:
            owner.state.narrow(batch=False)
        session.call_later(self._nap_s, self._look)

    @property
    def known(self) -> int:
        """The highest sequence id that is certainly stored."""
        return max(self._highest, self._ids.last)

    def settle(self) -> None:
        """Determine the outcome of automatic ids in use, before new ids are assigned."""
        taken = self._ids.following - 1
        if taken > max(self.known, self._settled) or self._attempted > self.known:
            self._ask_the_log()
        self._settled = taken

    def _ask_the_log(self) -> None:
        tail = self._session.ledger.tail
        found = self._session.highest_stored(self._name, tail, self._floor)
        self._highest, self._floor, self._attempted = max(self.known, found), tail, -1

    def is_duplicate(self, out: PendingEntry) -> bool:
        """Return whether all messages of an entry are stored already. If not, it is about to be appended.

        Called under the topic's lock, too.
        """
        if self._attempted > self.known:
            self._ask_the_log()
        if out.highest <= self.known:
            if self._session.durability == "flush":
                out.end_word = self._session.ledger.tail  # the stored entry may not be on disk yet
            out.is_duplicate = True
            self._ids.initial = self._ids.found  # the application has a result now
            return True
        if out.encoded is None or out.encoded.count:
            self._attempted = out.highest
        return False

    def note_stored(self, out: PendingEntry) -> None:
        if out.encoded is None or out.encoded.count:  # not a chunk before the last one
            self._highest = max(self.known, out.highest)
            self._attempted = -1
        if out.highest >= self._ids.following:
            self._owner.state.narrow(batch=False)

    # -- keeping the topic informed ----------------------------------------------------------------

    def final(self) -> int | None:
        """Return the highest id stored, when the producer detaches; None if it cannot be determined."""
        try:
            self.settle()
        except (PulsarException, OSError):
            return None
        return self.known

    def _look(self) -> None:
        """Record the highest id at times, in the timer thread: the next producer of the name after a kill
        searches the log only from there."""
        settings = self._session.settings
        if not self._is_in_use:
            return
        stored = self._ids.last - self._noted
        waited_s = self._session.monotonic() - self._noted_at
        is_due = waited_s >= settings.brokerDeduplicationSnapshotIntervalSeconds
        self._nap_s = _SHORTEST_NAP_S if stored else min(2 * self._nap_s, _LONGEST_NAP_S)
        try:
            if is_due or stored >= settings.brokerDeduplicationEntriesInterval:
                self._tell_topic()
        finally:
            self._session.call_later(self._nap_s, self._look)

    @property
    def _is_in_use(self) -> bool:
        return not self._owner.state.is_closed and self._owner.keeper is self

    def _tell_topic(self) -> None:
        lock = self._owner.lock
        try:
            if not lock.acquire(True, _PATIENCE_S):
                return  # the lock is in use; the timer tries again
            if not self._is_in_use:
                return
            self.settle()
            self._session.remember(self.known)
            self._noted, self._noted_at = self.known, self._session.monotonic()
        except (PulsarException, OSError) as error:
            if not isinstance(error, (AlreadyClosed, LockTimeout)):
                self._session.log.warning(
                    "%s: what was stored could not be noted, and will be later: %s",
                    self._name,
                    error,
                )
        finally:
            lock.release()
