"""``embeddedpulsar tenants``."""

from __future__ import annotations

import click

from embeddedpulsar.cli.base import (
    OpenedStore,
    as_json,
    destroys,
    is_confirmed,
    pass_store,
    print_json,
    print_table,
)


@click.group()
def tenants() -> None:
    """List, create and delete tenants."""


@tenants.command("list")
@as_json
@pass_store
def list_tenants(store: OpenedStore, is_json: bool) -> None:
    """List the tenants."""
    with store.admin() as admin:
        names = admin.tenants().get_tenants()
    if is_json:
        print_json(names)
    else:
        print_table(("tenant",), [(name,) for name in names])


@tenants.command()
@click.argument("tenant")
@pass_store
def create(store: OpenedStore, tenant: str) -> None:
    """Create TENANT."""
    with store.admin() as admin:
        admin.tenants().create_tenant(tenant)


@tenants.command()
@click.argument("tenant")
@click.option("-f", "--force", is_flag=True, help="With its namespaces and topics.")
@destroys
@pass_store
def delete(store: OpenedStore, tenant: str, force: bool, yes: bool, dry_run: bool) -> None:
    """Delete TENANT."""
    what = f"delete the tenant {tenant}" + (" with its namespaces, topics and messages" if force else "")
    with store.admin() as admin:
        if is_confirmed(what, yes, dry_run):
            admin.tenants().delete_tenant(tenant, force)
