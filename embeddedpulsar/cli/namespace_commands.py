"""``embeddedpulsar namespaces``."""

from __future__ import annotations

import click

from embeddedpulsar.cli.opened_store import OpenedStore, pass_store
from embeddedpulsar.cli.output import as_json, print_json, print_table
from embeddedpulsar.cli.policy_commands import OF_BOTH, OF_NAMESPACES, add_policies


@click.group()
def namespaces() -> None:
    """List and create namespaces."""


@namespaces.command("list")
@click.argument("tenant", default="public")
@as_json
@pass_store
def list_namespaces(store: OpenedStore, tenant: str, is_json: bool) -> None:
    """List the namespaces of TENANT (public)."""
    with store.admin() as admin:
        found = admin.namespaces().get_namespaces(tenant)
    if is_json:
        print_json(found)
    else:
        print_table(("namespace",), [(name,) for name in found])


@namespaces.command()
@click.argument("namespace")
@pass_store
def create(store: OpenedStore, namespace: str) -> None:
    """Create NAMESPACE, as tenant/namespace, and its tenant if necessary."""
    with store.admin() as admin:
        admin.namespaces().create_namespace(namespace)


add_policies(namespaces, "namespaces", (*OF_BOTH, *OF_NAMESPACES))
