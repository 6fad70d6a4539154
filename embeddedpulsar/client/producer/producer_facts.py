"""The queries of a producer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from embeddedpulsar.client.common.value_type import T
from embeddedpulsar.client.producer.producer_meter import BURST
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, ProducerFenced

if TYPE_CHECKING:
    from embeddedpulsar.client.common.statistics import ProducerStats
    from embeddedpulsar.client.producer.producer_session import ProducerSession
    from embeddedpulsar.client.producer.publisher import Publisher


class ProducerFacts(Generic[T]):
    """The methods of `Producer` that return its state."""

    _publisher: Publisher
    _session: ProducerSession

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<Producer {self.producer_name()} on {self.topic()} {state}>"

    def topic(self) -> str:
        """Return the full name of the topic."""
        return self._session.topic_name

    def producer_name(self) -> str:
        """Return the name: the one requested, or ``standalone-<client>-<n>``."""
        return self._publisher.name

    def last_sequence_id(self) -> int:
        """Return the sequence id of the last message stored.

        Before the first message it is ``initial_sequence_id``, or the id stored under the producer's name if
        the topic drops duplicates, or -1. As in ``pulsar-client`` it is the last id stored, not the largest:
        it decreases after a lower explicit id.
        """
        publisher = self._publisher
        stored = publisher.last_sequence_id
        return publisher.initial_sequence_id if stored == publisher.found_sequence_id else stored

    def is_connected(self) -> bool:
        """Return whether the producer may send.

        True until it is closed, except while another producer has fenced it out."""
        return not self._is_closed and self._is_admitted()

    def _is_admitted(self) -> bool:
        try:
            self._session.check_connected()
        except (ProducerFenced, AlreadyClosed):
            return False
        except LockTimeout:
            return True  # the topic cannot be checked now
        return True

    @property
    def _is_closed(self) -> bool:
        return self._publisher.is_closed

    def stats(self) -> ProducerStats:
        """Return the statistics of the producer. Not in ``pulsar-client``.

        The first call also starts measuring the time of the next 32 messages that are sent one by one.
        """
        publisher = self._publisher
        found = publisher.meter.snapshot()
        publisher.sample(BURST)
        return found
