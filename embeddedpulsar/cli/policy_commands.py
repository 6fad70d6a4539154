"""Verbs of ``embeddedpulsar topics`` and ``namespaces`` that set, get and remove a policy with fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from embeddedpulsar.admin.json_form import json_form
from embeddedpulsar.cli.expiry_commands import TIME
from embeddedpulsar.cli.opened_store import OpenedStore, pass_store
from embeddedpulsar.cli.output import as_json, print_json
from embeddedpulsar.policy_values import (
    DELETE_WHEN_NO_SUBSCRIPTIONS,
    DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP,
    AutoSubscriptionCreationOverride,
    AutoTopicCreationOverride,
    DispatchRate,
    InactiveTopicPolicies,
    PublishRate,
)

_UNLIMITED = -1


class Policy(NamedTuple):
    """A policy and its options.

    Attributes:
        verb: after ``set-``, as in pulsar-admin.
        text: what it is.
        options: of ``set-``; their names are those of the arguments of ``value``.
        value: makes the value that is set.
    """

    verb: str
    text: str
    options: Sequence[Callable[[Any], Any]]
    value: Callable[..., Any]


def _rate(short: str, long: str, text: str) -> Callable[[Any], Any]:
    return click.option(short, long, type=int, default=_UNLIMITED, help=f"{text}; -1 for no limit.")


_DISPATCH = (
    _rate("-md", "--msg-dispatch-rate", "Messages in a period"),
    _rate("-bd", "--byte-dispatch-rate", "Bytes in a period"),
    click.option("-dt", "--dispatch-rate-period", type=int, default=1, help="Seconds of a period."),
    click.option("-p", "--relative-to-publish-rate", is_flag=True, help="Add what is published."),
)


def _dispatch_rate(
    msg_dispatch_rate: int, byte_dispatch_rate: int, dispatch_rate_period: int, relative_to_publish_rate: bool
) -> DispatchRate:
    return DispatchRate(msg_dispatch_rate, byte_dispatch_rate, dispatch_rate_period, relative_to_publish_rate)


_ENABLE = click.option("-e/-d", "--enable/--disable", default=True, help="Whether they are created.")

OF_BOTH = (
    Policy(
        "publish-rate",
        "how much the producers of a topic may publish",
        (
            _rate("-m", "--msg-publish-rate", "Messages a second"),
            _rate("-b", "--byte-publish-rate", "Bytes a second"),
        ),
        lambda msg_publish_rate, byte_publish_rate: PublishRate(msg_publish_rate, byte_publish_rate),
    ),
    Policy("dispatch-rate", "how much the consumers of a topic receive", _DISPATCH, _dispatch_rate),
    Policy(
        "subscription-dispatch-rate",
        "how much the consumers of each subscription receive",
        _DISPATCH,
        _dispatch_rate,
    ),
    Policy(
        "auto-subscription-creation",
        "whether subscriptions are created by their first consumer",
        (_ENABLE,),
        lambda enable: AutoSubscriptionCreationOverride(enable),
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
        lambda enable, seconds, mode: InactiveTopicPolicies(mode, seconds, enable),
    ),
)
OF_NAMESPACES = (
    Policy(
        "auto-topic-creation",
        "whether topics are created when they are first used",
        (
            _ENABLE,
            click.option("-t", "--type", "kind", default="non-partitioned", help="Or partitioned."),
            click.option("-n", "--num-partitions", type=int, help="Of a partitioned topic."),
        ),
        lambda enable, kind, num_partitions: AutoTopicCreationOverride(enable, kind, num_partitions),
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
    method = policy.verb.replace("-", "_")

    @pass_store
    def set_policy(store: OpenedStore, /, name: str, **options: Any) -> None:
        with store.admin() as admin:
            getattr(getattr(admin, noun)(), f"set_{method}")(name, policy.value(**options))

    @pass_store
    def get_policy(store: OpenedStore, name: str, is_json: bool) -> None:
        with store.admin() as admin:
            found = json_form(getattr(getattr(admin, noun)(), f"get_{method}")(name))
        if is_json:
            print_json(found)
        else:
            click.echo(
                "not set" if found is None else ", ".join(f"{key}={one}" for key, one in found.items())
            )

    @pass_store
    def remove_policy(store: OpenedStore, name: str) -> None:
        with store.admin() as admin:
            getattr(getattr(admin, noun)(), f"remove_{method}")(name)

    for option in policy.options:
        set_policy = option(set_policy)
    for verb, function, text in (
        ("set", set_policy, "Set"),
        ("get", as_json(get_policy), "Show what is set of"),
        ("remove", remove_policy, "Unset"),
    ):
        group.command(f"{verb}-{policy.verb}", help=f"{text}: {policy.text}.")(argument(function))
