"""SIGKILL at any moment: ``python -m tests.storms kill --cycles 1000``.

A supervisor forks producers and consumers that work on one topic, and kills one after the other, each time
starting it again. Before it kills it stops the process and looks which locks it holds, so the report can say
how many deaths were inside a critical section; now and then it lets a process go on until it finds it there.
In the end everything that had been promised is compared with what is there (`storm_verdict`), and the store
is audited.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import Final

from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from tests.storms.lock_holders import LockFiles
from tests.storms.storm_children import StormChildren
from tests.storms.storm_pages import Page, read_receipts
from tests.storms.storm_report import StormReport
from tests.storms.storm_verdict import ConsumerVerdict, LogVerdict
from tests.storms.storm_workload import LedgerWorkload, Role, Workload

_AIM_SHARE: Final = 0.6
_AIM_TRIES: Final = 60
_ENOUGH_KILLS: Final = 500
_ENOUGH_INSIDE: Final = 0.25
_LONGEST_PAUSE_S: Final = 0.012
_EARLY_SHARE: Final = 0.25
_PATIENCE_S: Final = 0.5
_STOP_SHARE: Final = 0.1
_LONGEST_STOP_S: Final = 0.05
_PREPARING: Final = "preparing the store"
_ARCHIVIST: Final = "archivist"
_MOST_UNREAD: Final = 20_000
_STUCK_AFTER_S: Final = 60.0


class KillStorm:
    """The supervisor. Forks, so it must run in a process without other threads, and opens nothing of the
    store."""

    def __init__(self, workload: Workload, folder: str, *, producers: int, consumers: int, seed: int) -> None:
        self._workload = workload
        self._folder = folder
        self._producers = range(producers)
        self._consumers = range(producers, producers + consumers)
        self._judged = self._consumers  # those that get every message
        self._rng = random.Random(seed)
        self._page = Page(f"{folder}/page")
        self._locks = LockFiles(folder)
        self._pids: dict[int, int] = {}
        self._archivist = 0
        self._born_at: dict[int, int] = {}
        self._kills: Counter[str] = Counter()
        self._inside: Counter[str] = Counter()
        self._stops = 0
        self._moved = (0, perf_counter())
        self.report = StormReport("kill storm")
        self._children = StormChildren(folder, self.report.problems)

    def run(self, cycles: int) -> StormReport:
        """Kill ``cycles`` times, let the survivors finish, and judge."""
        start = perf_counter()
        try:
            self._children.wait_for(self._children.fork(self._workload.prepare, _PREPARING), _PREPARING)
            if not self.report.is_clean:
                return self.report
            self._archivist = self._children.fork(lambda: self._workload.archive(self._page), _ARCHIVIST)
            for member in (*self._producers, *self._consumers):
                self._start(member)
            for cycle in range(cycles):
                if cycle % 50 == 0:
                    self._locks.refresh()
                sleep(self._rng.uniform(0, _LONGEST_PAUSE_S))
                if self._rng.random() < _STOP_SHARE:
                    self._stop_for_a_while(self._next_victim())
                self._kill(self._next_victim())
                self._look_after()
                if self._has_stuck() or not self.report.is_clean:
                    break
            self._finish()
        finally:
            for pid in (*self._pids.values(), self._archivist):
                if pid:
                    self._children.kill(pid)
        took = perf_counter() - start
        self.report.figures["kills"] = f"{self._kills.total()}, and {self._stops} stops, in {took:.1f} s"
        self._judge()
        return self.report

    # -- processes ----------------------------------------------------------------------------------------

    def _start(self, member: int) -> None:
        life = self._page.next_life(member)
        self._born_at[member] = self._page.progress(member)
        role = Role(member, life, self._page, self._diary(member), self._may_go_on)
        work = self._workload.produce if member in self._producers else self._workload.consume
        self._pids[member] = self._children.fork(lambda: work(role), self._name(member))

    def _next_victim(self) -> int:
        """Mostly one that has got to its work; starting up is only a part of life."""
        members = list(self._pids)
        member = self._rng.choice(members)
        if self._rng.random() < _EARLY_SHARE:
            return member
        deadline = perf_counter() + _PATIENCE_S
        while self._page.progress(member) == self._born_at[member] and perf_counter() < deadline:
            sleep(0.001)
        return member

    def _stop_for_a_while(self, member: int) -> None:
        """SIGSTOP, wherever it is; the others have to wait for its locks, and must not take them."""
        pid = self._pids[member]
        os.kill(pid, signal.SIGSTOP)
        self._stops += 1
        sleep(self._rng.uniform(0, _LONGEST_STOP_S))
        os.kill(pid, signal.SIGCONT)

    def _kill(self, member: int) -> None:
        pid = self._pids[member]
        is_aimed = self._rng.random() < _AIM_SHARE
        for _ in range(_AIM_TRIES if is_aimed else 1):
            status = self._children.stop(pid)
            if status is not None:
                self._note_end(member, status)
                return
            held = self._locks.held_by(pid)
            if held or not is_aimed:
                break
            os.kill(pid, signal.SIGCONT)
            sleep(self._rng.uniform(0, 0.0003))
        self._note_kill(member)
        self._children.kill(pid)
        self._kills[self._name(member)] += 1
        self._inside.update(set(held))
        self._inside["any"] += bool(held)
        self._start(member)

    def _note_kill(self, member: int) -> None:
        """A process is stopped, and will be killed."""

    def _note_end(self, member: int, status: int) -> None:
        """A process ended by itself."""
        del self._pids[member]
        self.report.problems.append(
            f"{self._name(member)} ended by itself: {self._children.error(self._name(member))}"
        )

    def _look_after(self) -> None:
        """Between two kills."""

    def _has_stuck(self) -> bool:
        """Whether nothing at all happened for a minute."""
        total = sum(self._page.progress(member) for member in self._pids)
        moved, when = self._moved
        if total != moved:
            self._moved = (total, perf_counter())
        elif perf_counter() - when > _STUCK_AFTER_S:
            self.report.problems.append(f"nothing moved for {_STUCK_AFTER_S:.0f} s")
            return True
        return False

    def _may_go_on(self) -> bool:
        """Called by producers: bound what the consumers still have to read."""
        page = self._page
        sent = sum(page.stored(member) for member in self._producers)
        return sent - min(map(page.progress, self._judged), default=sent) < _MOST_UNREAD

    def _finish(self) -> None:
        """Let the producers end, then the consumers once they have everything."""
        for members, tell in ((self._producers, self._page.stop), (self._consumers, self._page.drain)):
            tell()
            for member in members:
                pid = self._pids.pop(member, None)
                if pid is not None:
                    self._children.wait_for(pid, self._name(member))
        archivist, self._archivist = self._archivist, 0
        self._children.wait_for(archivist, _ARCHIVIST)

    # -- the verdict --------------------------------------------------------------------------------------

    def _judge(self) -> None:
        self._judge_kills()
        figures, problems = self.report.figures, self.report.problems
        stored = {member: self._page.stored(member) for member in self._producers}
        log = LogVerdict(self._workload.read_log(), stored)
        problems += log.problems
        figures["messages"] = f"{len(log.places)}, acknowledged {sum(stored.values())}"
        figures["stored without an answer, stored twice"] = (log.in_flight, log.duplicates)
        for member in self._judged:
            name = self._name(member)
            verdict = ConsumerVerdict(name, log.places, read_receipts(self._diary(member)))
            problems += verdict.problems
            figures[name] = (
                f"{verdict.lives} lives, {verdict.redelivered} redelivered, {verdict.assumed} assumed"
            )
        problems += self._workload.audit()

    def _judge_kills(self) -> None:
        figures, problems = self.report.figures, self.report.problems
        kills = self._kills.total()
        inside = self._inside.pop("any", 0)
        figures["by process"] = dict(sorted(self._kills.items()))
        if kills >= _ENOUGH_KILLS and inside < _ENOUGH_INSIDE * kills:
            problems.append(f"only {inside} of {kills} kills were inside a lock: the storm was too weak")
        figures["inside a lock"] = f"{inside} ({inside / max(1, kills):.0%}): {dict(self._inside)}"

    def _name(self, member: int) -> str:
        return f"producer-{member}" if member in self._producers else f"consumer-{member}"

    def _diary(self, member: int) -> str:
        return f"{self._folder}/diary-{member}"


def _client_workload(root: str) -> Workload:
    from tests.storms.client_workload import ClientWorkload  # loads every layer

    return ClientWorkload(root)


WORKLOADS: Final[dict[str, Callable[[str], Workload]]] = {
    "client": _client_workload,
    "ledger": LedgerWorkload,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what this storm can be told."""
    parser.add_argument("--cycles", type=int, default=1000, help="how many kills")
    parser.add_argument("--level", choices=sorted(WORKLOADS), default="ledger", help="what the processes use")
    parser.add_argument("--producers", type=int, default=2)
    parser.add_argument("--consumers", type=int, default=2)
    parser.add_argument("--folder", help="where to work; it stays. Default is a folder in the workspace")


def run(options: argparse.Namespace) -> StormReport:
    """Run with the options of the command line; the folder is removed unless something was wrong."""
    folder = options.folder or tempfile.mkdtemp(prefix="embeddedpulsar-storm-", dir=options.workspace)
    os.makedirs(f"{folder}/store", exist_ok=True)
    storm = KillStorm(
        WORKLOADS[options.level](f"{folder}/store"),
        folder,
        producers=options.producers,
        consumers=options.consumers,
        seed=options.seed,
    )
    report = storm.run(options.cycles)
    if report.is_clean and not options.folder:
        shutil.rmtree(folder)
    else:
        report.figures["folder"] = folder
    return report
