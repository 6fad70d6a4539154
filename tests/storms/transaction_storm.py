"""SIGKILL among transactions: ``python -m tests.storms transactions``.

Clerks book orders on several topics (`transaction_workload`); beside them are a notary that ends what is
prepared, a reader, and a keeper that compacts, backs up and looks at columns, views and snapshots. All of
them are killed and stopped as in `kill_storm`, and clerks are stopped for longer than the timeout of their
transactions. At full size Spark is beside them, too (`transaction_spark`). In the end everything that was
said is compared with what is there, and the store is audited.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from embeddedpulsar import Client
from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from embeddedpulsar.testing.trial_store import check_store
from tests.storms import transaction_workload as workload
from tests.storms.kill_storm import KillStorm
from tests.storms.storm_pages import Page
from tests.storms.storm_report import StormReport
from tests.storms.storm_workload import Role, Stored
from tests.storms.transaction_workload import Judgement, TransactionWorkload

if TYPE_CHECKING:
    from tests.storms.transaction_spark import SparkBeside

_FREEZE_EVERY: Final = 25
_FREEZE_S: Final = workload.TIMEOUT_MS / 1000 + 0.7
_LONGEST_WAIT_S: Final = 10.0
_CLERK_SHARE: Final = 0.75
"""Of the kills. What a reader or keeper has read it reads again in its next life."""
_KILL_SPARK_EVERY: Final = 100
_SPARK_FROM: Final = 50_000
"""So many orders take long enough for Spark to start."""
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
        has_spark: bool = False,
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
        self._folder = folder
        self._has_spark = has_spark
        self._spark: SparkBeside | None = None

    def run(self, cycles: int) -> StormReport:
        """As `KillStorm.run`; Spark ends with it."""
        try:
            return super().run(cycles)
        finally:
            if self._spark is not None:
                self._spark.end()

    def _name(self, member: int) -> str:
        return f"clerk-{member}" if member in self._clerks else _BESIDE[member - len(self._clerks)]

    def _next_victim(self) -> int:
        while True:
            member = super()._next_victim()
            is_wanted = (member in self._clerks) == (self._rng.random() < _CLERK_SHARE)
            if is_wanted and member not in self._frozen:
                return member

    def _look_after(self) -> None:
        """Wait until so many orders are booked that the kills are spread over all of them."""
        self._cycle += 1
        if self._progress is not None:
            booked = f"transactions, {self._booked()} of {self._transactions.orders} orders"
            self._progress(booked, self._kills.total(), len(self.report.problems))
        if self._has_spark:
            self._drive_spark()
        if self._cycle % _FREEZE_EVERY == 3:
            self._freeze(self._rng.choice(self._clerks))
        share = self._transactions.orders * self._cycle / self._cycles
        end = perf_counter() + _LONGEST_WAIT_S
        while self._booked() < share and perf_counter() < end:
            self._thaw()
            sleep(0.005)
        self._thaw()

    def _drive_spark(self) -> None:
        if self._spark is None:
            from tests.storms.transaction_spark import SparkBeside  # imports PySpark

            self._spark = SparkBeside(self._folder)
        elif self._cycle % _KILL_SPARK_EVERY == 0:
            self._spark.kill()

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
        told = self._judge_clerks(judgement)
        figures["transactions, as they were told"] = f"{told.total()}: {dict(told)}"
        figures["bookings seen by others"] = self._judge_readers(judgement)
        figures["snapshots of all topics"] = self._count_snapshots()
        if self._spark is not None:
            of_spark, found = self._spark.judge(judgement)
            figures.update(of_spark)
            problems += found
        problems += self._workload.audit()

    def _judge_clerks(self, judgement: Judgement) -> Counter[str]:
        """What a clerk was told is committed is visible, and what is aborted is not; of what is prepared the
        label says it."""
        visible = {attempt for topic in judgement.visible for attempt, _ in topic}
        told: Counter[str] = Counter()
        for member in self._clerks:
            if not os.path.exists(self._diary(member)):
                continue
            with open(self._diary(member), encoding="ascii") as file:
                for line in file:
                    kind, *words = line.split()
                    told[kind] += 1
                    attempts = [int(word) for word in words]
                    counts = kind == workload.COMMITTED
                    if kind == workload.PREPARED:
                        counts = workload.is_committed_when_prepared(attempts)
                    wrong = [attempt for attempt in attempts if (attempt in visible) != counts]
                    if wrong:
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
            count += self._judge_some(member, judgement) + self._judge_prefixes(member, judgement)
        return count

    def _judge_prefixes(self, member: int, judgement: Judgement) -> int:
        """Who read a topic at once saw the first of what is visible."""
        lines = self._lines(f"{self._diary(member)}-prefixes")
        for topic, visible in zip(workload.ACCOUNTS, judgement.visible, strict=True):
            seen = [(int(count), digest) for name, count, digest in map(str.split, lines) if name == topic]
            digests = workload.digests_at(visible, [count for count, _ in seen])
            for count, digest in seen:
                if digests.get(count) != digest:
                    self.report.problems.append(
                        f"{self._name(member)}: {count} bookings of {topic} are not the first visible ones"
                    )
        return sum(int(line.split()[1]) for line in lines)

    def _count_snapshots(self) -> int:
        diaries = [self._diary(member) for member in self._consumers]
        return sum(len(self._lines(f"{diary}-snapshots")) for diary in diaries)

    def _lines(self, path: str) -> list[str]:
        """All lines of a file; not one that a kill has torn."""
        if not os.path.exists(path):
            return []
        with open(path, encoding="ascii") as file:
            return file.read().rpartition("\n")[0].splitlines()

    def _judge_some(self, member: int, judgement: Judgement) -> int:
        count = 0
        known = [set(topic) for topic in judgement.visible]
        for line in self._lines(f"{self._diary(member)}-some"):
            topic, attempt, part = line.split()
            count += 1
            if (int(attempt), int(part)) not in known[workload.ACCOUNTS.index(topic)]:
                self.report.problems.append(f"{self._name(member)} saw {line}, which is not visible")
        return count


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what this storm can be told."""
    parser.add_argument("--kills", type=int, default=500, help="how many (default 500)")
    text = "how many are booked, 2.5 in a transaction (default 260000: some 100,000 transactions)"
    parser.add_argument("--orders", type=int, default=260_000, help=text)
    parser.add_argument("--clerks", type=int, default=3)
    parser.add_argument("--durability", choices=("process", "interval", "flush"), default="process")
    text = "Spark beside it; by default if there are many orders, and Java and PySpark are installed"
    parser.add_argument("--spark", action=argparse.BooleanOptionalAction, help=text)
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
        has_spark=_has_spark(options),
        progress=progress,
    )
    report = storm.run(options.kills)
    if report.is_clean and not options.folder:
        shutil.rmtree(folder)
    else:
        report.figures["folder"] = folder
    return report


def _has_spark(options: argparse.Namespace) -> bool:
    if options.spark is not None:
        return bool(options.spark)
    is_there = shutil.which("java") is not None and find_spec("pyspark") is not None
    return is_there and options.orders >= _SPARK_FROM
