"""Policies of what a topic admits, and how fast: rates, numbers, creation, schemas, duplicates.

A sheet of `_engine.store.policies.policy_documents`, which says what a row is.
"""

from __future__ import annotations

from collections.abc import Sequence

from embeddedpulsar._engine.store.policies import resource_groups
from embeddedpulsar._engine.store.policies.policy import (
    BOTH,
    LARGEST_LIMIT,
    NAMESPACES,
    TOPICS,
    Calls,
    ChangingTopic,
    Fields,
    Option,
    Setting,
    TopicPolicy,
    checked_limit,
    fields_policy,
    limit_calls,
    limit_policy,
    number_policy,
    reading,
    switch_policy,
)
from embeddedpulsar.enums import ConsumerType, SchemaCompatibilityStrategy
from embeddedpulsar.exceptions import CorruptionError, InvalidConfiguration
from embeddedpulsar.policy_values import (
    NON_PARTITIONED,
    PARTITIONED,
    SUBSCRIPTION_TYPE_NAMES,
    AutoSubscriptionCreationOverride,
    AutoTopicCreationOverride,
    DelayedDeliveryPolicies,
    DispatchRate,
    PublishRate,
    SubscribeRate,
)
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.settings import BrokerSettings

if TYPE_CHECKING:
    from typing import Any, Final

_MOST_A_PERIOD: Final = 1 << 50
_MOST_UNACKED: Final = (1 << 32) - 1
_ENABLE: Final = "-e/-d --enable/--disable"

# -- rates -------------------------------------------------------------------------------------------------

PUBLISH_RATE: Final = fields_policy(
    PublishRate,
    "publishMaxMessageRate",
    (
        Setting("maxPublishRatePerTopicInMessages", 0, 0, _MOST_A_PERIOD, is_dynamic=True),
        Setting("maxPublishRatePerTopicInBytes", 0, 0, _MOST_A_PERIOD, is_dynamic=True),
    ),
    title="[publish rate](#rates)",
    otherwise="0: no limit",
    calls=(
        Calls(
            BOTH,
            "publish_rate",
            "how much the producers of a topic or partition may publish together. Further sends wait",
            "PublishRate(1000, 1 << 20)",
            verb="publish-rate",
            help="how much the producers of a topic may publish",
            options=(
                Option("-m --msg-publish-rate", "Messages a second; -1 for no limit.", default=-1),
                Option("-b --byte-publish-rate", "Bytes a second; -1 for no limit.", default=-1),
            ),
        ),
    ),
)
"""How much may be published to a topic."""

_RELATIVE: Final = Setting("dispatchThrottlingRateRelativeToPublishRate", False, is_dynamic=True)
_DISPATCH_OPTIONS: Final = (
    Option("-md --msg-dispatch-rate", "Messages in a period; -1 for no limit.", default=-1),
    Option("-bd --byte-dispatch-rate", "Bytes in a period; -1 for no limit.", default=-1),
    Option("-dt --dispatch-rate-period", "Seconds of a period.", default=1),
    Option("-p --relative-to-publish-rate", "Add what is published.", "flag", False),
)

DISPATCH_RATE: Final = fields_policy(
    DispatchRate,
    "topicDispatchRate",
    (
        Setting("dispatchThrottlingRatePerTopicInMsg", 0, 0, _MOST_A_PERIOD, is_dynamic=True),
        Setting("dispatchThrottlingRatePerTopicInByte", 0, 0, _MOST_A_PERIOD, is_dynamic=True),
        _RELATIVE,
    ),
    lambda settings, own: DispatchRate(
        settings.dispatchThrottlingRatePerTopicInMsg,
        settings.dispatchThrottlingRatePerTopicInByte,
        1,
        settings.dispatchThrottlingRateRelativeToPublishRate,
    ),
    title="[dispatch rate of a topic](#rates)",
    otherwise="0: no limit",
    calls=(
        Calls(
            BOTH,
            "dispatch_rate",
            "how much the consumers and readers of a topic or partition receive together",
            "DispatchRate(1000)",
            verb="dispatch-rate",
            help="how much the consumers of a topic receive",
            options=_DISPATCH_OPTIONS,
        ),
    ),
)
"""How much all subscriptions and readers of a topic get together."""

SUBSCRIPTION_DISPATCH_RATE: Final = fields_policy(
    DispatchRate,
    "subscriptionDispatchRate",
    (
        Setting("dispatchThrottlingRatePerSubscriptionInMsg", 0, 0, _MOST_A_PERIOD, is_dynamic=True),
        Setting("dispatchThrottlingRatePerSubscriptionInByte", 0, 0, _MOST_A_PERIOD, is_dynamic=True),
        _RELATIVE,
    ),
    lambda settings, own: DispatchRate(
        settings.dispatchThrottlingRatePerSubscriptionInMsg,
        settings.dispatchThrottlingRatePerSubscriptionInByte,
        1,
        settings.dispatchThrottlingRateRelativeToPublishRate,
    ),
    title="[dispatch rate of each subscription](#rates)",
    otherwise="0: no limit",
    calls=(
        Calls(
            BOTH,
            "subscription_dispatch_rate",
            "how much the consumers of each subscription of a topic or partition receive together",
            "DispatchRate(-1, 1 << 20)",
            verb="subscription-dispatch-rate",
            help="how much the consumers of each subscription receive",
            options=_DISPATCH_OPTIONS,
        ),
    ),
)
"""How much each subscription of a topic gets."""

IN_GROUP: Final = resource_groups.GROUP_NAME._replace(  # which the groups themselves read
    kind=str,
    title="[resource group](#resource-groups)",
    otherwise="none",
    calls=(
        Calls(
            TOPICS,
            "resource_group",
            "the resource group of the topic; see `ResourceGroups`",
            '"batch-jobs"',
            verb="resource-group",
            help="the resource group",
            options=(Option("-rgn --resource-group-name", "Its name.", "str", parameter="group"),),
        ),
        Calls(
            NAMESPACES,
            "namespace_resource_group",
            "the resource group of the topics of the namespace, by its name; see `ResourceGroups`",
            '"batch-jobs"',
            verb="resource-group",
            help="the resource group",
            options=(Option("-rgn --resource-group-name", "Its name.", "str", parameter="group"),),
        ),
    ),
)
"""The group that a topic is in, and that the topics of a namespace are in."""

SUBSCRIBE_RATE: Final = fields_policy(
    SubscribeRate,
    "clusterSubscribeRate",
    (
        Setting("subscribeThrottlingRatePerConsumer", 0, 0, 1 << 31, is_dynamic=True),
        Setting("subscribeRatePeriodPerConsumerInSecond", 30, 1, 1 << 20, is_dynamic=True),
    ),
    title="[subscribe rate](#subscribe-rate)",
    otherwise="0: no limit",
    calls=(
        Calls(
            BOTH,
            "subscribe_rate",
            "how often a consumer, known by its name, may subscribe to a topic or partition. Beyond that "
            "`NotAllowedError` is raised",
            "SubscribeRate(10, 60)",
            verb="subscribe-rate",
            help="how often a consumer may subscribe",
            options=(
                Option("-sr --subscribe-rate", "-1 for no limit.", default=-1, parameter="rate"),
                Option("-st --subscribe-rate-period", "In seconds.", default=30, parameter="period"),
            ),
        ),
    ),
)
"""How often a consumer may subscribe."""

# -- sizes and numbers -------------------------------------------------------------------------------------


def _checked_size(session: Any, size: int) -> int:
    limit = session.settings.maxMessageSize
    if size > limit:
        raise InvalidConfiguration(
            f"a message of a topic has at most maxMessageSize of broker.conf, {limit} bytes, not {size}"
        )
    return size


MAX_MESSAGE_SIZE: Final = number_policy(
    "maxMessageSize",
    checked_limit,
    "a limit",
    (Setting("maxMessageSize", 5_242_880, 1, 1 << 30),),
    default=lambda settings, own: 0,
    amend=_checked_size,
    title="[size of messages](#size-of-messages), of a topic",
    otherwise="as many bytes as the store allows",
    calls=(
        Calls(
            TOPICS,
            "max_message_size",
            "how many bytes a message of the topic may have, with its key and properties, 0 for as many as "
            "``maxMessageSize`` of ``broker.conf`` allows. Larger ones are refused with `MessageTooBig`, or "
            "stored in parts if the producer has chunking; a batch counts as one message",
            verb="max-message-size",
            help="how many bytes a message may have",
            options=(
                Option(
                    "--max-message-size -m",
                    "Bytes, or such as 1M; 0 for as many as broker.conf allows.",
                    "size",
                    parameter="number",
                ),
            ),
        ),
    ),
)
"""Bytes of a message of a topic; 0 for as many as the store allows."""

MAX_PRODUCERS: Final = limit_policy(
    "max_producers_per_topic",
    Setting("maxProducersPerTopic", 0, 0, LARGEST_LIMIT),
    title="[number of producers](admin.md)",
    otherwise="0: no limit",
    calls=(
        limit_calls(
            TOPICS,
            "max_producers",
            "producers of a topic or partition",
            "ProducerBusy",
            "how many producers a topic may have",
            "--max-producers -p",
        ),
        limit_calls(
            NAMESPACES,
            "max_producers_per_topic",
            "producers of each topic",
            "ProducerBusy",
            "how many producers a topic may have",
            "--max-producers-per-topic -p",
        ),
    ),
)

MAX_CONSUMERS: Final = limit_policy(
    "max_consumers_per_topic",
    Setting("maxConsumersPerTopic", 0, 0, LARGEST_LIMIT),
    title="[number of consumers](admin.md)",
    otherwise="0: no limit",
    calls=(
        limit_calls(
            TOPICS,
            "max_consumers",
            "consumers of a topic or partition",
            "ConsumerBusy",
            "how many consumers a topic may have",
            "--max-consumers -c",
        ),
        limit_calls(
            NAMESPACES,
            "max_consumers_per_topic",
            "consumers of each topic",
            "ConsumerBusy",
            "how many consumers a topic may have",
            "--max-consumers-per-topic -c",
        ),
    ),
)

MAX_CONSUMERS_PER_SUBSCRIPTION: Final = limit_policy(
    "max_consumers_per_subscription",
    Setting("maxConsumersPerSubscription", 0, 0, LARGEST_LIMIT),
    title="[number of consumers](admin.md) of a subscription",
    otherwise="0: no limit",
    calls=(
        limit_calls(
            BOTH,
            "max_consumers_per_subscription",
            "consumers of a subscription",
            "ConsumerBusy",
            "how many consumers a subscription may have",
            "--max-consumers-per-subscription -c",
        ),
    ),
)

MAX_SUBSCRIPTIONS: Final = limit_policy(
    "max_subscriptions_per_topic",
    Setting("maxSubscriptionsPerTopic", 0, 0, LARGEST_LIMIT),
    title="[number of subscriptions](admin.md)",
    otherwise="0: no limit",
    calls=(
        limit_calls(
            BOTH,
            "max_subscriptions_per_topic",
            "durable subscriptions of a topic or partition",
            "NotAllowedError",
            "how many subscriptions a topic may have",
            "--max-subscriptions-per-topic -s -m",
        ),
    ),
)

MAX_TOPICS: Final = limit_policy(
    "max_topics_per_namespace",
    Setting("maxTopicsPerNamespace", 0, 0, LARGEST_LIMIT),
    title="[number of topics](admin.md), of a namespace",
    otherwise="0: no limit",
    calls=(
        limit_calls(
            NAMESPACES,
            "max_topics_per_namespace",
            "topics of the namespace, each partition counted",
            "NotAllowedError",
            "how many topics the namespace may have",
            "--max-topics-per-namespace -t",
        ),
    ),
)

# -- delivery ----------------------------------------------------------------------------------------------


def _delay_calls(levels: tuple[str, ...], name: str) -> Calls:
    return Calls(
        levels,
        name,
        "whether delayed messages wait, also those that wait now, and how early they may be",
        "DelayedDeliveryPolicies(False)",
        verb="delayed-delivery",
        help="whether delayed messages wait",
        options=(
            Option(_ENABLE, "Whether they wait.", "switch", True),
            Option("-t --time", "Milliseconds, or 1s.", "ticks", "1s", parameter="tick_ms"),
        ),
    )


DELAYED_DELIVERY: Final = fields_policy(
    DelayedDeliveryPolicies,
    "delayed_delivery_policies",
    (Setting("delayedDeliveryEnabled", True), Setting("delayedDeliveryTickTimeMillis", 1000, 1, 1 << 31)),
    title="delays",
    otherwise="on; messages that wait follow a change",
    calls=(
        _delay_calls(TOPICS, "delayed_delivery_policy"),
        _delay_calls(NAMESPACES, "delayed_delivery_messages"),
    ),
)
"""Whether messages are delayed that were sent with a delay."""


def _unacked_calls(levels: tuple[str, ...], name: str, text: str, of: str, options: str) -> Calls:
    return Calls(
        levels,
        name,
        text,
        verb=f"max-unacked-messages-per-{of}",
        help=f"how many unacknowledged messages a {of} may hold",
        options=(Option(options, "0 for no limit.", parameter="number"),),
    )


_OF_A_CONSUMER: Final = (
    "how many messages a consumer of a Shared or Key_Shared subscription may hold unacknowledged, 0 for any "
    "number"
)
_OF_A_SUBSCRIPTION: Final = (
    "how many messages the consumers of a Shared or Key_Shared subscription may hold unacknowledged "
    "together, 0 for any number"
)

MAX_UNACKED_PER_CONSUMER: Final = limit_policy(
    "max_unacked_messages_per_consumer",
    Setting("maxUnackedMessagesPerConsumer", 50_000, 0, _MOST_UNACKED),
    title="unacknowledged messages of a consumer",
    otherwise="50,000; consumers that are attached follow a change",
    calls=(
        _unacked_calls(TOPICS, "max_unacked_messages_on_consumer", _OF_A_CONSUMER, "consumer", "--maxNum -m"),
        _unacked_calls(
            NAMESPACES,
            "max_unacked_messages_per_consumer",
            _OF_A_CONSUMER,
            "consumer",
            "--max-unacked-messages-per-topic -c",
        ),
    ),
)

MAX_UNACKED_PER_SUBSCRIPTION: Final = limit_policy(
    "max_unacked_messages_per_subscription",
    Setting("maxUnackedMessagesPerSubscription", 200_000, 0, _MOST_UNACKED),
    title="unacknowledged messages of a subscription",
    otherwise="200,000; consumers that are attached follow a change",
    calls=(
        _unacked_calls(
            TOPICS, "max_unacked_messages_on_subscription", _OF_A_SUBSCRIPTION, "subscription", "--maxNum -m"
        ),
        _unacked_calls(
            NAMESPACES,
            "max_unacked_messages_per_subscription",
            _OF_A_SUBSCRIPTION,
            "subscription",
            "--max-unacked-messages-per-subscription -c",
        ),
    ),
)

# -- creation ----------------------------------------------------------------------------------------------


def _topic_creation(settings: BrokerSettings, own: Sequence[Fields]) -> AutoTopicCreationOverride:
    partitions = settings.defaultNumPartitions if settings.allowAutoTopicCreationType == PARTITIONED else None
    return AutoTopicCreationOverride(
        settings.allowAutoTopicCreation, settings.allowAutoTopicCreationType, partitions
    )


AUTO_TOPIC_CREATION: Final = fields_policy(
    AutoTopicCreationOverride,
    "autoTopicCreationOverride",
    (
        Setting("allowAutoTopicCreation", True, is_dynamic=True),
        Setting(
            "allowAutoTopicCreationType",
            NON_PARTITIONED,
            choices=(NON_PARTITIONED, PARTITIONED),
            is_dynamic=True,
        ),
        Setting("defaultNumPartitions", 1, 1, 10_000, is_dynamic=True),
    ),
    _topic_creation,
    title="[creation of topics](admin.md), of a namespace",
    otherwise="plain topics are created when they are first used",
    calls=(
        Calls(
            NAMESPACES,
            "auto_topic_creation",
            "whether topics of the namespace are created when they are first used, and of which kind",
            'AutoTopicCreationOverride(True, "partitioned", 4)',
            verb="auto-topic-creation",
            help="whether topics are created when they are first used",
            options=(
                Option(_ENABLE, "Whether they are created.", "switch", True),
                Option("-t --type", "Or partitioned.", "str", NON_PARTITIONED, parameter="kind"),
                Option("-n --num-partitions", "Of a partitioned topic.", default=None),
            ),
        ),
    ),
)
"""Whether, and of which kind, topics of a namespace are created when they are first used."""

AUTO_SUBSCRIPTION_CREATION: Final = fields_policy(
    AutoSubscriptionCreationOverride,
    "autoSubscriptionCreationOverride",
    (Setting("allowAutoSubscriptionCreation", True, is_dynamic=True),),
    title="[creation of subscriptions](admin.md)",
    otherwise="allowed",
    calls=(
        Calls(
            BOTH,
            "auto_subscription_creation",
            "whether durable subscriptions are created by their first consumer",
            "AutoSubscriptionCreationOverride(False)",
            verb="auto-subscription-creation",
            help="whether subscriptions are created by their first consumer",
            options=(Option(_ENABLE, "Whether they are created.", "switch", True),),
        ),
    ),
)
"""Whether durable subscriptions are created by their first consumer."""


def type_names(types: Any) -> list[str]:
    """The names of types of subscriptions.

    Raises:
        InvalidConfiguration: it is no set of types, or empty.
    """
    wanted = set(types) if isinstance(types, set | frozenset | list | tuple) else set()
    if not wanted or not wanted <= set(SUBSCRIPTION_TYPE_NAMES.values()):
        raise InvalidConfiguration(f"the enabled types are a set of one ConsumerType or more, not {types!r}")
    return [name for name, kind in SUBSCRIPTION_TYPE_NAMES.items() if kind in wanted]


def _read_types(form: Any) -> frozenset[ConsumerType]:
    try:
        return frozenset(SUBSCRIPTION_TYPE_NAMES[name] for name in form)
    except (KeyError, TypeError) as e:
        raise CorruptionError(reason=f"a policy document with subscription types that are none: {e!r}") from e


SUBSCRIPTION_TYPES: Final = TopicPolicy[frozenset[ConsumerType]](
    "subscription_types_enabled",
    lambda settings, own: frozenset(SUBSCRIPTION_TYPE_NAMES.values()),
    type_names,
    _read_types,
    kind=frozenset,
    title="[types of subscriptions](admin.md)",
    otherwise="all",
    calls=(
        Calls(
            BOTH,
            "subscription_types_enabled",
            "the types of subscriptions that new consumers may have, as a set of `ConsumerType`; others are "
            "refused with `NotAllowedError`. A reader is Exclusive",
            "{ConsumerType.Shared}",
            takes="set[ConsumerType] | frozenset[ConsumerType]",
            gives="frozenset[ConsumerType]",
            verb="subscription-types-enabled",
            help="which types of subscriptions consumers may have",
            options=(Option("-t --types", "Such as Exclusive,Shared.", "types"),),
            form="type_names",
        ),
    ),
)
"""Which types of subscriptions consumers may have. A reader is Exclusive."""

ENCRYPTION_REQUIRED: Final = switch_policy(
    "encryption_required",
    Setting("encryptionRequireOnProducer", False),
    title="[encryption](admin.md), of a namespace",
    otherwise="not required",
    calls=(
        Calls(
            NAMESPACES,
            "encryption_required_status",
            "whether new producers of the namespace have to encrypt; others are refused with "
            "`BrokerMetadataError`",
            "True",
            verb="encryption-required",
            help="whether producers have to encrypt",
            options=(Option(_ENABLE, "Whether producers have to encrypt.", "switch", True),),
        ),
    ),
)
"""Whether producers have to encrypt."""

# -- schemas -----------------------------------------------------------------------------------------------


def strategy_of(value: Any) -> SchemaCompatibilityStrategy:
    """A strategy, given as such or by its name.

    Raises:
        InvalidConfiguration: it is none.

    Example:
        >>> strategy_of("BACKWARD")
        <SchemaCompatibilityStrategy.BACKWARD: 3>
    """
    if isinstance(value, SchemaCompatibilityStrategy):
        return value
    if isinstance(value, str) and value in SchemaCompatibilityStrategy.__members__:
        return SchemaCompatibilityStrategy[value]
    names = ", ".join(SchemaCompatibilityStrategy.__members__)
    raise InvalidConfiguration(f"a compatibility strategy is one of {names}, not {value!r}")


def _strategy_name(value: Any) -> str | None:
    strategy = strategy_of(value)
    return None if strategy == SchemaCompatibilityStrategy.UNDEFINED else strategy.name


_STRATEGIES: Final = tuple(
    strategy.name for strategy in SchemaCompatibilityStrategy if strategy.name != "UNDEFINED"
)
_SCHEMA_PAGE: Final = "schemas.md#who-registers-and-what-is-refused"

SCHEMA_COMPATIBILITY: Final = TopicPolicy[SchemaCompatibilityStrategy](
    "schema_compatibility_strategy",
    lambda settings, own: SchemaCompatibilityStrategy[settings.schemaCompatibilityStrategy],
    _strategy_name,
    reading(strategy_of, "a strategy"),
    kind=SchemaCompatibilityStrategy,
    title=f"[compatibility of schemas]({_SCHEMA_PAGE})",
    otherwise="`FULL`; system topics have a setting of their own",
    settings=(
        Setting("schemaCompatibilityStrategy", "FULL", choices=_STRATEGIES),
        Setting("systemTopicSchemaCompatibilityStrategy", "ALWAYS_COMPATIBLE", choices=_STRATEGIES),
    ),
    calls=(
        Calls(
            BOTH,
            "schema_compatibility_strategy",
            "which schemas a topic accepts beside those it has: a `SchemaCompatibilityStrategy`, or its name",
            'SchemaCompatibilityStrategy["BACKWARD"]',
            takes="SchemaCompatibilityStrategy | str",
            verb="schema-compatibility-strategy",
            help="which schemas a topic accepts beside those that it has",
            options=(
                Option(
                    "-c --compatibility",
                    kind="choice",
                    choices="tuple(SchemaCompatibilityStrategy.__members__)",
                ),
            ),
            given="SchemaCompatibilityStrategy[compatibility]",
            form="strategy_name",
        ),
    ),
)
"""Which schemas a topic accepts beside those that it has."""

SCHEMA_VALIDATION: Final = switch_policy(
    "schema_validation_enforced",
    Setting("isSchemaValidationEnforced", False),
    title=f"[producers without a schema]({_SCHEMA_PAGE}) on topics that have one are refused",
    otherwise="accepted",
    calls=(
        Calls(
            BOTH,
            "schema_validation_enforced",
            "whether new producers without a schema are refused with `IncompatibleSchema` by topics that "
            "have one",
            "True",
            verb="schema-validation-enforce",
            help="whether producers without a schema are refused by topics that have one",
            options=(
                Option(
                    _ENABLE,
                    "Whether producers without a schema are refused by topics that have one.",
                    "switch",
                    True,
                ),
            ),
        ),
    ),
)
"""Whether a producer without a schema is refused on a topic that has one."""

SCHEMA_AUTO_UPDATE: Final = switch_policy(
    "is_allow_auto_update_schema",
    Setting("isAllowAutoUpdateSchemaEnabled", True),
    title=f"[new schemas]({_SCHEMA_PAGE}) are added by programs, of a namespace",
    otherwise="added",
    calls=(
        Calls(
            NAMESPACES,
            "is_allow_auto_update_schema",
            "whether producers and consumers add their schemas to topics of the namespace; otherwise others "
            "than those that `Admin.schemas` added raise `IncompatibleSchema`",
            "False",
            verb="is-allow-auto-update-schema",
            help="whether programs add their schemas",
            options=(Option(_ENABLE, "Whether programs add their schemas.", "switch", True),),
        ),
    ),
)
"""Whether producers and consumers add their schemas; otherwise only those that were uploaded are accepted."""

# -- duplicates --------------------------------------------------------------------------------------------


def _switch_deduplication(topic: ChangingTopic, is_on: bool) -> None:
    # A topic without producers reads the policy when its first one attaches.
    if topic.had_producers:
        topic.set_deduplication(is_on)


DEDUPLICATION: Final = switch_policy(
    "deduplicationEnabled",
    Setting("brokerDeduplicationEnabled", False),
    bool,
    apply=_switch_deduplication,
    title="[deduplication](producers.md#sending-again-without-storing-twice)",
    otherwise="off",
    calls=(
        Calls(
            BOTH,
            "deduplication_status",
            "Switch deduplication on or off, in open topics of all processes at once.\n\n"
            "The existing messages of a topic are read first, and count as stored.",
            shown=(
                'admin.topics().create_non_partitioned_topic("payments")',
                'admin.topics().set_deduplication_status("payments", True)',
                'admin.topics().get_deduplication_status("payments")',
                'admin.topics().remove_deduplication_status("payments")',
                "True",
            ),
            parameter=(
                "enabled",
                "whether a message with the same producer name and sequence id is stored only once.",
            ),
            refused="enabled is True or False, not {enabled!r}; remove_deduplication_status unsets",
            raises="",
            gets="Return the value set for this topic or namespace; None if it is not set.",
            reads="own",
            verb="deduplication",
            help="whether duplicates are dropped",
            options=(Option(_ENABLE, "Whether duplicates are dropped.", "switch", True),),
        ),
    ),
)
"""Whether a message with the same producer name and sequence id is stored only once."""
