"""Kills of a Spark driver and its workers under a streaming query from two topics into one sink.

Producers publish numbered messages, each message once. The query copies them into a partitioned topic,
exactly once, while trimming removes what was read. Workers are killed at random moments, drivers too
and at each step of a commit, stopped there by a failpoint. In the end the query reads the rest, and every
message is in the sink once. The store is audited.
"""

from __future__ import annotations

import argparse
import contextlib
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
from typing import Final

from embeddedpulsar import Admin, Client, Timeout
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.testing import check_store
from tests.storms.storm_report import StormReport
from tests.support.spark_home import make_spark_home

INPUTS: Final = ("in-1", "in-2")
OUTPUT: Final = "out"
STARTED, REST, ERRORS, PAUSED, CLASSES = "started", "rest", "errors", "paused", "classes.jsa"
STEPS: Final = (
    *("sink:staging", "sink:staged", "sink:locked", "sink:pinned", "sink:pending", "sink:publishing"),
    *("sink:published", "sink:done", "sink:unpinned", "sink:finished", "sink:cleared", "append:tail_stored"),
)
_SETTINGS: Final = "managedLedgerMaxEntriesPerLedger=300\nretentionCheckIntervalInSeconds=1\n"
_START_S: Final = 180.0
_STEP_S: Final = 120.0
_REST_S: Final = 900.0
_REACHED: Final = f"{PAUSED}.reached"
_GO: Final = f"{PAUSED}.go"
_MOST_IN_A_LIFE: Final = 6
_EXPECTED: Final = (
    "crashed",
    "EOF",
    "Connection",
    "Broken pipe",
    "BrokenPipe",
    "worker",
    "Socket",
    "stream is closed",
    "Stream closed",
)

Progress = Callable[[str, int, int], object]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this storm."""
    parser.add_argument("--kills", type=int, default=200, help="how many (default 200)")


def run(options: argparse.Namespace, progress: Progress | None = None) -> StormReport:
    """Run the storm in a folder, which stays if something was wrong."""
    folder = Path(tempfile.mkdtemp(prefix="storm-", dir=options.workspace))
    report = _Storm(folder, random.Random(options.seed)).run(options.kills, progress)
    if report.is_clean:
        shutil.rmtree(folder)
    else:
        report.figures["folder"] = folder
    return report


def _make_topics(root: str) -> None:
    os.mkdir(root)
    Path(root, "broker.conf").write_text(_SETTINGS)
    with Admin(root) as admin:
        admin.topics().create_partitioned_topic(OUTPUT, 2)
        for topic in INPUTS:
            admin.topics().create_non_partitioned_topic(topic)


def _produce(root: str, topic: str, sent: Path, stop: Path) -> None:
    """Publish numbers until the file ``stop`` is there; ``sent`` gets how many."""
    with Client(root) as client, client.create_producer(topic) as producer:
        number = 0
        while not stop.exists():
            keys = [f"k{(number + i) % 7}" for i in range(20)]
            values = [b"%s %d" % (topic.encode(), number + i) for i in range(20)]
            producer.send_many(values, partition_keys=keys)
            number += len(values)
            time.sleep(0.3)
    sent.write_text(str(number))


class Driver:
    """A driver with its JVM and workers, in a session of their own.

    Args:
        folder: of the storm.
        home: environment of Spark.
        step: where its processes stop; empty for nowhere.
        module: what the driver runs, with the folder as its argument.
    """

    def __init__(
        self,
        folder: Path,
        home: dict[str, str],
        step: str = "",
        *,
        module: str = "tests.storms.spark_driver",
    ) -> None:
        self._folder = folder
        for name in (STARTED, _REACHED, _GO):
            (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / _GO)  # never opened: what comes to the step stays there
        environment = {
            **os.environ,
            **home,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.getcwd(),
            failpoints.ENVIRONMENT: f"{step}=pause:{folder / PAUSED}" if step else "",
        }
        with open(folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(folder)],
                env=environment,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def is_paused(self) -> bool:
        """Whether one of its processes has come to the step."""
        return (self._folder / _REACHED).exists()

    def wait_started(self) -> None:
        """Wait until the query runs."""
        self._wait(lambda: (self._folder / STARTED).exists(), _START_S)

    def wait_paused(self) -> bool:
        """Wait until a process comes to the step; returns whether one did."""
        return self._wait(lambda: self.is_paused, _STEP_S)

    def _wait(self, is_done: Callable[[], bool], seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not is_done():
            if time.monotonic() > until or self._process.poll() is not None:
                return False
            time.sleep(0.02)
        return True

    def kill_a_worker(self, chance: random.Random) -> bool:
        """Kill one of the Python processes that Spark started; returns whether there was any."""
        workers = [pid for pid, command in self._members() if "pyspark.daemon" in command]
        if workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(workers), signal.SIGKILL)
        return bool(workers)

    def kill(self, *, only_driver: bool) -> None:
        """Kill all of it; or driver and JVM alone, so that workers end by themselves while others start."""
        for pid, command in self._members():
            if not only_driver or "pyspark.daemon" not in command:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def end(self) -> int | None:
        """Wait for its own end; None if that does not come."""
        try:
            return self._process.wait(_REST_S)
        except subprocess.TimeoutExpired:
            self.kill(only_driver=False)
            return None

    def wait_gone(self) -> None:
        """Wait until its JVM has ended, too."""
        until = time.monotonic() + _STEP_S
        while self._members() and time.monotonic() < until:
            time.sleep(0.05)

    def _members(self) -> list[tuple[int, str]]:
        """The processes of the session."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError, ValueError):
                    after = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                    if int(after[3]) == self._process.pid:
                        command = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")
                        found.append((int(name), command.decode(errors="replace")))
        return found


class _Storm:
    """One run."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._folder = folder
        self._root = str(folder / "store")
        self._chance = chance
        self._kills: Counter[str] = Counter()
        self._home = make_spark_home(folder)
        self._report = StormReport("Spark: a streaming query from two topics into one sink")

    def run(self, kills: int, progress: Progress | None) -> StormReport:
        self._archive_classes()
        _make_topics(self._root)
        with Admin(self._root) as admin:
            admin.topics().create_subscription(OUTPUT, "judge")
        stop = self._folder / "stop"
        producers = [self._fork(topic, stop) for topic in INPUTS]
        leftover: list[Driver] = []
        try:
            while self._kills.total() < kills:
                leftover.append(self._life(kills, progress))
        finally:
            stop.touch()
            for pid in producers:
                os.waitpid(pid, 0)
        (self._folder / REST).touch()
        rest = Driver(self._folder, self._home)
        status = rest.end()
        for driver in leftover:
            driver.kill(only_driver=False)
        if status != 0:
            self._report.problems.append(
                f"the query did not read the rest: status {status}; see errors and log"
            )
        self._judge()
        self._report.figures["kills"] = self._kills.total()
        self._report.figures["of them"] = dict(self._kills.most_common())
        return self._report

    def _archive_classes(self) -> None:
        """Run the query once to its end: its JVM leaves an archive of classes, and others start sooner."""
        place = self._folder / "first"
        place.mkdir()
        _make_topics(str(place / "store"))
        (place / REST).touch()
        with Client(place / "store") as client:
            for topic in INPUTS:
                client.create_producer(topic).send(b"x")
        first = Driver(place, self._home)
        first.end()
        first.wait_gone()
        with contextlib.suppress(FileNotFoundError):
            os.rename(place / CLASSES, self._folder / CLASSES)
        shutil.rmtree(place)

    def _fork(self, topic: str, stop: Path) -> int:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                _produce(self._root, topic, self._folder / f"sent.{topic}", stop)
                status = 0
            finally:
                os._exit(status)
        return pid

    def _life(self, kills: int, progress: Progress | None) -> Driver:
        """Start a driver, kill some of its workers, and then the driver."""
        step = self._chance.choice((*STEPS, *(len(STEPS) // 2) * ("",)))
        driver = Driver(self._folder, self._home, step)
        driver.wait_started()
        if not step:
            for _ in range(self._chance.randrange(_MOST_IN_A_LIFE)):
                time.sleep(self._chance.uniform(0.1, 3))
                if driver.kill_a_worker(self._chance):
                    self._kills["worker"] += 1
            time.sleep(self._chance.uniform(0, 4))
        is_there = bool(step) and driver.wait_paused()
        self._kills[f"driver at {step}" if is_there else "driver"] += 1
        driver.kill(only_driver=not step and self._chance.random() < 0.5)
        if progress is not None:
            progress("spark", self._kills.total(), len(self._report.problems))
        return driver

    def _judge(self) -> None:
        sent = {
            b"%s %d" % (topic.encode(), number)
            for topic in INPUTS
            for number in range(int((self._folder / f"sent.{topic}").read_text()))
        }
        found: Counter[bytes] = Counter()
        with Client(self._root) as client:
            consumer = client.subscribe(OUTPUT, "judge")
            with contextlib.suppress(Timeout):
                while True:
                    found[consumer.receive(2000).data()] += 1
        twice = [value for value, count in found.items() if count > 1]
        problems = self._report.problems
        for what, which in (
            ("lost", sent - found.keys()),
            ("of no producer", found.keys() - sent),
            ("twice", twice),
        ):
            if which:
                problems.append(f"{len(which)} messages {what}: {sorted(which)[:5]}")
        problems += [str(problem) for problem in check_store(self._root).problems]
        left = [path.name for path in Path(self._root, "sinks").rglob("*") if path.suffix == ".rows"]
        left += [path.name for path in Path(self._root, "topics").rglob("pins/*.*")]
        left += [path.name for path in Path(self._root, "sinks").rglob("pending")]
        if left:
            problems.append(f"left behind: {left[:5]}")
        self._report.figures["messages"] = len(sent)
        self._judge_errors()

    def _judge_errors(self) -> None:
        """Queries fail because processes die, not for other reasons."""
        errors = self._folder / ERRORS
        lines = errors.read_text(encoding="utf-8").splitlines() if errors.exists() else []
        self._report.figures["failed queries"] = len(lines)
        for line in lines:
            if not any(word in line for word in _EXPECTED) or "EMBEDDEDPULSAR_DATA_LOSS" in line:
                self._report.problems.append(line[:1000])
