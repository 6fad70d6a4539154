"""What a producer says of itself."""

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
    """What `Producer` has of questions."""

    _publisher: Publisher
    _session: ProducerSession

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<Producer {self.producer_name()} on {self.topic()} {state}>"

    def topic(self) -> str:
        """Return the full name of the topic."""
        return self._session.topic_name

    def producer_name(self) -> str:
        """Return the name: the one asked for, or ``standalone-<client>-<n>``."""
        return self._publisher.name

    def last_sequence_id(self) -> int:
        """Return the sequence id of the last message stored.

        Before the first it is ``initial_sequence_id``, or what is stored under the producer's name where
        duplicates are dropped, or -1. As in ``pulsar-client`` it is the id last stored, not the largest:
        after an explicit lower id it falls.
        """
        publisher = self._publisher
        stored = publisher.last_sequence_id
        return publisher.initial_sequence_id if stored == publisher.found_sequence_id else stored

    def is_connected(self) -> bool:
        """Return whether the producer may send: True until it is closed, but for as long as another one has
        fenced it out."""
        return not self._is_closed and self._is_admitted()

    def _is_admitted(self) -> bool:
        try:
            self._session.check_connected()
        except (ProducerFenced, AlreadyClosed):
            return False
        except LockTimeout:
            return True  # as far as is known
        return True

    @property
    def _is_closed(self) -> bool:
        return self._publisher.is_closed

    def stats(self) -> ProducerStats:
        """Return what the producer stored so far. Not in ``pulsar-client``.

        Times are measured from the first call on, too: of the next 32 messages that are sent one by one.
        """
        publisher = self._publisher
        found = publisher.meter.snapshot()
        publisher.sample(BURST)
        return found
