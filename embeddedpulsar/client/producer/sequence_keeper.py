"""The sequence ids stored under the name of a producer, for topics with deduplication."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, PulsarException

if TYPE_CHECKING:
    from embeddedpulsar.client.producer.pending_entry import PendingEntry
    from embeddedpulsar.client.producer.pipeline import Pipeline
    from embeddedpulsar.client.producer.producer_session import ProducerSession

_SHORTEST_NAP_S: Final = 1.0
_LONGEST_NAP_S: Final = 16.0
_PATIENCE_S: Final = 1.0


class DeduplicationSwitched(Exception):
    """Deduplication of the topic was switched on or off: the current entry must be checked again."""


class SequenceKeeper:
    """The highest sequence id stored under the name of one producer.

    Role: only one producer at a time stores under a name. So the highest id found when the name was taken,
    and the ids stored since, are complete, and duplicates are detected without reading a file. The log is
    read only if the outcome of an append is unknown, because of an interrupt or an error.
    Invariants: automatic ids that increase need no check, so the hot path of `send` does not call this class;
    ``publisher.last_sequence_id`` shows what it stored. From the first explicit id that is not below the next
    automatic one, all messages take the slow path.
    Used under the publisher's lock.
    """

    def __init__(self, session: ProducerSession, publisher: Pipeline, highest: int) -> None:
        self._session: Final = session
        self._publisher: Final = publisher
        self._highest = highest
        self._attempted = -1  # an id whose append has an unknown outcome
        self._settled = publisher.next_sequence_id - 1  # the outcome of automatic ids up to here is known
        self._floor = session.ledger.tail  # the log up to here is known
        self._nap_s = _SHORTEST_NAP_S
        self._noted = highest
        self._noted_at = session.monotonic()
        if publisher.next_sequence_id <= highest:
            publisher.close_hot_path()
        session.call_later(self._nap_s, self._look)

    @property
    def known(self) -> int:
        """The highest sequence id that is certainly stored."""
        return max(self._highest, self._publisher.last_sequence_id)

    def settle(self) -> None:
        """Determine the outcome of automatic ids in use, before new ids are assigned."""
        taken = self._publisher.next_sequence_id - 1
        if taken > max(self.known, self._settled) or self._attempted > self.known:
            self._ask_the_log()
        self._settled = taken

    def _ask_the_log(self) -> None:
        tail = self._session.ledger.tail
        found = self._session.highest_stored(self._publisher.name, tail, self._floor)
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
            publisher = self._publisher
            publisher.initial_sequence_id = publisher.found_sequence_id  # the application has a result now
            return True
        if out.encoded is None or out.encoded.count:
            self._attempted = out.highest
        return False

    def note_stored(self, out: PendingEntry) -> None:
        """An entry is in the log."""
        if out.encoded is None or out.encoded.count:  # not a chunk before the last one
            self._highest = max(self.known, out.highest)
            self._attempted = -1
        if out.highest >= self._publisher.next_sequence_id:
            self._publisher.close_hot_path()

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
        publisher, settings = self._publisher, self._session.settings
        if publisher.is_closed or publisher.keeper is not self:
            return
        stored = publisher.last_sequence_id - self._noted
        waited_s = self._session.monotonic() - self._noted_at
        is_due = waited_s >= settings.brokerDeduplicationSnapshotIntervalSeconds
        self._nap_s = _SHORTEST_NAP_S if stored else min(2 * self._nap_s, _LONGEST_NAP_S)
        try:
            if is_due or stored >= settings.brokerDeduplicationEntriesInterval:
                self._tell_topic()
        finally:
            self._session.call_later(self._nap_s, self._look)

    def _tell_topic(self) -> None:
        lock = self._publisher.lock
        try:
            if not lock.acquire(True, _PATIENCE_S):
                return  # the lock is in use; the timer tries again
            if self._publisher.is_closed or self._publisher.keeper is not self:
                return
            self.settle()
            self._session.remember(self.known)
            self._noted, self._noted_at = self.known, self._session.monotonic()
        except (PulsarException, OSError) as error:
            if not isinstance(error, (AlreadyClosed, LockTimeout)):
                self._session.log.warning(
                    "%s: what was stored could not be noted, and will be later: %s",
                    self._publisher.name,
                    error,
                )
        finally:
            lock.release()
