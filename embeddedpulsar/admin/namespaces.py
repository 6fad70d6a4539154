"""Administration of namespaces.

Administration of the schemas of topics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.store.policies import admitting
from embeddedpulsar._engine.store.schema_compatibility import why_invalid, why_refused
from embeddedpulsar._engine.store.schema_info import SchemaInfo
from embeddedpulsar._engine.store.schema_registry import StoredSchema
from embeddedpulsar._engine.store.store import is_namespace
from embeddedpulsar._engine.store.topic_access import SaysWhatThereIs
from embeddedpulsar.admin.policies import Policies
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.exceptions import InvalidTopicName, NotAllowedError, TopicNotFound
from embeddedpulsar.policy_values import (
    AutoTopicCreationOverride,
    DelayedDeliveryPolicies,
    json_form,
)
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.schema.schema import Schema
from embeddedpulsar.topic_name import NON_PERSISTENT, PERSISTENT, without_system_topics

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.store import Store


_DOMAINS: Final = {"PERSISTENT": f"{PERSISTENT}:", "NON_PERSISTENT": f"{NON_PERSISTENT}:", "ALL": ""}


class Namespaces(Policies):
    """Creates, lists and deletes namespaces, and sets policies for their topics. `Admin.namespaces` returns
    it.

    Names are ``tenant/namespace``. A new store has ``public/default`` and ``public/functions``. See
    `Policies` for the errors of all methods.
    """

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace, and its tenant if necessary.

        Args:
            namespace: ``tenant/namespace``.

        Raises:
            NotAllowedError: it exists already.
            InvalidTopicName: the text is not a namespace name.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.namespaces().create_namespace("acme/sales")
            ...     admin.namespaces().get_namespaces("acme")
            ['acme/sales']
        """
        with timing.translated:
            store = self._store()
            if not store.topics.namespaces.create(namespace):
                raise NotAllowedError(f"there is a namespace {namespace} in {store.root} already")

    def delete_namespace(self, namespace: str, force: bool = False) -> None:
        """Delete a namespace, with its policies. On return the deletion survives a power failure.

        Its tenant stays. A namespace that is created later under the same name begins without policies.

        Args:
            namespace: ``tenant/namespace``.
            force: delete its topics first, even if producers and consumers are attached; see `Topics.delete`.
                If the process is killed in between, some topics are deleted, and the call can be made again.

        Raises:
            NotAllowedError: it has topics, and ``force`` is False; or it is ``pulsar/system``.
            TopicNotFound: there is no such namespace.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.namespaces().create_namespace("acme/trial")
            ...     admin.topics().create_non_partitioned_topic("acme/trial/orders")
            ...     admin.namespaces().delete_namespace("acme/trial", force=True)
            ...     "acme/trial" in admin.namespaces().get_namespaces("acme")
            False
        """
        with timing.translated:
            store = self._store()
            store.topics.namespaces.check(self._owner(namespace))
            # Without force, `delete` refuses a namespace that has topics. A kill while topics are deleted
            # leaves the namespace with the rest of them.
            if force:
                delete_topics(store, namespace)
            store.topics.namespaces.delete(namespace)

    def get_topics(self, namespace: str, mode: str = "PERSISTENT") -> list[str]:
        """Return the full names of the topics of a namespace, sorted; see `Topics.get_list`.

        Args:
            namespace: ``tenant/namespace``.
            mode: ``PERSISTENT``, ``NON_PERSISTENT`` or ``ALL``.

        Raises:
            TopicNotFound: there is no such namespace.
            ValueError: another mode.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.namespaces().create_namespace("acme/shop")
            ...     admin.topics().create_non_partitioned_topic("acme/shop/orders")
            ...     admin.namespaces().get_topics("acme/shop")
            ['persistent://acme/shop/orders']
        """
        if mode not in _DOMAINS:
            raise ValueError(f"mode is {', '.join(_DOMAINS)}, not {mode!r}")
        store = self._store()
        store.topics.namespaces.check(self._owner(namespace))
        names = without_system_topics(store.topics.names(namespace))
        return [name for name in names if name.startswith(_DOMAINS[mode])]

    def get_namespaces(self, tenant: str) -> list[str]:
        """Return the namespaces of a tenant, the built-in ones first; empty if there is no such tenant."""
        return self._store().topics.namespaces.names(tenant)

    def _owner(self, name: str) -> str:
        if not is_namespace(name):
            raise InvalidTopicName(f"{name!r} is no namespace; write tenant/namespace")
        return name

    # generated: methods of policies, by `make policies` from the rows in topic/policies

    def set_namespace_resource_group(self, name: str, value: str) -> None:
        """Set the resource group of the topics of the namespace, by its name; see `ResourceGroups`. Open
        topics of all processes follow within 50 ms.

        Args:
            name: of the namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.policy_values import ResourceGroup
            >>> with Admin("./data") as admin:
            ...     admin.resource_groups().create_resource_group("batch-jobs", ResourceGroup())
            ...     admin.namespaces().set_namespace_resource_group("public/default", "batch-jobs")
            ...     admin.namespaces().get_namespace_resource_group("public/default") == "batch-jobs"
            ...     admin.namespaces().remove_namespace_resource_group("public/default")
            True
        """
        self._set(name, admitting.IN_GROUP, value)

    def get_namespace_resource_group(self, name: str, applied: bool = False) -> str | None:
        """Return the value that is set for this namespace; None if none is set. With ``applied``, the value
        that holds."""
        return self._get(name, admitting.IN_GROUP, applied)

    def remove_namespace_resource_group(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.IN_GROUP, None)

    def set_max_producers_per_topic(self, name: str, most: int) -> None:
        """Set the largest number of producers of each topic. What is there stays when the limit is lowered.

        Args:
            name: of the namespace.
            most: the largest number, beyond which `ProducerBusy` is raised; 0 for no limit, whatever other
                levels say.

        Raises:
            InvalidConfiguration: ``most`` is no number from 0 on.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.namespaces().set_max_producers_per_topic("public/default", 1000)
            ...     admin.namespaces().get_max_producers_per_topic("public/default") == 1000
            ...     admin.namespaces().remove_max_producers_per_topic("public/default")
            True
        """
        self._set(name, admitting.MAX_PRODUCERS, most)

    def get_max_producers_per_topic(self, name: str) -> int | None:
        """Return the largest number of producers of each topic that is set for this name; None if none is
        set."""
        return self._get(name, admitting.MAX_PRODUCERS)

    def remove_max_producers_per_topic(self, name: str) -> None:
        """Unset the limit, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.MAX_PRODUCERS, None)

    def set_max_consumers_per_topic(self, name: str, most: int) -> None:
        """Set the largest number of consumers of each topic. What is there stays when the limit is lowered.

        Args:
            name: of the namespace.
            most: the largest number, beyond which `ConsumerBusy` is raised; 0 for no limit, whatever other
                levels say.

        Raises:
            InvalidConfiguration: ``most`` is no number from 0 on.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.namespaces().set_max_consumers_per_topic("public/default", 1000)
            ...     admin.namespaces().get_max_consumers_per_topic("public/default") == 1000
            ...     admin.namespaces().remove_max_consumers_per_topic("public/default")
            True
        """
        self._set(name, admitting.MAX_CONSUMERS, most)

    def get_max_consumers_per_topic(self, name: str) -> int | None:
        """Return the largest number of consumers of each topic that is set for this name; None if none is
        set."""
        return self._get(name, admitting.MAX_CONSUMERS)

    def remove_max_consumers_per_topic(self, name: str) -> None:
        """Unset the limit, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.MAX_CONSUMERS, None)

    def set_max_topics_per_namespace(self, name: str, most: int) -> None:
        """Set the largest number of topics of the namespace, each partition counted. What is there stays when
        the limit is lowered.

        Args:
            name: of the namespace.
            most: the largest number, beyond which `NotAllowedError` is raised; 0 for no limit, whatever other
                levels say.

        Raises:
            InvalidConfiguration: ``most`` is no number from 0 on.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.namespaces().set_max_topics_per_namespace("public/default", 1000)
            ...     admin.namespaces().get_max_topics_per_namespace("public/default") == 1000
            ...     admin.namespaces().remove_max_topics_per_namespace("public/default")
            True
        """
        self._set(name, admitting.MAX_TOPICS, most)

    def get_max_topics_per_namespace(self, name: str) -> int | None:
        """Return the largest number of topics of the namespace, each partition counted that is set for this
        name; None if none is set."""
        return self._get(name, admitting.MAX_TOPICS)

    def remove_max_topics_per_namespace(self, name: str) -> None:
        """Unset the limit, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.MAX_TOPICS, None)

    def set_delayed_delivery_messages(self, name: str, value: DelayedDeliveryPolicies) -> None:
        """Set whether delayed messages wait, also those that wait now, and how early they may be. Open topics
        of all processes follow within 50 ms.

        Args:
            name: of the namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.policy_values import DelayedDeliveryPolicies
            >>> with Admin("./data") as admin:
            ...     name, value = "public/default", DelayedDeliveryPolicies(False)
            ...     admin.namespaces().set_delayed_delivery_messages(name, value)
            ...     admin.namespaces().get_delayed_delivery_messages(name) == value
            ...     admin.namespaces().remove_delayed_delivery_messages(name)
            True
        """
        self._set(name, admitting.DELAYED_DELIVERY, value)

    def get_delayed_delivery_messages(
        self, name: str, applied: bool = False
    ) -> DelayedDeliveryPolicies | None:
        """Return the value that is set for this namespace; None if none is set. With ``applied``, the value
        that holds."""
        return self._get(name, admitting.DELAYED_DELIVERY, applied)

    def remove_delayed_delivery_messages(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.DELAYED_DELIVERY, None)

    def set_max_unacked_messages_per_consumer(self, name: str, value: int) -> None:
        """Set how many messages a consumer of a Shared or Key_Shared subscription may hold unacknowledged, 0
        for any number. Open topics of all processes follow within 50 ms.

        Args:
            name: of the namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.namespaces().set_max_unacked_messages_per_consumer("public/default", 1000)
            ...     admin.namespaces().get_max_unacked_messages_per_consumer("public/default") == 1000
            ...     admin.namespaces().remove_max_unacked_messages_per_consumer("public/default")
            True
        """
        self._set(name, admitting.MAX_UNACKED_PER_CONSUMER, value)

    def get_max_unacked_messages_per_consumer(self, name: str, applied: bool = False) -> int | None:
        """Return the value that is set for this namespace; None if none is set. With ``applied``, the value
        that holds."""
        return self._get(name, admitting.MAX_UNACKED_PER_CONSUMER, applied)

    def remove_max_unacked_messages_per_consumer(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.MAX_UNACKED_PER_CONSUMER, None)

    def set_max_unacked_messages_per_subscription(self, name: str, value: int) -> None:
        """Set how many messages the consumers of a Shared or Key_Shared subscription may hold unacknowledged
        together, 0 for any number. Open topics of all processes follow within 50 ms.

        Args:
            name: of the namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.namespaces().set_max_unacked_messages_per_subscription("public/default", 1000)
            ...     admin.namespaces().get_max_unacked_messages_per_subscription("public/default") == 1000
            ...     admin.namespaces().remove_max_unacked_messages_per_subscription("public/default")
            True
        """
        self._set(name, admitting.MAX_UNACKED_PER_SUBSCRIPTION, value)

    def get_max_unacked_messages_per_subscription(self, name: str, applied: bool = False) -> int | None:
        """Return the value that is set for this namespace; None if none is set. With ``applied``, the value
        that holds."""
        return self._get(name, admitting.MAX_UNACKED_PER_SUBSCRIPTION, applied)

    def remove_max_unacked_messages_per_subscription(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.MAX_UNACKED_PER_SUBSCRIPTION, None)

    def set_auto_topic_creation(self, name: str, value: AutoTopicCreationOverride) -> None:
        """Set whether topics of the namespace are created when they are first used, and of which kind. Open
        topics of all processes follow within 50 ms.

        Args:
            name: of the namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.policy_values import AutoTopicCreationOverride
            >>> with Admin("./data") as admin:
            ...     name, value = "public/default", AutoTopicCreationOverride(True, "partitioned", 4)
            ...     admin.namespaces().set_auto_topic_creation(name, value)
            ...     admin.namespaces().get_auto_topic_creation(name) == value
            ...     admin.namespaces().remove_auto_topic_creation(name)
            True
        """
        self._set(name, admitting.AUTO_TOPIC_CREATION, value)

    def get_auto_topic_creation(self, name: str, applied: bool = False) -> AutoTopicCreationOverride | None:
        """Return the value that is set for this namespace; None if none is set. With ``applied``, the value
        that holds."""
        return self._get(name, admitting.AUTO_TOPIC_CREATION, applied)

    def remove_auto_topic_creation(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.AUTO_TOPIC_CREATION, None)

    def set_encryption_required_status(self, name: str, value: bool) -> None:
        """Set whether new producers of the namespace have to encrypt; others are refused with
        `BrokerMetadataError`. Open topics of all processes follow within 50 ms.

        Args:
            name: of the namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.namespaces().set_encryption_required_status("public/default", True)
            ...     admin.namespaces().get_encryption_required_status("public/default") == True
            ...     admin.namespaces().remove_encryption_required_status("public/default")
            True
        """
        self._set(name, admitting.ENCRYPTION_REQUIRED, value)

    def get_encryption_required_status(self, name: str, applied: bool = False) -> bool | None:
        """Return the value that is set for this namespace; None if none is set. With ``applied``, the value
        that holds."""
        return self._get(name, admitting.ENCRYPTION_REQUIRED, applied)

    def remove_encryption_required_status(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.ENCRYPTION_REQUIRED, None)

    def set_is_allow_auto_update_schema(self, name: str, value: bool) -> None:
        """Set whether producers and consumers add their schemas to topics of the namespace; otherwise others
        than those that `Admin.schemas` added raise `IncompatibleSchema`. Open topics of all processes
        follow within 50 ms.

        Args:
            name: of the namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.namespaces().set_is_allow_auto_update_schema("public/default", False)
            ...     admin.namespaces().get_is_allow_auto_update_schema("public/default") == False
            ...     admin.namespaces().remove_is_allow_auto_update_schema("public/default")
            True
        """
        self._set(name, admitting.SCHEMA_AUTO_UPDATE, value)

    def get_is_allow_auto_update_schema(self, name: str, applied: bool = False) -> bool | None:
        """Return the value that is set for this namespace; None if none is set. With ``applied``, the value
        that holds."""
        return self._get(name, admitting.SCHEMA_AUTO_UPDATE, applied)

    def remove_is_allow_auto_update_schema(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.SCHEMA_AUTO_UPDATE, None)

    # end of methods of policies


def delete_topics(store: Store, namespace: str) -> None:
    """Delete all topics of a namespace, whatever is attached to them."""
    if namespace == "pulsar/system":
        return  # which cannot be deleted
    # Partitioned topics first: their partitions go with them, and would otherwise be deleted one by one below
    # while the topic still says that it has them.
    for name in store.topics.partitioned_names(namespace):
        with contextlib.suppress(TopicNotFound):  # another process deleted it
            store.delete_partitioned_topic(name, force=True)
    for name in store.topics.names(namespace):
        with contextlib.suppress(TopicNotFound):
            store.delete_topic(name, force=True)


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
