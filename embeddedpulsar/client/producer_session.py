"""What a producer needs of the world around it: its topic, its client, and the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar.client.producer_meter import ProducerMeter
from embeddedpulsar.managed_ledger.position import BEFORE_FIRST, Position
from embeddedpulsar.schema import BytesSchema
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.client_core import ClientCore
    from embeddedpulsar.client.producer_config import ProducerConfig
    from embeddedpulsar.client.publisher import Publisher
    from embeddedpulsar.managed_ledger.managed_ledger import ManagedLedger
    from embeddedpulsar.topic.open_topics import TopicUse
    from embeddedpulsar.topic.producers import ProducerRegistration
    from embeddedpulsar.topic.topic import Topic

_ENTRIES_A_LOOK = 64
_BYTES_A_LOOK = 8 << 20
_LAST_WAIT_S = 1.0


class ProducerSession:
    """One attachment of a producer to its topic.

    Role: the only place where the producer's side of the client touches `Topic`. After a fork `revive` opens
    the topic anew; the registration of the parent stays the parent's.
    """

    def __init__(self, core: ClientCore, config: ProducerConfig) -> None:
        self._core = core
        self._use: TopicUse = core.use_topic(config.topic)
        self._topic: Topic = self._use.topic
        self._registration: ProducerRegistration | None = None
        self.config = config
        self.topic_name = self._topic.name
        self.partition = TopicName.parse(self.topic_name).partition
        self.schema = config.schema
        self.takes_bytes = type(config.schema) is BytesSchema
        self.durability: str = config.durability or core.config.durability
        self.max_message_size: int = core.store.settings.maxMessageSize
        self.monotonic: Callable[[], float] = core.store.clock.monotonic
        self.wall_ms: Callable[[], int] = core.store.clock.wall_ms
        self.callbacks, self.flusher, self.memory = core.callbacks, core.flusher, core.memory
        self.log = core.log
        self.call_later = core.scheduler.call_later
        self.meter = ProducerMeter(self, core.config.stats_interval_s)

    @property
    def ledger(self) -> ManagedLedger:
        """The managed ledger of the topic in this process."""
        return self._topic.ledger

    def attach(self, name: str | None) -> ProducerRegistration:
        """Register with the topic under ``name``, or under one the topic makes.

        Raises:
            ProducerBusy, ProducerFenced, TopicTerminated: see `Topic.attach_producer`.
        """
        try:
            self._registration = self._topic.attach_producer(
                name, access_mode=self.config.access_mode, durability=self.durability
            )
        except BaseException:
            self._use.release()
            raise
        self.meter.start()
        return self._registration

    def check_connected(self) -> None:
        """Make sure that no other producer took the topic.

        Raises:
            ProducerFenced: one did.
        """
        if self._registration is not None:
            self._topic.check_producer(self._registration)

    def detach(self) -> None:
        """Leave the topic, which may be closed once everything is answered for."""
        registration, self._registration = self._registration, None
        self.meter.close()
        try:
            if registration is not None:
                # A client that closes does not wait long: who is not taken out now goes with the lease.
                self._topic.detach_producer(registration, _LAST_WAIT_S if self._core.is_closed else None)
        finally:
            self.callbacks.run_after_all(self._use.release)

    def revive(self) -> None:
        """Open the topic anew in a forked child."""
        self._registration = None
        self.meter.reset()
        self._use = self._core.use_topic(self.topic_name)
        self._topic = self._use.topic

    def find_entry(
        self, after: Position | None, producer_name: str, first_sequence_id: int
    ) -> Position | None:
        """Look for an entry of this producer behind a position."""
        cursor = self.ledger.cursor(after or BEFORE_FIRST, inclusive=False)
        while views := cursor.read(_ENTRIES_A_LOOK, 1 << 30, _BYTES_A_LOOK):
            for view in views:
                if (
                    view.count
                    and view.first_sequence_id == first_sequence_id
                    and view.producer_name == producer_name
                ):
                    return Position(view.ledger_id, view.entry_id)
        return None

    def forget(self, publisher: Publisher) -> None:
        """The producer is closed."""
        self._core.forget_publisher(publisher)

    def abandon(self, publisher: Publisher) -> None:
        """The producer was dropped without being closed. Runs in a finalizer: only notes it."""
        self._core.abandoned.append(publisher)
