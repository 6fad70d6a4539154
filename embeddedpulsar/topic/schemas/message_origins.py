"""The topic of received messages, with the schemas that they were written with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.exceptions import PulsarException
from embeddedpulsar.message import MessageOrigin
from embeddedpulsar.schema.schema import BYTES, Schema, SchemaInfo
from embeddedpulsar.topic.schemas.schema_document import NO_VERSION

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
    by_message = type(schema).decode_message is not Schema.decode_message
    return MessageOrigin(topic, schema, Writers(store, topic), by_message)


class Writers(dict[int, SchemaInfo | None]):
    """The schemas of a topic by version. What a version is never changes, so it is looked up once."""

    __slots__ = ("_store", "_topic")

    def __init__(self, store: Callable[[], Store], topic: str) -> None:
        super().__init__({NO_VERSION: None})
        self._store: Final = store
        self._topic: Final = topic

    def __missing__(self, version: int) -> SchemaInfo | None:
        try:
            stored = self._store().schemas.written(self._topic, version)
        except PulsarException:  # the client is closed, or the topic deleted; the message stays readable
            return None
        if stored is None:
            return None
        info = self[version] = stored.info()
        return info
