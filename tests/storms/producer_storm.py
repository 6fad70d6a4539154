"""SIGKILL among the producers of one topic: ``python -m tests.storms producers``.

Producers of one access mode publish numbered sources, with and without deduplication; they are killed and
stopped as in `kill_storm`, close and come again, wait for each other and throw each other out. In the end the
log is held against what they were promised (`producer_verdict`), and the store is audited.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Final

from embeddedpulsar.enums import ProducerAccessMode
from tests.storms.kill_storm import KillStorm
from tests.storms.producer_verdict import ProducerVerdict
from tests.storms.producer_workload import ProducerWorkload
from tests.storms.storm_report import StormReport

MODES: Final = {one.name.lower(): one for one in ProducerAccessMode}

Progress = Callable[[str, int, int], None]


class ProducerStorm(KillStorm):
    """The supervisor of one storm over the producers of one access mode."""

    def __init__(
        self,
        mode: ProducerAccessMode,
        folder: str,
        *,
        deduplicates: bool,
        producers: int,
        seed: int,
        progress: Progress | None = None,
    ) -> None:
        workload = ProducerWorkload(f"{folder}/store", mode, deduplicates=deduplicates)
        super().__init__(workload, folder, producers=producers, consumers=0, seed=seed)
        what = "deduplication" if deduplicates else "no deduplication"
        self.report.title = f"storm over producers, {mode.name}, {what}"
        self._source: Final = workload
        self._mode = mode
        self._deduplicates = deduplicates
        self._progress = progress

    def _look_after(self) -> None:
        if self._progress is not None:
            self._progress(self._mode.name, self._kills.total(), len(self.report.problems))

    def _judge(self) -> None:
        self._judge_kills()
        figures, problems = self.report.figures, self.report.problems
        answered: dict[str, int] = {}
        for member in self._producers:
            name = self._source.name(member)
            answered[name] = max(answered.get(name, 0), self._page.stored(member))
        verdict = ProducerVerdict(
            deduplicates=self._deduplicates, is_exclusive=self._mode != ProducerAccessMode.Shared
        )
        verdict.judge(self._source.read_entries(), answered)
        problems += verdict.problems
        figures["messages"] = f"{verdict.messages}, answered {sum(answered.values())}"
        figures["stored twice"] = verdict.duplicates
        if self._mode != ProducerAccessMode.Shared:
            figures["grants"] = verdict.grants
        problems += self._source.audit()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what this storm can be told."""
    parser.add_argument("--kills", type=int, default=300, help="for each mode (default 300)")
    parser.add_argument("--mode", choices=sorted(MODES), action="append", help="default is all of them")
    parser.add_argument("--producers", type=int, default=3)
    parser.add_argument(
        "--deduplication", choices=("on", "off"), action="append", help="default is both, one after the other"
    )
    parser.add_argument("--folder", help="where to work; it stays. Default is a folder in the workspace")


def run(options: argparse.Namespace, progress: Progress | None = None) -> list[StormReport]:
    """Run with the options of the command line; the folder is removed unless something was wrong."""
    reports = []
    for name in options.mode or MODES:
        for switch in options.deduplication or ("on", "off"):
            parent = options.folder or tempfile.mkdtemp(prefix="embeddedpulsar-storm-", dir=options.workspace)
            folder = os.path.join(parent, f"{name}-{switch}")
            os.makedirs(f"{folder}/store")
            storm = ProducerStorm(
                MODES[name],
                folder,
                deduplicates=switch == "on",
                producers=options.producers,
                seed=options.seed,
                progress=progress,
            )
            report = storm.run(options.kills)
            if report.is_clean and not options.folder:
                shutil.rmtree(parent)
            else:
                report.figures["folder"] = folder
            reports.append(report)
    return reports
