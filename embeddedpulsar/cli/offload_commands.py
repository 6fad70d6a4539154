"""Offloading of topics on the command line."""

from __future__ import annotations

import sys

import click

from embeddedpulsar._engine.platform.descriptors import late_import
from embeddedpulsar.admin import offload_calls
from embeddedpulsar.cli.background_work import BackgroundWork
from embeddedpulsar.cli.base import ArgumentPath, OpenedStore, pass_store, size, topic_argument
from embeddedpulsar.cli.policies import SIZE
from embeddedpulsar.cli.terminal import ProgressLine
from embeddedpulsar.cli.topic_commands import topics

_OFFLOADING = BackgroundWork(
    "offloading", offload_calls.offload_status, offload_calls.offload_progress, "{:,} of {:,} ledgers moved"
)


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
        # Nothing to do is no error: the status below is that of the last offloading.
        if not admin.topics().offload(topic, size_threshold):
            kept = f" beyond {size(size_threshold)}" if size_threshold else ""
            click.echo(
                f"nothing to offload: {topic} has no closed ledger{kept} that is not offloaded yet; "
                "`topics roll-ledger` closes the open one",
                err=True,
            )
        _OFFLOADING.wait(context, admin, topic)


_OFFLOADING.add_status_command("offload-status")


@topics.command("adopt-offloaded")
@topic_argument
@click.option(
    "-m",
    "--moved",
    nargs=2,
    multiple=True,
    metavar="OLD NEW",
    help="The location OLD is NEW by now. May be repeated.",
)
@pass_store
def adopt_offloaded(store: OpenedStore, topic: str, moved: tuple[tuple[str, str], ...]) -> None:
    """Let this store own the objects of TOPIC in its locations, which it removes from now on.

    Only if no other store uses them: the one that this was copied or restored from, for one.
    """
    with store.admin() as admin:
        count = admin.topics().adopt_offloaded(topic, dict(moved))
    click.echo(f"{count:,} ledgers adopted")


@topics.command()
@topic_argument
@click.argument("directory", type=ArgumentPath(file_okay=False))
@click.option(
    "-f", "--format", "file_format", type=click.Choice(("parquet", "jsonl", "csv")), default="parquet"
)
@click.option("-c", "--columns", help="Names separated by commas; all by default.")
@pass_store
def export(store: OpenedStore, topic: str, directory: str, file_format: str, columns: str | None) -> None:
    """Write the messages of TOPIC as files into DIRECTORY, a folder for each day."""
    # pyarrow is an extra requirement, and takes long to import: commands that need none do not load it.
    late = late_import("embeddedpulsar.arrow")
    progress = ProgressLine(sys.stderr)

    def show(rows: int) -> None:
        if progress.is_due:
            progress.show(f"{rows:,} messages written")

    names = columns.split(",") if columns else None
    # The line of progress is removed before an error is printed.
    try:
        exported = late.export(
            store.directory, topic, directory, names, file_format=file_format, on_progress=show
        )
    finally:
        progress.end()
    click.echo(f"{exported.rows:,} messages in {len(exported.files)} files")
