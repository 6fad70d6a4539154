"""Administration of the schemas of topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.store.schema_compatibility import why_invalid, why_refused
from embeddedpulsar._engine.store.schema_info import SchemaInfo
from embeddedpulsar._engine.store.schema_registry import StoredSchema
from embeddedpulsar.absent_methods import SaysWhatThereIs
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.policy_values import json_form
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.schema.schema import Schema

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.store import Store

_ANY = Schema[Any] | SchemaInfo | StoredSchema | Mapping[str, Any]


class SchemaCompatibility(NamedTuple):
    """Whether a schema could be added to a topic.

    Attributes:
        is_compatibility: whether it could.
        schema_compatibility_strategy: the strategy that says so.
        reason: why not; empty if it could. Not in Pulsar.
    """

    is_compatibility: bool
    schema_compatibility_strategy: str
    reason: str = ""

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


class Schemas(SaysWhatThereIs):
    """Shows, adds and deletes the schemas of topics. `Admin.schemas` returns it.

    Partitions share the schemas of their topic. A schema is given as an object of `embeddedpulsar.schema`, as
    its `SchemaInfo`, or as a dict with the fields ``type``, ``schema`` and ``properties``, as pulsar-admin
    takes it from a file. Thread-safe.

    All methods raise `TopicNotFound` if there is no such topic, `InvalidTopicName` for a text that is not a
    name, `AlreadyClosed` if the Admin is closed, and a `StorageError` if files cannot be used.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store

    def get_schema_info(self, topic: str, version: int | None = None) -> StoredSchema | None:
        """Return a schema of a topic.

        Args:
            topic: name of a topic or partition.
            version: its number; None for the newest.

        Returns:
            None if the topic has no such schema, or if it was deleted.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> from embeddedpulsar.schema import StringSchema
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     producer = client.create_producer("slogans", schema=StringSchema())
            ...     found = admin.schemas().get_schema_info("slogans")
            ...     found.version, found.type
            ...     len(admin.schemas().get_all_schemas("slogans"))
            ...     admin.schemas().get_version_by_schema("slogans", StringSchema())
            (0, <SchemaType.STRING: 1>)
            1
            0
        """
        stored_schemas = self.get_all_schemas(topic)
        if version is None:
            return stored_schemas[-1] if stored_schemas else None
        return next((schema for schema in stored_schemas if schema.version == version), None)

    def get_all_schemas(self, topic: str) -> list[StoredSchema]:
        """Return all schemas of a topic that were not deleted, the oldest first."""
        return list(self._store().schemas.document(topic).current)

    def create_schema(self, topic: str, schema: _ANY) -> int:
        """Add a schema to a topic, also where programs may not (``set_is_allow_auto_update_schema``).

        A topic that does not exist is created, if ``allowAutoTopicCreation`` allows it.

        Args:
            topic: its name.
            schema: see `Schemas`.

        Returns:
            The version: that of the same schema, if the topic has it.

        Raises:
            IncompatibleSchema: it is not compatible with the schemas of the topic, or not valid.
            ValueError: ``schema`` is none, or one of bytes.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.schema import Integer, JsonSchema, Record
            >>> class Reading(Record):
            ...     value = Integer(required=True)
            >>> with Admin("./data") as admin:
            ...     admin.schemas().create_schema("readings", JsonSchema(Reading))
            0
        """
        info = _given(schema)
        with timing.translated:
            # The topic is made if need be, as by a producer with this schema.
            store = self._store()
            store.topics.resolve(topic)
            return store.schemas.upload(topic, info)

    def delete_schema(self, topic: str, force: bool = False) -> int:
        """Delete all schemas of a topic. Messages that were written with them keep their versions, and are
        decoded as before; the next schema gets a higher version.

        Args:
            topic: its name.
            force: forget the definitions, too: consumers decode what was written with them with their own
                schema.

        Returns:
            The version that the deletion took; -1 if the topic had none.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.schema import StringSchema
            >>> with Admin("./data") as admin:
            ...     version = admin.schemas().create_schema("drafts", StringSchema())
            ...     admin.schemas().delete_schema("drafts"), admin.schemas().get_schema_info("drafts")
            (1, None)
        """
        with timing.translated:
            return self._store().schemas.delete(topic, force=force)

    def test_compatibility(self, topic: str, schema: _ANY) -> SchemaCompatibility:
        """Return whether a schema could be added to a topic. Nothing is changed.

        Raises:
            ValueError: ``schema`` is none, or one of bytes.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.schema import StringSchema
            >>> with Admin("./data") as admin:
            ...     _ = admin.schemas().create_schema("logs", StringSchema())
            ...     admin.schemas().test_compatibility("logs", {"type": "INT32", "schema": ""})[:2]
            (False, 'FULL')
        """
        info = _given(schema)
        registry = self._store().schemas
        strategy = registry.strategy(topic)
        document = registry.document(topic)
        # A schema that the topic has already is compatible, whatever the strategy says now.
        reason = why_invalid(info)
        if not reason and document.version_of(info) < 0:
            reason = why_refused(document.infos(), info, strategy)
        return SchemaCompatibility(not reason, strategy.name, reason)

    def get_version_by_schema(self, topic: str, schema: _ANY) -> int:
        """Return the version that a schema has in a topic; -1 if it is none of its schemas.

        Raises:
            ValueError: ``schema`` is none, or one of bytes.
        """
        info = _given(schema)
        return self._store().schemas.document(topic).version_of(info)


def _given(schema: Any) -> SchemaInfo:
    # Four forms: a schema of this package, its description, one that was read from a topic, and the JSON that
    # pulsar-admin takes, whose text is called `schema`, or `data` in what it prints.
    if isinstance(schema, Schema):
        info = schema.schema_info()
    elif isinstance(schema, SchemaInfo):
        info = schema
    elif isinstance(schema, StoredSchema):
        info = schema.info()
    elif isinstance(schema, Mapping):
        kind, text = schema.get("type"), schema.get("schema", schema.get("data", ""))
        if not isinstance(kind, str) or kind not in SchemaType.__members__ or not isinstance(text, str):
            raise ValueError(f'a schema is {{"type": "AVRO", "schema": "..."}}, not {schema}')
        properties = {str(key): str(value) for key, value in dict(schema.get("properties") or {}).items()}
        info = SchemaInfo(SchemaType[kind], str(kind), text, properties=properties)
    else:
        raise ValueError(f"a schema is a Schema, a SchemaInfo or a dict, not {type(schema).__name__}")
    # Bytes and the AUTO types describe no values.
    if info.schema_type().value <= 0:
        raise ValueError(f"a topic has no schema of the type {info.schema_type().name}")
    return info
