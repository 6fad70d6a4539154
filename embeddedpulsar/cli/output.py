"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

_NO_LIMIT: Final = 10_000
_MOST_IN_TABLE: Final = 10_000

as_json = click.option("--json", "is_json", is_flag=True, help="Print JSON.")


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print a value as one JSON text, of one line if ``indent`` is None."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=indent))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows; numbers are aligned to the right. A terminal gets colours, unless ``NO_COLOR`` is set.

    Where the output is no terminal, nothing is shortened. More than `_MOST_IN_TABLE` rows are lines with
    tabs, because columns of one width take a second for 10,000 rows.
    """
    listed = [list(row) for row in rows]
    if len(listed) > _MOST_IN_TABLE:
        for line in (columns, *listed):
            print("\t".join(str(cell) for cell in line).rstrip())
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        is_number = bool(listed) and all(isinstance(row[index], int | float) for row in listed)
        table.add_column(column, justify="right" if is_number else "left", no_wrap=True)
    for row in listed:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int | float) else str(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else _NO_LIMIT, highlight=False).print(table)


def size(count: float) -> str:
    """Return a number of bytes for people.

    Example:
        >>> size(3 << 20), size(512)
        ('3.0 MiB', '512 bytes')
    """
    if count < 1024:
        return f"{count:,.0f} bytes"
    units = ("KiB", "MiB", "GiB")
    power = min(len(units), int(math.log(count, 1024)))
    return f"{count / 1024**power:,.1f} {units[power - 1]}"


def destroys(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of those that destroy something: ``--yes`` and ``--dry-run``."""
    command = click.option("-y", "--yes", is_flag=True, help="Do it without asking.")(command)
    return click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")(command)


def is_confirmed(what: str, yes: bool, dry_run: bool) -> bool:
    """Ask before something is destroyed.

    Args:
        what: what the command does, such as ``delete the topic orders``.
        yes, dry_run: the options of `destroys`.

    Returns:
        Whether to do it: False in a dry run.

    Raises:
        Abort: the answer is no, or there is none.
    """
    if dry_run:
        click.echo(f"would {what}; nothing was done")
        return False
    if not yes:
        click.confirm(f"{what[0].upper()}{what[1:]}?", abort=True)
    return True
