"""Compaction on the command line: of topics, and its thresholds for topics and namespaces."""

from __future__ import annotations

import click

from embeddedpulsar.admin import compaction_calls
from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.admin.policies import Policies
from embeddedpulsar.cli.background_work import BackgroundWork
from embeddedpulsar.cli.namespace_commands import namespaces
from embeddedpulsar.cli.opened_store import OpenedStore, pass_store, topic_argument
from embeddedpulsar.cli.output import as_json, print_json, size
from embeddedpulsar.cli.policies import SIZE
from embeddedpulsar.cli.topic_commands import topics

_COMPACTION = BackgroundWork(
    "compaction",
    compaction_calls.compaction_status,
    compaction_calls.compaction_progress,
    "{:,} of about {:,} entries read",
)


@topics.command()
@topic_argument
@pass_store
@click.pass_context
def compact(context: click.Context, store: OpenedStore, topic: str) -> None:
    """Compact TOPIC, or all its partitions, and wait for the end."""
    with store.admin() as admin:
        admin.topics().compact(topic)
        _COMPACTION.wait(context, admin, topic)


_COMPACTION.add_status_command("compaction-status")


def _policies(admin: Admin, kind: str) -> Policies:
    return admin.topics() if kind == "topic" else admin.namespaces()


def _add_thresholds(group: click.Group, kind: str) -> None:
    """Add the three commands about the threshold to the commands of topics, or of namespaces."""

    @group.command("set-compaction-threshold", help=f"Compact whenever so much was stored in a {kind}.")
    @click.argument("name", metavar=kind.upper())
    @click.option("-t", "--threshold", type=SIZE, required=True, help="Bytes, or 10M; 0 for never.")
    @pass_store
    def set_threshold(store: OpenedStore, name: str, threshold: int) -> None:
        with store.admin() as admin:
            _policies(admin, kind).set_compaction_threshold(name, threshold)

    @group.command("get-compaction-threshold", help=f"Show the threshold that is set for a {kind}.")
    @click.argument("name", metavar=kind.upper())
    @as_json
    @pass_store
    def get_threshold(store: OpenedStore, name: str, is_json: bool) -> None:
        with store.admin() as admin:
            found = _policies(admin, kind).get_compaction_threshold(name)
        if is_json:
            print_json(found)
        else:
            click.echo("not set" if found is None else "never" if not found else size(found))

    @group.command("remove-compaction-threshold", help=f"Unset the threshold of a {kind}.")
    @click.argument("name", metavar=kind.upper())
    @pass_store
    def remove_threshold(store: OpenedStore, name: str) -> None:
        with store.admin() as admin:
            _policies(admin, kind).remove_compaction_threshold(name)


_add_thresholds(topics, "topic")
_add_thresholds(namespaces, "namespace")
