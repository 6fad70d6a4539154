"""SIGKILL among the consumers of one subscription: ``python -m tests.storms types``.

Producers and consumers of one topic and one subscription are killed as in `kill_storm`. Consumers also leave
in good order and come again, and now and then one is stopped until the others take it for dead; then it goes
on, and has to find its place again. In the end the diary of all of them is held against the log
(`type_verdict`), and the store is audited.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable
from typing import Final

from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from embeddedpulsar.enums import ConsumerType
from tests.storms import storm_diary
from tests.storms.kill_storm import KillStorm
from tests.storms.storm_diary import Diary, read_diary
from tests.storms.storm_payload import read_payload
from tests.storms.storm_report import StormReport
from tests.storms.storm_verdict import LogVerdict
from tests.storms.storm_workload import Stored
from tests.storms.type_verdict import TypeVerdict
from tests.storms.type_workload import KEEP_ALIVE_S, KEYS, LARGEST_BATCH, QUEUE, TypeWorkload

TYPES: Final = {one.name.lower(): one for one in ConsumerType}
_STOP_EVERY: Final = 40
_FIRST_STOP: Final = 3
_LONG_STOP_S: Final = KEEP_ALIVE_S * 1.3
_MOST_UNREAD: Final = 3_000

Progress = Callable[[str, int, int], None]


class TypeStorm(KillStorm):
    """The supervisor of one storm over one subscription."""

    def __init__(
        self,
        consumer_type: ConsumerType,
        folder: str,
        *,
        producers: int,
        consumers: int,
        seed: int,
        progress: Progress | None = None,
    ) -> None:
        workload = TypeWorkload(f"{folder}/store", consumer_type)
        super().__init__(workload, folder, producers=producers, consumers=consumers, seed=seed)
        self.report.title = f"storm over a subscription of type {consumer_type.name}"
        self._type = consumer_type
        self._progress = progress
        self._cycle = 0
        self._leaves = 0
        self._long_stops = 0
        self._stopped: dict[int, float] = {}
        self._moves: dict[int, int] = {}

    # -- between two kills -------------------------------------------------------------------------

    def _next_victim(self) -> int:
        while True:
            member = super()._next_victim()
            if member not in self._stopped:
                return member

    def _note_kill(self, member: int) -> None:
        self._write(member, storm_diary.KILLED)

    def _note_end(self, member: int, status: int) -> None:
        if status or member in self._producers:
            super()._note_end(member, status)
            return
        self._leaves += 1
        self._start(member)

    def _look_after(self) -> None:
        self._cycle += 1
        if self._progress is not None:
            self._progress(self._type.name, self._kills.total(), len(self.report.problems))
        self._replace_leavers(self._pids)
        if self._stopped:
            self._resume(perf_counter())
        elif self._cycle % _STOP_EVERY == _FIRST_STOP:
            self._stop_for_long(self._busiest() if self._rng.random() < 0.7 else self._any_consumer())
        self._moves = {member: self._page.progress(member) for member in self._consumers}

    def _replace_leavers(self, members: Iterable[int]) -> None:
        for member in list(members):
            pid = self._pids[member]
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._note_end(member, status)

    def _busiest(self) -> int:
        """The consumer that got most done since the last look: the active one, if there is one."""
        return max(self._consumers, key=lambda one: self._page.progress(one) - self._moves.get(one, 0))

    def _any_consumer(self) -> int:
        return self._rng.choice(list(self._consumers))

    def _stop_for_long(self, member: int) -> None:
        status = self._children.stop(self._pids[member])
        if status is not None:
            self._note_end(member, status)
            return
        self._write(member, storm_diary.STOPPED)
        self._long_stops += 1
        self._stopped[member] = perf_counter() + _LONG_STOP_S

    def _resume(self, now: float) -> None:
        for member, until in list(self._stopped.items()):
            if now >= until:
                del self._stopped[member]
                self._write(member, storm_diary.RESUMED)
                os.kill(self._pids[member], signal.SIGCONT)

    def _finish(self) -> None:
        self._page.stop()  # from here on consumers stay until nothing is left
        while self._stopped:
            sleep(0.01)
            self._resume(perf_counter())
        self._replace_leavers(self._consumers)
        super()._finish()

    def _write(self, member: int, kind: int) -> None:
        diary = Diary(self._diary(member), member, self._page.lives(member))
        diary.write(kind)
        diary.close()

    def _may_go_on(self) -> bool:
        page = self._page
        return _MOST_UNREAD > sum(
            page.stored(producer) - max(page.reached(one, producer) for one in self._consumers)
            for producer in self._producers
        )

    def _diary(self, member: int) -> str:
        return f"{self._folder}/diary"

    # -- the verdict -------------------------------------------------------------------------------

    def _judge(self) -> None:
        self._judge_kills()
        figures, problems = self.report.figures, self.report.problems
        figures["left in good order, taken for dead"] = (self._leaves, self._long_stops)
        stored = {
            member * KEYS + key: max(0, -(-(self._page.stored(member) - key) // KEYS))
            for member in self._producers
            for key in range(KEYS)
        }
        messages = list(self._workload.read_log())
        log = LogVerdict(messages, stored)
        problems += log.problems
        figures["messages"] = f"{len(log.places)}, acknowledged {sum(stored.values())}"
        figures["stored without an answer, stored twice"] = (log.in_flight, log.duplicates)
        verdict = TypeVerdict(self._type, log.places, list(map(_key_of, messages)), QUEUE + LARGEST_BATCH)
        verdict.judge(read_diary(self._diary(0)))
        problems += verdict.problems
        figures["received again"] = verdict.redelivered
        if verdict.changes:
            figures["changes of the active consumer"] = verdict.changes
        problems += self._workload.audit()


def _key_of(message: Stored) -> int:
    mark = read_payload(message.payload)
    return -1 if mark is None else mark.producer


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what this storm can be told."""
    parser.add_argument("--kills", type=int, default=300, help="for each type (default 300)")
    parser.add_argument("--type", choices=sorted(TYPES), action="append", help="default is all of them")
    parser.add_argument("--producers", type=int, default=2, choices=(1, 2))
    parser.add_argument("--consumers", type=int, default=4)
    parser.add_argument("--folder", help="where to work; it stays. Default is a folder in the workspace")


def run(options: argparse.Namespace, progress: Progress | None = None) -> list[StormReport]:
    """Run with the options of the command line; the folder is removed unless something was wrong."""
    reports = []
    for name in options.type or TYPES:
        folder = options.folder or tempfile.mkdtemp(prefix="embeddedpulsar-storm-", dir=options.workspace)
        folder = os.path.join(folder, name)
        os.makedirs(f"{folder}/store")
        storm = TypeStorm(
            TYPES[name],
            folder,
            producers=options.producers,
            consumers=options.consumers,
            seed=options.seed,
            progress=progress,
        )
        report = storm.run(options.kills)
        if report.is_clean and not options.folder:
            shutil.rmtree(os.path.dirname(folder))
        else:
            report.figures["folder"] = folder
        reports.append(report)
    return reports
