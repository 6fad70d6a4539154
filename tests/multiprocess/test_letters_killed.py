"""A process that dies while it sends a message round, or moves it away, loses nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.store.policies.keeping import KEEP_UNTIL_SUBSCRIBED
from tests.multiprocess.children import Child, say

EARLIEST = pulsar.InitialPosition.Earliest


def consumer_of(client: pulsar.Client, kind: str) -> pulsar.Consumer:
    """A consumer of ``jobs`` with retries, that gives back quickly."""
    return client.subscribe(
        "jobs",
        "work",
        pulsar.ConsumerType[kind],
        initial_position=EARLIEST,
        negative_ack_redelivery_delay_ms=100,
        enable_retry=True,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1),
    )


def retry(root: str, point: str) -> None:
    """Send the first message round, and die at a step of that."""
    with pulsar.Client(root) as client:
        consumer = consumer_of(client, "Exclusive")
        message = consumer.receive()
        say("received")
        failpoints.set(point, "kill")
        consumer.reconsume_later(message, 0)


def bury(root: str, point: str) -> None:
    """Give messages back until they move, and die at a step of that."""
    with pulsar.Client(root) as client:
        consumer = consumer_of(client, "Shared")
        failpoints.set(point, "kill")
        say("attached")
        while True:
            consumer.negative_acknowledge(consumer.receive())


def choke(root: str) -> None:
    """Receive one message, and die of it."""
    with pulsar.Client(root) as client:
        consumer = consumer_of(client, "Shared")
        message = consumer.receive()
        say(message.data().decode(), message.redelivery_count())
        os.kill(os.getpid(), signal.SIGKILL)


def contents(client: pulsar.Client, topic: str) -> list[bytes]:
    """What a topic holds."""
    with client.create_reader(topic, pulsar.MessageId.earliest) as reader:
        return [message.data() for message in reader]


@pytest.mark.parametrize(
    ("point", "copies"), [("letter:topic", 0), ("letter:before", 0), ("letter:stored", 1)]
)
def test_killed_while_sending_round(tmp_path: Path, point: str, copies: int):
    """Before the copy is stored there is the original; after it both, until one is acknowledged."""
    with pulsar.Client(tmp_path) as client:
        client.create_producer("jobs").send(b"job")
        with Child(retry, tmp_path, point) as child:
            assert child.read() == "received"
            assert child.join() == -signal.SIGKILL
        assert contents(client, "jobs-work-RETRY") == [b"job"] * copies
        consumer = consumer_of(client, "Exclusive")
        received = [consumer.receive(5000).topic_name() for _ in range(1 + copies)]
        assert "persistent://public/default/jobs" in received
        with pytest.raises(pulsar.Timeout):
            consumer.receive(100)


@pytest.mark.parametrize("point", ["letter:topic", "letter:before", "letter:stored"])
def test_killed_while_moving(tmp_path: Path, point: str):
    """The messages it did not move are moved by the next consumer: each is there at least once."""
    with pulsar.Client(tmp_path) as client:
        producer = client.create_producer("jobs")
        for number in range(5):
            producer.send(b"%d" % number)
        with Child(bury, tmp_path, point) as child:
            assert child.read() == "attached"
            assert child.join() == -signal.SIGKILL
        before = contents(client, "jobs-work-DLQ")
        consumer = consumer_of(client, "Shared")
        while True:
            try:
                consumer.negative_acknowledge(consumer.receive(1000))
            except pulsar.Timeout:
                break
        found = contents(client, "jobs-work-DLQ")
        assert set(found) == {b"%d" % number for number in range(5)}
        assert len(found) - len(before) <= 5
        assert client._core.store.policy("jobs-work-DLQ", KEEP_UNTIL_SUBSCRIBED)


@pytest.mark.parametrize("is_attended", [True, False])
def test_a_message_that_kills_its_consumers_moves(tmp_path: Path, is_attended: bool):
    """Deaths count: what killed every process it was given to is not given to another one, whether or not
    somebody else is attached meanwhile."""
    with pulsar.Client(tmp_path) as client:
        client.create_producer("jobs").send(b"poison")
        consumer = consumer_of(client, "Shared")
        if not is_attended:
            consumer.close()
        for count in range(2):
            with Child(choke, tmp_path) as child:
                assert child.read() == f"poison {count}"
                assert child.join() == -signal.SIGKILL
        if not is_attended:
            consumer = consumer_of(client, "Shared")
        dead = client.subscribe("jobs-work-DLQ", "undertaker", initial_position=EARLIEST)
        with pytest.raises(pulsar.Timeout):
            consumer.receive(500)
        assert dead.receive(5000).data() == b"poison"
