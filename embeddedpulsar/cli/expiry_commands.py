"""Amounts with units, and backlog quotas of ``embeddedpulsar topics`` and ``namespaces``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from embeddedpulsar.backlog_quota import (
    BACKLOG_QUOTA_POLICIES,
    BACKLOG_QUOTA_TYPES,
    DESTINATION_STORAGE,
    PRODUCER_REQUEST_HOLD,
    BacklogQuota,
)
from embeddedpulsar.cli.opened_store import OpenedStore, pass_store
from embeddedpulsar.cli.output import as_json, print_json

if TYPE_CHECKING:
    _IntType = click.ParamType[int]
else:
    _IntType = click.ParamType

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

Owner = Callable[[Any], Any]
"""The part of an Admin that has the policies: its topics, or its namespaces."""


class Amount(_IntType):
    """A number with a unit, as pulsar-admin takes it: 10G, 3h; -1 for no limit."""

    def __init__(self, name: str, units: dict[str, int]) -> None:
        self.name = name
        self._units: Final = units

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(-1|\d+)([A-Za-z]?)", str(value))
        units = {unit.lower(): factor for unit, factor in self._units.items()}
        if found is None or found[2].lower() not in units or (found[1] == "-1" and found[2]):
            self.fail(f"{value!r}: write a number with one of the units {' '.join(self._units)}", param, ctx)
        return int(found[1]) * units[found[2].lower()]


SIZE: Final = Amount("size", _UNITS)
TIME: Final = Amount("time", _SECONDS)


def add_quotas(group: click.Group, owner: Owner, what: str) -> None:
    """Add the commands to ``topics`` or ``namespaces``.

    Args:
        group: gets the commands.
        owner: where the policies are.
        what: the name of the argument.
    """
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
            found = owner(admin).get_backlog_quota_map(name, applied)
        print_json({kind: quota.json() for kind, quota in found.items()}, 2 if is_json else None)

    @group.command("remove-backlog-quota", help=f"Unset a backlog quota of {what.upper()}.")
    @click.argument("name", metavar=what.upper())
    @kinds
    @pass_store
    def remove_quota(store: OpenedStore, name: str, kind: str) -> None:
        with store.admin() as admin:
            owner(admin).remove_backlog_quota(name, kind)
