"""What an application acknowledged is known, however and whenever its process ends after that."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar._engine.platform import failpoints
from tests.multiprocess.children import Child, say

EARLIEST = pulsar.InitialPosition.Earliest
KINDS = ["Exclusive", "Failover", "Shared", "Key_Shared"]
KIND = {"Key_Shared": pulsar.ConsumerType.KeyShared}
HOUR_MS = 3_600_000


def subscribe(client: pulsar.Client, kind: str, **options: Any) -> pulsar.Consumer:
    """A consumer whose acknowledgements are not written by themselves."""
    options.setdefault("ack_group_time_ms", HOUR_MS)
    chosen = KIND.get(kind) or pulsar.ConsumerType[kind]
    return client.subscribe("jobs", "work", chosen, initial_position=EARLIEST, **options)


def produce(client: pulsar.Client, count: int, batch: int = 1) -> None:
    """Jobs 0, 1 and so on, in batches of that many."""
    options: dict[str, Any] = {"batching_max_messages": batch, "batching_max_publish_delay_ms": 60_000}
    if batch == 1:
        options = {}
    with client.create_producer("jobs", batching_enabled=batch > 1, **options) as producer:
        for number in range(count):
            producer.send_async(b"%d" % number, None, partition_key=str(number % 7))


def acknowledge_and_die(root: str, kind: str, mode: str, seed: int, pipe: int) -> None:
    """Take jobs, acknowledge some of them at random, tell which after each call returned, and die there."""
    choice = random.Random(seed)
    client = pulsar.Client(root)
    consumer = subscribe(client, kind, batch_index_ack_enabled=mode == "parts")
    held: list[Any] = []
    for _ in range(choice.randrange(1, 60)):
        held += [consumer.receive(5000) for _ in range(choice.randrange(1, 3))]
        at = choice.randrange(len(held))
        if mode == "cumulative":
            told = held[: at + 1]
            consumer.acknowledge_cumulative(held[at])
        else:
            told = [held[at]]
            consumer.acknowledge(held[at] if choice.random() < 0.7 else held[at].message_id())
        held = [message for message in held if message not in told]
        os.write(pipe, b"".join(message.data() + b"," for message in told))
    os.kill(os.getpid(), signal.SIGKILL)


def kill_one(root: Path, kind: str, mode: str, seed: int) -> set[int]:
    """What a forked process acknowledged before it was killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            acknowledge_and_die(str(root), kind, mode, seed, writer)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as file:
        told = file.read()
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    return {int(number) for number in told.split(",") if number}


def drain(client: pulsar.Client, kind: str, **options: Any) -> list[int]:
    """Everything that comes to the next consumer."""
    with subscribe(client, kind, **options) as consumer:
        found = []
        while True:
            try:
                found.append(int(consumer.receive(300).data()))
            except pulsar.Timeout:
                return found


def acknowledged_by(child: Child) -> set[int]:
    """What a child said it acknowledged, to its end."""
    assert child.process.stdout is not None
    return {int(number) for line in child.process.stdout for number in line.strip().split(",")}


MODES = [(kind, mode) for kind in KINDS for mode in ("single", "parts")]
MODES += [("Exclusive", "cumulative"), ("Failover", "cumulative")]


@pytest.mark.parametrize(("kind", "mode"), MODES)
@pytest.mark.parametrize("kills", [10, pytest.param(400, marks=pytest.mark.slow)])
def test_killed_after_acknowledging(tmp_path: Path, kind: str, mode: str, kills: int):
    """Consumers one after the other are killed right after a call returned: nothing acknowledged comes again,
    and nothing else is lost."""
    total, batch = 70 * kills, 5 if mode == "parts" else 1
    (tmp_path / "broker.conf").write_text("managedLedgerMaxEntriesPerLedger=40\n")
    with pulsar.Client(tmp_path) as client:
        subscribe(client, kind).close()  # else what is stored before is trimmed
        produce(client, total, batch)
    done: set[int] = set()
    for seed in range(kills):
        fresh = kill_one(tmp_path, kind, mode, seed)
        assert not fresh & done, f"acknowledged, and came again in round {seed}: {fresh & done}"
        done |= fresh
    with pulsar.Client(tmp_path) as client:
        left = drain(client, kind, batch_index_ack_enabled=mode == "parts")
        assert sorted(left) == sorted(set(range(total)) - done)
    assert not list(tmp_path.glob("topics/*/subscriptions/*/acks.*"))


def acknowledge_batches(root: str) -> None:
    """Acknowledge the first batch whole and half of the second, then die."""
    consumer = subscribe(pulsar.Client(root), "Shared")
    for _ in range(15):
        consumer.acknowledge(consumer.receive(5000))
    os.kill(os.getpid(), signal.SIGKILL)


def test_batches(tmp_path: Path):
    """Without acknowledgement of parts, a batch is acknowledged when all its messages are."""
    with pulsar.Client(tmp_path) as client:
        produce(client, 30, 10)
        with Child(acknowledge_batches, tmp_path) as child:
            assert child.join() == -signal.SIGKILL
        assert drain(client, "Shared") == list(range(10, 30))


def acknowledge_at(root: str, point: str, mode: str) -> None:
    """Acknowledge messages until a failpoint kills this process."""
    client = pulsar.Client(root)
    consumer = subscribe(client, "Exclusive", batch_index_ack_enabled=mode == "parts")
    failpoints.set(point, "kill", nth=3)
    for number in range(20):
        message = consumer.receive(5000)
        if mode == "cumulative":
            consumer.acknowledge_cumulative(message)
        else:
            consumer.acknowledge(message.message_id())
        say(number)


@pytest.mark.parametrize(
    ("point", "mode", "batch"),
    [
        ("ack:noted", "single", 1),
        ("acks:pair_data", "parts", 5),
        ("acks:pair_data", "cumulative", 1),
    ],
)
def test_killed_while_acknowledging(tmp_path: Path, point: str, mode: str, batch: int):
    """Half of an acknowledgement is none; the ones before it count."""
    with pulsar.Client(tmp_path) as client:
        produce(client, 20, batch)
        with Child(acknowledge_at, tmp_path, point, mode) as child:
            done = acknowledged_by(child)
            assert child.join() == -signal.SIGKILL
        left = drain(client, "Exclusive", batch_index_ack_enabled=mode == "parts")
        assert set(left) in ({*range(20)} - done, {*range(20)} - done - {len(done)})
        assert left == sorted(left)


def detach(root: str, point: str) -> None:
    """Find out that another consumer died, and die at a step of that."""
    client = pulsar.Client(root)
    say("open")
    failpoints.set(point, "kill")
    subscribe(client, "Exclusive")


@pytest.mark.parametrize(
    "point",
    [
        "journal:body_done",
        "journal:word_stored",
        "subscription:announced",
        "subscription:published",
        "subscription:left",
    ],
)
def test_the_finder_dies_too(tmp_path: Path, point: str):
    """Whoever comes next goes on with the departure of the first, and of the second."""
    with pulsar.Client(tmp_path) as client:
        produce(client, 30, 10)
        with Child(acknowledge_batches, tmp_path) as child:
            assert child.join() == -signal.SIGKILL
        with Child(detach, tmp_path, point) as child:
            assert child.read() == "open"
            assert child.join() == -signal.SIGKILL
        assert drain(client, "Exclusive") == list(range(10, 30))
    assert not list(tmp_path.glob("topics/*/subscriptions/*/acks.*"))


def acknowledge_twice_around_a_seek(root: str) -> None:
    """Acknowledge all, have the subscription moved back by another process, and die."""
    consumer = subscribe(pulsar.Client(root), "Exclusive")
    for _ in range(10):
        consumer.acknowledge(consumer.receive(5000))
    say("acknowledged")
    input()
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_seek_voids_what_was_not_written(tmp_path: Path):
    """As it does with what was."""
    with pulsar.Client(tmp_path) as client:
        produce(client, 10)
        with Child(acknowledge_twice_around_a_seek, tmp_path) as child:
            assert child.read() == "acknowledged"
            topic = client._core.store.use_topic("persistent://public/default/jobs").topic
            topic.subscription("work", create=False).seek(topic.ledger.first_position(), True)
            child.tell("die")
            assert child.join() == -signal.SIGKILL
        assert drain(client, "Exclusive") == list(range(10))
