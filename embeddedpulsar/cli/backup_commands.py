"""``embeddedpulsar backup`` and ``restore``."""

from __future__ import annotations

import sys
from datetime import datetime

import click

from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.cli.opened_store import OpenedStore, complete_topic, pass_store
from embeddedpulsar.cli.output import ArgumentPath, as_json, print_json, size
from embeddedpulsar.cli.progress_line import ProgressLine


@click.command()
@click.argument("directory", type=ArgumentPath(file_okay=False))
@click.option(
    "-t", "--topic", "topics", multiple=True, shell_complete=complete_topic, help="This topic alone."
)
@as_json
@pass_store
def backup(store: OpenedStore, directory: str, topics: tuple[str, ...], is_json: bool) -> None:
    """Copy the store into DIRECTORY, while others use it; the next time, what is new."""
    progress = ProgressLine(sys.stderr)
    with store.admin() as admin:
        report = admin.backup(directory, topics or None, on_progress=progress.follow)
    progress.end()
    if is_json:
        print_json(report._asdict())
        return
    click.echo(f"{report.topics:,} topics, {size(report.size)} in {report.files:,} files: {report.path}")
    click.echo(f"{size(report.copied)} copied; the rest was there")


@click.command()
@click.argument("source", type=ArgumentPath(exists=True, file_okay=False))
@click.argument("directory", type=ArgumentPath())
@as_json
def restore(source: str, directory: str, is_json: bool) -> None:
    """Make a store in DIRECTORY, which is new or empty, of the backup in SOURCE. Verifies every byte."""
    progress = ProgressLine(sys.stderr)
    report = Admin.restore(source, directory, on_progress=progress.follow)
    progress.end()
    if is_json:
        print_json(report._asdict())
        return
    begun = datetime.fromtimestamp(report.created_ms // 1000).astimezone()
    click.echo(f"{report.topics:,} topics, {size(report.size)} in {report.files:,} files: {report.path}")
    click.echo(f"as of {begun:%Y-%m-%d %H:%M:%S %Z}")
