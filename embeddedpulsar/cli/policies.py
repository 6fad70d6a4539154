"""What the verbs that set, get and remove policies have in common, and those of backlog quotas.

The verbs of the other policies are written from the table of policies: `cli.policy_verbs`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from embeddedpulsar.admin.policies import Policies
from embeddedpulsar.cli.base import OpenedStore, as_json, pass_store, print_json, size
from embeddedpulsar.cli.terminal import line_text
from embeddedpulsar.enums import ConsumerType, SchemaCompatibilityStrategy
from embeddedpulsar.policies import (
    BACKLOG_QUOTA_POLICIES,
    BACKLOG_QUOTA_TYPES,
    DESTINATION_STORAGE,
    PRODUCER_REQUEST_HOLD,
    BacklogQuota,
    Retention,
)
from embeddedpulsar.policy_values import SUBSCRIPTION_TYPE_NAMES, json_form
from embeddedpulsar.records import NamedTuple

if TYPE_CHECKING:
    _IntType = click.ParamType[int]
else:
    _IntType = click.ParamType

# Units of 1024, in the letters of pulsar-admin. A number without one is in the smallest.
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

Option = Callable[[Any], Any]
Setter = Callable[..., None]

# -- values of options -------------------------------------------------------------------------------------


class Amount(_IntType):
    """A number with a unit, as pulsar-admin takes it: 10G, 3h; -1 for no limit."""

    def __init__(self, name: str, units: dict[str, int]) -> None:
        self.name = name
        self._units: Final = units

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"(-1|\d+)([A-Za-z]?)", str(value))
        units = {unit.lower(): factor for unit, factor in self._units.items()}
        # -1 is no limit and has no unit. Letters of either case are taken, as by pulsar-admin.
        if match is None or match[2].lower() not in units or (match[1] == "-1" and match[2]):
            self.fail(f"{value!r}: write a number with one of the units {' '.join(self._units)}", param, ctx)
        return int(match[1]) * units[match[2].lower()]


SIZE: Final = Amount("size", _UNITS)
TIME: Final = Amount("time", _SECONDS)
TICKS: Final = Amount("time", {"": 1, "s": 1000, "m": 60_000})
"""Milliseconds, unless a unit is given."""
LAG: Final = Amount("time", {unit: 1000 * factor for unit, factor in _SECONDS.items()})
"""Seconds, as milliseconds."""


def subscription_types(
    context: click.Context, parameter: click.Parameter, value: str
) -> frozenset[ConsumerType]:
    """The types of subscriptions that a text names, with commas between them."""
    # Names are those of pulsar-admin, and blanks around the commas are taken.
    types = SUBSCRIPTION_TYPE_NAMES
    names = [name for name in value.replace(" ", "").split(",") if name]
    unknown = [name for name in names if name not in types]
    if unknown or not names:
        raise click.BadParameter(f"{value!r}: write some of {','.join(types)}", context, parameter)
    return frozenset(types[name] for name in names)


def retention_limits(seconds: int, number: int) -> list[int]:
    """The minutes and MB of a retention, given in seconds and bytes."""
    # Pulsar stores minutes and MiB. Less than one of them would be 0, which keeps nothing, although something
    # was asked for.
    if 0 < seconds < 60 or 0 < number < 1 << 20:
        raise click.UsageError("a retention is at least one minute (1m) and one MiB (1M); 0 keeps nothing")
    # Negative is no limit, and is not divided.
    return [seconds if seconds < 0 else seconds // 60, number if number < 0 else number >> 20]


# -- what is shown of a value --------------------------------------------------------------------------------


def type_names(types: frozenset[ConsumerType] | None) -> list[str] | None:
    """Types of subscriptions by their names."""
    if types is None:
        return None
    return [name for name, kind in SUBSCRIPTION_TYPE_NAMES.items() if kind in types]


def retention_form(retention: Retention | None) -> dict[str, int] | None:
    """A retention with Pulsar's names for its fields."""
    return retention and {
        "retentionTimeInMinutes": retention.time_minutes,
        "retentionSizeInMB": retention.size_mb,
    }


def strategy_name(strategy: SchemaCompatibilityStrategy | None) -> str | None:
    """A strategy by its name."""
    return None if strategy is None else strategy.name


def threshold_text(threshold: int) -> str:
    """A threshold in bytes for readers."""
    return size(threshold) if threshold else "never"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return line_text(", ".join(f"{key}={field}" for key, field in value.items()))
    return line_text(", ".join(value) if isinstance(value, list) else value)


# -- verbs of a policy -------------------------------------------------------------------------------------


class PolicyVerbs(NamedTuple):
    """A policy on the command line.

    Attributes:
        verb: after ``set-``, as in pulsar-admin.
        text: what it is.
        setter: called with the topics or namespaces of an Admin, a name, and the values of ``options``.
        getter: the method of the Admin, whose name `method` has.
        remover: likewise.
        options: of ``set-``.
        form: what is shown of a value, as JSON or as text.
        text_form: the text of that.
    """

    verb: str
    text: str
    setter: Setter
    getter: Callable[..., Any]
    remover: Callable[..., None]
    options: Sequence[Option]
    form: Callable[[Any], Any]
    text_form: Callable[[Any], str]

    @property
    def method(self) -> str:
        """The methods of the Admin, without ``set_``.

        It is not always the verb.
        """
        return self.getter.__name__.removeprefix("get_")


def policy(
    verb: str,
    text: str,
    getter: Callable[..., Any],
    remover: Callable[..., None],
    *options: Option,
    form: Callable[[Any], Any] = json_form,
    text_form: Callable[[Any], str] = _text,
) -> Callable[[Setter], PolicyVerbs]:
    """Makes of the function that sets a policy its three verbs; see `PolicyVerbs`."""
    return lambda setter: PolicyVerbs(verb, text, setter, getter, remover, options, form, text_form)


def add_policies(
    group: click.Group, noun: str, owner: Callable[[Any], Policies], policies: Sequence[PolicyVerbs]
) -> None:
    """Add the three verbs of each policy.

    Args:
        group: gets them.
        noun: ``topic`` or ``namespace``.
        owner: the part of an Admin that has the methods.
        policies: the policies.
    """
    for policy in policies:
        _add(group, click.argument("name", metavar=noun.upper()), owner, policy)


def _add(group: click.Group, argument: Option, owner: Callable[[Any], Policies], policy: PolicyVerbs) -> None:
    # Not every getter knows levels above, such as those of policies that namespaces alone have.
    has_applied = "applied" in inspect.signature(policy.getter).parameters

    @pass_store
    def set_policy(store: OpenedStore, /, name: str, **options: Any) -> None:
        with store.admin() as admin:
            policy.setter(owner(admin), name, **options)

    @pass_store
    def get_policy(store: OpenedStore, name: str, applied: bool, is_json: bool) -> None:
        # The option is there for every policy, so that its absence is an error with a name, and not an
        # unknown option.
        if applied and not has_applied:
            raise click.UsageError(f"{policy.verb} has no --applied")
        with store.admin() as admin:
            value = policy.getter(owner(admin), name, *([applied] if has_applied else ()))
        # `form` makes of a value what JSON can have; the text is made of that, so both show the same.
        shown = policy.form(value)
        if is_json:
            print_json(shown)
        else:
            click.echo("not set" if shown is None else policy.text_form(shown))

    @pass_store
    def remove_policy(store: OpenedStore, name: str) -> None:
        with store.admin() as admin:
            policy.remover(owner(admin), name)

    for option in policy.options:
        set_policy = option(set_policy)
    applied = click.option("--applied", "-ap", is_flag=True, help="Show what holds, whatever level has it.")
    for verb, function, text in (
        ("set", set_policy, "Set"),
        ("get", applied(as_json(get_policy)), "Show what is set of"),
        ("remove", remove_policy, "Unset"),
    ):
        group.command(f"{verb}-{policy.verb}", help=f"{text}: {policy.text}.")(argument(function))


# -- backlog quotas ------------------------------------------------------------------------------------------


def add_quotas(group: click.Group, owner: Callable[[Any], Policies], what: str) -> None:
    """Add the commands to ``topics`` or ``namespaces``.

    Args:
        group: gets the commands.
        owner: where the policies are.
        what: the name of the argument.
    """
    # These verbs are written by hand: a quota has one of two types, and what is shown is the quotas of both.
    kinds = click.option(
        "--type",
        "-t",
        "kind",
        type=click.Choice(BACKLOG_QUOTA_TYPES),
        default=DESTINATION_STORAGE,
        show_default=True,
    )

    @group.command("set-backlog-quota", help=f"Set a backlog quota of {what.upper()}.")
    @click.argument("name", metavar=what.upper())
    @click.option("--limit", "-l", type=SIZE, default=-1, help="Bytes, such as 10G; -1 for no limit.")
    @click.option("--limitTime", "-lt", "limit_time", type=TIME, default=-1, help="Seconds, or such as 3h.")
    @click.option(
        "--policy",
        "-p",
        type=click.Choice(BACKLOG_QUOTA_POLICIES),
        default=PRODUCER_REQUEST_HOLD,
        show_default=True,
    )
    @kinds
    @pass_store
    def set_quota(store: OpenedStore, name: str, limit: int, limit_time: int, policy: str, kind: str) -> None:
        with store.admin() as admin:
            owner(admin).set_backlog_quota(name, BacklogQuota(limit, limit_time, policy), kind)

    @group.command("get-backlog-quotas", help=f"Show the backlog quotas of {what.upper()}, as JSON.")
    @click.argument("name", metavar=what.upper())
    @click.option("--applied", "-ap", is_flag=True, help="Show those that hold, whatever level has them.")
    @as_json
    @pass_store
    def get_quotas(store: OpenedStore, name: str, applied: bool, is_json: bool) -> None:
        with store.admin() as admin:
            quotas = owner(admin).get_backlog_quota_map(name, applied)
        print_json({kind: quota.json() for kind, quota in quotas.items()}, 2 if is_json else None)

    @group.command("remove-backlog-quota", help=f"Unset a backlog quota of {what.upper()}.")
    @click.argument("name", metavar=what.upper())
    @kinds
    @pass_store
    def remove_quota(store: OpenedStore, name: str, kind: str) -> None:
        with store.admin() as admin:
            owner(admin).remove_backlog_quota(name, kind)
