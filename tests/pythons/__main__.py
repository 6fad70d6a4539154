"""The command: see `tests.pythons`."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.pythons.places import DebianRoot, Installed, OtherUnix, Place
from tests.pythons.runs import PARTS, STORMS, UNIX_STORMS, Run, add_run, write_table
from tests.support.other_unix import PROFILES


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments, run the parts, and record them where that is wanted."""
    parser = argparse.ArgumentParser(prog="python -m tests.pythons", description=__doc__)
    parser.add_argument("parts", nargs="*", help="unit, conformance, processes, storms; all by default")
    parser.add_argument("--python", default="python3", help="an interpreter; with --debian a version: 3.14")
    parser.add_argument(
        "--debian", type=Path, help="a directory with Debian's unstable packages, or for them"
    )
    parser.add_argument("--unix", choices=PROFILES, help="the present interpreter, by the rules of that Unix")
    parser.add_argument("--sample", action="store_true", help="of the tests, a part of each kind")
    parser.add_argument("--record", action="store_true", help="into the table of the README")
    parser.add_argument("--again", action="store_true", help="only what failed the time before")
    parser.add_argument("--workers", default="2", help="of pytest; 2 by default")
    parser.add_argument("--table", action="store_true", help="only write the table of the README")
    options = parser.parse_args(arguments)
    unknown = set(options.parts) - {*PARTS, "storms"}
    if unknown:
        parser.error(f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}, storms")
    if options.table:
        write_table()
        return 0
    place: Place
    if options.unix:
        place = OtherUnix(options.unix)
    else:
        place = DebianRoot(options.debian, options.python) if options.debian else Installed(options.python)
    version = place.run(("-c", "import platform; print(platform.python_version())")).stdout.strip()
    if options.unix:
        version += f" as {options.unix}"
    has_failed = False
    for part in options.parts or [*PARTS, "storms"]:
        if part == "storms":
            result = storms(place, UNIX_STORMS if options.unix else STORMS)
        else:
            more = [*(["--last-failed"] if options.again else []), *(["--sample"] if options.sample else [])]
            result = tests(place, version, part, options.workers, more)
        has_failed = has_failed or result[1] > 0
        if options.record:
            today = time.strftime("%Y-%m-%d", time.gmtime())
            add_run(Run(version, part, today, *result), is_again=options.again)
            write_table()
    return int(has_failed)


def tests(place: Place, version: str, part: str, workers: str, more: list[str]) -> tuple[int, int, int]:
    """Run the tests of a part; how many passed, failed and were left out."""
    cache = f".pytest_cache/python-{version.replace(' ', '-')}"
    command = ["-m", "pytest", "-q", "-m", "not slow", "-o", f"cache_dir={cache}", "-n", workers]
    command += ["--dist", "loadfile", *PARTS[part], *more]
    done = place.run(command)
    closing = done.stdout.splitlines()[-1] if done.stdout else ""
    counts = {kind: int(count) for count, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", closing)}
    failed = counts.get("failed", 0) + counts.get("error", 0)
    if done.returncode and not failed:
        sys.exit(f"no whole run of {part}: {closing}")
    return counts.get("passed", 0), failed, counts.get("skipped", 0)


def storms(place: Place, commands: Sequence[str]) -> tuple[int, int, int]:
    """Run the storms, each for some minutes; how many passed and failed."""
    statuses = [place.run(("-m", "tests.storms", *storm.split())).returncode for storm in commands]
    return statuses.count(0), len(statuses) - statuses.count(0), 0


sys.exit(main())
