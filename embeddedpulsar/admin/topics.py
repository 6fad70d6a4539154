"""Administration of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.store.policies import admitting
from embeddedpulsar._engine.store.topic_access import TopicAccess
from embeddedpulsar.admin.policies import Policies
from embeddedpulsar.admin.subscription_calls import SubscriptionCalls
from embeddedpulsar.admin.topic_looks import TopicLooks
from embeddedpulsar.admin.topic_operations import TopicOperations
from embeddedpulsar.admin.topic_stats import PartitionedTopicMetadata
from embeddedpulsar.exceptions import TopicNotFound
from embeddedpulsar.policy_values import DelayedDeliveryPolicies
from embeddedpulsar.topic_name import TopicName, without_system_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from embeddedpulsar._engine.store.store import Store

_DEFAULT_NAMESPACE = "public/default"


class Topics(TopicLooks, SubscriptionCalls, TopicOperations, Policies):
    """Creates, grows, lists and deletes topics, manages their subscriptions, and sets their policies.
    `Admin.topics` returns it.

    Names may be short (``orders``) or full. Every change is atomic: a process that is killed in the middle
    leaves the topic either unchanged or completely changed. Thread-safe.

    All methods raise `InvalidTopicName` for a text that is not a topic name, `AlreadyClosed` if the Admin
    is closed, and a `StorageError` if files cannot be used.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._access = TopicAccess(store)

    # -- making ------------------------------------------------------------------------------------------

    def create_non_partitioned_topic(self, topic: str) -> None:
        """Create a topic, independent of ``allowAutoTopicCreation``.

        Raises:
            NotAllowedError: there is a topic of that name.
            TopicNotFound: there is no such namespace, or the partitioned topic has fewer partitions.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("audit")
            ...     "persistent://public/default/audit" in admin.topics().get_list()
            True
        """
        with timing.translated:
            self._store().topics.create_topic(topic)

    def create_non_partitioned_topics(self, topics: Iterable[str]) -> None:
        """Create many topics at once, which pulsar-admin cannot; see `create_non_partitioned_topic`.

        On return they survive a power failure. Each 5,000 of them are one record in the list of topics, so a
        process that is killed meanwhile leaves all of these or none. A name that is given twice counts once.

        Args:
            topics: their names.

        Raises:
            NotAllowedError: there is a topic of one of the names. None of its 5,000 was created.
            TopicNotFound: there is no such namespace, or a partitioned topic has fewer partitions.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topics(f"sensor-{number}" for number in range(1000))
            ...     len([name for name in admin.topics().get_list() if "/sensor-" in name])
            1000
        """
        with timing.translated:
            self._store().topics.create_topics(topics, durable=True)

    def create_partitioned_topic(self, topic: str, partitions: int) -> None:
        """Create a topic with partitions: topics named ``<topic>-partition-<i>``, which exist at once.

        Args:
            topic: its name, which must not be that of a partition.
            partitions: 1 to 10,000. The number can grow, and never shrinks.

        Raises:
            NotAllowedError: there is a topic of that name, or one named like a partition of it.
            TopicNotFound: there is no such namespace.
            ValueError: the number is out of range.
        """
        with timing.translated:
            self._store().topics.create_partitioned(topic, partitions)

    def update_partitioned_topic(self, topic: str, partitions: int) -> None:
        """Add partitions to a partitioned topic.

        Open producers, consumers and readers of all processes use them within a second. Subscriptions receive
        the new partitions from their first message on. Keys may be routed to other partitions from then on.

        Args:
            topic: its name.
            partitions: the new number, not lower than the current one.

        Raises:
            NotAllowedError: it has more partitions, or is not partitioned.
            TopicNotFound: no such topic.
            ValueError: the number is out of range.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_partitioned_topic("trips", 2)
            ...     admin.topics().update_partitioned_topic("trips", 3)
            ...     admin.topics().get_partitioned_topic_metadata("trips")
            ...     len(admin.topics().terminate_partitioned_topic("trips"))
            ...     admin.topics().delete_partitioned_topic("trips")
            PartitionedTopicMetadata(partitions=3)
            3
        """
        with timing.translated:
            self._store().grow_partitions(topic, partitions)

    # -- deleting ----------------------------------------------------------------------------------------

    def delete(self, topic: str, force: bool = False) -> None:
        """Delete a topic that is not partitioned, with its subscriptions and messages. On return the deletion
        survives a power failure.

        Args:
            topic: its name.
            force: delete even if producers or consumers are attached. Their next call raises an error that
                says that the topic was deleted. Readers never prevent a deletion, and get that error too.

        Raises:
            BrokerMetadataError: producers or consumers are attached, and ``force`` is False.
            NotAllowedError: it is partitioned, or a partition.
            TopicNotFound: no such topic.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("scratch")
            ...     admin.topics().delete("scratch")
        """
        with timing.translated:
            self._store().delete_topic(topic, force=force)

    def delete_partitioned_topic(self, topic: str, force: bool = False) -> None:
        """Delete a partitioned topic with all its partitions; see `delete`."""
        with timing.translated:
            self._store().delete_partitioned_topic(topic, force=force)

    def _owner(self, name: str) -> str:
        return TopicName.parse(name).full

    # -- listing -----------------------------------------------------------------------------------------

    def get_list(
        self, namespace: str = _DEFAULT_NAMESPACE, *, include_system_topic: bool = False
    ) -> list[str]:
        """Return the full names of the topics of a namespace, sorted.

        For a partitioned topic, these are the names of its partitions.

        Args:
            namespace: ``tenant/namespace``.
            include_system_topic: list system topics, too: ``__change_events`` and the like, which an earlier
                release may have created.

        Raises:
            TopicNotFound: there is no such namespace.
        """
        names = self._of(namespace).topics.names(namespace)
        return names if include_system_topic else without_system_topics(names)

    def get_partitioned_topic_list(
        self, namespace: str = _DEFAULT_NAMESPACE, *, include_system_topic: bool = False
    ) -> list[str]:
        """Return the full names of the partitioned topics of a namespace, sorted; see `get_list`.

        Raises:
            TopicNotFound: there is no such namespace.
        """
        names = self._of(namespace).topics.partitioned_names(namespace)
        return names if include_system_topic else without_system_topics(names)

    def get_partitioned_topic_metadata(self, topic: str) -> PartitionedTopicMetadata:
        """Return the metadata of a topic: its number of partitions.

        Raises:
            TopicNotFound: no such topic.
        """
        store = self._store()
        partitions = store.topics.partitions(topic)
        # 0 is the answer for a topic without partitions, which exists.
        if not partitions and not store.topics.has(topic):
            raise TopicNotFound(f"{TopicName.parse(topic).full}: no such topic in {store.root}")
        return PartitionedTopicMetadata(partitions)

    def _of(self, namespace: str) -> Store:
        store = self._store()
        store.topics.namespaces.check(namespace)
        return store

    # generated: methods of policies, by `make policies` from the rows in topic/policies

    def set_resource_group(self, name: str, value: str) -> None:
        """Set the resource group of the topic; see `ResourceGroups`. Open topics of all processes follow
        within 50 ms.

        Args:
            name: of the topic.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.policy_values import ResourceGroup
            >>> with Admin("./data") as admin:
            ...     admin.resource_groups().create_resource_group("batch-jobs", ResourceGroup())
            ...     admin.topics().create_non_partitioned_topic("resource-group")
            ...     admin.topics().set_resource_group("resource-group", "batch-jobs")
            ...     admin.topics().get_resource_group("resource-group") == "batch-jobs"
            ...     admin.topics().remove_resource_group("resource-group")
            True
        """
        self._set(name, admitting.IN_GROUP, value)

    def get_resource_group(self, name: str, applied: bool = False) -> str | None:
        """Return the value that is set for this topic; None if none is set. With ``applied``, the value that
        holds."""
        return self._get(name, admitting.IN_GROUP, applied)

    def remove_resource_group(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.IN_GROUP, None)

    def set_max_message_size(self, name: str, value: int) -> None:
        """Set how many bytes a message of the topic may have, with its key and properties, 0 for as many as
        ``maxMessageSize`` of ``broker.conf`` allows. Larger ones are refused with `MessageTooBig`, or
        stored in parts if the producer has chunking; a batch counts as one message. Open topics of all
        processes follow within 50 ms.

        Args:
            name: of the topic.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("max-message-size")
            ...     admin.topics().set_max_message_size("max-message-size", 1000)
            ...     admin.topics().get_max_message_size("max-message-size") == 1000
            ...     admin.topics().remove_max_message_size("max-message-size")
            True
        """
        self._set(name, admitting.MAX_MESSAGE_SIZE, value)

    def get_max_message_size(self, name: str, applied: bool = False) -> int | None:
        """Return the value that is set for this topic; None if none is set. With ``applied``, the value that
        holds."""
        return self._get(name, admitting.MAX_MESSAGE_SIZE, applied)

    def remove_max_message_size(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.MAX_MESSAGE_SIZE, None)

    def set_max_producers(self, name: str, most: int) -> None:
        """Set the largest number of producers of a topic or partition. What is there stays when the limit is
        lowered.

        Args:
            name: of the topic.
            most: the largest number, beyond which `ProducerBusy` is raised; 0 for no limit, whatever other
                levels say.

        Raises:
            InvalidConfiguration: ``most`` is no number from 0 on.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("max-producers")
            ...     admin.topics().set_max_producers("max-producers", 1000)
            ...     admin.topics().get_max_producers("max-producers") == 1000
            ...     admin.topics().remove_max_producers("max-producers")
            True
        """
        self._set(name, admitting.MAX_PRODUCERS, most)

    def get_max_producers(self, name: str) -> int | None:
        """Return the largest number of producers of a topic or partition that is set for this name; None if
        none is set."""
        return self._get(name, admitting.MAX_PRODUCERS)

    def remove_max_producers(self, name: str) -> None:
        """Unset the limit, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.MAX_PRODUCERS, None)

    def set_max_consumers(self, name: str, most: int) -> None:
        """Set the largest number of consumers of a topic or partition. What is there stays when the limit is
        lowered.

        Args:
            name: of the topic.
            most: the largest number, beyond which `ConsumerBusy` is raised; 0 for no limit, whatever other
                levels say.

        Raises:
            InvalidConfiguration: ``most`` is no number from 0 on.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("max-consumers")
            ...     admin.topics().set_max_consumers("max-consumers", 1000)
            ...     admin.topics().get_max_consumers("max-consumers") == 1000
            ...     admin.topics().remove_max_consumers("max-consumers")
            True
        """
        self._set(name, admitting.MAX_CONSUMERS, most)

    def get_max_consumers(self, name: str) -> int | None:
        """Return the largest number of consumers of a topic or partition that is set for this name; None if
        none is set."""
        return self._get(name, admitting.MAX_CONSUMERS)

    def remove_max_consumers(self, name: str) -> None:
        """Unset the limit, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.MAX_CONSUMERS, None)

    def set_delayed_delivery_policy(self, name: str, value: DelayedDeliveryPolicies) -> None:
        """Set whether delayed messages wait, also those that wait now, and how early they may be. Open topics
        of all processes follow within 50 ms.

        Args:
            name: of the topic.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.policy_values import DelayedDeliveryPolicies
            >>> with Admin("./data") as admin:
            ...     name, value = "delayed-delivery-policy", DelayedDeliveryPolicies(False)
            ...     admin.topics().create_non_partitioned_topic(name)
            ...     admin.topics().set_delayed_delivery_policy(name, value)
            ...     admin.topics().get_delayed_delivery_policy(name) == value
            ...     admin.topics().remove_delayed_delivery_policy(name)
            True
        """
        self._set(name, admitting.DELAYED_DELIVERY, value)

    def get_delayed_delivery_policy(self, name: str, applied: bool = False) -> DelayedDeliveryPolicies | None:
        """Return the value that is set for this topic; None if none is set. With ``applied``, the value that
        holds."""
        return self._get(name, admitting.DELAYED_DELIVERY, applied)

    def remove_delayed_delivery_policy(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.DELAYED_DELIVERY, None)

    def set_max_unacked_messages_on_consumer(self, name: str, value: int) -> None:
        """Set how many messages a consumer of a Shared or Key_Shared subscription may hold unacknowledged, 0
        for any number. Open topics of all processes follow within 50 ms.

        Args:
            name: of the topic.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     name, value = "max-unacked-messages-on-consumer", 1000
            ...     admin.topics().create_non_partitioned_topic(name)
            ...     admin.topics().set_max_unacked_messages_on_consumer(name, value)
            ...     admin.topics().get_max_unacked_messages_on_consumer(name) == value
            ...     admin.topics().remove_max_unacked_messages_on_consumer(name)
            True
        """
        self._set(name, admitting.MAX_UNACKED_PER_CONSUMER, value)

    def get_max_unacked_messages_on_consumer(self, name: str, applied: bool = False) -> int | None:
        """Return the value that is set for this topic; None if none is set. With ``applied``, the value that
        holds."""
        return self._get(name, admitting.MAX_UNACKED_PER_CONSUMER, applied)

    def remove_max_unacked_messages_on_consumer(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.MAX_UNACKED_PER_CONSUMER, None)

    def set_max_unacked_messages_on_subscription(self, name: str, value: int) -> None:
        """Set how many messages the consumers of a Shared or Key_Shared subscription may hold unacknowledged
        together, 0 for any number. Open topics of all processes follow within 50 ms.

        Args:
            name: of the topic.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     name, value = "max-unacked-messages-on-subscription", 1000
            ...     admin.topics().create_non_partitioned_topic(name)
            ...     admin.topics().set_max_unacked_messages_on_subscription(name, value)
            ...     admin.topics().get_max_unacked_messages_on_subscription(name) == value
            ...     admin.topics().remove_max_unacked_messages_on_subscription(name)
            True
        """
        self._set(name, admitting.MAX_UNACKED_PER_SUBSCRIPTION, value)

    def get_max_unacked_messages_on_subscription(self, name: str, applied: bool = False) -> int | None:
        """Return the value that is set for this topic; None if none is set. With ``applied``, the value that
        holds."""
        return self._get(name, admitting.MAX_UNACKED_PER_SUBSCRIPTION, applied)

    def remove_max_unacked_messages_on_subscription(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.MAX_UNACKED_PER_SUBSCRIPTION, None)

    # end of methods of policies
