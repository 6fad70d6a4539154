"""The topic of received messages, with the schemas that they were written with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.message import MessageOrigin
from embeddedpulsar.schema.schema import BYTES, Schema, SchemaInfo
from embeddedpulsar.topic.schemas.schema_document import NO_VERSION
from embeddedpulsar.topic_name import TopicName

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
    writers = Writers(store, topic)
    if by_message:  # so that messages can be decoded when the client is closed
        writers.look()
    return MessageOrigin(topic, schema, writers, by_message, TopicName.parse(topic).partition)


class Writers(dict[int, SchemaInfo | None]):
    """The schemas of a topic by version. What a version is never changes, so it is looked up once.

    A version that cannot be looked up raises the error of the store: Avro that is decoded with another
    definition may give wrong values.
    """

    __slots__ = ("_store", "_topic")

    def __init__(self, store: Callable[[], Store], topic: str) -> None:
        self._store: Final = store
        self._topic: Final = topic

    def look(self) -> None:
        """Look all versions up that there are now."""
        for stored in self._store().schemas.document(self._topic).schemas:
            self[stored.version] = stored.info()

    def __missing__(self, version: int) -> SchemaInfo | None:
        if version != NO_VERSION:
            self.look()
        return self.setdefault(version, None)  # deleted by force: it does not come back
