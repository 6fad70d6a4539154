"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from embeddedpulsar.cli.terminal import argument_path, is_terminal, printable, printable_json, raw_stream

_MOST_IN_TABLE: Final = 10_000

as_json = click.option("--json", "is_json", is_flag=True, help="Print JSON.")


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print a value as one JSON text, of one line if ``indent`` is None.

    What the encoding of the output does not have, and on a terminal what is not printable, is written as
    ``\\u`` with its code."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if is_terminal():
        text = printable_json(text)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=indent)
    click.echo(text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows; numbers are aligned to the right. A terminal gets a bold heading, unless ``NO_COLOR`` is
    set, and only printable characters.

    Where the output is no terminal, nothing is shortened or escaped. More than `_MOST_IN_TABLE` rows are
    lines with tabs, because columns of one width take a second for 10,000 rows.
    """
    listed = [list(row) for row in rows]
    shows = printable if is_terminal() else str
    if len(listed) > _MOST_IN_TABLE:
        for line in (columns, *listed):
            print("\t".join(shows(str(cell)) for cell in line).rstrip())
        return
    are_numbers = [
        bool(listed) and all(isinstance(row[index], int | float) for row in listed)
        for index in range(len(columns))
    ]
    texts = [
        [f"{cell:,}" if isinstance(cell, int | float) else shows(str(cell)) for cell in row] for row in listed
    ]
    if not is_terminal():
        _print_lines(columns, texts, are_numbers)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, is_number in zip(columns, are_numbers, strict=True):
        table.add_column(column, justify="right" if is_number else "left", no_wrap=True)
    for row in texts:
        table.add_row(*map(Text, row))  # as texts: in a plain string, brackets would be markup
    Console(file=raw_stream(sys.stdout), highlight=False).print(table)


def _print_lines(columns: Sequence[str], texts: list[list[str]], are_numbers: list[bool]) -> None:
    lines = [list(columns), *texts]
    widths = [max(cell_len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        cells = []
        for cell, width, is_number in zip(line, widths, are_numbers, strict=True):
            gap = " " * (width - cell_len(cell))
            cells.append(gap + cell if is_number else cell + gap)
        print("  ".join(cells).rstrip(" "))


class ArgumentPath(click.Path):
    """A path on the command line, in whatever encoding it was typed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(argument_path(os.fspath(value)), param, ctx)


class ArgumentFile(click.File):
    """A file on the command line; see `ArgumentPath`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(argument_path(value) if isinstance(value, str) else value, param, ctx)


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
    if is_terminal():
        what = printable(what)
    if dry_run:
        click.echo(f"would {what}; nothing was done")
        return False
    if not yes:
        click.confirm(f"{what[0].upper()}{what[1:]}?", abort=True)
    return True
