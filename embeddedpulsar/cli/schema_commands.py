"""``embeddedpulsar schemas``."""

from __future__ import annotations

import json
from typing import IO, Any

import click

from embeddedpulsar.cli.base import (
    ArgumentFile,
    OpenedStore,
    as_json,
    destroys,
    is_confirmed,
    pass_store,
    print_json,
    print_table,
    topic_argument,
)

_file = click.option(
    "-f",
    "--filename",
    "file",
    type=ArgumentFile(encoding="utf-8"),
    required=True,
    help='JSON: {"type": "AVRO", "schema": "...", "properties": {}}; - for the input.',
)


@click.group()
def schemas() -> None:
    """Show, upload, compare and delete the schemas of topics."""


@schemas.command()
@topic_argument
@click.option("-v", "--version", type=click.IntRange(min=0), help="This version, not the newest.")
@click.option("-a", "--all-version", "is_all", is_flag=True, help="All versions.")
@as_json
@pass_store
def get(store: OpenedStore, topic: str, version: int | None, is_all: bool, is_json: bool) -> None:
    """Show the newest schema of TOPIC."""
    with store.admin() as admin:
        if is_all:
            schemas_found = admin.schemas().get_all_schemas(topic)
        else:
            schema = admin.schemas().get_schema_info(topic, version)
            # A version that was deleted and one that never was are the same to a user.
            if schema is None:
                raise click.ClickException(f"{topic} has no such schema")
            schemas_found = [schema]
    if is_json:
        # One schema is an object, several are a list, also if there is one only: a program asks for either.
        print_json([schema.json() for schema in schemas_found] if is_all else schemas_found[0].json())
    elif is_all:
        rows = [(str(schema.version), schema.type.name, str(schema.timestamp)) for schema in schemas_found]
        print_table(("version", "type", "timestamp"), rows)
    else:
        click.echo(f"version {schemas_found[0].version}, {schemas_found[0].type.name}")
        click.echo(schemas_found[0].data)


@schemas.command()
@topic_argument
@_file
@pass_store
def upload(store: OpenedStore, topic: str, file: IO[str]) -> None:
    """Add a schema to TOPIC."""
    with store.admin() as admin:
        click.echo(f"version {admin.schemas().create_schema(topic, _payload(file))}")


@schemas.command()
@topic_argument
@click.option("-f", "--force", is_flag=True, help="Forget the definitions, too.")
@destroys
@pass_store
def delete(store: OpenedStore, topic: str, force: bool, yes: bool, dry_run: bool) -> None:
    """Delete all schemas of TOPIC."""
    with store.admin() as admin:
        # Counted first: the question says how much is lost.
        count = len(admin.schemas().get_all_schemas(topic))
        if is_confirmed(f"delete the {count} schemas of {topic}", yes, dry_run):
            admin.schemas().delete_schema(topic, force)


@schemas.command()
@topic_argument
@_file
@as_json
@click.pass_context
def compatibility(context: click.Context, topic: str, file: IO[str], is_json: bool) -> None:
    """Say whether a schema could be added to TOPIC. The exit status is 1 if it could not."""
    store: OpenedStore = context.obj
    with store.admin() as admin:
        verdict = admin.schemas().test_compatibility(topic, _payload(file))
    if is_json:
        print_json(verdict.json())
    else:
        answer = "compatible" if verdict.is_compatibility else f"not compatible: {verdict.reason}"
        click.echo(f"{answer} ({verdict.schema_compatibility_strategy})")
    # A script that deploys a schema branches by the status, and a person reads the reason.
    context.exit(0 if verdict.is_compatibility else 1)


def _payload(file: IO[str]) -> Any:
    try:
        return json.load(file)
    except ValueError as error:
        raise click.ClickException(f"{file.name} is not JSON: {error}") from error
