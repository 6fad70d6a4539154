"""``embeddedpulsar resourcegroups``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from embeddedpulsar.admin.topic_access import json_form
from embeddedpulsar.cli.base import OpenedStore, as_json, pass_store, print_json, print_table
from embeddedpulsar.policy_values import ResourceGroup

_LIMITS = (
    ("-mp", "--msg-publish-rate", "publish_rate_in_msgs", "Messages a second that are published"),
    ("-bp", "--byte-publish-rate", "publish_rate_in_bytes", "Bytes a second that are published"),
    ("-md", "--msg-dispatch-rate", "dispatch_rate_in_msgs", "Messages a second that are delivered"),
    ("-bd", "--byte-dispatch-rate", "dispatch_rate_in_bytes", "Bytes a second that are delivered"),
)


@click.group()
def resourcegroups() -> None:
    """Manage resource groups, whose topics keep rates together."""


def _limits(text: str) -> Callable[[Any], Any]:
    def add(command: Any) -> Any:
        # Options are listed in the reverse order of their decorators.
        for short, long, name, what in reversed(_LIMITS):
            command = click.option(short, long, name, type=int, default=-1, help=f"{what}; {text}.")(command)
        return click.argument("group")(command)

    return add


@resourcegroups.command("list")
@as_json
@pass_store
def list_groups(store: OpenedStore, is_json: bool) -> None:
    """List the groups."""
    with store.admin() as admin:
        names = admin.resource_groups().get_resource_groups()
    if is_json:
        print_json(names)
    else:
        print_table(("resource group",), [(name,) for name in names])


@resourcegroups.command()
@click.argument("group")
@as_json
@pass_store
def get(store: OpenedStore, group: str, is_json: bool) -> None:
    """Show the limits of GROUP, and what it used."""
    with store.admin() as admin:
        limits = admin.resource_groups().get_resource_group(group)
        usage = admin.resource_groups().get_usage(group)
    if is_json:
        print_json(json_form(limits) | {"usage": usage.json()})
    else:
        rows = list((json_form(limits) | usage.json()).items())
        print_table(("", ""), [(name, f"{number:,}") for name, number in rows])


@resourcegroups.command()
@_limits("-1 for no limit")
@pass_store
def create(store: OpenedStore, /, group: str, **limits: int) -> None:
    """Create GROUP."""
    with store.admin() as admin:
        admin.resource_groups().create_resource_group(group, ResourceGroup(**limits))


@resourcegroups.command()
@_limits("-1 leaves it, 0 takes it away")
@pass_store
def update(store: OpenedStore, /, group: str, **limits: int) -> None:
    """Change limits of GROUP."""
    with store.admin() as admin:
        admin.resource_groups().update_resource_group(group, ResourceGroup(**limits))


@resourcegroups.command()
@click.argument("group")
@pass_store
def delete(store: OpenedStore, group: str) -> None:
    """Delete GROUP, which no topic or namespace may be in."""
    with store.admin() as admin:
        admin.resource_groups().delete_resource_group(group)
