"""``embeddedpulsar brokers`` and ``embeddedpulsar resourcegroups``: the settings of a store, and limits
that topics share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from embeddedpulsar.cli.base import OpenedStore, as_json, pass_store, print_json, print_table
from embeddedpulsar.policy_values import ResourceGroup, json_form


@click.group()
def brokers() -> None:
    """Show and change the settings of the store."""


def _show(found: dict[str, str], is_json: bool) -> None:
    if is_json:
        print_json(found)
    else:
        print_table(("setting", "value"), sorted(found.items()))


@brokers.command("get-runtime-config")
@as_json
@pass_store
def get_runtime_config(store: OpenedStore, is_json: bool) -> None:
    """Show all settings as they hold now."""
    with store.admin() as admin:
        _show(admin.brokers().get_runtime_configuration(), is_json)


@brokers.command("get-all-dynamic-config")
@as_json
@pass_store
def get_all_dynamic_config(store: OpenedStore, is_json: bool) -> None:
    """Show the settings that were changed while the store was in use."""
    with store.admin() as admin:
        _show(admin.brokers().get_all_dynamic_configurations(), is_json)


@brokers.command("list-dynamic-config")
@as_json
@pass_store
def list_dynamic_config(store: OpenedStore, is_json: bool) -> None:
    """List the settings that can be changed while the store is in use."""
    with store.admin() as admin:
        names = admin.brokers().get_dynamic_configuration_names()
    if is_json:
        print_json(names)
    else:
        print_table(("setting",), [(name,) for name in names])


@brokers.command("update-dynamic-config")
@click.option("--config", required=True, help="The name of the setting.")
@click.option("--value", required=True, help="Its value, as in broker.conf.")
@pass_store
def update_dynamic_config(store: OpenedStore, config: str, value: str) -> None:
    """Change a setting in all processes."""
    with store.admin() as admin:
        admin.brokers().update_dynamic_configuration(config, value)


@brokers.command("delete-dynamic-config")
@click.option("--config", required=True, help="The name of the setting.")
@pass_store
def delete_dynamic_config(store: OpenedStore, config: str) -> None:
    """Have broker.conf decide about a setting again."""
    with store.admin() as admin:
        admin.brokers().delete_dynamic_configuration(config)


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
        # Limits first, then what was used of them; the names of the two differ.
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
