"""Administration of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar.admin.expiry_calls import ExpiryCalls
from embeddedpulsar.admin.limit_calls import limit_calls
from embeddedpulsar.admin.offload_calls import OffloadCalls
from embeddedpulsar.admin.policy_calls import PolicyCalls
from embeddedpulsar.admin.rate_calls import RateCalls
from embeddedpulsar.admin.subscription_calls import SubscriptionCalls, log_names, skip_all
from embeddedpulsar.admin.topic_stats import PartitionedTopicMetadata
from embeddedpulsar.admin.value_calls import value_calls
from embeddedpulsar.exceptions import NotAllowedError, TopicNotFound
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.platform import interrupts
from embeddedpulsar.topic.policies import creation_policy, topic_limits
from embeddedpulsar.topic.policies.resource_groups import IN_GROUP
from embeddedpulsar.topic_name import TopicName, without_system_topics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from embeddedpulsar.topic.store import Store

_DEFAULT_NAMESPACE = "public/default"


class Topics(OffloadCalls, SubscriptionCalls, PolicyCalls, RateCalls, ExpiryCalls):
    """Creates, grows, lists and deletes topics, manages their subscriptions, and sets their policies.
    `Admin.topics` returns it.

    Names may be short (``orders``) or full. Every change is atomic: a process that is killed in the middle
    leaves the topic either unchanged or completely changed. Thread-safe.

    All methods raise `InvalidTopicName` for a text that is not a topic name, `AlreadyClosed` if the Admin
    is closed, and a `StorageError` if files cannot be used.
    """

    # -- delivery ----------------------------------------------------------------------------------------

    (
        set_delayed_delivery_policy,
        get_delayed_delivery_policy,
        remove_delayed_delivery_policy,
    ) = value_calls(
        creation_policy.DELAYED_DELIVERY,
        "delayed_delivery_policy",
        "whether delayed messages wait, also those that wait now, and how early they may be",
        "DelayedDeliveryPolicies(False)",
    )
    (
        set_max_unacked_messages_on_consumer,
        get_max_unacked_messages_on_consumer,
        remove_max_unacked_messages_on_consumer,
    ) = value_calls(
        topic_limits.MAX_UNACKED_PER_CONSUMER,
        "max_unacked_messages_on_consumer",
        "how many messages a consumer of a Shared or Key_Shared subscription may hold unacknowledged, 0 for "
        "any number",
    )
    (
        set_max_unacked_messages_on_subscription,
        get_max_unacked_messages_on_subscription,
        remove_max_unacked_messages_on_subscription,
    ) = value_calls(
        topic_limits.MAX_UNACKED_PER_SUBSCRIPTION,
        "max_unacked_messages_on_subscription",
        "how many messages the consumers of a Shared or Key_Shared subscription may hold unacknowledged "
        "together, 0 for any number",
    )

    # -- limits ------------------------------------------------------------------------------------------

    set_max_message_size, get_max_message_size, remove_max_message_size = value_calls(
        topic_limits.MAX_MESSAGE_SIZE,
        "max_message_size",
        "how many bytes a message of the topic may have, with its key and properties, 0 for as many as "
        "``maxMessageSize`` of ``broker.conf`` allows. Larger ones are refused with `MessageTooBig`, or "
        "stored in parts if the producer has chunking; a batch counts as one message",
    )
    set_resource_group, get_resource_group, remove_resource_group = value_calls(
        IN_GROUP, "resource_group", "the resource group of the topic; see `ResourceGroups`", '"batch-jobs"'
    )
    set_max_producers, get_max_producers, remove_max_producers = limit_calls(
        topic_limits.MAX_PRODUCERS, "max_producers", "producers of a topic or partition", "ProducerBusy"
    )
    set_max_consumers, get_max_consumers, remove_max_consumers = limit_calls(
        topic_limits.MAX_CONSUMERS, "max_consumers", "consumers of a topic or partition", "ConsumerBusy"
    )
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
        with interrupts.translated:
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
        with interrupts.translated:
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
        with interrupts.translated:
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
        with interrupts.translated:
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
        with interrupts.translated:
            self._store().delete_topic(topic, force=force)

    def delete_partitioned_topic(self, topic: str, force: bool = False) -> None:
        """Delete a partitioned topic with all its partitions; see `delete`."""
        with interrupts.translated:
            self._store().delete_partitioned_topic(topic, force=force)

    # -- ending ------------------------------------------------------------------------------------------

    def terminate_topic(self, topic: str) -> MessageId:
        """End a topic, for ever: it takes no more messages. Those it has stay, and are received as before.

        Producers of all processes get `TopicTerminated` from their next call, and so does `create_producer`.
        On return the end survives a power failure. May be repeated.

        Args:
            topic: its name, or that of a partition.

        Returns:
            The id of the last entry; `MessageId.earliest` if there is none.

        Raises:
            TopicNotFound: no such topic.
            NotAllowedError: it is partitioned; use `terminate_partitioned_topic`.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     producer = client.create_producer("election")
            ...     last = producer.send(b"the last vote")
            ...     admin.topics().terminate_topic("election") == last
            True
        """
        with interrupts.translated:
            store = self._store()
            if store.topics.partitions(topic):
                raise NotAllowedError(
                    f"{TopicName.parse(topic).full} is partitioned; use terminate_partitioned_topic"
                )
            return _terminate(store, topic)

    def terminate_partitioned_topic(self, topic: str) -> dict[int, MessageId]:
        """End all partitions of a topic, one after the other; see `terminate_topic`. If the process is killed
        in between, the call can be made again.

        Returns:
            The id of the last entry of each partition, by the index of the partition.

        Raises:
            NotAllowedError: it is not partitioned.
        """
        with interrupts.translated:
            store = self._store()
            partitions = self.get_partitioned_topic_metadata(topic).partitions
            if not partitions:
                raise NotAllowedError(
                    f"{TopicName.parse(topic).full} is not partitioned; use terminate_topic"
                )
            names = log_names(topic, partitions)
            return {index: _terminate(store, name) for index, name in enumerate(names)}

    def unload(self, topic: str) -> None:
        """Have consumers of all processes begin anew, as when a broker gives up a topic: what they hold or
        have fetched is void, and what is not acknowledged is delivered again. The redelivery counts of Shared
        and Key_Shared subscriptions begin at 0. Nothing else is lost.

        For a partitioned topic, in all partitions. Concerns durable subscriptions.

        Raises:
            TopicNotFound: no such topic.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     consumer = client.subscribe("alarms", "guard")
            ...     _ = client.create_producer("alarms").send(b"smoke")
            ...     first = consumer.receive()
            ...     admin.topics().unload("alarms")
            ...     consumer.receive().message_id() == first.message_id()
            True
        """
        with interrupts.translated:
            self._in_all(topic, lambda _, subscription: subscription.operator_commands().give_back())

    # -- trimming ----------------------------------------------------------------------------------------

    def trim_topic(self, topic: str) -> int:
        """Remove closed ledgers now instead of in the background: those that every durable subscription has
        acknowledged, and retention does not keep. For a partitioned topic, in all partitions.

        Returns:
            The number of removed ledgers.

        Raises:
            TopicNotFound: no such topic.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("visits")
            ...     admin.topics().trim_topic("visits")
            0
        """
        with interrupts.translated:
            store, name = self._store(), TopicName.parse(topic)
            partitions = store.topics.partitions(topic)
            if not partitions:
                return store.trim_topic(topic)
            return sum(store.trim_topic(name.of_partition(index).full) for index in range(partitions))

    def truncate(self, topic: str) -> None:
        """Acknowledge all messages for every durable subscription, and remove all closed ledgers, whatever
        retention says. The open ledger, which producers append to, stays. For a partitioned topic, in all
        partitions.

        Readers and non-durable subscriptions go on with the open ledger.

        Raises:
            TopicNotFound: no such topic.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     admin.topics().create_subscription("debug", "nightly")
            ...     _ = client.create_producer("debug").send(b"...")
            ...     admin.topics().truncate("debug")
            ...     admin.topics().peek_messages("debug", "nightly", 1)
            []
        """
        with interrupts.translated:
            self._in_all(topic, skip_all)
            store = self._store()
            for name in log_names(topic, store.topics.partitions(topic)):
                use = store.use_topic(name, create=False)
                try:
                    use.topic.trim_now(ignore_retention=True)
                finally:
                    use.release()

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
        found = self._of(namespace).topics.names(namespace)
        return found if include_system_topic else without_system_topics(found)

    def get_partitioned_topic_list(
        self, namespace: str = _DEFAULT_NAMESPACE, *, include_system_topic: bool = False
    ) -> list[str]:
        """Return the full names of the partitioned topics of a namespace, sorted; see `get_list`.

        Raises:
            TopicNotFound: there is no such namespace.
        """
        found = self._of(namespace).topics.partitioned_names(namespace)
        return found if include_system_topic else without_system_topics(found)

    def get_partitioned_topic_metadata(self, topic: str) -> PartitionedTopicMetadata:
        """Return the metadata of a topic: its number of partitions.

        Raises:
            TopicNotFound: no such topic.
        """
        store = self._store()
        partitions = store.topics.partitions(topic)
        if not partitions and not store.topics.has(topic):
            raise TopicNotFound(f"{TopicName.parse(topic).full}: no such topic in {store.root}")
        return PartitionedTopicMetadata(partitions)

    def _of(self, namespace: str) -> Store:
        store = self._store()
        store.topics.namespaces.check(namespace)
        return store


def _terminate(store: Store, name: str) -> MessageId:
    use = store.use_topic(name, create=False)
    try:
        last = use.topic.terminate()
    finally:
        use.release()
    if last.entry_id < 0:
        return MessageId.earliest
    return MessageId(TopicName.parse(name).partition, last.ledger_id, last.entry_id)
