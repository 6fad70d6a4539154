"""Policies that limit how many there may be: producers, consumers, subscriptions, topics. 0 is no limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.exceptions import InvalidConfiguration, NotAllowedError
from embeddedpulsar.topic.policies.topic_policy import TopicPolicy, reading
from embeddedpulsar.topic_name import PARTITION_SUFFIX, TopicName

if TYPE_CHECKING:
    from embeddedpulsar.topic.catalog.catalog import Catalog
    from embeddedpulsar.topic.policies.policy_documents import PolicyDocuments

MOST: Final = 1 << 31
"""No limit is higher."""

Limit = TopicPolicy[int]
Limits = Callable[[Sequence[TopicPolicy[Any]]], list[Any]]
"""Reads the values of some policies that hold for a topic."""


def _checked(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= MOST:
        raise InvalidConfiguration(f"a limit is a number from 0, which means none, to {MOST}, not {limit!r}")
    return limit


def _limit(key: str, setting: str, for_letters: int | None = None) -> Limit:
    default: Callable[[Any], int] = attrgetter(setting)
    return TopicPolicy(
        key,
        lambda settings, own: default(settings),
        _checked,
        reading(_checked, "a limit"),
        for_letters=for_letters,
    )


MAX_PRODUCERS: Final = _limit("max_producers_per_topic", "maxProducersPerTopic")
MAX_CONSUMERS: Final = _limit("max_consumers_per_topic", "maxConsumersPerTopic")
MAX_CONSUMERS_PER_SUBSCRIPTION: Final = _limit(
    "max_consumers_per_subscription", "maxConsumersPerSubscription"
)
MAX_SUBSCRIPTIONS: Final = _limit("max_subscriptions_per_topic", "maxSubscriptionsPerTopic")
MAX_UNACKED_PER_CONSUMER: Final = _limit("max_unacked_messages_per_consumer", "maxUnackedMessagesPerConsumer")
MAX_UNACKED_PER_SUBSCRIPTION: Final = _limit(
    "max_unacked_messages_per_subscription", "maxUnackedMessagesPerSubscription"
)


def _checked_size(session: Any, size: int) -> int:
    most = session.settings.maxMessageSize
    if size > most:
        raise InvalidConfiguration(
            f"a message of a topic has at most maxMessageSize of broker.conf, {most} bytes, not {size}"
        )
    return size


MAX_MESSAGE_SIZE: Final = TopicPolicy[int](
    "maxMessageSize", lambda settings, own: 0, _checked, reading(_checked, "a limit"), amend=_checked_size
)
"""Bytes of a message of a topic; 0 for as many as the store allows."""
MAX_TOPICS: Final = _limit("max_topics_per_namespace", "maxTopicsPerNamespace")
MESSAGE_TTL: Final = _limit("message_ttl_in_seconds", "ttlDurationDefaultInSeconds", for_letters=0)
"""Seconds after which a message counts as acknowledged; 0 for never."""
SUBSCRIPTION_EXPIRATION: Final = _limit(
    "subscription_expiration_time_minutes", "subscriptionExpirationTimeMinutes", for_letters=0
)
"""Minutes without consumers after which a durable subscription is deleted; 0 for never."""


def check_topics(policies: PolicyDocuments, catalog: Catalog, name: TopicName, more: int) -> None:
    """Refuse ``more`` topics in the namespace of a topic, if that exceeds its limit.

    Call under the catalog lock, with which topics are made. Each partition is a topic, and counts when its
    partitioned topic is made or grows.

    Raises:
        NotAllowedError: the limit is exceeded.
    """
    namespace = name.namespace_name
    most = policies.value(MAX_TOPICS, namespace)
    if not most:
        return
    there = 0
    for one, partitions in catalog.listed_in(namespace):
        base = catalog.find(TopicName.parse(one).base) if PARTITION_SUFFIX in one else None
        is_counted_with_base = base is not None and base.partitions and base.name != one
        there += 0 if is_counted_with_base else max(1, partitions)
    if there + more > most:
        raise NotAllowedError(
            f"{name.full} cannot be made: the namespace {namespace} has {there} topics, and its limit is "
            f"{most} (max_topics_per_namespace); delete topics, or raise the limit"
        )
