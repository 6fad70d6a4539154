"""The methods that `Topics` and `Namespaces` share, which set, get and remove policies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.store.policies import admitting, keeping
from embeddedpulsar._engine.store.policies.policy import TopicPolicy, Value
from embeddedpulsar._engine.store.topic_access import SaysWhatThereIs
from embeddedpulsar.enums import ConsumerType, SchemaCompatibilityStrategy
from embeddedpulsar.policies import DESTINATION_STORAGE, BacklogQuota, Retention
from embeddedpulsar.policy_values import (
    AutoSubscriptionCreationOverride,
    DispatchRate,
    InactiveTopicPolicies,
    OffloadPolicies,
    PublishRate,
    SubscribeRate,
)

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.policies.policy_documents import ValueOf
    from embeddedpulsar._engine.store.store import Store


class Policies(SaysWhatThereIs, ABC):
    """The methods that `Topics` and `Namespaces` share.

    A policy that is not set for a topic is taken from its namespace, then from ``broker.conf``; for a
    partition, from its topic first. Policies are deleted with their topic. They survive the death of every
    process, and more with the ``durability`` of the Admin. Thread-safe.

    A ``get`` method returns the value that is set for the name itself, None for none; with ``applied=True``
    the value that holds, whatever level it is from.

    All methods raise `TopicNotFound` if there is no such topic, partition or namespace,
    `InvalidTopicName` for a text that is not a name, `AlreadyClosed` if the Admin is closed, and a
    `StorageError` if files cannot be used.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store

    @abstractmethod
    def _owner(self, name: str) -> str:
        """The name under which the policy is stored."""

    def _set(self, name: str, policy: TopicPolicy[Any], value: object) -> None:
        with timing.translated:
            self._store().set_policy(self._owner(name), policy, value)

    def _get(self, name: str, policy: TopicPolicy[Value], applied: bool = False) -> Value | None:
        store, owner = self._store(), self._owner(name)
        return store.policy(owner, policy) if applied else store.own_policy(owner, policy)

    # Retention and quotas are written by hand: each must fit the other.

    # -- retention ---------------------------------------------------------------------------------------

    def set_retention(self, name: str, retention_time_in_minutes: int, retention_size_in_mb: int) -> None:
        """Set how many of the messages that every durable subscription has acknowledged are kept. Open topics
        of all processes apply it within ``retentionCheckIntervalInSeconds``.

        Args:
            name: of the topic or namespace.
            retention_time_in_minutes: age of its last message at which a closed ledger may be removed; -1 for
                no limit.
            retention_size_in_mb: size in MiB of the other ledgers at which it may be removed; -1 for no
                limit. With 0 and 0 nothing is retained; one of them cannot be 0 alone.

        Raises:
            InvalidConfiguration: the numbers contradict each other, are below -1, or do not exceed the
                backlog quota of this name.
            ValueError: they are not integers.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("ledger-book")
            ...     admin.topics().set_retention("ledger-book", -1, 1024)
            ...     admin.topics().get_retention("ledger-book")
            ...     admin.topics().remove_retention("ledger-book")
            Retention(time_minutes=-1, size_mb=1024)
        """
        for number in (retention_time_in_minutes, retention_size_in_mb):
            if isinstance(number, bool) or not isinstance(number, int):
                raise ValueError(f"a retention is two integers, minutes and MB, not {number!r}")
        with timing.translated:
            retention = Retention(retention_time_in_minutes, retention_size_in_mb).check()
            store, owner = self._store(), self._owner(name)

            # The quotas that hold for this name, from whatever level: the retention has to exceed each of
            # them.
            def check(value_of: ValueOf) -> None:
                for quota in keeping.QUOTAS.values():
                    value_of(quota).check_beside(retention)

            store.set_policy(owner, keeping.RETENTION, retention, check)

    def get_retention(self, name: str) -> Retention | None:
        """Return the value set for this topic or namespace; None if it is not set."""
        return self._get(name, keeping.RETENTION)

    def remove_retention(self, name: str) -> None:
        """Unset the retention, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, keeping.RETENTION, None)

    # -- backlog quotas ----------------------------------------------------------------------------------

    def set_backlog_quota(
        self, name: str, quota: BacklogQuota, quota_type: str = DESTINATION_STORAGE
    ) -> None:
        """Set how large, or how old, the backlog of the slowest durable subscription may become.

        Args:
            name: of the topic or namespace.
            quota: the limit, and what happens beyond it.
            quota_type: ``destination_storage`` for a limit of bytes, ``message_age`` for one of seconds.

        Raises:
            InvalidConfiguration: the quota makes no sense, or the retention of this name does not exceed it.
            ValueError: ``quota_type`` is none of the two.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.policies import BacklogQuota
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("uploads")
            ...     quota = BacklogQuota(limit_size=10 << 30, policy="producer_exception")
            ...     admin.topics().set_backlog_quota("uploads", quota)
            ...     admin.topics().get_backlog_quota_map("uploads")["destination_storage"].limit_size
            10737418240
        """
        policy = _quota_policy(quota_type)
        if not isinstance(quota, BacklogQuota):
            raise ValueError(f"a backlog quota is a BacklogQuota, not {quota!r}")
        with timing.translated:
            store, owner = self._store(), self._owner(name)
            quota.check()
            # The retention that holds for this name, from whatever level, has to exceed the quota.
            store.set_policy(
                owner, policy, quota, lambda value_of: quota.check_beside(value_of(keeping.RETENTION))
            )

    def get_backlog_quota_map(self, name: str, applied: bool = False) -> dict[str, BacklogQuota]:
        """Return the quotas by type; a type without a quota is left out."""
        quotas = {kind: self._get(name, policy, applied) for kind, policy in keeping.QUOTAS.items()}
        return {kind: quota for kind, quota in quotas.items() if quota is not None}

    def remove_backlog_quota(self, name: str, quota_type: str = DESTINATION_STORAGE) -> None:
        """Unset the quota of a type, so that the inherited one applies. Does nothing if it is not set.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.policies import BacklogQuota
            >>> with Admin("./data") as admin:
            ...     admin.namespaces().set_backlog_quota("public/default", BacklogQuota(limit_size=1 << 30))
            ...     admin.namespaces().remove_backlog_quota("public/default")
            ...     admin.namespaces().get_backlog_quota_map("public/default")
            {}
        """
        self._set(name, _quota_policy(quota_type), None)

    # generated: methods of policies, by `make policies` from the rows in topic/policies

    def set_message_ttl(self, name: str, seconds: int) -> None:
        """Set after how many seconds a message counts as acknowledged by every durable subscription, whether
        it was received or not. This is checked when a process begins to use the topic, when the policy
        changes, and every ``messageExpiryCheckIntervalInMinutes``.

        Topics of dead letters and retry letters follow only a value that is set for the topic itself, unless
        ``broker.conf`` says ``letterTopicsExpire=true``.

        Args:
            name: of the topic or namespace.
            seconds: 0 for never, whatever other levels say.

        Raises:
            InvalidConfiguration: ``seconds`` is no number from 0 on.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("prices")
            ...     admin.namespaces().set_message_ttl("public/default", 3600)
            ...     admin.topics().get_message_ttl("prices")
            ...     admin.topics().get_message_ttl("prices", applied=True)
            ...     admin.namespaces().remove_message_ttl("public/default")
            3600
        """
        self._set(name, keeping.MESSAGE_TTL, seconds)

    def get_message_ttl(self, name: str, applied: bool = False) -> int | None:
        """Return the time to live in seconds."""
        return self._get(name, keeping.MESSAGE_TTL, applied)

    def remove_message_ttl(self, name: str) -> None:
        """Unset the time to live, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, keeping.MESSAGE_TTL, None)

    def set_subscription_expiration_time(self, name: str, minutes: int) -> None:
        """Set after how many minutes without consumers a durable subscription is deleted, with its backlog.
        This is checked when a process begins to use the topic, when the policy changes, and every
        ``subscriptionExpiryCheckIntervalInMinutes``.

        Args:
            name: of the topic or namespace.
            minutes: 0 for never, whatever other levels say.

        Raises:
            InvalidConfiguration: ``minutes`` is no number from 0 on.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.namespaces().set_subscription_expiration_time("public/default", 30 * 24 * 60)
            ...     admin.namespaces().get_subscription_expiration_time("public/default")
            ...     admin.namespaces().remove_subscription_expiration_time("public/default")
            43200
        """
        self._set(name, keeping.SUBSCRIPTION_EXPIRATION, minutes)

    def get_subscription_expiration_time(self, name: str, applied: bool = False) -> int | None:
        """Return the time in minutes."""
        return self._get(name, keeping.SUBSCRIPTION_EXPIRATION, applied)

    def remove_subscription_expiration_time(self, name: str) -> None:
        """Unset the time, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, keeping.SUBSCRIPTION_EXPIRATION, None)

    def set_inactive_topic_policies(self, name: str, policies: InactiveTopicPolicies) -> None:
        """Set whether a topic is deleted that has had no producers and no consumers for some time. Topics are
        looked at every ``brokerDeleteInactiveTopicsFrequencySeconds`` by a process that uses the store,
        whether the topic is in use there or not.

        Topics of dead letters and retry letters follow only a value that is set for the topic itself, unless
        ``broker.conf`` says ``letterTopicsExpire=true``.

        Args:
            name: of the topic or namespace.
            policies: when it is deleted.

        Raises:
            InvalidConfiguration: the value makes no sense.
            ValueError: it is no `InactiveTopicPolicies`.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.policy_values import InactiveTopicPolicies
            >>> with Admin("./data") as admin:
            ...     a_day = InactiveTopicPolicies(max_inactive_duration_seconds=86_400)
            ...     admin.namespaces().set_inactive_topic_policies("public/default", a_day)
            ...     admin.namespaces().get_inactive_topic_policies("public/default") == a_day
            ...     admin.namespaces().remove_inactive_topic_policies("public/default")
            True
        """
        if not isinstance(policies, InactiveTopicPolicies):
            raise ValueError(f"the policies are InactiveTopicPolicies, not {policies!r}")
        self._set(name, keeping.INACTIVE_TOPICS, policies)

    def get_inactive_topic_policies(self, name: str, applied: bool = False) -> InactiveTopicPolicies | None:
        """Return when the topic, or those of the namespace, are deleted."""
        return self._get(name, keeping.INACTIVE_TOPICS, applied)

    def remove_inactive_topic_policies(self, name: str) -> None:
        """Unset the policies, so that the inherited ones apply. Does nothing if they are not set."""
        self._set(name, keeping.INACTIVE_TOPICS, None)

    def set_keep_until_subscribed(self, name: str, enabled: bool) -> None:
        """Set whether topics keep all messages while they have no durable subscription, independent of their
        retention. Dead letter and retry letter topics do so by default. Not in Pulsar.

        Args:
            name: of the topic or namespace.
            enabled: whether they do.

        Raises:
            ValueError: ``enabled`` is not a bool.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("inbox")
            ...     admin.topics().set_keep_until_subscribed("inbox", True)
            ...     admin.topics().get_keep_until_subscribed("inbox")
            ...     admin.topics().remove_keep_until_subscribed("inbox")
            True
        """
        if not isinstance(enabled, bool):
            raise ValueError(f"enabled is True or False, not {enabled!r}")
        self._set(name, keeping.KEEP_UNTIL_SUBSCRIBED, enabled)

    def get_keep_until_subscribed(self, name: str) -> bool:
        """Return whether the topic keeps all messages while it has no durable subscription: the value set or
        inherited, otherwise True for a topic of letters, unless ``broker.conf`` sets
        ``letterTopicsKeepUntilSubscribed=false`` or a retention was set for the topic itself."""
        return self._store().policy(self._owner(name), keeping.KEEP_UNTIL_SUBSCRIBED)

    def remove_keep_until_subscribed(self, name: str) -> None:
        """Undo `set_keep_until_subscribed`. Does nothing if it is not set."""
        self._set(name, keeping.KEEP_UNTIL_SUBSCRIBED, None)

    def set_compaction_threshold(self, name: str, threshold: int) -> None:
        """Have topics compacted in the background whenever so many bytes were stored since the last
        compaction. It is looked at every ``brokerServiceCompactionMonitorIntervalInSeconds`` in the
        processes that use the topic.

        Args:
            name: of the topic or namespace.
            threshold: bytes of storage; 0 for never, whatever other levels say.

        Raises:
            InvalidConfiguration: ``threshold`` is no number from 0 on.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.namespaces().set_compaction_threshold("public/default", 100 << 20)
            ...     admin.namespaces().get_compaction_threshold("public/default")
            ...     admin.namespaces().remove_compaction_threshold("public/default")
            104857600
        """
        self._set(name, keeping.COMPACTION_THRESHOLD, threshold)

    def get_compaction_threshold(self, name: str) -> int | None:
        """Return the threshold set for this topic or namespace; None if it is not set."""
        return self._get(name, keeping.COMPACTION_THRESHOLD)

    def remove_compaction_threshold(self, name: str) -> None:
        """Unset the threshold, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, keeping.COMPACTION_THRESHOLD, None)

    def set_offload_policies(self, name: str, value: OffloadPolicies) -> None:
        """Set where closed ledgers are moved, and when. Open topics of all processes follow within 50 ms.

        Args:
            name: of the topic or namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.policy_values import OffloadPolicies
            >>> with Admin("./data") as admin:
            ...     name, value = "offload-policies", OffloadPolicies('/mnt/cold', 1 << 30)
            ...     admin.topics().create_non_partitioned_topic(name)
            ...     admin.topics().set_offload_policies(name, value)
            ...     admin.topics().get_offload_policies(name) == value
            ...     admin.topics().remove_offload_policies(name)
            True
        """
        self._set(name, keeping.OFFLOAD_POLICIES, value)

    def get_offload_policies(self, name: str, applied: bool = False) -> OffloadPolicies | None:
        """Return the value that is set for this topic or namespace; None if none is set. With ``applied``,
        the value that holds."""
        return self._get(name, keeping.OFFLOAD_POLICIES, applied)

    def remove_offload_policies(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, keeping.OFFLOAD_POLICIES, None)

    def set_offload_threshold(self, name: str, value: int) -> None:
        """Set how many bytes of a topic stay in the store, as a number: older ledgers are offloaded; -1 for
        never. Open topics of all processes follow within 50 ms.

        Args:
            name: of the topic or namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("offload-threshold")
            ...     admin.topics().set_offload_threshold("offload-threshold", 1000)
            ...     admin.topics().get_offload_threshold("offload-threshold") == 1000
            ...     admin.topics().remove_offload_threshold("offload-threshold")
            True
        """
        self._set(name, keeping.OFFLOAD_THRESHOLD, value)

    def get_offload_threshold(self, name: str, applied: bool = False) -> int | None:
        """Return the value that is set for this topic or namespace; None if none is set. With ``applied``,
        the value that holds."""
        return self._get(name, keeping.OFFLOAD_THRESHOLD, applied)

    def remove_offload_threshold(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, keeping.OFFLOAD_THRESHOLD, None)

    def set_offload_threshold_in_seconds(self, name: str, value: int) -> None:
        """Set how many seconds after its end a ledger is offloaded, as a number; -1 for never. Open topics of
        all processes follow within 50 ms.

        Args:
            name: of the topic or namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("offload-threshold-in-seconds")
            ...     admin.topics().set_offload_threshold_in_seconds("offload-threshold-in-seconds", 1000)
            ...     admin.topics().get_offload_threshold_in_seconds("offload-threshold-in-seconds") == 1000
            ...     admin.topics().remove_offload_threshold_in_seconds("offload-threshold-in-seconds")
            True
        """
        self._set(name, keeping.OFFLOAD_THRESHOLD_SECONDS, value)

    def get_offload_threshold_in_seconds(self, name: str, applied: bool = False) -> int | None:
        """Return the value that is set for this topic or namespace; None if none is set. With ``applied``,
        the value that holds."""
        return self._get(name, keeping.OFFLOAD_THRESHOLD_SECONDS, applied)

    def remove_offload_threshold_in_seconds(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, keeping.OFFLOAD_THRESHOLD_SECONDS, None)

    def set_offload_deletion_lag(self, name: str, value: int) -> None:
        """Set for how many milliseconds the log of an offloaded ledger stays in the store, as a number. Open
        topics of all processes follow within 50 ms.

        Args:
            name: of the topic or namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("offload-deletion-lag")
            ...     admin.topics().set_offload_deletion_lag("offload-deletion-lag", 1000)
            ...     admin.topics().get_offload_deletion_lag("offload-deletion-lag") == 1000
            ...     admin.topics().remove_offload_deletion_lag("offload-deletion-lag")
            True
        """
        self._set(name, keeping.OFFLOAD_DELETION_LAG, value)

    def get_offload_deletion_lag(self, name: str, applied: bool = False) -> int | None:
        """Return the value that is set for this topic or namespace; None if none is set. With ``applied``,
        the value that holds."""
        return self._get(name, keeping.OFFLOAD_DELETION_LAG, applied)

    def remove_offload_deletion_lag(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, keeping.OFFLOAD_DELETION_LAG, None)

    def set_publish_rate(self, name: str, value: PublishRate) -> None:
        """Set how much the producers of a topic or partition may publish together. Further sends wait. Open
        topics of all processes follow within 50 ms.

        Args:
            name: of the topic or namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.policy_values import PublishRate
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("publish-rate")
            ...     admin.topics().set_publish_rate("publish-rate", PublishRate(1000, 1 << 20))
            ...     admin.topics().get_publish_rate("publish-rate") == PublishRate(1000, 1 << 20)
            ...     admin.topics().remove_publish_rate("publish-rate")
            True
        """
        self._set(name, admitting.PUBLISH_RATE, value)

    def get_publish_rate(self, name: str, applied: bool = False) -> PublishRate | None:
        """Return the value that is set for this topic or namespace; None if none is set. With ``applied``,
        the value that holds."""
        return self._get(name, admitting.PUBLISH_RATE, applied)

    def remove_publish_rate(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.PUBLISH_RATE, None)

    def set_dispatch_rate(self, name: str, value: DispatchRate) -> None:
        """Set how much the consumers and readers of a topic or partition receive together. Open topics of all
        processes follow within 50 ms.

        Args:
            name: of the topic or namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.policy_values import DispatchRate
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("dispatch-rate")
            ...     admin.topics().set_dispatch_rate("dispatch-rate", DispatchRate(1000))
            ...     admin.topics().get_dispatch_rate("dispatch-rate") == DispatchRate(1000)
            ...     admin.topics().remove_dispatch_rate("dispatch-rate")
            True
        """
        self._set(name, admitting.DISPATCH_RATE, value)

    def get_dispatch_rate(self, name: str, applied: bool = False) -> DispatchRate | None:
        """Return the value that is set for this topic or namespace; None if none is set. With ``applied``,
        the value that holds."""
        return self._get(name, admitting.DISPATCH_RATE, applied)

    def remove_dispatch_rate(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.DISPATCH_RATE, None)

    def set_subscription_dispatch_rate(self, name: str, value: DispatchRate) -> None:
        """Set how much the consumers of each subscription of a topic or partition receive together. Open
        topics of all processes follow within 50 ms.

        Args:
            name: of the topic or namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.policy_values import DispatchRate
            >>> with Admin("./data") as admin:
            ...     name, value = "subscription-dispatch-rate", DispatchRate(-1, 1 << 20)
            ...     admin.topics().create_non_partitioned_topic(name)
            ...     admin.topics().set_subscription_dispatch_rate(name, value)
            ...     admin.topics().get_subscription_dispatch_rate(name) == value
            ...     admin.topics().remove_subscription_dispatch_rate(name)
            True
        """
        self._set(name, admitting.SUBSCRIPTION_DISPATCH_RATE, value)

    def get_subscription_dispatch_rate(self, name: str, applied: bool = False) -> DispatchRate | None:
        """Return the value that is set for this topic or namespace; None if none is set. With ``applied``,
        the value that holds."""
        return self._get(name, admitting.SUBSCRIPTION_DISPATCH_RATE, applied)

    def remove_subscription_dispatch_rate(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.SUBSCRIPTION_DISPATCH_RATE, None)

    def set_subscribe_rate(self, name: str, value: SubscribeRate) -> None:
        """Set how often a consumer, known by its name, may subscribe to a topic or partition. Beyond that
        `NotAllowedError` is raised. Open topics of all processes follow within 50 ms.

        Args:
            name: of the topic or namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.policy_values import SubscribeRate
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("subscribe-rate")
            ...     admin.topics().set_subscribe_rate("subscribe-rate", SubscribeRate(10, 60))
            ...     admin.topics().get_subscribe_rate("subscribe-rate") == SubscribeRate(10, 60)
            ...     admin.topics().remove_subscribe_rate("subscribe-rate")
            True
        """
        self._set(name, admitting.SUBSCRIBE_RATE, value)

    def get_subscribe_rate(self, name: str, applied: bool = False) -> SubscribeRate | None:
        """Return the value that is set for this topic or namespace; None if none is set. With ``applied``,
        the value that holds."""
        return self._get(name, admitting.SUBSCRIBE_RATE, applied)

    def remove_subscribe_rate(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.SUBSCRIBE_RATE, None)

    def set_max_consumers_per_subscription(self, name: str, most: int) -> None:
        """Set the largest number of consumers of a subscription. What is there stays when the limit is
        lowered.

        Args:
            name: of the topic or namespace.
            most: the largest number, beyond which `ConsumerBusy` is raised; 0 for no limit, whatever other
                levels say.

        Raises:
            InvalidConfiguration: ``most`` is no number from 0 on.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     name, value = "max-consumers-per-subscription", 1000
            ...     admin.topics().create_non_partitioned_topic(name)
            ...     admin.topics().set_max_consumers_per_subscription(name, value)
            ...     admin.topics().get_max_consumers_per_subscription(name) == value
            ...     admin.topics().remove_max_consumers_per_subscription(name)
            True
        """
        self._set(name, admitting.MAX_CONSUMERS_PER_SUBSCRIPTION, most)

    def get_max_consumers_per_subscription(self, name: str) -> int | None:
        """Return the largest number of consumers of a subscription that is set for this name; None if none is
        set."""
        return self._get(name, admitting.MAX_CONSUMERS_PER_SUBSCRIPTION)

    def remove_max_consumers_per_subscription(self, name: str) -> None:
        """Unset the limit, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.MAX_CONSUMERS_PER_SUBSCRIPTION, None)

    def set_max_subscriptions_per_topic(self, name: str, most: int) -> None:
        """Set the largest number of durable subscriptions of a topic or partition. What is there stays when
        the limit is lowered.

        Args:
            name: of the topic or namespace.
            most: the largest number, beyond which `NotAllowedError` is raised; 0 for no limit, whatever other
                levels say.

        Raises:
            InvalidConfiguration: ``most`` is no number from 0 on.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("max-subscriptions-per-topic")
            ...     admin.topics().set_max_subscriptions_per_topic("max-subscriptions-per-topic", 1000)
            ...     admin.topics().get_max_subscriptions_per_topic("max-subscriptions-per-topic") == 1000
            ...     admin.topics().remove_max_subscriptions_per_topic("max-subscriptions-per-topic")
            True
        """
        self._set(name, admitting.MAX_SUBSCRIPTIONS, most)

    def get_max_subscriptions_per_topic(self, name: str) -> int | None:
        """Return the largest number of durable subscriptions of a topic or partition that is set for this
        name; None if none is set."""
        return self._get(name, admitting.MAX_SUBSCRIPTIONS)

    def remove_max_subscriptions_per_topic(self, name: str) -> None:
        """Unset the limit, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.MAX_SUBSCRIPTIONS, None)

    def set_auto_subscription_creation(self, name: str, value: AutoSubscriptionCreationOverride) -> None:
        """Set whether durable subscriptions are created by their first consumer. Open topics of all processes
        follow within 50 ms.

        Args:
            name: of the topic or namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.policy_values import AutoSubscriptionCreationOverride
            >>> with Admin("./data") as admin:
            ...     name, value = "auto-subscription-creation", AutoSubscriptionCreationOverride(False)
            ...     admin.topics().create_non_partitioned_topic(name)
            ...     admin.topics().set_auto_subscription_creation(name, value)
            ...     admin.topics().get_auto_subscription_creation(name) == value
            ...     admin.topics().remove_auto_subscription_creation(name)
            True
        """
        self._set(name, admitting.AUTO_SUBSCRIPTION_CREATION, value)

    def get_auto_subscription_creation(
        self, name: str, applied: bool = False
    ) -> AutoSubscriptionCreationOverride | None:
        """Return the value that is set for this topic or namespace; None if none is set. With ``applied``,
        the value that holds."""
        return self._get(name, admitting.AUTO_SUBSCRIPTION_CREATION, applied)

    def remove_auto_subscription_creation(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.AUTO_SUBSCRIPTION_CREATION, None)

    def set_subscription_types_enabled(
        self, name: str, value: set[ConsumerType] | frozenset[ConsumerType]
    ) -> None:
        """Set the types of subscriptions that new consumers may have, as a set of `ConsumerType`; others are
        refused with `NotAllowedError`. A reader is Exclusive. Open topics of all processes follow within
        50 ms.

        Args:
            name: of the topic or namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar import ConsumerType
            >>> with Admin("./data") as admin:
            ...     name, value = "subscription-types-enabled", {ConsumerType.Shared}
            ...     admin.topics().create_non_partitioned_topic(name)
            ...     admin.topics().set_subscription_types_enabled(name, value)
            ...     admin.topics().get_subscription_types_enabled(name) == value
            ...     admin.topics().remove_subscription_types_enabled(name)
            True
        """
        self._set(name, admitting.SUBSCRIPTION_TYPES, value)

    def get_subscription_types_enabled(
        self, name: str, applied: bool = False
    ) -> frozenset[ConsumerType] | None:
        """Return the value that is set for this topic or namespace; None if none is set. With ``applied``,
        the value that holds."""
        return self._get(name, admitting.SUBSCRIPTION_TYPES, applied)

    def remove_subscription_types_enabled(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.SUBSCRIPTION_TYPES, None)

    def set_schema_compatibility_strategy(self, name: str, value: SchemaCompatibilityStrategy | str) -> None:
        """Set which schemas a topic accepts beside those it has: a `SchemaCompatibilityStrategy`, or its
        name. Open topics of all processes follow within 50 ms.

        Args:
            name: of the topic or namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar import SchemaCompatibilityStrategy
            >>> with Admin("./data") as admin:
            ...     name, value = "schema-compatibility-strategy", SchemaCompatibilityStrategy["BACKWARD"]
            ...     admin.topics().create_non_partitioned_topic(name)
            ...     admin.topics().set_schema_compatibility_strategy(name, value)
            ...     admin.topics().get_schema_compatibility_strategy(name) == value
            ...     admin.topics().remove_schema_compatibility_strategy(name)
            True
        """
        self._set(name, admitting.SCHEMA_COMPATIBILITY, value)

    def get_schema_compatibility_strategy(
        self, name: str, applied: bool = False
    ) -> SchemaCompatibilityStrategy | None:
        """Return the value that is set for this topic or namespace; None if none is set. With ``applied``,
        the value that holds."""
        return self._get(name, admitting.SCHEMA_COMPATIBILITY, applied)

    def remove_schema_compatibility_strategy(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.SCHEMA_COMPATIBILITY, None)

    def set_schema_validation_enforced(self, name: str, value: bool) -> None:
        """Set whether new producers without a schema are refused with `IncompatibleSchema` by topics that
        have one. Open topics of all processes follow within 50 ms.

        Args:
            name: of the topic or namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("schema-validation-enforced")
            ...     admin.topics().set_schema_validation_enforced("schema-validation-enforced", True)
            ...     admin.topics().get_schema_validation_enforced("schema-validation-enforced") == True
            ...     admin.topics().remove_schema_validation_enforced("schema-validation-enforced")
            True
        """
        self._set(name, admitting.SCHEMA_VALIDATION, value)

    def get_schema_validation_enforced(self, name: str, applied: bool = False) -> bool | None:
        """Return the value that is set for this topic or namespace; None if none is set. With ``applied``,
        the value that holds."""
        return self._get(name, admitting.SCHEMA_VALIDATION, applied)

    def remove_schema_validation_enforced(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.SCHEMA_VALIDATION, None)

    def set_deduplication_status(self, name: str, enabled: bool) -> None:
        """Switch deduplication on or off, in open topics of all processes at once.

        The existing messages of a topic are read first, and count as stored.

        Args:
            name: of the topic or namespace.
            enabled: whether a message with the same producer name and sequence id is stored only once.

        Raises:
            ValueError: ``enabled`` is not a bool.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("payments")
            ...     admin.topics().set_deduplication_status("payments", True)
            ...     admin.topics().get_deduplication_status("payments")
            ...     admin.topics().remove_deduplication_status("payments")
            True
        """
        if not isinstance(enabled, bool):
            raise ValueError(f"enabled is True or False, not {enabled!r}; remove_deduplication_status unsets")
        self._set(name, admitting.DEDUPLICATION, enabled)

    def get_deduplication_status(self, name: str) -> bool | None:
        """Return the value set for this topic or namespace; None if it is not set."""
        return self._get(name, admitting.DEDUPLICATION)

    def remove_deduplication_status(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.DEDUPLICATION, None)

    # end of methods of policies


def _quota_policy(quota_type: str) -> TopicPolicy[BacklogQuota]:
    if quota_type not in keeping.QUOTAS:
        raise ValueError(f"the type of a backlog quota is {' or '.join(keeping.QUOTAS)}, not {quota_type!r}")
    return keeping.QUOTAS[quota_type]
