"""The slowest tests of several runs of pytest together: a plug-in notes the times, a command prints them.

    python -m pytest --durations-file FILE ...
    python -m tests.slowest FILE

`make test` runs the tests in several parts, each of which would print a list of its own by ``--durations``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest


class DurationsFile:
    """Adds a line for each test to a file: seconds, with its fixtures, and its id.

    Args:
        path: The file, to which other runs may have written before.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A step of a test ended; with xdist, in whatever process."""
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """The run ended."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(f"{seconds:.3f} {test}\n" for test, seconds in self._seconds.items())


def add_option(parser: pytest.Parser) -> None:
    """The option of pytest that notes the durations."""
    parser.addoption(
        "--durations-file", type=Path, metavar="FILE", help="where to add how long each test took"
    )


def configure(config: pytest.Config) -> None:
    """Note the durations, where they are asked for and this is not a worker of xdist."""
    path = config.getoption("--durations-file")
    if path is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(DurationsFile(path), "durations file")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the slowest tests of a file."""
    parser = argparse.ArgumentParser(prog="python -m tests.slowest")
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=20, help="how many (%(default)s)")
    options = parser.parse_args(arguments)
    lines = options.file.read_text("utf-8").splitlines() if options.file.exists() else []
    tests = [(float(seconds), test) for seconds, _, test in (line.partition(" ") for line in lines)]
    print(
        f"{len(tests)} tests, {sum(seconds for seconds, _ in tests):.0f} s one after the other; the slowest:"
    )
    for seconds, test in sorted(tests, reverse=True)[: options.count]:
        print(f"{seconds:7.2f} s  {test}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
