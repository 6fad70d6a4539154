"""Opening of a producer of the class that the topic and the options need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.client.partition_watch import despite_deletion
from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.client.producer.publisher import attach_publisher
from embeddedpulsar.client.topic_schema import registered
from embeddedpulsar.enums import ProducerAccessMode
from embeddedpulsar.schema.schema import BYTES, checked_version
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.client.client_context import ClientContext
    from embeddedpulsar.client.producer.producer_config import ProducerConfig


def open_producer(core: ClientContext, config: ProducerConfig) -> Producer[Any]:
    """Attach a producer to a topic, which is created if necessary, or to all its partitions.

    Raises:
        InvalidTopicName, TopicNotFound, ProducerBusy, ProducerFenced: see `Client.create_producer`.
    """
    core.begin_operation()
    version = checked_version(config.schema, (config.topic,), is_producer=True)
    if version != config.schema_version:
        config = config._replace(schema_version=version)
    if config.access_mode == ProducerAccessMode.WaitForExclusive:
        return _open(core, config)  # a wait for access to a topic ends when the topic is deleted
    return despite_deletion(lambda: _open(core, config))


def _open(core: ClientContext, config: ProducerConfig) -> Producer[Any]:
    if config.chunking and not TopicName.parse(config.topic).is_persistent:
        config = config._replace(chunking=False)  # as in Pulsar: parts may be lost
    chain = config.chain
    if chain is not None:
        chain.bind(core, chain)  # until there is a producer
    partitions = core.store.partitions_of(config.topic)
    if config.schema_version < 0 and config.schema is not BYTES:
        durability = config.durability or core.config.durability
        schema, version = registered(core.store, config.topic, config.schema, durability)
        config = config._replace(schema=schema, schema_version=version)
    if partitions:
        # Imported on first use: most topics are plain, and most producers have no interceptors.
        from embeddedpulsar.client.producer.partitioned_publisher import PartitionedPublisher

        producer: Producer[Any] = Producer(PartitionedPublisher(core, config, partitions))
    else:
        producer = Producer(attach_publisher(core, config))
    if chain is not None:
        from embeddedpulsar.client.producer.interception import Interception

        producer._intercept(Interception(producer._publisher, producer._encoded, chain))
        chain.bind(core, producer)
        chain.begin()
    return producer
