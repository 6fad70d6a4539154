"""A consumer that is alone reads on without claims; whenever it is killed, it is known what it had."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.testing.trial_store import check_store
from tests.multiprocess.children import Child, say

KINDS = [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared]
EARLIEST = pulsar.InitialPosition.Earliest
HOUR_MS = 3_600_000
TAKEN = 6


def subscribe(client: pulsar.Client, kind: pulsar.ConsumerType) -> pulsar.Consumer:
    """A consumer whose acknowledgements are not written by themselves."""
    return client.subscribe("jobs", "work", kind, initial_position=EARLIEST, ack_group_time_ms=HOUR_MS)


def work_alone(root: str, kind: str, point: str) -> None:
    """Take jobs, acknowledge every other one, and die: at a step of the next read, or when told."""
    consumer = subscribe(pulsar.Client(root), pulsar.ConsumerType[kind])
    say("attached")
    for number in range(TAKEN):
        message = consumer.receive(10_000)
        if number % 2:
            consumer.acknowledge(message)
        say(message.data().decode())
    if point:
        failpoints.set(point, "kill")
        consumer.receive(10_000)
    input()


def wait_for_another(root: str, kind: str, point: str) -> None:
    """Attach, and die at a step of that."""
    client = pulsar.Client(root)
    say("open")
    failpoints.set(point, "kill")
    subscribe(client, pulsar.ConsumerType[kind])


def drain(consumer: pulsar.Consumer) -> dict[int, int]:
    """What comes, and how often each message came before."""
    counts: dict[int, int] = {}
    while True:
        try:
            message = consumer.receive(200)
        except pulsar.Timeout:
            return counts
        number = int(message.data())
        assert number not in counts
        counts[number] = message.redelivery_count()
        consumer.acknowledge(message)


@pytest.mark.parametrize("point", ["", "range:taken"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_owner_is_killed(tmp_path: Path, kind: pulsar.ConsumerType, point: str):
    """What its application was given and did not acknowledge comes again and counts; the rest comes."""
    with pulsar.Client(tmp_path) as client, client.create_producer("jobs") as producer:
        with Child(work_alone, tmp_path, kind.name, point) as child:
            assert child.read() == "attached"
            for number in range(TAKEN):
                producer.send(b"%d" % number, partition_key=f"k{number}")
                assert child.read() == str(number)
            producer.send(b"%d" % TAKEN, partition_key="last")
            if not point:
                child.kill()
            assert child.join() == -signal.SIGKILL
        with subscribe(client, kind) as consumer:
            assert drain(consumer) == {0: 1, 2: 1, 4: 1, TAKEN: 0}
    assert {problem.kind for problem in check_store(str(tmp_path)).problems} <= {"leftover"}  # leases


@pytest.mark.parametrize(
    ("kind", "point"),
    [(KINDS[0], "range:closing"), (KINDS[1], "range:assigned"), (KINDS[0], "journal:word_stored")],
    ids=str,
)
def test_who_joins_is_killed(tmp_path: Path, kind: pulsar.ConsumerType, point: str):
    """The owner keeps what it took; the consumer after that gets none of it, and both share what comes."""
    with pulsar.Client(tmp_path) as client, client.create_producer("jobs") as producer:
        with Child(work_alone, tmp_path, kind.name, "") as child:
            assert child.read() == "attached"
            for number in range(TAKEN):
                producer.send(b"%d" % number, partition_key=f"k{number}")
                assert child.read() == str(number)
            with Child(wait_for_another, tmp_path, kind.name, point) as joiner:
                assert joiner.read() == "open"
                assert joiner.join() == -signal.SIGKILL
            with subscribe(client, kind) as consumer:
                assert drain(consumer) == {}
                child.kill()
                child.join()
                assert drain(consumer) == {0: 1, 2: 1, 4: 1}
    assert {problem.kind for problem in check_store(str(tmp_path)).problems} <= {"leftover"}  # leases


def come_and_go(root: str, kind: str) -> None:
    """Attach, take and acknowledge a few jobs, and leave, again and again; tell what was taken."""
    client = pulsar.Client(root)
    say("open")
    for turn in range(12):
        with client.subscribe("jobs", "work", pulsar.ConsumerType[kind]) as consumer:
            taken = []
            for _ in range(turn % 4):
                try:
                    message = consumer.receive(20)
                except pulsar.Timeout:
                    break
                consumer.acknowledge(message)
                taken.append(message.data().decode())
        say(",".join(taken) or "-")
    client.close()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_another_comes_and_goes(tmp_path: Path, kind: pulsar.ConsumerType):
    """While the owner reads on without claims, and messages are sent: each comes once, to one of the two."""
    with pulsar.Client(tmp_path) as client, client.create_producer("jobs") as producer:
        consumer = client.subscribe("jobs", "work", kind, initial_position=EARLIEST)
        mine: list[int] = []
        theirs: list[int] = []
        sent = 0
        with Child(come_and_go, tmp_path, kind.name) as child:
            assert child.read() == "open"
            reader = threading.Thread(target=lambda: theirs.extend(read_turns(child)))
            reader.start()
            while reader.is_alive():
                producer.send(b"%d" % sent, partition_key=f"k{sent % 50}")
                sent += 1
                mine += receive_all(consumer)
            reader.join()
            assert child.join() == 0
        mine += receive_all(consumer, 200)
        assert sorted(mine + theirs) == list(range(sent))
        assert mine


def read_turns(child: Child) -> list[int]:
    """What the other consumer took in all of its turns."""
    lines = [child.read() for _ in range(12)]
    return [int(number) for line in lines if line != "-" for number in line.split(",")]


def receive_all(consumer: pulsar.Consumer, wait_ms: int = 0) -> list[int]:
    """Take and acknowledge what there is."""
    numbers = []
    while True:
        try:
            message = consumer.receive(wait_ms)
        except pulsar.Timeout:
            return numbers
        assert not message.redelivery_count()
        consumer.acknowledge(message)
        numbers.append(int(message.data()))
