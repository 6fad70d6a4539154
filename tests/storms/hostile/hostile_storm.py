"""A hostile day: ``python -m tests.storms hostile --minutes 30``.

Producers and consumers of four topics, one for each type of subscription, work in one store, in rounds of a
minute. They are killed, interrupted, sent signals whose handlers send messages, stopped for moments and for
longer than the keep-alive interval, stopped inside locks, and frozen all together; their FIFOs are removed,
and some begin without standard descriptors. Beside them a bystander, to which nothing is done, watches its
own topic, and other processes keep clients of a store that is removed and made again. Daemons close every
descriptor and use the client they inherit; a notebook keeps the exceptions of its interrupted calls; a
function hangs while its supervisor is ended.

At the end of each round everything that was promised is compared with what is there, and the store is
audited.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from embeddedpulsar.client.client import Client
from embeddedpulsar.enums import ConsumerType, InitialPosition
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.testing.trial_store import check_store
from tests.storms.hostile import hostile_stores
from tests.storms.hostile.hostile_crew import LONERS, HostileCrew
from tests.storms.hostile.hostile_faults import FAULTS, IN_LOCK_S, HostileFaults
from tests.storms.hostile.hostile_roles import (
    DAEMON_STREAM,
    DAEMONS,
    KEEP_ALIVE_S,
    NOTEBOOK,
    NOTEBOOK_STREAM,
    PRODUCERS,
    SIGNALS,
    SUBSCRIPTION,
    TOPICS,
    HostilePage,
    diary_of,
    signal_stream_of,
    store_of,
    stored_by_key,
    stream_of,
)
from tests.storms.hostile.hostile_workload import place_of
from tests.storms.storm_diary import read_diary
from tests.storms.storm_payload import read_payload
from tests.storms.storm_report import StormReport
from tests.storms.storm_verdict import LogVerdict
from tests.storms.storm_workload import Stored
from tests.storms.type_verdict import TypeVerdict

_SETTINGS: Final = (
    "managedLedgerMaxEntriesPerLedger=300\ndefaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n"
    f"keepAliveIntervalSeconds={KEEP_ALIVE_S}\n"
)
_LONGEST_PAUSE_S: Final = 0.15
_STUCK_AFTER_S: Final = 45.0
_LONGEST_GAP_S: Final = IN_LOCK_S - 0.5
_IN_HAND: Final = 1

Progress = Callable[[str, int, int], None]


class HostileRound:
    """One round, in a folder of its own. Forks, so it must run in a process without other threads."""

    def __init__(self, folder: str, *, seed: int, consumers: int, without: Sequence[str] = ()) -> None:
        self._folder = folder
        self._root = store_of(folder)
        self._board = HostilePage(f"{folder}/page")
        self._crew = HostileCrew(folder, self._board, seed, consumers, without)
        self._faults = HostileFaults(self._crew, self._board, folder, without)
        self._moved = (0, perf_counter())
        self.figures: Counter[str] = Counter()
        self.notes: dict[str, str] = {}

    @property
    def problems(self) -> list[str]:
        """What is wrong."""
        return self._crew.problems

    def run(self, seconds: float) -> None:
        """Strike for ``seconds``, let everyone finish, and judge."""
        crew = self._crew
        try:
            os.makedirs(self._root)
            crew.run_alone(self._prepare, "preparing the store")
            for member in crew.members if not self.problems else ():
                crew.start(member)
            until = perf_counter() + seconds
            while perf_counter() < until and not self.problems:
                sleep(crew.rng.uniform(0, _LONGEST_PAUSE_S))
                self._faults.strike()
                crew.look_after()
                self._watch()
            crew.finish()
        finally:
            crew.end()
        self._judge()

    def _prepare(self) -> None:
        with open(f"{self._root}/broker.conf", "w", encoding="utf-8") as file:
            file.write(_SETTINGS)
        client = Client(self._root)
        for topic, kind in TOPICS.items():
            client.subscribe(topic, SUBSCRIPTION, kind, initial_position=InitialPosition.Earliest).close()
        client.close()

    def _watch(self) -> None:
        """Nothing at all must never happen for long."""
        total = sum(self._crew.progress())
        moved, when = self._moved
        if total != moved:
            self._moved = (total, perf_counter())
        elif perf_counter() - when > _STUCK_AFTER_S:
            self.problems.append(f"nothing moved for {_STUCK_AFTER_S:.0f} s")

    # -- the verdict -------------------------------------------------------------------------------

    def _judge(self) -> None:
        self.figures.update(self._faults.counts)
        self.figures.update(self._board.counts())
        self.figures["left in good order"] = self._crew.leaves
        client = Client(self._root)
        for topic, kind in TOPICS.items():
            self._judge_topic(client, topic, kind)
        self._judge_signals(client)
        for name, topic, stream, kind in (
            ("daemons", DAEMONS, DAEMON_STREAM, ConsumerType.Shared),
            ("notebooks", NOTEBOOK, NOTEBOOK_STREAM, ConsumerType.Exclusive),
        ):
            if name in self._crew.loners:
                self._judge_stream(client, topic, stream, kind)
        client._core.store.peers.sweep()  # of those that were killed
        client.close()
        self.problems.extend(str(problem) for problem in check_store(self._root).problems)
        text, problems = hostile_stores.judge(self._folder, list(self._crew.tenants))
        self.notes["a store was removed"] = text
        self.problems.extend(problems)
        gap = self._board.worst_gap_ms
        self.notes["longest gap of the bystander"] = f"{gap} ms"
        if gap > _LONGEST_GAP_S * 1000:
            self.problems.append(f"the bystander got nothing for {gap} ms")

    def _judge_topic(self, client: Client, topic: str, kind: ConsumerType) -> None:
        stored: dict[int, int] = {}
        for producer in range(PRODUCERS):
            stream = stream_of(topic, producer)
            stored |= stored_by_key(stream, self._board.page.stored(stream))
        messages = _read(client, topic)
        log = LogVerdict(messages, stored)
        self.problems.extend(f"{topic}: {problem}" for problem in log.problems)
        verdict = TypeVerdict(kind, log.places, list(map(_key_of, messages)), _IN_HAND)
        verdict.judge(read_diary(diary_of(self._folder, topic)))
        self.problems.extend(verdict.problems)
        self.figures["messages"] += len(messages)
        self.figures["stored twice"] += log.duplicates
        self.figures["received again"] += verdict.redelivered
        self.problems.extend(_left_behind(client, topic, kind))

    def _judge_stream(self, client: Client, topic: str, stream: int, kind: ConsumerType) -> None:
        """What a process sent that nothing kills is there exactly once, and was acknowledged."""
        messages = _read(client, topic)
        log = LogVerdict(messages, {stream: self._board.page.stored(stream)})
        self.problems.extend(f"{topic}: {problem}" for problem in log.problems)
        if log.duplicates or log.in_flight:
            self.problems.append(
                f"{topic}: {log.duplicates} messages are there twice, {log.in_flight} were not confirmed"
            )
        verdict = TypeVerdict(kind, log.places, list(map(_key_of, messages)), _IN_HAND)
        verdict.judge(read_diary(diary_of(self._folder, topic)))
        self.problems.extend(f"{topic}: {problem}" for problem in verdict.problems)
        self.figures[f"messages of {topic}"] += len(messages)
        self.problems.extend(_left_behind(client, topic, kind))

    def _judge_signals(self, client: Client) -> None:
        page = self._board.page
        streams = [signal_stream_of(member) for member in (*self._crew.producers, *self._crew.consumers)]
        messages = _read(client, SIGNALS)
        log = LogVerdict(messages, {stream: page.stored(stream) for stream in streams})
        self.problems.extend(f"{SIGNALS}: {problem}" for problem in log.problems)
        self.figures["messages of signal handlers"] += len(messages)


def _read(client: Client, topic: str) -> list[Stored]:
    messages = []
    reader = client.create_reader(topic, MessageId.earliest)
    while reader.has_message_available():
        message = reader.read_next(timeout_millis=10_000)
        messages.append(Stored(*place_of(message), message.data()))
    reader.close()
    return messages


def _key_of(message: Stored) -> int:
    mark = read_payload(message.payload)
    return -1 if mark is None else mark.producer


def _left_behind(client: Client, topic: str, kind: ConsumerType) -> list[str]:
    """What is left in the subscription: nothing should be."""
    consumer: Any = client.subscribe(topic, SUBSCRIPTION, kind)
    session = consumer._core.session
    backlog, divergences = session.attachment.backlog(), session.subscription.statistics().divergences
    consumer.close()
    problems = []
    if backlog:
        problems.append(f"{topic}: {backlog} messages are left in the subscription")
    if divergences:
        problems.append(f"{topic}: {divergences} replicas disagreed")
    return problems


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what this storm can be told."""
    parser.add_argument("--minutes", type=float, default=30, help="how long, in all (default 30)")
    parser.add_argument("--round", type=float, default=60, help="seconds of faults in a round (default 60)")
    parser.add_argument(
        "--consumers", type=int, default=12, help="in all, a fourth for each type (default 12)"
    )
    parser.add_argument(
        "--without",
        choices=(*FAULTS, "closed-streams", "removed-stores", *LONERS),
        action="append",
        default=[],
        help="leave a fault out, to find what another one does; default is none",
    )
    parser.add_argument("--folder", help="where to work; it stays. Default is a folder in the workspace")


def run(options: argparse.Namespace, progress: Progress | None = None) -> StormReport:
    """Run rounds with the options of the command line until the time is over or something was wrong.

    The folder of a round is removed unless something was wrong in it.
    """
    report = StormReport("hostile storm")
    figures: Counter[str] = Counter()
    parent = options.folder or tempfile.mkdtemp(prefix="embeddedpulsar-storm-", dir=options.workspace)
    until = perf_counter() + options.minutes * 60
    rounds = 0
    while report.is_clean and (rounds == 0 or perf_counter() < until):
        folder = os.path.join(parent, f"round-{rounds}")
        os.makedirs(folder)
        found = _run_round(folder, options, options.seed + rounds)
        rounds += 1
        report.problems += [f"seed {options.seed + rounds - 1}: {text}" for text in found["problems"]]
        figures.update(found["figures"])
        report.figures |= {f"{name} (round {rounds})": text for name, text in found["notes"].items()}
        if progress is not None:
            progress("hostile", figures["kill"], len(report.problems))
        if report.is_clean and not options.folder:
            shutil.rmtree(folder)
    report.figures = {"rounds": rounds, **dict(sorted(figures.items())), **report.figures}
    if report.is_clean and not options.folder:
        shutil.rmtree(parent)
    else:
        report.figures["folder"] = parent
    return report


def _run_round(folder: str, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Run a round in a child, since judging starts threads, and what forks must have none."""
    path = f"{folder}/report.json"
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            one = HostileRound(folder, seed=seed, consumers=options.consumers, without=options.without)
            one.run(options.round)
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"problems": one.problems, "figures": one.figures, "notes": one.notes}, file)
            status = 0
        except BaseException:
            with open(f"{folder}/broke-off", "w", encoding="utf-8") as file:
                traceback.print_exc(file=file)
        finally:
            os._exit(status)
    os.waitpid(pid, 0)
    try:
        with open(path, encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
            return found
    except FileNotFoundError:
        problem = f"the round with seed {seed} broke off: see {folder}/broke-off"
        return {"problems": [problem], "figures": {}, "notes": {}}
