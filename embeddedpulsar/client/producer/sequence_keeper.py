"""What a producer of a topic that drops duplicates knows of the sequence ids stored under its name."""

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
    """The topic began or ceased to drop duplicates: the entry at hand has to be looked at again."""


class SequenceKeeper:
    """The highest sequence id stored under the name of one producer.

    Role: nobody else stores anything under a name that is taken, so what was found out when the name was
    taken, and what was stored since, is all there is: no duplicate is looked for in a file. Only when the
    outcome of an append is not known, because of an interrupt or an error, the log is asked.
    Invariants: automatic ids that rise need no check, so the hot path of `send` does not come here; what it
    stored shows in ``publisher.last_sequence_id``. From the first explicit id that is not below the next
    automatic one, everything takes the slow path.
    Used under the publisher's lock.
    """

    def __init__(self, session: ProducerSession, publisher: Pipeline, highest: int) -> None:
        self._session: Final = session
        self._publisher: Final = publisher
        self._highest = highest
        self._attempted = -1  # an id that may be stored without our knowing
        self._settled = publisher.next_sequence_id - 1  # automatic ids up to here are accounted for
        self._floor = session.ledger.tail  # of the log, as far as it is
        self._nap_s = _SHORTEST_NAP_S
        self._noted = highest
        self._noted_at = session.monotonic()
        if publisher.next_sequence_id <= highest:
            publisher.close_hot_path()
        session.call_later(self._nap_s, self._look)

    @property
    def known(self) -> int:
        """The highest sequence id that is stored for certain."""
        return max(self._highest, self._publisher.last_sequence_id)

    def settle(self) -> None:
        """Find out what became of automatic ids that were taken; before new ones are."""
        taken = self._publisher.next_sequence_id - 1
        if taken > max(self.known, self._settled) or self._attempted > self.known:
            self._ask_the_log()
        self._settled = taken

    def _ask_the_log(self) -> None:
        tail = self._session.ledger.tail
        found = self._session.highest_stored(self._publisher.name, tail, self._floor)
        self._highest, self._floor, self._attempted = max(self.known, found), tail, -1

    def is_duplicate(self, out: PendingEntry) -> bool:
        """Whether all messages of an entry are stored already. If not, it is about to be appended.

        Under the topic's lock, too.
        """
        if self._attempted > self.known:
            self._ask_the_log()
        if out.highest <= self.known:
            if self._session.durability == "flush":
                out.end_word = self._session.ledger.tail  # the one stored before may not be on the disk yet
            out.is_duplicate = True
            publisher = self._publisher
            publisher.initial_sequence_id = publisher.found_sequence_id  # something was answered by now
            return True
        if out.encoded is None or out.encoded.count:
            self._attempted = out.highest
        return False

    def note_stored(self, out: PendingEntry) -> None:
        """An entry is in the log."""
        if out.encoded is None or out.encoded.count:  # not a part of a message that others follow
            self._highest = max(self.known, out.highest)
            self._attempted = -1
        if out.highest >= self._publisher.next_sequence_id:
            self._publisher.close_hot_path()

    # -- keeping the topic informed ----------------------------------------------------------------

    def final(self) -> int | None:
        """The highest id stored, for good: the producer leaves. None if that cannot be found out."""
        try:
            self.settle()
        except (PulsarException, OSError):
            return None
        return self.known

    def _look(self) -> None:
        """Now and then, in the timer thread: whoever takes the name after a kill reads from there."""
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
                return  # busy with an append that waits; next time
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
