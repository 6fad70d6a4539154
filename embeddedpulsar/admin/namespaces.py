"""Administration of namespaces."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.store.policies import admitting
from embeddedpulsar._engine.store.store import is_namespace
from embeddedpulsar.admin.policies import Policies
from embeddedpulsar.exceptions import InvalidTopicName, NotAllowedError, TopicNotFound
from embeddedpulsar.policy_values import (
    AutoTopicCreationOverride,
    DelayedDeliveryPolicies,
)
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
