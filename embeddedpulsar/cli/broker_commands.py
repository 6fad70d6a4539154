"""``embeddedpulsar brokers``."""

from __future__ import annotations

import click

from embeddedpulsar.cli.base import OpenedStore, as_json, pass_store, print_json, print_table


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
