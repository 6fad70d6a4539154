"""``embeddedpulsar repair``."""

from __future__ import annotations

import os
import sys

import click

from embeddedpulsar._engine.store.care.store_repair import RepairReport, repair_store
from embeddedpulsar.cli.opened_store import OpenedStore, pass_store
from embeddedpulsar.cli.output import as_json, is_confirmed, print_json
from embeddedpulsar.cli.output import destroys as asks
from embeddedpulsar.cli.progress_line import ProgressLine

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
    planned = _repair(root, is_dry_run=True)
    if dry_run or not planned.steps:
        _show(planned, is_json)
        context.exit(DAMAGED if planned.left else 0)
    if not is_json:
        _show(planned, is_json)
    if is_confirmed(f"take {len(planned.steps)} steps in {root}", yes, dry_run):
        done = _repair(root, is_dry_run=False)
        _show(done, is_json)
        context.exit(DAMAGED if done.left else 0)


def _repair(root: str, *, is_dry_run: bool) -> RepairReport:
    progress = ProgressLine(sys.stderr)
    try:
        return repair_store(root, is_dry_run=is_dry_run, on_progress=progress.follow)
    finally:
        progress.end()


def _show(report: RepairReport, is_json: bool) -> None:
    if is_json:
        print_json(report.json())
        return
    for step in report.steps:
        click.echo(f"{os.path.relpath(step.path, report.path)}\n  {step.what}")
    if report.is_dry_run:
        if not report.steps:
            click.echo(
                "There is nothing to repair." if not report.left else "Nothing of this can be repaired:"
            )
            _show_left(report)
        return
    click.echo(f"{len(report.steps)} steps done.")
    if report.quarantine:
        click.echo(f"What was taken out of use is in {report.quarantine}; remove it when it is not needed.")
    if report.left:
        click.echo("This cannot be repaired from the files of the store:")
        _show_left(report)


def _show_left(report: RepairReport) -> None:
    for problem in report.left:
        click.echo(f"{os.path.relpath(problem.path, report.path)}\n  {problem.text}; {problem.meaning}")
        click.echo(f"  to do: {problem.remedy}")
