"""Offloading of topics on the command line."""

from __future__ import annotations

import sys

import click

from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.cli.expiry_commands import SIZE
from embeddedpulsar.cli.opened_store import OpenedStore, pass_store, topic_argument
from embeddedpulsar.cli.output import as_json, print_json
from embeddedpulsar.cli.progress_line import ProgressLine
from embeddedpulsar.cli.topic_commands import topics
from embeddedpulsar.platform.clock import SYSTEM_CLOCK
from embeddedpulsar.platform.fork import late_import
from embeddedpulsar.topic.late_offload import ERROR, RUNNING

_PAUSE_S = 0.05


@topics.command()
@topic_argument
@click.option(
    "-s", "--size-threshold", type=SIZE, required=True, help="Bytes that stay in the store, or 10M."
)
@pass_store
@click.pass_context
def offload(context: click.Context, store: OpenedStore, topic: str, size_threshold: int) -> None:
    """Move closed ledgers of TOPIC to its offload location, and wait for the end."""
    with store.admin() as admin:
        admin.topics().offload(topic, size_threshold)
        _wait(context, admin, topic)


@topics.command("offload-status")
@topic_argument
@click.option("-w", "--wait-complete", is_flag=True, help="Wait for the end of an offloading.")
@as_json
@pass_store
@click.pass_context
def offload_status(
    context: click.Context, store: OpenedStore, topic: str, wait_complete: bool, is_json: bool
) -> None:
    """Show how the offloading of TOPIC stands. The exit status is 1 if the last one failed."""
    with store.admin() as admin:
        if wait_complete and not is_json:
            _wait(context, admin, topic)
            return
        status = admin.topics().offload_status(topic)
        while wait_complete and status.status == RUNNING:
            SYSTEM_CLOCK.sleep(_PAUSE_S)
            status = admin.topics().offload_status(topic)
    if is_json:
        print_json(status.json())
    else:
        click.echo(f"{status.status}{f': {status.last_error}' if status.last_error else ''}")
    context.exit(1 if status.status == ERROR else 0)


@topics.command()
@topic_argument
@click.argument("directory", type=click.Path(file_okay=False))
@click.option(
    "-f", "--format", "file_format", type=click.Choice(("parquet", "jsonl", "csv")), default="parquet"
)
@click.option("-c", "--columns", help="Names separated by commas; all by default.")
@pass_store
def export(store: OpenedStore, topic: str, directory: str, file_format: str, columns: str | None) -> None:
    """Write the messages of TOPIC as files into DIRECTORY, a folder for each day."""
    late = late_import("embeddedpulsar.arrow")
    progress = ProgressLine(sys.stderr)

    def show(rows: int) -> None:
        if progress.is_due:
            progress.show(f"{rows:,} messages written")

    names = columns.split(",") if columns else None
    try:
        found = late.export(
            store.directory, topic, directory, names, file_format=file_format, on_progress=show
        )
    finally:
        progress.end()
    click.echo(f"{found.rows:,} messages in {len(found.files)} files")


def _wait(context: click.Context, admin: Admin, topic: str) -> None:
    progress = ProgressLine(sys.stderr)
    try:
        while (status := admin.topics().offload_status(topic)).status == RUNNING:
            if progress.is_due:
                done, total = admin.topics()._offload_progress(topic)
                progress.show(f"{done:,} of {total:,} ledgers moved" if total else "offloading")
            SYSTEM_CLOCK.sleep(_PAUSE_S)
    finally:
        progress.end()
    click.echo(f"{status.status}{f': {status.last_error}' if status.last_error else ''}")
    context.exit(1 if status.status == ERROR else 0)
