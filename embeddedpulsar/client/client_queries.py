"""The methods of `Client` that open nothing."""

from __future__ import annotations

from typing import Any

from embeddedpulsar.client.client_lifetime import ClientLifetime
from embeddedpulsar.client.common.arguments import check_type, check_type_or_none, refuse_unbuilt
from embeddedpulsar.client.common.network_options import ServiceInfo
from embeddedpulsar.schema import BytesSchema, Schema
from embeddedpulsar.topic.catalog.topic_list import partition_names
from embeddedpulsar.topic_name import TopicName

_BYTES: Schema[Any] = BytesSchema()


class ClientQueries(ClientLifetime):
    """The queries of `Client`."""

    def create_table_view(
        self, topic: str, subscription_name: str | None = None, schema: Schema[Any] = _BYTES
    ) -> Any:
        """Not built yet: raises NotImplementedError. Fill a dict from a `Reader` instead."""
        check_type(str, topic, "topic")
        check_type_or_none(str, subscription_name, "subscription_name")
        check_type(Schema, schema, "schema")
        return refuse_unbuilt(True, "create_table_view()", "table views", "fill a dict from a Reader")

    def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the full names of the partitions of a topic; of a topic without partitions, its own name.

        The call creates nothing.

        Raises:
            InvalidTopicName: the text is not a topic name.
            TopicNotFound: there is no such namespace, or the topic does not have that partition.
            AlreadyClosed: the client is closed.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     client.get_topic_partitions("orders")
            ['persistent://public/default/orders']
        """
        check_type(str, topic, "topic")
        self._core.begin_operation()
        full = TopicName.parse(topic).full
        return partition_names(full, self._core.store.partitions_of_possible(full)) or [full]

    def get_service_info(self) -> ServiceInfo:
        """Return the URL of the store."""
        return ServiceInfo(self._core.config.url.text)
