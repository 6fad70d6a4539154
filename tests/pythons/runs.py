"""What was run on which version of Python, and the table of it in the README."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from tests.pythons.places import REPOSITORY

PARTS = {
    "unit": ("tests/unit",),
    "conformance": ("tests/conformance", "tests/property"),
    "processes": ("tests/multiprocess", "tests/crash"),
}
UNIX_STORMS = ("kill --cycles 60", "types --kills 30")
UNIX_SAMPLE = (
    "tests/unit/platform/test_mailbox.py",
    "tests/unit/platform/test_nofollow.py",
    "tests/conformance/consuming/test_receiving_singly.py",
    "tests/conformance/consuming/test_listener.py",
    "tests/conformance/topics/test_partitioned_consumer.py",
    "tests/multiprocess/test_exclusive_takeover.py",
    "tests/crash/test_kills_are_no_damage.py",
)
"""What `make test` runs by the rules of another Unix."""
STORMS = ("kill --cycles 100", "types --kills 60", "hostile --minutes 2")
BEGIN, END = "<!-- tests.pythons -->", "<!-- end -->"

RUNS = Path(__file__).with_name("runs.csv")
README = REPOSITORY / "README.md"


class Run(NamedTuple):
    """A part on a version. ``failed`` are those that failed in the whole run, ``failing`` those of them that
    failed when they were run again, after a change."""

    python: str
    part: str
    day: str
    passed: int
    failed: int
    skipped: int
    failing: int = 0


def read_runs() -> list[Run]:
    """Return all runs, as recorded."""
    with RUNS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [Run(python, part, day, *map(int, counts)) for python, part, day, *counts in rows]


def add_run(run: Run, *, is_again: bool = False) -> None:
    """Record a run in the place of an older one of the same version; a repetition of what failed changes what
    is failing only."""
    runs = {(one.python, one.part): one for one in read_runs()}
    before = runs.get((run.python, run.part))
    if is_again and before is not None:
        run = before._replace(failing=run.failed)
    else:
        run = run._replace(failing=run.failed)
    runs[run.python, run.part] = run
    order = [*PARTS, "storms"]
    sorted_runs: list[Run] = sorted(
        runs.values(), key=lambda one: (_numbers(one.python), order.index(one.part))
    )
    with RUNS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Run._fields)
        writer.writerows(sorted_runs)


def table() -> str:
    """Return the table in Markdown: a row for each version, a column for each part."""
    runs = {(one.python, one.part): one for one in read_runs()}
    sizes = ", ".join(f"`{storm}`" for storm in STORMS)
    lines = [
        f"| Python | unit | conformance, properties | processes, crashes | storms: {sizes} |",
        "|---|---|---|---|---|",
    ]
    for python in sorted({python for python, _ in runs}, key=_numbers):
        cells = [_cell(runs.get((python, part))) for part in (*PARTS, "storms")]
        lines.append(f"| {python} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_table() -> None:
    """Put the table into the README."""
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")


def _cell(run: Run | None) -> str:
    if run is None:
        return "not run"
    if not run.failed:
        return f"{run.passed:,} passed, {run.day}"
    now = f"{run.failing} of these still do" if run.failing else "these pass since"
    return f"{run.passed:,} passed, {run.failed} failed, {run.day}; {now}"


def _numbers(version: str) -> tuple[list[int], str]:
    number, _, rules = version.partition(" ")
    return [int(part) for part in number.split(".") if part.isdigit()], rules
