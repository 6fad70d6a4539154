"""Opening of a reader or a table view of one topic, or of its partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.client.common.deletion_retry import despite_deletion
from embeddedpulsar.client.common.topic_schema import admit_all
from embeddedpulsar.client.consumer.consumer_config import ReaderConfig, made_name
from embeddedpulsar.client.consumer.reader import Reader
from embeddedpulsar.client.consumer.reader_core import ReaderCore
from embeddedpulsar.client.consumer.table_view import TableView
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.schema.schema import checked_version
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.schema import Schema

_TABLE_VIEW_QUEUE: Final = 1000


def open_reader(client: ClientContext, config: ReaderConfig) -> Reader[Any]:
    """Make the reader of a topic, or of its partitions."""
    client.begin_operation()
    full = TopicName.parse(config.topic).full
    checked_version(config.schema, (full,), is_producer=False)
    return despite_deletion(lambda: _open_reader(client, config, full))


def open_table_view(
    client: ClientContext, topic: str, subscription_name: str | None, schema: Schema[Any]
) -> TableView[Any]:
    """Make a table view, which has not read anything yet."""
    if not TopicName.parse(topic).is_persistent:
        raise InvalidConfiguration(
            f"{topic}: a table view needs a topic that keeps its messages: persistent://"
        )
    view = TableView(topic, subscription_name, schema, client.log)
    config = ReaderConfig(
        topic=topic,
        start=MessageId.earliest,
        schema=schema,
        listener=view._on_message,
        receiver_queue_size=_TABLE_VIEW_QUEUE,
        name=subscription_name or made_name(),
        start_inclusive=False,
        is_read_compacted=True,
    )
    view._reader = open_reader(client, config)
    return view


def _open_reader(client: ClientContext, config: ReaderConfig, full: str) -> Reader[Any]:
    partitions = client.store.partitions_of(full)
    admit_all(client.store, (full,), config.schema)
    if not partitions:
        return Reader(ReaderCore(client, config), config.chain)
    from embeddedpulsar.client.consumer.topic_group.topic_group import ReaderGroup  # as for consumers

    return Reader(ReaderGroup(client, config, full, partitions), config.chain)
