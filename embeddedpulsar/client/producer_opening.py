"""Which kind of producer a topic needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.client.producer import Producer
from embeddedpulsar.client.producer_session import ProducerSession
from embeddedpulsar.client.publisher import Publisher

if TYPE_CHECKING:
    from embeddedpulsar.client.client_core import ClientCore
    from embeddedpulsar.client.producer_config import ProducerConfig


def open_producer(core: ClientCore, config: ProducerConfig) -> Producer[Any]:
    """Attach a producer to a topic, which is made if need be, or to all its partitions.

    Raises:
        InvalidTopicName, TopicNotFound, ProducerBusy, ProducerFenced: see `Client.create_producer`.
    """
    core.check_open()
    partitions = core.store.resolve_partitions(config.topic)
    if partitions:
        # Imported on first use: most topics are plain.
        from embeddedpulsar.client.partitioned_producer import PartitionedProducer

        return PartitionedProducer(core, config, partitions)
    session = ProducerSession(core, config)
    publisher = Publisher(session, config)
    core.add_publisher(publisher)
    return Producer(session, publisher)
