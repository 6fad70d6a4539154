"""Kills among the producers and consumers of a non-persistent topic, of every subscription type at once.

Each process writes what it sends or receives to a file of its own, message by message. At the end: no
message came twice to a subscription, none is torn, each consumer got the messages of a producer and key in
order (on Shared, what a killed consumer leaves comes out of order), and what a subscription counts as dropped
is what was sent and not received. A consumer that is killed was given the rest of its batch, which no file
has.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from embeddedpulsar import Admin, BatchingType, Client, ConsumerType, Timeout
from tests.storms.storm_report import StormReport

TOPIC: Final = "non-persistent://public/default/storm"
_CONSUMERS: Final = {"Exclusive": 1, "Failover": 2, "Shared": 3, "KeyShared": 3}
_PRODUCERS: Final = 3
_SETTINGS: Final = "nonPersistentTopicRingSizeInMB=1\n"
_KEYS: Final = 20
_QUIET_S: Final = 0.5
_LARGEST: Final = 6000
_BATCH: Final = 50

Progress = Callable[[str, int, int], object]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this storm."""
    parser.add_argument("--kills", type=int, default=300, help="how many (default 300)")


def run(options: argparse.Namespace, progress: Progress | None = None) -> StormReport:
    """Run the storm in a folder, which stays if something was wrong."""
    folder = Path(tempfile.mkdtemp(prefix="storm-", dir=options.workspace))
    report = _Storm(folder, random.Random(options.seed)).run(options.kills, progress)
    if report.is_clean:
        shutil.rmtree(folder)
    return report


def _produce(root: str, file: str, seed: int) -> None:
    chance = random.Random(seed)
    name = f"{os.getpid()}-{seed}"
    with Client(root) as client, open(file, "ab", buffering=0) as log:
        batched = chance.random() < 0.3
        producer = client.create_producer(
            TOPIC, producer_name=name, batching_enabled=batched, batching_type=BatchingType.KeyBased
        )
        for number in range(1 << 30):
            key = chance.randrange(_KEYS)
            head = b"%s %d %d " % (name.encode(), number, key)
            body = head + chance.randbytes(chance.randrange(1, _LARGEST))
            producer.send_async(body + b"%08x" % zlib.crc32(body), None, partition_key=str(key))
            if not number % _BATCH:
                producer.flush()
                log.write(b"%d\n" % number)
                time.sleep(chance.choice((0, 0, 0.01)))


def _consume(root: str, file: str, kind: str, seed: int) -> None:
    chance = random.Random(seed)
    with Client(root) as client, open(file, "ab", buffering=0) as log:
        consumer = client.subscribe(TOPIC, kind, ConsumerType[kind], receiver_queue_size=200)
        log.write(b"begin\n")
        lag = chance.choice((0.0, 0.0, 0.05))  # some fall behind, and are lapped
        while True:
            with contextlib.suppress(Timeout):
                data = consumer.receive(1000).data()
                body, crc = data[:-8], data[-8:]
                is_whole = crc == b"%08x" % zlib.crc32(body)
                name, number, key = body.split(b" ", 3)[:3]
                log.write(b"%s %s %s %d\n" % (name, number, key, is_whole))
                if lag and chance.random() < 0.01:
                    time.sleep(lag)


class _Storm:
    """One run.

    Attributes:
        living: the processes by their place, such as ("Shared", 2).
        killed: how many consumers of each subscription were killed.
    """

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._folder = folder
        self._root = str(folder / "store")
        self._chance = chance
        self.living: dict[tuple[str, int], int] = {}
        self.killed = dict.fromkeys(_CONSUMERS, 0)
        self._started = 0

    def run(self, kills: int, progress: Progress | None) -> StormReport:
        os.mkdir(self._root)
        (Path(self._root) / "broker.conf").write_text(_SETTINGS)
        with Client(self._root) as client:  # from here on, everything counts
            for kind in _CONSUMERS:
                client.subscribe(TOPIC, kind, ConsumerType[kind]).close()
        places = [("producer", number) for number in range(_PRODUCERS)]
        places += [(kind, number) for kind, most in _CONSUMERS.items() for number in range(most)]
        try:
            for place in places:
                self._start(place)
            for done in range(kills):
                time.sleep(self._chance.uniform(0, 0.15))
                place = self._chance.choice(places)
                self._kill(place)
                self._start(place)
                if progress is not None:
                    progress("volatile", done + 1, 0)
            for number in range(_PRODUCERS):
                self._kill(("producer", number))
            problems = self._judge_when_quiet()
        finally:
            for place in list(self.living):
                self._kill(place)
        problems += self._judge()
        report = StormReport(f"non-persistent topic: {kills} kills")
        report.problems = problems
        with Admin(self._root) as admin:
            stats = admin.topics().get_stats(TOPIC)
        report.figures["messages sent"] = stats.msg_in_counter
        for kind in _CONSUMERS:
            dropped = stats.subscriptions[kind].msg_drop_counter
            report.figures[kind] = f"{len(self._received(kind))} received, {dropped} dropped"
        return report

    def _start(self, place: tuple[str, int]) -> None:
        kind, number = place
        self._started += 1
        file = str(self._folder / f"{kind}.{number}.{self._started}")
        pid = os.fork()
        if pid == 0:
            try:
                if kind == "producer":
                    _produce(self._root, file, self._started)
                else:
                    _consume(self._root, file, kind, self._started)
            except BaseException:
                # One write: a kill while the lines are made leaves no empty file.
                Path(f"{file}.failed").write_text(traceback.format_exc())
            finally:
                os._exit(1)
        self.living[place] = pid

    def _kill(self, place: tuple[str, int]) -> None:
        pid = self.living.pop(place)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if place[0] in self.killed:
            self.killed[place[0]] += 1

    def _judge_when_quiet(self) -> list[str]:
        """Wait until the consumers have taken everything; compare the drops with their files."""
        before: dict[str, int] = {}
        while True:
            time.sleep(_QUIET_S)
            counts = {kind: len(self._received(kind)) for kind in _CONSUMERS}
            if counts == before:
                break
            before = counts
        return [f"while consumers are there: {one}" for one in self._compare()]

    def _compare(self) -> list[str]:
        problems = []
        with Admin(self._root) as admin:
            stats = admin.topics().get_stats(TOPIC)
        for kind, killed in self.killed.items():
            dropped, received = stats.subscriptions[kind].msg_drop_counter, len(self._received(kind))
            missing = stats.msg_in_counter - received - (dropped or 0)
            if not 0 <= missing <= killed * _BATCH:
                problems.append(
                    f"{kind}: {stats.msg_in_counter} sent, {received} received, {dropped} dropped; "
                    f"{killed} consumers were killed, {missing} messages are missing"
                )
        return problems

    def _judge(self) -> list[str]:
        problems = self._compare()
        problems += [file.read_text() for file in self._folder.glob("*.failed")]
        for kind in _CONSUMERS:
            received = self._received(kind)
            if not received:
                problems.append(f"{kind}: received nothing")
            if len(set(received)) != len(received):
                problems.append(f"{kind}: {len(received) - len(set(received))} messages came twice")
            problems += self._out_of_order(kind)
        return problems

    def _received(self, kind: str) -> list[tuple[str, str]]:
        found = []
        for file in self._folder.glob(f"{kind}.*"):
            if file.suffix != ".failed":
                found += [(line[0], line[1]) for line in _lines(file)]
        return found

    def _out_of_order(self, kind: str) -> list[str]:
        problems = []
        for file in self._folder.glob(f"{kind}.*"):
            if file.suffix == ".failed":
                continue
            last: dict[str, int] = {}
            for name, number, key, is_whole in _lines(file):
                stream = f"{name} {key}"
                if is_whole != "1":
                    problems.append(f"{file.name}: message {number} of {name} is torn")
                if kind != "Shared" and int(number) <= last.get(stream, -1):
                    problems.append(f"{file.name}: {number} of {stream} after {last[stream]}")
                last[stream] = int(number)
        return problems


def _lines(file: Path) -> list[list[str]]:
    """The messages in a file; the last line may be cut off."""
    whole = file.read_bytes().rpartition(b"\n")[0].decode()
    return [words for line in whole.splitlines() if len(words := line.split()) == 4]
