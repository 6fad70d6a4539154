"""``embeddedpulsar backup`` and ``restore``.

``embeddedpulsar repair``.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime
from typing import TYPE_CHECKING

import click

from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.cli.base import (
    ArgumentPath,
    OpenedStore,
    as_json,
    complete_topic,
    is_confirmed,
    pass_store,
    print_json,
    size,
)
from embeddedpulsar.cli.base import destroys as asks
from embeddedpulsar.cli.engine import repair_store
from embeddedpulsar.cli.terminal import ProgressLine, line_text

if TYPE_CHECKING:
    from embeddedpulsar.cli.engine import RepairReport


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
        # A tuple of no topics would be a backup of nothing; None is all.
        report = admin.backup(directory, topics or None, on_progress=progress.show_if_due)
    progress.end()
    if is_json:
        print_json(report._asdict())
        return
    path = line_text(report.path)
    click.echo(f"{report.topics:,} topics, {size(report.size)} in {report.files:,} files: {path}")
    click.echo(f"{size(report.copied)} copied; the rest was there")


@click.command()
@click.argument("source", type=ArgumentPath(exists=True, file_okay=False))
@click.argument("directory", type=ArgumentPath())
@as_json
def restore(source: str, directory: str, is_json: bool) -> None:
    """Make a store in DIRECTORY, which is new or empty, of the backup in SOURCE. Verifies every byte."""
    progress = ProgressLine(sys.stderr)
    report = Admin.restore(source, directory, on_progress=progress.show_if_due)
    progress.end()
    if is_json:
        print_json(report._asdict())
        return
    # The time of the place where the command runs, with its name: a backup is compared with what people
    # remember.
    begun = datetime.fromtimestamp(report.created_ms // 1000).astimezone()
    path = line_text(report.path)
    click.echo(f"{report.topics:,} topics, {size(report.size)} in {report.files:,} files: {path}")
    click.echo(f"as of {begun:%Y-%m-%d %H:%M:%S %Z}")


DAMAGED = 1


@click.command()
@as_json
@asks
@pass_store
@click.pass_context
def repair(context: click.Context, store: OpenedStore, is_json: bool, yes: bool, dry_run: bool) -> None:
    """Repair what can be repaired from the files of the store, which nothing else may use meanwhile.

    Nothing that may hold a message is removed: what is taken out of use is moved to the directory quarantine
    of the store. The exit status is 1 if damage is left.
    """
    root = store.directory
    if not dry_run:
        store.check_writable()
    # The plan is a repair that does nothing. It is made first in every case: it is what the user agrees to.
    # The second call looks again, since time passed during the question.
    planned = _repair(root, is_dry_run=True)
    # Nothing to ask: no steps, or only the plan is wanted.
    if dry_run or not planned.steps:
        _show(planned, is_json)
        context.exit(DAMAGED if planned.left else 0)
    # With --json there is one object only: the plan, or what was done.
    if not is_json:
        _show(planned, is_json)
    if is_confirmed(f"take {len(planned.steps)} steps in {root}", yes, dry_run):
        done = _repair(root, is_dry_run=False)
        _show(done, is_json)
        context.exit(DAMAGED if done.left else 0)


def _repair(root: str, *, is_dry_run: bool) -> RepairReport:
    progress = ProgressLine(sys.stderr)
    try:
        return repair_store(root, is_dry_run=is_dry_run, on_progress=progress.show_if_due)
    finally:
        progress.end()


def _show(report: RepairReport, is_json: bool) -> None:
    if is_json:
        print_json(report.json())
        return
    for step in report.steps:
        click.echo(f"{line_text(os.path.relpath(step.path, report.path))}\n  {line_text(step.what)}")
    # A plan lists its steps and what it leaves; behind a repair it says where the removed files are, too.
    if report.is_dry_run:
        if not report.steps:
            click.echo(
                "There is nothing to repair." if not report.left else "Nothing of this can be repaired:"
            )
            _show_left(report)
        return
    click.echo(f"{len(report.steps)} steps done.")
    if report.quarantine:
        place = line_text(report.quarantine)
        click.echo(f"What was taken out of use is in {place}; remove it when it is not needed.")
    if report.left:
        click.echo("This cannot be repaired from the files of the store:")
        _show_left(report)


def _show_left(report: RepairReport) -> None:
    for problem in report.left:
        click.echo(line_text(os.path.relpath(problem.path, report.path)))
        click.echo(f"  {line_text(problem.text)}; {problem.meaning}")
        click.echo(f"  to do: {problem.remedy}")
