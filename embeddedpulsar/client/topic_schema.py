"""The schema of a producer or consumer and its topics: registered before anything is attached."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar._engine.store.policies.admitting import SCHEMA_VALIDATION
from embeddedpulsar._engine.store.topic_list import partition_names
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.exceptions import IncompatibleSchema
from embeddedpulsar.schema.schema import BYTES, CopiedSchema, Schema
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar._engine.store.topic import Topic

_PROCESS: Final = "process"


def registered(
    store: Store, topic: str, schema: Schema[Any], durability: str | None
) -> tuple[Schema[Any], int]:
    """Register the schema of a producer with a topic that exists.

    Returns:
        The schema that encodes, and its version; -1 for none.

    Raises:
        IncompatibleSchema: the topic does not accept it.
        TopicNotFound: the topic was deleted meanwhile.
    """
    info = schema.schema_info()
    kind = info.schema_type()
    # The cases: a producer of bytes that fit the schema of the topic takes that over; a schema without a
    # type, as of bytes, is not registered; one that was copied with messages of another topic, as to a dead
    # letter topic, is taken whatever the compatibility strategy says; any other is added, if it is
    # compatible.
    if kind == SchemaType.AUTO_PUBLISH:
        stored = store.schemas.latest(topic)
        if stored is None:
            return schema, -1
        return schema.for_topic(stored.info()), stored.version  # type: ignore[attr-defined]
    if kind.value <= 0:
        return schema, -1
    # A message that survives a power failure needs the schema that decodes it.
    is_durable = durability not in (None, _PROCESS)
    if isinstance(schema, CopiedSchema):
        return schema, store.schemas.copy(topic, info, durable=is_durable)
    return schema, store.schemas.add(topic, info, durable=is_durable)


def admit_all(store: Store, topics: Iterable[str], schema: Schema[Any]) -> None:
    """Check the schema of a consumer or reader of topics that exist; an idle topic without one gets it.

    Raises:
        IncompatibleSchema: a topic does not accept it.
        TopicNotFound: a topic was deleted meanwhile.
    """
    if schema is BYTES:
        return
    info = schema.schema_info()
    # AUTO_CONSUME and bytes read whatever there is.
    if info.schema_type().value > 0:
        for topic in topics:
            store.schemas.admit(topic, info, partial(_is_idle, store, topic))


def _is_idle(store: Store, topic: str) -> bool:
    """Whether a topic has no messages, producers and consumers."""
    full = TopicName.parse(topic).full
    for name in partition_names(full, store.topics.partitions(full)) or [full]:
        # A topic that was never opened has no files, and asking them would make some.
        if not store.topics.was_used(name):
            continue
        use = store.use_topic(name, create=False, to_look=True)
        try:
            topic_in_use = use.topic
            # A stored message, or an attached program, may use another schema.
            has_entries = any(segment.entries for segment in topic_in_use.ledger.segments())
            if has_entries or topic_in_use.view.producers().connected or topic_in_use.consumers():
                return False
        finally:
            use.release()
    return True


def check_has_schema(store: Store, topic: Topic) -> None:
    """Refuse a producer without a schema, if the topic has one and asks for it.

    Raises:
        IncompatibleSchema: it does.
    """
    if topic.policies.value(SCHEMA_VALIDATION) and store.schemas.latest(topic.name) is not None:
        raise IncompatibleSchema(
            f"{topic.name} has a schema and schema_validation_enforced: create the producer with the schema, "
            "or with AutoProduceBytesSchema"
        )
