"""Verbs of ``embeddedpulsar topics`` and ``namespaces`` that set, get and remove a policy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import click

from embeddedpulsar import ConsumerType, SchemaCompatibilityStrategy
from embeddedpulsar.admin.json_form import json_form
from embeddedpulsar.cli.expiry_commands import SIZE, TIME, Amount
from embeddedpulsar.cli.opened_store import OpenedStore, pass_store
from embeddedpulsar.cli.output import as_json, print_json
from embeddedpulsar.policies import Retention
from embeddedpulsar.policy_values import (
    DELETE_WHEN_NO_SUBSCRIPTIONS,
    DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP,
    AutoSubscriptionCreationOverride,
    AutoTopicCreationOverride,
    DelayedDeliveryPolicies,
    DispatchRate,
    InactiveTopicPolicies,
    OffloadPolicies,
    PublishRate,
    SubscribeRate,
)
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic.policies.creation_policy import SUBSCRIPTION_TYPE_NAMES

_UNLIMITED = -1
_TICK = Amount("time", {"": 1, "s": 1000, "m": 60_000})

Option = Callable[[Any], Any]


class Policy(NamedTuple):
    """A policy and its options.

    Attributes:
        verb: after ``set-``, as in pulsar-admin.
        text: what it is.
        options: of ``set-``; their names are those of the arguments of ``arguments``.
        arguments: makes what the ``set_`` method of the Admin is given after the name.
        method: of the Admin, without ``set_``, where it is not the verb.
        form: what is shown of a value.
    """

    verb: str
    text: str
    options: Sequence[Option]
    arguments: Callable[..., list[Any]]
    method: str = ""
    form: Callable[[Any], Any] = json_form


def _rate(short: str, long: str, text: str) -> Option:
    return click.option(short, long, type=int, default=_UNLIMITED, help=f"{text}; -1 for no limit.")


def _number(
    verb: str, text: str, *options: str, method: str = "", kind: Any = click.INT, unit: str = "0 for no limit"
) -> Policy:
    option = click.option(*options, "number", type=kind, required=True, help=f"{unit[0].upper()}{unit[1:]}.")
    return Policy(verb, text, (option,), lambda number: [number], method)


def _switch(verb: str, text: str, method: str = "") -> Policy:
    option = click.option("-e/-d", "--enable/--disable", default=True, help=f"Whether {text}.")
    return Policy(verb, f"whether {text}", (option,), lambda enable: [enable], method)


def _types(context: click.Context, parameter: click.Parameter, value: str) -> frozenset[ConsumerType]:
    names = [name for name in value.replace(" ", "").split(",") if name]
    unknown = [name for name in names if name not in SUBSCRIPTION_TYPE_NAMES]
    if unknown or not names:
        choices = ",".join(SUBSCRIPTION_TYPE_NAMES)
        raise click.BadParameter(f"{value!r}: write some of {choices}", context, parameter)
    return frozenset(SUBSCRIPTION_TYPE_NAMES[name] for name in names)


def _type_names(types: frozenset[ConsumerType] | None) -> list[str] | None:
    return None if types is None else [name for name, one in SUBSCRIPTION_TYPE_NAMES.items() if one in types]


def _retention(seconds: int, size: int) -> list[Any]:
    if 0 < seconds < 60 or 0 < size < 1 << 20:
        raise click.UsageError("a retention is at least one minute (1m) and one MiB (1M); 0 keeps nothing")
    return [seconds if seconds < 0 else seconds // 60, size if size < 0 else size >> 20]


def _retention_form(retention: Retention | None) -> dict[str, int] | None:
    return retention and {
        "retentionTimeInMinutes": retention.time_minutes,
        "retentionSizeInMB": retention.size_mb,
    }


_DISPATCH = (
    _rate("-md", "--msg-dispatch-rate", "Messages in a period"),
    _rate("-bd", "--byte-dispatch-rate", "Bytes in a period"),
    click.option("-dt", "--dispatch-rate-period", type=int, default=1, help="Seconds of a period."),
    click.option("-p", "--relative-to-publish-rate", is_flag=True, help="Add what is published."),
)


def _dispatch_rate(
    msg_dispatch_rate: int, byte_dispatch_rate: int, dispatch_rate_period: int, relative_to_publish_rate: bool
) -> list[Any]:
    rate = DispatchRate(msg_dispatch_rate, byte_dispatch_rate, dispatch_rate_period, relative_to_publish_rate)
    return [rate]


def _delayed_delivery(method: str) -> Policy:
    """The method differs by level."""
    return Policy(
        "delayed-delivery",
        "whether delayed messages wait",
        (
            click.option("-e/-d", "--enable/--disable", default=True, help="Whether they wait."),
            click.option("-t", "--time", "tick_ms", type=_TICK, default="1s", help="Milliseconds, or 1s."),
        ),
        lambda enable, tick_ms: [DelayedDeliveryPolicies(enable, tick_ms)],
        method,
    )


_ENABLE = click.option("-e/-d", "--enable/--disable", default=True, help="Whether they are created.")

OF_BOTH = (
    Policy(
        "publish-rate",
        "how much the producers of a topic may publish",
        (
            _rate("-m", "--msg-publish-rate", "Messages a second"),
            _rate("-b", "--byte-publish-rate", "Bytes a second"),
        ),
        lambda msg_publish_rate, byte_publish_rate: [PublishRate(msg_publish_rate, byte_publish_rate)],
    ),
    Policy("dispatch-rate", "how much the consumers of a topic receive", _DISPATCH, _dispatch_rate),
    Policy(
        "subscription-dispatch-rate",
        "how much the consumers of each subscription receive",
        _DISPATCH,
        _dispatch_rate,
    ),
    Policy(
        "subscribe-rate",
        "how often a consumer may subscribe",
        (
            click.option(
                "-sr", "--subscribe-rate", "rate", type=int, default=_UNLIMITED, help="-1 for no limit."
            ),
            click.option(
                "-st", "--subscribe-rate-period", "period", type=int, default=30, help="In seconds."
            ),
        ),
        lambda rate, period: [SubscribeRate(rate, period)],
    ),
    Policy(
        "auto-subscription-creation",
        "whether subscriptions are created by their first consumer",
        (_ENABLE,),
        lambda enable: [AutoSubscriptionCreationOverride(enable)],
    ),
    Policy(
        "schema-compatibility-strategy",
        "which schemas a topic accepts beside those that it has",
        (
            click.option(
                "-c",
                "--compatibility",
                type=click.Choice(tuple(SchemaCompatibilityStrategy.__members__)),
                required=True,
            ),
        ),
        lambda compatibility: [SchemaCompatibilityStrategy[compatibility]],
        form=lambda strategy: strategy and strategy.name,
    ),
    _switch(
        "schema-validation-enforce",
        "producers without a schema are refused by topics that have one",
        "schema_validation_enforced",
    ),
    Policy(
        "inactive-topic-policies",
        "whether topics are deleted that have not been used for some time",
        (
            click.option(
                "-e/-d",
                "--enable-delete-while-inactive/--disable-delete-while-inactive",
                "enable",
                default=True,
                help="Whether they are deleted.",
            ),
            click.option(
                "-t",
                "--max-inactive-duration",
                "seconds",
                type=TIME,
                required=True,
                help="Seconds without use, or such as 3h.",
            ),
            click.option(
                "-m",
                "--delete-mode",
                "mode",
                type=click.Choice((DELETE_WHEN_NO_SUBSCRIPTIONS, DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP)),
                default=DELETE_WHEN_NO_SUBSCRIPTIONS,
                show_default=True,
            ),
        ),
        lambda enable, seconds, mode: [InactiveTopicPolicies(mode, seconds, enable)],
    ),
    Policy(
        "offload-policies",
        "where ledgers are moved, and when",
        (
            click.option("-l", "--location", required=True, help="A directory, or such as s3://bucket/path."),
            click.option("-t", "--threshold", type=SIZE, help="Bytes of a topic that stay, or 10M."),
            click.option("-ts", "--threshold-in-seconds", type=TIME, help="Age of moved ledgers, or 3h."),
            click.option("-dl", "--deletion-lag", type=TIME, help="How long a log stays, or 3h."),
        ),
        lambda location, threshold, threshold_in_seconds, deletion_lag: [
            OffloadPolicies(location, threshold, threshold_in_seconds, deletion_lag and deletion_lag * 1000)
        ],
    ),
    _number("offload-threshold", "how many bytes of a topic stay", "--size", "-s", kind=SIZE, unit="bytes"),
    _number("offload-threshold-in-seconds", "the age of moved ledgers", "--time", "-t", kind=TIME, unit="s"),
    _number("offload-deletion-lag", "how many ms the log of a moved ledger stays", "--lag", "-l", unit="ms"),
    Policy(
        "retention",
        "how much of what is acknowledged is kept",
        (
            click.option(
                "-t", "--time", "seconds", type=TIME, required=True, help="Seconds, or 3h; -1 for ever."
            ),
            click.option("-s", "--size", type=SIZE, required=True, help="Bytes, or 10G; -1 for any."),
        ),
        _retention,
        form=_retention_form,
    ),
    Policy(
        "subscription-types-enabled",
        "which types of subscriptions consumers may have",
        (click.option("-t", "--types", callback=_types, required=True, help="Such as Exclusive,Shared."),),
        lambda types: [types],
        form=_type_names,
    ),
    _switch("deduplication", "duplicates are dropped", "deduplication_status"),
    _switch("keep-until-subscribed", "everything is kept until there is a subscription"),
    _number(
        "message-ttl",
        "after how many seconds a message expires",
        "--ttl",
        "--messageTTL",
        "-ttl",
        "-t",
        kind=TIME,
        unit="seconds, or such as 2h; 0 for never",
    ),
    _number(
        "subscription-expiration-time",
        "after how many minutes without consumers a subscription is deleted",
        "--time",
        "-t",
        unit="minutes; 0 for never",
    ),
    _number(
        "max-consumers-per-subscription",
        "how many consumers a subscription may have",
        "--max-consumers-per-subscription",
        "-c",
    ),
    _number(
        "max-subscriptions-per-topic",
        "how many subscriptions a topic may have",
        "--max-subscriptions-per-topic",
        "-s",
        "-m",
    ),
)


def _resource_group(method: str) -> Policy:
    """The method differs by level."""
    option = click.option("-rgn", "--resource-group-name", "group", required=True, help="Its name.")
    return Policy("resource-group", "the resource group", (option,), lambda group: [group], method)


def _unacked(of: str, *options: str, method: str = "") -> Policy:
    verb, text = f"max-unacked-messages-per-{of}", f"how many unacknowledged messages a {of} may hold"
    return _number(verb, text, *options, method=method)


OF_TOPICS = (
    _delayed_delivery("delayed_delivery_policy"),
    _resource_group("resource_group"),
    _number(
        "max-message-size",
        "how many bytes a message may have",
        "--max-message-size",
        "-m",
        kind=SIZE,
        unit="bytes, or such as 1M; 0 for as many as broker.conf allows",
    ),
    _number("max-producers", "how many producers a topic may have", "--max-producers", "-p"),
    _number("max-consumers", "how many consumers a topic may have", "--max-consumers", "-c"),
    _unacked("consumer", "--maxNum", "-m", method="max_unacked_messages_on_consumer"),
    _unacked("subscription", "--maxNum", "-m", method="max_unacked_messages_on_subscription"),
)
OF_NAMESPACES = (
    _switch("is-allow-auto-update-schema", "programs add their schemas"),
    _delayed_delivery("delayed_delivery_messages"),
    _resource_group("namespace_resource_group"),
    _switch("encryption-required", "producers have to encrypt", "encryption_required_status"),
    _number(
        "max-producers-per-topic", "how many producers a topic may have", "--max-producers-per-topic", "-p"
    ),
    _number(
        "max-consumers-per-topic", "how many consumers a topic may have", "--max-consumers-per-topic", "-c"
    ),
    _number(
        "max-topics-per-namespace",
        "how many topics the namespace may have",
        "--max-topics-per-namespace",
        "-t",
    ),
    _unacked("consumer", "--max-unacked-messages-per-topic", "-c"),
    _unacked("subscription", "--max-unacked-messages-per-subscription", "-c"),
    Policy(
        "auto-topic-creation",
        "whether topics are created when they are first used",
        (
            _ENABLE,
            click.option("-t", "--type", "kind", default="non-partitioned", help="Or partitioned."),
            click.option("-n", "--num-partitions", type=int, help="Of a partitioned topic."),
        ),
        lambda enable, kind, num_partitions: [AutoTopicCreationOverride(enable, kind, num_partitions)],
    ),
)


def add_policies(group: click.Group, noun: str, policies: Sequence[Policy]) -> None:
    """Add the three verbs of each policy.

    Args:
        group: gets them.
        noun: ``topics`` or ``namespaces``, which is a method of an Admin.
        policies: the policies.
    """
    for policy in policies:
        _add(group, noun, policy)


def _add(group: click.Group, noun: str, policy: Policy) -> None:
    argument = click.argument("name", metavar=noun[:-1].upper())
    method = policy.method or policy.verb.replace("-", "_")

    def call(store: OpenedStore, verb: str, name: str, *arguments: Any, **options: Any) -> Any:
        with store.admin() as admin:
            function = getattr(getattr(admin, noun)(), f"{verb}_{method}")
            if "applied" in options and "applied" not in inspect.signature(function).parameters:
                if options["applied"]:
                    raise click.UsageError(f"{policy.verb} has no --applied")
                options = {}
            return function(name, *arguments, **options)

    @pass_store
    def set_policy(store: OpenedStore, /, name: str, **options: Any) -> None:
        call(store, "set", name, *policy.arguments(**options))

    @pass_store
    def get_policy(store: OpenedStore, name: str, applied: bool, is_json: bool) -> None:
        found = policy.form(call(store, "get", name, applied=applied))
        if is_json:
            print_json(found)
        else:
            click.echo("not set" if found is None else _text(found))

    @pass_store
    def remove_policy(store: OpenedStore, name: str) -> None:
        call(store, "remove", name)

    for option in policy.options:
        set_policy = option(set_policy)
    applied = click.option("--applied", "-ap", is_flag=True, help="Show what holds, whatever level has it.")
    for verb, function, text in (
        ("set", set_policy, "Set"),
        ("get", applied(as_json(get_policy)), "Show what is set of"),
        ("remove", remove_policy, "Unset"),
    ):
        group.command(f"{verb}-{policy.verb}", help=f"{text}: {policy.text}.")(argument(function))


def _text(found: Any) -> str:
    if isinstance(found, dict):
        return ", ".join(f"{key}={one}" for key, one in found.items())
    return ", ".join(found) if isinstance(found, list) else str(found)
