"""SIGKILL among transactions: ``python -m tests.storms transactions``.

Clerks book orders on several topics (`transaction_workload`); beside them are a notary that ends what is
prepared, a reader, and a keeper that compacts, backs up and looks at columns and views. All of them are
killed and stopped as in `kill_storm`, and clerks are stopped for longer than the timeout of their
transactions. In the end everything that was said is compared with what is there, and the store is audited.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from embeddedpulsar import Client
from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from embeddedpulsar.testing.trial_store import check_store
from tests.storms import transaction_workload as workload
from tests.storms.kill_storm import KillStorm
from tests.storms.storm_pages import Page
from tests.storms.storm_report import StormReport
from tests.storms.storm_workload import Role, Stored
from tests.storms.transaction_workload import Judgement, TransactionWorkload

_FREEZE_EVERY: Final = 25
_FREEZE_S: Final = workload.TIMEOUT_MS / 1000 + 0.7
_LONGEST_WAIT_S: Final = 3.0
_BESIDE: Final = ("notary", "reader", "keeper")

Progress = Callable[[str, int, int], None]


class _Crew:
    """The processes, as `KillStorm` starts them: all of them consume."""

    def __init__(self, transactions: TransactionWorkload, clerks: int) -> None:
        self._transactions = transactions
        self._clerks = clerks

    def prepare(self) -> None:
        self._transactions.prepare()

    def produce(self, role: Role) -> None:
        raise AssertionError("nobody only produces")

    def consume(self, role: Role) -> None:
        name = "clerk" if role.member < self._clerks else _BESIDE[role.member - self._clerks]
        getattr(self._transactions, name)(role)

    def archive(self, page: Page) -> bool:
        return False

    def read_log(self) -> Iterator[Stored]:
        return iter(())

    def audit(self) -> list[str]:
        return [str(problem) for problem in check_store(self._transactions.root).problems]


class TransactionStorm(KillStorm):
    """The supervisor: clerks are the first of the consumers."""

    def __init__(
        self,
        folder: str,
        *,
        orders: int,
        clerks: int,
        kills: int,
        durability: str = "process",
        seed: int,
        progress: Progress | None = None,
    ) -> None:
        self._transactions = TransactionWorkload(folder, orders, durability)
        crew = _Crew(self._transactions, clerks)
        super().__init__(crew, folder, producers=0, consumers=clerks + len(_BESIDE), seed=seed)
        self.report.title = f"storm of transactions, durability {durability}"
        self._clerks = range(clerks)
        self._progress = progress
        self._cycle = 0
        self._cycles = kills
        self._frozen: dict[int, float] = {}
        self._freezes = 0

    def _name(self, member: int) -> str:
        return f"clerk-{member}" if member in self._clerks else _BESIDE[member - len(self._clerks)]

    def _next_victim(self) -> int:
        while True:
            member = super()._next_victim()
            if member not in self._frozen:
                return member

    def _look_after(self) -> None:
        """Wait until so many orders are booked that the kills are spread over all of them."""
        self._cycle += 1
        if self._progress is not None:
            self._progress("transactions", self._kills.total(), len(self.report.problems))
        if self._cycle % _FREEZE_EVERY == 3:
            self._freeze(self._rng.choice(self._clerks))
        share = self._transactions.orders * self._cycle / self._cycles
        end = perf_counter() + _LONGEST_WAIT_S
        while self._booked() < share and perf_counter() < end:
            self._thaw()
            sleep(0.005)
        self._thaw()

    def _booked(self) -> int:
        return sum(self._page.stored(member) for member in self._clerks)

    def _freeze(self, member: int) -> None:
        if member in self._frozen:
            return
        status = self._children.stop(self._pids[member])
        if status is not None:
            self._note_end(member, status)
            return
        self._freezes += 1
        self._frozen[member] = perf_counter() + _FREEZE_S

    def _thaw(self, everyone: bool = False) -> None:
        for member, until in list(self._frozen.items()):
            if everyone or perf_counter() >= until:
                del self._frozen[member]
                os.kill(self._pids[member], signal.SIGCONT)

    def _finish(self) -> None:
        """Let the clerks end when no order is left, then the others."""
        self._thaw(everyone=True)
        self._page.stop()
        for members, tell in ((self._clerks, self._page.stop), (self._consumers, self._page.drain)):
            tell()
            for member in members:
                pid = self._pids.pop(member, None)
                if pid is not None:
                    self._children.wait_for(pid, self._name(member))
        archivist, self._archivist = self._archivist, 0
        self._children.wait_for(archivist, "archivist")

    # -- the verdict -------------------------------------------------------------------------------

    def _judge(self) -> None:
        self._judge_kills()
        figures, problems = self.report.figures, self.report.problems
        with Client(self._transactions.root) as client:
            judgement = workload.judge_store(client)
            client._core.store.peers.sweep()  # of those that were killed
        problems += judgement.problems
        missing = set(range(self._transactions.orders)) - judgement.orders
        if missing:
            problems.append(f"{len(missing)} orders are not booked: {sorted(missing)[:5]}")
        figures["orders booked"] = len(judgement.orders)
        figures["clerks stopped beyond the timeout"] = self._freezes
        figures["transactions, as they were told"] = dict(self._judge_clerks(judgement))
        figures["bookings seen by others"] = self._judge_readers(judgement)
        problems += self._workload.audit()

    def _judge_clerks(self, judgement: Judgement) -> Counter[str]:
        """What a clerk was told is committed is visible, and what is aborted is not."""
        visible = {attempt for topic in judgement.visible for attempt, _ in topic}
        told: Counter[str] = Counter()
        for member in self._clerks:
            if not os.path.exists(self._diary(member)):
                continue
            with open(self._diary(member), encoding="ascii") as file:
                for line in file:
                    kind, *attempts = line.split()
                    told[kind] += 1
                    wrong = [
                        one for one in map(int, attempts) if (one in visible) != (kind == workload.COMMITTED)
                    ]
                    if wrong and kind != workload.PREPARED:
                        self.report.problems.append(f"{self._name(member)}: {kind} was told of {wrong}")
        return told

    def _judge_readers(self, judgement: Judgement) -> int:
        """Who read from the beginning saw what is visible, in its order, without a gap."""
        count = 0
        for member in self._consumers[len(self._clerks) :]:
            for seen in workload.read_seen(self._diary(member)):
                for topic, (found, visible) in enumerate(zip(seen, judgement.visible, strict=True)):
                    count += len(found)
                    if found != visible[: len(found)]:
                        at = next(i for i, one in enumerate(found) if visible[i : i + 1] != [one])
                        expected = visible[at : at + 1]
                        where = f"{workload.ACCOUNTS[topic]} at {at}"
                        self.report.problems.append(
                            f"{self._name(member)} saw {found[at]} in {where}, not {expected}"
                        )
            count += self._judge_some(member, judgement)
        return count

    def _judge_some(self, member: int, judgement: Judgement) -> int:
        path = f"{self._diary(member)}-some"
        if not os.path.exists(path):
            return 0
        count = 0
        known = [set(topic) for topic in judgement.visible]
        with open(path, encoding="ascii") as file:
            for line in file.read().rpartition("\n")[0].splitlines():
                topic, attempt, part = line.split()
                count += 1
                if (int(attempt), int(part)) not in known[workload.ACCOUNTS.index(topic)]:
                    self.report.problems.append(f"{self._name(member)} saw {line}, which is not visible")
        return count


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what this storm can be told."""
    parser.add_argument("--kills", type=int, default=500, help="how many (default 500)")
    parser.add_argument("--orders", type=int, default=100_000, help="how many are booked (default 100000)")
    parser.add_argument("--clerks", type=int, default=3)
    parser.add_argument("--durability", choices=("process", "interval", "flush"), default="process")
    parser.add_argument("--folder", help="where to work; it stays. Default is a folder in the workspace")


def run(options: argparse.Namespace, progress: Progress | None = None) -> StormReport:
    """Run with the options of the command line; the folder is removed unless something was wrong."""
    folder = options.folder or tempfile.mkdtemp(prefix="embeddedpulsar-storm-", dir=options.workspace)
    os.makedirs(f"{folder}/store", exist_ok=True)
    storm = TransactionStorm(
        folder,
        orders=options.orders,
        clerks=options.clerks,
        kills=options.kills,
        durability=options.durability,
        seed=options.seed,
        progress=progress,
    )
    report = storm.run(options.kills)
    if report.is_clean and not options.folder:
        shutil.rmtree(folder)
    else:
        report.figures["folder"] = folder
    return report
