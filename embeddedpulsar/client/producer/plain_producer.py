"""The producer of one topic, or of one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.client.producer.producer_session import ProducerSession
from embeddedpulsar.client.producer.publisher import Publisher

if TYPE_CHECKING:
    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.producer.producer_config import ProducerConfig


def attach_producer(
    core: ClientContext,
    session: ProducerSession,
    config: ProducerConfig,
    kind: type[Producer[Any]] = Producer,
) -> Producer[Any]:
    """Attach a producer of class ``kind`` to one topic. After a Ctrl-C, nothing stays attached.

    Raises:
        ProducerBusy, ProducerFenced, TopicTerminated: see `Topic.attach_producer`.
        AlreadyClosed: the client was closed meanwhile.
    """
    publisher = None
    try:
        publisher = Publisher(session, config)
        core.add_publisher(publisher)
        core.check_open()  # a `close` of the client meanwhile may have missed this producer
        producer = kind(session, publisher)
    except BaseException:
        if publisher is not None:
            core.forget_publisher(publisher)
        session.detach()
        raise
    core.log.info("Created producer %s on %s", publisher.name, session.topic_name)
    return producer
