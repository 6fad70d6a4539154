"""Administration of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar.admin.limit_calls import limit_calls
from embeddedpulsar.admin.policy_calls import PolicyCalls
from embeddedpulsar.admin.subscription_calls import SubscriptionCalls
from embeddedpulsar.admin.topic_looks import TopicLooks
from embeddedpulsar.admin.topic_stats import PartitionedTopicMetadata
from embeddedpulsar.exceptions import TopicNotFound
from embeddedpulsar.platform import interrupts
from embeddedpulsar.topic import topic_limits
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.topic.store import Store

_DEFAULT_NAMESPACE = "public/default"


class Topics(TopicLooks, SubscriptionCalls, PolicyCalls):
    """Creates, grows, lists and deletes topics, manages their subscriptions, and sets their policies.
    `Admin.topics` returns it.

    Names may be short (``orders``) or full. Every change is atomic: a process that is killed in the middle
    leaves the topic either unchanged or completely changed. Thread-safe.

    All methods raise `InvalidTopicName` for a text that is not a topic name, `NotImplementedError` for
    non-persistent topics, `AlreadyClosed` if the Admin is closed, and a `StorageError` if files cannot be
    used.
    """

    # -- limits ------------------------------------------------------------------------------------------

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
            PartitionedTopicMetadata(partitions=3)
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

    def _owner(self, name: str) -> str:
        return TopicName.parse(name).full

    # -- listing -----------------------------------------------------------------------------------------

    def get_list(self, namespace: str = _DEFAULT_NAMESPACE) -> list[str]:
        """Return the full names of the topics of a namespace, in order of creation.

        For a partitioned topic, these are the names of its partitions.

        Args:
            namespace: ``tenant/namespace``.

        Raises:
            TopicNotFound: there is no such namespace.
        """
        return self._of(namespace).topics.names(namespace)

    def get_partitioned_topic_list(self, namespace: str = _DEFAULT_NAMESPACE) -> list[str]:
        """Return the full names of the partitioned topics of a namespace, in order of creation.

        Raises:
            TopicNotFound: there is no such namespace.
        """
        return self._of(namespace).topics.partitioned_names(namespace)

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
        if namespace not in store.topics.namespaces():
            raise TopicNotFound(
                f"there is no namespace {namespace} in {store.root}, which has "
                f"{', '.join(store.topics.namespaces())}; use one of those"
            )
        return store
