"""The methods of `Topics` and `Namespaces` that set what is taken away as time passes, and quotas."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from embeddedpulsar.backlog_quota import DESTINATION_STORAGE, BacklogQuota
from embeddedpulsar.platform import interrupts
from embeddedpulsar.policy_values import InactiveTopicPolicies
from embeddedpulsar.topic.backlog_quotas import QUOTAS
from embeddedpulsar.topic.inactive_topics import INACTIVE_TOPICS
from embeddedpulsar.topic.policies.topic_limits import MESSAGE_TTL, SUBSCRIPTION_EXPIRATION
from embeddedpulsar.topic.policies.topic_policy import RETENTION

if TYPE_CHECKING:
    from embeddedpulsar.topic.policies.topic_policy import TopicPolicy, Value
    from embeddedpulsar.topic.store import Store


class ExpiryCalls(ABC):
    """See `PolicyCalls` for levels and errors.

    A ``get`` method returns the value that is set for the name itself, None for none; with ``applied=True``
    the value that holds, whatever level it is from.
    """

    _store: Callable[[], Store]

    @abstractmethod
    def _owner(self, name: str) -> str:
        """The name under which the policy is stored."""

    def _set(self, name: str, policy: TopicPolicy[Value], value: Value | None) -> None:
        with interrupts.translated:
            self._store().set_policy(self._owner(name), policy, value)

    def _get(self, name: str, policy: TopicPolicy[Value], applied: bool) -> Value | None:
        store, owner = self._store(), self._owner(name)
        return store.policy(owner, policy) if applied else store.own_policy(owner, policy)

    # -- message expiry ----------------------------------------------------------------------------------

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
        self._set(name, MESSAGE_TTL, seconds)

    def get_message_ttl(self, name: str, applied: bool = False) -> int | None:
        """Return the time to live in seconds."""
        return self._get(name, MESSAGE_TTL, applied)

    def remove_message_ttl(self, name: str) -> None:
        """Unset the time to live, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, MESSAGE_TTL, None)

    # -- expiration of subscriptions ---------------------------------------------------------------------

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
        self._set(name, SUBSCRIPTION_EXPIRATION, minutes)

    def get_subscription_expiration_time(self, name: str, applied: bool = False) -> int | None:
        """Return the time in minutes."""
        return self._get(name, SUBSCRIPTION_EXPIRATION, applied)

    def remove_subscription_expiration_time(self, name: str) -> None:
        """Unset the time, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, SUBSCRIPTION_EXPIRATION, None)

    # -- deletion of inactive topics ---------------------------------------------------------------------

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
        self._set(name, INACTIVE_TOPICS, policies)

    def get_inactive_topic_policies(self, name: str, applied: bool = False) -> InactiveTopicPolicies | None:
        """Return when the topic, or those of the namespace, are deleted."""
        return self._get(name, INACTIVE_TOPICS, applied)

    def remove_inactive_topic_policies(self, name: str) -> None:
        """Unset the policies, so that the inherited ones apply. Does nothing if they are not set."""
        self._set(name, INACTIVE_TOPICS, None)

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
            >>> from embeddedpulsar.backlog_quota import BacklogQuota
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
        with interrupts.translated:
            owner = self._owner(name)
            quota.check().check_beside(self._store().policy(owner, RETENTION))
        self._set(name, policy, quota)

    def get_backlog_quota_map(self, name: str, applied: bool = False) -> dict[str, BacklogQuota]:
        """Return the quotas by type; a type without a quota is left out."""
        found = {kind: self._get(name, policy, applied) for kind, policy in QUOTAS.items()}
        return {kind: quota for kind, quota in found.items() if quota is not None}

    def remove_backlog_quota(self, name: str, quota_type: str = DESTINATION_STORAGE) -> None:
        """Unset the quota of a type, so that the inherited one applies. Does nothing if it is not set.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.backlog_quota import BacklogQuota
            >>> with Admin("./data") as admin:
            ...     admin.namespaces().set_backlog_quota("public/default", BacklogQuota(limit_size=1 << 30))
            ...     admin.namespaces().remove_backlog_quota("public/default")
            ...     admin.namespaces().get_backlog_quota_map("public/default")
            {}
        """
        self._set(name, _quota_policy(quota_type), None)


def _quota_policy(quota_type: str) -> TopicPolicy[BacklogQuota]:
    if quota_type not in QUOTAS:
        raise ValueError(f"the type of a backlog quota is {' or '.join(QUOTAS)}, not {quota_type!r}")
    return QUOTAS[quota_type]
