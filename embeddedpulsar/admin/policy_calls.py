"""What `Topics` and `Namespaces` share: policies, and the error for a method that they do not have."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Final, NoReturn

from embeddedpulsar.admin.limit_calls import limit_calls
from embeddedpulsar.admin.offload_calls import with_absolute_location
from embeddedpulsar.admin.value_calls import value_calls
from embeddedpulsar.error_text import nearest
from embeddedpulsar.platform import interrupts
from embeddedpulsar.policies import Retention
from embeddedpulsar.topic.backlog_quotas import QUOTAS
from embeddedpulsar.topic.policies import creation_policy, topic_limits, topic_policy
from embeddedpulsar.topic.policies.topic_policy import (
    COMPACTION_THRESHOLD,
    DEDUPLICATION,
    KEEP_UNTIL_SUBSCRIBED,
    RETENTION,
)
from embeddedpulsar.topic.schemas import schema_policies

if TYPE_CHECKING:
    from embeddedpulsar.topic.store import Store


# A word in the name of a Pulsar method, and the feature it belongs to.
_NOT_BUILT: Final = {
    "stats": "statistics of other things than topics",
    "cluster": "clusters",
    "broker": "brokers: Admin.brokers() has settings only",
    "bookie": "bookies",
    "source": "connectors",
    "sink": "connectors",
    "transaction": "transactions",
    "permission": "permissions: those of the directory count",
    "replicat": "replication",
    "polic": "other policies than deduplication, retention and limits",
    "propert": "properties of topics",
}


class SaysWhatThereIs:
    """Adds the similar or available methods, or the feature that is not built, to the error for a method that
    is not there. What the methods of the classes below it raise is named as `interrupts.translate` does."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in dir(cls):  # those of its bases, too: not all of them are below this class
            if name.startswith("_") and name != "__init__":
                continue
            method = next(vars(base)[name] for base in cls.__mro__ if name in vars(base))
            if isinstance(method, FunctionType) and not interrupts.is_translating(method):
                setattr(cls, name, interrupts.translating(method))
            elif isinstance(method, staticmethod):
                setattr(cls, name, staticmethod(interrupts.translating(method.__func__)))

    if not TYPE_CHECKING:  # a type checker must report such a name itself

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(_text(type(self), name), name=name, obj=self)


def _text(kind: type, name: str) -> str:
    text = f"{kind.__name__!r} object has no attribute {name!r}"
    if name.startswith("_"):
        return text
    there = [one for one in dir(kind) if not one.startswith("_")]
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    if snake in there:
        return f"{text}; it is written {snake}()"
    for call, part in getattr(kind, "_parts", {}).items():
        if hasattr(part, snake):
            return f"{text}; it is {call}.{snake}()"
    listed = f"it has {', '.join(there)}"
    feature = next((feature for word, feature in _NOT_BUILT.items() if word in snake), "")
    near = nearest(snake, there, 0.9 if feature else 0.7)
    near = near or next((one for one in there if one.startswith(f"{snake}_")), None)
    near = near or next((one for one in there if snake in one.split("_")), None)
    if near:
        return f"{text}; did you mean {near}()? {listed}"
    if feature:
        return f"{text}; not built yet: {feature}; {listed}"
    return f"{text}; {listed}"


class PolicyCalls(SaysWhatThereIs, ABC):
    """The methods that `Topics` and `Namespaces` share.

    A policy that is not set for a topic is taken from its namespace, then from ``broker.conf``; for a
    partition, from its topic first. Policies are deleted with their topic. They survive the death of every
    process, and more with the ``durability`` of the Admin. Thread-safe.

    All methods raise `TopicNotFound` if there is no such topic, partition or namespace,
    `InvalidTopicName` for a text that is not a name, `AlreadyClosed` if the Admin is closed, and a
    `StorageError` if files cannot be used.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store

    @abstractmethod
    def _owner(self, name: str) -> str:
        """The name under which the policy is stored."""

    # -- deduplication -----------------------------------------------------------------------------------

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
        with interrupts.translated:
            self._store().set_policy(self._owner(name), DEDUPLICATION, enabled)

    def get_deduplication_status(self, name: str) -> bool | None:
        """Return the value set for this topic or namespace; None if it is not set."""
        return self._store().own_policy(self._owner(name), DEDUPLICATION)

    def remove_deduplication_status(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        with interrupts.translated:
            self._store().set_policy(self._owner(name), DEDUPLICATION, None)

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
        with interrupts.translated:
            retention = Retention(retention_time_in_minutes, retention_size_in_mb).check()
            store, owner = self._store(), self._owner(name)
            for quota in QUOTAS.values():
                store.policy(owner, quota).check_beside(retention)
            store.set_policy(owner, RETENTION, retention)

    def get_retention(self, name: str) -> Retention | None:
        """Return the value set for this topic or namespace; None if it is not set."""
        return self._store().own_policy(self._owner(name), RETENTION)

    def remove_retention(self, name: str) -> None:
        """Unset the retention, so that the inherited one applies. Does nothing if it is not set."""
        with interrupts.translated:
            self._store().set_policy(self._owner(name), RETENTION, None)

    # -- before the first subscription -------------------------------------------------------------------

    def set_keep_until_subscribed(self, name: str, enabled: bool) -> None:
        """Set whether topics keep all messages while they have no durable subscription, independent of their
        retention. Dead letter and retry letter topics do so by default. Not in Pulsar.

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
        with interrupts.translated:
            self._store().set_policy(self._owner(name), KEEP_UNTIL_SUBSCRIBED, enabled)

    def get_keep_until_subscribed(self, name: str) -> bool:
        """Return whether the topic keeps all messages while it has no durable subscription: the value set or
        inherited, otherwise True for a topic of letters, unless ``broker.conf`` sets
        ``letterTopicsKeepUntilSubscribed=false`` or a retention was set for the topic itself."""
        return self._store().policy(self._owner(name), KEEP_UNTIL_SUBSCRIBED)

    def remove_keep_until_subscribed(self, name: str) -> None:
        """Undo `set_keep_until_subscribed`. Does nothing if it is not set."""
        with interrupts.translated:
            self._store().set_policy(self._owner(name), KEEP_UNTIL_SUBSCRIBED, None)

    # -- creation ----------------------------------------------------------------------------------------

    set_auto_subscription_creation, get_auto_subscription_creation, remove_auto_subscription_creation = (
        value_calls(
            creation_policy.AUTO_SUBSCRIPTION_CREATION,
            "auto_subscription_creation",
            "whether durable subscriptions are created by their first consumer",
            "AutoSubscriptionCreationOverride(False)",
        )
    )
    set_subscription_types_enabled, get_subscription_types_enabled, remove_subscription_types_enabled = (
        value_calls(
            creation_policy.SUBSCRIPTION_TYPES,
            "subscription_types_enabled",
            "the types of subscriptions that new consumers may have, as a set of `ConsumerType`; others are "
            "refused with `NotAllowedError`. A reader is Exclusive",
            "{ConsumerType.Shared}",
            "embeddedpulsar",
        )
    )

    # -- schemas -----------------------------------------------------------------------------------------

    (
        set_schema_compatibility_strategy,
        get_schema_compatibility_strategy,
        remove_schema_compatibility_strategy,
    ) = value_calls(
        schema_policies.SCHEMA_COMPATIBILITY,
        "schema_compatibility_strategy",
        "which schemas a topic accepts beside those it has: a `SchemaCompatibilityStrategy`, or its name",
        'SchemaCompatibilityStrategy["BACKWARD"]',
        "embeddedpulsar",
    )
    set_schema_validation_enforced, get_schema_validation_enforced, remove_schema_validation_enforced = (
        value_calls(
            schema_policies.SCHEMA_VALIDATION,
            "schema_validation_enforced",
            "whether new producers without a schema are refused with `IncompatibleSchema` by topics that "
            "have one",
            "True",
        )
    )

    # -- compaction --------------------------------------------------------------------------------------

    def set_compaction_threshold(self, name: str, threshold: int) -> None:
        """Have topics compacted in the background whenever so many bytes were stored since the last
        compaction. It is looked at every ``brokerServiceCompactionMonitorIntervalInSeconds`` in the processes
        that use the topic.

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
        with interrupts.translated:
            self._store().set_policy(self._owner(name), COMPACTION_THRESHOLD, threshold)

    def get_compaction_threshold(self, name: str) -> int | None:
        """Return the threshold set for this topic or namespace; None if it is not set."""
        return self._store().own_policy(self._owner(name), COMPACTION_THRESHOLD)

    def remove_compaction_threshold(self, name: str) -> None:
        """Unset the threshold, so that the inherited one applies. Does nothing if it is not set."""
        with interrupts.translated:
            self._store().set_policy(self._owner(name), COMPACTION_THRESHOLD, None)

    # -- offloading --------------------------------------------------------------------------------------

    set_offload_policies, get_offload_policies, remove_offload_policies = value_calls(
        topic_policy.OFFLOAD_POLICIES,
        "offload_policies",
        "where closed ledgers are moved, and when",
        "OffloadPolicies('/mnt/cold', 1 << 30)",
        kept=with_absolute_location,
    )
    set_offload_threshold, get_offload_threshold, remove_offload_threshold = value_calls(
        topic_policy.OFFLOAD_THRESHOLD,
        "offload_threshold",
        "how many bytes of a topic stay in the store, as a number: older ledgers are offloaded; -1 for never",
    )
    (
        set_offload_threshold_in_seconds,
        get_offload_threshold_in_seconds,
        remove_offload_threshold_in_seconds,
    ) = value_calls(
        topic_policy.OFFLOAD_THRESHOLD_SECONDS,
        "offload_threshold_in_seconds",
        "how many seconds after its end a ledger is offloaded, as a number; -1 for never",
    )
    set_offload_deletion_lag, get_offload_deletion_lag, remove_offload_deletion_lag = value_calls(
        topic_policy.OFFLOAD_DELETION_LAG,
        "offload_deletion_lag",
        "for how many milliseconds the log of an offloaded ledger stays in the store, as a number",
    )

    # -- limits ------------------------------------------------------------------------------------------

    (
        set_max_consumers_per_subscription,
        get_max_consumers_per_subscription,
        remove_max_consumers_per_subscription,
    ) = limit_calls(
        topic_limits.MAX_CONSUMERS_PER_SUBSCRIPTION,
        "max_consumers_per_subscription",
        "consumers of a subscription",
        "ConsumerBusy",
    )
    (
        set_max_subscriptions_per_topic,
        get_max_subscriptions_per_topic,
        remove_max_subscriptions_per_topic,
    ) = limit_calls(
        topic_limits.MAX_SUBSCRIPTIONS,
        "max_subscriptions_per_topic",
        "durable subscriptions of a topic or partition",
        "NotAllowedError",
    )
