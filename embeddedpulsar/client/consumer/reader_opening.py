"""Opening of a reader of the class that the topic and the options need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.client.common.deletion_retry import despite_deletion
from embeddedpulsar.client.consumer.reader import Reader
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.consumer.consumer_config import ReaderConfig


def open_reader(core: ClientContext, config: ReaderConfig) -> Reader[Any]:
    """Make the reader of a topic, or of its partitions."""
    core.begin_operation()
    full = TopicName.parse(config.topic).full
    return despite_deletion(lambda: _open(core, config, full))


def _open(core: ClientContext, config: ReaderConfig, full: str) -> Reader[Any]:
    partitions = core.store.resolve_partitions(full)
    # Imported on first use: most readers have one topic, and no interceptors.
    if not partitions:
        kind: type[Reader[Any]] = Reader
        if config.chain is not None:
            from embeddedpulsar.client.consumer.intercepting_reader import InterceptingReader as kind
        return kind(core, config)
    if config.chain is not None:
        from embeddedpulsar.client.consumer.intercepting_reader import InterceptingMultiTopicsReader

        return InterceptingMultiTopicsReader(core, config, full, partitions)
    from embeddedpulsar.client.consumer.topic_group.multi_topics_reader import MultiTopicsReader

    return MultiTopicsReader(core, config, full, partitions)
