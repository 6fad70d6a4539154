"""SIGKILL among the workers of frameworks of jobs: ``python -m tests.storms frameworks``.

A client of each framework sends tasks, and workers as the framework starts them run these. One worker is
killed every second and started again. In the end every task ran, every result came back, nothing is left in
the queue, and the store is whole.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from embeddedpulsar import Admin
from embeddedpulsar.testing.trial_store import check_store
from tests.storms.storm_report import StormReport

_ROOT: Final = Path(__file__).resolve().parent.parent.parent
_END_S: Final = 240.0
_KILL_EACH_S: Final = 1.0
_WORKERS: Final = 3

Progress = Callable[[str, int, int], object]


class Framework(NamedTuple):
    """One framework, as its users start it.

    Attributes:
        package: that has to be installed.
        app: module of `tests.storms.framework_apps`.
        worker: arguments of ``python -m`` that start a worker.
        queues: topics that hold the tasks, with the subscription ``workers``.
        more_queues: those that only the session ``mixed`` uses.
    """

    package: str
    app: str
    worker: tuple[str, ...]
    queues: tuple[str, ...]
    more_queues: tuple[str, ...] = ()


_APPS: Final = "tests.storms.framework_apps"
_PRIORITIES: Final = ("", ";priority-3", ";priority-6", ";priority-9")
FRAMEWORKS: Final[dict[str, Framework]] = {
    "celery": Framework(
        "celery",
        f"{_APPS}.celery_app",
        (
            "celery",
            "-A",
            f"{_APPS}.celery_app",
            "worker",
            "-Q",
            "celery,urgent",
            "-c",
            "2",
            "--without-gossip",
        ),
        tuple(f"public/kombu/celery{suffix}" for suffix in _PRIORITIES),
        tuple(f"public/kombu/urgent{suffix}" for suffix in _PRIORITIES),
    ),
    "django": Framework(
        "django",
        f"{_APPS}.django_app",
        ("embeddedpulsar.frameworks.django", "worker", "--settings", f"{_APPS}.django_settings"),
        ("public/django/default",),
        (
            *(
                f"public/django/{name};priority{n:+d}"
                for name in ("default", "urgent")
                for n in (-20, -10, 10, 20)
            ),
            "public/django/urgent",
        ),
    ),
    "taskiq": Framework(
        "taskiq",
        f"{_APPS}.taskiq_app",
        ("taskiq", "worker", f"{_APPS}.taskiq_app:broker", "--workers", "1", "--max-threadpool-threads", "4"),
        ("taskiq", "taskiq-priority-1", "taskiq-priority-2"),
    ),
    "dramatiq": Framework(
        "dramatiq",
        f"{_APPS}.dramatiq_app",
        ("dramatiq", f"{_APPS}.dramatiq_app", "--processes", "1", "--threads", "4"),
        ("persistent://public/dramatiq/default",),
        ("persistent://public/dramatiq/urgent",),
    ),
    "huey": Framework(
        "huey",
        f"{_APPS}.huey_app",
        ("huey.bin.huey_consumer", f"{_APPS}.huey_app.huey", "--workers", "4", "--quiet"),
        ("persistent://public/huey/storm",),
        ("persistent://public/huey/storm.priority1", "persistent://public/huey/storm.priority2"),
    ),
    "faststream": Framework(
        "faststream", f"{_APPS}.faststream_app", (f"{_APPS}.faststream_app",), ("numbers",), ("urgent",)
    ),
}


class FrameworkStorm:
    """The storm of one framework.

    Args:
        name: of the framework.
        folder: where store and files are.
        seed: of the choice of workers.
        work_s: how long a task works, seconds.
        session: of the client: ``session`` or ``mixed``, see `tests.storms.framework_apps`.
        kill_each_s: mean time between kills, seconds; each is between none and twice that.
    """

    def __init__(
        self,
        name: str,
        folder: str,
        seed: int,
        work_s: float,
        session: str = "session",
        kill_each_s: float = _KILL_EACH_S,
    ) -> None:
        self.framework: Final = FRAMEWORKS[name]
        self.report: Final = StormReport(f"frameworks: {name}, {session}, seed {seed}")
        self._session: Final = session
        self._kill_each_s: Final = kill_each_s
        self._store: Final = f"{folder}/{name}-store"
        self._effects: Final = f"{folder}/{name}-effects"
        self._log: Final = f"{folder}/{name}.log"
        self._chance: Final = random.Random(seed)
        self._environment: Final = {
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            "FRAMEWORK_STORE": self._store,
            "FRAMEWORK_EFFECTS": self._effects,
            "FRAMEWORK_WORK_S": str(work_s),
        }
        self._workers: list[subprocess.Popen[bytes]] = []

    def run(self, tasks: int, most_kills: int | None = None, progress: Progress | None = None) -> StormReport:
        """Send tasks, kill workers until all results are there, and judge.

        Args:
            tasks: how many.
            most_kills: how many kills at most; None for one every second until the end.
            progress: called with the name, what is done, and how much there is to do.
        """
        begun = time.monotonic()
        code = f"import sys; from {_APPS}.client import main; main(*sys.argv[1:])"
        client = subprocess.Popen(
            [sys.executable, "-c", code, self.framework.app, self._session, str(tasks), str(_END_S)],
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        kills = done_before = 0
        try:
            for _ in range(_WORKERS):
                self._workers.append(self._start())
            while client.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    client.wait(self._chance.uniform(0, 2 * self._kill_each_s))
                # Tasks were run since the last kill: where workers take long to start, all would be starting.
                done = len(self._done())
                is_due = most_kills is None or kills < most_kills
                if client.poll() is None and is_due and done > done_before:
                    self._kill(self._chance.randrange(_WORKERS))
                    kills, done_before = kills + 1, done
                if progress is not None:
                    progress(self.report.title, len(self._done()), tasks)
        finally:
            self._end(client)
        answer, _ = client.communicate()
        self._judge(tasks, answer.strip(), client.returncode)
        self.report.figures["kills"] = kills
        self.report.figures["seconds"] = round(time.monotonic() - begun, 1)
        return self.report

    def _start(self) -> subprocess.Popen[bytes]:
        with open(self._log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *self.framework.worker],
                env=self._environment,
                cwd=_ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _kill(self, number: int) -> None:
        _kill_group(self._workers[number])
        self._workers[number] = self._start()

    def _end(self, client: subprocess.Popen[str]) -> None:
        if client.poll() is None:
            client.kill()
            client.wait()
        # Workers of a framework end as it documents, so that what they acknowledged is written.
        for worker in self._workers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGTERM)
        for worker in self._workers:
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                self.report.problems.append(f"the worker {worker.pid} did not end within 10 s of SIGTERM")
            _kill_group(worker)

    def _done(self) -> list[int]:
        try:
            return [int(line) for line in Path(self._effects).read_text("ascii").split()]
        except FileNotFoundError:
            return []

    def _judge(self, tasks: int, answer: str, status: int) -> None:
        problems, runs = self.report.problems, Counter(self._done())
        lost = [number for number in range(tasks) if not runs[number]]
        if lost:
            problems.append(f"{len(lost)} tasks were lost: {lost[:10]}")
        if status or answer != f"{tasks} results":
            problems.append(f"the client ended with status {status} and said {answer!r}")
        with Admin(self._store) as admin:
            more = self.framework.more_queues if self._session == "mixed" else ()
            for queue in (*self.framework.queues, *more):
                backlog = admin.topics().get_stats(queue).subscriptions["workers"].msg_backlog
                if backlog:
                    problems.append(f"{queue} has {backlog} tasks in the end")
        problems.extend(str(problem) for problem in check_store(self._store).problems)
        self.report.figures |= {"tasks": tasks, "run more than once": sum(n > 1 for n in runs.values())}


def _kill_group(worker: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this storm."""
    parser.add_argument("--tasks", type=int, default=10_000, help="of each framework (default 10000)")
    parser.add_argument(
        "--mixed",
        action="store_true",
        help="with queues, priorities, delays and groups instead of tasks alone",
    )
    parser.add_argument(
        "--framework",
        action="append",
        choices=sorted(FRAMEWORKS),
        help="which; default: all that are installed",
    )


def run(options: argparse.Namespace, progress: Progress | None = None) -> list[StormReport]:
    """Run the storm of each framework in a folder, which stays if something was wrong."""
    reports = []
    for name in options.framework or FRAMEWORKS:
        if importlib.util.find_spec(FRAMEWORKS[name].package) is None:
            report = StormReport(f"frameworks: {name} is not installed")
        else:
            folder = tempfile.mkdtemp(prefix="storm-", dir=options.workspace)
            session = "mixed" if options.mixed else "session"
            storm = FrameworkStorm(name, folder, options.seed, 0.005, session)
            report = storm.run(options.tasks, progress=progress)
            if report.is_clean:
                shutil.rmtree(folder)
            else:
                report.figures["folder"] = folder
        reports.append(report)
    return reports
