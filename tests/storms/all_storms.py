"""All storms, one after the other, in the sizes that a release needs.

    python -m tests.storms.all_storms [NAME...]

Each is a process of its own, whose output is shown as it comes; the last lines say how long each took and how
it ended. The exit status is 1 if one of them found something.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

SIZES: Final = (
    "kill --cycles 1000",
    "kill --cycles 1000 --level client",
    "types --kills 300",
    "producers --kills 100",
    "operations --kills 300",
    "transactions --kills 500",
    "spark --kills 200",
    "volatile --kills 300",
    "functions --kills 200",
    "outbox --kills 500",
    "outbox --kills 500 --database postgresql",
    "frameworks --tasks 10000",
    "hostile --minutes 30",
    "threads --messages 20000",
    "dispatch --seeds 10000",
    "backups --stores 10000",
    "power-loss --images 10000",
    "corruption --cases 2000",
)
"""What follows `python -m tests.storms`; docs/contributing.md shows the same lines."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the storms that the command line names, or all of them."""
    names = sorted({size.split()[0] for size in SIZES})
    parser = argparse.ArgumentParser(prog="python -m tests.storms.all_storms", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(names)} (default: all)")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(names))
    if unknown:
        parser.error(f"there is no storm {', '.join(unknown)}; there are {', '.join(names)}")
    endings = {}
    for size in SIZES:
        if not options.names or size.split()[0] in options.names:
            print(f"== {size}", flush=True)
            begun = time.monotonic()
            endings[size] = (_run(size), time.monotonic() - begun)
    print("== storms")
    for size, (ending, seconds) in endings.items():
        print(f"{ending:>15}  {seconds / 60:6.1f} min  {size}")
    return 1 if any(ending == "found something" for ending, _ in endings.values()) else 0


def _run(size: str) -> str:
    if size.startswith("spark") and shutil.which("java") is None:
        return "no java"
    command = [sys.executable, "-m", "tests.storms", *shlex.split(size)]
    return "clean" if subprocess.run(command, check=False).returncode == 0 else "found something"


if __name__ == "__main__":
    sys.exit(main())
