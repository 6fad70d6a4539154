"""The storms: long tests that kill, corrupt and starve a store, run by hand or by `make storm`.

``python -m embeddedpulsar.testing.storms kill --cycles 1000``. Each storm is a module of its own with a
function ``run(arguments) -> StormReport``; it parses its own options. The exit status is 0 when nothing was
wrong.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Final

from embeddedpulsar.testing.storm_report import StormReport

STORMS: Final = {
    "kill": "embeddedpulsar.testing.kill_storm",
}


def run(name: str, arguments: Sequence[str]) -> StormReport:
    """Run the storm ``name`` with its options, and return what it found.

    Raises:
        KeyError: there is no such storm.
    """
    report: StormReport = importlib.import_module(STORMS[name]).run(list(arguments))
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: the name of a storm, then its options."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] not in STORMS:
        print(
            f"usage: python -m embeddedpulsar.testing.storms {{{','.join(STORMS)}}} [options]",
            file=sys.stderr,
        )
        return 2
    report = run(words[0], words[1:])
    print(report)
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
