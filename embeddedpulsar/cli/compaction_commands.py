"""Compaction on the command line: of topics, and its thresholds for topics and namespaces."""

from __future__ import annotations

import sys

import click

from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.admin.policy_calls import PolicyCalls
from embeddedpulsar.cli.namespace_commands import namespaces
from embeddedpulsar.cli.opened_store import OpenedStore, pass_store, topic_argument
from embeddedpulsar.cli.output import as_json, print_json, size
from embeddedpulsar.cli.progress_line import ProgressLine
from embeddedpulsar.cli.topic_commands import topics
from embeddedpulsar.platform.clock import SYSTEM_CLOCK
from embeddedpulsar.topic.topic_compaction import ERROR, RUNNING

_PAUSE_S = 0.05
_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}


def _bytes(context: click.Context, parameter: click.Parameter, value: str) -> int:
    """A number of bytes, also as ``10M``."""
    text = value.upper().removesuffix("B")
    shift = _UNITS.get(text[-1:], 0)
    digits = text[:-1] if shift else text
    if not (digits.isascii() and digits.isdigit()):
        raise click.BadParameter(f"{value!r} is no size; write 1048576, 1024K or 1M", context, parameter)
    return int(digits) << shift


@topics.command()
@topic_argument
@pass_store
@click.pass_context
def compact(context: click.Context, store: OpenedStore, topic: str) -> None:
    """Compact TOPIC, or all its partitions, and wait for the end."""
    with store.admin() as admin:
        admin.topics().compact(topic)
        _wait(context, admin, topic)


@topics.command("compaction-status")
@topic_argument
@click.option("-w", "--wait-complete", is_flag=True, help="Wait for the end of a compaction.")
@as_json
@pass_store
@click.pass_context
def compaction_status(
    context: click.Context, store: OpenedStore, topic: str, wait_complete: bool, is_json: bool
) -> None:
    """Show how the compaction of TOPIC stands. The exit status is 1 if the last one failed."""
    with store.admin() as admin:
        if wait_complete and not is_json:
            _wait(context, admin, topic)
            return
        status = admin.topics().compaction_status(topic)
        while wait_complete and status.status == RUNNING:
            SYSTEM_CLOCK.sleep(_PAUSE_S)
            status = admin.topics().compaction_status(topic)
    if is_json:
        print_json(status.json())
    else:
        click.echo(f"{status.status}{f': {status.last_error}' if status.last_error else ''}")
    context.exit(1 if status.status == ERROR else 0)


def _wait(context: click.Context, admin: Admin, topic: str) -> None:
    progress = ProgressLine(sys.stderr)
    try:
        while (status := admin.topics().compaction_status(topic)).status == RUNNING:
            if progress.is_due:
                done, total = admin.topics()._compaction_progress(topic)
                progress.show(f"{done:,} of about {total:,} entries read" if total else "compacting")
            SYSTEM_CLOCK.sleep(_PAUSE_S)
    finally:
        progress.end()
    click.echo(f"{status.status}{f': {status.last_error}' if status.last_error else ''}")
    context.exit(1 if status.status == ERROR else 0)


def _policies(admin: Admin, kind: str) -> PolicyCalls:
    return admin.topics() if kind == "topic" else admin.namespaces()


def _add_thresholds(group: click.Group, kind: str) -> None:
    """Add the three commands about the threshold to the commands of topics, or of namespaces."""

    @group.command("set-compaction-threshold", help=f"Compact whenever so much was stored in a {kind}.")
    @click.argument("name", metavar=kind.upper())
    @click.option("-t", "--threshold", callback=_bytes, required=True, help="Bytes, or 10M; 0 for never.")
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
