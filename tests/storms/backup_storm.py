"""Backups at random moments of a random flow: every restored store is one that could have been.

    python -m tests.storms backups --stores 10000

A flow is a store with some of the parts below, chosen by its seed; each part publishes, processes and
acknowledges in random steps. Backups are made in between, into a new directory or into the one before, and at
the steps of the backup itself (its failpoints) the flow goes on. All that happens follows from the seed. Of
each restored store it is asked whether every input is unacknowledged or has its effects, whether what was
stored or acknowledged before the backup is so, and whether it goes on from there.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from embeddedpulsar import (
    Admin,
    Client,
    Consumer,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    Function,
    InitialPosition,
    MessageId,
    Producer,
)
from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar._engine.store.care import store_backup
from embeddedpulsar._engine.store.care.store_check import check_store
from embeddedpulsar.functions import FunctionConfig, LocalRunner, ProcessingGuarantees
from embeddedpulsar.schema import AutoConsumeSchema, AvroSchema
from tests.storms.storm_report import StormReport

SETTINGS: Final = (
    "managedLedgerMaxSizePerLedgerMbytes=1\nmanagedLedgerMaxEntriesPerLedger=8\n"
    "defaultRetentionTimeInMinutes=0\n"
)
POINTS: Final = (
    "backup:object_written",
    "backup:journals_taken",
    "backup:sinks_taken",
    "backup:cut",
    "backup:logs_taken",
    "backup:objects_done",
)
_MOST_BETWEEN: Final = 2
"""Steps of the flow at one point of a backup."""
_UNLOCKED: Final = 3
"""So many attempts of a backup are made without locks."""
_BACKUPS: Final = 10
_CHECKED_AFTERWARDS: Final = 4
"""So many restored stores are checked once before their use, and one of them a second time behind it."""
_MOST_PARTS: Final = 3
_EARLIEST: Final = InitialPosition.Earliest

assert store_backup  # imported: it declares the failpoints


def drained(consumer: Consumer[Any]) -> list[int]:
    """The numbers that a consumer gets until there is none left."""
    found = []
    while (message := consumer.receive_nowait()) is not None:
        found.append(int(message.data()))
    return found


def logged(client: Client, topic: str) -> list[int]:
    """The numbers in the log of a topic; none if there is no such topic."""
    with client.create_reader(topic, MessageId.earliest) as reader:
        return [int(message.data()) for message in reader]


class _NeverFlushed(disk.Disk):
    """The disk, without waiting for it: no process dies here, and no machine."""

    def fsync(self, fd: int, path: str) -> None: ...

    def fdatasync(self, fd: int, path: str) -> None: ...

    def flush_files(self, paths: Sequence[str]) -> None: ...

    def fsync_dir(self, path: str) -> None: ...


class Part:
    """One part of a flow, on topics of its own.

    Role: `step` goes on, `note` says what holds when a backup begins, `verify` compares a restored store
    with that. Callers: one thread.

    Attributes:
        sent: how many numbers were published, from 0 on.
    """

    kept: ClassVar[tuple[str, ...]] = ()

    def __init__(self, client: Client, admin: Admin, rng: random.Random) -> None:
        self.client: Final = client
        self.admin: Final = admin
        self.rng: Final = rng
        self.sent = 0
        for topic in self.kept:
            self.keep(topic)
        self.begin()

    def keep(self, topic: str) -> None:
        """Keep what is acknowledged of a topic."""
        if topic not in self.made():
            self.admin.topics().create_non_partitioned_topic(topic)
        self.admin.topics().set_retention(topic, -1, -1)

    def made(self) -> set[str]:
        """The local names of all topics."""
        return {name.rpartition("/")[2] for name in self.admin.topics().get_list("public/default")}

    def begin(self) -> None:
        """Make what `step` needs."""

    def step(self) -> None:
        """Go on a little."""

    def note(self) -> Any:
        """What `verify` is given."""
        return self.sent

    def verify(self, client: Client, admin: Admin, noted: Any) -> list[str]:
        """What is wrong with a restored store."""
        raise NotImplementedError

    def publish(self, producer: Producer[bytes], most: int = 4) -> None:
        """The next numbers, a few."""
        for _ in range(self.rng.randint(1, most)):
            producer.send(b"%d" % self.sent, partition_key=f"k{self.sent % 3}")
            self.sent += 1

    def trim(self, topic: str) -> None:
        """Remove the ledgers that nobody needs."""
        if topic in self.made():
            self.admin.topics().trim_topic(topic)

    def missing(self, noted: int, where: dict[str, list[int]], inputs: list[int]) -> list[str]:
        """Numbers that are in no place where they may be.

        Args:
            noted: so many were published before the backup.
            where: numbers by place.
            inputs: those that the restored store has as inputs.
        """
        wanted = {*range(noted), *inputs}
        lost = sorted(wanted.difference(*where.values()))
        return [f"{type(self).__name__}: {lost} are in none of {', '.join(where)}"] if lost else []


class Relay(Part):
    """Two consumers in a row that publish before they acknowledge; outputs go to topics that come to be on
    the way. Inputs are trimmed."""

    def begin(self) -> None:
        self.consumers = [
            self.client.subscribe(
                topic,
                "s",
                self.rng.choice((ConsumerType.Shared, ConsumerType.Failover)),
                initial_position=_EARLIEST,
                ack_group_time_ms=0,
            )
            for topic in ("a", "b")
        ]
        self.source = self.client.create_producer("a")
        self.middle = self.client.create_producer("b")
        self.ends: dict[str, Producer[bytes]] = {}

    def step(self) -> None:
        what = self.rng.random()
        if what < 0.35:
            self.publish(self.source)
        elif what < 0.9:
            self._pass_on(self.rng.randrange(2))
        else:
            self.trim(self.rng.choice("ab"))

    def _pass_on(self, stage: int) -> None:
        for _ in range(self.rng.randint(1, 5)):
            message = self.consumers[stage].receive_nowait()
            if message is None:
                return
            self._output(stage, int(message.data())).send(message.data())
            self.consumers[stage].acknowledge(message)

    def _output(self, stage: int, number: int) -> Producer[bytes]:
        if stage == 0:
            return self.middle
        topic = f"c-{number // 12}"
        if topic not in self.ends:
            self.keep(topic)
            self.ends[topic] = self.client.create_producer(topic)
        return self.ends[topic]

    def verify(self, client: Client, admin: Admin, noted: Any) -> list[str]:
        topics = {name.rpartition("/")[2] for name in admin.topics().get_list("public/default")}
        stats = {topic: admin.topics().get_stats(topic).subscriptions for topic in ("a", "b")}
        inputs, where = logged(client, "a"), {}
        problems = []
        for topic in ("a", "b"):
            with client.subscribe(topic, "s", initial_position=_EARLIEST) as consumer:
                where[topic] = drained(consumer)
            backlog = stats[topic]["s"].msg_backlog if "s" in stats[topic] else -1
            if backlog != len(where[topic]):
                problems.append(f"Relay: {topic} had a backlog of {backlog}, and gives {where[topic]}")
        where["c"] = [
            number for name in sorted(topics) if name.startswith("c-") for number in logged(client, name)
        ]
        return problems + self.missing(noted, where, inputs)


class Letters(Part):
    """A consumer that puts messages off, gives them up, or publishes what comes of them."""

    kept = ("done", "src-s-DLQ")

    def begin(self) -> None:
        self.consumer = self._subscribe(self.client)
        self.source = self.client.create_producer("src")
        self.done = self.client.create_producer("done")

    @staticmethod
    def _subscribe(client: Client) -> Consumer[bytes]:
        policy = ConsumerDeadLetterPolicy(1)
        return client.subscribe(
            "src",
            "s",
            ConsumerType.Shared,
            dead_letter_policy=policy,
            enable_retry=True,
            initial_position=_EARLIEST,
            ack_group_time_ms=0,
        )

    def step(self) -> None:
        what = self.rng.random()
        if what < 0.4:
            self.publish(self.source)
        elif what < 0.9:
            for _ in range(self.rng.randint(1, 4)):
                message = self.consumer.receive_nowait()
                if message is None:
                    return
                if self.rng.random() < 0.7:
                    self.consumer.reconsume_later(message, 0)
                else:
                    self.done.send(message.data())
                    self.consumer.acknowledge(message)
        else:
            self.trim(self.rng.choice(("src", "src-s-RETRY")))

    def verify(self, client: Client, admin: Admin, noted: Any) -> list[str]:
        where = {"letters": logged(client, "src-s-DLQ"), "done": logged(client, "done")}
        inputs = logged(client, "src")
        consumer = self._subscribe(client)
        where["unacknowledged"] = drained(consumer)
        consumer.close()
        return self.missing(noted, where, inputs)


class _Count(Function):
    def process(self, value: Any, context: Any) -> bytes:
        context.incr_counter("n", 1)
        return value if isinstance(value, bytes) else str(value).encode()


class Counting(Part):
    """An effectively-once function: each input is counted once and has one output. The names of the topics
    stand before and behind those of its state."""

    def begin(self) -> None:
        self.input, self.output = self.rng.choice((("in", "public/a/out"), ("public/zz/in", "out")))
        for namespace in ("public/a", "public/zz"):
            if namespace not in self.admin.namespaces().get_namespaces("public"):
                self.admin.namespaces().create_namespace(namespace)
        self.keep_outputs()
        self.source = self.client.create_producer(self.input)
        self.runner = self._runner(self.client)
        self.runner.run_until_idle()

    def keep_outputs(self) -> None:
        """Outputs are not trimmed; inputs are."""
        self.admin.topics().create_non_partitioned_topic(self.output)
        self.admin.topics().set_retention(self.output, -1, -1)

    def _runner(self, client: Client) -> LocalRunner:
        config = FunctionConfig(
            name="w",
            inputs=[self.input],
            output=self.output,
            processing_guarantees=ProcessingGuarantees.EFFECTIVELY_ONCE,
            subscription_position=_EARLIEST,
        )
        return LocalRunner(config, _Count, client=client)

    def step(self) -> None:
        what = self.rng.random()
        if what < 0.45:
            self.publish(self.source)
        elif what < 0.85:
            self.runner.run_until_idle()
        elif what < 0.9:  # another instance, under another name
            self.runner.stop()
            self.runner = self._runner(self.client)
        else:
            self.admin.topics().trim_topic(self.input)

    def verify(self, client: Client, admin: Admin, noted: Any) -> list[str]:
        inputs = logged(client, self.input)
        with client.create_producer(self.input) as producer:  # positions are not ahead of the log
            last = max([noted - 1, *inputs, *logged(client, self.output)])
            for number in range(last + 1, last + 4):
                producer.send(b"%d" % number)
        with self._runner(client) as runner:
            runner.run_until_idle()
        outputs, wanted = logged(client, self.output), [*range(last + 4)]
        count = admin.functions().get_function_state("public", "default", "w", "n")
        if sorted(outputs) == wanted and count == len(wanted):
            return []
        return [
            f"Counting: inputs {inputs} and {last + 1} to {last + 3}: outputs {outputs}, counted {count!r}"
        ]


class Schemas(Part):
    """Producers with ever new versions of a schema."""

    kept = ("typed",)

    def begin(self) -> None:
        self.version = 0
        self.written: list[dict[str, int]] = []

    @staticmethod
    def _schema(version: int, prefix: str = "f") -> AvroSchema[Any]:
        names = ["n", *(f"{prefix}{number}" for number in range(version))]
        fields = [{"name": name, "type": "int", "default": 0} for name in names]
        return AvroSchema(None, schema_definition={"type": "record", "name": "R", "fields": fields})

    def step(self) -> None:
        if self.rng.random() < 0.5:
            self.version += 1
        with self.client.create_producer("typed", schema=self._schema(self.version)) as producer:
            for _ in range(self.rng.randint(1, 3)):
                row = {"n": self.sent} | {f"f{number}": self.sent for number in range(self.version)}
                producer.send(row)
                self.written.append(row)
                self.sent += 1

    def _rows(self, client: Client) -> list[Any]:
        found: list[Any] = []
        with client.create_reader("typed", MessageId.earliest, schema=AutoConsumeSchema()) as reader:
            for message in reader:
                try:
                    value = message.value()
                    found.append({name: value[name] for name in self.written[len(found)]})
                except Exception as error:
                    found.append(repr(error))
        return found

    def verify(self, client: Client, admin: Admin, noted: Any) -> list[str]:
        rows = self._rows(client)
        problems = []
        if len(rows) < noted or rows != self.written[: len(rows)]:
            problems.append(f"Schemas: {noted} rows before the backup, there are {rows}")
        versions = len(admin.schemas().get_all_schemas("typed")) if rows else 0
        # A schema that no version had yet does not take one that messages have.
        with client.create_producer("typed", schema=self._schema(self.version + 1, "g")) as producer:
            producer.send({"n": -1})
        if self._rows(client)[: len(rows)] != rows:
            problems.append(f"Schemas: {versions} versions; another schema changed the messages before it")
        return problems


class Sequences(Part):
    """A producer whose duplicates are dropped, which comes and goes, and sends again what it is not sure
    of."""

    kept = ("dd",)

    def begin(self) -> None:
        self.admin.topics().set_deduplication_status("dd", True)
        self.producer: Producer[bytes] | None = None

    def step(self) -> None:
        if self.rng.random() < 0.3 and self.producer is not None:
            self.producer.close()
            self.producer = None
            return
        if self.producer is None:
            self.producer = self.client.create_producer("dd", producer_name="p")
        again = self.rng.randint(0, min(2, self.sent))
        for number in range(self.sent - again, self.sent + self.rng.randint(1, 4)):
            self.producer.send(b"%d" % number, sequence_id=number + 1)
            self.sent = max(self.sent, number + 1)

    def verify(self, client: Client, admin: Admin, noted: Any) -> list[str]:
        before = logged(client, "dd")
        with client.create_producer("dd", producer_name="p") as producer:
            last = producer.last_sequence_id()
            for number in range(self.sent):
                producer.send(b"%d" % number, sequence_id=number + 1)
        after = logged(client, "dd")
        if len(before) >= noted and after == [*range(self.sent)]:
            return []
        return [f"Sequences: {noted} before the backup, {before} in it, last {last}; all again: {after}"]


class Lives(Part):
    """A subscription that is deleted and made again, on each type, and acknowledges here and there."""

    kept = ("re",)

    def begin(self) -> None:
        self.source = self.client.create_producer("re")
        self.life = 0
        self.is_there = False
        self.acked: set[int] = set()
        self.during: set[bool] = set()

    def step(self) -> None:
        what = self.rng.random()
        if what < 0.3 or not self.sent:
            self.publish(self.source)
        elif what < 0.5 and self.is_there:
            self.client.subscribe("re", "x").unsubscribe()
            self.is_there = False
            self.during.add(False)
        else:
            self._acknowledge()

    def _acknowledge(self) -> None:
        if not self.is_there:
            self.life, self.is_there, self.acked = self.life + 1, True, set()
        kind = self.rng.choice((ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared))
        with self.client.subscribe(
            "re", "x", kind, initial_position=_EARLIEST, ack_group_time_ms=0
        ) as consumer:
            for _ in range(self.rng.randint(0, 4)):
                message = consumer.receive_nowait()
                if message is None:
                    break
                if self.rng.random() < 0.6:
                    consumer.acknowledge(message)
                    self.acked.add(int(message.data()))

    def note(self) -> Any:
        self.during = {self.is_there}
        return self.sent, self.life, set(self.acked), self.is_there

    def verify(self, client: Client, admin: Admin, noted: Any) -> list[str]:
        sent, life, acked, was_there = noted
        log, problems = logged(client, "re"), []
        if log != [*range(len(log))] or len(log) < sent:
            problems.append(f"Lives: {sent} sent before the backup, the log is {log}")
        names = admin.topics().get_subscriptions("re")
        with client.subscribe("re", "x", initial_position=_EARLIEST) as consumer:
            left = set(drained(consumer))
        if "x" not in names:
            return problems if False in self.during else [*problems, "Lives: the subscription is not there"]
        is_same = was_there and life == self.life and False not in self.during
        if is_same and (left & acked or not left >= set(log) - self.acked):
            problems.append(
                f"Lives: {sorted(acked)} acknowledged before, {sorted(self.acked)} in all; of {log} left"
                f" {sorted(left)}"
            )
        elif not is_same and not was_there and not left >= set(log) - self.acked - acked:
            problems.append(f"Lives: a new subscription has {sorted(left)} of {log}, acked {self.acked}")
        return problems


class Compacted(Part):
    """A topic that is compacted, and trimmed behind that."""

    kept = ("cp",)

    def begin(self) -> None:
        self.source = self.client.create_producer("cp")
        self.newest: dict[str, int] = {}

    def step(self) -> None:
        if self.rng.random() < 0.7 or not self.sent:
            for _ in range(self.rng.randint(1, 5)):
                key = f"k{self.rng.randrange(4)}"
                self.source.send(b"%d" % self.sent, partition_key=key)
                self.newest[key] = self.sent
                self.sent += 1
            return
        topics = self.admin.topics()
        topics.compact("cp")
        while topics.compaction_status("cp").status == "RUNNING":
            time.sleep(0.001)

    def note(self) -> Any:
        return dict(self.newest), self.sent

    def verify(self, client: Client, admin: Admin, noted: Any) -> list[str]:
        before, sent = noted
        with client.create_producer("cp") as producer:
            producer.send(b"%d" % (1 << 30), partition_key="new")
        log = logged(client, "cp")
        with client.create_reader("cp", MessageId.earliest, is_read_compacted=True) as reader:
            newest = {message.partition_key(): int(message.data()) for message in reader}
        is_newer = all(newest.get(key, -1) >= number for key, number in before.items())
        if is_newer and newest.pop("new", 0) == 1 << 30 and set(newest.values()) <= set(log):
            return []
        return [f"Compacted: {before} of {sent} before the backup; {newest} compacted, the log is {log}"]


class Partitions(Part):
    """A partitioned topic that grows; what it has is passed on."""

    kept = ("joined",)

    def begin(self) -> None:
        self.count = 1
        self.admin.topics().create_partitioned_topic("parts", 1)
        self.done = self.client.create_producer("joined")
        self.consumer: Consumer[bytes] | None = None
        self.client.subscribe("parts", "s", ConsumerType.Shared, initial_position=_EARLIEST).close()

    def step(self) -> None:
        what = self.rng.random()
        if what < 0.5:
            with self.client.create_producer("parts") as producer:
                self.publish(producer)
        elif what < 0.6 and self.count < 4:
            self.count += 1
            self.admin.topics().update_partitioned_topic("parts", self.count)
        else:
            with self.client.subscribe(
                "parts", "s", ConsumerType.Shared, initial_position=_EARLIEST, ack_group_time_ms=0
            ) as consumer:
                for _ in range(self.rng.randint(1, 5)):
                    message = consumer.receive_nowait()
                    if message is None:
                        break
                    self.done.send(message.data())
                    consumer.acknowledge(message)

    def verify(self, client: Client, admin: Admin, noted: Any) -> list[str]:
        count = admin.topics().get_partitioned_topic_metadata("parts").partitions
        with client.subscribe("parts", "s", ConsumerType.Shared, initial_position=_EARLIEST) as consumer:
            where = {"parts": drained(consumer), "joined": logged(client, "joined")}
        if count < 1:
            return ["Partitions: the topic is not partitioned"]
        return self.missing(noted, where, [])


PARTS: Final = (Relay, Letters, Counting, Schemas, Sequences, Lives, Compacted, Partitions)


class Flow:
    """One store, and the backups of it.

    Args:
        place: an empty directory.
        seed: of all chance.
    """

    def __init__(self, place: Path, seed: int) -> None:
        self._place: Final = place
        self._rng: Final = random.Random(seed)
        self._root: Final = place / "store"
        self._root.mkdir()
        (self._root / "broker.conf").write_text(SETTINGS)
        self._number = 0
        self._left: dict[str, int] = {}
        self._attempts = 0
        self.counts: dict[str, int] = {}

    def run(self, most: int) -> tuple[int, list[str]]:
        """Make and restore up to ``most`` backups; returns how many, and what was wrong with one."""
        real, disk.DISK = disk.DISK, _NeverFlushed()
        try:
            return self._run(most)
        finally:
            disk.DISK = real

    def _run(self, most: int) -> tuple[int, list[str]]:
        done = 0
        with Client(self._root) as client, Admin(self._root) as admin:
            chosen = self._rng.sample(PARTS, self._rng.randint(1, _MOST_PARTS))
            parts = [kind(client, admin, self._rng) for kind in chosen]
            for _ in range(min(most, _BACKUPS)):
                for _ in range(self._rng.randint(1, 8)):
                    self._rng.choice(parts).step()
                problems = self._back_up(admin, parts, done)
                done += 1
                if problems:
                    names = ", ".join(kind.__name__ for kind in chosen)
                    return done, [f"backup {done} of {names}: {problem}" for problem in problems]
            for part in parts:
                if isinstance(part, Counting):
                    part.runner.stop()
        return done, []

    def _back_up(self, admin: Admin, parts: list[Part], number: int) -> list[str]:
        noted = [part.note() for part in parts]
        if self._rng.random() < 0.3:
            self._number += 1
        target = self._place / f"backup-{self._number}"
        self._attempts = 0
        self._left = {point: self._rng.randint(0, _MOST_BETWEEN) for point in POINTS}
        chance = self._rng.uniform(0.1, 1)

        def between(point: str) -> Callable[[], object]:
            return lambda: self._go_on(point, chance, parts)

        for point in POINTS:
            failpoints.set(point, between(point), nth=0)
        try:
            admin.backup(target)
        finally:
            failpoints.clear()
        place = self._place / "restored"
        Admin.restore(target, place)
        try:
            return self._problems(place, parts, noted, number)
        finally:
            shutil.rmtree(place)

    def _go_on(self, point: str, chance: float, parts: list[Part]) -> None:
        self._attempts += point == "backup:journals_taken"
        if point == "backup:cut" and self._attempts > _UNLOCKED:
            return  # the backup holds the locks of functions: this thread would wait for itself
        if self._left[point] > 0 and self._rng.random() < chance:
            self._left[point] -= 1
            self.counts[point] = self.counts.get(point, 0) + 1
            self._rng.choice(parts).step()

    @staticmethod
    def _problems(place: Path, parts: list[Part], noted: list[Any], number: int) -> list[str]:
        problems = [str(one) for one in check_store(str(place)).problems]
        with Client(place) as client, Admin(place) as admin:
            for part, note in zip(parts, noted, strict=True):
                problems += part.verify(client, admin, note)
        if number % _CHECKED_AFTERWARDS:
            return problems
        return problems + [str(one) for one in check_store(str(place)).problems]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the storm."""
    parser.add_argument("--stores", type=int, default=10_000, help="restored stores (default 10000)")


def run(options: argparse.Namespace, progress: Callable[[int, int], object] | None) -> StormReport:
    """Run flows, from the seed of the options on, until so many stores were restored."""
    report = StormReport("backups at random moments of random flows")
    seed, stores, counts = options.seed, 0, dict.fromkeys(POINTS, 0)
    while stores < options.stores:
        with tempfile.TemporaryDirectory(prefix="storm-", dir=options.workspace) as place:
            flow = Flow(Path(place), seed)
            done, problems = flow.run(options.stores - stores)
        stores += done
        for point, count in flow.counts.items():
            counts[point] += count
        for problem in problems:
            report.problems.append(f"seed {seed}: {problem}")
            print(f"seed {seed}: {problem}", file=sys.stderr, flush=True)
        if progress is not None:
            progress(stores, len(report.problems))
        seed += 1
    report.figures = {"stores restored": stores, "flows": seed - options.seed}
    report.figures |= {f"steps at {point}": count for point, count in counts.items()}
    return report
