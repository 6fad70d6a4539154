"""Policies that decide what is created and opened: topics, subscriptions, their types, encryption."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from embeddedpulsar._engine.store.policies.admitting import (
    ENCRYPTION_REQUIRED,
    MAX_TOPICS,
    SUBSCRIPTION_TYPES,
    type_names,
)
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import (
    BrokerMetadataError,
    NotAllowedError,
)
from embeddedpulsar.topic_name import PARTITION_SUFFIX, TopicName

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.catalog.catalog import Catalog
    from embeddedpulsar._engine.store.policies.policy_documents import HeldPolicies, PolicyDocuments


class PolicedTopic(Protocol):
    """The part of an open topic that says which policies hold."""

    @property
    def name(self) -> str: ...
    @property
    def policies(self) -> HeldPolicies: ...


def check_subscription_type(topic: PolicedTopic, consumer_type: ConsumerType) -> None:
    """Refuse a type of subscription that is not enabled.

    Raises:
        NotAllowedError: it is not.
    """
    enabled = topic.policies.value(SUBSCRIPTION_TYPES)
    if consumer_type not in enabled:
        raise NotAllowedError(
            f"{topic.name} has no subscriptions of the type {consumer_type.name}: subscription_types_enabled "
            f"says {', '.join(type_names(enabled))}"
        )


def check_encryption(topic: PolicedTopic, *, is_encrypting: bool) -> None:
    """Refuse a producer that does not encrypt, if it has to.

    Raises:
        BrokerMetadataError: it does not.
    """
    if not is_encrypting and topic.policies.value(ENCRYPTION_REQUIRED):
        raise BrokerMetadataError(
            f"Encryption is required in {topic.name}: create the producer with an encryption key, or change "
            "encryptionRequireOnProducer in broker.conf or the policy of the namespace"
        )


def check_topics(policies: PolicyDocuments, catalog: Catalog, name: TopicName, more: int) -> None:
    """Refuse ``more`` topics in the namespace of a topic, if that exceeds its limit.

    Call under the catalog lock, with which topics are made. Each partition is a topic, and counts when its
    partitioned topic is made or grows.

    Raises:
        NotAllowedError: the limit is exceeded.
    """
    namespace = name.namespace_name
    limit = policies.value(MAX_TOPICS, namespace)
    if not limit:
        return
    topics = 0
    for full_name, partitions in catalog.listed_in(namespace):
        # A partition that was opened is in the catalog beside its topic, which counts all of them already.
        base = catalog.find(TopicName.parse(full_name).base) if PARTITION_SUFFIX in full_name else None
        is_counted_with_base = base is not None and base.partitions and base.name != full_name
        # A partitioned topic counts as many as it has partitions.
        topics += 0 if is_counted_with_base else max(1, partitions)
    if topics + more > limit:
        raise NotAllowedError(
            f"{name.full} cannot be made: the namespace {namespace} has {topics} topics, and its limit is "
            f"{limit} (max_topics_per_namespace); delete topics, or raise the limit"
        )
