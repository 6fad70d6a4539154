"""``embeddedpulsar namespaces`` and ``embeddedpulsar tenants``."""

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
from embeddedpulsar.cli.policies import add_policies
from embeddedpulsar.cli.policy_verbs import OF_BOTH, OF_NAMESPACES


@click.group()
def namespaces() -> None:
    """List, create and delete namespaces, and set policies for their topics."""


@namespaces.command("list")
@click.argument("tenant", default="public")
@as_json
@pass_store
def list_namespaces(store: OpenedStore, tenant: str, is_json: bool) -> None:
    """List the namespaces of TENANT (public)."""
    with store.admin() as admin:
        names = admin.namespaces().get_namespaces(tenant)
    if is_json:
        print_json(names)
    else:
        print_table(("namespace",), [(name,) for name in names])


@namespaces.command()
@click.argument("namespace")
@pass_store
def create(store: OpenedStore, namespace: str) -> None:
    """Create NAMESPACE, as tenant/namespace, and its tenant if necessary."""
    with store.admin() as admin:
        admin.namespaces().create_namespace(namespace)


@namespaces.command()
@click.argument("namespace")
@click.option("-f", "--force", is_flag=True, help="With its topics.")
@destroys
@pass_store
def delete(store: OpenedStore, namespace: str, force: bool, yes: bool, dry_run: bool) -> None:
    """Delete NAMESPACE with its policies."""
    # With --force the question says that messages go. Without it, a namespace that has topics is refused.
    what = f"delete the namespace {namespace}" + (" with its topics and messages" if force else "")
    with store.admin() as admin:
        if is_confirmed(what, yes, dry_run):
            admin.namespaces().delete_namespace(namespace, force)


@namespaces.command("topics")
@click.argument("namespace")
@click.option(
    "-m", "--mode", type=click.Choice(["PERSISTENT", "NON_PERSISTENT", "ALL"]), default="PERSISTENT"
)
@as_json
@pass_store
def list_topics(store: OpenedStore, namespace: str, mode: str, is_json: bool) -> None:
    """List the topics and partitions of NAMESPACE."""
    with store.admin() as admin:
        names = admin.namespaces().get_topics(namespace, mode)
    if is_json:
        print_json(names)
    else:
        print_table(("topic",), [(name,) for name in names])


add_policies(namespaces, "namespace", lambda admin: admin.namespaces(), (*OF_BOTH, *OF_NAMESPACES))


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


@tenants.command("create")
@click.argument("tenant")
@pass_store
def create_tenant(store: OpenedStore, tenant: str) -> None:
    """Create TENANT."""
    with store.admin() as admin:
        admin.tenants().create_tenant(tenant)


@tenants.command("delete")
@click.argument("tenant")
@click.option("-f", "--force", is_flag=True, help="With its namespaces and topics.")
@destroys
@pass_store
def delete_tenant(store: OpenedStore, tenant: str, force: bool, yes: bool, dry_run: bool) -> None:
    """Delete TENANT."""
    what = f"delete the tenant {tenant}" + (" with its namespaces, topics and messages" if force else "")
    with store.admin() as admin:
        if is_confirmed(what, yes, dry_run):
            admin.tenants().delete_tenant(tenant, force)
