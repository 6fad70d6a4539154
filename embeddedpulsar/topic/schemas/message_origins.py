"""The topic of received messages, with the schemas that they were written with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.exceptions import PulsarException
from embeddedpulsar.message import MessageOrigin
from embeddedpulsar.schema.schema import BYTES, Schema, SchemaInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.topic.store import Store


def origin_of(store: Callable[[], Store], topic: str, schema: Schema[Any] = BYTES) -> MessageOrigin:
    """What the messages share that are read from a topic.

    Args:
        store: of the topic.
        topic: full name.
        schema: decodes the messages.
    """
    found: dict[int, SchemaInfo] = {}

    def writer(version: int) -> SchemaInfo | None:
        """The schema of a version. It never changes, so it is looked up once."""
        info = found.get(version)
        if info is None:
            try:
                stored = store().schemas.written(topic, version)
            except PulsarException:  # the client is closed, or the topic deleted; the message stays readable
                return None
            if stored is None:
                return None
            info = found[version] = stored.info()
        return info

    return MessageOrigin(topic, schema, writer, type(schema).decode_message is not Schema.decode_message)
