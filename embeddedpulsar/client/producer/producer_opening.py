"""Opening of a producer of the class that the topic and the options need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.client.common.deletion_retry import despite_deletion
from embeddedpulsar.client.producer.plain_producer import attach_producer
from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.client.producer.producer_session import ProducerSession
from embeddedpulsar.enums import ProducerAccessMode

if TYPE_CHECKING:
    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.producer.producer_config import ProducerConfig


def open_producer(core: ClientContext, config: ProducerConfig) -> Producer[Any]:
    """Attach a producer to a topic, which is created if necessary, or to all its partitions.

    Raises:
        InvalidTopicName, TopicNotFound, ProducerBusy, ProducerFenced: see `Client.create_producer`.
    """
    core.begin_operation()
    if config.access_mode == ProducerAccessMode.WaitForExclusive:
        return _open(core, config)  # a wait for access to a topic ends when the topic is deleted
    return despite_deletion(lambda: _open(core, config))


def _open(core: ClientContext, config: ProducerConfig) -> Producer[Any]:
    partitions = core.store.resolve_partitions(config.topic)
    # Imported on first use: most topics are plain, and most producers have no interceptors.
    if partitions:
        if config.chain is not None:
            from embeddedpulsar.client.producer.intercepting_producer import InterceptingPartitionedProducer

            return InterceptingPartitionedProducer(core, config, partitions)
        from embeddedpulsar.client.producer.partitioned.partitioned_producer import PartitionedProducer

        return PartitionedProducer(core, config, partitions)
    kind: type[Producer[Any]] = Producer
    if config.chain is not None:
        from embeddedpulsar.client.producer.intercepting_producer import InterceptingProducer as kind
    return attach_producer(core, ProducerSession(core, config), config, kind)
