"""SIGKILL among operators: ``python -m tests.storms operations``.

Producers and consumers work on a topic while operators make, move and delete subscriptions of it, trim it and
change its policies, and make and delete other topics. All of them are killed and stopped as in `kill_storm`.
In the end every consumer has got what was promised, and the store is audited (`operations_workload`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Final

from tests.storms.kill_storm import KillStorm
from tests.storms.operations_workload import OperationsWorkload
from tests.storms.storm_report import StormReport

Progress = Callable[[str, int, int], None]
_PRODUCERS: Final = 2
_CONSUMERS: Final = 2


class OperationsStorm(KillStorm):
    """The supervisor; operators are the last of the consumers."""

    def __init__(self, folder: str, *, operators: int, seed: int, progress: Progress | None = None) -> None:
        first = _PRODUCERS + _CONSUMERS
        workload = OperationsWorkload(
            f"{folder}/store", range(_PRODUCERS, first), range(first, first + operators)
        )
        consumers = _CONSUMERS + operators
        super().__init__(workload, folder, producers=_PRODUCERS, consumers=consumers, seed=seed)
        self._judged = self._consumers[:_CONSUMERS]
        self.report.title = "storm among operators"
        self._progress = progress

    def _look_after(self) -> None:
        if self._progress is not None:
            self._progress("operations", self._kills.total(), len(self.report.problems))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what this storm can be told."""
    parser.add_argument("--kills", type=int, default=300, help="how many (default 300)")
    parser.add_argument("--operators", type=int, default=3)
    parser.add_argument("--folder", help="where to work; it stays. Default is a folder in the workspace")


def run(options: argparse.Namespace, progress: Progress | None = None) -> StormReport:
    """Run with the options of the command line; the folder is removed unless something was wrong."""
    folder = options.folder or tempfile.mkdtemp(prefix="embeddedpulsar-storm-", dir=options.workspace)
    os.makedirs(f"{folder}/store", exist_ok=True)
    storm = OperationsStorm(folder, operators=options.operators, seed=options.seed, progress=progress)
    report = storm.run(options.kills)
    if report.is_clean and not options.folder:
        shutil.rmtree(folder)
    else:
        report.figures["folder"] = folder
    return report
