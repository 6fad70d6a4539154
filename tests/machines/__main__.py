"""The command: see `tests.machines`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.machines.places import MACHINES, ROOT, CannotBeMadeError

PAGE = ROOT / "docs" / "envelope.md"
BEGIN, END = "<!-- tests.machines -->", "<!-- end -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on the machines that are named, all by default."""
    parser = argparse.ArgumentParser(prog="python -m tests.machines", description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(MACHINES))
    parser.add_argument(
        "--python", default=sys.executable, help="another interpreter that has the package's needs"
    )
    parser.add_argument("--record", action="store_true", help="into the table of docs/envelope.md")
    parser.add_argument("--directory", help="where files may lie; a temporary one by default")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(MACHINES)
    if unknown:
        parser.error(f"no machine is called {', '.join(sorted(unknown))}")
    outcomes = {}
    for name in options.names or MACHINES:
        with tempfile.TemporaryDirectory(prefix=f"machine-{name}-", dir=options.directory) as directory:
            try:
                printed = MACHINES[name].run(Path(directory), options.python)
            except CannotBeMadeError as e:
                outcomes[name] = f"not tried: {e}"
            except AssertionError as e:
                print(e)
                outcomes[name] = "failed"
            else:
                peak = printed.rpartition("peak ")[2].strip()
                outcomes[name] = f"passed {time.strftime('%Y-%m-%d', time.gmtime())}; at most {peak} resident"
        print(f"{name}: {outcomes[name]}", flush=True)
    if options.record:
        record(outcomes)
    return int("failed" in outcomes.values())


def record(outcomes: dict[str, str]) -> None:
    """Put the rows of these machines into the table; others stay."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    table, _, after = rest.partition(END)
    rows = dict(line.strip("| ").split(" | ", 1) for line in table.splitlines() if " | " in line)
    rows |= {MACHINES[name].what: outcome for name, outcome in outcomes.items()}
    lines = ["| machine | result, and memory of the process |", "|---|---|"]
    lines += [
        f"| {machine.what} | {rows[machine.what]} |" for machine in MACHINES.values() if machine.what in rows
    ]
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}", encoding="utf-8")


sys.exit(main())
