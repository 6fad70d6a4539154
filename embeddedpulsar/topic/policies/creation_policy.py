"""Policies that decide what is created and opened: topics, subscriptions, their types, encryption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import (
    BrokerMetadataError,
    CorruptionError,
    InvalidConfiguration,
    NotAllowedError,
)
from embeddedpulsar.policy_values import (
    PARTITIONED,
    AutoSubscriptionCreationOverride,
    AutoTopicCreationOverride,
    DelayedDeliveryPolicies,
    from_fields,
    to_fields,
)
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.topic.policies.topic_policy import TopicPolicy

if TYPE_CHECKING:
    from embeddedpulsar.topic.policies.held_policies import HeldPolicies

SUBSCRIPTION_TYPE_NAMES: Final = {
    "Exclusive": ConsumerType.Exclusive,
    "Failover": ConsumerType.Failover,
    "Shared": ConsumerType.Shared,
    "Key_Shared": ConsumerType.KeyShared,
}
"""The types by the names that Pulsar's documents have."""


class PolicedTopic(Protocol):
    """The part of an open topic that says which policies hold."""

    @property
    def name(self) -> str: ...
    @property
    def policies(self) -> HeldPolicies: ...


def _topic_creation(settings: BrokerSettings, own: Sequence[Any]) -> AutoTopicCreationOverride:
    partitions = settings.defaultNumPartitions if settings.allowAutoTopicCreationType == PARTITIONED else None
    return AutoTopicCreationOverride(
        settings.allowAutoTopicCreation, settings.allowAutoTopicCreationType, partitions
    )


def _type_names(types: Any) -> list[str]:
    wanted = set(types) if isinstance(types, set | frozenset | list | tuple) else set()
    if not wanted or not wanted <= set(SUBSCRIPTION_TYPE_NAMES.values()):
        raise InvalidConfiguration(f"the enabled types are a set of one ConsumerType or more, not {types!r}")
    return [name for name, one in SUBSCRIPTION_TYPE_NAMES.items() if one in wanted]


def _read_types(form: Any) -> frozenset[ConsumerType]:
    try:
        return frozenset(SUBSCRIPTION_TYPE_NAMES[name] for name in form)
    except (KeyError, TypeError) as e:
        raise CorruptionError(reason=f"a policy document with subscription types that are none: {e!r}") from e


def check_type(topic: PolicedTopic, consumer_type: ConsumerType) -> None:
    """Refuse a type of subscription that is not enabled.

    Raises:
        NotAllowedError: it is not.
    """
    enabled = topic.policies.value(SUBSCRIPTION_TYPES)
    if consumer_type not in enabled:
        raise NotAllowedError(
            f"{topic.name} has no subscriptions of the type {consumer_type.name}: subscription_types_enabled "
            f"says {', '.join(_type_names(enabled))}"
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


def checked_flag(value: bool) -> bool:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise InvalidConfiguration(f"write True or False, not {value!r}")
    return value


AUTO_TOPIC_CREATION: Final = TopicPolicy[AutoTopicCreationOverride](
    "autoTopicCreationOverride",
    _topic_creation,
    to_fields,
    lambda form: from_fields(AutoTopicCreationOverride, form),
)
"""Whether, and of which kind, topics of a namespace are created when they are first used."""

AUTO_SUBSCRIPTION_CREATION: Final = TopicPolicy[AutoSubscriptionCreationOverride](
    "autoSubscriptionCreationOverride",
    lambda settings, own: AutoSubscriptionCreationOverride(settings.allowAutoSubscriptionCreation),
    to_fields,
    lambda form: from_fields(AutoSubscriptionCreationOverride, form),
)
"""Whether durable subscriptions are created by their first consumer."""

SUBSCRIPTION_TYPES: Final = TopicPolicy[frozenset[ConsumerType]](
    "subscription_types_enabled",
    lambda settings, own: frozenset(SUBSCRIPTION_TYPE_NAMES.values()),
    _type_names,
    _read_types,
)
"""Which types of subscriptions consumers may have. A reader is Exclusive."""

ENCRYPTION_REQUIRED: Final = TopicPolicy[bool](
    "encryption_required", lambda settings, own: settings.encryptionRequireOnProducer, checked_flag, bool
)
"""Whether producers have to encrypt."""

DELAYED_DELIVERY: Final = TopicPolicy[DelayedDeliveryPolicies](
    "delayed_delivery_policies",
    lambda settings, own: DelayedDeliveryPolicies(
        settings.delayedDeliveryEnabled, settings.delayedDeliveryTickTimeMillis
    ),
    to_fields,
    lambda form: from_fields(DelayedDeliveryPolicies, form),
)
"""Whether messages are delayed that were sent with a delay."""
