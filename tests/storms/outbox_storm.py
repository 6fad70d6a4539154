"""SIGKILL among those that use an outbox and an inbox: ``python -m tests.storms outbox``.

Writers commit rows with messages, and roll some back; relays publish them; consumers of a Shared subscription
handle each message in a transaction of its own or many in one. Two of each run, and any of them is killed at
any moment, or at a step of its work. In the end rows and messages agree: nothing is lost or there twice, the
order of the commits is kept, and each message had its effect once.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import shutil
import signal
import sqlite3
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition, MessageId, outbox
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from embeddedpulsar.outbox import inbox
from embeddedpulsar.testing.trial_store import check_store
from tests.storms.storm_report import StormReport
from tests.support.postgres import server

_OF_RELAYS: Final = (*(name for name in failpoints.names() if name.startswith("outbox:")), "append:body_done")
_OF_CONSUMERS: Final = tuple(name for name in failpoints.names() if name.startswith("inbox:"))
_PARTITIONED: Final = "parts"
_TOPICS: Final = ("plain", "other", _PARTITIONED)
_KEYS: Final = 7
_AT_A_STEP: Final = 0.5
_MOST_WAITING: Final = 1500
_END_S: Final = 180.0
_SETTINGS: Final = "managedLedgerMaxEntriesPerLedger=500\n"

Progress = Callable[[str, int, int], object]
Connect = Callable[[], Any]


class _Database:
    """The database of the storm.

    Attributes:
        url: that relays get.
        connect: makes a connection.
    """

    def __init__(self, kind: str, folder: str) -> None:
        self.kind: Final = kind
        if kind == "sqlite":
            path = f"{folder}/app.db"
            self.url = f"sqlite:///{path}"
            self.connect: Connect = lambda: sqlite3.connect(path, timeout=60)
            with contextlib.closing(self.connect()) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
        else:
            url = self.url = server().database()
            import psycopg

            self.connect = lambda: psycopg.connect(url)
        with contextlib.closing(self.connect()) as connection:
            cursor = connection.cursor()
            number = "SERIAL PRIMARY KEY" if kind != "sqlite" else "INTEGER PRIMARY KEY AUTOINCREMENT"
            cursor.execute(
                f"CREATE TABLE sent (id {number}, writer INTEGER, number INTEGER, topic TEXT, key TEXT)"
            )
            cursor.execute("CREATE TABLE effects (writer INTEGER, number INTEGER)")
            outbox.create(connection)
            inbox.create(connection)
            connection.commit()

    def rows(self, query: str) -> list[Any]:
        """The rows of a query."""
        with contextlib.closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(query)
            return list(cursor.fetchall())


def _write(database: _Database, root: str, writer: int) -> None:
    """Commit transactions of rows and messages, and roll some back, until killed."""
    chance = random.Random(writer)
    number = 0
    with contextlib.closing(database.connect()) as connection:
        cursor = connection.cursor()
        while True:
            cursor.execute("SELECT count(*) FROM outbox")
            waiting = cursor.fetchone()[0]
            connection.commit()
            if waiting > _MOST_WAITING:
                sleep(0.02)
                continue
            for _ in range(chance.randint(1, 8)):
                topic, key = chance.choice(_TOPICS), chance.choice([None, *map(str, range(_KEYS))])
                values = f"{writer}, {number}, '{topic}', " + ("NULL" if key is None else f"'{key}'")
                cursor.execute(f"INSERT INTO sent (writer, number, topic, key) VALUES ({values})")
                outbox.send(connection, topic, b"%d %d" % (writer, number), key=key)
                number += 1
            if chance.random() < 0.2:
                connection.rollback()
            else:
                connection.commit()
            sleep(chance.choice((0, 0, 0.002, 0.01)))


def _relay(database: _Database, root: str, name: int) -> None:
    """Serve the outbox until killed."""
    with Client(root) as client:
        outbox.Relay(client, database.url, max_rows=random.Random(name).choice((3, 50, 1000))).run()


def _consume(database: _Database, root: str, name: int) -> None:
    """Handle messages until killed."""
    chance = random.Random(name)
    with Client(root) as client, contextlib.closing(database.connect()) as connection:
        consumer = client.subscribe(
            list(_TOPICS), "handling", ConsumerType.Shared, initial_position=InitialPosition.Earliest
        )
        cursor = connection.cursor()
        while True:
            messages = [consumer.receive()]
            while len(messages) < chance.randint(1, 20) and (more := consumer.receive_nowait()) is not None:
                messages.append(more)
            with inbox.handle_many(connection, messages) as new:
                for message in new:
                    writer, number = map(int, message.data().split())
                    cursor.execute(f"INSERT INTO effects VALUES ({writer}, {number})")


class _Child:
    """A forked process of one role."""

    def __init__(
        self, role: Callable[..., None], arguments: Sequence[Any], step: str | None, nth: int
    ) -> None:
        self.role = role
        self.step = step
        self._status: int | None = None
        folder = os.path.dirname(arguments[1])
        self.pid = os.fork()
        if self.pid == 0:
            try:
                if step is not None:
                    failpoints.set(step, "kill", nth=nth)
                role(*arguments)
            except BaseException:
                with open(f"{folder}/failed.{os.getpid()}", "w", encoding="utf-8") as file:
                    traceback.print_exc(file=file)
            finally:
                os._exit(1)

    def status(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def kill(self) -> None:
        if self.status() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class OutboxStorm:
    """One storm.

    Attributes:
        report: what it found.
    """

    def __init__(self, folder: str, seed: int, kind: str) -> None:
        self.report: Final = StormReport(f"storm over an outbox and an inbox in {kind}")
        self._folder: Final = folder
        self._root: Final = f"{folder}/store"
        self._chance: Final = random.Random(seed)
        self._kind: Final = kind
        self._living: Final[list[_Child]] = []
        self._steps: Final[Counter[str]] = Counter()
        self._kills = 0
        self._made = 0
        self._may_die = True

    def _start(self, role: Callable[..., None]) -> None:
        steps = {_relay: _OF_RELAYS, _consume: _OF_CONSUMERS}.get(role, ())
        step, nth = None, 1
        if self._may_die and steps and self._chance.random() < _AT_A_STEP:
            step, nth = self._chance.choice(steps), self._chance.randint(1, 15)
        self._made += 1
        self._living.append(_Child(role, (self._database, self._root, self._made), step, nth))

    def _fill(self, roles: Sequence[Callable[..., None]]) -> None:
        """Replace those that died."""
        for child in list(self._living):
            status = child.status()
            if status is None:
                continue
            self._living.remove(child)
            if status == -signal.SIGKILL:
                self._kills += 1
                self._steps[child.step or "any moment"] += 1
            else:
                self.report.problems.append(f"{child.role.__name__} ended by itself: see failed.{child.pid}")
        for role in roles:
            for _ in range(2 - sum(child.role is role for child in self._living)):
                self._start(role)

    def prepare(self) -> None:
        """Make the database and the topics."""
        os.makedirs(self._root)
        with open(f"{self._root}/broker.conf", "w", encoding="utf-8") as file:
            file.write(_SETTINGS)
        self._database = _Database(self._kind, self._folder)
        with Admin(self._root) as admin:
            admin.topics().create_partitioned_topic(_PARTITIONED, 3)
            for topic in _TOPICS:
                if topic != _PARTITIONED:
                    admin.topics().create_non_partitioned_topic(topic)
                admin.topics().set_retention(topic, -1, -1)  # the verdict reads everything
                admin.topics().create_subscription(topic, "handling", MessageId.earliest)

    def run(self, kills: int, progress: Progress | None = None) -> StormReport:
        """Kill so many processes, then let the rest finish, and judge."""
        self.prepare()
        logging.basicConfig(filename=f"{self._folder}/log", level=logging.INFO)
        try:
            while self._kills < kills and not self.report.problems:
                self._fill((_write, _relay, _consume))
                sleep(self._chance.uniform(0, 0.15))
                victims = [child for child in self._living if child.step is None]
                if victims and self._chance.random() < 0.7:
                    victim = self._chance.choice(victims)
                    victim.kill()
                if progress is not None:
                    progress("outbox", self._kills, 0)
            self._finish()
        finally:
            for child in self._living:
                child.kill()
        self.report.figures["kills"] = self._kills
        self.report.figures["kills by step"] = ", ".join(
            f"{name} {n}" for name, n in sorted(self._steps.items())
        )
        self._judge()
        return self.report

    def _finish(self) -> None:
        """Stop the writers, and let relays and consumers do the rest."""
        self._may_die = False
        for child in list(self._living):
            child.kill()
        self._living.clear()
        end_s = perf_counter() + _END_S
        while perf_counter() < end_s and not self.report.problems:
            self._fill((_relay, _consume))
            sleep(0.05)
            ((waiting,),) = self._database.rows("SELECT count(*) FROM outbox")
            ((sent,),) = self._database.rows("SELECT count(*) FROM sent")
            ((effects,),) = self._database.rows("SELECT count(*) FROM effects")
            if not waiting and effects >= sent:
                break
        sleep(0.3)  # for what would be published or handled too often

    def _judge(self) -> None:
        sent = self._database.rows("SELECT writer, number, topic, key FROM sent ORDER BY id")
        keys = {(writer, number): key for writer, number, _, key in sent}
        expected: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for writer, number, topic, _ in sent:
            expected[topic].append((writer, number))
        for topic in _TOPICS:
            self._judge_topic(topic, expected[topic], keys)
        effects = Counter((writer, number) for writer, number in self._database.rows("SELECT * FROM effects"))
        self._compare("effects", Counter(keys.keys()), effects)
        ((waiting,),) = self._database.rows("SELECT count(*) FROM outbox")
        if waiting:
            self.report.problems.append(f"{waiting} rows wait in the outbox")
        figures = self.report.figures
        figures["messages"] = len(sent)
        figures["rows of the inbox"] = self._database.rows("SELECT count(*) FROM inbox")[0][0]
        Client(self._root).close()  # which sweeps out what dead processes left
        self.report.problems += [str(problem) for problem in check_store(self._root).problems]

    def _judge_topic(
        self, topic: str, expected: list[tuple[int, int]], keys: dict[tuple[int, int], str | None]
    ) -> None:
        found: list[tuple[int, int]] = []
        place = {message: rank for rank, message in enumerate(expected)}
        with Client(self._root) as client:
            for name in client.get_topic_partitions(topic):
                with client.create_reader(name, MessageId.earliest) as reader:
                    part = []
                    for message in reader:
                        writer, number = map(int, message.data().split())
                        part.append((writer, number))
                        if (message.partition_key() or None) != keys.get((writer, number)):
                            self.report.problems.append(f"{name}: {writer} {number} has another key")
                self._judge_order(name, part, place)
                found += part
        self._compare(topic, Counter(expected), Counter(found))

    def _judge_order(self, name: str, part: list[tuple[int, int]], place: dict[tuple[int, int], int]) -> None:
        # In SQLite rows are numbered in the order of their commits. In PostgreSQL that holds for those of a
        # writer.
        last: dict[int, int] = defaultdict(lambda: -1)
        for writer, number in part:
            line = 0 if self._kind == "sqlite" else writer
            rank = place.get((writer, number), -1)
            if rank < last[line]:
                self.report.problems.append(f"{name}: {writer} {number} is out of order")
            last[line] = rank

    def _compare(self, what: str, expected: Counter[Any], found: Counter[Any]) -> None:
        missing, more = expected - found, found - expected
        if missing or more:
            self.report.problems.append(
                f"{what}: {missing.total()} missing {list(missing)[:5]}, "
                f"{more.total()} too many {list(more)[:5]}"
            )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this storm."""
    parser.add_argument("--kills", type=int, default=500, help="how many (default 500)")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")


def run(options: argparse.Namespace, progress: Progress | None = None) -> StormReport:
    """Run the storm in a folder, which stays if something was wrong."""
    folder = tempfile.mkdtemp(prefix="storm-", dir=options.workspace)
    report = OutboxStorm(folder, options.seed, options.database).run(options.kills, progress)
    if report.is_clean:
        shutil.rmtree(folder)
    else:
        report.figures["folder"] = folder
    return report
