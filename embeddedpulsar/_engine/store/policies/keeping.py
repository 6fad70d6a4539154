"""Policies of what a topic keeps and drops: messages, ledgers, subscriptions, and the topic itself.

A sheet of `_engine.store.policies.policy_documents`, which says what a row is.
"""

from __future__ import annotations

from collections.abc import Sequence

from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.store.policies.policy import (
    BOTH,
    LARGEST_LIMIT,
    LARGEST_NUMBER,
    NEVER,
    Calls,
    Fields,
    Option,
    Setting,
    TopicPolicy,
    checked_number,
    fields_policy,
    limit_policy,
    number_policy,
    switch_policy,
)
from embeddedpulsar.exceptions import CorruptionError, InvalidConfiguration
from embeddedpulsar.policies import (
    BACKLOG_QUOTA_POLICIES,
    DESTINATION_STORAGE,
    MESSAGE_AGE,
    BacklogQuota,
    Retention,
)
from embeddedpulsar.policy_values import (
    DELETE_WHEN_NO_SUBSCRIPTIONS,
    DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP,
    InactiveTopicPolicies,
    OffloadPolicies,
)
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple
from embeddedpulsar.settings import BrokerSettings

if TYPE_CHECKING:
    from typing import Any, Final

_UNSET: Final = "Unset the {}, so that the inherited one applies. Does nothing if it is not set."
_ENABLE: Final = "-e/-d --enable/--disable"

# -- expiry ------------------------------------------------------------------------------------------------

MESSAGE_TTL: Final = limit_policy(
    "message_ttl_in_seconds",
    Setting("ttlDurationDefaultInSeconds", 0, 0, LARGEST_LIMIT),
    for_letters=0,
    title="[message expiry](#message-expiry)",
    otherwise="0: never",
    calls=(
        Calls(
            BOTH,
            "message_ttl",
            "Set after how many seconds a message counts as acknowledged by every durable subscription, "
            "whether it was received or not. This is checked when a process begins to use the topic, when "
            "the policy changes, and every ``messageExpiryCheckIntervalInMinutes``.\n\n"
            "Topics of dead letters and retry letters follow only a value that is set for the topic itself, "
            "unless ``broker.conf`` says ``letterTopicsExpire=true``.",
            shown=(
                'admin.topics().create_non_partitioned_topic("prices")',
                'admin.namespaces().set_message_ttl("public/default", 3600)',
                'admin.topics().get_message_ttl("prices")',
                'admin.topics().get_message_ttl("prices", applied=True)',
                'admin.namespaces().remove_message_ttl("public/default")',
                "3600",
            ),
            parameter=("seconds", "0 for never, whatever other levels say."),
            raises="``seconds`` is no number from 0 on.",
            gets="Return the time to live in seconds.",
            removes=_UNSET.format("time to live"),
            verb="message-ttl",
            help="after how many seconds a message expires",
            options=(
                Option(
                    "--ttl --messageTTL -ttl -t",
                    "Seconds, or such as 2h; 0 for never.",
                    "time",
                    parameter="number",
                ),
            ),
        ),
    ),
)
"""Seconds after which a message counts as acknowledged; 0 for never."""

_QUOTA_POLICY: Final = Setting(
    "backlogQuotaDefaultRetentionPolicy", "producer_request_hold", choices=BACKLOG_QUOTA_POLICIES
)


def _pack_quota(quota: BacklogQuota) -> dict[str, Any]:
    return quota.check().json()


def _read_quota(fields: Any) -> BacklogQuota:
    try:
        return BacklogQuota(int(fields["limitSize"]), int(fields["limitTime"]), str(fields["policy"])).check()
    except (KeyError, TypeError, ValueError, InvalidConfiguration) as e:
        raise CorruptionError(reason=f"a policy document with a backlog quota that is none: {e!r}") from e


def _size_quota(settings: BrokerSettings, own: Sequence[Fields]) -> BacklogQuota:
    return BacklogQuota(
        settings.backlogQuotaDefaultLimitBytes, -1, settings.backlogQuotaDefaultRetentionPolicy
    )


def _age_quota(settings: BrokerSettings, own: Sequence[Fields]) -> BacklogQuota:
    return BacklogQuota(
        -1, settings.backlogQuotaDefaultLimitSecond, settings.backlogQuotaDefaultRetentionPolicy
    )


_QUOTA_CALLS: Final = (Calls(BOTH, "backlog_quota", parameter=("quota, quota_type", ""), by_hand=True),)

SIZE_QUOTA: Final = TopicPolicy[BacklogQuota](
    f"backlog_quota_map.{DESTINATION_STORAGE}",
    _size_quota,
    _pack_quota,
    _read_quota,
    for_letters=BacklogQuota(),
    kind=BacklogQuota,
    title="[backlog quotas](#backlog-quotas) of bytes",
    otherwise="-1: no limit",
    settings=(Setting("backlogQuotaDefaultLimitBytes", -1, -1, 1 << 50), _QUOTA_POLICY),
    calls=_QUOTA_CALLS,
)

AGE_QUOTA: Final = TopicPolicy[BacklogQuota](
    f"backlog_quota_map.{MESSAGE_AGE}",
    _age_quota,
    _pack_quota,
    _read_quota,
    for_letters=BacklogQuota(),
    kind=BacklogQuota,
    title="[backlog quotas](#backlog-quotas) of age",
    otherwise="-1: no limit",
    settings=(Setting("backlogQuotaDefaultLimitSecond", -1, -1, 1 << 31), _QUOTA_POLICY),
    calls=_QUOTA_CALLS,
)

QUOTAS: Final = {DESTINATION_STORAGE: SIZE_QUOTA, MESSAGE_AGE: AGE_QUOTA}
"""The quotas by the names that Pulsar has for their types."""

SUBSCRIPTION_EXPIRATION: Final = limit_policy(
    "subscription_expiration_time_minutes",
    Setting("subscriptionExpirationTimeMinutes", 0, 0, LARGEST_LIMIT),
    for_letters=0,
    title="[expiration of subscriptions](#expiration-of-subscriptions)",
    otherwise="0: never",
    calls=(
        Calls(
            BOTH,
            "subscription_expiration_time",
            "Set after how many minutes without consumers a durable subscription is deleted, with its "
            "backlog. This is checked when a process begins to use the topic, when the policy changes, and "
            "every ``subscriptionExpiryCheckIntervalInMinutes``.",
            shown=(
                'admin.namespaces().set_subscription_expiration_time("public/default", 30 * 24 * 60)',
                'admin.namespaces().get_subscription_expiration_time("public/default")',
                'admin.namespaces().remove_subscription_expiration_time("public/default")',
                "43200",
            ),
            parameter=("minutes", "0 for never, whatever other levels say."),
            raises="``minutes`` is no number from 0 on.",
            gets="Return the time in minutes.",
            removes=_UNSET.format("time"),
            verb="subscription-expiration-time",
            help="after how many minutes without consumers a subscription is deleted",
            options=(Option("--time -t", "Minutes; 0 for never.", parameter="number"),),
        ),
    ),
)
"""Minutes without consumers after which a durable subscription is deleted; 0 for never."""


def _inactive_default(settings: BrokerSettings, own: Sequence[Fields]) -> InactiveTopicPolicies:
    return InactiveTopicPolicies(
        settings.brokerDeleteInactiveTopicsMode,
        settings.brokerDeleteInactiveTopicsMaxInactiveDurationSeconds
        or settings.brokerDeleteInactiveTopicsFrequencySeconds,
        settings.brokerDeleteInactiveTopicsEnabled,
    )


INACTIVE_TOPICS: Final = fields_policy(
    InactiveTopicPolicies,
    "inactive_topic_policies",
    (
        Setting("brokerDeleteInactiveTopicsEnabled", False, note="Pulsar: true"),
        Setting(
            "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
            0,
            0,
            1 << 31,
            note="as long as the frequency",
        ),
        Setting(
            "brokerDeleteInactiveTopicsMode",
            DELETE_WHEN_NO_SUBSCRIPTIONS,
            choices=(DELETE_WHEN_NO_SUBSCRIPTIONS, DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP),
        ),
    ),
    _inactive_default,
    for_letters=InactiveTopicPolicies(delete_while_inactive=False),
    owners="inactiveTopicOwners",  # without any, and without the setting, no topic is looked at
    title="[deletion of inactive topics](#deletion-of-inactive-topics)",
    otherwise="off",
    calls=(
        Calls(
            BOTH,
            "inactive_topic_policies",
            "Set whether a topic is deleted that has had no producers and no consumers for some time. Topics "
            "are looked at every ``brokerDeleteInactiveTopicsFrequencySeconds`` by a process that uses the "
            "store, whether the topic is in use there or not.\n\n"
            "Topics of dead letters and retry letters follow only a value that is set for the topic itself, "
            "unless ``broker.conf`` says ``letterTopicsExpire=true``.",
            shown=(
                "from embeddedpulsar.policy_values import InactiveTopicPolicies",
                "a_day = InactiveTopicPolicies(max_inactive_duration_seconds=86_400)",
                'admin.namespaces().set_inactive_topic_policies("public/default", a_day)',
                'admin.namespaces().get_inactive_topic_policies("public/default") == a_day',
                'admin.namespaces().remove_inactive_topic_policies("public/default")',
                "True",
            ),
            parameter=("policies", "when it is deleted."),
            refused="the policies are InactiveTopicPolicies, not {policies!r}",
            gets="Return when the topic, or those of the namespace, are deleted.",
            removes="Unset the policies, so that the inherited ones apply. Does nothing if they are not set.",
            verb="inactive-topic-policies",
            help="whether topics are deleted that have not been used for some time",
            options=(
                Option(
                    "-e/-d --enable-delete-while-inactive/--disable-delete-while-inactive",
                    "Whether they are deleted.",
                    "switch",
                    True,
                    parameter="enable",
                ),
                Option(
                    "-t --max-inactive-duration",
                    "Seconds without use, or such as 3h.",
                    "time",
                    parameter="seconds",
                ),
                Option(
                    "-m --delete-mode",
                    kind="choice",
                    default=DELETE_WHEN_NO_SUBSCRIPTIONS,
                    choices="(DELETE_WHEN_NO_SUBSCRIPTIONS, DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP)",
                    parameter="mode",
                    is_shown=True,
                ),
            ),
            given="InactiveTopicPolicies(mode, seconds, enable)",
        ),
    ),
)

# -- keeping and dropping ----------------------------------------------------------------------------------


def _retention_fields(retention: Retention) -> dict[str, int]:
    retention.check()
    return {"retentionTimeInMinutes": retention.time_minutes, "retentionSizeInMB": retention.size_mb}


def _read_retention(fields: Any) -> Retention:
    try:
        retention = Retention(int(fields["retentionTimeInMinutes"]), int(fields["retentionSizeInMB"]))
        return retention.check()
    except (KeyError, TypeError, ValueError, InvalidConfiguration) as e:
        raise CorruptionError(reason=f"a policy document with a retention that is none: {e!r}") from e


RETENTION: Final = TopicPolicy[Retention](
    "retentionPolicies",
    lambda settings, own: settings.retention,
    _retention_fields,
    _read_retention,
    kind=Retention,
    title="[retention](caveats.md#what-is-kept-and-what-is-not)",
    otherwise="0 and 0: nothing is kept once all have acknowledged it",
    settings=(
        Setting("defaultRetentionTimeInMinutes", 0, -1, 1 << 31),
        Setting("defaultRetentionSizeInMB", 0, -1, 1 << 40),
    ),
    calls=(
        Calls(
            BOTH,
            "retention",
            parameter=("minutes, mb", ""),
            by_hand=True,
            verb="retention",
            help="how much of what is acknowledged is kept",
            options=(
                Option("-t --time", "Seconds, or 3h; -1 for ever.", "time", parameter="seconds"),
                Option("-s --size", "Bytes, or 10G; -1 for any.", "size"),
            ),
            given="*retention_limits(seconds, size)",
            form="retention_form",
        ),
    ),
)
"""How much of what is acknowledged everywhere is kept."""

LETTERS: Final = TopicPolicy[bool]("letters", lambda settings, own: False, bool, bool)
"""Set for a topic that a consumer passes dead letters or retry letters on to. No user sets it."""


def _keeps_letters(settings: BrokerSettings, own: Sequence[Fields]) -> bool:
    """A topic of letters does until it has a subscription, unless it has a retention of its own."""
    return (
        settings.letterTopicsKeepUntilSubscribed
        and any(fields.get(LETTERS.key) for fields in own)
        and not any(RETENTION.key in fields for fields in own)
    )


KEEP_UNTIL_SUBSCRIBED: Final = switch_policy(
    "keepUntilSubscribed",
    Setting("letterTopicsKeepUntilSubscribed", True, note="not in Pulsar"),
    bool,
    default=_keeps_letters,
    title="[everything](caveats.md#what-is-kept-and-what-is-not) is kept until there is a subscription",
    otherwise="for topics of dead letters and retry letters",
    calls=(
        Calls(
            BOTH,
            "keep_until_subscribed",
            "Set whether topics keep all messages while they have no durable subscription, independent of "
            "their retention. Dead letter and retry letter topics do so by default. Not in Pulsar.",
            shown=(
                'admin.topics().create_non_partitioned_topic("inbox")',
                'admin.topics().set_keep_until_subscribed("inbox", True)',
                'admin.topics().get_keep_until_subscribed("inbox")',
                'admin.topics().remove_keep_until_subscribed("inbox")',
                "True",
            ),
            parameter=("enabled", "whether they do."),
            refused="enabled is True or False, not {enabled!r}",
            raises="",
            gets="Return whether the topic keeps all messages while it has no durable subscription: the "
            "value set or inherited, otherwise True for a topic of letters, unless ``broker.conf`` sets "
            "``letterTopicsKeepUntilSubscribed=false`` or a retention was set for the topic itself.",
            removes="Undo `set_keep_until_subscribed`. Does nothing if it is not set.",
            reads="applied",
            verb="keep-until-subscribed",
            help="whether everything is kept until there is a subscription",
            options=(
                Option(_ENABLE, "Whether everything is kept until there is a subscription.", "switch", True),
            ),
        ),
    ),
)
"""Whether everything is kept while there is no durable subscription."""


def _checked_threshold(threshold: int) -> int:
    is_number = isinstance(threshold, int) and not isinstance(threshold, bool)
    if not is_number or not 0 <= threshold <= LARGEST_NUMBER:
        raise InvalidConfiguration(f"a threshold is a number of bytes from 0, for never, not {threshold!r}")
    return threshold


COMPACTION_THRESHOLD: Final = number_policy(
    "compaction_threshold",
    _checked_threshold,
    "a threshold",
    (Setting("brokerServiceCompactionThresholdInBytes", 0, 0, LARGEST_NUMBER),),
    title="[compaction](compaction.md) by a threshold",
    otherwise="0: never",
    calls=(
        Calls(
            BOTH,
            "compaction_threshold",
            "Have topics compacted in the background whenever so many bytes were stored since the last "
            "compaction. It is looked at every ``brokerServiceCompactionMonitorIntervalInSeconds`` in the "
            "processes that use the topic.",
            shown=(
                'admin.namespaces().set_compaction_threshold("public/default", 100 << 20)',
                'admin.namespaces().get_compaction_threshold("public/default")',
                'admin.namespaces().remove_compaction_threshold("public/default")',
                "104857600",
            ),
            parameter=("threshold", "bytes of storage; 0 for never, whatever other levels say."),
            raises="``threshold`` is no number from 0 on.",
            gets="Return the threshold set for this topic or namespace; None if it is not set.",
            removes=_UNSET.format("threshold"),
            reads="own",
            verb="compaction-threshold",
            help="after how many stored bytes a topic is compacted",
            options=(Option("-t --threshold", "Bytes, or 10M; 0 for never.", "size"),),
            text_form="threshold_text",
        ),
    ),
)
"""Bytes behind the last compaction at which the next one is due; 0 for never."""


def _with_absolute_location(value: OffloadPolicies, root: str) -> OffloadPolicies:
    """Policies with the location as it is stored; see `_engine.cold.location.absolute_location`."""
    if isinstance(value, OffloadPolicies) and isinstance(value.offload_location, str):
        with late_imports():
            from embeddedpulsar._engine.cold.location import absolute_location
        return value._replace(offload_location=absolute_location(value.offload_location, root))
    return value  # what is wrong with it is said by its check


OFFLOAD_POLICIES: Final = fields_policy(
    OffloadPolicies,
    "offload_policies",
    (Setting("managedLedgerOffloadLocation", "", note="not in Pulsar: for driver, bucket and endpoint"),),
    lambda settings, own: OffloadPolicies(settings.managedLedgerOffloadLocation or None),
    resolve=_with_absolute_location,
    title="[offloading](cold-data.md): where, and when",
    otherwise="nowhere",
    calls=(
        Calls(
            BOTH,
            "offload_policies",
            "where closed ledgers are moved, and when",
            "OffloadPolicies('/mnt/cold', 1 << 30)",
            verb="offload-policies",
            help="where ledgers are moved, and when",
            options=(
                Option("-l --location", "A directory, or such as s3://bucket/path.", "str"),
                Option("-t --threshold", "Bytes of a topic that stay, or 10M.", "size", None),
                Option("-ts --threshold-in-seconds", "Age of moved ledgers, or 3h.", "time", None),
                Option("-dl --deletion-lag", "How long a log stays, or 3h.", "lag", None),
            ),
        ),
    ),
)
"""The location, and what differs from the three below."""

OFFLOAD_THRESHOLD: Final = number_policy(
    "offload_threshold",
    checked_number("offload_threshold", NEVER),
    "offload_threshold",
    (Setting("managedLedgerOffloadAutoTriggerSizeThresholdBytes", -1, NEVER, LARGEST_NUMBER),),
    title="[offloading](cold-data.md): bytes of a topic that stay",
    otherwise="-1: any number",
    calls=(
        Calls(
            BOTH,
            "offload_threshold",
            "how many bytes of a topic stay in the store, as a number: older ledgers are offloaded; -1 for "
            "never",
            verb="offload-threshold",
            help="how many bytes of a topic stay",
            options=(Option("--size -s", "Bytes.", "size", parameter="number"),),
        ),
    ),
)

OFFLOAD_THRESHOLD_SECONDS: Final = number_policy(
    "offload_threshold_in_seconds",
    checked_number("offload_threshold_in_seconds", NEVER),
    "offload_threshold_in_seconds",
    (Setting("managedLedgerOffloadThresholdInSeconds", -1, NEVER, 1 << 40),),
    title="[offloading](cold-data.md): age of the ledgers that are moved",
    otherwise="-1: any age",
    calls=(
        Calls(
            BOTH,
            "offload_threshold_in_seconds",
            "how many seconds after its end a ledger is offloaded, as a number; -1 for never",
            verb="offload-threshold-in-seconds",
            help="the age of moved ledgers",
            options=(Option("--time -t", "S.", "time", parameter="number"),),
        ),
    ),
)

OFFLOAD_DELETION_LAG: Final = number_policy(
    "offload_deletion_lag_ms",
    checked_number("offload_deletion_lag_ms", 0),
    "offload_deletion_lag_ms",
    (Setting("managedLedgerOffloadDeletionLagMs", 14_400_000, 0, 1 << 53),),
    title="[offloading](cold-data.md): how long the log of an offloaded ledger stays",
    otherwise="4 hours",
    calls=(
        Calls(
            BOTH,
            "offload_deletion_lag",
            "for how many milliseconds the log of an offloaded ledger stays in the store, as a number",
            verb="offload-deletion-lag",
            help="how many ms the log of a moved ledger stays",
            options=(Option("--lag -l", "Ms.", parameter="number"),),
        ),
    ),
)


# -- what several rows say together ------------------------------------------------------------------------


class OffloadRules(NamedTuple):
    """What holds for a topic.

    Attributes:
        location: URI; empty for none.
        most_bytes: bytes of the log that stay; older ledgers are offloaded. `NEVER` for no such limit.
        most_seconds: ledgers that ended earlier are offloaded; `NEVER` for no such limit.
        lag_ms: how long the log of an offloaded ledger stays.
    """

    location: str
    most_bytes: int
    most_seconds: int
    lag_ms: int

    @property
    def is_automatic(self) -> bool:
        """Whether ledgers are offloaded without being asked for."""
        return bool(self.location) and max(self.most_bytes, self.most_seconds) > NEVER


OFFLOAD_RULES: Final = (OFFLOAD_POLICIES, OFFLOAD_THRESHOLD, OFFLOAD_THRESHOLD_SECONDS, OFFLOAD_DELETION_LAG)


def rules_of(values: list[Any]) -> OffloadRules:
    """What the values of `OFFLOAD_RULES` say together: fields of `OffloadPolicies` before the others."""
    policies, *numbers = values
    fields = (
        policies.offload_threshold_in_bytes,
        policies.offload_threshold_in_seconds,
        policies.offload_deletion_lag_in_millis,
    )
    chosen = [number if field is None else field for field, number in zip(fields, numbers, strict=True)]
    return OffloadRules(policies.offload_location or "", *chosen)
