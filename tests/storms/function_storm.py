"""SIGKILL among the workers of a function: ``python -m tests.storms functions``.

Three workers run a function with EFFECTIVELY_ONCE over four partitions. They are killed at any moment and at
each step of a commit, the function fails now and then, and the supervisor is replaced. In the end each input
is counted once and published once (`function_workload`), and the store is audited.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Final

from embeddedpulsar import Admin, Client
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from embeddedpulsar.functions import Supervisor, worker
from embeddedpulsar.functions import supervisor as worker_group
from embeddedpulsar.testing.trial_store import check_store
from tests.storms import function_workload
from tests.storms.storm_report import StormReport

_STEPS: Final = tuple(name for name in failpoints.names() if name.startswith("function:"))
_SETTINGS: Final = (
    "managedLedgerMaxEntriesPerLedger=2000\nbrokerServiceCompactionMonitorIntervalInSeconds=1\n"
)
_PAUSE_S: Final = 0.01
_AT_A_STEP: Final = 0.6
"""How many workers are killed at a step of a commit; the others at any moment."""
_REPLACED: Final = 0.02
_MOST_WAITING: Final = 2000
_END_S: Final = 120.0

Progress = Callable[[str, int, int], object]


class _Worker:
    """A forked worker, in the place of a `ChildProcess`."""

    def __init__(self, arguments: list[str], step: str | None, nth: int, folder: str) -> None:
        self._status: int | None = None
        self.step = step
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                if step is not None:
                    failpoints.set(step, "kill", nth=nth)
                status = worker.main(arguments)
            except BaseException:
                with open(f"{folder}/failed.{os.getpid()}", "w", encoding="utf-8") as file:
                    traceback.print_exc(file=file)
            finally:
                os._exit(status)

    def status(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def wait(self, timeout_s: float) -> bool:
        end_s = perf_counter() + timeout_s
        while self.status() is None:
            if perf_counter() > end_s:
                return False
            sleep(_PAUSE_S)
        return True

    def terminate(self) -> None:
        if self.status() is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if self.status() is None:
            os.kill(self.pid, signal.SIGKILL)


class FunctionStorm:
    """One storm.

    Attributes:
        report: what it found.
    """

    def __init__(self, folder: str, seed: int) -> None:
        self.report: Final = StormReport("storm over the workers of a function, EFFECTIVELY_ONCE")
        self._folder: Final = folder
        self._root: Final = f"{folder}/store"
        self._chance: Final = random.Random(seed)
        self._workers: Final[list[_Worker]] = []
        self._killed: Final[set[int]] = set()
        self._inputs = 0
        self._may_die = True

    def _start(self, arguments: list[str]) -> _Worker:
        step, nth = None, 1
        if self._may_die and self._chance.random() < _AT_A_STEP:
            step, nth = self._chance.choice(_STEPS), self._chance.randint(1, 12)
        made = _Worker(arguments, step, nth, self._folder)
        self._workers.append(made)
        return made

    def _supervisor(self) -> Supervisor:
        return Supervisor(self._root, _start=self._start)  # type: ignore[arg-type]

    def run(self, kills: int, progress: Progress | None = None) -> StormReport:
        """Kill so many workers, then let the rest finish, and judge."""
        os.makedirs(self._root)
        with open(f"{self._root}/broker.conf", "w", encoding="utf-8") as file:
            file.write(_SETTINGS)
        logging.basicConfig(filename=f"{self._folder}/log", level=logging.INFO)
        function_workload.prepare(self._root)
        supervisor = self._supervisor()
        replaced = 0
        try:
            with Client(self._root) as client, Admin(self._root) as admin:
                while self._kills() < kills:
                    self._go_on(client, admin, supervisor)
                    if self._chance.random() < _REPLACED:
                        supervisor.close()
                        supervisor = self._supervisor()
                        replaced += 1
                    if progress is not None:
                        progress("functions", self._kills(), 0)
                self._finish(admin, supervisor)
        finally:
            supervisor.close()
        steps = Counter(one.step for one in self._workers if one.step and one.status() == -signal.SIGKILL)
        figures = self.report.figures
        figures["kills"] = f"{self._kills()}, at any moment {len(self._killed)}"
        figures["kills by step"] = ", ".join(f"{name} {steps[name]}" for name in _STEPS)
        figures["failed workers"] = sum(one.status() == 1 for one in self._workers)
        figures["supervisors"] = replaced + 1
        self._judge()
        return self.report

    def _kills(self) -> int:
        return sum(one.status() == -signal.SIGKILL for one in self._workers)

    def _go_on(self, client: Client, admin: Admin, supervisor: Supervisor) -> None:
        if self._inputs - function_workload.counted(admin) < _MOST_WAITING:
            count = self._chance.randint(1, 300)
            function_workload.publish(client, self._inputs, count)
            self._inputs += count
        end_s = perf_counter() + self._chance.uniform(0, 0.4)
        while perf_counter() < end_s:
            supervisor.look()
            sleep(_PAUSE_S)
        living = [one for one in self._workers if one.step is None and one.status() is None]
        if living:
            victim = self._chance.choice(living)
            self._killed.add(victim.pid)
            victim.kill()

    def _finish(self, admin: Admin, supervisor: Supervisor) -> None:
        self._may_die = False  # those that would, end before
        end_s = perf_counter() + _END_S
        while function_workload.counted(admin) < self._inputs and perf_counter() < end_s:
            supervisor.look()
            for one in self._workers:
                if one.step is not None:
                    one.kill()
            sleep(_PAUSE_S)
        sleep(0.3)  # for messages that would be counted too often

    def _judge(self) -> None:
        verdict = function_workload.FunctionVerdict(self._root, self._inputs)
        self.report.figures["inputs"] = self._inputs
        self.report.figures["side outputs"] = verdict.side
        self.report.problems += verdict.problems
        self.report.problems += [str(problem) for problem in check_store(self._root).problems]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this storm."""
    parser.add_argument("--kills", type=int, default=200, help="how many (default 200)")


def run(options: argparse.Namespace, progress: Progress | None = None) -> StormReport:
    """Run the storm in a folder, which stays if something was wrong."""
    folder = tempfile.mkdtemp(prefix="storm-", dir=options.workspace)
    worker_group._LONGEST_DELAY_S = 0.0  # type: ignore[misc]  # the kills are no reason to wait
    report = FunctionStorm(folder, options.seed).run(options.kills, progress)
    if report.is_clean:
        shutil.rmtree(folder)
    else:
        report.figures["folder"] = folder
    return report
