"""Administration of namespaces."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from embeddedpulsar.admin.expiry_calls import ExpiryCalls
from embeddedpulsar.admin.limit_calls import limit_calls
from embeddedpulsar.admin.policy_calls import PolicyCalls
from embeddedpulsar.admin.rate_calls import RateCalls
from embeddedpulsar.admin.value_calls import value_calls
from embeddedpulsar.exceptions import InvalidTopicName, NotAllowedError, TopicNotFound
from embeddedpulsar.platform import interrupts
from embeddedpulsar.topic.policies import creation_policy, topic_limits
from embeddedpulsar.topic.policies.policy_changes import is_namespace
from embeddedpulsar.topic.policies.resource_groups import IN_GROUP
from embeddedpulsar.topic.schemas import schema_policies
from embeddedpulsar.topic_name import NON_PERSISTENT, PERSISTENT, without_system_topics

if TYPE_CHECKING:
    from embeddedpulsar.topic.store import Store


_DOMAINS: Final = {"PERSISTENT": f"{PERSISTENT}:", "NON_PERSISTENT": f"{NON_PERSISTENT}:", "ALL": ""}


class Namespaces(PolicyCalls, RateCalls, ExpiryCalls):
    """Creates, lists and deletes namespaces, and sets policies for their topics. `Admin.namespaces` returns
    it.

    Names are ``tenant/namespace``. A new store has ``public/default`` and ``public/functions``. See
    `PolicyCalls` for the errors of all methods.
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
        with interrupts.translated:
            store = self._store()
            if namespace in store.topics.namespaces.names():
                raise NotAllowedError(f"there is a namespace {namespace} in {store.root} already")
            store.topics.namespaces.create(namespace)

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
        with interrupts.translated:
            store = self._store()
            store.topics.namespaces.check(self._owner(namespace))
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

    # -- delivery ----------------------------------------------------------------------------------------

    set_delayed_delivery_messages, get_delayed_delivery_messages, remove_delayed_delivery_messages = (
        value_calls(
            creation_policy.DELAYED_DELIVERY,
            "delayed_delivery_messages",
            "whether delayed messages wait, also those that wait now, and how early they may be",
            "DelayedDeliveryPolicies(False)",
            level="namespaces",
        )
    )
    (
        set_max_unacked_messages_per_consumer,
        get_max_unacked_messages_per_consumer,
        remove_max_unacked_messages_per_consumer,
    ) = value_calls(
        topic_limits.MAX_UNACKED_PER_CONSUMER,
        "max_unacked_messages_per_consumer",
        "how many messages a consumer of a Shared or Key_Shared subscription may hold unacknowledged, 0 for "
        "any number",
        level="namespaces",
    )
    (
        set_max_unacked_messages_per_subscription,
        get_max_unacked_messages_per_subscription,
        remove_max_unacked_messages_per_subscription,
    ) = value_calls(
        topic_limits.MAX_UNACKED_PER_SUBSCRIPTION,
        "max_unacked_messages_per_subscription",
        "how many messages the consumers of a Shared or Key_Shared subscription may hold unacknowledged "
        "together, 0 for any number",
        level="namespaces",
    )

    # -- limits ------------------------------------------------------------------------------------------

    set_max_producers_per_topic, get_max_producers_per_topic, remove_max_producers_per_topic = limit_calls(
        topic_limits.MAX_PRODUCERS,
        "max_producers_per_topic",
        "producers of each topic",
        "ProducerBusy",
        level="namespaces",
    )
    set_max_consumers_per_topic, get_max_consumers_per_topic, remove_max_consumers_per_topic = limit_calls(
        topic_limits.MAX_CONSUMERS,
        "max_consumers_per_topic",
        "consumers of each topic",
        "ConsumerBusy",
        level="namespaces",
    )
    (
        set_max_topics_per_namespace,
        get_max_topics_per_namespace,
        remove_max_topics_per_namespace,
    ) = limit_calls(
        topic_limits.MAX_TOPICS,
        "max_topics_per_namespace",
        "topics of the namespace, each partition counted",
        "NotAllowedError",
        level="namespaces",
    )

    set_namespace_resource_group, get_namespace_resource_group, remove_namespace_resource_group = value_calls(
        IN_GROUP,
        "namespace_resource_group",
        "the resource group of the topics of the namespace, by its name; see `ResourceGroups`",
        '"batch-jobs"',
        level="namespaces",
    )

    # -- creation ----------------------------------------------------------------------------------------

    set_auto_topic_creation, get_auto_topic_creation, remove_auto_topic_creation = value_calls(
        creation_policy.AUTO_TOPIC_CREATION,
        "auto_topic_creation",
        "whether topics of the namespace are created when they are first used, and of which kind",
        'AutoTopicCreationOverride(True, "partitioned", 4)',
        level="namespaces",
    )
    set_encryption_required_status, get_encryption_required_status, remove_encryption_required_status = (
        value_calls(
            creation_policy.ENCRYPTION_REQUIRED,
            "encryption_required_status",
            "whether new producers of the namespace have to encrypt; others are refused with "
            "`BrokerMetadataError`",
            "True",
            level="namespaces",
        )
    )

    # -- schemas -----------------------------------------------------------------------------------------

    set_is_allow_auto_update_schema, get_is_allow_auto_update_schema, remove_is_allow_auto_update_schema = (
        value_calls(
            schema_policies.SCHEMA_AUTO_UPDATE,
            "is_allow_auto_update_schema",
            "whether producers and consumers add their schemas to topics of the namespace; otherwise others "
            "than those that `Admin.schemas` added raise `IncompatibleSchema`",
            "False",
            level="namespaces",
        )
    )

    def _owner(self, name: str) -> str:
        if not is_namespace(name):
            raise InvalidTopicName(f"{name!r} is no namespace; write tenant/namespace")
        return name


def delete_topics(store: Store, namespace: str) -> None:
    """Delete all topics of a namespace, whatever is attached to them."""
    if namespace == "pulsar/system":
        return  # which cannot be deleted
    for name in store.topics.partitioned_names(namespace):
        with contextlib.suppress(TopicNotFound):  # another process deleted it
            store.delete_partitioned_topic(name, force=True)
    for name in store.topics.names(namespace):
        with contextlib.suppress(TopicNotFound):
            store.delete_topic(name, force=True)
