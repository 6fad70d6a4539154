"""Backups while processes publish, acknowledge and trim: each restores to a whole store of one moment."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import (
    Admin,
    Client,
    Consumer,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    Function,
    InitialPosition,
    MessageId,
)
from embeddedpulsar.functions import FunctionConfig, LocalRunner, ProcessingGuarantees
from embeddedpulsar.testing import assert_clean
from tests.children import ForkedChild

BACKUPS = 6
MOST = 60
SETTINGS = "managedLedgerMaxSizePerLedgerMbytes=1\nmanagedLedgerMaxEntriesPerLedger=100\n"
TOPICS = ("one", "two")


def produce(root: Path, topic: str) -> None:
    """Numbers, each noted in a file when it is stored, until killed."""
    with Client(root) as client:
        producer = client.create_producer(topic)
        noted = os.open(root.parent / f"stored-{topic}", os.O_WRONLY | os.O_CREAT, 0o600)
        for number in range(1_000_000):
            producer.send(b"%d" % number)
            os.pwrite(noted, b"%12d" % number, 0)
            time.sleep(0.002)


def consume(root: Path, topic: str) -> None:
    """Acknowledge, and trim now and then, until killed."""
    with Client(root) as client, Admin(root) as admin:
        consumer = client.subscribe(topic, "sub", ConsumerType.Shared, ack_group_time_ms=5)
        for number in range(1_000_000):
            consumer.acknowledge(consumer.receive())
            if not number % 20:
                admin.topics().trim_topic(topic)


def commit_batches(root: Path) -> None:
    """Batches of a sink, into two topics, each noted when it is begun, until killed."""
    from tests.support.sinks import write

    noted = os.open(root.parent / "begun", os.O_WRONLY | os.O_CREAT, 0o600)
    for number in range(1, 1_000_000):
        os.pwrite(noted, b"%12d" % number, 0)
        rows = {"value": [b"%d" % number] * 4, "__topic": [*TOPICS] * 2}
        write(root, rows, rows, producerName="sink", batchId=str(number))


def left(root: Path, topic: str) -> list[int]:
    """What the subscription gets, before a message that is sent last."""
    with Client(root) as client:
        client.create_producer(topic).send(b"-1")
        consumer = client.subscribe(topic, "sub", ConsumerType.Shared)
        found: list[int] = []
        while -1 not in found:
            found.append(int(consumer.receive(5000).data()))
        return found[:-1]


def stored(root: Path, topic: str) -> list[int]:
    """All messages that a topic still has."""
    with Client(root) as client:
        consumer = client.subscribe(topic, "all", initial_position=InitialPosition.Earliest)
        found = []
        while (message := consumer.receive_nowait()) is not None:
            found.append(int(message.data()))
        return found


def test_backups_beside_producers_consumers_and_trimming(tmp_path: Path):
    """What was stored before the backup is in it, without a gap; no subscription is ahead of its log."""
    root, target = tmp_path / "store", tmp_path / "backup"
    root.mkdir()
    (root / "broker.conf").write_text(SETTINGS)
    with Client(root) as client:
        for topic in TOPICS:
            client.subscribe(topic, "sub", ConsumerType.Shared).close()
    children = [
        ForkedChild(lambda work=work, topic=topic: work(root, topic))  # type: ignore[misc]
        for topic in TOPICS
        for work in (produce, consume)
    ]
    try:
        while not all((tmp_path / f"stored-{topic}").exists() for topic in TOPICS):
            time.sleep(0.01)
        with Admin(root) as admin:
            was_trimmed = False
            for number in range(MOST):
                if number >= BACKUPS and was_trimmed:
                    break
                time.sleep(0.2)
                before = {topic: int((tmp_path / f"stored-{topic}").read_bytes() or 0) for topic in TOPICS}
                admin.backup(target)
                place = tmp_path / f"restored-{number}"
                Admin.restore(target, place)
                report = assert_clean(place)
                assert report.topics == 2
                for topic in TOPICS:
                    found = stored(place, topic)
                    assert found == [*range(found[0], found[-1] + 1)], found
                    assert found[-1] >= before[topic]
                    was_trimmed |= found[0] > 0
                    unacked = left(place, topic)
                    assert set(unacked) <= set(found)
                    assert not unacked or max(unacked) == found[-1]
                assert_clean(place)
                shutil.rmtree(place)
    finally:
        for child in children:
            child.end()
    assert was_trimmed
    with Admin(root) as admin:
        assert not admin.check().damage


def test_backups_beside_a_sink(tmp_path: Path):
    """Each has whole batches only, in both topics; one that comes again after a restore is stored once."""
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from embeddedpulsar.spark import finish_commits
    from tests.support.sinks import write

    root, target = tmp_path / "store", tmp_path / "backup"
    with Client(root) as client:
        for topic in TOPICS:
            client.create_producer(topic).send(b"0")
    child = ForkedChild(lambda: commit_batches(root))
    try:
        for place in (tmp_path / "restored-1", tmp_path / "restored-2"):
            begun = int((tmp_path / "begun").read_bytes() or 0) if (tmp_path / "begun").exists() else 0
            while not (tmp_path / "begun").exists() or int((tmp_path / "begun").read_bytes()) < begun + 5:
                time.sleep(0.01)
            with Admin(root) as admin:
                admin.backup(target)
            Admin.restore(target, place)
            finish_commits(place)
            found = {topic: stored(place, topic) for topic in TOPICS}
            last = found["one"][-1]
            assert last >= begun
            whole = [0, *(number for number in range(1, last + 1) for _ in range(4))]
            assert [found[topic] for topic in TOPICS] == [whole, whole]
            for number in (last, last + 1):
                rows = {"value": [b"-1"], "__topic": ["one"]}
                write(place, rows, producerName="sink", batchId=str(number))
            assert stored(place, "one") == [*found["one"], -1]
            assert_clean(place)
    finally:
        child.end()


class _Count(Function):
    def process(self, value: Any, context: Any) -> Any:
        context.incr_counter("n", 1)
        return value


def counting(client: Client) -> LocalRunner:
    """An effectively-once function, whose input stands behind its output and before its state, by name."""
    guarantee = ProcessingGuarantees.EFFECTIVELY_ONCE
    config = FunctionConfig(name="w", inputs=["in"], output="done", processing_guarantees=guarantee)
    return LocalRunner(config, _Count, client=client)


def count(root: Path) -> None:
    """Run the function until killed."""
    counting(Client(root)).run()


def give_up(root: Path) -> None:
    """Put messages off, give them up, or pass them on, until killed."""
    client = Client(root)
    consumer, passed = letter_consumer(client), client.create_producer("passed")
    for number in range(1_000_000):
        message = consumer.receive()
        if number % 3:
            consumer.reconsume_later(message, 0)
        else:
            passed.send(message.data())
            consumer.acknowledge(message)


def letter_consumer(client: Client) -> Consumer[bytes]:
    """Of the topic ``src``."""
    policy = ConsumerDeadLetterPolicy(1)
    return client.subscribe(
        "src",
        "s",
        ConsumerType.Shared,
        dead_letter_policy=policy,
        enable_retry=True,
        initial_position=InitialPosition.Earliest,
        ack_group_time_ms=5,
    )


def logged(client: Client, topic: str) -> list[int]:
    """The numbers in a log."""
    with client.create_reader(topic, MessageId.earliest) as reader:
        return [int(message.data()) for message in reader]


def test_backups_beside_functions_and_letters(tmp_path: Path):
    """Each input is counted once, with one output; each message is unacknowledged, a letter, or passed on."""
    root, target = tmp_path / "store", tmp_path / "backup"
    root.mkdir()
    (root / "broker.conf").write_text(SETTINGS)
    with Client(root) as client, Admin(root) as admin:
        for topic in ("in", "done", "src", "src-s-DLQ", "passed"):
            admin.topics().create_non_partitioned_topic(topic)
            admin.topics().set_retention(topic, -1, -1)
        with counting(client) as runner:
            runner.run_until_idle()
        letter_consumer(client).close()
    children = [
        ForkedChild(lambda work=work: work())  # type: ignore[misc]
        for work in (
            lambda: count(root),
            lambda: give_up(root),
            lambda: produce(root, "in"),
            lambda: produce(root, "src"),
        )
    ]
    try:
        while not all((tmp_path / f"stored-{topic}").exists() for topic in ("in", "src")):
            time.sleep(0.01)
        for number in range(5):
            time.sleep(0.2)
            before = {name: int((tmp_path / f"stored-{name}").read_bytes() or 0) for name in ("in", "src")}
            with Admin(root) as admin:
                admin.backup(target)
            place = tmp_path / f"restored-{number}"
            Admin.restore(target, place)
            assert_clean(place)
            with Client(place) as client, Admin(place) as admin:
                with counting(client) as runner:
                    runner.run_until_idle()
                inputs = logged(client, "in")
                assert inputs == [*range(len(inputs))] and len(inputs) > before["in"]
                assert sorted(logged(client, "done")) == inputs
                assert admin.functions().get_function_state("public", "default", "w", "n") == len(inputs)
                numbers = logged(client, "src")
                consumer = letter_consumer(client)
                unacked = []
                while (message := consumer.receive_nowait()) is not None:
                    unacked.append(int(message.data()))
                consumer.close()
                assert numbers == [*range(len(numbers))] and len(numbers) > before["src"]
                effects = {*unacked, *logged(client, "src-s-DLQ"), *logged(client, "passed")}
                # The end of this log may be read a moment before that of the log with the effects.
                assert effects >= {*numbers}
            assert_clean(place)
    finally:
        for child in children:
            child.end()


def feed(root: Path) -> None:
    """Numbers for those who transform them, until killed."""
    with Client(root) as client, client.create_producer("in") as producer:
        for number in range(1_000_000):
            producer.send(b"%d" % number)
            time.sleep(0.001)


def transform(root: Path) -> None:
    """Pass numbers on to two topics, and acknowledge them, each few in a transaction, until killed."""
    with Client(root) as client:
        producers = [client.create_producer(topic) for topic in TOPICS]
        consumer = client.subscribe("in", "sub", ConsumerType.Shared)
        while True:
            with client.transaction() as txn:
                for _ in range(3):
                    message = consumer.receive()
                    for producer in producers:
                        producer.send(message.data(), txn=txn)
                    consumer.acknowledge(message, txn=txn)


def test_backups_beside_transactions(tmp_path: Path):
    """Two processes transform all the time, and are killed: each input of a copy was passed on to both topics
    and acknowledged, or comes again."""
    root, target = tmp_path / "store", tmp_path / "backup"
    root.mkdir()
    (root / "broker.conf").write_text("defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n")
    with Client(root) as client:
        client.subscribe("in", "sub", ConsumerType.Shared).close()
    children = [
        ForkedChild(lambda work=work: work(root))  # type: ignore[misc]
        for work in (feed, transform, transform)
    ]
    passed: list[int] = []
    try:
        for number in range(3):
            while len(passed) == len(passed := stored(root, "one")):  # until more is passed on
                time.sleep(0.05)
            with Admin(root) as admin:
                admin.backup(target)
            if number == 1:
                children.pop().end()
            place = tmp_path / f"restored-{number}"
            Admin.restore(target, place)
            assert_clean(place)
            first, second = (stored(place, topic) for topic in TOPICS)
            again = left(place, "in")
            assert sorted(first) == sorted(second)
            everything = stored(place, "in")
            assert sorted([*first, *again]) == sorted(set(everything) - {-1})
            assert len(first) >= len(passed)
            shutil.rmtree(place)
    finally:
        for child in children:
            child.end()
